"""Where a query may look: the local windows of Luong et al. 2015, section 3.2.

A local window has a centre p_t, one for every query, and a half-width D. The query looks at the real positions s with
`|s - p_t| <= D`, at most 2D+1 of them, and the softmax is taken over these alone (the paper's eq. 7). A global
attention has no window.

Positions count the tokens of a source from 0; its end mark is one of them. S is the length of the sentence itself:
padding is outside every window and moves none, and at the ends of a sentence a window is simply shorter.

Letters: B sentences, Q queries per sentence, S source length, Hq query size, D half-width.
"""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from nmtkit.layers.elementary import at_least_float32

WindowKind = Literal["global", "local_m", "local_p"]


class LocalWindow(nn.Module, ABC):
    """A local window of `half_width` D >= 1 tokens to either side."""

    def __init__(self, half_width: int) -> None:
        super().__init__()
        self.half_width = half_width

    @abstractmethod
    def forward(self, queries: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """The centres p_t `(B,Q)`, in source positions; float32 or wider.

        Args:
            queries: `(B,Q,Hq)`.
            positions: `(B,Q)`, int64: t, how many target words stand before the one that the query is for.
            lengths: `(B,)`, int64: the real tokens of each source.
        """

    def factor(self, distances: Tensor) -> Tensor | None:
        """What weights are multiplied with after the softmax, for distances `s - p_t`; None, as here, for nothing."""
        return None


class LocalM(LocalWindow):
    """Monotonic: `p_t = t`, source and target words stand in the same order. No factor: the paper's `local-m`.

    Once the target is longer than the source, the window stays at the source's last token: `p_t = min(t, S-1)`.
    """

    def forward(self, queries: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """The centres `(B,Q)`; the queries have no say."""
        last = (lengths - 1).clamp(min=0).unsqueeze(1)  # (B,1)
        return torch.minimum(positions, last).to(at_least_float32(queries))


class LocalP(LocalWindow):
    """Predictive: `p_t = S sigmoid(v^T tanh(W h_t))`, eq. 9, with a Gaussian about it, eq. 10: the paper's `local-p`.

    Weights are multiplied with `exp(-(s - p_t)^2 / (2 sigma^2))`, sigma = D/2, after the softmax; they sum to less
    than one. v and W learn through this factor alone: which positions are inside the window has no gradient.
    """

    def __init__(self, half_width: int, query_size: int) -> None:
        super().__init__(half_width)
        self.hidden = nn.Linear(query_size, query_size, bias=False)
        self.centre = nn.Parameter(torch.empty(query_size).uniform_(-1, 1) / math.sqrt(query_size))

    def forward(self, queries: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """The centres `(B,Q)`; the positions have no say."""
        # Not a matrix product, which would have 16 bits under autocast: too few to tell words of a long source apart.
        hidden = torch.tanh(self.hidden(queries)).to(at_least_float32(queries))  # (B,Q,Hq)
        return lengths.unsqueeze(1) * torch.sigmoid((hidden * self.centre).sum(-1))

    def factor(self, distances: Tensor) -> Tensor:
        """The Gaussian of eq. 10."""
        sigma = self.half_width / 2
        return torch.exp(distances.square() * (-0.5 / sigma**2))


def build_window(name: WindowKind, query_size: int, half_width: int) -> LocalWindow | None:
    """Makes a window by its name; None for a global attention. Only `local_p` uses the size of queries Hq."""
    match name:
        case "global":
            return None
        case "local_m":
            return LocalM(half_width)
        case "local_p":
            return LocalP(half_width, query_size)
