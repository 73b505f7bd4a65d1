"""Copying: one distribution from what a decoder would write and from where it looks (See et al. 2017, eq. 9).

The extended vocabulary of an example is the vocabulary and, behind it, the words of the example's source that the
vocabulary lacks. `src_extended` says for every source position which of these words stands there.

Letters: as in `models/base.py`; R rows of distributions, and "..." the leading axes, which flatten to R.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtkit.layers.elementary import at_least_float32

MIN_SHARE = 1e-30
"""The least share of a gate: one that rounding made 0 or 1 leaves loss and gradient finite."""


def number_by_position(ids: Tensor, src_extended: Tensor, size: int, absent: int) -> Tensor:
    """Extended ids as a search numbers them: a word that the vocabulary lacks is V plus its first source position.

    So the distributions of a search have V + S columns, whatever unknown words the sentences of a batch have. Of ids
    `(B,P)` those that neither the vocabulary (V is `size`) nor the source `(B,S)` has become `absent`.
    """
    there, first = (ids[:, :, None] == src_extended[:, None, :]).to(torch.uint8).max(2)  # (B,P)
    return torch.where(ids < size, ids, torch.where(there > 0, size + first, absent))


def mix(
    vocab_log_probs: Tensor,
    attention: Tensor,
    p_gen: Tensor,
    src_extended: Tensor,
    n_oov: int,
    excess: Tensor | None = None,
) -> Tensor:
    """The logarithm of `p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_i`, See et al. 2017, eq. 9.

    A column V + j is minus infinity where the example has no more than j unknown words. All else is finite, result and
    gradient, whatever the gate and the weights.

    Only the columns of the source's own words differ from `log p_gen + log P_vocab`, so only these are computed anew.

    Args:
        vocab_log_probs: log P_vocab `(...,V)`.
        attention: a, weights over the source `(...,S)`; zero at padding.
        p_gen: the probability of generating `(...,1)`.
        src_extended: `(rows,S)`, ids in the extended vocabulary. Each row serves R / rows successive distributions: the
            T words of a sentence `(B,T)`, its K hypotheses `(N,)`, or one where the rows have been picked already.
        n_oov: X - V.
        excess: by how much `vocab_log_probs` are too large `(...,1)`, where logits stand in their place.

    Returns log-probabilities `(...,X)`.
    """
    rows, size = src_extended.shape[0], vocab_log_probs.shape[-1]
    each = vocab_log_probs.numel() // (rows * size)
    dtype = at_least_float32(vocab_log_probs)
    mixed: Tensor = _Mix.apply(  # type: ignore[no-untyped-call]  # torch does not type it
        vocab_log_probs.reshape(rows, each, size),
        attention.to(dtype).reshape(rows, each, -1),
        p_gen.to(dtype).reshape(rows, each, 1),
        src_extended,
        n_oov,
        None if excess is None else excess.reshape(rows, each, 1),
    )
    return mixed.view(*vocab_log_probs.shape[:-1], size + n_oov)


def mix_wanted(wanted: Tensor, generated: Tensor, attention: Tensor, p_gen: Tensor, src_extended: Tensor) -> Tensor:
    """What `mix` says of one word of each distribution, `wanted` `(M,)`: `(M,)`.

    Generated is its log P_vocab `(M,)`, minus infinity where the vocabulary lacks it. The other arguments are those of
    `mix`, with M rows each. A likelihood needs no more, and no other word is computed.
    """
    dtype = at_least_float32(generated)
    attention, p_gen, there = attention.to(dtype), p_gen.to(dtype).squeeze(-1), src_extended == wanted[:, None]
    copied = ((1.0 - p_gen) * (attention * there).sum(-1)).clamp(min=MIN_SHARE).log()
    generated = generated + p_gen.clamp(min=MIN_SHARE).log()
    return torch.where(there.any(-1), torch.logaddexp(generated, copied), generated)


class _Mix(torch.autograd.Function):
    """`mix` over `(G,q,*)`, G rows of ids for q distributions each, with the gradient worked out by hand.

    With P(w) = g V(w) + (1 - g) C(w), C(w) the sum of a_i over the positions i of w, and r(w) = g V(w) / P(w):

        d log P(w) / d log V(w) = r(w)        d log P(w) / d a_i = (1 - g) / P(w), if w stands at i
        d log P(w) / d g = (V(w) - C(w)) / P(w) = r(w) / g - C(w) / P(w)

    Automatic differentiation would pass over `(R,X)` four times more, and divide by a gate of zero.
    """

    @staticmethod
    def forward(  # noqa: PLR0913  # autograd hands tensors on in no other way
        ctx: Any, vocab: Tensor, attention: Tensor, p_gen: Tensor, src: Tensor, n_oov: int, excess: Tensor | None
    ) -> Tensor:
        size = vocab.shape[-1]
        ids = src.unsqueeze(1).expand(attention.shape)  # (G,q,S)
        mixed = attention.new_empty(*vocab.shape[:-1], size + n_oov)  # (G,q,X)
        mass = mixed.scatter_(-1, ids, 0.0).scatter_add_(-1, ids, attention).gather(-1, ids)  # (G,q,S): C at each word
        copied = ((1.0 - p_gen) * mass).clamp_(min=MIN_SHARE).log_()
        share = p_gen.clamp(min=MIN_SHARE).log()
        torch.add(vocab, share if excess is None else share - excess, out=mixed[..., :size])
        mixed[..., size:] = -math.inf
        generated = mixed.gather(-1, ids)  # (G,q,S)
        total = torch.logaddexp(generated, copied)
        mixed.scatter_(-1, ids, total)
        if any(ctx.needs_input_grad):
            likely = total > math.log(2 * MIN_SHARE)  # what only the bound lifts above zero gives copying no gradient
            ctx.save_for_backward(attention, p_gen, src, (generated - total).exp_(), (-total).exp_() * likely)
        ctx.size = size
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        attention, p_gen, src, share, inverse = ctx.saved_tensors  # (G,q,S), (G,q,1), (G,S), r (G,q,S), 1/P (G,q,S)
        size, (sentences, each, _) = ctx.size, attention.shape
        ids = src.unsqueeze(1).expand(attention.shape)
        arrived = gradient.gather(-1, ids)  # (G,q,S): dL / d log P of the word at each position
        # Words behind the vocabulary have no place in its gradient: they write to one cell after the last row.
        cells = torch.arange(0, sentences * each * size, size, device=src.device).view(sentences, each, 1) + ids
        cells = cells.masked_fill_(ids >= size, sentences * each * size)
        buffer = gradient.new_empty(sentences * each * size + 1)
        to_vocab = buffer[:-1].view(sentences, each, size).copy_(gradient[..., :size])
        buffer.scatter_(0, cells.flatten(), (arrived * share).flatten())
        per_copy = arrived * inverse
        to_attention = (1.0 - p_gen) * per_copy
        by_generating = to_vocab.sum(-1, keepdim=True) / p_gen.clamp(min=MIN_SHARE)
        to_gate = by_generating * (p_gen > MIN_SHARE) - (attention * per_copy).sum(-1, keepdim=True)
        return to_vocab, to_attention, to_gate, None, None, None
