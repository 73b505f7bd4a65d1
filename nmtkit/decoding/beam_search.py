"""Beam search for a batch: how a search begins, and the step that is repeated until all sentences are done.

A step reads the last token of each hypothesis, and considers the 2K best continuations of each sentence's K hypotheses.
Among the K best, those that end in EOS are finished; the K best continuations that do not end in EOS survive. Ties are
broken by parent, the better one first, and then by token id, the smaller one first. The sentences in a batch therefore
do not influence each other, except that sums may be rounded differently in batches of different sizes. All decisions
are made on the device, so that the host never waits for it.

Sampling uses the same step, but draws the continuations instead of choosing the best ones.

If the batch has a `prompt`, hypotheses continue the prompt of their sentence. Prompts are read in one pass if the model
supports that. A prompt is not scored and does not count towards lengths and limits, but its n-grams may not be
repeated, and repeating its tokens incurs the repetition penalty.

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
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.core.device import send
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import NEW_WORD, Batch, CopySource, Rows
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.decoding.candidates import BLOCK, Candidates, best_candidates
from nmtkit.decoding.constraints import ConstrainedBeam, Constraints
from nmtkit.decoding.rules import (
    INFINITY,
    NO_TOKEN,
    CertainPrefix,
    ForbiddenTokens,
    ForcedPrefix,
    LiveHypotheses,
    MinLength,
    NoRepeatedNgrams,
    Rule,
    apply_rule,
)
from nmtkit.decoding.sampling import sample_step
from nmtkit.decoding.scorers import (
    CoveragePenalty,
    apply_repetition_penalty,
    coverage_score,
    source_words,
)
from nmtkit.decoding.search_state import PREFIX_NAME, HypothesisState, SearchState, SentenceState
from nmtkit.decoding.settings import SamplingConfig, SearchConfig, max_lengths, min_lengths
from nmtkit.decoding.shortlist import Shortlist
from nmtkit.layers.copying import renumber_by_position
from nmtkit.layers.kernels import block_maxima
from nmtkit.layers.kv_cache import INITIAL_LENGTH, KVCache
from nmtkit.models.abilities import (
    as_copying,
    has_source_end,
    predicts_by_softmax,
    reserve_positions,
    with_shortlist,
)
from nmtkit.models.base import Decoder, DecoderState, ModelOutput

MANY_LOGITS = 1 << 17
"""Minimum number of logits at which ranking without the softmax is faster than ranking with it."""
DIVERSITY_STRENGTH = 0.5
"""Penalty on a word in diverse beam search, per hypothesis of an earlier group that chose the word in this step."""


@dataclass(frozen=True)
class TokenClasses:
    """Properties of a model's tokens that some searches need; tensors are on the model's device."""

    word_starts: Callable[[], Tensor] | None = None
    """Function that returns a mask of the tokens that begin a word or are not part of one, `(V,)`, bool. It is called
    only for constraints and for prefixes with NEW_WORD."""
    rule: Rule | None = None
    """The rule named by `search.rule`."""


NO_TOKEN_CLASSES = TokenClasses()


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
    block_maxima: Tensor | None = None
    """Maxima of the values in blocks of `BLOCK` columns `(N,blocks)`; None if they have not been computed. Always None
    in guided steps, because the penalties would change the maxima."""


class BeamSearch:
    """Searches with one model and one set of settings.

    Args:
        model: any model, in eval mode; the search does not change it.
        config: the search settings.
        n_best: number of hypotheses to return for each sentence, at most `config.n_hypotheses`.
        need_attention: whether to return attention and p_gen.
        shortlist: candidate translations of the source words, on the model's device. Each sentence is restricted to the
            candidates for its words; without a shortlist it may use the whole vocabulary.
        token_classes: see `TokenClasses`.

    Raises:
        RecipeError: the settings are not compatible with the model or with `n_best`.
    """

    def __init__(
        self,
        model: Decoder,
        config: SearchConfig,
        n_best: int = 1,
        need_attention: bool = False,
        shortlist: Shortlist | None = None,
        token_classes: TokenClasses = NO_TOKEN_CLASSES,
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
        self.model = model
        self.config = config
        self.sampling = config if isinstance(config, SamplingConfig) else None
        self.n_best = n_best
        self.need_attention = need_attention
        self.shortlist = shortlist
        self.token_classes = token_classes
        self.length_penalty = config.build_length_penalty()
        self.coverage_penalty = config.build_coverage_penalty()
        self.device = next(model.parameters(), torch.empty(0)).device

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
        constraints = state.constraints

        # 1. The model reads the last token of each hypothesis.
        output, model_state = self.advance_model(state)

        # 2. Coverage, and the coverage penalties of the hypotheses, which are zero or less.
        coverage = None  # (N,S)
        coverage_scores = None  # (B,W)
        if self.coverage_penalty is not None:
            coverage = self._add_to_coverage(state.hypotheses.coverage, output)  # (N,S)
            coverage_scores = self._coverage_scores(
                self.coverage_penalty, coverage, sentences
            )  # (B,W)

        # 3. The scores of all continuations after applying the rules, and the scores that guide the choice among them.
        is_guided_by_coverage = self._is_guided_by_coverage()
        has_repetition_penalty = sentences.repetition_penalties is not None
        has_diversity = sentences.diversity_penalties is not None
        is_guided = is_guided_by_coverage or has_repetition_penalty or has_diversity
        needs_log_probs = is_guided or not self._may_skip_softmax(sentences)
        continuations = self._score_continuations(state, output, needs_log_probs)
        divisor = self._candidate_divisors(state)  # (B,1)
        parent_scores = sentences.scores  # (B,W)
        if continuations.log_sums is not None:
            # log p = logit - log_sum. Subtracting log_sum from the parent's score covers all of its continuations.
            log_sums = continuations.log_sums.view(parent_scores.shape)  # (B,W)
            parent_scores = parent_scores - log_sums  # (B,W)
        guided_values = continuations.values  # (N,X)
        if sentences.repetition_penalties is not None:
            assert state.history is not None
            history = memory.columns_of(state.history)  # (N,t)
            guided_values = apply_repetition_penalty(
                guided_values, history, config.repetition_penalty
            )  # (N,X)
            parent_scores = parent_scores + sentences.repetition_penalties  # (B,W)
        # The second condition follows from the first; only the type checker needs it.
        if is_guided_by_coverage and coverage_scores is not None:
            # The ranking adds the coverage penalty after dividing by the divisor, so the penalty is multiplied by the
            # divisor here.
            parent_scores = parent_scores + coverage_scores * divisor  # (B,W)

        # 4. The best continuations of each sentence.
        candidates, diversity_penalties = self._choose_candidates(
            state, guided_values, parent_scores, block_maxima=continuations.block_maxima
        )  # diversity_penalties: (B,K)
        token_penalties = None  # (B,C): repetition penalty of each last token, zero or less
        if is_guided:
            candidates, token_penalties = restore_model_scores(
                candidates,
                log_probs=continuations.values,
                guided_values=guided_values,
                parent_scores=sentences.scores,
            )  # token_penalties: (B,C)

        # 5. At the length limit, hypotheses may be forced to end with an EOS whose log-probability is not counted.
        if config.effective_at_limit == "end":
            candidates, token_penalties = self._end_at_limit(state, candidates, token_penalties)
        tokens = memory.ids_of(candidates.columns)  # (B,C)

        # 6. Ranking scores: the log-probability divided by the length penalty, plus the coverage penalty. The bound in
        #    `_end_sentences` and `ranking_score` in `nmtkit.decoding.hypotheses` use the same formula.
        penalized, repetition_penalties = self._add_repetition_penalties(
            sentences, candidates, token_penalties
        )  # (B,C), (B,K)
        ranking = penalized / divisor  # (B,C)
        if coverage_scores is not None:
            ranking = ranking + coverage_scores.gather(1, candidates.parents)  # (B,C)
        if constraints is not None:
            ranking = constraints.mask_unmet_candidates(
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
        state.hypotheses = self._advance_beam(
            state, hypotheses, parents=parents, tokens=next_sentences.tokens
        )
        state.sentences = next_sentences
        n_sentences = len(ranking)
        return StepResult(
            candidates=candidates,
            tokens=tokens,
            ranking=ranking,
            attention=self._for_result(output.attention, n_sentences),
            copy_gate=self._for_result(output.copy_gate, n_sentences),
        )

    def advance_model(self, state: SearchState) -> tuple[ModelOutput, DecoderState]:
        """Runs the model on the last token of each hypothesis; returns its output and its next state.

        Apart from writing the cache entries of the current position, this leaves `state` unchanged. The method may be
        called twice at the same position; `nmtkit.decoding.tracing` does so.
        """
        sentences = state.sentences
        return self.model.advance(
            sentences.tokens.flatten(),
            state.hypotheses.model,
            sentences.memory,
            cache=state.cache,
            need_attention=self.need_attention or self.coverage_penalty is not None,
        )

    def _candidate_divisors(self, state: SearchState) -> Tensor:
        """Returns the length penalty of the candidates `(B,1)`, which have one more token than their parents."""
        n_written = state.sentences.tokens_after_prompt(
            state.cache.position, maximum=len(state.divisors) - 1
        )  # (B,)
        return state.divisors.index_select(0, n_written)[:, None]

    def _choose_candidates(
        self, state: SearchState, values: Tensor, parent_scores: Tensor, block_maxima: Tensor | None
    ) -> tuple[Candidates, Tensor | None]:
        """Chooses the candidates of a step by diverse, constrained or plain beam search, or by sampling.

        Args:
            state: the state of the search.
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
        constraints = state.constraints
        if constraints is not None:
            candidates = constraints.choose(
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
        self, state: SearchState, candidates: Candidates, token_penalties: Tensor | None
    ) -> tuple[Candidates, Tensor | None]:
        """Ends the hypotheses of sentences at their length limit; returns the new candidates and token penalties."""
        sentences = state.sentences
        constraints = state.constraints
        is_last = (state.cache.position >= sentences.last_position)[:, None]  # (B,1)
        scores = sentences.scores  # (B,W)
        if constraints is not None:
            scores = constraints.mask_unmet_hypotheses(scores)  # (B,W)
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

    def _is_guided_by_coverage(self) -> bool:
        """Returns whether the coverage penalty guides the choice of candidates."""
        if self.coverage_penalty is None or self.sampling is not None:
            return False
        return self.coverage_penalty.guides_choice

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
        if self.sampling is not None or sentences.constraints is not None:
            return False
        return not any(rule.needs_log_probs for rule in sentences.rules)

    def _score_continuations(
        self, state: SearchState, output: ModelOutput, needs_log_probs: bool
    ) -> Continuations:
        """Returns the scores of all continuations after applying the rules.

        The scores are logits unless `needs_log_probs` is set or the model copies.
        """
        memory = state.sentences.memory
        if needs_log_probs:
            log_probs = self.model.predict(output, memory)  # (N,X)
            return Continuations(self.apply_rules(state, log_probs))
        logits = self.model.logits(output, memory)  # (N,V)
        log_sums, maxima = block_maxima(logits, BLOCK)  # (N,), (N,blocks)
        if output.copy_gate is not None:
            copying = as_copying(self.model)
            assert copying is not None, "a model with a copy gate must be able to copy"
            log_probs = copying.copied(
                logits, output, memory, log_normalizer=log_sums[:, None]
            )  # (N,X)
            return Continuations(self.apply_rules(state, log_probs))
        logits = self.apply_rules(state, logits)  # (N,V)
        keeps_other_tokens = all(rule.forbids_special_tokens_only for rule in state.sentences.rules)
        if not keeps_other_tokens:
            return Continuations(logits, log_sums)  # any block may have lost its maximum
        # All special tokens are in the first block, so only the maximum of that block can have changed.
        first_block = logits[:, :BLOCK]  # (N,BLOCK)
        maxima[:, 0] = first_block.amax(1)
        return Continuations(logits, log_sums, maxima)

    def apply_rules(self, state: SearchState, log_probs: Tensor) -> Tensor:
        """Returns log-probabilities or logits `(N,X)` after applying all rules; may overwrite `log_probs`."""
        rules = state.sentences.rules
        constraints = state.constraints
        live = self.live_hypotheses(state, log_probs)
        may_be_stuck = constraints is not None or any(rule.may_forbid_all for rule in rules)
        # (N,): the score of EOS before any rule is applied
        end = log_probs[:, EOS].clone() if may_be_stuck else None
        for rule in rules:
            log_probs = apply_rule(rule, log_probs=log_probs, live=live, end=end)  # (N,X)
        if constraints is not None and end is not None:
            constraints.forbid(
                log_probs, end=end, forced=live.forced, memory=state.sentences.memory
            )
        return log_probs

    def live_hypotheses(self, state: SearchState, log_probs: Tensor) -> LiveHypotheses:
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
        constraints = state.constraints
        width = parents.shape[1]
        rows = state.cache.parent_rows(parents)  # (N,)
        progress = None
        if constraints is not None:
            progress = constraints.advance(rows.view_as(parents), tokens)  # (B,K,...)
            progress = progress.mapped(lambda tensor: tensor.flatten(0, 1))  # (N,...)
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
        return replace(hypotheses, history=history, progress=progress)

    def _for_result(self, tensor: Tensor | None, n_sentences: int) -> Tensor | None:
        """Returns the attention or the copy gate `(N,*)` in the shape `(B,K,*)`; None if attention is not needed."""
        if tensor is None or not self.need_attention:
            return None
        size = tensor.shape[1]
        by_sentence = tensor.view(n_sentences, -1, size)  # (B,W,*)
        beam_size = self.config.n_hypotheses
        return by_sentence.expand(-1, beam_size, -1)

    def max_tokens(self, batch: Batch, columns: int) -> int:
        """Returns an upper bound on the length limit, including EOS, of sentences with `columns` source columns.

        `batch` only determines whether the sentences have source texts.
        """
        rule = self.token_classes.rule
        required = None
        if rule is not None:
            required = torch.tensor([rule.min_tokens_bound(columns)])  # (1,)
        config = applicable_limits(self.config, batch)
        limits = max_lengths(
            config, torch.tensor([columns]), prefix=None, required=required
        )  # (1,)
        return int(limits)

    # ----------------------------------------------------------------------------------------------------- the start

    def begin(self, batch: Batch) -> SearchState:
        """Returns the state before the first step, with one empty hypothesis for each sentence of a batch.

        If the batch is on the CPU, its values are read there, so that the host does not wait for an accelerator.
        """
        model = self.model
        config = self.config
        device = self.device
        host_batch = batch
        # Cloned, because sentences that are inserted later are written into these tensors.
        batch = batch.to(device).mapped(torch.clone)
        if model.config.copies:
            batch = number_copied_words(batch, model.sizes["tgt"])
        constraints = self._checked_constraints(batch)
        custom_rule = self._begin_custom_rule(batch)
        host_prompt_lengths = None  # (B,)
        if host_batch.prompt is not None:
            host_prompt_lengths = (host_batch.prompt != PAD).sum(1).cpu()  # (B,)
        limits = self._length_limits(host_batch, custom_rule, host_prompt_lengths)  # (B,)
        longest = int(limits.max())

        # 1. The encoded sources and the restrictions on target tokens.
        memory = model.encode(batch)
        shortlist_mask = None  # (B,V)
        if self.shortlist is not None:
            shortlist_mask = self._shortlist_mask(batch, self.shortlist)  # (B,V)
            memory = with_shortlist(model, memory, shortlist_mask)
        prompt = batch.prompt  # (B,P)
        if prompt is None:
            prompt = torch.zeros(batch.size, 0, dtype=torch.long, device=device)  # (B,0)
        prompt_lengths = (prompt != PAD).sum(1) if prompt.shape[1] else None  # (B,)
        has_new_word = host_batch.prefix is not None and bool((host_batch.prefix == NEW_WORD).any())
        needs_word_starts = constraints is not None or has_new_word
        word_starts = self._word_starts() if needs_word_starts else None  # (V,)
        named_rules = self._begin_rules(
            host_batch,
            prompt_lengths=prompt_lengths,
            word_starts=word_starts if has_new_word else None,
            custom_rule=custom_rule,
        )
        rules = tuple(rule for _, rule in named_rules)

        # 2. The state of the model after it has read the prompts.
        model_state = model.start(memory)
        # Few translations exceed the length of their source by more than a quarter. For them, the cache grows.
        positions = min(longest + 1, max(INITIAL_LENGTH, memory.mask.shape[1] * 5 // 4))
        beam_size = 1 if prompt.shape[1] else config.n_hypotheses
        cache = KVCache(batch.size, beam_size, device, width=1, capacity=positions)
        if host_prompt_lengths is not None and prompt.shape[1]:
            # The last token of each prompt is read by the first step.
            shifted_prompt = pad(prompt, (1, -1), value=BOS)  # (B,P)
            _, model_state = model.prefill(
                shifted_prompt, model_state, memory, cache=cache, lengths=host_prompt_lengths
            )
            cache.end_prompts(host_prompt_lengths, config.n_hypotheses)

        # 3. The sentences and their hypotheses. Log-probabilities are summed in float32 or wider.
        model_dtype = next(model.parameters(), torch.empty(0)).dtype
        dtype = torch.promote_types(model_dtype, torch.float32)
        scores = torch.zeros(batch.size, 1, dtype=dtype, device=device)  # (B,1)
        zeros = torch.zeros_like(scores)  # (B,1)
        sentences = SentenceState(
            number=torch.arange(batch.size, device=device),
            memory=memory,
            rules=rules,
            tokens=_first_tokens(prompt, prompt_lengths),
            scores=scores,
            last_position=_add_prompt_lengths(send(limits - 1, device), prompt_lengths),
            done=torch.zeros(batch.size, dtype=torch.bool, device=device),
            n_finished=torch.zeros(batch.size, config.n_groups, dtype=torch.long, device=device),
            best_finished=self._initial_best_finished(scores),
            prompt_lengths=prompt_lengths,
            prefix=_prefix_after_prompt(batch.prefix, prompt, prompt_lengths),
            constraints=constraints,
            shortlist_mask=shortlist_mask,
            repetition_penalties=zeros if config.repetition_penalty > 1 else None,
            diversity_penalties=zeros.clone() if config.n_groups > 1 else None,
        )
        progress = None
        if constraints is not None and word_starts is not None:
            progress = ConstrainedBeam.begin(constraints, word_starts).progress
        reads_history = config.repetition_penalty > 1 or any(rule.reads_history for rule in rules)
        history = prompt.masked_fill(prompt == PAD, NO_TOKEN) if reads_history else None  # (B,P)
        divisors = self.length_penalty.divisors(torch.arange(1, longest + 1))  # (longest,)
        return SearchState(
            sentences=sentences,
            hypotheses=HypothesisState(model=model_state, history=history, progress=progress),
            cache=cache,
            divisors=send(divisors.to(dtype), device),  # (longest,)
            limits=limits.tolist(),
            rule_names=tuple(name for name, _ in named_rules),
            word_starts=word_starts,
        )

    def _word_starts(self) -> Tensor:
        """Returns the mask `(V,)` of the tokens that begin a word; see `SearchState.word_starts`."""
        assert self.token_classes.word_starts is not None, "this search needs word starts"
        return self.token_classes.word_starts()

    def _checked_constraints(self, batch: Batch) -> Constraints | None:
        """Returns the constraints of a batch; raises a RecipeError if this search does not support constraints."""
        constraints = batch.terms
        assert constraints is None or isinstance(constraints, Constraints)
        if constraints is not None:
            self.config.reject_constraints()
        return constraints

    def _begin_custom_rule(self, batch: Batch) -> Rule | None:
        """Returns the rule named by `search.rule` for the sentences of a batch, or None if there is no such rule."""
        if self.config.rule is None:
            return None
        assert self.token_classes.rule is not None, (
            "`search.rule` needs a rule in the token classes"
        )
        if self.shortlist is not None or batch.prefix is not None or batch.terms is not None:
            raise RecipeError(
                f"the rule {self.config.rule} cannot be combined with a shortlist, a prefix or terms: remove them"
            )
        return self.token_classes.rule.begin(batch)

    def _begin_rules(
        self,
        batch: Batch,
        prompt_lengths: Tensor | None,
        word_starts: Tensor | None,
        custom_rule: Rule | None,
    ) -> list[tuple[str | None, Rule]]:
        """Returns the rules of this search in the order in which they are applied, each with what it comes from.

        The minimum length comes before n-gram blocking, because a sentence in which n-gram blocking forbids every token
        may end early. A forced prefix comes after these two rules, because it overrides them. All batches without
        prefixes or terms have the same rules, so their sentences can take each other's slots. For the names, see
        `SearchState.rule_names`.
        """
        config = applicable_limits(self.config, batch)
        rules: list[tuple[str | None, Rule]] = [(None, ForbiddenTokens([PAD, BOS]))]
        if config.forbid_unknown:
            rules.append(("forbid_unknown", ForbiddenTokens([UNK])))
        minimum_settings = []
        if config.min_length:
            minimum_settings.append("min_length")
        if config.min_length_ratio:
            minimum_settings.append("min_length_ratio")
        if minimum_settings:
            # A sentence has the larger of the two minimums, so either setting may be the one that forbids an EOS.
            name = " or ".join(minimum_settings)
            fewest = send(min_lengths(config, batch.lengths.cpu()), self.device)  # (B,)
            rules.append((name, MinLength(_add_prompt_lengths(fewest, prompt_lengths))))
        if config.no_repeat_ngram:
            rules.append(("no_repeat_ngram", NoRepeatedNgrams(config.no_repeat_ngram)))
        if batch.prefix is not None:
            prefix_rule = CertainPrefix if config.certain_prefix else ForcedPrefix
            rules.append((PREFIX_NAME, prefix_rule(word_starts)))
        if custom_rule is not None:
            rules.append((custom_rule.name or config.rule, custom_rule))
        return rules

    def _length_limits(
        self, batch: Batch, custom_rule: Rule | None, prompt_lengths: Tensor | None
    ) -> Tensor:
        """Returns the maximum number of tokens of each sentence, including EOS, `(B,)`, on the CPU.

        A limit exceeds the model's number of positions only if a prefix, a rule or the constraints require more tokens.
        """
        config = applicable_limits(self.config, batch)
        required = None  # (B,): number of tokens that the limit must leave room for
        if custom_rule is not None:
            required = custom_rule.min_tokens()  # (B,)
        elif isinstance(batch.terms, Constraints):
            required = batch.terms.tokens_needed().cpu()  # (B,)
        lengths = batch.lengths.cpu()  # (B,)
        prefix = None if batch.prefix is None else batch.prefix.cpu()  # (B,P)
        limits = max_lengths(config, lengths, prefix=prefix, required=required)  # (B,)

        n_positions = int(limits.max())
        if prompt_lengths is not None:
            n_positions += int(prompt_lengths.max())
        if reserve_positions(self.model, n_positions):
            return limits
        while not reserve_positions(self.model, n_positions):
            n_positions -= 1
        shortest_config = config.model_copy(update={"max_length": 1})
        shortest_limits = max_lengths(
            shortest_config, lengths, prefix=prefix, required=required
        )  # (B,)
        positions_left: int | Tensor = n_positions
        if prompt_lengths is not None:
            # Each sentence has only the positions after its own prompt.
            positions_left = n_positions - prompt_lengths  # (B,)
        return limits.clamp(max=positions_left).maximum(shortest_limits)

    def _shortlist_mask(self, batch: Batch, shortlist: Shortlist) -> Tensor:
        """Returns a mask of the shortlisted words of each sentence `(B,V)`, bool."""
        if not batch.reads_text:
            raise RecipeError(
                "a shortlist requires a source text, but this model does not read one: remove the shortlist"
            )
        required_ids = []
        if batch.prefix is not None:
            required_ids.append(batch.prefix)  # (B,P)
        if isinstance(batch.terms, Constraints):
            required_ids.append(batch.terms.positive.flatten(1))  # (B,U*L)
        prefix = torch.cat(required_ids, 1) if required_ids else None  # (B,P+U*L)
        return shortlist.candidates(batch, self.model.config.copies, prefix)

    def _initial_best_finished(self, scores: Tensor) -> Tensor | None:
        """Returns the initial `SentenceState.best_finished`: minus infinity, or None if `stop` is `first_k`."""
        compared = {"exact": self.n_best, "huggingface": self.config.n_hypotheses}
        n_compared = compared.get(self.config.effective_stop)
        if n_compared is None:
            return None
        return scores.new_full((len(scores), n_compared), -INFINITY)  # (B,n_best) or (B,K)


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


# ---------------------------------------------------------------------------------------------- parts of the start


def applicable_limits(config: SearchConfig, batch: Batch) -> SearchConfig:
    """Returns the settings; if the batch has no source texts, removes the limits that depend on the source length."""
    if batch.reads_text:
        return config
    return config.model_copy(update={"min_length_ratio": 0.0, "max_length_ratio": 0.0})


def number_copied_words(batch: Batch, vocabulary_size: int) -> Batch:
    """Numbers the unknown words of a batch by source position, for a model that copies.

    The id of an unknown word becomes V plus its first source position.
    """
    source = batch.inputs.copy.extended  # (B,S)
    terms = batch.terms
    assert terms is None or isinstance(terms, Constraints)

    def number_ids(ids: Tensor) -> Tensor:
        return renumber_by_position(ids, source, vocab_size=vocabulary_size, absent_id=UNK)

    source_length = source.shape[1]
    padding = -(vocabulary_size + source_length) % BLOCK  # complete blocks are faster to search
    return replace(
        batch,
        inputs=replace(batch.inputs, copy=CopySource(number_ids(source), source_length + padding)),
        prefix=None if batch.prefix is None else number_ids(batch.prefix),
        prompt=None if batch.prompt is None else number_ids(batch.prompt),
        terms=None if terms is None else terms.map_ids(number_ids),
    )


def _add_prompt_lengths(counts: Tensor, prompt_lengths: Tensor | None) -> Tensor:
    """Adds the prompt lengths, if there are any, to token counts `(B,)`."""
    if prompt_lengths is None:
        return counts
    return counts + prompt_lengths


def _first_tokens(prompt: Tensor, prompt_lengths: Tensor | None) -> Tensor:
    """Returns the tokens that the first step reads `(B,1)`: the last token of each prompt, or BOS without a prompt."""
    if prompt_lengths is None:
        n_sentences = len(prompt)
        return torch.full((n_sentences, 1), BOS, device=prompt.device)
    prompt_with_bos = pad(prompt, (1, 0), value=BOS)  # (B,1+P)
    last = prompt_lengths[:, None]  # (B,1)
    return prompt_with_bos.gather(1, last)


def _prefix_after_prompt(
    prefix: Tensor | None, prompt: Tensor, prompt_lengths: Tensor | None
) -> Tensor | None:
    """Appends each prefix `(B,*)` to its prompt `(B,P)`, so that the column of a token is its position: `(B,P+*)`."""
    if prefix is None or prompt_lengths is None:
        return prefix
    prefix_length = prefix.shape[1]
    offsets = torch.arange(prefix_length, device=prefix.device)  # (*,)
    columns = prompt_lengths[:, None] + offsets  # (B,*)
    padded_prompt = pad(prompt, (0, prefix_length), value=PAD)  # (B,P+*)
    return padded_prompt.scatter(1, columns, prefix)
