"""Lexically constrained beam search: words that a translation must contain, and words that it must not.

Hokamp and Liu 2017, "Lexically Constrained Decoding for Sequence Generation Using Grid Beam Search". In every step the
beam is divided anew among the banks, as in Post and Vilar 2018, "Fast Lexically Constrained Decoding with Dynamic Beam
Allocation"; tensors keep one size, as in Hu et al. 2019, "Improved Lexically Constrained Decoding for Translation and
Monolingual Rewriting".

A positive constraint is met once its tokens stand in a row and the next token, the boundary token, begins another word
or ends the sentence: the tokens of "Hund" also begin "Hunde". The bank of a hypothesis is how many tokens of
constraints it has, boundary tokens included. In every step the best hypothesis of the highest bank goes on, and can
always be continued into the next: so all constraints are met in time.

Letters as in `nmtkit.decoding.beam`, and:

    U  positive constraints of a sentence at most       R  negative constraints of a sentence at most
    L  tokens of a constraint at most                   M  candidates considered
    "..." N hypotheses, or candidates `(B,M)`
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.batches.batch import Rows
from nmtkit.data.tokenizers.vocabulary import EOS, PAD
from nmtkit.decoding.beam import StepCandidates, top_continuations
from nmtkit.decoding.rules import INFINITY, allow_eos_if_stuck
from nmtkit.models.base import Memory


@dataclass(frozen=True)
class Constraints(Rows):
    """The constraints on the translations of B sentences."""

    positive: Tensor
    """Tokens of the terms that each must contain `(B,U,L)`, extended ids, PAD behind them; of no term only PAD."""
    in_order: Tensor
    """Whether they must come in this order `(B,)`, bool."""
    negative: Tensor
    """Tokens of the terms that each must not contain `(B,R,*)`, likewise."""
    copied_starts: Tensor | None = None
    """Which tokens of the source begin a word `(B,S)`, bool; for a model that copies."""

    def room(self) -> Tensor:
        """The most tokens that the positive constraints of each sentence take, boundary tokens included: `(B,)`."""
        lengths = _lengths(self.positive)
        return (lengths + (lengths > 0)).sum(1)

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Constraints":
        """The same with other ids; `change` maps the ids of each sentence `(B,*)`."""
        positive, negative = (change(ids.flatten(1)).view_as(ids) for ids in (self.positive, self.negative))
        return Constraints(positive, self.in_order, negative, self.copied_starts)


@dataclass(frozen=True)
class ConstraintProgress(Rows):
    """How far hypotheses have come with the constraints of their sentences."""

    reached: Tensor
    """Whether the last tokens are the first l+1 of an unmet positive constraint, `(...,U,L)`, bool."""
    met: Tensor
    """`(...,U)`, bool; also where there is no term."""
    negative: Tensor
    """Whether the last tokens are the first l+1 of a negative constraint, `(...,R,*)`, bool."""


@dataclass(frozen=True)
class ConstrainedBeam:
    """The constraints of B sentences, and the progress of their N hypotheses."""

    terms: Constraints
    """By the ids of the search."""
    starts: Tensor
    """Tokens of the vocabulary that begin a word or are no part of one `(V,)`, bool."""
    progress: ConstraintProgress

    @classmethod
    def begin(cls, terms: Constraints, starts: Callable[[], Tensor] | None) -> "ConstrainedBeam":
        """One empty hypothesis for each sentence."""
        assert starts is not None, "terms are of whole words: which tokens begin one must be known"
        positive, negative = terms.positive, terms.negative
        nothing = ConstraintProgress(positive.bool() & False, _lengths(positive) == 0, negative.bool() & False)
        return cls(terms, starts(), nothing)

    def forbid(self, log_probs: Tensor, end: Tensor, free: Tensor | None, memory: Memory) -> None:
        """Forbids, in place, the last token of negative constraints, and EOS before all positive ones are met.

        Where nothing else is left EOS is allowed, with the model's own log-probability `end` `(N,)`. `log_probs`
        `(N,X)` are under all other rules; `free` `(N,)` are hypotheses without a forced token, None: all.
        """
        free = torch.ones_like(log_probs[:, 0], dtype=torch.bool) if free is None else free
        early = free & ~self._is_enough(self.progress)
        log_probs[:, EOS].masked_fill_(early, -INFINITY)
        if self.terms.negative.shape[1]:
            negative = self._of_hypotheses(self.terms.negative)
            lengths = _lengths(negative)
            last = (lengths - 1).clamp(min=0)[..., None]  # (N,R,1)
            before = pad(self.progress.negative[..., :-1], (1, 0), value=True).gather(2, last)[..., 0]
            again = before & (lengths > 0) & free[:, None]
            ban = torch.zeros_like(again, dtype=log_probs.dtype).masked_fill_(again, -INFINITY)
            log_probs.scatter_add_(1, memory.columns_of(negative.gather(2, last)[..., 0]), ban)
        allow_eos_if_stuck(log_probs, end)

    def choose(self, log_probs: Tensor, scores: Tensor, beam_size: int, memory: Memory) -> StepCandidates:
        """One step of constrained beam search, from `log_probs` `(N,X)` and `scores` `(B,W)`.

        It considers for each hypothesis the next token of every constraint and the best token that begins a word, and
        the 2K best of all other continuations of the sentence. A candidate that ends is finished if it is among the K
        best of its bank. If all candidates are in one bank, the step is that of `beam_step`.
        """
        values, places = self._candidates(log_probs, scores, beam_size, memory)
        parents = places // log_probs.shape[1]
        tokens = places - parents * log_probs.shape[1]
        rows = parents + torch.arange(len(scores), device=scores.device)[:, None] * scores.shape[1]
        progress = self.after(rows, memory.ids_of(tokens))
        of_met = ((_lengths(self.terms.positive) + 1)[:, None] * progress.met).sum(2)
        bank = of_met + _count(progress.reached).amax(2)
        real, is_end = values > -INFINITY, tokens == EOS
        # The best of each bank, the highest bank first; then the second of each.
        turn = _turns(bank, real & ~is_end).masked_fill(~real | is_end, bank.shape[1])
        down = bank.sort(dim=1, stable=True, descending=True)[1]
        kept = down.gather(1, turn.gather(1, down).sort(dim=1, stable=True)[1])[:, :beam_size]
        ends = is_end & real & (_turns(bank, real) < beam_size)  # at most one for each hypothesis
        both = torch.cat([kept, ends.sort(dim=1, stable=True, descending=True)[1][:, :beam_size]], 1)  # (B,C)
        ended = ends.gather(1, both)
        ended[:, :beam_size] = False  # where fewer than K go on, what ended fills their places
        scores = values.gather(1, both)
        going_on = (real & ~is_end).gather(1, kept)
        kept_scores = scores[:, :beam_size].masked_fill(~going_on, -INFINITY)
        places = torch.arange(beam_size, device=scores.device).expand_as(kept)
        return StepCandidates(tokens.gather(1, both), parents.gather(1, both), scores, ended, places, kept_scores)

    def ranked(self, choice: StepCandidates, final: Tensor) -> Tensor:
        """Ranking scores `(B,C)`; minus infinity before all constraints are met, unless no candidate meets them."""
        width = self.progress.met.shape[0] // len(final)
        rows = choice.parents + torch.arange(len(final), device=final.device)[:, None] * width
        enough = self._is_enough(self.after(rows, choice.tokens)) | (choice.tokens == EOS)
        some = (enough & (choice.scores > -INFINITY)).any(1, keepdim=True)
        return final.masked_fill(~enough & some, -INFINITY)

    def enough(self, scores: Tensor) -> Tensor:
        """Scores of hypotheses `(B,W)`; minus infinity before all constraints are met, if others meet them."""
        met = self._is_enough(self.progress).view_as(scores) & (scores > -INFINITY)
        return scores.masked_fill(~met & met.any(1, keepdim=True), -INFINITY)

    def _candidates(self, log_probs: Tensor, scores: Tensor, beam_size: int, memory: Memory) -> tuple[Tensor, Tensor]:
        """Continuations `(B,M)`, best first: scores and numbers, parent * X + column; none comes twice."""
        size, (n_sentences, width) = log_probs.shape[1], scores.shape
        whole = log_probs.reshape(n_sentences, width, size)
        starting = whole.masked_fill(~self._columns_that_start(size, memory), -INFINITY).argmax(2).view(-1, 1)
        own = torch.cat([memory.columns_of(self._next()), starting], 1)  # (N,U+1)
        twice = (own[:, :, None] == own[:, None, :]).tril(-1).any(2) | (own == PAD)
        of_own = log_probs.gather(1, own).masked_fill(twice, -INFINITY).view(n_sentences, width, -1)
        of_own = (of_own + scores[:, :, None]).flatten(1)
        first = torch.arange(width, device=scores.device)[:, None] * size
        places = (own.view(n_sentences, width, -1) + first).flatten(1)
        others = top_continuations(log_probs.scatter(1, own, -INFINITY), scores, 2 * beam_size)
        values, places = torch.cat([of_own, others[0]], 1), torch.cat([places, others[1]], 1)
        places, order = places.sort(dim=1, stable=True)
        values, order = values.gather(1, order).sort(dim=1, stable=True, descending=True)
        return values, places.gather(1, order)

    def _columns_that_start(self, size: int, memory: Memory) -> Tensor:
        """The columns of words' first tokens: `(X,)` or `(B,1,X)`, bool."""
        known = self.starts if memory.shortlist is None else self.starts[memory.shortlist.index.words]
        copied = self.terms.copied_starts
        if copied is None:
            return pad(known, (0, size - len(known)))
        both = torch.cat([known.expand(len(copied), -1), copied], 1)
        return pad(both, (0, size - both.shape[1]))[:, None]

    def _starts(self, ids: Tensor) -> Tensor:
        """Whether tokens `(B,M)` begin a word, or end the sentence."""
        known = self.starts[ids.clamp(max=len(self.starts) - 1)] | (ids == EOS)
        copied = self.terms.copied_starts
        if copied is None:
            return known
        places = (ids - len(self.starts)).clamp(min=0, max=copied.shape[1] - 1)
        return torch.where(ids < len(self.starts), known, copied.gather(1, places))

    def _of_hypotheses(self, values: Tensor) -> Tensor:
        return values.repeat_interleave(len(self.progress.met) // len(values), 0)

    def after(self, rows: Tensor, tokens: Tensor) -> ConstraintProgress:
        """The progress of hypotheses, by number `(B,M)`, after one more token each `(B,M)`, by its id."""
        now = self.progress.mapped(lambda one: one.index_select(0, rows.flatten()).view(*rows.shape, *one.shape[1:]))
        positive = self.terms.positive[:, None]
        met = now.met | (_is_whole(now.reached, positive) & self._starts(tokens)[..., None])
        reached = _extended(now.reached, positive, tokens) & (~met & self._may_begin(met))[..., None]
        return ConstraintProgress(reached, met, _extended(now.negative, self.terms.negative[:, None], tokens))

    def _may_begin(self, met: Tensor) -> Tensor:
        """Constraints that may begin `(B,M,U)`: all, or in order those without an unmet one before them."""
        before = pad(met, (1, 0), value=True)[..., :-1].long().cumprod(-1).bool()
        return before | ~self.terms.in_order[:, None, None]

    def _next(self) -> Tensor:
        """The next token of every constraint `(N,U)`; PAD where it has none."""
        positive = self._of_hypotheses(self.terms.positive)
        count = _count(self.progress.reached)
        met = self.progress.met.view(len(self.terms.in_order), -1, self.terms.positive.shape[1])
        wanted = ~self.progress.met & self._may_begin(met).flatten(0, 1)
        token = pad(positive, (0, 1), value=PAD).gather(2, count[..., None])[..., 0]
        return token.masked_fill(~wanted, PAD)

    def _is_enough(self, progress: ConstraintProgress) -> Tensor:
        """Whether all positive constraints are met if the sentence ends here `(...)`."""
        positive = self.terms.positive[:, None]
        if progress.met.dim() == 2:
            positive = self._of_hypotheses(self.terms.positive)
        return (progress.met | _is_whole(progress.reached, positive)).all(-1)


def _lengths(ids: Tensor) -> Tensor:
    """Tokens of each constraint `(...,L)`."""
    return (ids != PAD).sum(-1)


def _extended(reached: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
    """What was reached `(B,M,*,L)` of constraints `(B,1,*,L)`, after one more token each `(B,M)`."""
    return pad(reached[..., :-1], (1, 0), value=True) & (ids == tokens[..., None, None]) & (ids != PAD)


def _count(reached: Tensor) -> Tensor:
    """How many tokens of each constraint `(...,U,L)` the hypothesis ends with."""
    return (reached * torch.arange(1, reached.shape[-1] + 1, device=reached.device)).amax(-1)


def _is_whole(reached: Tensor, ids: Tensor) -> Tensor:
    """Whether the hypothesis ends with all tokens of each constraint, `(...,U)`."""
    return (reached & (pad(ids, (0, 1), value=PAD)[..., 1:] == PAD)).any(-1)


def _turns(bank: Tensor, real: Tensor) -> Tensor:
    """How many better candidates of its bank each has before it `(B,M)`; candidates come best first."""
    return ((bank[:, :, None] == bank[:, None, :]) & real[:, None, :]).tril(-1).sum(2)
