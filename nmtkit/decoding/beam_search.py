"""Beam search: how a batch of sentences begins, and the one step that is repeated.

A step reads the last token of each hypothesis, and looks at the 2K best continuations of a sentence's K hypotheses.
Those among the first K that end in EOS are finished; the K best of the others go on. Of equal scores the better
parent's comes first, then the smaller id's. So the sentences of a batch do not influence each other, except that a
large batch adds up logits in another order. All that a step decides stays on the device: nothing waits for it.

Letters as in `nmtkit/models/base.py`, and:

    W  hypotheses per sentence in this step: 1 in the first, K after it; N = B*W
    C  candidates per sentence and step: 2K, so that K remain when up to K of them end; in sampling K
    G  groups of diverse beam search
    X  columns of the scores of a step: the vocabulary and what can be copied, or the words of a shortlist

Penalties act at two places. They guide which continuations a step keeps, or they count in the ranking scores of
finished hypotheses, or both. None of them changes the log-probabilities that hypotheses report.

    penalty                      guides the choice of a step            counts in the ranking
    length penalty               no: its candidates have one length     divides the log-probability
    coverage penalty, gnmt       no                                     is added
    coverage penalty, summary    yes, but for sampling                  is added
    repetition penalty           yes                                    is added to the log-probability
    diversity                    yes                                    no
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

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
    allow_end_if_stuck,
)
from nmtkit.decoding.sampling import sample_step
from nmtkit.decoding.scorers import CoveragePenalty, apply_repetition_penalty, coverage_score, source_words
from nmtkit.decoding.search_state import HypothesisState, SearchState, SentenceState
from nmtkit.decoding.settings import SamplingConfig, SearchConfig, max_lengths, min_lengths
from nmtkit.decoding.shortlist import Shortlist
from nmtkit.layers.copying import number_by_position
from nmtkit.layers.kernels import block_maxima
from nmtkit.layers.kv_cache import INITIAL_LENGTH, KVCache
from nmtkit.models.abilities import as_copying, has_source_end, predicts_by_softmax, reserve_positions, with_shortlist
from nmtkit.models.base import Decoder, ModelOutput

MANY_LOGITS = 1 << 17
"""A step with at least this many logits does without their softmax; with fewer, the softmax is faster."""
DIVERSITY_STRENGTH = 0.5
"""Diverse beam search: cost of a word for each hypothesis of an earlier group that took it in the same step."""


@dataclass(frozen=True)
class TokenClasses:
    """What a search must know of the tokens of a model, on the model's device."""

    starts: Callable[[], Tensor] | None = None
    """Returns the tokens that begin a word or are no part of one, `(V,)`, bool; called only for constraints."""
    rule: Rule | None = None
    """The rule that `search.rule` names."""


NO_TOKEN_CLASSES = TokenClasses()


@dataclass(frozen=True)
class StepResult(Rows):
    """What is kept of a step until its sentences are read."""

    candidates: Candidates
    tokens: Tensor
    """The extended id of each candidate `(B,C)`."""
    ranking: Tensor
    """Ranking scores of the candidates, `(B,C)`."""
    attention: Tensor | None
    """Attention of the hypotheses before the step `(B,K,*)`, where asked for; in the first step all are the same."""
    copy_gate: Tensor | None
    """`(B,K,1)`."""


@dataclass(frozen=True)
class Continuations:
    """The scores of all continuations of N hypotheses, under the rules."""

    values: Tensor
    """Log-probabilities `(N,X)`, or logits if there are `log_sums`."""
    log_sums: Tensor | None = None
    """Log of the sum of the exponentials of the logits before the rules, `(N,)`."""
    maxima: Tensor | None = None
    """The maxima of blocks of `BLOCK` columns of the values `(N,blocks)`; None if they are not known."""


