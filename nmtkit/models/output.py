"""A model's output layer, either complete or restricted to a shortlist, and the softmax.

Notation: as in `models/base.py`; V' is the number of shortlisted words.
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
    """Shortlisted words, in ascending order of their ids, and their columns in the distributions.

    Special tokens keep their columns. An unknown source word with the extended id V + j has the column V' + j.
    """

    words: Tensor
    """Ids of the shortlisted words, `(V',)`, in ascending order."""
    columns: Tensor
    """Column of each word in the vocabulary, `(V,)`; words outside the shortlist have the column of PAD."""
    weight: Tensor
    """Rows of the output layer for the shortlisted words, `(V', *)`."""

    def ids_of(self, columns: Tensor) -> Tensor:
        """Converts columns to extended ids."""
        size = len(self.words)
        vocabulary_size = len(self.columns)
        is_known = columns < size
        valid_columns = columns.clamp(max=size - 1)  # (...)
        known_words = self.words[valid_columns]  # (...)
        unknown_words = columns + (vocabulary_size - size)  # (...)
        return torch.where(is_known, known_words, unknown_words)

    def columns_of(self, ids: Tensor) -> Tensor:
        """Converts extended ids to columns; negative ids stay unchanged."""
        size = len(self.words)
        vocabulary_size = len(self.columns)
        valid_ids = ids.clamp(min=0, max=vocabulary_size - 1)  # (...)
        columns = self.columns[valid_ids]  # (...)
        columns = torch.where(ids < 0, ids, columns)  # (...)
        unknown_words = ids + (size - vocabulary_size)  # (...)
        return torch.where(ids < vocabulary_size, columns, unknown_words)


@dataclass(frozen=True)
class ShortlistedOutput(Rows):
    """Rows of an output layer, shortlisted for B sentences.

    All sentences use the same rows, but the softmax of each sentence covers only its own candidates. A sentence's
    results therefore do not depend on the rest of the batch.
    """

    bias: Tensor
    """Bias for each sentence, `(B, V')`; minus infinity for words that are candidates only for other sentences."""
    index: ShortlistIndex
    """Candidates of all sentences."""

    @classmethod
    def gather(cls, weight: Tensor, bias: Tensor, candidates: Tensor) -> "ShortlistedOutput":
        """Selects the rows of all candidates from matrix `(V, *)` and bias `(V,)`.

        `candidates` `(B, V)` is True for the words that a sentence may use, including special tokens.
        """
        is_shortlisted = candidates.any(0)  # (V,)
        words = is_shortlisted.nonzero()[:, 0]  # (V',)
        columns = torch.full_like(is_shortlisted, PAD, dtype=torch.long)  # (V,)
        columns[words] = torch.arange(len(words), device=words.device)
        # Preserves the memory layout of the matrix, which may be stored transposed.
        if weight.stride(0) == 1:
            rows = weight.t().index_select(1, words).t()  # (V', *)
        else:
            rows = weight.index_select(0, words)  # (V', *)
        sentences = len(candidates)
        shortlisted_bias = bias.index_select(0, words).expand(sentences, -1)  # (B, V')
        is_candidate = candidates.index_select(1, words)  # (B, V')
        shortlisted_bias = shortlisted_bias.masked_fill(~is_candidate, -torch.inf)  # (B, V')
        index = ShortlistIndex(words, columns, rows)
        return cls(shortlisted_bias, index)

    def logits(self, features: Tensor) -> Tensor:
        """Computes logits `(N, V')` from features `(N, *)`."""
        logits = F.linear(features, self.index.weight)  # (N, V')
        # Add the bias of each sentence to the logits of its K hypotheses, in place.
        sentences, size = self.bias.shape
        logits_by_sentence = logits.view(sentences, -1, size)  # (B, K, V')
        logits_by_sentence.add_(self.bias[:, None])
        return logits


def project_to_vocabulary(
    output: Callable[[Tensor], Tensor], features: Tensor, shortlist: ShortlistedOutput | None
) -> Tensor:
    """Applies an output layer to features `(..., *)`; returns logits `(..., V)`, or `(N, V')` with a shortlist."""
    return output(features) if shortlist is None else shortlist.logits(features)


def log_probabilities(logits: Tensor) -> Tensor:
    """Returns the log-softmax over the last axis, in float32 or wider.

    Under autocast on a CPU, plain `log_softmax` would return a 16-bit type, in which numbers near -8 are 0.03 apart.
    """
    return torch.log_softmax(logits, -1, dtype=at_least_float32(logits))


def log_probabilities_of(
    wanted: Tensor, logits: Tensor, summed: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of the wanted word in each row of logits: `(M,)`.

    `wanted` are ids `(M,)`, the logits are `(M, V)`. The second result is each row's sum of log-probabilities, `(M,)`,
    if `summed`; otherwise it is zero.
    """
    results: Any = _WantedLogProbs.apply(wanted[:, None], logits, summed)  # type: ignore[no-untyped-call]  # untyped in torch
    log_probs, sums = results  # (M, 1), (M, 1)
    return log_probs.squeeze(-1), sums.squeeze(-1)


