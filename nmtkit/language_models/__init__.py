"""Models of running text, one file per paper. Importing this registers them."""

from nmtkit.language_models import bert as bert
from nmtkit.language_models import electra as electra
from nmtkit.language_models import lstmn as lstmn
from nmtkit.language_models import ntm as ntm
from nmtkit.language_models import pointer_sentinel as pointer_sentinel
from nmtkit.language_models import rnn_lm as rnn_lm
from nmtkit.language_models import snail as snail
from nmtkit.language_models import transformer_lm as transformer_lm
from nmtkit.language_models import xlnet as xlnet
