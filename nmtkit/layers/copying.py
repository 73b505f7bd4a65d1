"""Copying: combines generating words and copying source words in one distribution (See et al. 2017, eq. 9).

The extended vocabulary of an example is the vocabulary followed by the unknown words of its source. `src_extended` has
the extended id of each source position. There are two exceptions:

    With a shortlist, V is the length of the shortlist, and `src_extended` has the column of each source word instead of
    its id.
    In the pointer sentinel LSTM, the "source" of a distribution is a window of earlier words of the text.

Notation:

    B    sentences
    S    source length
    V    vocabulary size
    X    columns of a distribution, V + n_oov. In training, n_oov is the largest number of unknown words in a source. A
         search numbers unknown words by position, so that n_oov is at least S.
    I    ids per sentence in `renumber_by_position`
    G    sources in `mix`, usually B
    Q    distributions per source in `mix`
    ...  any leading axes in `mix`, with G * Q distributions in all
    M    rows of `mix_targets`, with one target word each

p_gen, the probability of generating a word, is `ModelOutput.copy_gate`.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtkit.layers.elementary import at_least_float32

MIN_PROBABILITY = 1e-30
"""Lower bound on gates and copy probabilities. It keeps the loss and gradients finite even if a gate or a probability
is rounded to 0."""


def renumber_by_position(
    ids: Tensor, src_extended: Tensor, vocab_size: int, absent_id: int
) -> Tensor:
    """Renumbers extended ids for a search: the id of an unknown word becomes V plus its first source position.

    V + S columns are thus enough for all distributions in a search, however many unknown words the sentences have.

    Args:
        ids: extended ids to renumber, `(B, I)`.
        src_extended: extended ids of the sources, `(B, S)`.
        vocab_size: V.
        absent_id: result for ids that are neither in the vocabulary nor in the source.
    """
    is_equal = ids.unsqueeze(2) == src_extended.unsqueeze(1)  # (B, I, S)
    # The maximum of zeros and ones is 1 if there is a one. `max` is documented to return the index of the first one.
    is_in_source, first_position = is_equal.to(torch.uint8).max(dim=2)  # (B, I) each
    copied_ids = vocab_size + first_position  # (B, I)
    copied_ids = copied_ids.masked_fill(is_in_source == 0, absent_id)  # (B, I)
    return torch.where(ids < vocab_size, ids, copied_ids)


def mix(
    vocab_scores: Tensor,
    attention: Tensor,
    p_gen: Tensor,
    src_extended: Tensor,
    n_oov: int,
    log_normalizer: Tensor | None = None,
) -> Tensor:
    """Returns log-probabilities `(..., X)`: the logarithm of `p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_i`.

    This is eq. 9 of See et al. 2017. Up to rounding and lower bounds, this computes:

        generated = torch.nn.functional.pad(p_gen * vocab_scores.exp(), (0, n_oov))
        ids = src_extended.repeat_interleave(Q, 0).view_as(attention)
        return generated.scatter_add(-1, ids, (1 - p_gen) * attention).log()

    Only the columns of source words differ from `log p_gen + log P_vocab`, so copying is added only to these columns.
    The column of an unknown word that the source does not contain is minus infinity. All other results and all
    gradients are finite, whatever the gate and the weights are, as long as `vocab_scores` are finite. A score of minus
    infinity, as for words outside a sentence's shortlist, remains so unless the word is in the source.

    Args:
        vocab_scores: log P_vocab, or logits if `log_normalizer` is given, `(..., V)`.
        attention: weights a over the source, `(..., S)`; zero at padding.
        p_gen: probability of generating, `(..., 1)`.
        src_extended: extended ids or columns of the source words, `(G, S)`, each less than X. The G * Q distributions
            are sorted by source: the first Q belong to row 0, and so on. Q is the target length in training, the beam
            size in search, and 1 if every distribution has a row of its own.
        n_oov: number of columns for unknown words, X - V.
        log_normalizer: log-sum-exp of the logits, `(..., 1)`. Passing it instead of normalized scores saves a pass over
            `(..., V)`. It gets no gradient, so it is only used in search.
    """
    leading_axes = vocab_scores.shape[:-1]
    vocab_size = vocab_scores.shape[-1]  # V
    n_sources, source_length = src_extended.shape  # G, S
    n_per_source = math.prod(leading_axes) // max(1, n_sources)  # Q
    dtype = at_least_float32(vocab_scores)
    if log_normalizer is not None:
        needs_gradient = log_normalizer.requires_grad or vocab_scores.requires_grad
        # The gradient of the logits would lack the part that flows through the normalizer.
        assert not needs_gradient, "the normalizer is not differentiated"
        log_normalizer = log_normalizer.reshape(n_sources, n_per_source, 1)  # (G, Q, 1)
    mixed: Tensor = _Mix.apply(  # type: ignore[no-untyped-call]  # torch does not type it
        # Not cast: `_Mix` adds these scores to a tensor of type `dtype` without an intermediate copy.
        vocab_scores.reshape(n_sources, n_per_source, vocab_size),
        attention.to(dtype).reshape(n_sources, n_per_source, source_length),
        p_gen.to(dtype).reshape(n_sources, n_per_source, 1),
        src_extended,
        n_oov,
        log_normalizer,
    )  # (G, Q, X)
    return mixed.view(*leading_axes, vocab_size + n_oov)


def mix_targets(
    targets: Tensor, vocab_log_probs: Tensor, attention: Tensor, p_gen: Tensor, src_extended: Tensor
) -> Tensor:
    """Computes `mix` for a single word of each distribution, which is all that a likelihood needs: `(M,)`.

    The result is minus infinity for a word that is neither in the vocabulary nor in the source. If the attention
    to a source word is zero, so is its gradient, whereas in `mix` the gradient is (1 - p_gen) / P(w).

    Args:
        targets: extended ids of the words, `(M,)`.
        vocab_log_probs: log P_vocab of the words, `(M,)`; minus infinity for words outside the vocabulary.
        attention: weights over the source, `(M, S)`; zero at padding.
        p_gen: probability of generating, `(M, 1)`.
        src_extended: extended ids of each word's source, `(M, S)`.
    """
    dtype = at_least_float32(vocab_log_probs)
    p_gen = p_gen.to(dtype).squeeze(-1)  # (M,)
    is_target = src_extended == targets.unsqueeze(1)  # (M, S)
    target_attention = (attention.to(dtype) * is_target).sum(-1)  # (M,)
    copy_prob = (1.0 - p_gen) * target_attention  # (M,)
    log_copied = copy_prob.clamp(min=MIN_PROBABILITY).log()  # (M,)
    log_p_gen = p_gen.clamp(min=MIN_PROBABILITY).log()  # (M,)
    log_generated = vocab_log_probs + log_p_gen  # (M,)
    log_total = torch.logaddexp(log_generated, log_copied)  # (M,)
    # A word that is not in the source can only be generated: for it, `log_copied` is just the lower bound.
    is_in_source = is_target.any(-1)  # (M,)
    return torch.where(is_in_source, log_total, log_generated)


class _Mix(torch.autograd.Function):
    """Computes `mix` over `(G, Q, *)`, with a hand-written gradient.

    Let P(w) = p_gen P_vocab(w) + (1 - p_gen) P_copy(w), where P_copy(w) is the sum of a_i over the positions i of w.
    Let r(w) = p_gen P_vocab(w) / P(w), the share of P(w) that comes from generating. Then:

        d log P(w) / d log P_vocab(w) = r(w)
        d log P(w) / d a_i            = (1 - p_gen) / P(w), if w is at position i
        d log P(w) / d p_gen          = (P_vocab(w) - P_copy(w)) / P(w) = r(w) / p_gen - P_copy(w) / P(w)

    If w is not in the source, P_copy(w) = 0 and r(w) = 1.

    Automatic differentiation would need four more passes over `(G, Q, X)`, and would divide by zero if a gate is zero.
    `test_gradients` in tests/layers/test_copying.py compares these gradients with finite differences.
    """

    @staticmethod
    def forward(  # noqa: PLR0913  # torch passes tensors to an autograd function only as separate arguments
        ctx: Any,
        vocab_scores: Tensor,
        attention: Tensor,
        p_gen: Tensor,
        src_extended: Tensor,
        n_oov: int,
        log_normalizer: Tensor | None,
    ) -> Tensor:
        vocab_size = vocab_scores.shape[-1]
        ids = src_extended.unsqueeze(1).expand(attention.shape)  # (G, Q, S)
        mixed = attention.new_empty(*vocab_scores.shape[:-1], vocab_size + n_oov)  # (G, Q, X)

        # `mixed`, whose memory is uninitialized, first serves as a table of P_copy(w) with one cell per word: only the
        # cells of source words are cleared, summed up and read. All cells are overwritten below.
        mixed.scatter_(-1, ids, 0.0)
        mixed.scatter_add_(-1, ids, attention)
        p_copy = mixed.gather(-1, ids)  # (G, Q, S), P_copy(w) of the word at each position
        log_copied = ((1.0 - p_gen) * p_copy).clamp_(min=MIN_PROBABILITY).log_()  # (G, Q, S)

        log_gate = p_gen.clamp(min=MIN_PROBABILITY).log()  # (G, Q, 1)
        if log_normalizer is not None:
            log_gate = log_gate - log_normalizer  # (G, Q, 1)
        torch.add(vocab_scores, log_gate, out=mixed[..., :vocab_size])
        # Minus infinity remains in the columns of unknown words that this source does not contain.
        mixed[..., vocab_size:] = -math.inf
        log_generated = mixed.gather(-1, ids)  # (G, Q, S)
        log_total = torch.logaddexp(log_generated, log_copied)  # (G, Q, S), log P(w)
        mixed.scatter_(-1, ids, log_total)

        ctx.vocab_size = vocab_size
        if any(ctx.needs_input_grad):
            generated_share = (log_generated - log_total).exp_()  # (G, Q, S), r(w)
            # 1 / P(w) is at most 1 / MIN_PROBABILITY, which float32 can represent. Where P(w) is positive only because
            # of the lower bound, copying gets no gradient. The factor of 2 allows for rounding in `logaddexp`.
            is_above_bound = log_total > math.log(2 * MIN_PROBABILITY)  # (G, Q, S)
            inverse_prob = (-log_total).exp_() * is_above_bound  # (G, Q, S), 1 / P(w)
            ctx.save_for_backward(attention, p_gen, src_extended, generated_share, inverse_prob)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        """Returns the gradients of `vocab_scores`, `attention` and `p_gen`; the other arguments have no gradients.

        The gradients have the same type as the result. Autograd casts them to the types of the inputs, such as
        bfloat16. The incoming gradient of columns that are minus infinity is ignored.
        """
        attention, p_gen, src_extended, generated_share, inverse_prob = ctx.saved_tensors
        vocab_size = ctx.vocab_size
        n_sources, n_per_source, _ = attention.shape
        ids = src_extended.unsqueeze(1).expand(attention.shape)  # (G, Q, S)
        # dL / d log P(w) of the word at each position
        log_prob_gradient = gradient.gather(-1, ids)  # (G, Q, S)

        # dL / d log P_vocab(w) = r(w) dL / d log P(w): the incoming gradient, in which the cells of source words are
        # overwritten. `vocab_gradient` is a view of a flat buffer, which has one more cell at its end. Words outside
        # the vocabulary write to this spare cell.
        spare_cell = n_sources * n_per_source * vocab_size
        buffer = gradient.new_empty(spare_cell + 1)  # (G * Q * V + 1,)
        vocab_gradient = buffer[:-1].view(n_sources, n_per_source, vocab_size)  # (G, Q, V)
        vocab_gradient.copy_(gradient[..., :vocab_size])
        first_cells = torch.arange(0, spare_cell, vocab_size, device=ids.device)  # (G * Q,)
        cells = first_cells.view(n_sources, n_per_source, 1) + ids  # (G, Q, S)
        cells = cells.masked_fill_(ids >= vocab_size, spare_cell)  # (G, Q, S)
        # The cell of a repeated word is written several times with the same value, so the order does not matter.
        source_word_gradient = log_prob_gradient * generated_share  # (G, Q, S)
        buffer.scatter_(0, cells.flatten(), source_word_gradient.flatten())

        prob_gradient = log_prob_gradient * inverse_prob  # (G, Q, S), dL / d P(w)
        attention_gradient = (1.0 - p_gen) * prob_gradient  # (G, Q, S)

        # dL / d p_gen is the sum over all words w of
        #     dL / d log P(w) * r(w) / p_gen: `vocab_gradient` already contains the factor r(w), which is 0 for words
        #     outside the vocabulary;
        #     - dL / d P(w) * P_copy(w): the sum of - dL / d P(w_i) * a_i over all positions i.
        vocab_gradient_sum = vocab_gradient.sum(-1, keepdim=True)  # (G, Q, 1)
        from_generating = vocab_gradient_sum / p_gen.clamp(min=MIN_PROBABILITY)  # (G, Q, 1)
        from_copying = (attention * prob_gradient).sum(-1, keepdim=True)  # (G, Q, 1)
        is_gate_open = p_gen > MIN_PROBABILITY  # (G, Q, 1)
        gate_gradient = from_generating * is_gate_open - from_copying  # (G, Q, 1)
        return vocab_gradient, attention_gradient, gate_gradient, None, None, None
