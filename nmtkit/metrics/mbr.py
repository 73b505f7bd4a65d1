"""Minimum Bayes risk: selects the text most similar to all candidates according to sacrebleu's sentence BLEU or chrF.

Every text is compared with every other text. The n-grams of each text are counted once, and the
number shared by two texts is a matrix product: the k-th occurrence of an n-gram is a separate 0/1
column, so the product of two rows is the sum of the minimum counts.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.text.scripts import unspaced_script_of_lines
from nmtkit.metrics.bleu import bleu_tokens
from nmtkit.metrics.metric import Options

Utility = Literal["chrf", "bleu"]
Floats = NDArray[np.float64]

CHARACTERS, WORDS = 6, 4
"""Maximum n-gram length of chrF and of BLEU."""
MIN_DIVISOR = 1e-100
BETA_SQUARED = 4.0
"""Weight of recall relative to precision in chrF2."""


def expected_utilities(
    texts: Sequence[str], weights: Sequence[float], kind: Utility
) -> list[float]:
    """Returns each text's mean similarity to all texts, the negative Bayes risk.

    Kumar and Byrne 2004, "Minimum Bayes-Risk Decoding for Statistical Machine Translation", equation 2, over an n-best
    list; Eikema and Aziz 2020, "Is MAP Decoding All You Need?", over samples.

    The `weights` are the probabilities of the texts, or the number of times each sample was drawn;
    they must not all be zero. The means range from 0 to 100.
    """
    shares = np.asarray(weights, dtype=np.float64)
    means: list[float] = (sentence_scores(texts, kind) @ (shares / shares.sum())).tolist()
    return means


def sentence_scores(texts: Sequence[str], kind: Utility) -> Floats:
    """Returns sacrebleu's `sentence_score` of every text against every text as reference, `(N,N)`.

    For languages without spaces between words, BLEU counts characters.
    """
    if kind == "chrf":
        return _chrf_of(*_shared(["".join(text.split()) for text in texts], CHARACTERS, str))
    options = Options(tokenize="char") if unspaced_script_of_lines(texts) else Options()
    return _bleu_of(*_shared(bleu_tokens(texts, options), WORDS, tuple))


def _shared(
    texts: Sequence[Sequence[str]], longest: int, gram: Callable[[Sequence[str]], Hashable]
) -> tuple[Floats, Floats]:
    """Returns the numbers of n-grams shared by pairs of texts, `(L,N,N)`, and of n-grams per text, `(L,N)`."""
    shared = []
    for size in range(1, longest + 1):
        columns: dict[tuple[Hashable, int], int] = {}
        places: list[list[int]] = []
        for text in texts:
            counts = Counter(
                gram(text[start : start + size]) for start in range(len(text) - size + 1)
            )
            own = (
                (one, occurrence) for one, count in counts.items() for occurrence in range(count)
            )
            places.append([columns.setdefault(one, len(columns)) for one in own])
        has: Any = np.zeros((len(texts), len(columns)), dtype=np.float32)
        for row, own_places in zip(has, places, strict=True):
            row[own_places] = 1.0
        shared.append((has @ has.T).astype(np.float64))
    whole = np.stack(shared)
    return whole, np.diagonal(whole, axis1=1, axis2=2)


def _chrf_of(shared: Floats, counts: Floats) -> Floats:
    """Computes chrF (Popović 2015, equation 1) over n-gram lengths that both texts have."""
    both = (counts[:, :, None] > 0) & (counts[:, None, :] > 0)  # (L,N,N)
    lengths = np.maximum(both.sum(0), 1)
    precision = np.where(both, shared / np.maximum(counts, 1)[:, :, None], 0.0).sum(0) / lengths
    recall = precision.T  # the output of one pair is the reference of another
    divisor: Floats = np.maximum(BETA_SQUARED * precision + recall, MIN_DIVISOR)
    scores: Floats = 100.0 * (1.0 + BETA_SQUARED) * precision * recall / divisor
    return scores


def _bleu_of(shared: Floats, counts: Floats) -> Floats:
    """Computes BLEU (Papineni et al. 2002) over a text's n-gram lengths, with exponential smoothing."""
    has = np.broadcast_to((counts > 0)[:, :, None], shared.shape)
    without = has & (shared == 0)
    matches = np.where(without, 0.5 ** without.cumsum(0), np.maximum(shared, 1e-9))
    logs = np.where(has, np.log(matches / np.maximum(counts, 1)[:, :, None]), 0.0).sum(
        0
    ) / np.maximum(has.sum(0), 1)
    lengths = counts[0]
    missing = 1.0 - lengths[None, :] / np.maximum(lengths, 1)[:, None]
    brevity = np.exp(np.minimum(missing, 0.0))
    scores: Floats = 100.0 * brevity * np.exp(logs) * shared.any(0)
    return scores
