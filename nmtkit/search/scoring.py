"""How a hypothesis is scored: its log-probability, made fair to long ones and to ones that translate everything.

Pure functions. Beam search divides the summed log-probability by `length_penalty` and adds `coverage_penalty`.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

UNSEEN = 2.0**-24
"""Attention below this counts as this: the smallest number of the narrowest type that a model computes in."""

LengthPenalty = Literal["none", "average", "gnmt"]
CoverageKind = Literal["gnmt", "summary"]


def length_penalty(kind: LengthPenalty, lengths: Tensor, alpha: float) -> Tensor:
    """Divides the log-probability of a hypothesis; it grows with the length, so that long hypotheses may win.

    - `none`: 1. The log-probability itself, which favours short hypotheses.
    - `average`: |Y|^alpha. With alpha 1 the mean log-probability of a token.
    - `gnmt`: ((5 + |Y|) / 6)^alpha, Wu et al. 2016, equation 14.

    Takes |Y| in tokens, EOS included, of any shape; returns float64 in the same shape. With alpha 0 it is always 1.
    """
    lengths = lengths.double()
    if kind == "none":
        return torch.ones_like(lengths)
    if kind == "average":
        return lengths.pow(alpha)
    return ((5 + lengths) / 6).pow(alpha)


def coverage_penalty(kind: CoverageKind, coverage: Tensor, mask: Tensor, beta: float) -> Tensor:
    """The cost, zero or less, of attention that is spread badly over the source.

    With c_i = sum_j a_ij, the attention of all target words j so far to source word i:

    - `gnmt`: beta * sum_i log(min(c_i, 1)), for words that got less than one word's worth: a translation should leave
      nothing out. Wu et al. 2016, equation 14. A word without any attention costs as much as one with `UNSEEN`.
    - `summary`: -beta * sum_i (max(c_i, 1) - 1), for words that got more: a summary may leave out what it likes, but
      should not say it twice. Gehrmann, Deng and Rush 2018, "Bottom-Up Abstractive Summarization", section 5, where cp
      is this cost with the other sign.

    Args:
        kind: `gnmt` or `summary`.
        coverage: c `(...,S)`.
        mask: the source words to be covered, without EOS; it broadcasts to `coverage`.
        beta: the strength, 0 or more.

    Returns:
        `(...)`, finite, in float32 or wider.
    """
    coverage = coverage.to(torch.promote_types(coverage.dtype, torch.float32))
    if kind == "summary":
        return -beta * (coverage.clamp(min=1.0) - 1.0).masked_fill(~mask, 0.0).sum(-1)
    return beta * coverage.clamp(min=UNSEEN, max=1.0).log().masked_fill(~mask, 0.0).sum(-1)


def source_words(mask: Tensor) -> Tensor:
    """The mask `(B,S)` of real tokens without the EOS behind them."""
    return mask & pad(mask[:, 1:], (0, 1))
