"""Intra-attention: what a decoder has looked at before, and its own earlier states.

Paulus et al. 2018, "A Deep Reinforced Model for Abstractive Summarization", sections 2.1 and 2.2. Both keep a summary
from saying a thing twice: the first by making the decoder look at places that it has not yet looked at, the second by
letting it see what it has written.

Equation 3 divides the exponential of an energy by the sum of the exponentials that the same place had in earlier steps.
An energy of 100 already makes that infinite in float32, and one of -110 makes it zero over zero. Here everything stays
in logarithms: the *past* of a place is log(sum_j exp(e_j)) over the earlier steps, and is subtracted from its energy.

Letters: B sentences, T steps, Q queries, S source length, P earlier states, H hidden size.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmtkit.layers.kernels import masked_softmax

EMPTY_SUM = -math.inf
"""The past of a place before the first step: the logarithm of an empty sum."""


def penalize(energies: Tensor, past: Tensor) -> Tensor:
    """`log e'_ti` of equation 3, from energies `e_ti` `(...,S)` and their accumulated past, `EMPTY_SUM` at first."""
    return energies - past.masked_fill(past == EMPTY_SUM, 0.0)


def accumulate(energies: Tensor, past: Tensor) -> Tensor:
    """The past of the next step, `(...,S)`."""
    return torch.logaddexp(past, energies)


def accumulated_before(energies: Tensor) -> Tensor:
    """The past of every step of `(B,T,S)` at once: `accumulate` step by step, from `EMPTY_SUM` on."""
    sums = torch.logcumsumexp(energies[:, :-1], 1)  # (B,T-1,S)
    return functional.pad(sums, (0, 0, 1, 0), value=EMPTY_SUM)


class IntraDecoderAttention(nn.Module):
    """Looks at the decoder's own earlier states: equations 6 to 8.

    `e_tt' = h_t^T W h_t'`, a softmax over all t' < t, and the weighted sum of those states; zero in the first step,
    which has none. W is multiplied with the query, so that earlier states serve as keys and values as they are.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, states: Tensor, written: Tensor, seen: Tensor) -> Tensor:
        """One step: contexts of `h_t`, which sees its own `h_1 ... h_{t-1}` among all states written so far.

        Args:
            states: `(B,K,H)`.
            written: `(B,*,H)`.
            seen: `(B,K,*)`, bool; a hypothesis that sees nothing gets zero.

        Returns:
            `(B,K,H)`.
        """
        energies = torch.matmul(self.query(states), written.transpose(1, 2))
        return torch.matmul(masked_softmax(energies, seen).to(written.dtype), written)

    def all_steps(self, states: Tensor) -> Tensor:
        """All steps at once: contexts `(B,T,H)` of states `(B,T,H)`, each of which sees those before it."""
        steps = states.shape[1]
        before = torch.ones(steps, steps, dtype=torch.bool, device=states.device).tril(-1)  # (T,T)
        energies = torch.matmul(self.query(states), states.transpose(1, 2))  # (B,T,T)
        return torch.matmul(masked_softmax(energies, before).to(states.dtype), states)
