"""Metrics: BLEU, chrF, TER, ROUGE, term recall, alignment error rate, perplexity.

Every metric is registered in `METRICS` by the files of this folder: a new one is a new file. sacrebleu and rouge-score
score texts, and every score has a signature that tells how it was made. Texts are lists of strings, one string per
example. References are a list of such lists: `refs[r][i]` is reference `r` of example `i`.
"""

from importlib import import_module
from pkgutil import iter_modules

from nmtkit.metrics.bleu import SPM_TOKENIZERS as SPM_TOKENIZERS
from nmtkit.metrics.bleu import TOKENIZERS as TOKENIZERS
from nmtkit.metrics.bleu import LengthBucket as LengthBucket
from nmtkit.metrics.bleu import by_length as by_length
from nmtkit.metrics.fit import aer as aer
from nmtkit.metrics.fit import perplexity as perplexity
from nmtkit.metrics.metric import MAX_SAMPLES as MAX_SAMPLES
from nmtkit.metrics.metric import METRICS as METRICS
from nmtkit.metrics.metric import Comparison as Comparison
from nmtkit.metrics.metric import Options as Options
from nmtkit.metrics.metric import Resampling as Resampling
from nmtkit.metrics.metric import Score as Score
from nmtkit.metrics.metric import Texts as Texts
from nmtkit.metrics.metric import metric_names as metric_names
from nmtkit.metrics.metric import score_all as score_all
from nmtkit.metrics.metric import score_texts as score_texts
from nmtkit.metrics.metric import text_metrics as text_metrics
from nmtkit.metrics.quality import term_recall as term_recall
from nmtkit.metrics.rouge import ROUGE_METRICS as ROUGE_METRICS
from nmtkit.metrics.rouge import SENTENCE_RULES as SENTENCE_RULES
from nmtkit.metrics.rouge import lead as lead
from nmtkit.metrics.rouge import split_sentences as split_sentences
from nmtkit.metrics.significance import ExampleMetric as ExampleMetric

for _module in iter_modules(__path__):  # each registers its metrics
    import_module(f"{__name__}.{_module.name}")
