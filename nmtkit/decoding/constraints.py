"""Lexically constrained beam search: terms that a translation must or must not contain.

Hokamp and Liu 2017, "Lexically Constrained Decoding for Sequence Generation Using Grid Beam Search". In every step, the
beam is divided among banks, as in Post and Vilar 2018, "Fast Lexically Constrained Decoding with Dynamic Beam
Allocation for Neural Machine Translation". All tensors have a fixed size, as in Hu et al. 2019, "Improved Lexically
Constrained Decoding for Translation and Monolingual Rewriting".

A positive constraint is met once all its tokens have been generated in a row and the next token, the boundary token,
begins a new word or ends the sentence. Otherwise the term "Hund" would be met by "Hunde", which begins with the same
tokens. The bank of a hypothesis is the number of constraint tokens that it contains, including boundary tokens. In
every step, the best hypothesis of the highest bank survives and can be continued into the next bank, so all constraints
are met in time.

Notation as in `nmtkit.decoding.beam_search`, and:

    U    largest number of positive constraints on a sentence
    R    largest number of negative constraints on a sentence
    L    largest number of tokens in a constraint
    M    number of candidates that a step considers: W * (U + 1) + 2 * K
    ...  B,W for hypotheses, or B,M for candidates
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from nmtkit.data.batches.batch import Batch, Rows
from nmtkit.data.tokenizers.vocabulary import EOS, PAD
from nmtkit.decoding.candidates import Candidates, top_continuations
from nmtkit.decoding.rules import (
    INFINITY,
    RULES,
    DemandingRule,
    LiveHypotheses,
    Rule,
    TargetTokens,
    WordStarts,
    forbid_columns,
)
from nmtkit.models.base import Memory

if TYPE_CHECKING:
    from nmtkit.decoding.settings import SearchConfig


@dataclass(frozen=True)
class Constraints(Rows):
    """The constraints on the translations of B sentences."""

    positive: Tensor
    """Extended ids of the terms that each translation must contain `(B,U,L)`, padded with PAD. If a sentence has fewer
    than U terms, the remaining rows are PAD."""
    in_order: Tensor
    """Whether the positive terms of each sentence must occur in this order `(B,)`, bool."""
    negative: Tensor
    """Extended ids of the terms that each translation must not contain `(B,R,*)`, padded in the same way."""
    copied_starts: Tensor | None = None
    """Whether each source token begins a word `(B,S)`, bool; None if the model does not copy."""

    def map_ids(self, change: Callable[[Tensor], Tensor]) -> "Constraints":
        """Returns the constraints with all ids converted by `change`, which maps `(B,*)` to `(B,*)`."""
        positive = change(self.positive.flatten(1)).view_as(self.positive)  # (B,U,L)
        negative = change(self.negative.flatten(1)).view_as(self.negative)  # (B,R,*)
        return Constraints(
            positive=positive,
            in_order=self.in_order,
            negative=negative,
            copied_starts=self.copied_starts,
        )


@dataclass(frozen=True)
class ConstraintProgress(Rows):
    """The progress towards meeting the constraints, for W hypotheses or M candidates of each sentence."""

    reached: Tensor
    """Entry l is True if the hypothesis ends with the first l+1 tokens of a positive constraint that is not met yet,
    `(B,W,U,L)`, bool."""
    met: Tensor
    """Whether each positive constraint is met, `(B,W,U)`, bool; True for padding."""
    negative: Tensor
    """Entry l is True if the hypothesis ends with the first l+1 tokens of a negative constraint, `(B,W,R,*)`, bool."""


@RULES.register("terms")
@dataclass(frozen=True)
class Terms(Rows, DemandingRule):
    """Forbids what would violate the constraints of the sentences, and chooses the candidates of a step.

    It forbids tokens that complete a negative constraint, and EOS until all positive constraints are met.
    """

    constraints: Constraints
    """The constraints, in which unknown words are numbered by source position."""
    word_starts: WordStarts
    """The tokens of the vocabulary that begin a word."""
    progress: ConstraintProgress
    """The progress of the W hypotheses of each sentence."""

    @classmethod
    @override
    def begin(cls, batch: Batch, config: "SearchConfig", tokens: TargetTokens) -> Rule | None:
        constraints = batch.terms
        if constraints is None:
            return None
        assert isinstance(constraints, Constraints)
        config.reject_constraints()
        positive = constraints.positive[:, None]  # (B,1,U,L)
        negative = constraints.negative[:, None]  # (B,1,R,*)
        progress = ConstraintProgress(
            reached=torch.zeros_like(positive, dtype=torch.bool),
            met=_lengths(positive) == 0,
            negative=torch.zeros_like(negative, dtype=torch.bool),
        )
        return cls(constraints, WordStarts.of(tokens), progress)

    @override
    def min_tokens(self) -> Tensor:
        """Returns the number of tokens in the positive constraints, including boundary tokens, `(B,)`."""
        lengths = _lengths(self.constraints.positive)  # (B,U)
        has_term = lengths > 0  # (B,U)
        return (lengths + has_term).sum(1).cpu()

    @override
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        is_early = ~self._all_met(self.progress).flatten()  # (N,)
        log_probs[:, EOS].masked_fill_(is_early, -INFINITY)
        if not self.constraints.negative.shape[1]:
            return log_probs

        # Whether the hypothesis ends with all tokens of a negative constraint except the last one.
        negative = live.per_hypothesis(self.constraints.negative)  # (N,R,L)
        lengths = _lengths(negative)  # (N,R)
        last = (lengths - 1).clamp(min=0).unsqueeze(2)  # (N,R,1)
        reached = self.progress.negative.flatten(0, 1)  # (N,R,L)
        reached_before = pad(reached[..., :-1], (1, 0), value=True)  # (N,R,L)
        is_near_end = reached_before.gather(2, last).squeeze(2)  # (N,R)

        last_tokens = negative.gather(2, last).squeeze(2)  # (N,R)
        columns = live.memory.columns_of(last_tokens)  # (N,R)
        has_term = lengths > 0  # (N,R)
        forbid_columns(log_probs, columns, is_near_end & has_term)
        return log_probs

    @override
    def advance(self, parents: Tensor, tokens: Tensor) -> "Terms":
        return replace(self, progress=self._advanced(parents, tokens))

    # ------------------------------------------------------------------------------------------ at the length limit

    def prefer_met_candidates(
        self, parents: Tensor, tokens: Tensor, scores: Tensor, ranking: Tensor
    ) -> Tensor:
        """Returns `ranking` with minus infinity for candidates that do not meet all positive constraints.

        If no candidate of a sentence meets them all, the sentence's ranking scores are unchanged.

        Args:
            parents: the parent of each candidate, below W, `(B,C)`.
            tokens: the id of each candidate's token `(B,C)`.
            scores: the log-probability of each candidate `(B,C)`.
            ranking: the ranking score of each candidate `(B,C)`.
        """
        # EOS is allowed only if all constraints are met, or if every other token is forbidden.
        is_end = tokens == EOS  # (B,C)
        is_met = self._all_met(self._advanced(parents, tokens)) | is_end  # (B,C)
        return _prefer(is_met, scores, ranking)

    def prefer_met_hypotheses(self, scores: Tensor) -> Tensor:
        """Returns `scores` `(B,W)` with minus infinity for hypotheses that do not meet all positive constraints.

        If no hypothesis of a sentence meets them all, the sentence's scores are unchanged.
        """
        return _prefer(self._all_met(self.progress), scores, scores)

    # ------------------------------------------------------------------------------------------- choosing candidates

    def choose(
        self, log_probs: Tensor, scores: Tensor, beam_size: int, memory: Memory
    ) -> Candidates:
        """Chooses the candidates of a step.

        For each hypothesis, a step considers the next token of every constraint and the best token that begins a word.
        In addition, it considers the 2K best of all other continuations of the sentence. A candidate that ends is
        finished if it is among the K best of its bank. If all candidates are in one bank, the result is the same as
        with `best_candidates`.

        Args:
            log_probs: scores of all continuations `(N,X)`.
            scores: scores of their parents `(B,W)`.
            beam_size: K.
            memory: the encoded sources.
        """
        values, flat_indices = self._continuations(
            log_probs, scores, beam_size, memory=memory
        )  # (B,M)
        n_columns = log_probs.shape[1]
        parents = flat_indices // n_columns  # (B,M)
        columns = flat_indices % n_columns  # (B,M)
        tokens = memory.ids_of(columns)  # (B,M)
        progress = self._advanced(parents, tokens)  # (B,M,...)
        bank = self._bank(progress)  # (B,M)
        is_possible = values > -INFINITY  # (B,M)
        is_end = columns == EOS  # (B,M)

        # Survivors: first the best candidate of each bank, beginning with the highest bank; then the second best of
        # each bank, and so on. Candidates that cannot survive get the last turn. Since the sorts are stable, candidates
        # with the same turn and bank remain sorted best first.
        can_survive = is_possible & ~is_end  # (B,M)
        turn = _rank_in_bank(bank, can_survive)  # (B,M)
        turn = turn.masked_fill(~can_survive, bank.shape[1])  # (B,M)
        _, by_bank = bank.sort(dim=1, stable=True, descending=True)  # (B,M)
        _, by_turn = turn.gather(1, by_bank).sort(dim=1, stable=True)  # (B,M)
        survivors = by_bank.gather(1, by_turn)[:, :beam_size]  # (B,K)

        # Finished hypotheses: each hypothesis has at most one candidate that ends.
        is_in_beam = _rank_in_bank(bank, is_possible) < beam_size  # (B,M)
        can_end = is_end & is_possible & is_in_beam  # (B,M)
        _, ending_first = can_end.sort(dim=1, stable=True, descending=True)  # (B,M)
        finished = ending_first[:, :beam_size]  # (B,K)

        chosen = torch.cat([survivors, finished], 1)  # (B,C): survivors have the indices 0 to K-1
        ended = can_end.gather(1, chosen)  # (B,C)
        # If fewer than K candidates survive, the remaining survivor places are filled with other candidates, some
        # of which may end.
        ended[:, :beam_size] = False
        chosen_scores = values.gather(1, chosen)  # (B,C)
        is_survivor = can_survive.gather(1, survivors)  # (B,K)
        return Candidates(
            columns=columns.gather(1, chosen),
            parents=parents.gather(1, chosen),
            scores=chosen_scores,
            ended=ended,
            survivors=torch.arange(beam_size, device=scores.device).expand_as(survivors),
            survivor_scores=chosen_scores[:, :beam_size].masked_fill(~is_survivor, -INFINITY),
        )

    def _continuations(
        self, log_probs: Tensor, scores: Tensor, beam_size: int, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """Returns scores and flat indices of the distinct continuations that a step considers `(B,M)`, best first."""
        n_sentences, width = scores.shape
        n_columns = log_probs.shape[1]

        # 1. The next token of every constraint and the best token that begins a word, for each hypothesis.
        next_columns = memory.columns_of(self._next_tokens().flatten(0, 1))  # (N,U)
        begins_word = self._columns_that_begin_words(n_columns, memory)  # (X,) or (B,1,X)
        by_sentence = log_probs.reshape(n_sentences, width, n_columns)  # (B,W,X)
        start_log_probs = by_sentence.masked_fill(~begins_word, -INFINITY)  # (B,W,X)
        best_start = start_log_probs.argmax(2).view(-1, 1)  # (N,1)
        preferred = torch.cat([next_columns, best_start], 1)  # (N,U+1)
        is_same = preferred[:, :, None] == preferred[:, None, :]  # (N,U+1,U+1)
        is_repeated = is_same.tril(-1).any(2)  # (N,U+1): whether it occurs in an earlier column
        is_excluded = is_repeated | (preferred == PAD)  # (N,U+1)
        preferred_log_probs = log_probs.gather(1, preferred)  # (N,U+1)
        preferred_log_probs = preferred_log_probs.masked_fill(is_excluded, -INFINITY)  # (N,U+1)
        preferred_values = preferred_log_probs.view(n_sentences, width, -1)  # (B,W,U+1)
        preferred_values = preferred_values + scores[:, :, None]  # (B,W,U+1)
        parents = torch.arange(width, device=scores.device)[:, None]  # (W,1)
        preferred_indices = preferred.view(n_sentences, width, -1)  # (B,W,U+1)
        preferred_indices = preferred_indices + parents * n_columns  # (B,W,U+1)

        # 2. The 2K best of all other continuations of the sentence.
        other_log_probs = log_probs.scatter(1, preferred, -INFINITY)  # (N,X)
        other_values, other_indices = top_continuations(
            other_log_probs, scores, 2 * beam_size
        )  # (B,2K)

        # 3. Both kinds, best first. They are sorted by flat index beforehand, so that ties are broken by index.
        values = torch.cat([preferred_values.flatten(1), other_values], 1)  # (B,M)
        flat_indices = torch.cat([preferred_indices.flatten(1), other_indices], 1)  # (B,M)
        flat_indices, by_index = flat_indices.sort(dim=1, stable=True)  # (B,M)
        values = values.gather(1, by_index)  # (B,M)
        values, by_value = values.sort(dim=1, stable=True, descending=True)  # (B,M)
        return values, flat_indices.gather(1, by_value)

    def _bank(self, progress: ConstraintProgress) -> Tensor:
        """Returns the number of constraint tokens in each candidate, including boundary tokens, `(B,M)`."""
        lengths = _lengths(self.constraints.positive) + 1  # (B,U)
        met_lengths = lengths[:, None] * progress.met  # (B,M,U)
        tokens_of_met = met_lengths.sum(2)  # (B,M)
        n_reached = _tokens_reached(progress.reached)  # (B,M,U)
        # Only the unmet constraint with the most tokens counts.
        tokens_of_unmet = n_reached.amax(2)  # (B,M)
        return tokens_of_met + tokens_of_unmet

    # ------------------------------------------------------------------------------------------------- progress

    def _advanced(self, parents: Tensor, tokens: Tensor) -> ConstraintProgress:
        """Returns the progress of M candidates of each sentence; `parents` and `tokens` `(B,M)` as in `advance`."""

        def select_parents(tensor: Tensor) -> Tensor:
            """Returns the entries `(B,M,...)` of the parents in a tensor `(B,W,...)`."""
            n_sentences, width = tensor.shape[:2]
            first_rows = torch.arange(n_sentences, device=tensor.device)[:, None] * width  # (B,1)
            rows = (parents + first_rows).flatten()  # (B*M,)
            selected = tensor.flatten(0, 1).index_select(0, rows)  # (B*M,...)
            return selected.view(*parents.shape, *tensor.shape[2:])

        before = self.progress.mapped(select_parents)  # (B,M,...)
        positive = self.constraints.positive[:, None]  # (B,1,U,L)
        negative = self.constraints.negative[:, None]  # (B,1,R,*)
        is_boundary = self._begins_word(tokens).unsqueeze(2)  # (B,M,1)
        is_complete = _is_complete(before.reached, positive)  # (B,M,U)
        met = before.met | (is_complete & is_boundary)  # (B,M,U)
        may_continue = ~met & self._may_begin(met)  # (B,M,U)
        reached = _extend(before.reached, positive, tokens)  # (B,M,U,L)
        return ConstraintProgress(
            reached=reached & may_continue[..., None],
            met=met,
            negative=_extend(before.negative, negative, tokens),
        )

    def _all_met(self, progress: ConstraintProgress) -> Tensor:
        """Returns whether all positive constraints would be met if the sentence ended here, `(B,W)` or `(B,M)`."""
        positive = self.constraints.positive[:, None]  # (B,1,U,L)
        return (progress.met | _is_complete(progress.reached, positive)).all(-1)

    def _columns_that_begin_words(self, n_columns: int, memory: Memory) -> Tensor:
        """Returns a mask of the columns whose tokens begin a word, bool: `(X,)`, or `(B,1,X)` if the model copies."""
        word_starts = self.word_starts.of_words(memory)  # (V,) or (V',)
        copied_starts = self.constraints.copied_starts  # (B,S)
        if copied_starts is None:
            n_others = n_columns - len(word_starts)
            return pad(word_starts, (0, n_others))
        n_sentences = len(copied_starts)
        begins_word = torch.cat([word_starts.expand(n_sentences, -1), copied_starts], 1)  # (B,V+S)
        n_others = n_columns - begins_word.shape[1]
        begins_word = pad(begins_word, (0, n_others))  # (B,X)
        return begins_word.unsqueeze(1)

    def _begins_word(self, ids: Tensor) -> Tensor:
        """Returns whether each token `(B,M)` begins a word or ends the sentence."""
        vocabulary_size = len(self.word_starts.mask)
        words = ids.clamp(max=vocabulary_size - 1)  # (B,M)
        begins_word = self.word_starts.mask[words] | (ids == EOS)  # (B,M)
        copied_starts = self.constraints.copied_starts  # (B,S)
        if copied_starts is None:
            return begins_word
        last_position = copied_starts.shape[1] - 1
        source_positions = (ids - vocabulary_size).clamp(min=0, max=last_position)  # (B,M)
        copy_begins_word = copied_starts.gather(1, source_positions)  # (B,M)
        return torch.where(ids < vocabulary_size, begins_word, copy_begins_word)

    def _may_begin(self, met: Tensor) -> Tensor:
        """Returns whether each constraint may begin `(B,M,U)`: if order matters, only once all earlier ones are met."""
        previous_is_met = pad(met, (1, 0), value=True)[..., :-1]  # (B,M,U)
        earlier_are_met = previous_is_met.long().cumprod(-1).bool()  # (B,M,U)
        return earlier_are_met | ~self.constraints.in_order[:, None, None]

    def _next_tokens(self) -> Tensor:
        """Returns each constraint's next token `(B,W,U)`; PAD if it has none left, or if it may not begin yet."""
        met = self.progress.met  # (B,W,U)
        may_continue = ~met & self._may_begin(met)  # (B,W,U)
        # A constraint whose tokens have all been generated gets PAD as its next token.
        positive = pad(self.constraints.positive, (0, 1), value=PAD)  # (B,U,L+1)
        positive = positive[:, None].expand(-1, met.shape[1], -1, -1)  # (B,W,U,L+1)
        n_reached = _tokens_reached(self.progress.reached)  # (B,W,U)
        next_tokens = positive.gather(3, n_reached.unsqueeze(3)).squeeze(3)  # (B,W,U)
        return next_tokens.masked_fill(~may_continue, PAD)


