"""The output layer of a model, whole or with a shortlist, and the softmax.

Letters as in `models/base.py`, and V' words of the V.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtkit.data.batches.batch import Rows
from nmtkit.data.tokenizers.vocabulary import PAD
from nmtkit.layers.elementary import at_least_float32


@dataclass(frozen=True)
class ShortlistIndex:
    """The words of the columns of shortlisted distributions, in the order of their ids.

    Special words keep their columns. A word that only the source has, of the extended id V + j, has the column V' + j.
    """

    words: Tensor
    """The ids of the words `(V',)`, ascending."""
    columns: Tensor
    """The column of each word of the vocabulary `(V,)`; that of PAD where it has none."""
    weight: Tensor
    """Their rows of the output layer `(V',*)`."""

    def ids_of(self, columns: Tensor) -> Tensor:
        """The extended ids of columns."""
        kept, whole = len(self.words), len(self.columns)
        return torch.where(columns < kept, self.words[columns.clamp(max=kept - 1)], columns + (whole - kept))

    def columns_of(self, ids: Tensor) -> Tensor:
        """The columns of extended ids; negative ids stay as they are."""
        kept, whole = len(self.words), len(self.columns)
        inside = torch.where(ids < 0, ids, self.columns[ids.clamp(min=0, max=whole - 1)])
        return torch.where(ids < whole, inside, ids + (kept - whole))


@dataclass(frozen=True)
class ShortlistedOutput(Rows):
    """The shortlisted rows of an output layer for B sentences.

    The softmax of a sentence is over its own candidates, whatever the other sentences have.
    """

    bias: Tensor
    """The bias of each sentence, minus infinity for words that are not its candidates: `(B,V')`."""
    index: ShortlistIndex
    """The candidates of all sentences."""

    @classmethod
    def gathered(cls, weight: Tensor, bias: Tensor, candidates: Tensor) -> "ShortlistedOutput":
        """Gathers the rows of all candidates, once, in the layout of the whole matrix `(V,*)`.

        Candidates `(B,V)`, bool, are the words that each sentence may have, special ones among them.
        """
        words = candidates.any(0).nonzero()[:, 0]
        places = torch.full_like(candidates[0], PAD, dtype=torch.long)
        places[words] = torch.arange(len(words), device=words.device)
        rows = weight.t().index_select(1, words).t() if weight.stride(0) == 1 else weight.index_select(0, words)
        own = bias.index_select(0, words).expand(len(candidates), -1)
        own = own.masked_fill(~candidates.index_select(1, words), -torch.inf)
        return cls(own, ShortlistIndex(words, places, rows))

    def logits(self, features: Tensor) -> Tensor:
        """`(N,V')` of features `(N,*)`."""
        logits = F.linear(features, self.index.weight)
        logits.view(len(self.bias), -1, logits.shape[1]).add_(self.bias[:, None])
        return logits


def project_to_vocabulary(
    output: Callable[[Tensor], Tensor], features: Tensor, shortlist: ShortlistedOutput | None
) -> Tensor:
    """The output layer of features `(...,*)`: `(...,V)`, or `(N,V')` with a shortlist."""
    return output(features) if shortlist is None else shortlist.logits(features)


def log_probabilities(logits: Tensor) -> Tensor:
    """The logarithm of the softmax over the last axis, in float32 or wider.

    Under autocast a plain `log_softmax` would return 16 bits on a CPU: a log-probability near -8 in steps of 0.03.
    """
    return torch.log_softmax(logits, -1, dtype=at_least_float32(logits))


def log_probabilities_of(wanted: Tensor, logits: Tensor, summed: bool = False) -> tuple[Tensor, Tensor]:
    """The log-probability of a wanted word of each row of logits `(M,V)`, and if `summed` the sum of all: `(M,)`."""
    both: Any = _Wanted.apply(wanted[:, None], logits, summed)  # type: ignore[no-untyped-call]  # torch does not type it
    return both[0].squeeze(-1), both[1].squeeze(-1)


class _Wanted(torch.autograd.Function):
    """The gradients, `g ([x = y] - p(x))` and of the sum `g (1 - V p(x))`, take the place of the probabilities.

    A CPU keeps these, and takes the logarithm of one in a row; elsewhere the logarithms are kept. No more is `(M,V)`.
    """

    @staticmethod
    def forward(ctx: Any, wanted: Tensor, logits: Tensor, summed: bool) -> tuple[Tensor, Tensor]:
        ctx.wanted, ctx.dtype, ctx.logs = wanted, logits.dtype, logits.device.type != "cpu"
        kept = log_probabilities(logits) if ctx.logs else logits.softmax(-1, dtype=at_least_float32(logits))
        ctx.kept, found = [kept], kept.gather(-1, wanted)
        if not ctx.logs and bool((found.log_() < -60).any()):  # float32 rounds these probabilities, the least to zero
            found = log_probabilities(logits).gather(-1, wanted)
        if not summed:
            return found, torch.zeros_like(found)
        sums = logits.sum(-1, keepdim=True, dtype=found.dtype)
        return found, sums - logits.shape[-1] * (logits.gather(-1, wanted) - found)  # the normalizer of each row

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, of_sums: Tensor) -> tuple[None, Tensor, None]:
        kept: Tensor = ctx.kept.pop()
        factor = -gradient - kept.shape[-1] * of_sums
        torch.addcmul(of_sums, kept.exp_() if ctx.logs else kept, factor, out=kept)
        return None, kept.scatter_add_(-1, ctx.wanted, gradient).to(ctx.dtype), None
