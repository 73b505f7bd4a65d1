"""Beam search for a batch: the step that is repeated until all sentences are done.

A step reads the last token of each hypothesis, and considers the 2K best continuations of each sentence's K hypotheses.
Among the K best, those that end in EOS are finished; the K best continuations that do not end in EOS survive. Ties are
broken by parent, the better one first, and then by token id, the smaller one first. The sentences in a batch therefore
do not influence each other, except that sums may be rounded differently in batches of different sizes. All decisions
are made on the device, so that the host never waits for it.

Sampling uses the same step, but draws the continuations instead of choosing the best ones.

`nmtkit.decoding.search_state` creates the state before the first step, `nmtkit.decoding.rules` has the rules, and
`nmtkit.decoding.engine` batches the sentences.

Notation as in `nmtkit/models/base.py`, and:

    W  hypotheses per sentence in this step: 1 in the first step, K in all others; N = B*W
    C  candidates per sentence and step: 2K, so that K remain even if K of them end; K when sampling
    G  groups of diverse beam search
    X  columns of the scores in a step: the target vocabulary or the words of a shortlist, plus the words that can be
       copied

A penalty can guide the choice of continuations in a step, count towards the ranking scores of finished hypotheses, or
do both. A step is called guided if a penalty lowers the scores by which it chooses continuations. No penalty changes
the log-probabilities that hypotheses report.

    penalty                      guides the choice in a step            counts in the ranking
    length penalty               no: all candidates are equally long    divides the log-probability
    coverage penalty, gnmt       no                                     is added
    coverage penalty, summary    yes, except when sampling              is added
    repetition penalty           yes                                    is added to the log-probability
    diversity penalty            yes                                    no
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import Batch, Rows
from nmtkit.data.tokenizers.vocabulary import EOS, PAD
from nmtkit.decoding.candidates import BLOCK, Candidates, best_candidates
from nmtkit.decoding.constraints import Terms
from nmtkit.decoding.rules import (
    INFINITY,
    NO_TARGET_TOKENS,
    NO_TOKEN,
    LiveHypotheses,
    Rule,
    TargetTokens,
    apply_rules,
)
from nmtkit.decoding.sampling import sample_step
from nmtkit.decoding.scorers import (
    CoveragePenalty,
    apply_repetition_penalty,
    coverage_score,
    source_words,
)
from nmtkit.decoding.search_state import HypothesisState, SearchState, SentenceState, start_search
from nmtkit.decoding.settings import SamplingConfig, SearchConfig
from nmtkit.decoding.shortlist import Shortlist
from nmtkit.layers.kernels import block_maxima
from nmtkit.models.abilities import as_copying, has_source_end, predicts_by_softmax
from nmtkit.models.base import Decoder, ModelOutput

MANY_LOGITS = 1 << 17
"""Minimum number of logits at which ranking without the softmax is faster than ranking with it."""
DIVERSITY_STRENGTH = 0.5
"""Penalty on a word in diverse beam search, per hypothesis of an earlier group that chose the word in this step."""


@dataclass(frozen=True)
class StepResult(Rows):
    """Result of a step, kept until the hypotheses of its sentences have been read."""

    candidates: Candidates
    tokens: Tensor
    """Extended id of each candidate's token `(B,C)`."""
    ranking: Tensor
    """Ranking scores of the candidates, `(B,C)`."""
    attention: Tensor | None
    """Attention of the hypotheses that the step continues `(B,K,*)`; in the first step, all K rows are the same. None
    if attention is not needed."""
    copy_gate: Tensor | None
    """Copy gate of the hypotheses that the step continues `(B,K,1)`; None if the model does not copy or attention is
    not needed."""


@dataclass(frozen=True)
class Continuations:
    """Scores of all continuations of the N hypotheses, after the rules have been applied."""

    values: Tensor
    """Log-probabilities `(N,X)`, or logits if `log_sums` is set."""
    log_sums: Tensor | None = None
    """Log-sum-exp of the logits before the rules were applied, `(N,)`; None if the values are log-probabilities."""
    own_log_probs: Tensor | None = None
    """The model's own log-probabilities `(N,X)`; None unless the search is observed."""
    block_maxima: Tensor | None = None
    """Maxima of the values in blocks of `BLOCK` columns `(N,blocks)`; None if they have not been computed. Always None
    in guided steps, because the penalties would change the maxima."""


