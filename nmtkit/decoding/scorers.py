"""Scores of hypotheses: length penalties and coverage penalties, which are registered by name.

Beam search ranks a hypothesis Y of the source X by

    score(Y, X) = log P(Y|X) / lp(Y) + cp(X, Y)        Wu et al. 2016, "Google's Neural Machine Translation System",
                                                       equation 14

where lp is the length penalty selected by `search.length_penalty`, and cp is the coverage penalty selected by
`search.coverage_kind`.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from nmtkit.core.registry import Registry
from nmtkit.data.tokenizers.vocabulary import PAD

MIN_ATTENTION = 2.0**-24
"""Lower bound on coverage: the smallest positive float16 number, since models may compute attention in float16."""


class LengthPenalty(ABC):
    """Divisor of a hypothesis's log-probability. `alpha` is the setting `search.alpha`."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    @abstractmethod
    def divisors(self, lengths: Tensor) -> Tensor:
        """Returns the divisor for each length (in tokens, including EOS), as float64 in the shape of `lengths`.

        The divisor must not decrease as the length increases, because the stop condition `exact` relies on this.
        """


LENGTH_PENALTIES: Registry[type[LengthPenalty]] = Registry("length penalty")


@LENGTH_PENALTIES.register("none")
class NoLengthPenalty(LengthPenalty):
    """A divisor of 1: the score is the log-probability itself."""

    @override
    def divisors(self, lengths: Tensor) -> Tensor:
        return torch.ones_like(lengths, dtype=torch.double)


@LENGTH_PENALTIES.register("average")
class AverageLengthPenalty(LengthPenalty):
    """|Y|^alpha; if alpha is 1, the score is the mean log-probability per token."""

    @override
    def divisors(self, lengths: Tensor) -> Tensor:
        return lengths.double().pow(self.alpha)


@LENGTH_PENALTIES.register("gnmt")
class GnmtLengthPenalty(LengthPenalty):
    """((5 + |Y|) / 6)^alpha: Wu et al. 2016, equation 14."""

    @override
    def divisors(self, lengths: Tensor) -> Tensor:
        return ((5 + lengths.double()) / 6).pow(self.alpha)


class CoveragePenalty(ABC):
    """Penalty cp(X, Y), zero or less, that is added to the score of a hypothesis.

    `beta` is the setting `search.coverage_penalty`. The coverage of source word i is the total attention that it has
    received so far from all target words j: c_i = sum_j a_ij.
    """

    guides_choice: ClassVar[bool] = False
    """Whether the penalty also guides the choice of candidates in a step. If not, it affects only the ranking of
    finished hypotheses."""

    def __init__(self, beta: float) -> None:
        self.beta = beta

    @abstractmethod
    def score(self, coverage: Tensor, words: Tensor) -> Tensor:
        """Returns the penalty of each hypothesis `(...)`, zero or less and finite, in float32 or wider.

        Args:
            coverage: c `(...,S)`, in float32 or wider.
            words: mask of the source words that should be covered, without EOS; broadcasts to the shape of `coverage`.
        """


COVERAGE_PENALTIES: Registry[type[CoveragePenalty]] = Registry("coverage penalty")


@COVERAGE_PENALTIES.register("gnmt")
class GnmtCoveragePenalty(CoveragePenalty):
    """beta * sum_i log(min(c_i, 1)): penalizes words with a coverage below 1. Wu et al. 2016, equation 14.

    A coverage below `MIN_ATTENTION` counts as `MIN_ATTENTION`.
    """

    @override
    def score(self, coverage: Tensor, words: Tensor) -> Tensor:
        log_coverage = coverage.clamp(min=MIN_ATTENTION, max=1.0).log()  # (...,S)
        return self.beta * log_coverage.masked_fill(~words, 0.0).sum(-1)


@COVERAGE_PENALTIES.register("summary")
class SummaryCoveragePenalty(CoveragePenalty):
    """-beta * sum_i (max(c_i, 1) - 1): penalizes words with a coverage above 1.

    Gehrmann, Deng and Rush 2018, "Bottom-Up Abstractive Summarization", section 5, where cp has the opposite sign.
    """

    guides_choice = True

    @override
    def score(self, coverage: Tensor, words: Tensor) -> Tensor:
        excess = coverage.clamp(min=1.0) - 1.0  # (...,S)
        return -self.beta * excess.masked_fill(~words, 0.0).sum(-1)


def coverage_score(penalty: CoveragePenalty, coverage: Tensor, words: Tensor) -> Tensor:
    """Returns `penalty.score` for a coverage of any floating-point type."""
    dtype = torch.promote_types(coverage.dtype, torch.float32)
    return penalty.score(coverage.to(dtype), words)


def source_words(mask: Tensor) -> Tensor:
    """Returns the mask of real tokens without the final EOS, `(B,S)`; `mask` `(B,S)` includes it."""
    has_next = pad(mask[:, 1:], (0, 1))  # (B,S): whether the next token is real
    return mask & has_next


def apply_repetition_penalty(log_probs: Tensor, history: Tensor, penalty: float) -> Tensor:
    """Returns a copy of `log_probs` `(N,X)` with the values of tokens in `history` `(N,t)` multiplied by `penalty`.

    Log-probabilities are never positive, so this never favors a token. A history is negative after its last token.
    Keskar et al. 2019, "CTRL: A Conditional Transformer Language Model for Controllable Generation", section 4.1.
    """
    is_repeated = torch.zeros_like(log_probs, dtype=torch.bool)  # (N,X)
    # Entries after the end of a history write False to the column of PAD, which is always forbidden anyway.
    is_repeated.scatter_(1, history.clamp(min=PAD), history >= 0)
    return torch.where(is_repeated, log_probs * penalty, log_probs)
