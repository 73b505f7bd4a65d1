"""The choice of one step: which continuations of a sentence's hypotheses to take, and of equal ones always the same.

Letters as in `models/base.py`, and:

    W  hypotheses per sentence in this step: 1 in the first, K after it; N = B*W
    C  candidates per sentence and step: 2K, so that K remain when up to K of them end
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.batch import Rows
from nmtkit.data.vocabulary import EOS
from nmtkit.layers.kernels import block_tops
from nmtkit.search.rules import INFINITY

BLOCK = 64
"""Columns of which only the best is looked at first; a multiple of the vector width, about sqrt(X)."""
FEW = 4096
"""So few values a CPU sorts sooner than it makes keys of them."""
NO_WORD = -1


@dataclass(frozen=True)
class BeamStep(Rows):
    """What one step decided for each of B sentences; candidates best first."""

    tokens: Tensor
    """The token of each candidate `(B,C)`, int64."""
    parents: Tensor
    """Which of the W hypotheses it continues `(B,C)`."""
    scores: Tensor
    """Its log-probability, from the start, `(B,C)`."""
    ended: Tensor
    """`(B,C)`, bool: those that become finished hypotheses."""
    kept: Tensor
    """`(B,K)`: the candidates to go on with, by number."""
    kept_scores: Tensor
    """Their log-probabilities `(B,K)`; minus infinity where fewer than K were left."""


@dataclass(frozen=True)
class StepResult(Rows):
    """What one step decided, as it is read back."""

    step: BeamStep
    final: Tensor
    """What candidates are ranked by, `(B,C)`."""
    attention: Tensor | None
    """Of the hypotheses before the choice `(B,K,*)`, where asked for; in the first step all are one."""
    copy_gate: Tensor | None
    """`(B,K,1)`."""


def beam_step(log_probs: Tensor, scores: Tensor, beam_size: int, tops: Tensor | None = None) -> BeamStep:
    """The choice of beam search; see `nmtkit.search.engine.beam_search`, and `top_continuations`."""
    scores, candidates = top_continuations(log_probs, scores, 2 * beam_size, tops)  # (B,C)
    parents = candidates // log_probs.shape[1]
    tokens = torch.sub(candidates, parents, alpha=log_probs.shape[1])
    is_end = tokens == EOS
    ended = is_end & (scores > -INFINITY)
    ended[:, beam_size:] = False
    kept = is_end.sort(dim=1, stable=True)[1][:, :beam_size]  # the others, in their order
    return BeamStep(tokens, parents, scores, ended, kept, scores.gather(1, kept))


def diverse_beam_step(
    log_probs: Tensor, scores: Tensor, beam_size: int, groups: int, strength: float
) -> tuple[BeamStep, Tensor]:
    """The choice of diverse beam search: a beam of K/G for each of G groups, one after the other.

    What a group chooses by is lowered, for every hypothesis of an earlier group that goes on with a word, by `strength`
    at this word: Vijayakumar et al. 2018, "Diverse Beam Search", algorithm 1 with Hamming diversity.

    Args:
        log_probs: `(N,X)`.
        scores: `(B,W)`; those of group g are g*K/G to (g+1)*K/G-1, but for the first step.
        beam_size: K.
        groups: G.
        strength: of the penalty.

    Returns:
        The choice, the candidates of one group behind those of another, and by how much each was lowered `(B,C)`.
    """
    size, width = scores.shape
    each, own = beam_size // groups, max(1, width // groups)
    lowered = log_probs.view(size, width, -1).clone()
    choices, taken = [], [scores.new_zeros(size, 0, dtype=torch.long)]
    amounts = []
    for group in range(groups):
        first = group * own if width > 1 else 0
        part = lowered[:, first : first + own]
        choice = beam_step(part.reshape(size * own, -1), scores[:, first : first + own], each)
        amounts.append((choice.tokens[:, :, None] == torch.cat(taken, 1)[:, None]).sum(2) * -strength)
        goes_on = choice.tokens.gather(1, choice.kept).masked_fill(choice.kept_scores == -INFINITY, NO_WORD)
        taken.append(goes_on)
        cost = scores.new_full((size, 1, each), -strength).masked_fill(goes_on[:, None] == NO_WORD, 0.0)
        places = goes_on[:, None].clamp(min=0).expand(-1, width, -1)
        lowered.scatter_add_(2, places, cost.to(lowered.dtype).expand(-1, width, -1))
        choices.append(replace(choice, parents=choice.parents + first, kept=choice.kept + 2 * each * group))
    whole = BeamStep(*(torch.cat([getattr(one, field.name) for one in choices], 1) for field in fields(BeamStep)))
    return whole, torch.cat(amounts, 1).to(log_probs.dtype)


def keep_beam_places(choice: BeamStep, beam_size: int, spent: Tensor | None) -> BeamStep:
    """The choice by the places of a beam, which what ends fills as well: only the K best candidates are looked at.

    Args:
        choice: of a plain beam.
        beam_size: K.
        spent: the hypotheses that have ended and kept their places, as in Joey NMT, `(B,W)`; None: such a place is
            free for the next step, as in OpenNMT-py.
    """
    if spent is None:
        return replace(choice, kept_scores=choice.kept_scores.masked_fill(choice.kept >= beam_size, -INFINITY))
    kept = torch.arange(beam_size, device=spent.device).expand_as(choice.kept)
    ended = choice.ended & ~spent.gather(1, choice.parents)
    return replace(choice, ended=ended, kept=kept, kept_scores=choice.scores[:, :beam_size])


def end_at_limit(limit: Tensor, choice: BeamStep, scores: Tensor) -> BeamStep:
    """The choice, but at the limit `(B,1)` it is to end every hypothesis with EOS, which costs nothing there."""
    number = torch.arange(choice.tokens.shape[1], device=scores.device).expand_as(choice.tokens)
    parents = number.clamp(max=scores.shape[1] - 1)
    whole = scores.gather(1, parents).masked_fill(number > parents, -INFINITY)
    return BeamStep(
        tokens=choice.tokens.masked_fill(limit, EOS),
        parents=torch.where(limit, parents, choice.parents),
        scores=torch.where(limit, whole, choice.scores),
        ended=torch.where(limit, whole > -INFINITY, choice.ended),
        kept=choice.kept,
        kept_scores=choice.kept_scores.masked_fill(limit, -INFINITY),
    )


def with_model_scores(choice: BeamStep, log_probs: Tensor, scores: Tensor, weighed: Tensor) -> tuple[BeamStep, Tensor]:
    """A choice that was made by other numbers than log-probabilities, with the model's own for scores.

    Args:
        choice: made by `weighed`.
        log_probs: the model's `(N,X)`.
        scores: log-probabilities of the hypotheses, `(B,W)`.
        weighed: what stood in place of `log_probs`.

    Returns:
        The choice, and how much more than its own log-probability the last token of each candidate weighed `(B,C)`.
    """
    places = choice.parents * log_probs.shape[1] + choice.tokens

    def of_candidates(values: Tensor) -> Tensor:
        return values.reshape(len(places), -1).gather(1, places)

    own = of_candidates(log_probs)
    found = scores.gather(1, choice.parents) + own
    found = found.masked_fill(choice.scores == -INFINITY, -INFINITY)  # candidates that stand for none
    more = torch.where(own > -INFINITY, of_candidates(weighed) - own, 0.0)
    kept = found.gather(1, choice.kept).masked_fill(choice.kept_scores == -INFINITY, -INFINITY)
    return replace(choice, scores=found, kept_scores=kept), more


def top_continuations(
    log_probs: Tensor, scores: Tensor, count: int, tops: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The best continuations of each sentence's hypotheses: top-k of `scores + log_probs`, exactly, in less time.

    Only the best of every `BLOCK` columns takes part in a first top-k; the best continuations all lie in the blocks
    that win it, and only those are looked into. Of equal ones the first wins, in both.

    Args:
        log_probs: `(N,X)`; or logits, if the scores are lowered by the log of the sum of their exponentials.
        scores: log-probabilities of the hypotheses, `(B,W)`.
        count: C.
        tops: the best of every block `(N,*)`, if they are known.

    Returns:
        Scores of the continuations `(B,C)`, best first, and which they are `(B,C)`: parent * X + token. Where fewer
        than C exist, the rest has a score of minus infinity.
    """
    n_sentences, width = scores.shape
    n_tokens = log_probs.shape[1]
    rest = n_tokens % BLOCK
    tops = block_tops(log_probs, BLOCK) if tops is None else tops
    n_blocks = tops.shape[1]
    block_scores = (tops.view(n_sentences, width, n_blocks) + scores[:, :, None]).view(n_sentences, -1)
    # In their order, so that the columns of all of them are in order.
    blocks = stable_topk(block_scores, min(count, width * n_blocks))[1].sort(1)[0]  # (B,c)

    parents = blocks // n_blocks
    firsts = blocks * BLOCK
    if rest:  # the last block of each row is shorter
        firsts = torch.sub(firsts, parents, alpha=BLOCK - rest)
    flat = firsts[:, :, None] + torch.arange(BLOCK, device=scores.device)  # (B,c,BLOCK)
    whole = log_probs.reshape(n_sentences, -1)
    last = whole.shape[1] - 1
    inside = whole.gather(1, (flat.clamp(max=last) if rest else flat).view(n_sentences, -1)).view_as(flat)
    if rest:
        inside = inside.masked_fill(flat >= ((parents + 1) * n_tokens)[:, :, None], -INFINITY)
    inside = (inside + scores.gather(1, parents)[:, :, None]).view(n_sentences, -1)
    missing = max(0, count - inside.shape[1])
    values, places = stable_topk(inside, count - missing)
    found = flat.view(n_sentences, -1).gather(1, places)
    if rest:  # a column behind the end stands for none
        found = found.clamp(max=last)
    if missing:
        values, found = pad(values, (0, missing), value=-INFINITY), pad(found, (0, missing))
    return values, found


def stable_topk(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best values of each row, best first, and of equal ones the first first.

    `torch.topk` leaves open which of equal values it takes; it depends on how long the row is.

    Args:
        values: `(B,M)`; what is not a number counts as the best.
        count: at most M.

    Returns:
        The values `(B,count)`, and where they are `(B,count)`, int64.
    """
    if values.dtype != torch.float32 or values.device.type != "cpu" or values.numel() <= FEW:
        ordered, places = values.sort(dim=1, descending=True, stable=True)
        return ordered[:, :count], places[:, :count]
    # Read as integers, the bits of positive floats are in order, those of negative ones in reverse. The place comes
    # behind them, so that all keys differ.
    last = values.shape[1] - 1
    bits = values.nan_to_num(nan=INFINITY, posinf=INFINITY, neginf=-INFINITY).view(torch.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    keys += torch.arange(last, -1, -1, device=values.device)
    places = last - (keys.topk(count, 1)[0] & 0xFFFFFFFF)
    return values.gather(1, places), places