@dataclass(frozen=True)
class ObservedStep:
    """What an observer sees of a step; see `BeamSearch.observed_by`."""

    live: LiveHypotheses
    """The hypotheses that the step continued."""
    scores: Tensor
    """Their log-probabilities `(B,W)`."""
    rules: tuple[Rule, ...]
    """The rules of the step, in the order in which they were applied."""
    rule_names: tuple[str, ...]
    """The name of each rule."""
    own_log_probs: Tensor
    """The model's own log-probabilities of all continuations `(N,X)`."""
    values: Tensor
    """Their scores after applying the rules `(N,X)`: minus infinity for forbidden continuations."""
    result: StepResult
    """The candidates that the step chose."""
    done: Tensor
    """Whether each sentence is done after the step, `(B,)`, bool."""
    limits: list[int]
    """Length limits of the sentences."""


Observer = Callable[[ObservedStep], None]


class BeamSearch:
    """Searches with one model and one set of settings.

    Args:
        model: any model, in eval mode; the search does not change it.
        config: the search settings.
        n_best: number of hypotheses to return for each sentence, at most `config.n_hypotheses`.
        need_attention: whether to return attention and p_gen.
        shortlist: candidate translations of the source words, on the model's device. Each sentence is restricted to the
            candidates for its words; without a shortlist it may use the whole vocabulary.
        tokens: properties of the target tokens that the rules of this search need.

    Raises:
        RecipeError: the settings are not compatible with the model, the shortlist or `n_best`.
    """

    def __init__(
        self,
        model: Decoder,
        config: SearchConfig,
        n_best: int = 1,
        need_attention: bool = False,
        shortlist: Shortlist | None = None,
        tokens: TargetTokens = NO_TARGET_TOKENS,
    ) -> None:
        if n_best > config.n_hypotheses:
            key = config.size_key
            raise RecipeError(
                f"n_best is {n_best}, but {key} is only {config.n_hypotheses}: raise {key} or lower n_best"
            )
        if config.coverage_penalty and not model.has_attention:
            raise RecipeError(
                "coverage_penalty: this model has no attention, which the penalty requires; set coverage_penalty to 0"
            )
        if config.rules and shortlist is not None:
            names = " and ".join(config.rules)
            raise RecipeError(
                f"search.rules: {names} cannot be combined with a shortlist; remove the rule or the shortlist"
            )
        self.model = model
        self.config = config
        self.sampling = config if isinstance(config, SamplingConfig) else None
        self.n_best = n_best
        self.need_attention = need_attention
        self.shortlist = shortlist
        self.length_penalty = config.build_length_penalty()
        self.coverage_penalty = config.build_coverage_penalty()
        self.is_guided_by_coverage = False
        """Whether the coverage penalty guides the choice of candidates."""
        if self.coverage_penalty is not None and self.sampling is None:
            self.is_guided_by_coverage = self.coverage_penalty.guides_choice
        self.is_guided = (
            self.is_guided_by_coverage or config.repetition_penalty > 1 or config.n_groups > 1
        )
        """Whether any penalty guides the choice of candidates."""
        self.device = next(model.parameters(), torch.empty(0)).device
        self.tokens = replace(tokens, device=self.device)
        self._observer: Observer | None = None

    def begin(self, batch: Batch) -> SearchState:
        """Returns the state before the first step, with one empty hypothesis for each sentence of a batch.

        If the batch is on the CPU, its values are read there, so that the host does not wait for an accelerator.

        Raises:
            RecipeError: the batch has terms, a prefix or a source that this search does not support.
        """
        return start_search(self, batch)

    def observed_by(self, observer: Observer) -> "BeamSearch":
        """Returns the same search with an observer, which is called at the end of each step.

        The results of the search do not change. Its steps cannot be captured as CUDA graphs.
        """
        search = copy(self)
        search._observer = observer
        return search

    # ------------------------------------------------------------------------------------------------------ the step

    def step(self, state: SearchState) -> StepResult:
        """Takes one step for every sentence, and advances `state` to the next position.

        A step can be captured as a CUDA graph, so nothing here may read a value from the device, and no tensor size may
        depend on such a value. All tensors of the state are replaced with new tensors that share no memory with the old
        ones. Only the cache is written in place, at the current position.
        """
        config = self.config
        sentences = state.sentences
        memory = sentences.memory
        terms = _find_terms(sentences.rules)

        # 1. The model reads the last token of each hypothesis.
        output, model_state = self.model.advance(
            sentences.tokens.flatten(),
            state.hypotheses.model,
            memory,
            cache=state.cache,
            need_attention=self.need_attention or self.coverage_penalty is not None,
        )

        # 2. Coverage, and the coverage penalties of the hypotheses, which are zero or less.
        coverage = None  # (N,S)
        coverage_scores = None  # (B,W)
        if self.coverage_penalty is not None:
            coverage = self._add_to_coverage(state.hypotheses.coverage, output)  # (N,S)
            coverage_scores = self._coverage_scores(
                self.coverage_penalty, coverage, sentences
            )  # (B,W)

        # 3. The scores of all continuations after applying the rules, and the scores that guide the choice among them.
        continuations, live = self._score_continuations(state, output)
        divisor = self._candidate_divisors(state)  # (B,1)
        guided_values, parent_scores = self._guide_choice(
            state, continuations, coverage_scores, divisor
        )  # guided_values: (N,X), parent_scores: (B,W)

        # 4. The best continuations of each sentence.
        candidates, diversity_penalties = self._choose_candidates(
            state, terms, guided_values, parent_scores, block_maxima=continuations.block_maxima
        )  # diversity_penalties: (B,K)
        token_penalties = None  # (B,C): repetition penalty of each last token, zero or less
        if self.is_guided:
            candidates, token_penalties = restore_model_scores(
                candidates,
                log_probs=continuations.values,
                guided_values=guided_values,
                parent_scores=sentences.scores,
            )  # token_penalties: (B,C)

        # 5. At the length limit, hypotheses may be forced to end with an EOS whose log-probability is not counted.
        if config.effective_at_limit == "end":
            candidates, token_penalties = self._end_at_limit(
                state, terms, candidates, token_penalties
            )
        tokens = memory.ids_of(candidates.columns)  # (B,C)

        # 6. Ranking scores: the log-probability divided by the length penalty, plus the coverage penalty. The bound in
        #    `_end_sentences` and `ranking_score` in `nmtkit.decoding.hypotheses` use the same formula.
        penalized, repetition_penalties = self._add_repetition_penalties(
            sentences, candidates, token_penalties
        )  # (B,C), (B,K)
        ranking = penalized / divisor  # (B,C)
        if coverage_scores is not None:
            ranking = ranking + coverage_scores.gather(1, candidates.parents)  # (B,C)
        if terms is not None:
            ranking = terms.prefer_met_candidates(
                parents=candidates.parents, tokens=tokens, scores=candidates.scores, ranking=ranking
            )  # (B,C)

        # 7. The sentences after the step: the new tokens of their hypotheses, and which sentences are done.
        next_sentences = replace(
            sentences,
            tokens=tokens.gather(1, candidates.survivors),
            repetition_penalties=repetition_penalties,
            diversity_penalties=diversity_penalties,
        )
        next_sentences = self._end_sentences(state, next_sentences, candidates, ranking=ranking)

        # 8. The new beam at the next position: each hypothesis inherits the state of its parent.
        hypotheses = replace(state.hypotheses, model=model_state, coverage=coverage)
        parents = candidates.parents.gather(1, candidates.survivors)  # (B,K)
        next_tokens = next_sentences.tokens  # (B,K)
        state.hypotheses = self._advance_beam(state, hypotheses, parents, tokens=next_tokens)
        rules = tuple(rule.advance(parents, next_tokens) for rule in sentences.rules)
        state.sentences = replace(next_sentences, rules=rules)
        n_sentences = len(ranking)
        result = StepResult(
            candidates=candidates,
            tokens=tokens,
            ranking=ranking,
            attention=self._for_result(output.attention, n_sentences),
            copy_gate=self._for_result(output.copy_gate, n_sentences),
        )
        if self._observer is not None:
            self._observer(self._observed(state, sentences, live, continuations, result))
        return result

    def _candidate_divisors(self, state: SearchState) -> Tensor:
        """Returns the length penalty of the candidates `(B,1)`, which have one more token than their parents."""
        n_written = state.sentences.tokens_after_prompt(
            state.cache.position, maximum=len(state.divisors) - 1
        )  # (B,)
        return state.divisors.index_select(0, n_written)[:, None]

    def _guide_choice(
        self,
        state: SearchState,
        continuations: Continuations,
        coverage_scores: Tensor | None,
        divisor: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Lowers the scores of the continuations and of their parents by the penalties that guide the choice.

        Args:
            state: the state of the search.
            continuations: the scores after applying the rules.
            coverage_scores: the coverage penalty of each parent `(B,W)`, zero or less; None without one.
            divisor: the length penalty of the candidates `(B,1)`.

        Returns:
            The scores of the continuations `(N,X)` and of their parents `(B,W)`. The sum of both guides the choice.
        """
        values = continuations.values  # (N,X)
        sentences = state.sentences
        parent_scores = sentences.scores  # (B,W)
        if continuations.log_sums is not None:
            # log p = logit - log_sum. Subtracting log_sum from the parent's score covers all of its continuations.
            log_sums = continuations.log_sums.view(parent_scores.shape)  # (B,W)
            parent_scores = parent_scores - log_sums  # (B,W)
        if sentences.repetition_penalties is not None:
            assert state.history is not None
            history = sentences.memory.columns_of(state.history)  # (N,t)
            values = apply_repetition_penalty(
                values, history, self.config.repetition_penalty
            )  # (N,X)
            parent_scores = parent_scores + sentences.repetition_penalties  # (B,W)
        if self.is_guided_by_coverage:
            assert coverage_scores is not None
            # The ranking adds the coverage penalty after dividing by the divisor, so the penalty is multiplied by the
            # divisor here.
            parent_scores = parent_scores + coverage_scores * divisor  # (B,W)
        return values, parent_scores

    def _choose_candidates(
        self,
        state: SearchState,
        terms: Terms | None,
        values: Tensor,
        parent_scores: Tensor,
        block_maxima: Tensor | None,
    ) -> tuple[Candidates, Tensor | None]:
        """Chooses the candidates of a step by diverse, constrained or plain beam search, or by sampling.

        Args:
            state: the state of the search.
            terms: the terms of the sentences, or None.
            values: scores of all continuations `(N,X)`.
            parent_scores: scores of their parents `(B,W)`.
            block_maxima: see `Continuations`.

        Returns:
            The candidates, and the diversity penalties of the survivors `(B,K)`, or None if there is only one group.
        """
        sentences = state.sentences
        beam_size = self.config.n_hypotheses
        if sentences.diversity_penalties is not None:
            candidates, token_penalties = diverse_candidates(
                log_probs=values,
                scores=parent_scores + sentences.diversity_penalties,
                beam_size=beam_size,
                n_groups=self.config.n_groups,
            )  # token_penalties: (B,C)
            parent_penalties = sentences.diversity_penalties.gather(1, candidates.parents)  # (B,C)
            penalties = parent_penalties + token_penalties  # (B,C)
            return candidates, penalties.gather(1, candidates.survivors)
        if terms is not None:
            candidates = terms.choose(
                log_probs=values, scores=parent_scores, beam_size=beam_size, memory=sentences.memory
            )
        elif self.sampling is not None:
            candidates = sample_step(
                log_probs=values,
                scores=parent_scores,
                lines=sentences.number,
                positions=state.cache.position,
                config=self.sampling,
                memory=sentences.memory,
            )
        else:
            candidates = best_candidates(
                log_probs=values,
                scores=parent_scores,
                beam_size=beam_size,
                block_maxima=block_maxima,
            )
        return candidates, None

    def _end_at_limit(
        self,
        state: SearchState,
        terms: Terms | None,
        candidates: Candidates,
        token_penalties: Tensor | None,
    ) -> tuple[Candidates, Tensor | None]:
        """Ends the hypotheses of sentences at their length limit; returns the new candidates and token penalties."""
        sentences = state.sentences
        is_last = (state.cache.position >= sentences.last_position)[:, None]  # (B,1)
        scores = sentences.scores  # (B,W)
        if terms is not None:
            scores = terms.prefer_met_hypotheses(scores)  # (B,W)
        if token_penalties is not None:
            token_penalties = token_penalties.masked_fill(is_last, 0.0)  # (B,C)
        return end_at_limit(is_last, candidates, scores), token_penalties

    def _add_repetition_penalties(
        self, sentences: SentenceState, candidates: Candidates, token_penalties: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Adds the repetition penalties of all tokens of each candidate to its log-probability.

        Returns:
            The sums `(B,C)`, and the penalties of the survivors `(B,K)` or None without a repetition penalty.
        """
        if sentences.repetition_penalties is None:
            return candidates.scores, None
        assert token_penalties is not None
        parent_penalties = sentences.repetition_penalties.gather(1, candidates.parents)  # (B,C)
        penalties = parent_penalties + token_penalties  # (B,C)
        return candidates.scores + penalties, penalties.gather(1, candidates.survivors)

    def _add_to_coverage(self, coverage: Tensor | None, output: ModelOutput) -> Tensor:
        """Returns the sum of all attention so far `(N,S)`, always as a new tensor that shares no memory with others."""
        assert output.attention is not None, "a coverage penalty requires attention"
        if coverage is None:
            return output.attention.clone()
        return output.attention + coverage

    def _coverage_scores(
        self, penalty: CoveragePenalty, coverage: Tensor, sentences: SentenceState
    ) -> Tensor:
        """Returns the coverage penalty of each hypothesis `(B,W)`, zero or less, given its coverage `(N,S)`."""
        words = sentences.memory.mask  # (B,S)
        if has_source_end(self.model):
            words = source_words(words)  # (B,S)
        words = words[:, None]  # (B,1,S)
        n_sentences, width = sentences.scores.shape
        coverage = coverage.view(n_sentences, width, -1)  # (B,W,S)
        return coverage_score(penalty, coverage, words)

    def _may_skip_softmax(self, sentences: SentenceState) -> bool:
        """Returns whether it is possible, and faster, to find the best continuations without the softmax.

        The log-softmax subtracts the same number from all logits of a hypothesis, so `step` can subtract it from the
        score of the hypothesis instead.
        """
        n_logits = sentences.scores.numel() * self.model.sizes["tgt"]
        if n_logits < MANY_LOGITS or not predicts_by_softmax(self.model):
            return False
        if self.sampling is not None:
            return False
        return all(rule.effect != "scores" for rule in sentences.rules)

    def _score_continuations(
        self, state: SearchState, output: ModelOutput
    ) -> tuple[Continuations, LiveHypotheses]:
        """Returns the scores of all continuations after applying the rules, and the hypotheses as the rules saw them.

        The scores may be logits: see `_may_skip_softmax`.
        """
        memory = state.sentences.memory
        rules = state.sentences.rules
        log_sums = None  # (N,)
        maxima = None  # (N,blocks)
        if self.is_guided or not self._may_skip_softmax(state.sentences):
            values = self.model.predict(output, memory)  # (N,X)
        else:
            values = self.model.logits(output, memory)  # (N,V)
            log_sums, maxima = block_maxima(values, BLOCK)
            if output.copy_gate is not None:
                copying = as_copying(self.model)
                assert copying is not None, "a model with a copy gate must be able to copy"
                log_normalizer = log_sums[:, None]  # (N,1)
                values = copying.copied(
                    values, output, memory, log_normalizer=log_normalizer
                )  # (N,X)
                log_sums = None
                maxima = None
        own_log_probs = None  # (N,X)
        if self._observer is not None:
            own_log_probs = values.clone() if log_sums is None else values - log_sums[:, None]

        live = self._live_hypotheses(state, values)
        values = apply_rules(rules, values, live)  # (N,X) or (N,V)
        if maxima is not None and all(rule.effect == "special_tokens" for rule in rules):
            # All special tokens are in the first block, so only the maximum of that block can have changed.
            first_block = values[:, :BLOCK]  # (N,BLOCK)
            maxima[:, 0] = first_block.amax(1)
        else:
            maxima = None  # any block may have lost its maximum
        continuations = Continuations(
            values, log_sums, own_log_probs=own_log_probs, block_maxima=maxima
        )
        return continuations, live

    def _live_hypotheses(self, state: SearchState, log_probs: Tensor) -> LiveHypotheses:
        """Returns the hypotheses as rules see them; `log_probs` `(N,X)` are the scores before any rule is applied."""
        sentences = state.sentences
        memory = sentences.memory
        position = state.cache.position  # (B,)
        width = sentences.scores.shape[1]
        history = None
        if state.history is not None and any(rule.reads_history for rule in sentences.rules):
            history = memory.columns_of(state.history)  # (N,t)
        forced = sentences.forced_token(position)  # (B,)
        forced_log_probs = None
        if forced is not None:
            forced = forced.repeat_interleave(width, 0)  # (N,)
            forced_ids = forced.clamp(min=PAD)  # (N,): NEW_WORD, which is negative, is not a token
            columns = memory.columns_of(forced_ids)  # (N,)
            forced_log_probs = log_probs.gather(1, columns[:, None])  # (N,1)
        return LiveHypotheses(
            position=position,
            last_position=sentences.last_position,
            width=width,
            memory=memory,
            history=history,
            forced=forced,
            forced_log_probs=forced_log_probs,
        )

    def _end_sentences(
        self, state: SearchState, sentences: SentenceState, candidates: Candidates, ranking: Tensor
    ) -> SentenceState:
        """Updates which sentences are done, and sets the scores of their hypotheses to minus infinity.

        `sentences` already contains the tokens and penalties after this step, but the cache is still at the step's
        position.

        The setting `stop` decides when a sentence is done. With `first_k`, K hypotheses must be finished. With `exact`,
        `n_best` hypotheses must be finished, and no unfinished hypothesis may be able to overtake the `n_best`-th best
        of them, even if all its tokens up to the length limit had a probability of 1. With `huggingface`, K hypotheses
        must be finished, and no unfinished hypothesis may be better, at its current length, than the K-th best of them.
        A sentence is also done at its length limit, or if no continuation is left.
        """
        n_groups = self.config.n_groups
        position = state.cache.position  # (B,)
        ended_in_groups = candidates.ended.view(len(ranking), n_groups, -1)  # (B,G,C/G)
        n_finished = sentences.n_finished + ended_in_groups.sum(2)  # (B,G)
        unfinished_scores = candidates.survivor_scores  # (B,K)
        if sentences.repetition_penalties is not None:
            unfinished_scores = unfinished_scores + sentences.repetition_penalties  # (B,K)
        best_unfinished = unfinished_scores.amax(1)  # (B,)
        best_finished = sentences.best_finished  # (B,n_best) or (B,K)
        if best_finished is None:  # first_k
            is_satisfied = n_finished >= self.config.n_hypotheses // n_groups  # (B,G)
        else:
            ended_ranking = ranking.masked_fill(~candidates.ended, -INFINITY)  # (B,C)
            all_finished = torch.cat([best_finished, ended_ranking], 1)  # (B,n_best+C) or (B,K+C)
            n_compared = best_finished.shape[1]
            best_finished, _ = all_finished.topk(n_compared, 1)  # (B,n_best) or (B,K)
            is_exact = self.config.effective_stop == "exact"
            compared_position = sentences.last_position if is_exact else position  # (B,)
            n_written = sentences.tokens_after_prompt(
                compared_position, maximum=len(state.divisors) - 1
            )  # (B,)
            bound = best_unfinished / state.divisors.index_select(0, n_written)  # (B,)
            is_satisfied = (best_finished[:, -1] >= bound)[:, None]  # (B,1)
        is_at_limit = sentences.last_position <= position  # (B,)
        has_none_left = best_unfinished == -INFINITY  # (B,)
        done = sentences.done | is_satisfied.all(1) | is_at_limit | has_none_left  # (B,)

        # Hypotheses are not continued if their group is satisfied or their sentence is done.
        group_done = done[:, None]  # (B,1)
        if n_groups > 1:
            group_done = group_done | is_satisfied  # (B,G)
        scores = candidates.survivor_scores.view(*group_done.shape, -1)  # (B,G,K/G) or (B,1,K)
        scores = scores.masked_fill(group_done[:, :, None], -INFINITY)  # (B,G,K/G) or (B,1,K)
        scores = scores.flatten(1)  # (B,K)
        return replace(
            sentences, scores=scores, done=done, n_finished=n_finished, best_finished=best_finished
        )

    def _advance_beam(
        self, state: SearchState, hypotheses: HypothesisState, parents: Tensor, tokens: Tensor
    ) -> HypothesisState:
        """Advances the cache; returns the state of the new hypotheses with the given `parents` and `tokens` `(B,K)`."""
        width = parents.shape[1]
        rows = state.cache.parent_rows(parents)  # (N,)
        if width == 1:  # a single hypothesis continues itself, so nothing moves
            state.cache.next_step(None, width)
        else:
            state.cache.next_step(rows, width)
            hypotheses = hypotheses.select(rows)
        history = hypotheses.history  # (N,*)
        if history is not None:
            if history.shape[1] < state.cache.length - 1:
                history = pad(history, (0, 1), value=NO_TOKEN)  # (N,*)
            last = (state.cache.position - 1).repeat_interleave(width)[:, None]  # (N,1)
            history = history.scatter(1, last, tokens.view(-1, 1))  # (N,*)
        return replace(hypotheses, history=history)

    def _for_result(self, tensor: Tensor | None, n_sentences: int) -> Tensor | None:
        """Returns the attention or the copy gate `(N,*)` in the shape `(B,K,*)`; None if attention is not needed."""
        if tensor is None or not self.need_attention:
            return None
        size = tensor.shape[1]
        by_sentence = tensor.view(n_sentences, -1, size)  # (B,W,*)
        beam_size = self.config.n_hypotheses
        return by_sentence.expand(-1, beam_size, -1)

    def _observed(
        self,
        state: SearchState,
        sentences: SentenceState,
        live: LiveHypotheses,
        continuations: Continuations,
        result: StepResult,
    ) -> ObservedStep:
        """Returns what an observer sees of a step; `sentences` are those before it, `state` is the state after it."""
        assert continuations.own_log_probs is not None
        return ObservedStep(
            live=live,
            scores=sentences.scores,
            rules=sentences.rules,
            rule_names=state.rule_names,
            own_log_probs=continuations.own_log_probs,
            values=continuations.values,
            result=result,
            done=state.sentences.done,
            limits=state.limits,
        )


# ----------------------------------------------------------------------------------------------- parts of the step


def diverse_candidates(
    log_probs: Tensor, scores: Tensor, beam_size: int, n_groups: int
) -> tuple[Candidates, Tensor]:
    """Chooses the candidates of diverse beam search, group by group; each of the G groups has a beam of size K/G.

    In each group, the score of a word is lowered by `DIVERSITY_STRENGTH` for every hypothesis of an earlier group that
    continues with this word: Vijayakumar et al. 2018, "Diverse Beam Search", algorithm 1 with Hamming diversity.

    Args:
        log_probs: scores of all continuations `(N,X)`.
        scores: scores of the hypotheses `(B,W)`. Columns g*K/G to (g+1)*K/G-1 belong to group g. In the first step, all
            groups continue the same single hypothesis.
        beam_size: K.
        n_groups: G.

    Returns:
        The candidates of all groups, one group after the other, and the penalty of each candidate `(B,C)`.
    """
    n_sentences, width = scores.shape
    group_size = beam_size // n_groups
    # Number of hypotheses that a group continues, which is 1 in the first step.
    group_width = max(1, width // n_groups)
    lowered = log_probs.view(n_sentences, width, -1).clone()  # (B,W,X)
    # Last words of the survivors of earlier groups.
    used_words = scores.new_zeros(n_sentences, 0, dtype=torch.long)  # (B,*)
    groups: list[Candidates] = []
    penalties: list[Tensor] = []
    for group in range(n_groups):
        first_parent = group * group_width if width > 1 else 0
        end_parent = first_parent + group_width
        group_log_probs = lowered[:, first_parent:end_parent].reshape(
            n_sentences * group_width, -1
        )  # (B*W/G,X)
        group_best = best_candidates(
            group_log_probs, scores[:, first_parent:end_parent], group_size
        )
        is_used = group_best.columns[:, :, None] == used_words[:, None]  # (B,2K/G,*)
        times_used = is_used.sum(2)  # (B,2K/G)
        penalties.append(times_used * -DIVERSITY_STRENGTH)
        # Convert indices within the group to indices within the sentence.
        first_candidate = 2 * group_size * group
        groups.append(
            replace(
                group_best,
                parents=group_best.parents + first_parent,
                survivors=group_best.survivors + first_candidate,
            )
        )

        # For later groups, lower the scores of the survivors' last words.
        is_missing = group_best.survivor_scores == -INFINITY  # (B,K/G): no continuation was left
        words = group_best.columns.gather(1, group_best.survivors)  # (B,K/G)
        surviving_words = words.masked_fill(is_missing, NO_TOKEN)  # (B,K/G)
        used_words = torch.cat([used_words, surviving_words], 1)  # (B,*)
        penalty = scores.new_full(words.shape, -DIVERSITY_STRENGTH)  # (B,K/G)
        penalty = penalty.masked_fill(is_missing, 0.0).to(lowered.dtype)  # (B,K/G)
        all_columns = words[:, None].expand(-1, width, -1)  # (B,W,K/G): equal for all hypotheses
        all_penalties = penalty[:, None].expand(-1, width, -1)  # (B,W,K/G)
        lowered.scatter_add_(2, all_columns, all_penalties)
    candidates = Candidates(
        columns=torch.cat([chosen.columns for chosen in groups], 1),
        parents=torch.cat([chosen.parents for chosen in groups], 1),
        scores=torch.cat([chosen.scores for chosen in groups], 1),
        ended=torch.cat([chosen.ended for chosen in groups], 1),
        survivors=torch.cat([chosen.survivors for chosen in groups], 1),
        survivor_scores=torch.cat([chosen.survivor_scores for chosen in groups], 1),
    )
    return candidates, torch.cat(penalties, 1).to(log_probs.dtype)


def end_at_limit(is_last: Tensor, candidates: Candidates, scores: Tensor) -> Candidates:
    """Returns new candidates in which all hypotheses of sentences at their last step end with EOS.

    The log-probability of this EOS is not counted.

    Args:
        is_last: whether each sentence takes its last step `(B,1)`.
        candidates: the candidates of the step.
        scores: log-probabilities of the hypotheses before the step `(B,W)`.
    """
    n_candidates = candidates.columns.shape[1]
    width = scores.shape[1]
    indices = torch.arange(n_candidates, device=scores.device)  # (C,)
    indices = indices.expand_as(candidates.columns)  # (B,C)
    # Candidate c continues hypothesis c. Candidates with an index of W or higher are not needed.
    parents = indices.clamp(max=width - 1)  # (B,C)
    end_scores = scores.gather(1, parents)  # (B,C)
    end_scores = end_scores.masked_fill(indices > parents, -INFINITY)  # (B,C)
    return Candidates(
        columns=candidates.columns.masked_fill(is_last, EOS),
        parents=torch.where(is_last, parents, candidates.parents),
        scores=torch.where(is_last, end_scores, candidates.scores),
        ended=torch.where(is_last, end_scores > -INFINITY, candidates.ended),
        survivors=candidates.survivors,
        survivor_scores=candidates.survivor_scores.masked_fill(is_last, -INFINITY),
    )


def restore_model_scores(
    candidates: Candidates, log_probs: Tensor, guided_values: Tensor, parent_scores: Tensor
) -> tuple[Candidates, Tensor]:
    """Replaces the penalized scores of candidates with the model's own log-probabilities.

    Args:
        candidates: the candidates of a guided step, with the scores by which they were chosen.
        log_probs: the model's own log-probabilities `(N,X)`.
        guided_values: the log-probabilities with penalties `(N,X)`.
        parent_scores: log-probabilities of the hypotheses, without penalties, `(B,W)`.

    Returns:
        The candidates, and the penalty that `guided_values` contains for the last token of each candidate `(B,C)`.
    """
    n_sentences = len(parent_scores)
    flat_indices = candidates.parents * log_probs.shape[1] + candidates.columns  # (B,C)
    token_log_probs = log_probs.reshape(n_sentences, -1).gather(1, flat_indices)  # (B,C)
    token_values = guided_values.reshape(n_sentences, -1).gather(1, flat_indices)  # (B,C)

    # Candidates for which no continuation was left keep minus infinity.
    is_missing = candidates.scores == -INFINITY  # (B,C)
    scores = parent_scores.gather(1, candidates.parents)  # (B,C)
    scores = scores + token_log_probs  # (B,C)
    scores = scores.masked_fill(is_missing, -INFINITY)  # (B,C)
    is_missing = candidates.survivor_scores == -INFINITY  # (B,K)
    survivor_scores = scores.gather(1, candidates.survivors)  # (B,K)
    survivor_scores = survivor_scores.masked_fill(is_missing, -INFINITY)  # (B,K)

    # Where the token is not possible, the difference would be NaN.
    is_possible = token_log_probs > -INFINITY  # (B,C)
    penalties = torch.where(is_possible, token_values - token_log_probs, 0.0)  # (B,C)
    return replace(candidates, scores=scores, survivor_scores=survivor_scores), penalties


def _find_terms(rules: tuple[Rule, ...]) -> Terms | None:
    """Returns the rule with the terms of the sentences, or None."""
    return next((rule for rule in rules if isinstance(rule, Terms)), None)