class BeamSearch:
    """Searches with one model and one set of settings; arguments as of `nmtkit.decoding.batching.Engine`."""

    def __init__(
        self,
        model: Decoder,
        config: SearchConfig,
        n_best: int = 1,
        need_attention: bool = False,
        shortlist: Shortlist | None = None,
        token_classes: TokenClasses = NO_TOKEN_CLASSES,
    ) -> None:
        self.model = model
        self.config = config
        self.n_best = n_best
        self.need_attention = need_attention
        self.shortlist = shortlist
        self.token_classes = token_classes
        self.length_penalty = config.length_penalty_scorer()
        self.coverage_penalty = config.coverage_penalty_scorer()
        self.device = next(model.parameters(), torch.empty(0)).device

    # ------------------------------------------------------------------------------------------------------ the step

    def step(self, state: SearchState) -> StepResult:
        """Makes one step with every sentence, and moves `state` on to the next position.

        A step can be captured as a CUDA graph. So nothing here may read a number from the device, and no size may
        depend on one. The tensors of a state are replaced by new ones, each with memory of its own; only the cache is
        written in place, at the present position, which may be written twice.
        """
        config = self.config
        model = self.model
        sentences = state.sentences
        memory = sentences.memory
        constraints = state.constraints
        position = state.cache.position  # (B,)
        longest = len(state.divisors) - 1
        divisor = state.divisors.index_select(0, sentences.written(position, longest))[:, None]  # (B,1)

        # 1. The model reads the last token of each hypothesis.
        output, model_state = model.advance(
            sentences.tokens.flatten(),
            state.hypotheses.model,
            memory,
            state.cache,
            need_attention=self.need_attention or self.coverage_penalty is not None,
        )

        # 2. Coverage penalties, zero or less.
        coverage = None  # (N,S)
        coverage_scores = None  # (B,W)
        if self.coverage_penalty is not None:
            assert output.attention is not None
            before = state.hypotheses.coverage
            coverage = output.attention + (0.0 if before is None else before)  # always a new tensor
            coverage_scores = self._coverage_scores(self.coverage_penalty, coverage, sentences)

        # 3. The scores of all continuations under the rules, and what guides the choice among them.
        guided_by_coverage = self._is_guided_by_coverage()
        is_guided = guided_by_coverage or sentences.penalties is not None or sentences.diversity is not None
        parent_scores = sentences.scores  # (B,W)
        if is_guided or not self._may_stay_logits(sentences):
            values = self.apply_rules(state, model.predict(output, memory))  # (N,X): log-probabilities
            continuations = Continuations(values)
        else:
            continuations = self._continuations_from_logits(state, output)
            if continuations.log_sums is not None:
                parent_scores = parent_scores - continuations.log_sums.view(parent_scores.shape)
        guided = continuations.values  # (N,X)
        if sentences.penalties is not None:
            assert state.history is not None
            guided = apply_repetition_penalty(guided, memory.columns_of(state.history), config.repetition_penalty)
            parent_scores = parent_scores + sentences.penalties
        if guided_by_coverage and coverage_scores is not None:
            parent_scores = parent_scores + coverage_scores * divisor  # since it is added to the divided score

        # 4. The best continuations of each sentence.
        candidates, diversity = self._choose(state, guided, parent_scores, continuations.maxima)
        penalties = None  # (B,C): the repetition penalty of each candidate, zero or less
        if is_guided:
            candidates, added = with_model_scores(candidates, continuations.values, sentences.scores, guided)
            if sentences.penalties is not None:
                penalties = sentences.penalties.gather(1, candidates.parents) + added

        # 5. At the length limit hypotheses may have to end.
        if config.limit_rule == "end":
            is_last = (position >= sentences.last_position)[:, None]  # (B,1)
            scores = sentences.scores if constraints is None else constraints.enough(sentences.scores)
            candidates = end_at_limit(is_last, candidates, scores)
            if penalties is not None and sentences.penalties is not None:
                of_parents = sentences.penalties.gather(1, candidates.parents)
                penalties = torch.where(is_last, of_parents, penalties)
        tokens = memory.ids_of(candidates.columns)  # (B,C)

        # 6. Ranking scores: log-probability over length penalty, plus coverage penalty. The bound in
        #    `_end_sentences` and `score_given` in `nmtkit.decoding.hypotheses` have the same formula.
        summed = candidates.scores if penalties is None else candidates.scores + penalties  # (B,C)
        ranking = summed / divisor
        if coverage_scores is not None:
            ranking = ranking + coverage_scores.gather(1, candidates.parents)
        if constraints is not None:
            ranking = constraints.ranked(candidates.parents, tokens, candidates.scores, ranking)

        # 7. The sentences after the step: which are done, and the tokens that their hypotheses go on with.
        if penalties is not None:
            penalties = penalties.gather(1, candidates.survivors)  # (B,K)
        sentences = replace(
            sentences, tokens=tokens.gather(1, candidates.survivors), penalties=penalties, diversity=diversity
        )
        sentences = self._end_sentences(state, sentences, candidates, ranking)

        # 8. The new beam: each hypothesis inherits from its parent, at the next position.
        hypotheses = replace(state.hypotheses, model=model_state, coverage=coverage)
        parents = candidates.parents.gather(1, candidates.survivors)  # (B,K)
        state.hypotheses = self._children(state, hypotheses, parents, sentences.tokens)
        state.sentences = sentences
        return StepResult(
            candidates=candidates,
            tokens=tokens,
            ranking=ranking,
            attention=self._of_step(output.attention, len(ranking)),
            copy_gate=self._of_step(output.copy_gate, len(ranking)),
        )

    def _choose(
        self, state: SearchState, values: Tensor, scores: Tensor, maxima: Tensor | None
    ) -> tuple[Candidates, Tensor | None]:
        """Chooses the candidates by the way of searching that the settings name.

        Args:
            state: the state of the search.
            values: scores of all continuations `(N,X)`.
            scores: scores of the hypotheses that they continue `(B,W)`.
            maxima: see `Continuations`.

        Returns:
            The candidates, and the diversity penalties of those that go on `(B,K)`; None for a single group.
        """
        config = self.config
        sentences = state.sentences
        constraints = state.constraints
        if sentences.diversity is not None:
            candidates, added = diverse_candidates(
                values, scores + sentences.diversity, config.hypotheses, config.groups
            )
            diversity = sentences.diversity.gather(1, candidates.parents) + added  # (B,C)
            return candidates, diversity.gather(1, candidates.survivors)
        if constraints is not None:
            return constraints.choose(values, scores, config.hypotheses, sentences.memory), None
        if isinstance(config, SamplingConfig):
            position = state.cache.position
            return sample_step(values, scores, sentences.number, position, config, sentences.memory), None
        return best_candidates(values, scores, config.hypotheses, maxima), None

    def _is_guided_by_coverage(self) -> bool:
        """Whether the coverage penalty guides the choice of candidates, beside their log-probabilities."""
        penalty = self.coverage_penalty
        return penalty is not None and penalty.guides_choice and not isinstance(self.config, SamplingConfig)

    def _coverage_scores(self, penalty: CoveragePenalty, coverage: Tensor, sentences: SentenceState) -> Tensor:
        """The coverage penalty of each hypothesis `(B,W)`, zero or less, from its coverage `(N,S)`."""
        mask = sentences.memory.mask  # (B,S)
        words = source_words(mask) if has_source_end(self.model) else mask
        of_sentences = coverage.view(*sentences.scores.shape, -1)  # (B,W,S)
        return coverage_score(penalty, of_sentences, words[:, None])

    def _may_stay_logits(self, sentences: SentenceState) -> bool:
        """Whether the best continuations can be found without the softmax, and it is worth it.

        The softmax subtracts the same number from all logits of a hypothesis. So its parent's score may be lowered by
        this number instead.
        """
        is_large = sentences.scores.numel() * self.model.sizes["tgt"] >= MANY_LOGITS
        needs_log_probs = (
            isinstance(self.config, SamplingConfig)
            or sentences.constraints is not None
            or any(rule.needs_log_probs for rule in sentences.rules)
        )
        return is_large and predicts_by_softmax(self.model) and not needs_log_probs

    def _continuations_from_logits(self, state: SearchState, output: ModelOutput) -> "Continuations":
        """The scores of all continuations under the rules, without a softmax over the vocabulary."""
        memory = state.sentences.memory
        logits = self.model.logits(output, memory)  # (N,V)
        log_sums, maxima = block_maxima(logits, BLOCK)  # (N,), (N,blocks)
        if output.copy_gate is not None:
            copying = as_copying(self.model)
            assert copying is not None, "a model with a gate can copy"
            mixed = copying.copied(logits, output, memory, log_sums[:, None])  # (N,X): log-probabilities
            return Continuations(self.apply_rules(state, mixed))
        logits = self.apply_rules(state, logits)
        if not all(rule.forbids_special_tokens_only for rule in state.sentences.rules):
            return Continuations(logits, log_sums)  # the maximum of any block may be forbidden
        maxima[:, 0] = logits[:, :BLOCK].amax(1)  # special tokens are in the first block
        return Continuations(logits, log_sums, maxima)

    def apply_rules(self, state: SearchState, log_probs: Tensor) -> Tensor:
        """Returns the log-probabilities `(N,X)` under all rules; written into."""
        rules = state.sentences.rules
        constraints = state.constraints
        live = self.live_hypotheses(state, log_probs)
        may_be_stuck = constraints is not None or any(rule.may_forbid_all for rule in rules)
        end = log_probs[:, EOS].clone() if may_be_stuck else None  # (N,): before any rule
        for rule in rules:
            log_probs = rule.apply(log_probs, live)
            if rule.may_forbid_all and end is not None:
                allow_end_if_stuck(log_probs, end)
        if constraints is not None and end is not None:
            constraints.forbid(log_probs, end, live.forced, state.sentences.memory)
        return log_probs

    def live_hypotheses(self, state: SearchState, log_probs: Tensor) -> LiveHypotheses:
        """Returns what rules may know of the hypotheses; `log_probs` `(N,X)` are those before any rule."""
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
            columns = memory.columns_of(forced.clamp(min=PAD))  # NEW_WORD, which is negative, is no token
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
        """Returns the sentences with new scores of their hypotheses, minus infinity where a sentence is done.

        The sentences have the tokens and penalties of this step already; the cache is still at its position.

        With the stop `first_k` a sentence is done when K hypotheses are finished. `exact` compares: `n_best` must be
        finished, and no unfinished one could still overtake the last of them, even if it cost nothing from here to the
        length limit. `huggingface` compares K finished ones with the best unfinished one at its present length. A
        sentence is also done at its length limit, or if no continuation is left.
        """
        groups = self.config.groups
        position = state.cache.position  # (B,)
        ended_in_groups = candidates.ended.view(len(ranking), groups, -1)  # (B,G,C/G)
        n_finished = sentences.n_finished + ended_in_groups.sum(2)  # (B,G)
        going_on = candidates.survivor_scores  # (B,K)
        if sentences.penalties is not None:
            going_on = going_on + sentences.penalties
        best_going_on = going_on.amax(1)  # (B,)
        best_finished = sentences.best_finished
        if best_finished is None:  # first_k
            satisfied = n_finished >= self.config.hypotheses // groups  # (B,G)
        else:
            ended_ranking = ranking.masked_fill(~candidates.ended, -INFINITY)  # (B,C)
            best_finished = torch.cat([best_finished, ended_ranking], 1).topk(best_finished.shape[1], 1)[0]
            is_exact = self.config.effective_stop == "exact"
            length = sentences.written(sentences.last_position if is_exact else position, most=len(state.divisors) - 1)
            bound = best_going_on / state.divisors.index_select(0, length)  # (B,)
            satisfied = (best_finished[:, -1] >= bound)[:, None]  # (B,1)
        is_at_limit = sentences.last_position <= position
        has_none_left = best_going_on == -INFINITY
        done = sentences.done | satisfied.all(1) | is_at_limit | has_none_left  # (B,)
        group_done = done[:, None] if groups == 1 else done[:, None] | satisfied  # (B,G) or (B,1)
        scores = candidates.survivor_scores.view(*group_done.shape, -1)
        scores = scores.masked_fill(group_done[:, :, None], -INFINITY)
        return replace(
            sentences, scores=scores.flatten(1), done=done, n_finished=n_finished, best_finished=best_finished
        )

    def _children(
        self, state: SearchState, hypotheses: HypothesisState, parents: Tensor, tokens: Tensor
    ) -> HypothesisState:
        """Moves the cache on to the next position; returns the children of `parents` `(B,K)` with `tokens` `(B,K)`."""
        constraints = state.constraints
        width = parents.shape[1]
        rows = state.cache.parent_rows(parents)  # (N,)
        progress = None
        if constraints is not None:
            progress = constraints.after(rows.view_as(parents), tokens).mapped(lambda tensor: tensor.flatten(0, 1))
        if width == 1:  # a single hypothesis is its own parent: nothing moves
            state.cache.next_step(None, width)
        else:
            state.cache.next_step(rows, width)
            hypotheses = hypotheses.select(rows)
        history = hypotheses.history
        if history is not None:
            if history.shape[1] < state.cache.length - 1:
                history = pad(history, (0, 1), value=NO_TOKEN)
            last = (state.cache.position - 1).repeat_interleave(width)[:, None]  # (N,1)
            history = history.scatter(1, last, tokens.view(-1, 1))
        return replace(hypotheses, history=history, progress=progress)

    def _of_step(self, tensor: Tensor | None, sentences: int) -> Tensor | None:
        """A part of the output `(N,*)` as it is kept, `(B,K,*)`, if attention is needed."""
        if tensor is None or not self.need_attention:
            return None
        return tensor.view(sentences, -1, tensor.shape[1]).expand(-1, self.config.hypotheses, -1)

    def most_tokens(self, batch: Batch, columns: int) -> int:
        """Returns the most tokens, EOS included, of a sentence like those of a batch, with so many source columns."""
        rule = self.token_classes.rule
        needed = None if rule is None else torch.tensor([rule.min_tokens_bound(columns)])
        return int(max_lengths(limits_of(self.config, batch), torch.tensor([columns]), None, needed))

    # ----------------------------------------------------------------------------------------------------- the start

    def begin(self, batch: Batch) -> SearchState:
        """Returns the state before the first step, with one empty hypothesis for each sentence of a batch.

        Tensors of the batch that are on the CPU are read there, so that nothing waits for an accelerator.
        """
        model = self.model
        device = self.device
        on_host = batch
        batch = batch.to(device).mapped(torch.clone)  # later sentences are written into these tensors
        if model.config.copies:
            batch = number_copied_words(batch, model.sizes["tgt"])
        constraints = batch.terms
        assert constraints is None or isinstance(constraints, Constraints)
        if constraints is not None:
            self.config.reject_constraints()
        custom_rule = self._begin_custom_rule(batch)
        prompts_on_host = None if on_host.prompt is None else (on_host.prompt != PAD).sum(1).cpu()  # (B,)
        limits = self._length_limits(on_host, custom_rule, prompts_on_host)  # (B,)
        longest = int(limits.max())
        memory = model.encode(batch)
        shortlisted = None
        if self.shortlist is not None:
            shortlisted = self._shortlisted(batch, self.shortlist)
            memory = with_shortlist(model, memory, shortlisted)

        prompt = batch.prompt
        if prompt is None:
            prompt = torch.zeros(batch.size, 0, dtype=torch.long, device=device)
        prompt_lengths = (prompt != PAD).sum(1) if prompt.shape[1] else None  # (B,)
        word_starts = None
        has_new_word = on_host.prefix is not None and bool((on_host.prefix == NEW_WORD).any())
        if constraints is not None or has_new_word:
            assert self.token_classes.starts is not None, "which tokens begin a word must be known"
            word_starts = self.token_classes.starts()
        rules = self._begin_rules(on_host, prompt_lengths, word_starts if has_new_word else None, custom_rule)
        reads_history = self.config.repetition_penalty > 1 or any(rule.reads_history for rule in rules)
        # Few translations are a quarter longer than their source; for those the cache grows.
        positions = min(longest + 1, max(INITIAL_LENGTH, memory.mask.shape[1] * 5 // 4))
        beam_size = 1 if prompt.shape[1] else self.config.hypotheses
        model_state = model.start(memory)
        cache = KVCache(batch.size, beam_size, device, width=1, room=positions)
        if prompts_on_host is not None and prompt.shape[1]:
            shifted = pad(prompt, (1, -1), value=BOS)  # (B,P)
            _, model_state = model.prefill(shifted, model_state, memory, cache, prompts_on_host)
            cache.end_prompts(prompts_on_host, self.config.hypotheses)

        dtype = torch.promote_types(next(model.parameters(), torch.empty(0)).dtype, torch.float32)
        scores = torch.zeros(batch.size, 1, dtype=dtype, device=device)
        sentences = SentenceState(
            number=torch.arange(batch.size, device=device),
            memory=memory,
            rules=rules,
            tokens=_first_tokens(prompt, prompt_lengths),
            scores=scores,
            last_position=_after_prompts(send(limits - 1, device), prompt_lengths),
            done=torch.zeros(batch.size, dtype=torch.bool, device=device),
            n_finished=torch.zeros(batch.size, self.config.groups, dtype=torch.long, device=device),
            best_finished=self._no_best_finished(scores),
            prompt_lengths=prompt_lengths,
            prefix=_prefix_after_prompt(batch.prefix, prompt, prompt_lengths),
            constraints=constraints,
            shortlisted=shortlisted,
            penalties=torch.zeros_like(scores) if self.config.repetition_penalty > 1 else None,
            diversity=torch.zeros_like(scores) if self.config.groups > 1 else None,
        )
        progress = None
        if constraints is not None and word_starts is not None:
            progress = ConstrainedBeam.begin(constraints, word_starts).progress
        hypotheses = HypothesisState(
            model=model_state,
            history=prompt.masked_fill(prompt == PAD, NO_TOKEN) if reads_history else None,
            progress=progress,
        )
        divisors = self.length_penalty.divisors(torch.arange(1, longest + 1)).to(dtype)
        return SearchState(
            sentences=sentences,
            hypotheses=hypotheses,
            cache=cache,
            divisors=send(divisors, device),
            limits=limits.tolist(),
            word_starts=word_starts,
        )

    def _begin_custom_rule(self, batch: Batch) -> Rule | None:
        """The rule that `search.rule` names, for the sentences of a batch."""
        if self.config.rule is None:
            return None
        assert self.token_classes.rule is not None, "a rule must know the vocabularies"
        if self.shortlist is not None or batch.prefix is not None or batch.terms is not None:
            raise RecipeError(f"the rule {self.config.rule} allows no shortlist, prefix and terms: leave them out")
        return self.token_classes.rule.begin(batch)

    def _begin_rules(
        self, batch: Batch, prompt_lengths: Tensor | None, word_starts: Tensor | None, custom_rule: Rule | None
    ) -> tuple[Rule, ...]:
        """The rules of this search, in the order in which they are applied.

        A minimum length comes before blocked n-grams, since a sentence in which every n-gram is blocked may end early.
        A forced prefix comes after both, since it overrides them. All batches without prefix and terms have the same
        rules, so that their sentences can share slots.
        """
        config = limits_of(self.config, batch)
        rules: list[Rule] = [ForbiddenTokens([PAD, BOS, UNK] if config.forbid_unknown else [PAD, BOS])]
        if config.min_length or config.min_length_ratio:
            fewest = send(min_lengths(config, batch.lengths.cpu()), self.device)
            rules.append(MinLength(_after_prompts(fewest, prompt_lengths)))
        if config.no_repeat_ngram:
            rules.append(NoRepeatedNgrams(config.no_repeat_ngram))
        if batch.prefix is not None:
            rules.append(CertainPrefix(word_starts) if config.certain_prefix else ForcedPrefix(word_starts))
        if custom_rule is not None:
            rules.append(custom_rule)
        return tuple(rules)

    def _length_limits(self, batch: Batch, custom_rule: Rule | None, prompt_lengths: Tensor | None) -> Tensor:
        """The most tokens of each sentence, EOS included, `(B,)`, on the CPU; no more than the model has positions."""
        config = limits_of(self.config, batch)
        needed = None  # (B,): tokens that the limit must leave room for
        if custom_rule is not None:
            needed = custom_rule.min_tokens()
        elif isinstance(batch.terms, Constraints):
            needed = batch.terms.tokens_needed().cpu()
        lengths = batch.lengths.cpu()
        prefix = None if batch.prefix is None else batch.prefix.cpu()
        limits = max_lengths(config, lengths, prefix, needed)
        longest = int(limits.max()) + (0 if prompt_lengths is None else int(prompt_lengths.max()))
        if reserve_positions(self.model, longest):
            return limits
        while not reserve_positions(self.model, longest):
            longest -= 1
        # What a sentence must have stays, even if that is more.
        least = max_lengths(config.model_copy(update={"max_length": 1}), lengths, prefix, needed)
        return limits.clamp(max=longest if prompt_lengths is None else longest - prompt_lengths).maximum(least)

    def _shortlisted(self, batch: Batch, shortlist: Shortlist) -> Tensor:
        """The words of the shortlist for each sentence `(B,V)`, bool."""
        if not batch.reads_text:
            raise RecipeError("a shortlist needs a source text, and this model reads none: leave the shortlist out")
        forced = []
        if batch.prefix is not None:
            forced.append(batch.prefix)
        if isinstance(batch.terms, Constraints):
            forced.append(batch.terms.positive.flatten(1))
        return shortlist.candidates(batch, self.model.config.copies, torch.cat(forced, 1) if forced else None)

    def _no_best_finished(self, scores: Tensor) -> Tensor | None:
        """The scores of no finished hypotheses, where the stop compares them."""
        counts = {"exact": self.n_best, "huggingface": self.config.hypotheses}
        count = counts.get(self.config.effective_stop)
        return None if count is None else scores.new_full((len(scores), count), -INFINITY)


# ----------------------------------------------------------------------------------------------- parts of the step


def diverse_candidates(log_probs: Tensor, scores: Tensor, beam_size: int, groups: int) -> tuple[Candidates, Tensor]:
    """Diverse beam search: a beam of K/G for each of G groups, one after the other.

    The scores of a group are lowered by `DIVERSITY_STRENGTH` at a word for every hypothesis of an earlier group that
    goes on with it: Vijayakumar et al. 2018, "Diverse Beam Search", algorithm 1 with Hamming diversity. Group g has the
    columns g*K/G to (g+1)*K/G-1 of `scores` `(B,W)`, except in the first step.

    Returns:
        The candidates of all groups in turn, and the penalty of each `(B,C)`.
    """
    size, width = scores.shape
    group_size = beam_size // groups
    group_width = max(1, width // groups)  # hypotheses that a group continues: 1 in the first step
    lowered = log_probs.view(size, width, -1).clone()  # (B,W,X)
    taken = scores.new_zeros(size, 0, dtype=torch.long)  # (B,*): words of the groups so far
    parts: list[Candidates] = []
    penalties: list[Tensor] = []
    for group in range(groups):
        first = group * group_width if width > 1 else 0
        own_log_probs = lowered[:, first : first + group_width].reshape(size * group_width, -1)
        own_scores = scores[:, first : first + group_width]
        candidates = best_candidates(own_log_probs, own_scores, group_size)
        times_taken = (candidates.columns[:, :, None] == taken[:, None]).sum(2)  # (B,2K/G)
        penalties.append(times_taken * -DIVERSITY_STRENGTH)
        words = candidates.columns.gather(1, candidates.survivors)  # (B,K/G)
        words = words.masked_fill(candidates.survivor_scores == -INFINITY, NO_TOKEN)
        taken = torch.cat([taken, words], 1)
        cost = scores.new_full((size, 1, group_size), -DIVERSITY_STRENGTH)
        cost = cost.masked_fill(words[:, None] == NO_TOKEN, 0.0).to(lowered.dtype)
        columns = words[:, None].clamp(min=0).expand(-1, width, -1)  # (B,W,K/G)
        lowered.scatter_add_(2, columns, cost.expand(-1, width, -1))
        kept = candidates.survivors + 2 * group_size * group
        parts.append(replace(candidates, parents=candidates.parents + first, survivors=kept))
    joined = {field.name: torch.cat([getattr(part, field.name) for part in parts], 1) for field in fields(Candidates)}
    return Candidates(**joined), torch.cat(penalties, 1).to(log_probs.dtype)


def end_at_limit(is_last: Tensor, candidates: Candidates, scores: Tensor) -> Candidates:
    """Returns the candidates, but at the limit `(B,1)` all hypotheses of `scores` `(B,W)` end with EOS, at no cost."""
    number = torch.arange(candidates.columns.shape[1], device=scores.device).expand_as(candidates.columns)  # (B,C)
    parents = number.clamp(max=scores.shape[1] - 1)
    whole = scores.gather(1, parents).masked_fill(number > parents, -INFINITY)  # (B,C)
    return Candidates(
        columns=candidates.columns.masked_fill(is_last, EOS),
        parents=torch.where(is_last, parents, candidates.parents),
        scores=torch.where(is_last, whole, candidates.scores),
        ended=torch.where(is_last, whole > -INFINITY, candidates.ended),
        survivors=candidates.survivors,
        survivor_scores=candidates.survivor_scores.masked_fill(is_last, -INFINITY),
    )


def with_model_scores(
    candidates: Candidates, log_probs: Tensor, scores: Tensor, guided: Tensor
) -> tuple[Candidates, Tensor]:
    """Gives candidates that were chosen by `guided` scores the model's own log-probabilities.

    Args:
        candidates: chosen by `guided` and by scores of hypotheses with further penalties.
        log_probs: the model's own `(N,X)`.
        scores: log-probabilities of the hypotheses `(B,W)`.
        guided: `log_probs` with penalties `(N,X)`.

    Returns:
        The candidates, and how much `guided` adds to the last token of each `(B,C)`.
    """
    places = candidates.parents * log_probs.shape[1] + candidates.columns  # (B,C)
    model_scores = log_probs.reshape(len(places), -1).gather(1, places)
    guided_scores = guided.reshape(len(places), -1).gather(1, places)
    sums = scores.gather(1, candidates.parents) + model_scores
    sums = sums.masked_fill(candidates.scores == -INFINITY, -INFINITY)  # candidates that stand for none
    added = torch.where(model_scores > -INFINITY, guided_scores - model_scores, 0.0)
    kept_scores = sums.gather(1, candidates.survivors).masked_fill(candidates.survivor_scores == -INFINITY, -INFINITY)
    return replace(candidates, scores=sums, survivor_scores=kept_scores), added


# ---------------------------------------------------------------------------------------------- parts of the start


def limits_of(config: SearchConfig, batch: Batch) -> SearchConfig:
    """Returns the settings without limits by the source, if the batch has no source text."""
    if batch.reads_text:
        return config
    return config.model_copy(update={"min_length_ratio": 0.0, "max_length_ratio": 0.0})


def number_copied_words(batch: Batch, vocabulary: int) -> Batch:
    """For a model that copies: numbers unknown words by source position, V plus the first where the word stands."""
    source = batch.inputs.copy.extended  # (B,S)
    terms = batch.terms
    assert terms is None or isinstance(terms, Constraints)

    def numbered(ids: Tensor) -> Tensor:
        return number_by_position(ids, source, vocabulary, UNK)

    columns = source.shape[1]
    n_oov = -(vocabulary + columns) % BLOCK + columns  # whole blocks are searched faster
    return replace(
        batch,
        inputs=replace(batch.inputs, copy=CopySource(numbered(source), n_oov)),
        prefix=None if batch.prefix is None else numbered(batch.prefix),
        prompt=None if batch.prompt is None else numbered(batch.prompt),
        terms=None if terms is None else terms.changed(numbered),
    )


def _after_prompts(counts: Tensor, prompt_lengths: Tensor | None) -> Tensor:
    """Counts of tokens `(B,)` with those of the prompts."""
    return counts if prompt_lengths is None else counts + prompt_lengths


def _first_tokens(prompt: Tensor, prompt_lengths: Tensor | None) -> Tensor:
    """The token that the first step reads `(B,1)`: the last of the prompt, or BOS."""
    if prompt_lengths is None:
        return torch.full((len(prompt), 1), BOS, device=prompt.device)
    return pad(prompt, (1, 0), value=BOS).gather(1, prompt_lengths[:, None])


def _prefix_after_prompt(prefix: Tensor | None, prompt: Tensor, prompt_lengths: Tensor | None) -> Tensor | None:
    """A prefix `(B,P)` after the prompt, so that its places are positions."""
    if prefix is None or prompt_lengths is None:
        return prefix
    places = prompt_lengths[:, None] + torch.arange(prefix.shape[1], device=prefix.device)
    return pad(prompt, (0, prefix.shape[1]), value=PAD).scatter(1, places, prefix)
