"""Copying: combines generating words and copying source words in one distribution (See et al. 2017, eq. 9).

An example's extended vocabulary is the vocabulary followed by the source words that are not in it. `src_extended` has
the extended id of every source position.

Letters:

    B    sentences                 S  source length          T  target length
    K    beam size                 N  = B * K hypotheses     P  ids per sentence in `number_by_position`
    V    vocabulary size           X  size of the extended vocabulary
    M    target words in `mix_targets`
    G    rows of `src_extended`    q  distributions per row
    ...  any leading axes, with G * q distributions in all
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtkit.layers.elementary import at_least_float32

MIN_PROBABILITY = 1e-30
"""Lower bound of gates and copy probabilities: loss and gradient stay finite even if rounding makes these 0."""


def number_by_position(
    ids: Tensor, src_extended: Tensor, vocab_size: int, absent_id: int
) -> Tensor:
    """Renumbers extended ids for a search: a word outside the vocabulary gets V plus its first source position.

    The distributions in a search thus have V + S columns, however many unknown words the sentences of a batch have.

    Args:
        ids: `(B, P)`.
        src_extended: `(B, S)`.
        vocab_size: V.
        absent_id: result for ids that are neither in the vocabulary nor in the source.
    """
    is_equal = ids.unsqueeze(2) == src_extended.unsqueeze(1)  # (B, P, S)
    # In a row of zeros and ones, the maximum is 1 if the row contains a one; its index is that of the first one.
    is_in_source, first_position = is_equal.to(torch.uint8).max(dim=2)  # (B, P) each
    copied = vocab_size + first_position  # (B, P)
    copied = copied.masked_fill(is_in_source == 0, absent_id)
    return torch.where(ids < vocab_size, ids, copied)


def mix(
    vocab_log_probs: Tensor,
    attention: Tensor,
    p_gen: Tensor,
    src_extended: Tensor,
    n_oov: int,
    log_normalizer: Tensor | None = None,
) -> Tensor:
    """Returns the logarithm of `p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_i`: See et al. 2017, eq. 9.

    Column V + j is minus infinity if the example has at most j unknown words. All other results and all gradients are
    finite, whatever the gate and the weights are, as long as `vocab_log_probs` are finite.

    Only the columns of source words differ from `log p_gen + log P_vocab`, so only these are recomputed.

    Args:
        vocab_log_probs: log P_vocab, `(..., V)`.
        attention: a, weights over the source, `(..., S)`; zero at padding.
        p_gen: probability of generating, `(..., 1)`.
        src_extended: extended ids of the source words, `(G, S)`. Row g belongs to distributions g*q ... g*q+q-1
            (sentence-major): the q = T words or q = K hypotheses of a sentence, or q = 1 if rows are already selected.
        n_oov: X - V.
        log_normalizer: log-sum-exp to subtract if `vocab_log_probs` are raw logits, `(..., 1)`. Not differentiated:
            search only.

    Returns log-probabilities `(..., X)`.
    """
    rows = src_extended.shape[0]
    vocab_size = vocab_log_probs.shape[-1]
    per_row = vocab_log_probs.numel() // (rows * vocab_size)
    dtype = at_least_float32(vocab_log_probs)
    if log_normalizer is not None:
        assert not log_normalizer.requires_grad, "the normalizer is not differentiated"
        log_normalizer = log_normalizer.reshape(rows, per_row, 1)
    mixed: Tensor = _Mix.apply(  # type: ignore[no-untyped-call]  # torch does not type it
        vocab_log_probs.reshape(rows, per_row, vocab_size),
        attention.to(dtype).reshape(rows, per_row, -1),
        p_gen.to(dtype).reshape(rows, per_row, 1),
        src_extended,
        n_oov,
        log_normalizer,
    )  # (G, q, X)
    return mixed.view(*vocab_log_probs.shape[:-1], vocab_size + n_oov)


def mix_targets(
    targets: Tensor, generated: Tensor, attention: Tensor, p_gen: Tensor, src_extended: Tensor
) -> Tensor:
    """Computes `mix` for a single word of each distribution, which is all that a likelihood needs: `(M,)`.

    Args:
        targets: extended ids of the words, `(M,)`.
        generated: log P_vocab of the words, `(M,)`; minus infinity for a word outside the vocabulary.
        attention: `(M, S)`, as in `mix`.
        p_gen: `(M, 1)`, as in `mix`.
        src_extended: `(M, S)`, as in `mix`.
    """
    dtype = at_least_float32(generated)
    p_gen = p_gen.to(dtype).squeeze(-1)  # (M,)
    is_target = src_extended == targets.unsqueeze(1)  # (M, S)
    target_attention = (attention.to(dtype) * is_target).sum(-1)  # (M,)
    copied = (1.0 - p_gen) * target_attention  # (M,)
    log_copied = copied.clamp(min=MIN_PROBABILITY).log()
    log_p_gen = p_gen.clamp(min=MIN_PROBABILITY).log()
    log_generated = generated + log_p_gen
    log_total = torch.logaddexp(log_generated, log_copied)  # (M,)
    is_in_source = is_target.any(-1)  # (M,)
    return torch.where(is_in_source, log_total, log_generated)


class _Mix(torch.autograd.Function):
    """Computes `mix` over `(G, q, *)`, with a hand-written gradient.

    Let P(w) = g V(w) + (1 - g) C(w), where C(w) is the sum of a_i over the positions i of w, and r(w) = g V(w) / P(w):

        d log P(w) / d log V(w) = r(w)        d log P(w) / d a_i = (1 - g) / P(w), if w is at position i
        d log P(w) / d g = (V(w) - C(w)) / P(w) = r(w) / g - C(w) / P(w)

    Automatic differentiation would make four more passes over `(G, q, X)`, and divide by a gate of zero.
    """

    @staticmethod
    def forward(  # noqa: PLR0913  # torch passes tensors to an autograd function only as separate arguments
        ctx: Any,
        vocab: Tensor,
        attention: Tensor,
        p_gen: Tensor,
        src: Tensor,
        n_oov: int,
        log_normalizer: Tensor | None,
    ) -> Tensor:
        vocab_size = vocab.shape[-1]
        ids = src.unsqueeze(1).expand(attention.shape)  # (G, q, S)
        mixed = attention.new_empty(*vocab.shape[:-1], vocab_size + n_oov)  # (G, q, X)

        # `mixed` first serves as a table of C(w), with one cell per word: only the cells of source words are cleared,
        # summed up and read. All cells are overwritten below.
        mixed.scatter_(-1, ids, 0.0)
        mixed.scatter_add_(-1, ids, attention)
        copy_mass = mixed.gather(-1, ids)  # (G, q, S), C(w) of the word at each position
        copied = ((1.0 - p_gen) * copy_mass).clamp_(min=MIN_PROBABILITY)  # (G, q, S)
        log_copied = copied.log_()  # in place: `copied` is not read again

        log_gate = p_gen.clamp(min=MIN_PROBABILITY).log()  # (G, q, 1)
        if log_normalizer is not None:
            log_gate = log_gate - log_normalizer
        torch.add(vocab, log_gate, out=mixed[..., :vocab_size])
        mixed[..., vocab_size:] = -math.inf
        generated = mixed.gather(-1, ids)  # (G, q, S)
        total = torch.logaddexp(generated, log_copied)  # (G, q, S), log P(w)
        mixed.scatter_(-1, ids, total)

        if any(ctx.needs_input_grad):
            # Copying gets no gradient if the probability is positive only because of the lower bound. The factor 2 is
            # slack for rounding in logaddexp.
            is_above_bound = total > math.log(2 * MIN_PROBABILITY)  # (G, q, S)
            generated_share = (generated - total).exp_()  # (G, q, S), r(w)
            inverse = (-total).exp_() * is_above_bound  # (G, q, S), 1 / P(w)
            ctx.save_for_backward(attention, p_gen, src, generated_share, inverse)
        ctx.vocab_size = vocab_size
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        attention, p_gen, src, generated_share, inverse = ctx.saved_tensors
        vocab_size = ctx.vocab_size
        rows, per_row, _ = attention.shape
        ids = src.unsqueeze(1).expand(attention.shape)  # (G, q, S)
        # dL / d log P(w) of the word at each position
        source_gradient = gradient.gather(-1, ids)  # (G, q, S)

        # The gradient of log V(w), as a flat buffer. Words outside the vocabulary have no cell there: they write to an
        # extra cell at its end.
        end = rows * per_row * vocab_size
        first_cells = torch.arange(0, end, vocab_size, device=src.device)  # (G * q,)
        cells = first_cells.view(rows, per_row, 1) + ids  # (G, q, S)
        cells = cells.masked_fill_(ids >= vocab_size, end)
        buffer = gradient.new_empty(end + 1)  # (G * q * V + 1,)
        vocab_gradient = buffer[:-1].view(rows, per_row, vocab_size)  # (G, q, V)
        vocab_gradient.copy_(gradient[..., :vocab_size])
        # A repeated word is written several times with the same number, so the order of scatter does not matter.
        source_word_gradient = source_gradient * generated_share  # (G, q, S)
        buffer.scatter_(0, cells.flatten(), source_word_gradient.flatten())

        probability_gradient = source_gradient * inverse  # (G, q, S), dL / d P(w)
        attention_gradient = (1.0 - p_gen) * probability_gradient  # (G, q, S)
        summed_gradient = vocab_gradient.sum(-1, keepdim=True)  # (G, q, 1)
        from_generating = summed_gradient / p_gen.clamp(min=MIN_PROBABILITY)  # (G, q, 1)
        from_copying = (attention * probability_gradient).sum(-1, keepdim=True)  # (G, q, 1)
        is_above_bound = p_gen > MIN_PROBABILITY  # (G, q, 1)
        gate_gradient = from_generating * is_above_bound - from_copying  # (G, q, 1)
        return vocab_gradient, attention_gradient, gate_gradient, None, None, None
