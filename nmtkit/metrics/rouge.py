"""ROUGE by Google's rouge-score; the only file that imports it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from nmtkit.metrics.score import Options, Score, check_lines
from nmtkit.metrics.sentences import split_sentences

ROUGE_METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
TITLES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}

PRECISION, RECALL, F1 = range(3)
"""Places in the last axis of `rouge_per_example`."""


@dataclass(frozen=True)
class RougeScore(Score):
    """A ROUGE figure: `value` is the mean F1 over the examples.

    Attributes:
        precision: mean precision over the examples, 0 to 100; of several references, that with the highest F1 counts.
        recall: mean recall, likewise.
    """

    precision: float
    recall: float


def rouge(
    hyps: Sequence[str],
    refs: Sequence[Sequence[str]],
    stem: bool = True,
    sentences: str = "auto",
    types: Sequence[str] = ROUGE_METRICS,
) -> list[RougeScore]:
    """ROUGE F1 by rouge-score: the mean over the examples, times 100; with precision and recall.

    Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries": equation 1 for ROUGE-N, section 3.1 for
    ROUGE-L (longest common subsequence), section 3.2 for ROUGE-Lsum (union over sentences). With several
    references an example counts with the one that gives the highest F1, for each type by itself. rouge-score keeps
    only the letters a-z and digits; see `outside_rouge`.

    Args:
        hyps: one text per example.
        refs: `refs[r][i]` is reference `r` of example `i`.
        stem: whether Porter stems are compared.
        sentences: the rule of `split_sentences`.
        types: which of `ROUGE_METRICS`, in the order of the answer.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
        NmtkitError: an unknown rule.
    """
    options = Options(stem=stem, sentences=sentences)
    return mean_scores(types, rouge_per_example(hyps, refs, types, options), rouge_signature(options, len(refs)))


def outside_rouge(lines: Iterable[str]) -> int:
    """Counts the lines with a letter or digit that rouge-score drops because it is not a-z or 0-9."""
    return sum(any(char.isalnum() and not char.isascii() for char in line) for line in lines)


def rouge_per_example(
    hyps: Sequence[str], refs: Sequence[Sequence[str]], types: Sequence[str], options: Options
) -> npt.NDArray[np.float64]:
    """Precision, recall and F1 (last axis), 0 to 100, of each type (axis 0) and example (axis 1).

    Raises:
        DataError: no lines, no references, or different numbers of lines.
        NmtkitError: an unknown sentence rule.
    """
    check_lines(hyps, refs)
    from rouge_score.rouge_scorer import RougeScorer  # on use: with what it loads it takes as long as torch

    scorer = RougeScorer(list(types), tokenizer=_CachedTokenizer(options.stem))

    def prepared(text: str) -> str:
        return "\n".join(split_sentences(text, options.sentences))

    values = np.empty((len(types), len(hyps), 3))
    for i, hyp in enumerate(hyps):
        best = scorer.score_multi([prepared(ref[i]) for ref in refs], prepared(hyp))
        values[:, i] = [best[name] for name in types]  # a named tuple: precision, recall, fmeasure
    return 100 * values


def mean_scores(types: Sequence[str], values: npt.NDArray[np.float64], signature: str) -> list[RougeScore]:
    """The mean over the examples of what `rouge_per_example` gives."""
    return [
        RougeScore(TITLES[name], float(mean[F1]), signature, float(mean[PRECISION]), float(mean[RECALL]))
        for name, mean in zip(types, values.mean(axis=1), strict=True)
    ]


def rouge_signature(options: Options, n_refs: int, n_samples: int | None = None, seed: int | None = None) -> str:
    """How ROUGE was computed; number of draws and seed where there was a bootstrap."""
    parts = [f"nrefs:{n_refs}"]
    if n_refs > 1:
        parts.append("multi:best-f1")
    if n_samples is not None:
        parts += [f"bs:{n_samples}", f"seed:{seed}"]
    parts += [
        "agg:mean-f1",
        f"stem:{'porter' if options.stem else 'no'}",
        f"sents:{options.sentences}",
        "tok:a-z0-9",
        f"version:rouge-score-{version('rouge-score')}",
    ]
    return "|".join(parts)


class _CachedTokenizer:
    """The tokens of rouge-score's own tokenizer, three times as fast: each word is stemmed only once."""

    def __init__(self, stem: bool) -> None:
        self._stem = stem
        self._words = _tokenizer(use_stemmer=False)

    def tokenize(self, text: str) -> list[str]:
        """As rouge-score calls it."""
        words: list[str] = self._words.tokenize(text)
        return [token for word in words for token in _stems(word)] if self._stem else words


@cache
def _tokenizer(use_stemmer: bool) -> Any:
    from rouge_score.tokenizers import DefaultTokenizer

    return DefaultTokenizer(use_stemmer=use_stemmer)


@lru_cache(maxsize=1 << 18)
def _stems(word: str) -> tuple[str, ...]:
    """The stem of a word of a-z and digits; nothing, should the stemmer leave nothing of it."""
    return tuple(_tokenizer(use_stemmer=True).tokenize(word))