def _prefer(is_met: Tensor, scores: Tensor, ranking: Tensor) -> Tensor:
    """Sets `ranking` `(B,*)` to minus infinity where `is_met` `(B,*)` is not set.

    Sentences for which `is_met` is not set anywhere, except where `scores` `(B,*)` are minus infinity, are unchanged.
    """
    any_is_met = (is_met & (scores > -INFINITY)).any(1, keepdim=True)  # (B,1)
    return ranking.masked_fill(~is_met & any_is_met, -INFINITY)


def _lengths(ids: Tensor) -> Tensor:
    """Returns the number of tokens of each constraint `(...)`, from its ids `(...,L)`."""
    return (ids != PAD).sum(-1)


def _extend(reached: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
    """Returns `reached` `(B,M,*,L)` after one more token per hypothesis `(B,M)`, for constraints `ids` `(B,1,*,L)`."""
    has_tokens_before = pad(reached[..., :-1], (1, 0), value=True)  # (B,M,*,L)
    is_next = (ids == tokens[..., None, None]) & (ids != PAD)  # (B,M,*,L)
    return has_tokens_before & is_next


def _tokens_reached(reached: Tensor) -> Tensor:
    """Returns how many tokens of each constraint a hypothesis ends with `(...,U)`, given `reached` `(...,U,L)`."""
    counts = torch.arange(1, reached.shape[-1] + 1, device=reached.device)  # (L,)
    return (reached * counts).amax(-1)


def _is_complete(reached: Tensor, ids: Tensor) -> Tensor:
    """Returns whether a hypothesis ends with all tokens of each constraint `ids` `(...,U,L)`: `(...,U)`."""
    next_ids = pad(ids, (0, 1), value=PAD)[..., 1:]  # (...,U,L)
    is_last = next_ids == PAD  # (...,U,L)
    return (reached & is_last).any(-1)


def _rank_in_bank(bank: Tensor, is_counted: Tensor) -> Tensor:
    """Returns, for each candidate, the number of better candidates in the same bank, `(B,M)`.

    The candidates must be sorted best first. Only candidates for which `is_counted` `(B,M)` is set are counted.
    """
    is_same_bank = bank[:, :, None] == bank[:, None, :]  # (B,M,M)
    is_better = (is_same_bank & is_counted[:, None, :]).tril(-1)  # (B,M,M): only earlier candidates
    return is_better.sum(2)
