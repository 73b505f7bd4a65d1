"""Lexically constrained beam search: words that a translation must contain, and words that it must not.

Hokamp and Liu 2017, "Lexically Constrained Decoding for Sequence Generation Using Grid Beam Search". In every step the
beam is divided anew among the banks, as in Post and Vilar 2018, "Fast Lexically Constrained Decoding with Dynamic Beam
Allocation"; tensors keep one size, as in Hu et al. 2019, "Improved Lexically Constrained Decoding for Translation and
Monolingual Rewriting".

A positive constraint is met once its tokens stand in a row and the next token, the boundary token, begins another word
or ends the sentence: the tokens of "Hund" also begin "Hunde". The bank of a hypothesis is how many tokens of
constraints it has, boundary tokens included. In every step the best hypothesis of the highest bank goes on, and can
always be continued into the next: so all constraints are met in time.

Letters as in `nmtkit.decoding.beam_search`, and:

    U  positive constraints of a sentence at most       R  negative constraints of a sentence at most
    L  tokens of a constraint at most                   M  candidates considered: W * (U + 1) + 2 * K
    "..." N hypotheses, or candidates `(B,M)`
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.batches.batch import NEW_WORD, Rows
from nmtkit.data.tokenizers.vocabulary import EOS, PAD
from nmtkit.decoding.candidates import Candidates, top_continuations
from nmtkit.decoding.rules import INFINITY, allow_end_if_stuck
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

    def tokens_needed(self) -> Tensor:
        """Returns the most tokens that the positive constraints take, boundary tokens included: `(B,)`."""
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
    def begin(cls, terms: Constraints, starts: Tensor) -> "ConstrainedBeam":
        """Returns the beam with one empty hypothesis for each sentence."""
        progress = ConstraintProgress(
            reached=torch.zeros_like(terms.positive, dtype=torch.bool),
            met=_lengths(terms.positive) == 0,
            negative=torch.zeros_like(terms.negative, dtype=torch.bool),
        )
        return cls(terms, starts, progress)

    def forbid(self, log_probs: Tensor, end: Tensor, forced: Tensor | None, memory: Memory) -> None:
        """Forbids, in place, the last token of negative constraints, and EOS before all positive ones are met.

        Where nothing else is left EOS is allowed, with the model's own log-probability `end` `(N,)`. `log_probs`
        `(N,X)` are under the rules; hypotheses whose next token is `forced` `(N,)` are left alone.
        """
        is_free = torch.ones_like(end, dtype=torch.bool)  # (N,)
        if forced is not None:
            is_free = (forced == PAD) | (forced == NEW_WORD)
        is_early = is_free & ~self._is_enough(self.progress)
        log_probs[:, EOS].masked_fill_(is_early, -INFINITY)
        if self.terms.negative.shape[1]:
            self._forbid_last_tokens(log_probs, is_free, memory)
        allow_end_if_stuck(log_probs, end)

    def _forbid_last_tokens(self, log_probs: Tensor, is_free: Tensor, memory: Memory) -> None:
        """Forbids, in place, tokens that would complete a negative constraint of a free hypothesis `(N,)`."""
        negative = self._of_hypotheses(self.terms.negative)  # (N,R,L)
        lengths = _lengths(negative)  # (N,R)
        last = (lengths - 1).clamp(min=0)[..., None]  # (N,R,1)
        last_tokens = negative.gather(2, last)[..., 0]  # (N,R)
        # Whether the hypothesis ends with all tokens but the last one.
        has_rest = pad(self.progress.negative[..., :-1], (1, 0), value=True)  # (N,R,L)
        has_rest = has_rest.gather(2, last)[..., 0]  # (N,R)
        is_forbidden = has_rest & (lengths > 0) & is_free[:, None]
        ban = torch.zeros_like(is_forbidden, dtype=log_probs.dtype).masked_fill_(is_forbidden, -INFINITY)
        # Added, not assigned: a token that ends several constraints stays forbidden if any of them is near its end.
        log_probs.scatter_add_(1, memory.columns_of(last_tokens), ban)

    def choose(self, log_probs: Tensor, scores: Tensor, beam_size: int, memory: Memory) -> Candidates:
        """Chooses the candidates of a step from `log_probs` `(N,X)` and `scores` `(B,W)`.

        It considers for each hypothesis the next token of every constraint and the best token that begins a word, and
        the 2K best of all other continuations of the sentence. A candidate that ends is finished if it is among the K
        best of its bank. If all candidates are in one bank, the result is that of `best_candidates`.
        """
        values, places = self._continuations(log_probs, scores, beam_size, memory)  # (B,M)
        parents = places // log_probs.shape[1]
        columns = places % log_probs.shape[1]
        bank = self._bank(self.after(_rows(parents, scores.shape[1]), memory.ids_of(columns)))  # (B,M)
        is_possible = values > -INFINITY
        is_end = columns == EOS
        goes_on = is_possible & ~is_end

        # What goes on: the best of each bank, the highest bank first; then the second of each, and so on.
        turn = _rank_in_bank(bank, goes_on).masked_fill(~goes_on, bank.shape[1])
        by_bank = bank.sort(dim=1, stable=True, descending=True)[1]
        by_turn = turn.gather(1, by_bank).sort(dim=1, stable=True)[1]
        going_on = by_bank.gather(1, by_turn)[:, :beam_size]  # (B,K)

        # What ends: at most one candidate of each hypothesis.
        may_end = is_end & is_possible & (_rank_in_bank(bank, is_possible) < beam_size)
        ending = may_end.sort(dim=1, stable=True, descending=True)[1][:, :beam_size]  # (B,K)
        chosen = torch.cat([going_on, ending], 1)  # (B,C): what goes on has the numbers 0 to K-1
        ended = may_end.gather(1, chosen)
        ended[:, :beam_size] = False  # where fewer than K go on, what ended fills their places
        chosen_scores = values.gather(1, chosen)
        return Candidates(
            columns=columns.gather(1, chosen),
            parents=parents.gather(1, chosen),
            scores=chosen_scores,
            ended=ended,
            survivors=torch.arange(beam_size, device=scores.device).expand_as(going_on),
            survivor_scores=chosen_scores[:, :beam_size].masked_fill(~goes_on.gather(1, going_on), -INFINITY),
        )

    def ranked(self, parents: Tensor, tokens: Tensor, scores: Tensor, ranking: Tensor) -> Tensor:
        """Returns ranking scores `(B,C)`, minus infinity where constraints are not met, unless no candidate meets them.

        Parents, tokens (by their ids) and log-probabilities of the candidates are `(B,C)` too.
        """
        width = len(self.progress.met) // len(ranking)
        progress = self.after(_rows(parents, width), tokens)
        is_met = self._is_enough(progress) | (tokens == EOS)
        any_is_met = (is_met & (scores > -INFINITY)).any(1, keepdim=True)
        return ranking.masked_fill(~is_met & any_is_met, -INFINITY)

    def enough(self, scores: Tensor) -> Tensor:
        """Returns scores of hypotheses `(B,W)`, minus infinity before all constraints are met, unless none is."""
        is_met = self._is_enough(self.progress).view_as(scores) & (scores > -INFINITY)
        return scores.masked_fill(~is_met & is_met.any(1, keepdim=True), -INFINITY)

    def after(self, rows: Tensor, tokens: Tensor) -> ConstraintProgress:
        """Returns the progress of hypotheses, by number `(B,M)`, after one more token each `(B,M)`, by its id."""

        def of_rows(tensor: Tensor) -> Tensor:
            chosen = tensor.index_select(0, rows.flatten())
            return chosen.view(*rows.shape, *tensor.shape[1:])

        progress = self.progress.mapped(of_rows)
        positive = self.terms.positive[:, None]  # (B,1,U,L)
        negative = self.terms.negative[:, None]  # (B,1,R,*)
        has_ended_term = _is_whole(progress.reached, positive) & self._begins_word(tokens)[..., None]
        met = progress.met | has_ended_term  # (B,M,U)
        may_go_on = ~met & self._may_begin(met)
        reached = _extended(progress.reached, positive, tokens) & may_go_on[..., None]  # (B,M,U,L)
        return ConstraintProgress(reached=reached, met=met, negative=_extended(progress.negative, negative, tokens))

    def _continuations(
        self, log_probs: Tensor, scores: Tensor, beam_size: int, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """Continuations `(B,M)`, best first: scores and numbers, parent * X + column; none comes twice."""
        size = log_probs.shape[1]
        n_sentences, width = scores.shape
        of_sentences = log_probs.reshape(n_sentences, width, size)
        is_start = self._columns_that_start(size, memory)
        best_start = of_sentences.masked_fill(~is_start, -INFINITY).argmax(2).view(-1, 1)  # (N,1)
        wanted = torch.cat([memory.columns_of(self._next_tokens()), best_start], 1)  # (N,U+1)
        is_same = wanted[:, :, None] == wanted[:, None, :]
        is_left_out = is_same.tril(-1).any(2) | (wanted == PAD)  # it came before, or there is none
        values = log_probs.gather(1, wanted).masked_fill(is_left_out, -INFINITY)
        values = values.view(n_sentences, width, -1) + scores[:, :, None]  # (B,W,U+1)
        first_places = torch.arange(width, device=scores.device)[:, None] * size
        places = wanted.view(n_sentences, width, -1) + first_places
        without_wanted = log_probs.scatter(1, wanted, -INFINITY)
        other_values, other_places = top_continuations(without_wanted, scores, 2 * beam_size)
        values = torch.cat([values.flatten(1), other_values], 1)
        places = torch.cat([places.flatten(1), other_places], 1)
        # First by number, so that of equal values the first comes first.
        places, order = places.sort(dim=1, stable=True)
        values, by_value = values.gather(1, order).sort(dim=1, stable=True, descending=True)
        return values, places.gather(1, by_value)

    def _bank(self, progress: ConstraintProgress) -> Tensor:
        """How many tokens of constraints candidates have, boundary tokens included, `(B,M)`."""
        lengths = _lengths(self.terms.positive) + 1  # (B,U)
        of_met = (lengths[:, None] * progress.met).sum(2)
        return of_met + _count(progress.reached).amax(2)

    def _columns_that_start(self, size: int, memory: Memory) -> Tensor:
        """The columns of words' first tokens: `(X,)` or `(B,1,X)`, bool."""
        starts = self.starts if memory.shortlist is None else self.starts[memory.shortlist.index.words]
        copied = self.terms.copied_starts
        if copied is None:
            return pad(starts, (0, size - len(starts)))
        columns = torch.cat([starts.expand(len(copied), -1), copied], 1)
        return pad(columns, (0, size - columns.shape[1]))[:, None]

    def _begins_word(self, ids: Tensor) -> Tensor:
        """Whether tokens `(B,M)` begin a word, or end the sentence."""
        vocabulary = len(self.starts)
        begins = self.starts[ids.clamp(max=vocabulary - 1)] | (ids == EOS)
        copied = self.terms.copied_starts
        if copied is None:
            return begins
        places = (ids - vocabulary).clamp(min=0, max=copied.shape[1] - 1)  # in the source
        return torch.where(ids < vocabulary, begins, copied.gather(1, places))

    def _may_begin(self, met: Tensor) -> Tensor:
        """Constraints that may begin `(B,M,U)`: all, or in order those without an unmet one before them."""
        all_before_are_met = pad(met, (1, 0), value=True)[..., :-1].long().cumprod(-1).bool()
        return all_before_are_met | ~self.terms.in_order[:, None, None]

    def _next_tokens(self) -> Tensor:
        """The next token of every constraint `(N,U)`; PAD where it has none."""
        n_sentences, n_terms, _ = self.terms.positive.shape
        met = self.progress.met.view(n_sentences, -1, n_terms)  # (B,W,U)
        is_wanted = ~self.progress.met & self._may_begin(met).flatten(0, 1)  # (N,U)
        positive = pad(self._of_hypotheses(self.terms.positive), (0, 1), value=PAD)  # (N,U,L+1)
        count = _count(self.progress.reached)  # (N,U)
        token = positive.gather(2, count[..., None])[..., 0]
        return token.masked_fill(~is_wanted, PAD)

    def _is_enough(self, progress: ConstraintProgress) -> Tensor:
        """Whether all positive constraints are met if the sentence ends here `(...)`."""
        if progress.met.dim() == 2:
            positive = self._of_hypotheses(self.terms.positive)  # (N,U,L)
        else:
            positive = self.terms.positive[:, None]  # (B,1,U,L)
        return (progress.met | _is_whole(progress.reached, positive)).all(-1)

    def _of_hypotheses(self, rows: Tensor) -> Tensor:
        """Repeats the row of each sentence `(B,*)` for its hypotheses: `(N,*)`."""
        return rows.repeat_interleave(len(self.progress.met) // len(rows), 0)


def _rows(parents: Tensor, width: int) -> Tensor:
    """The rows of hypotheses that are numbered within their sentences, `(B,M)`."""
    first_rows = torch.arange(len(parents), device=parents.device)[:, None] * width
    return parents + first_rows


def _lengths(ids: Tensor) -> Tensor:
    """Tokens of each constraint `(...,L)`."""
    return (ids != PAD).sum(-1)


def _extended(reached: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
    """What was reached `(B,M,*,L)` of constraints `(B,1,*,L)`, after one more token each `(B,M)`."""
    has_tokens_before = pad(reached[..., :-1], (1, 0), value=True)
    is_next = (ids == tokens[..., None, None]) & (ids != PAD)
    return has_tokens_before & is_next


def _count(reached: Tensor) -> Tensor:
    """How many tokens of each constraint `(...,U,L)` the hypothesis ends with."""
    counts = torch.arange(1, reached.shape[-1] + 1, device=reached.device)
    return (reached * counts).amax(-1)


def _is_whole(reached: Tensor, ids: Tensor) -> Tensor:
    """Whether the hypothesis ends with all tokens of each constraint, `(...,U)`."""
    is_last = pad(ids, (0, 1), value=PAD)[..., 1:] == PAD
    return (reached & is_last).any(-1)


def _rank_in_bank(bank: Tensor, counts: Tensor) -> Tensor:
    """How many candidates before it, of those that count, are in the bank of each `(B,M)`; best first."""
    is_same_bank = bank[:, :, None] == bank[:, None, :]
    return (is_same_bank & counts[:, None, :]).tril(-1).sum(2)
