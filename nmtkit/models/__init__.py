"""One file per paper; importing this package registers every model."""

from nmtkit.models import luong as luong
from nmtkit.models import rnn_encdec as rnn_encdec
from nmtkit.models import rnnsearch as rnnsearch
from nmtkit.models import transformer as transformer
