"""Metrics: BLEU, chrF, TER, ROUGE, term recall, alignment error rate, perplexity.

Every metric is registered in `METRICS` by the files of this folder: a new one is a new file. sacrebleu and rouge-score
score texts, and every score has a signature that tells how it was made. Texts are lists of strings, one string per
example. References are a list of such lists: `refs[r][i]` is reference `r` of example `i`.
"""

from importlib import import_module
from pkgutil import iter_modules

from nmtkit.data.text.text import SENTENCE_RULES, split_sentences
from nmtkit.metrics.bleu import SPM_TOKENIZERS, TOKENIZERS, LengthBucket, by_length
from nmtkit.metrics.fit import aer, perplexity
from nmtkit.metrics.metric import METRICS, Comparison, Options, Resampling, Score, Texts, metric_names, score_all
from nmtkit.metrics.quality import term_recall
from nmtkit.metrics.rouge import ROUGE_METRICS, lead
from nmtkit.metrics.significance import ExampleMetric

__all__ = ["METRICS", "ROUGE_METRICS", "SENTENCE_RULES", "SPM_TOKENIZERS", "TOKENIZERS", "Comparison", "ExampleMetric"]
__all__ += ["LengthBucket", "Options", "Resampling", "Score", "Texts", "aer", "by_length", "lead", "metric_names"]
__all__ += ["perplexity", "score_all", "split_sentences", "term_recall"]

for _module in iter_modules(__path__):  # each registers its metrics
    import_module(f"{__name__}.{_module.name}")
