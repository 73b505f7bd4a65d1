"""Models that write with recurrent networks, one file per paper. Importing this registers them."""

from nmtkit.models.rnn import gnmt as gnmt
from nmtkit.models.rnn import intra_attention as intra_attention
from nmtkit.models.rnn import lstmn_seq2seq as lstmn_seq2seq
from nmtkit.models.rnn import luong as luong
from nmtkit.models.rnn import pointer_generator as pointer_generator
from nmtkit.models.rnn import rnn_encdec as rnn_encdec
from nmtkit.models.rnn import rnnsearch as rnnsearch
from nmtkit.models.rnn import show_and_tell as show_and_tell
from nmtkit.models.rnn import show_attend_tell as show_attend_tell
