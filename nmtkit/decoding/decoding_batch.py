"""The sentences that are decoded together: each has a slot of K hypotheses, and may be at another position.

Letters as in `nmtkit.decoding.beam`. All that a step decides stays on the device. The slot of a finished sentence is
computed further, and not read, until another sentence takes it or the batch is compacted.
"""

from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.core.device import send
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import NEW_WORD, Batch
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from nmtkit.decoding import rules
from nmtkit.decoding.beam import (
    BLOCK,
    NO_TOKEN,
    LoggedStep,
    StepCandidates,
    beam_step,
    diverse_beam_step,
    end_at_limit,
    keep_beam_places,
    with_model_scores,
)
from nmtkit.decoding.brackets import begin_trees
from nmtkit.decoding.constraints import ConstrainedBeam, Constraints
from nmtkit.decoding.rules import INFINITY, SearchConfig
from nmtkit.decoding.sampling import sample_step
from nmtkit.decoding.shortlist import Shortlist
from nmtkit.decoding.state import NO_TOKEN_CLASSES, HypothesisState, SentenceState, TokenClasses, numbered_by_position
from nmtkit.layers.kernels import block_maxima
from nmtkit.layers.kv_cache import INITIAL_LENGTH, KVCache
from nmtkit.models.base import Decoder, Memory, ModelOutput

MANY_LOGITS = 1 << 17
"""Logits from which a step sums them up and looks only into the best blocks; a softmax of fewer is faster."""
Integers = npt.NDArray[np.int64]


