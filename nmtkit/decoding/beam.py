"""One step of beam search: the best continuations of the hypotheses, with ties broken in one way everywhere.

Letters as in `models/base.py`, and:

    W  hypotheses per sentence in this step: 1 in the first, K after it; N = B*W
    C  candidates per sentence and step: 2K, so that K remain when up to K of them end
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.batches.batch import Rows
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding.rules import INFINITY
from nmtkit.layers.kernels import block_tops

BLOCK = 64
"""A first pass looks at the maxima of blocks of so many columns; a multiple of the vector width, about sqrt(X)."""
SORTED_DIRECTLY = 4096
"""Values up to which a CPU sorts them faster than it makes integer keys of them."""
FEW_ROWS = 4
"""Rows up to which a CPU does not ask whether values are tied: a step that is captured cannot."""
NO_TOKEN = -1
"""Stands for no token, as in a history behind the last one."""


@dataclass(frozen=True)
class StepCandidates(Rows):
    """The candidates of one step for each of B sentences, best first."""

    tokens: Tensor
    """The token of each candidate `(B,C)`, int64."""
    parents: Tensor
    """The number of the hypothesis that it continues, below W, `(B,C)`."""
    scores: Tensor
    """Its log-probability from the start `(B,C)`."""
    ended: Tensor
    """Candidates that become finished hypotheses, `(B,C)`, bool."""
    kept: Tensor
    """Numbers of the candidates that go on `(B,K)`."""
    kept_scores: Tensor
    """Their log-probabilities `(B,K)`; minus infinity where fewer than K were left."""


@dataclass(frozen=True)
class LoggedStep(Rows):
    """The results of one step, as they are read back."""

    step: StepCandidates
    final: Tensor
    """Ranking scores of the candidates, `(B,C)`."""
    attention: Tensor | None
    """Attention of the hypotheses before the step `(B,K,*)`, where asked for; in the first step all are the same."""
    copy_gate: Tensor | None
    """`(B,K,1)`."""


def beam_step(log_probs: Tensor, scores: Tensor, beam_size: int, tops: Tensor | None = None) -> StepCandidates:
    """The 2K best continuations; see `nmtkit.decoding.engine.beam_search` for the rule, and `top_continuations`."""
    scores, candidates = top_continuations(log_probs, scores, 2 * beam_size, tops)  # (B,C)
    parents = candidates // log_probs.shape[1]
    tokens = candidates % log_probs.shape[1]
    is_end = tokens == EOS
    ended = is_end & (scores > -INFINITY)
    ended[:, beam_size:] = False
    kept = is_end.sort(dim=1, stable=True)[1][:, :beam_size]  # the others, in their order
    return StepCandidates(tokens, parents, scores, ended, kept, scores.gather(1, kept))


def diverse_beam_step(
    log_probs: Tensor, scores: Tensor, beam_size: int, groups: int, strength: float
) -> tuple[StepCandidates, Tensor]:
    """Diverse beam search: a beam of K/G for each of G groups, one after the other.

    The scores of a group are lowered by `strength` at a word for every hypothesis of an earlier group that goes on with
    it: Vijayakumar et al. 2018, "Diverse Beam Search", algorithm 1 with Hamming diversity. Group g has the columns
    g*K/G to (g+1)*K/G-1 of `scores` `(B,W)`, except in the first step.

    Returns the step, with the candidates of all groups in turn, and the penalty of each `(B,C)`.
    """
    size, width = scores.shape
    each, own = beam_size // groups, max(1, width // groups)
    lowered = log_probs.view(size, width, -1).clone()
    choices, taken = [], [scores.new_zeros(size, 0, dtype=torch.long)]
    amounts = []
    for group in range(groups):
        first = group * own if width > 1 else 0
        part = lowered[:, first : first + own]
        step = beam_step(part.reshape(size * own, -1), scores[:, first : first + own], each)
        amounts.append((step.tokens[:, :, None] == torch.cat(taken, 1)[:, None]).sum(2) * -strength)
        goes_on = step.tokens.gather(1, step.kept).masked_fill(step.kept_scores == -INFINITY, NO_TOKEN)
        taken.append(goes_on)
        cost = scores.new_full((size, 1, each), -strength).masked_fill(goes_on[:, None] == NO_TOKEN, 0.0)
        places = goes_on[:, None].clamp(min=0).expand(-1, width, -1)
        lowered.scatter_add_(2, places, cost.to(lowered.dtype).expand(-1, width, -1))
        choices.append(replace(step, parents=step.parents + first, kept=step.kept + 2 * each * group))
    joined = (torch.cat([getattr(one, field.name) for one in choices], 1) for field in fields(StepCandidates))
    return StepCandidates(*joined), torch.cat(amounts, 1).to(log_probs.dtype)


def keep_beam_places(step: StepCandidates, beam_size: int, ended: Tensor | None) -> StepCandidates:
    """The step of a beam whose ended hypotheses take places too: only the K best candidates count.

    Hypotheses that have `ended` `(B,W)` keep their places, as in Joey NMT; None: such a place is free in the next step,
    as in OpenNMT-py.
    """
    if ended is None:
        return replace(step, kept_scores=step.kept_scores.masked_fill(step.kept >= beam_size, -INFINITY))
    kept = torch.arange(beam_size, device=ended.device).expand_as(step.kept)
    newly_ended = step.ended & ~ended.gather(1, step.parents)
    return replace(step, ended=newly_ended, kept=kept, kept_scores=step.scores[:, :beam_size])


def end_at_limit(limit: Tensor, step: StepCandidates, scores: Tensor) -> StepCandidates:
    """The step, except that at the limit `(B,1)` every hypothesis ends with EOS, at no cost."""
    number = torch.arange(step.tokens.shape[1], device=scores.device).expand_as(step.tokens)
    parents = number.clamp(max=scores.shape[1] - 1)
    whole = scores.gather(1, parents).masked_fill(number > parents, -INFINITY)
    return StepCandidates(
        tokens=step.tokens.masked_fill(limit, EOS),
        parents=torch.where(limit, parents, step.parents),
        scores=torch.where(limit, whole, step.scores),
        ended=torch.where(limit, whole > -INFINITY, step.ended),
        kept=step.kept,
        kept_scores=step.kept_scores.masked_fill(limit, -INFINITY),
    )


def with_model_scores(
    step: StepCandidates, log_probs: Tensor, scores: Tensor, weighted: Tensor
) -> tuple[StepCandidates, Tensor]:
    """Gives the candidates of a step that was made by `weighted` scores the model's own log-probabilities.

    `weighted` is `log_probs` `(N,X)` with penalties and preferences. Returns the step, and how much these add to the
    last token of each candidate `(B,C)`.
    """
    places = step.parents * log_probs.shape[1] + step.tokens

    def of_candidates(values: Tensor) -> Tensor:
        return values.reshape(len(places), -1).gather(1, places)

    own = of_candidates(log_probs)
    sums = scores.gather(1, step.parents) + own
    sums = sums.masked_fill(step.scores == -INFINITY, -INFINITY)  # candidates that stand for none
    more = torch.where(own > -INFINITY, of_candidates(weighted) - own, 0.0)
    kept = sums.gather(1, step.kept).masked_fill(step.kept_scores == -INFINITY, -INFINITY)
    return replace(step, scores=sums, kept_scores=kept), more


def top_continuations(
    log_probs: Tensor, scores: Tensor, count: int, tops: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The C best continuations of each sentence's hypotheses: top-k of `scores + log_probs`, exactly, in less time.

    A first top-k is over the maxima of blocks: the best continuations all lie in the blocks that win it, and a second
    top-k looks into those only. Of equal values the first wins, in both. In place of `log_probs` `(N,X)` logits will
    do, if the scores `(B,W)` are lowered by the log of the sum of their exponentials; `tops` are the maxima, if known.

    Returns scores of the continuations `(B,C)`, best first, and their numbers `(B,C)`, parent * X + token. Where fewer
    than C exist, the rest has a score of minus infinity.
    """
    n_sentences, width = scores.shape
    n_tokens = log_probs.shape[1]
    size = min(BLOCK, n_tokens)
    tops = block_tops(log_probs, BLOCK) if tops is None else tops
    n_blocks = tops.shape[1]
    block_scores = (tops.view(n_sentences, width, n_blocks) + scores[:, :, None]).view(n_sentences, -1)
    # In their order, so that the columns of all of them are in order.
    blocks = stable_topk(block_scores, min(count, width * n_blocks))[1].sort(1)[0]  # (B,c)

    parents = blocks // n_blocks
    columns = torch.sub(blocks, parents, alpha=n_blocks) * BLOCK
    # The last block of a row, which may be shorter, is read with columns of the one before it.
    firsts = torch.add(columns.clamp(max=n_tokens - size), parents, alpha=n_tokens)
    whole = log_probs.reshape(-1)
    windows = whole.as_strided((len(whole) - size + 1, size), (1, 1), whole.storage_offset())
    begins = torch.arange(0, len(whole), width * n_tokens, device=scores.device)
    places = begins[:, None] + firsts
    inside = windows.index_select(0, places.flatten()).view(*firsts.shape, size)
    inside = inside + scores.gather(1, parents)[:, :, None]
    if rest := n_tokens % size:
        inside[:, :, : size - rest].masked_fill_((columns > n_tokens - size)[:, :, None], -INFINITY)
    inside = inside.view(n_sentences, -1)
    missing = max(0, count - inside.shape[1])
    values, places = stable_topk(inside, count - missing)
    numbers = firsts.gather(1, places // size) + places % size
    if missing:
        values, numbers = pad(values, (0, missing), value=-INFINITY), pad(numbers, (0, missing))
    return values, numbers


def stable_topk(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best values of each row `(B,M)`, best first, and their columns: `(B,count)` both. NaN counts as the best.

    Of equal values the first comes first; with `torch.topk` that depends on the length of the row.
    """
    if values.dtype != torch.float32 or values.device.type != "cpu" or values.numel() <= SORTED_DIRECTLY:
        ordered, places = values.sort(dim=1, descending=True, stable=True)
        return ordered[:, :count], places[:, :count]
    if len(values) > FEW_ROWS and count:
        best, places = values.topk(count, 1)
        is_tied = torch.count_nonzero(values == best[:, -1:]) > len(values)  # with one that is not among the best
        if not bool(is_tied.logical_or_(~(best[:, :-1] > best[:, 1:]).all())):
            return best, places
    # Read as integers, the bits of positive floats are in order, those of negative ones in reverse. The place comes
    # behind them, so that all keys differ.
    last = values.shape[1] - 1
    bits = values.nan_to_num(nan=INFINITY, posinf=INFINITY, neginf=-INFINITY).view(torch.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    keys += torch.arange(last, -1, -1, device=values.device)
    places = last - (keys.topk(count, 1)[0] & 0xFFFFFFFF)
    return values.gather(1, places), places
