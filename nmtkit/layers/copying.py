"""Copying: one distribution from generating words and copying source words (See et al. 2017, eq. 9).

The extended vocabulary of an example is the vocabulary, followed by the words of the example's source that are not in
it. `src_extended` has the id of every source position in this vocabulary.

Letters: as in `models/base.py`, and:

    M  words whose probability is wanted, in `mix_targets`
    G  rows of `src_extended`    q  distributions per row, in `_Mix`
    "..."  any leading axes of distributions, G * q in all
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtkit.layers.elementary import at_least_float32

MIN_SHARE = 1e-30
"""Lower bound of a gate and of a copied probability: loss and gradient stay finite if rounding makes them 0."""


def number_by_position(ids: Tensor, src_extended: Tensor, size: int, absent: int) -> Tensor:
    """Renumbers extended ids as a search does: a word outside the vocabulary gets V plus its first source position.

    So the distributions of a search have V + S columns, however many unknown words the sentences of a batch have.

    Args:
        ids: `(B, P)`.
        src_extended: `(B, S)`.
        size: V.
        absent: the result for ids that are neither in the vocabulary nor in the source.
    """
    is_equal = ids.unsqueeze(2) == src_extended.unsqueeze(1)  # (B, P, S)
    # The maximum of a row of zeros and ones tells whether there is a one, and its index is that of the first one.
    is_in_source, first_position = is_equal.to(torch.uint8).max(dim=2)  # (B, P) each
    copied = size + first_position  # (B, P)
    copied = copied.masked_fill(is_in_source == 0, absent)
    return torch.where(ids < size, ids, copied)


def mix(
    vocab_log_probs: Tensor,
    attention: Tensor,
    p_gen: Tensor,
    src_extended: Tensor,
    n_oov: int,
    excess: Tensor | None = None,
) -> Tensor:
    """Returns the logarithm of `p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_i`: See et al. 2017, eq. 9.

    A column V + j is minus infinity where the example has no more than j unknown words. Everything else is finite,
    both result and gradient, whatever the gate and the weights.

    Only the columns of the words in the source differ from `log p_gen + log P_vocab`, so only these are recomputed.

    Args:
        vocab_log_probs: log P_vocab, `(..., V)`.
        attention: a, weights over the source, `(..., S)`; zero at padding.
        p_gen: the probability of generating, `(..., 1)`.
        src_extended: `(G, S)`, ids in the extended vocabulary. Each row serves q successive distributions: the T words
            of a sentence `(B, T)`, its K hypotheses `(N,)`, or a single one where the rows are already selected.
        n_oov: X - V.
        excess: is subtracted from `vocab_log_probs`, `(..., 1)`, if these are logits that are not normalized.

    Returns log-probabilities `(..., X)`.
    """
    rows = src_extended.shape[0]
    size = vocab_log_probs.shape[-1]
    per_row = vocab_log_probs.numel() // (rows * size)
    dtype = at_least_float32(vocab_log_probs)
    if excess is not None:
        excess = excess.reshape(rows, per_row, 1)
    mixed: Tensor = _Mix.apply(  # type: ignore[no-untyped-call]  # torch does not type it
        vocab_log_probs.reshape(rows, per_row, size),
        attention.to(dtype).reshape(rows, per_row, -1),
        p_gen.to(dtype).reshape(rows, per_row, 1),
        src_extended,
        n_oov,
        excess,
    )  # (G, q, X)
    return mixed.view(*vocab_log_probs.shape[:-1], size + n_oov)


def mix_targets(
    targets: Tensor, generated: Tensor, attention: Tensor, p_gen: Tensor, src_extended: Tensor
) -> Tensor:
    """Returns the result of `mix` for a single word of each distribution, which is all that a likelihood needs: `(M,)`.

    Args:
        targets: the words, `(M,)`, ids in the extended vocabulary.
        generated: their log P_vocab, `(M,)`; minus infinity for a word outside the vocabulary.
        attention: `(M, S)`, as in `mix`.
        p_gen: `(M, 1)`, as in `mix`.
        src_extended: `(M, S)`, as in `mix`.
    """
    dtype = at_least_float32(generated)
    p_gen = p_gen.to(dtype).squeeze(-1)  # (M,)
    is_target = src_extended == targets.unsqueeze(1)  # (M, S)
    target_attention = (attention.to(dtype) * is_target).sum(-1)  # (M,)
    copied = (1.0 - p_gen) * target_attention  # (M,)
    log_copied = copied.clamp(min=MIN_SHARE).log()
    log_p_gen = p_gen.clamp(min=MIN_SHARE).log()
    log_generated = generated + log_p_gen
    log_total = torch.logaddexp(log_generated, log_copied)  # (M,)
    is_in_source = is_target.any(-1)  # (M,)
    return torch.where(is_in_source, log_total, log_generated)


class _Mix(torch.autograd.Function):
    """`mix` over `(G, q, *)`, with the gradient worked out by hand.

    With P(w) = g V(w) + (1 - g) C(w), C(w) the sum of a_i over the positions i of w, and r(w) = g V(w) / P(w):

        d log P(w) / d log V(w) = r(w)        d log P(w) / d a_i = (1 - g) / P(w), if w is at position i
        d log P(w) / d g = (V(w) - C(w)) / P(w) = r(w) / g - C(w) / P(w)

    Automatic differentiation would pass over `(G, q, X)` four more times, and divide by a gate of zero.
    """

    @staticmethod
    def forward(  # noqa: PLR0913  # torch passes tensors to an autograd function only as separate arguments
        ctx: Any,
        vocab: Tensor,
        attention: Tensor,
        p_gen: Tensor,
        src: Tensor,
        n_oov: int,
        excess: Tensor | None,
    ) -> Tensor:
        size = vocab.shape[-1]
        ids = src.unsqueeze(1).expand(attention.shape)  # (G, q, S)
        mixed = attention.new_empty(*vocab.shape[:-1], size + n_oov)  # (G, q, X)

        # C(w) of the word at each position. `mixed` serves as a table with one cell per word: only the cells of source
        # words are cleared, summed up and read, and all cells are overwritten below.
        mixed.scatter_(-1, ids, 0.0)
        mixed.scatter_add_(-1, ids, attention)
        mass = mixed.gather(-1, ids)  # (G, q, S)
        copied = ((1.0 - p_gen) * mass).clamp_(min=MIN_SHARE)  # (G, q, S)
        log_copied = copied.log_()  # in place: `copied` is not read again

        log_gate = p_gen.clamp(min=MIN_SHARE).log()  # (G, q, 1)
        if excess is not None:
            log_gate = log_gate - excess
        torch.add(vocab, log_gate, out=mixed[..., :size])
        mixed[..., size:] = -math.inf
        generated = mixed.gather(-1, ids)  # (G, q, S)
        total = torch.logaddexp(generated, log_copied)  # (G, q, S), log P(w)
        mixed.scatter_(-1, ids, total)

        if any(ctx.needs_input_grad):
            # Where only the lower bound makes the probability positive, copying gets no gradient.
            is_above_bound = total > math.log(2 * MIN_SHARE)  # (G, q, S)
            generated_share = (generated - total).exp_()  # (G, q, S), r(w)
            inverse = (-total).exp_() * is_above_bound  # (G, q, S), 1 / P(w)
            ctx.save_for_backward(attention, p_gen, src, generated_share, inverse)
        ctx.size = size
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        attention, p_gen, src, generated_share, inverse = ctx.saved_tensors
        size = ctx.size
        rows, per_row, _ = attention.shape
        ids = src.unsqueeze(1).expand(attention.shape)  # (G, q, S)
        source_gradient = gradient.gather(
            -1, ids
        )  # (G, q, S), dL / d log P(w) of the word at each position

        # The gradient of log V(w), as one flat buffer. Words outside the vocabulary have no cell in it: they write to
        # one more cell at its end.
        end = rows * per_row * size
        first_cells = torch.arange(0, end, size, device=src.device)  # (G * q,)
        cells = first_cells.view(rows, per_row, 1) + ids  # (G, q, S)
        cells = cells.masked_fill_(ids >= size, end)
        buffer = gradient.new_empty(end + 1)
        to_vocab = buffer[:-1].view(rows, per_row, size)  # (G, q, V)
        to_vocab.copy_(gradient[..., :size])
        # A word at several positions is written several times, each time with the same number.
        to_source_words = source_gradient * generated_share  # (G, q, S)
        buffer.scatter_(0, cells.flatten(), to_source_words.flatten())

        per_copy = source_gradient * inverse  # (G, q, S), dL / d P(w)
        to_attention = (1.0 - p_gen) * per_copy  # (G, q, S)
        from_generating = to_vocab.sum(-1, keepdim=True) / p_gen.clamp(min=MIN_SHARE)  # (G, q, 1)
        from_copying = (attention * per_copy).sum(-1, keepdim=True)  # (G, q, 1)
        to_gate = from_generating * (p_gen > MIN_SHARE) - from_copying  # (G, q, 1)
        return to_vocab, to_attention, to_gate, None, None, None
