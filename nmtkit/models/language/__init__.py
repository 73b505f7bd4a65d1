"""Models of running text, one file per paper. Importing this registers them."""

from nmtkit.models.language import bert as bert
from nmtkit.models.language import electra as electra
from nmtkit.models.language import lstmn as lstmn
from nmtkit.models.language import ntm as ntm
from nmtkit.models.language import pointer_sentinel as pointer_sentinel
from nmtkit.models.language import rnn_lm as rnn_lm
from nmtkit.models.language import snail as snail
from nmtkit.models.language import transformer_lm as transformer_lm
from nmtkit.models.language import xlnet as xlnet