class _WantedLogProbs(torch.autograd.Function):
    """Computes `log p(y)` for the wanted word y of each row, and `sum_x log p(x)`, with a single extra `(M, V)` tensor.

    If g is the gradient of `log p(y)`, and h that of the sum, the gradient of the logit of x is

        g ([x = y] - p(x)) + h (1 - V p(x))  =  h - (g + V h) p(x) + g [x = y]

    The backward pass overwrites the saved tensor with this gradient. On a CPU the saved tensor is p, so that only one
    logarithm per row needs to be computed; on other devices it is log p.
    """

    @staticmethod
    def forward(ctx: Any, wanted: Tensor, logits: Tensor, summed: bool) -> tuple[Tensor, Tensor]:
        ctx.wanted = wanted  # (M, 1)
        ctx.dtype = logits.dtype
        ctx.saves_logarithms = logits.device.type != "cpu"
        if ctx.saves_logarithms:
            saved = log_probabilities(logits)  # (M, V)
            log_probs = saved.gather(-1, wanted)  # (M, 1)
        else:
            saved = logits.softmax(-1, dtype=at_least_float32(logits))  # (M, V)
            log_probs = saved.gather(-1, wanted).log_()  # (M, 1)
            # Below exp(-87), float32 probabilities lose digits and then underflow to zero; -60 leaves a margin.
            is_tiny = log_probs < -60  # (M, 1)
            if bool(is_tiny.any()):
                log_probs = log_probabilities(logits).gather(-1, wanted)  # (M, 1)
        ctx.saved = [saved]
        if not summed:
            return log_probs, torch.zeros_like(log_probs)
        # Since log p(x) = logit(x) - z, the normalizer z of a row is the logit of y minus log p(y).
        wanted_logits = logits.gather(-1, wanted)  # (M, 1)
        normalizers = wanted_logits - log_probs  # (M, 1)
        logit_sums = logits.sum(-1, keepdim=True, dtype=log_probs.dtype)  # (M, 1)
        vocabulary_size = logits.shape[-1]
        return log_probs, logit_sums - vocabulary_size * normalizers

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, log_prob_gradient: Tensor, sum_gradient: Tensor
    ) -> tuple[None, Tensor, None]:
        # Removed from the context, because it is overwritten below and should be freed along with the gradient.
        saved: Tensor = ctx.saved.pop()  # (M, V)
        probabilities = saved
        if ctx.saves_logarithms:
            probabilities = saved.exp_()  # (M, V)
        vocabulary_size = saved.shape[-1]
        factor = -log_prob_gradient - vocabulary_size * sum_gradient  # (M, 1)
        gradient = torch.addcmul(sum_gradient, probabilities, factor, out=saved)  # (M, V)
        gradient.scatter_add_(-1, ctx.wanted, log_prob_gradient)
        return None, gradient.to(ctx.dtype), None
