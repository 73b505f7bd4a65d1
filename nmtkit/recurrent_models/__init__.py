"""Translation and summarization with recurrent networks, one file per paper. Importing this registers the models."""

from nmtkit.recurrent_models import gnmt as gnmt
from nmtkit.recurrent_models import intra_attention as intra_attention
from nmtkit.recurrent_models import luong as luong
from nmtkit.recurrent_models import pointer_generator as pointer_generator
from nmtkit.recurrent_models import rnn_encdec as rnn_encdec
from nmtkit.recurrent_models import rnnsearch as rnnsearch
