"""One file per paper; importing this package registers every model."""

from nmtkit.models import convs2s as convs2s
from nmtkit.models import elmo as elmo
from nmtkit.models import hierarchical_attention as hierarchical_attention
from nmtkit.models import t5 as t5
from nmtkit.models import transformer as transformer
from nmtkit.models import word_mean as word_mean
