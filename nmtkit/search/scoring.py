"""How a hypothesis is scored: its log-probability, made fair to long ones and to ones that translate everything.

Pure functions. Beam search divides the summed log-probability by `length_penalty` and adds `coverage_penalty`.
"""

from typing import Literal

import torch
from torch import Tensor

LengthPenalty = Literal["none", "average", "gnmt"]


def length_penalty(kind: LengthPenalty, lengths: Tensor, alpha: float) -> Tensor:
    """What the log-probability of a hypothesis is divided by; grows with the length, so that long ones may win.

    - `none`: 1. The log-probability itself, which favours short hypotheses.
    - `average`: |Y|^alpha. With alpha 1 the mean log-probability of a token.
    - `gnmt`: ((5 + |Y|) / 6)^alpha, Wu et al. 2016, equation 14.

    Args:
        kind: which one.
        lengths: |Y| in tokens, EOS counted; any shape.
        alpha: the strength, 0 or more; 0 gives 1 for every kind.

    Returns:
        The divisors, float64, in the shape of `lengths`.
    """
    lengths = lengths.double()
    if kind == "none":
        return torch.ones_like(lengths)
    if kind == "average":
        return lengths.pow(alpha)
    return ((5 + lengths) / 6).pow(alpha)


def coverage_penalty(coverage: Tensor, mask: Tensor, beta: float) -> Tensor:
    """The cost of source words that got less than one word's worth of attention; Wu et al. 2016, equation 14.

    cp(X, Y) = beta * sum_i log(min(sum_j p_ij, 1)), where p_ij is the attention of target word j to source word i.

    Args:
        coverage: attention summed over the target words so far, `(..., S)`.
        mask: which source words are real, in the shape of `coverage` or one that broadcasts to it.
        beta: the strength, 0 or more.

    Returns:
        Zero or less, `(...)`. A word that was never looked at costs a large finite amount, so that hypotheses that
        miss words still compare.
    """
    covered = coverage.clamp(min=torch.finfo(coverage.dtype).tiny, max=1.0)
    return beta * covered.log().masked_fill(~mask, 0.0).sum(-1)