@dataclass
class DecodingBatch:
    """The state of a search between two steps."""

    model: Decoder
    config: SearchConfig
    sentences: SentenceState
    beam: HypothesisState
    cache: KVCache
    divisors: Tensor
    """The length penalties of 1, 2, ... tokens, up to the longest limit."""
    limits: list[int]
    """The length limits of the sentences that it began with, on the host."""
    token_classes: TokenClasses = NO_TOKEN_CLASSES
    """`may_repeat` has one more entry, for copied words."""
    word_starts: Tensor | None = None
    """Tokens that begin a word `(V,)`, bool; only with constraints or with prefixes that end in NEW_WORD."""

    @classmethod
    def begin(
        cls,
        model: Decoder,
        batch: Batch,
        config: SearchConfig,
        n_best: int,
        token_classes: TokenClasses = NO_TOKEN_CLASSES,
        shortlist: Shortlist | None = None,
    ) -> "DecodingBatch":
        """All sentences of a batch before their first step.

        What of it is on the CPU is read there, which spares an accelerator the wait.
        """
        device, given = next(model.parameters(), torch.empty(0)).device, batch
        batch = batch.to(device).mapped(torch.clone)  # later sentences are written into these tensors
        if not batch.reads_text:
            config = config.model_copy(update={"min_length_ratio": 0.0, "max_length_ratio": 0.0})
        if model.config.copies:
            batch = numbered_by_position(batch, model.sizes["tgt"])
        prefix, terms = batch.prefix, batch.terms
        assert terms is None or isinstance(terms, Constraints)
        tree = begin_trees(config, token_classes.brackets, batch, shortlist is not None)
        room = given.terms.room().cpu() if isinstance(given.terms, Constraints) else None
        room = room if tree is None else tree.least
        wanted = None if given.prefix is None else given.prefix.cpu()
        read = None if given.prompt is None else (given.prompt != PAD).sum(1).cpu()
        given_lengths = batch.lengths.cpu(), wanted, room
        limits = rules.max_lengths(config, *given_lengths)
        reach = max(limits.tolist()) + (0 if read is None else max(read.tolist()))  # no operations: see `tapes.record`
        if not model.reserve_positions(reach):
            reach = next(number for number in range(reach, 0, -1) if model.reserve_positions(number))
            least = rules.max_lengths(config.model_copy(update={"max_length": 1}), *given_lengths)
            limits = limits.clamp(max=reach if read is None else reach - read).maximum(least)
        memory, candidates = model.encode(batch), None
        size, columns = memory.mask.shape
        if shortlist is not None:
            if not batch.reads_text:
                raise RecipeError("a shortlist needs a source text, and this model reads none: leave the shortlist out")
            further = [ids for ids in (prefix, None if terms is None else terms.positive.flatten(1)) if ids is not None]
            candidates = shortlist.candidates(batch, model.config.copies, torch.cat(further, 1) if further else None)
            memory = model.with_shortlist(memory, candidates)
        longest = max(limits.tolist())
        dtype = torch.promote_types(next(model.parameters(), torch.empty(0)).dtype, torch.float32)
        sentences = SentenceState.begin(config, memory, batch, limits, dtype, n_best)
        has_history = config.no_repeat_ngram > 0 or sentences.penalties is not None
        prompt = torch.zeros(size, 0, dtype=torch.long, device=device) if batch.prompt is None else batch.prompt
        history = prompt.masked_fill(prompt == PAD, NO_TOKEN) if has_history else None
        constraints = None if terms is None else ConstrainedBeam.begin(terms, token_classes.starts)
        has_whole_prefix = wanted is not None and bool((wanted == NEW_WORD).any())
        starts = None
        if constraints is not None or has_whole_prefix:
            assert token_classes.starts is not None, "which tokens begin a word must be known"
            starts = token_classes.starts()
        # Few translations need more positions.
        room_at_first = min(longest + 1, max(INITIAL_LENGTH, columns * 5 // 4))
        beam_size = 1 if prompt.shape[1] else config.beam_size
        state, cache = model.start(memory), KVCache(size, beam_size, device, width=1, room=room_at_first)
        if read is not None and prompt.shape[1]:
            _, state = model.prefill(pad(prompt, (1, -1), value=BOS), state, memory, cache, read)
            cache.end_prompts(read, config.beam_size)
            sentences = sentences.behind(prompt, (prompt != PAD).sum(1))
        return cls(
            model=model,
            config=config,
            sentences=replace(sentences, candidates=candidates),
            beam=HypothesisState(state, history, None, None if constraints is None else constraints.progress, tree),
            cache=cache,
            divisors=send(config.divisors(torch.arange(1, longest + 1)).to(dtype), device),
            limits=limits.tolist(),
            token_classes=token_classes,
            word_starts=starts,
        )

    @property
    def memory(self) -> Memory:
        """The encoded sources."""
        return self.sentences.memory

    @property
    def constraints(self) -> ConstrainedBeam | None:
        """The constraints of the sentences and the progress of the hypotheses with them."""
        terms, progress = self.sentences.constraints, self.beam.progress
        if terms is None or progress is None or self.word_starts is None:
            return None
        return ConstrainedBeam(terms, self.word_starts, progress)

    def step(self, need_attention: bool) -> LoggedStep:
        """Makes one step with every sentence."""
        config, attend = self.config, need_attention or self.config.coverage_penalty > 0
        tokens = self.sentences.tokens.flatten()
        readout, state = self.model.advance(tokens, self.beam.state, self.memory, self.cache, attend)
        coverage = cost = None  # `(N,S)`, and the penalty of each hypothesis `(B,W)`
        if config.coverage_penalty:
            assert readout.attention is not None
            # Always a new tensor: `insert` writes into it.
            coverage = readout.attention + (0.0 if self.beam.coverage is None else self.beam.coverage)
            words = (rules.source_words(self.memory.mask) if self.model.source_end else self.memory.mask)[:, None]
            seen = coverage.view(*self.sentences.scores.shape, -1)  # (B,W,S)
            cost = rules.coverage_penalty(config.coverage_kind, seen, words, config.coverage_penalty)
        self.beam = replace(self.beam, state=state, coverage=coverage)
        step, penalties = self._after_limits(*self._choose(readout, cost))
        final = self._ranking_scores(step, penalties, cost)
        attention, gate = (
            None if one is None else one.view(len(final), -1, one.shape[1]).expand(-1, config.beam_size, -1)
            for one in ((readout.attention, readout.copy_gate) if need_attention else (None, None))
        )
        position = self.cache.position
        self.sentences = self.sentences.after_step(step, final, penalties, config, self.divisors, position)
        self._follow(step.parents.gather(1, step.kept))
        return LoggedStep(step, final, attention, gate)

    def compact(self, order: Integers) -> None:
        """Goes on with these sentences, by number, in an order that moves few: see `compaction_order`."""
        count, width, device = len(order), self.sentences.scores.shape[1], self.sentences.scores.device
        moved = np.flatnonzero(order != np.arange(count))
        places = torch.from_numpy(moved), torch.from_numpy(order[moved])
        holes, movers = (send(rows, device) for rows in places)
        self.sentences.put(holes, self.sentences.select(movers))
        self.beam.put(self._rows(holes), self.beam.select(self._rows(movers)))
        self.sentences, self.beam = self.sentences.select(slice(count)), self.beam.select(slice(count * width))
        self.cache.compact_batch(*places, count)

    def insert(self, slots: Tensor, other: "DecodingBatch") -> None:
        """Puts the sentences of another batch into slots `(M,)`; both have made a step, and S is the same."""
        self.divisors = max(self.divisors, other.divisors, key=len)
        # Their shortlists differ in size.
        sentences = replace(self.sentences, memory=self.model.with_shortlist(self.memory, None))
        sentences.put(slots, replace(other.sentences, memory=self.model.with_shortlist(other.memory, None)))
        if (candidates := sentences.candidates) is not None:  # with words that no sentence had before
            sentences = replace(sentences, memory=self.model.with_shortlist(sentences.memory, candidates))
        beam, history = other.beam, self.beam.history
        if history is not None and beam.history is not None:
            beam = replace(beam, history=_padded(beam.history, history.shape[1]))
        self.beam.put(self._rows(slots), beam)
        self.sentences = sentences
        self.cache.insert(slots, other.cache)

    def in_slots(self, count: int, length: int) -> "DecodingBatch":
        """A copy with so many slots and positions, none of whose tensors changes its size from now on.

        Its own sentences take the first slots; the others are done.
        """
        own = len(self.sentences.scores)
        rows = torch.arange(count, device=self.sentences.scores.device).clamp(max=own - 1)
        sentences, beam = self.sentences.select(rows), self.beam.select(self._rows(rows))
        fixed = replace(self, sentences=sentences, beam=beam, cache=copy(self.cache))
        fixed.cache.select(rows)
        fixed.sentences.done[own:] = True
        fixed.sentences.scores[own:] = -INFINITY
        fixed.cache.fix_length(length)
        # Sentences that come later may be longer.
        fixed.divisors = send(self.config.divisors(torch.arange(1, length + 1)).to(self.divisors.dtype), rows.device)
        if (history := fixed.beam.history) is not None:
            fixed.beam = replace(fixed.beam, history=_padded(history, length))
        return fixed

    def shallow_copy(self) -> "DecodingBatch":
        """Another batch of the same tensors. A step replaces them, and writes into the cache only."""
        return replace(self, cache=copy(self.cache))

    def changing(self) -> list[Tensor]:
        """The tensors that a step of a batch with fixed slots replaces."""
        return [*self.sentences.tensors(), *self.beam.tensors(), *self.cache.changing()]

    def under_rules(self, log_probs: Tensor) -> Tensor:
        """The log-probabilities `(N,X)` under all rules; written into."""
        sentences, width, position = self.sentences, self.sentences.scores.shape[1], self.cache.position
        if (tree := self.beam.tree) is not None:
            return tree.forbid(log_probs, (sentences.last_position - position + 1).repeat_interleave(width))
        is_forced = sentences.prefix is not None and self.config.prefix_bias == 1
        wanted = sentences.next_of_prefix(position) if is_forced else None
        must_start = None
        if wanted is not None and self.word_starts is not None:
            must_start = wanted == NEW_WORD
            wanted = wanted.masked_fill(must_start, PAD)

        def of_rows(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.repeat_interleave(width, 0)

        history = self.beam.history if self.config.no_repeat_ngram else None
        if history is not None:
            history = self.token_classes.without_repeatable(history[:, : self.cache.length - 1])
        written = of_rows(position if history is not None or sentences.min_lengths is not None else None)
        history, wanted = (None if ids is None else self.memory.columns_of(ids) for ids in (history, wanted))
        constraints = self.constraints
        end, wanted = None if constraints is None else log_probs[:, EOS].clone(), of_rows(wanted)
        log_probs = rules.apply_rules(log_probs, self.config, written, history, wanted, of_rows(sentences.min_lengths))
        if must_start is not None and self.word_starts is not None:
            rows = must_start.repeat_interleave(width)  # (N,)
            log_probs.masked_fill_(rows[:, None] & self._columns_inside_words(log_probs.shape[1]), -INFINITY)
        if constraints is not None and end is not None:
            constraints.forbid(log_probs, end, None if wanted is None else wanted == PAD, self.memory)
        return log_probs

    def _columns_inside_words(self, size: int) -> Tensor:
        """The columns of tokens that continue a word `(X,)`, bool; copied words and EOS do not."""
        assert self.word_starts is not None
        shortlist = self.memory.shortlist
        starts = self.word_starts if shortlist is None else self.word_starts[shortlist.index.words]  # (V,)
        inside = ~pad(starts, (0, size - len(starts)), value=True)  # (X,)
        inside[EOS] = False
        return inside

    def _rows(self, sentences: Tensor) -> Tensor:
        width = self.sentences.scores.shape[1]
        return (sentences[:, None] * width + torch.arange(width, device=sentences.device)).flatten()

    def _choose(self, readout: ModelOutput, cost: Tensor | None) -> tuple[StepCandidates, Tensor | None]:
        """The candidates of this step, and their `penalties` `(B,C)`, if there are any."""
        sampling, sentences, scores = self.config.samples > 0, self.sentences, self.sentences.scores
        cost = cost if self.config.coverage_kind == "summary" and not sampling else None
        if cost is not None or sentences.penalties is not None or sentences.diversity is not None:
            return self._choose_weighted(self.under_rules(self.model.predict(readout, self.memory)), cost)
        is_whole = not self.model.normalized or scores.numel() * self.model.sizes["tgt"] < MANY_LOGITS
        is_whole |= sampling or self.config.certain_prefix or self.config.brackets
        if is_whole or sentences.constraints is not None:
            return self._choose_by(self.under_rules(self.model.predict(readout, self.memory)), scores), None
        # Of many logits only their log-sum is computed, and which of them may be among the best.
        logits, beam_size = self.model.logits(readout, self.memory), self.config.beam_size
        sums, tops = block_maxima(logits, BLOCK)
        if readout.copy_gate is not None:
            mixed = self.model.copied(logits, readout, self.memory, sums[:, None])
            return beam_step(self.under_rules(mixed), scores, beam_size), None
        logits = self.under_rules(logits)
        has_common_rules = self.beam.history is None and sentences.prefix is None
        if has_common_rules:  # rules that hold for all forbid only words of the first block
            tops[:, 0] = logits[:, :BLOCK].amax(1)
        return beam_step(logits, scores - sums.view(scores.shape), beam_size, tops if has_common_rules else None), None

    def _choose_by(self, log_probs: Tensor, scores: Tensor) -> StepCandidates:
        """The candidates by these numbers: of beam search, constrained beam search or sampling."""
        config, constraints = self.config, self.constraints
        if constraints is not None:
            return constraints.choose(log_probs, scores, config.beam_size, self.memory)
        if not config.samples:
            return beam_step(log_probs, scores, config.beam_size)
        return sample_step(log_probs, scores, self.sentences.number, self.cache.position, config, self.memory)

    def _choose_weighted(self, log_probs: Tensor, cost: Tensor | None) -> tuple[StepCandidates, Tensor | None]:
        """The candidates by their scores if the hypotheses ended here, penalties and preferences counted."""
        config, scores = self.config, self.sentences.scores
        penalties, before = self.sentences.penalties, self.sentences.diversity
        ranks, weighted = scores, log_probs
        if penalties is not None:
            assert self.beam.history is not None
            ranks, history = ranks + penalties, self.beam.history[:, : self.cache.length - 1]
            if self.sentences.prefix is not None and config.prefix_bias < 1:
                wanted = self.memory.columns_of(self.sentences.next_of_kept_prefix(self.cache.position, history))
                weighted = rules.bias_to_prefix(weighted, wanted, config.prefix_bias)
            written = self.memory.columns_of(history)
            weighted = rules.apply_repetition_penalty(weighted, written, config.repetition_penalty)
        if cost is not None:
            ranks = ranks + cost * self._divisor()
        if before is None:
            step = self._choose_by(weighted, ranks)
        else:
            groups, strength = config.diversity_groups, config.diversity_strength
            step, cost_of_step = diverse_beam_step(weighted, ranks + before, config.beam_size, groups, strength)
            diversity = (before.gather(1, step.parents) + cost_of_step).gather(1, step.kept)
            self.sentences = replace(self.sentences, diversity=diversity)
        step, more = with_model_scores(step, log_probs, scores, weighted)
        return step, None if penalties is None else penalties.gather(1, step.parents) + more

    def _after_limits(self, step: StepCandidates, penalties: Tensor | None) -> tuple[StepCandidates, Tensor | None]:
        """The candidates by their ids, as `at_limit` and `stop` change them, and their penalties `(B,C)`."""
        config, sentences = self.config, self.sentences
        if self.memory.shortlist is not None:
            step = replace(step, tokens=self.memory.ids_of(step.tokens))
        if config.at_limit == "end":
            limit, constraints = (self.cache.position >= sentences.last_position)[:, None], self.constraints
            scores = sentences.scores if constraints is None else constraints.enough(sentences.scores)
            step = end_at_limit(limit, step, scores)
            if penalties is not None and sentences.penalties is not None:
                penalties = torch.where(limit, sentences.penalties.gather(1, step.parents), penalties)
        if config.rule in rules.BEAM_PLACE_RULES:
            step = keep_beam_places(step, config.beam_size, sentences.ended)
        return step, penalties

    def _ranking_scores(self, step: StepCandidates, penalties: Tensor | None, cost: Tensor | None) -> Tensor:
        """The ranking scores of the candidates, `(B,C)`."""
        config, ended, constraints = self.config, self.sentences.ended, self.constraints
        summed = step.scores if penalties is None else step.scores + penalties
        final = summed / self._divisor()
        if cost is not None:
            final = final + cost.gather(1, step.parents)
        if config.word_reward:
            final = final + config.word_reward * (self._written + 1)[:, None].to(final.dtype)
        if ended is not None:
            final = final.masked_fill(ended.gather(1, step.parents), -INFINITY)
        return final if constraints is None else constraints.ranked(step, final)

    def _divisor(self) -> Tensor:
        return self.divisors.index_select(0, self._written)[:, None]

    @property
    def _written(self) -> Tensor:
        """Tokens behind the prompt before this step `(B,)`."""
        return self.sentences.written(self.cache.position, len(self.divisors) - 1)

    def _follow(self, parents: Tensor) -> None:
        """Moves on to the next position, with the children of `parents` `(B,K)` that `sentences` has."""
        tokens, constraints, width = self.sentences.tokens.view(-1), self.constraints, parents.shape[1]
        rows = None if width == 1 else self.cache.parent_rows(parents)  # one hypothesis is its own parent
        if constraints is not None:
            progress = constraints.after(self.cache.parent_rows(parents).view_as(parents), self.sentences.tokens)
        self.cache.next_step(rows, width)
        self.beam = self.beam.children(rows, tokens)
        if constraints is not None:
            self.beam = replace(self.beam, progress=progress.mapped(lambda tensor: tensor.flatten(0, 1)))
        if (history := self.beam.history) is not None:
            if history.shape[1] < self.cache.length - 1:
                history = pad(history, (0, 1), value=NO_TOKEN)
            last = (self.cache.position - 1).repeat_interleave(width)[:, None]
            self.beam = replace(self.beam, history=history.scatter(1, last, tokens[:, None]))


def _padded(history: Tensor, length: int) -> Tensor:
    return pad(history, (0, length - history.shape[1]), value=NO_TOKEN)
