"""Models that write with recurrent networks, one file per paper. Importing this registers them."""

from nmtkit.recurrent_models import gnmt as gnmt
from nmtkit.recurrent_models import intra_attention as intra_attention
from nmtkit.recurrent_models import lstmn_seq2seq as lstmn_seq2seq
from nmtkit.recurrent_models import luong as luong
from nmtkit.recurrent_models import pointer_generator as pointer_generator
from nmtkit.recurrent_models import rnn_encdec as rnn_encdec
from nmtkit.recurrent_models import rnnsearch as rnnsearch
from nmtkit.recurrent_models import show_and_tell as show_and_tell
from nmtkit.recurrent_models import show_attend_tell as show_attend_tell
