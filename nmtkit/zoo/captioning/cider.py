"""CIDEr-D: the similarity of a caption to several human captions."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from nmtkit.metrics import METRICS, ExampleMetric, Options, Resampling, Texts, ngram_counts

ORDER, SIGMA = 4, 6.0
"""Maximum n-gram length, and the standard deviation of the length penalty in words."""
NGram = tuple[str, ...]


@dataclass(frozen=True)
class CiderD(ExampleMetric):
    """Vedantam et al. 2015, "CIDEr: Consensus-based Image Description Evaluation", in the variant CIDEr-D.

    For each order n, a caption c is represented by a vector g_n(c) with the tf-idf of each n-gram: its count times
    log(N / examples with a reference that contains it), where N is the number of examples. The idf values depend on the
    given references, so scores of different test sets, or parts of one, are not comparable. CIDEr-D(c) is the mean over
    n from 1 to 4 and over the references s of

        10 exp(-(l(c) - l(s))^2 / (2 sigma^2)) min(g_n(c), g_n(s)) g_n(s) / (|g_n(c)| |g_n(s)|)

    with l the number of words. The range is 0 to 10; many tables print the score times 100. Words
    are separated by white space, without stemming or removal of punctuation, as in the authors'
    program, whose input is tokenized, lower-case text.
    """

    @override
    def statistics(self, texts: Texts, options: Options) -> npt.NDArray[np.float64]:
        """Returns the CIDEr-D of each example, `(examples, 1)`."""

        def count(line: str) -> Counter[NGram]:
            return ngram_counts((line.lower() if options.lowercase else line).split())

        hyps = [count(line) for line in texts.hyps]
        references = [[count(line) for line in lines] for lines in texts.references]
        examples_with = Counter(
            ngram for counts in references for ngram in set[NGram]().union(*counts)
        )
        scores = []
        for hyp, counts in zip(hyps, references, strict=True):
            scores.append(
                np.mean([_similarity(hyp, ref, examples_with, len(hyps)) for ref in counts])
            )
        return np.array(scores, dtype=np.float64)[:, None]

    @override
    def signature(self, options: Options, n_refs: int, resampling: Resampling | None = None) -> str:
        made = f"case:{'lc' if options.lowercase else 'mixed'}|idf:refs|tok:whitespace|version"
        return super().signature(options, n_refs, resampling).replace("version", made)

    @override
    def note(self, refs: Sequence[Sequence[str]], options: Options) -> str:
        few = (
            "CIDEr-D of a single example is always 0, because only words that distinguish "
            "examples count; score at least two examples"
        )
        return few if len(refs[0]) == 1 else ""


def _similarity(
    hyp: Counter[NGram], ref: Counter[NGram], known: Counter[NGram], examples: int
) -> float:
    """Computes the formula of `CiderD` for one reference; an order without n-grams in one of the texts adds nothing."""
    (products, hyp_squares, ref_squares), gap = np.zeros((3, ORDER)), 0
    # In text order: the order of a set, and therefore the last digit of a sum, differs between processes.
    for ngram in dict.fromkeys([*hyp, *ref]):
        order, weight = len(ngram) - 1, math.log(examples / max(known[ngram], 1)) ** 2
        products[order] += min(hyp[ngram], ref[ngram]) * ref[ngram] * weight
        hyp_squares[order] += hyp[ngram] ** 2 * weight
        ref_squares[order] += ref[ngram] ** 2 * weight
        gap += (hyp[ngram] - ref[ngram]) * (order == 0)
    norms = np.sqrt(hyp_squares * ref_squares)
    cosines = np.divide(products, norms, out=np.zeros(ORDER), where=norms > 0)
    return float(10 * math.exp(-(gap**2) / (2 * SIGMA**2)) * cosines.mean())


METRICS.register("cider")(CiderD("cider", "CIDEr-D", unit="words"))
