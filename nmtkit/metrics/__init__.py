"""Metrics: BLEU, chrF, TER, ROUGE, term recall, alignment error rate, perplexity.

`METRICS` contains every metric by name. sacrebleu and rouge-score score texts, and every score has
a signature with its settings. Texts are lists of strings, one string per example. References are a
list of such lists: `refs[r][i]` is reference `r` of example `i`.
"""

from nmtkit.data.text.sentences import SENTENCE_RULES, split_sentences
from nmtkit.metrics.bleu import SPM_TOKENIZERS, TOKENIZERS, LengthBucket, by_length, ngram_counts
from nmtkit.metrics.fit import aer, perplexity
from nmtkit.metrics.metric import (
    METRICS,
    Comparison,
    Options,
    Resampling,
    Score,
    Texts,
    metric_names,
    score_all,
)
from nmtkit.metrics.quality import term_recall
from nmtkit.metrics.rouge import ROUGE_METRICS, lead
from nmtkit.metrics.significance import ExampleMetric

__all__ = [
    "METRICS",
    "ROUGE_METRICS",
    "SENTENCE_RULES",
    "SPM_TOKENIZERS",
    "TOKENIZERS",
    "Comparison",
    "ExampleMetric",
]
__all__ += [
    "LengthBucket",
    "Options",
    "Resampling",
    "Score",
    "Texts",
    "aer",
    "by_length",
    "lead",
    "metric_names",
]
__all__ += ["ngram_counts", "perplexity", "score_all", "split_sentences", "term_recall"]
