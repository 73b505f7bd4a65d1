"""A bank of slots: in each a sentence that is searched, with its K hypotheses, at a position of its own.

Letters as in `nmtkit.search.beam`. All that a step decides stays on the device. A slot whose sentence is done goes on
computing what nobody reads, until another sentence takes its place or the slot is given up.
"""

from copy import copy
from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.batch import Batch
from nmtkit.data.shortlist import Shortlist
from nmtkit.data.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.layers.copying import number_by_position
from nmtkit.layers.kernels import block_maxima
from nmtkit.layers.kv_cache import INITIAL_LENGTH, KVCache
from nmtkit.models.base import DecoderOutput, DecoderState, Memory, Seq2Seq
from nmtkit.search.beam import (
    BLOCK,
    BeamStep,
    StepResult,
    beam_step,
    diverse_beam_step,
    end_at_limit,
    keep_beam_places,
    with_model_scores,
)
from nmtkit.search.constraints import Constraints, ConstraintState
from nmtkit.search.rules import (
    INFINITY,
    PLACE_RULES,
    SearchConfig,
    apply_repetition_penalty,
    apply_rules,
    bias_to_prefix,
    max_lengths,
)
from nmtkit.search.sampling import sample_keys, sample_step
from nmtkit.search.scoring import coverage_penalty, source_words
from nmtkit.search.sentences import NO_TOKEN_INFO, SentenceState, TokenInfo

MANY_LOGITS = 1 << 17
"""So many logits are not made log-probabilities of; for fewer, one operation takes less time than several."""
Integers = npt.NDArray[np.int64]
NOTHING = -1
"""Stands in a history behind the last token."""


@dataclass
class DecodingBatch:
    """Where a search stands between two steps."""

    model: Seq2Seq
    config: SearchConfig
    sentences: SentenceState
    divisors: Tensor
    """The length penalty of 1, 2, ... tokens, as many as any sentence may have."""
    limits: list[int]
    """The most tokens of the sentences that it began with, on the host."""
    memory: Memory
    state: DecoderState
    cache: KVCache
    tokens: Tensor
    """The words just chosen, `(N,)`; a word that only the source has is V and its first place there."""
    scores: Tensor
    """Log-probabilities of the hypotheses, `(B,W)`; minus infinity where a sentence is done."""
    history: Tensor | None
    """All words so far `(N,*)`, `EMPTY_SUM` behind them, where a rule asks for them."""
    coverage: Tensor | None = None
    """The sum of all attention so far `(N,S)`, where a penalty asks for it."""
    token_info: TokenInfo = NO_TOKEN_INFO
    """Of `may_repeat` one more, which stands for copied words."""
    grid: ConstraintState | None = None
    """How far the hypotheses have come with required terms, where there are any."""

    @classmethod
    def begin(
        cls,
        model: Seq2Seq,
        batch: Batch,
        config: SearchConfig,
        n_best: int,
        token_info: TokenInfo = NO_TOKEN_INFO,
        shortlist: Shortlist | None = None,
    ) -> "DecodingBatch":
        """All sentences of a batch before their first step."""
        lengths, prefix, terms = batch.src_lengths.cpu(), batch.prefix, batch.terms
        assert terms is None or isinstance(terms, Constraints)
        room = None if terms is None else terms.room().cpu()
        limits = max_lengths(config, lengths, None if prefix is None else prefix.cpu(), room)
        batch = batch.mapped(torch.clone)  # what is kept of it is written into
        device, size, columns = batch.src.device, batch.size, batch.src.shape[1]
        if model.config.copies:
            source, known = batch.src_extended, model.sizes.tgt
            prefix = None if prefix is None else number_by_position(prefix, source, known, UNK)
            terms = None if terms is None else terms.changed(lambda ids: number_by_position(ids, source, known, UNK))
            more = -(known + columns) % BLOCK + columns  # whole blocks are searched sooner
            batch = replace(batch, src_extended=number_by_position(source, source, known, UNK), n_oov=more)
        memory = model.encode(batch)
        candidates = None
        if shortlist is not None:
            given = [ids for ids in (prefix, None if terms is None else terms.ids()) if ids is not None]
            candidates = shortlist.candidates(batch, model.config.copies, torch.cat(given, 1) if given else None)
            memory = model.with_shortlist(memory, candidates)
        most = int(limits.max())
        positions = min(most, max(INITIAL_LENGTH, columns * 5 // 4))  # few translations need more
        model.reserve_positions(most)
        dtype = torch.promote_types(next(model.parameters(), torch.empty(0)).dtype, torch.float32)
        scores = torch.zeros(size, 1, dtype=dtype, device=device)
        sentences = SentenceState.begin(config, lengths, limits, prefix, scores, n_best)
        looks_back = config.no_repeat_ngram > 0 or sentences.penalties is not None
        return cls(
            model=model,
            config=config,
            sentences=replace(sentences, candidates=candidates),
            divisors=_divisors(config, most).to(device, dtype),
            limits=limits.tolist(),
            memory=memory,
            state=model.start(memory),
            cache=KVCache(size, config.beam_size, device, width=1, room=positions),
            tokens=torch.full((size,), BOS, device=device),
            scores=scores,
            history=torch.zeros(size, 0, dtype=torch.long, device=device) if looks_back else None,
            token_info=token_info,
            grid=None if terms is None else ConstraintState.begin(terms, token_info.starts),
        )

    def number(self, numbers: Tensor) -> None:
        """Says which its sentences are among all that are searched `(B,)`; at first they are 0 to B-1."""
        self.sentences = replace(self.sentences, number=numbers)

    def step(self, need_attention: bool) -> StepResult:
        """Makes one step with every sentence."""
        config, attend = self.config, need_attention or self.config.coverage_penalty > 0
        readout, self.state = self.model.advance(self.tokens, self.state, self.memory, self.cache, attend)
        cost = self._cost(readout) if config.coverage_penalty else None
        choice, penalties = self._by_rule(*self._chosen(readout, cost))
        final = self._final(choice, penalties, cost)
        if penalties is not None:
            self.sentences = replace(self.sentences, penalties=penalties.gather(1, choice.kept))
        position = self.cache.position
        self.sentences, over = self.sentences.after_choice(choice, final, config, self.divisors, position)
        record = self._record(choice, final, readout) if need_attention else StepResult(choice, final, None, None)
        self._follow(choice, over)
        return record

    def select(self, kept: Tensor) -> None:
        """Goes on with these sentences, by number, `(M,)`."""
        rows = self._rows(kept)
        self.sentences, self.memory = self.sentences.select(kept), self.memory.select(kept)
        self.grid = None if self.grid is None else self.grid.select(kept, rows)
        self.scores = self.scores.index_select(0, kept)
        self.cache.select(kept)
        self.state, self.tokens = self.state.select(rows), self.tokens.index_select(0, rows)
        self.history = None if self.history is None else self.history.index_select(0, rows)
        self.coverage = None if self.coverage is None else self.coverage.index_select(0, rows)

    def close_up(self, order: Integers) -> None:
        """Goes on with these sentences, by number, in this order, which moves few: see `compaction_order`."""
        count, width, device = len(order), self.scores.shape[1], self.scores.device
        moved = np.flatnonzero(order != np.arange(count))
        holes, movers = torch.from_numpy(moved).to(device), torch.from_numpy(order[moved]).to(device)
        to, of = self._rows(holes), self._rows(movers)
        if self.grid is not None:
            every = torch.from_numpy(order).to(device)
            self.grid = self.grid.select(every, self._rows(every))
        sentences, rows = slice(count), slice(count * width)
        self.sentences.put(holes, self.sentences.select(movers))
        self.memory.put(holes, self.memory.select(movers))
        self.state.put(to, self.state.select(of))
        self.scores = self.scores.index_copy_(0, holes, self.scores.index_select(0, movers))[sentences]
        for of_rows in filter(_is_there, (self.tokens, self.history, self.coverage)):
            of_rows.index_copy_(0, to, of_rows.index_select(0, of))
        self.sentences, self.memory = self.sentences.select(sentences), self.memory.select(sentences)
        self.state, self.tokens = self.state.select(rows), self.tokens[rows]
        self.history = None if self.history is None else self.history[rows]
        self.coverage = None if self.coverage is None else self.coverage[rows]
        self.cache.compact_batch(holes, movers, count)

    def put(self, slots: Tensor, other: "DecodingBatch") -> None:
        """Puts the sentences of another bank into slots `(M,)`; both have made a step, and S is the same."""
        rows = self._rows(slots)
        self.divisors = max(self.divisors, other.divisors, key=len)
        self.sentences.put(slots, other.sentences)
        self._put_memory(slots, other.memory)
        self.state.put(rows, other.state)
        self.cache.insert(slots, other.cache)
        self.tokens.index_copy_(0, rows, other.tokens)
        self.scores.index_copy_(0, slots, other.scores)
        if self.history is not None and other.history is not None:
            shorter = self.history.shape[1] - other.history.shape[1]
            self.history.index_copy_(0, rows, pad(other.history, (0, shorter), value=NOTHING))
        if self.coverage is not None and other.coverage is not None:
            self.coverage.index_copy_(0, rows, other.coverage)

    def in_slots(self, count: int, places: int) -> "DecodingBatch":
        """A copy with so many slots and room for so many positions, more than any sentence needs.

        Its own sentences take the first slots, the others are done. No tensor in it changes its size from now on.
        """
        own = self.scores.shape[0]
        device = self.scores.device
        fixed = replace(self, cache=copy(self.cache))
        fixed.select(torch.arange(count, device=device).clamp(max=own - 1))
        fixed.sentences.done[own:] = True
        fixed.scores[own:] = -INFINITY
        fixed.cache.fix_length(places)
        fixed.divisors = _divisors(self.config, places).to(self.divisors)  # sentences that come later may be longer
        if fixed.history is not None:
            fixed.history = pad(fixed.history, (0, places - fixed.history.shape[1]), value=NOTHING)
        return fixed

    def copied(self) -> "DecodingBatch":
        """Another bank of the same tensors. A step gives it new ones, but for the entries of its cache."""
        return replace(self, cache=copy(self.cache))

    def changing(self) -> list[Tensor]:
        """The tensors that a step of a bank with fixed slots puts others in place of."""
        named = [self.tokens, self.scores, self.history, self.coverage]
        return [*self.sentences.tensors(), *self.state.tensors(), *self.cache.changing(), *filter(_is_there, named)]

    def _put_memory(self, slots: Tensor, other: Memory) -> None:
        """Puts the memory of the sentences in `slots`, which have just been put there, in its place."""
        candidates = self.sentences.candidates
        if candidates is None:
            self.memory.put(slots, other)
        else:  # there may be words among them that no sentence had before
            whole = replace(self.memory, shortlist=None)
            whole.put(slots, replace(other, shortlist=None))
            self.memory = self.model.with_shortlist(whole, candidates)

    def _rows(self, sentences: Tensor) -> Tensor:
        """The rows of their hypotheses."""
        width = self.scores.shape[1]
        return (sentences[:, None] * width + torch.arange(width, device=sentences.device)).flatten()

    def _chosen(self, readout: DecoderOutput, cost: Tensor | None) -> tuple[BeamStep, Tensor | None]:
        """The choice of this step, and the penalties of its candidates `(B,C)`, if there are any."""
        drawn, sentences = self.config.samples > 0, self.sentences
        cost = cost if self.config.coverage_kind == "summary" and not drawn else None
        if cost is not None or sentences.penalties is not None or sentences.lowered is not None:
            return self._weighed(self._ruled(self.model.predict(readout, self.memory)), cost)
        if drawn or self.grid is not None or len(self.tokens) * self.model.sizes.tgt < MANY_LOGITS:
            return self._by(self._ruled(self.model.predict(readout, self.memory)), self.scores), None
        # All that is made of so many logits is the log of their sum, and which may be among the best.
        logits, beam = self.model.logits(readout, self.memory), self.config.beam_size
        sums, tops = block_maxima(logits, BLOCK)
        if readout.copy_gate is not None:
            mixed = self.model.copied(logits, readout, self.memory, sums[:, None])
            return beam_step(self._ruled(mixed), self.scores, beam), None
        scores = self.scores - sums.view(self.scores.shape)
        return beam_step(self._ruled(logits), scores, beam, self._tops(logits, tops)), None

    def _by_rule(self, choice: BeamStep, penalties: Tensor | None) -> tuple[BeamStep, Tensor | None]:
        """The choice by ids and as `at_limit` and `stop` change it, with the penalties of its candidates `(B,C)`."""
        config = self.config
        if self.memory.shortlist is not None:
            choice = replace(choice, tokens=self.memory.shortlist.index.ids_of(choice.tokens))
        if config.at_limit == "end":
            limit = (self.cache.position >= self.sentences.last)[:, None]
            choice = end_at_limit(limit, choice, self.scores if self.grid is None else self.grid.enough(self.scores))
            if penalties is not None and self.sentences.penalties is not None:
                penalties = torch.where(limit, self.sentences.penalties.gather(1, choice.parents), penalties)
        if config.rule in PLACE_RULES:
            choice = keep_beam_places(choice, config.beam_size, self.sentences.spent)
        return choice, penalties

    def _final(self, choice: BeamStep, penalties: Tensor | None, cost: Tensor | None) -> Tensor:
        """What candidates are ranked by, `(B,C)`."""
        config, spent = self.config, self.sentences.spent
        summed = choice.scores if penalties is None else choice.scores + penalties
        final = summed / self._divisor()
        if cost is not None:
            final = final + cost.gather(1, choice.parents)
        if config.word_reward:
            final = final + config.word_reward * (self.cache.position + 1)[:, None].to(final.dtype)
        if spent is not None:
            final = final.masked_fill(spent.gather(1, choice.parents), -INFINITY)
        return final if self.grid is None else self.grid.ranked(choice, final)

    def _by(self, log_probs: Tensor, scores: Tensor) -> BeamStep:
        """The choice by these numbers, of the best, with terms, or drawn."""
        config = self.config
        if self.grid is not None:
            return self.grid.choose(log_probs, scores, config.beam_size, self.memory)
        if not config.samples:
            return beam_step(log_probs, scores, config.beam_size)
        keys = sample_keys(config.seed, self.sentences.number, self.cache.position, config.samples)
        return sample_step(log_probs, scores, keys, config, self.memory)

    def _weighed(self, log_probs: Tensor, cost: Tensor | None) -> tuple[BeamStep, Tensor | None]:
        """A choice by more than log-probabilities: by what the hypotheses would be ranked by if they ended here."""
        config, penalties, before = self.config, self.sentences.penalties, self.sentences.lowered
        ranks, weighed = self.scores, log_probs
        if penalties is not None:
            assert self.history is not None
            ranks, history = ranks + penalties, self.history[:, : self.cache.length - 1]
            if self.sentences.prefix is not None and config.prefix_bias < 1:
                wanted = self._in_columns(self.sentences.wanted_so_far(self.cache.position, history))
                weighed = bias_to_prefix(weighed, wanted, config.prefix_bias)
            weighed = apply_repetition_penalty(weighed, self._in_columns(history), config.repetition_penalty)
        if cost is not None:
            ranks = ranks + cost * self._divisor()
        if before is None:
            choice = self._by(weighed, ranks)
        else:
            groups, strength = config.diversity_groups, config.diversity_strength
            choice, lower = diverse_beam_step(weighed, ranks + before, config.beam_size, groups, strength)
            lowered = (before.gather(1, choice.parents) + lower).gather(1, choice.kept)
            self.sentences = replace(self.sentences, lowered=lowered)
        choice, more = with_model_scores(choice, log_probs, self.scores, weighed)
        return choice, None if penalties is None else penalties.gather(1, choice.parents) + more

    def _divisor(self) -> Tensor:
        """The length penalty of the hypotheses with the words of this step, `(B,1)`."""
        return self.divisors.index_select(0, self.cache.position)[:, None]

    def _in_columns(self, ids: Tensor) -> Tensor:
        """Where the distributions have these words."""
        return ids if self.memory.shortlist is None else self.memory.shortlist.index.columns_of(ids)

    def _tops(self, logits: Tensor, tops: Tensor) -> Tensor | None:
        """The maxima of blocks under the rules, where they are known sooner than made anew."""
        if self.history is not None or self.sentences.prefix is not None:
            return None
        tops[:, 0] = logits[:, :BLOCK].amax(1)  # where the words are that rules for all forbid
        return tops

    def _ruled(self, log_probs: Tensor) -> Tensor:
        """The log-probabilities `(N,X)` under the rules."""
        sentences, width, position = self.sentences, self.scores.shape[1], self.cache.position
        wanted = sentences.wanted(position) if self.config.prefix_bias == 1 else None

        def of_rows(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.repeat_interleave(width, 0)

        history = self.history if self.config.no_repeat_ngram else None
        if history is not None:
            history = history[:, : self.cache.length - 1]
            if (may_repeat := self.token_info.may_repeat) is not None:
                again = may_repeat[history.clamp(min=0, max=len(may_repeat) - 1)]
                history = history.masked_fill(again, NOTHING)
        written = of_rows(position if history is not None or sentences.least is not None else None)
        history, wanted = (None if ids is None else self._in_columns(ids) for ids in (history, wanted))
        end, wanted = None if self.grid is None else log_probs[:, EOS].clone(), of_rows(wanted)
        log_probs = apply_rules(log_probs, self.config, written, history, wanted, of_rows(sentences.least))
        if self.grid is not None and end is not None:
            self.grid.forbid(log_probs, end, None if wanted is None else wanted == PAD, self.memory)
        return log_probs

    def _cost(self, readout: DecoderOutput) -> Tensor:
        """The coverage penalty of each hypothesis `(B,W)`, once it has looked as it does in this step."""
        assert readout.attention is not None
        before = 0.0 if self.coverage is None else self.coverage
        self.coverage = readout.attention + before  # never the readout's own tensor: `put` writes into it
        words = source_words(self.memory.mask) if self.model.source_end else self.memory.mask
        mask = words.repeat_interleave(self.scores.shape[1], 0)
        cost = coverage_penalty(self.config.coverage_kind, self.coverage, mask, self.config.coverage_penalty)
        return cost.view(self.scores.shape)

    def _record(self, choice: BeamStep, final: Tensor, readout: DecoderOutput) -> StepResult:
        size, beam = len(final), self.config.beam_size

        def of_all(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.view(size, -1, values.shape[1]).expand(-1, beam, -1)

        return StepResult(choice, final, of_all(readout.attention), of_all(readout.copy_gate))

    def _follow(self, choice: BeamStep, over: Tensor) -> None:
        """Goes on with what was chosen, but for what is over `(B,G)`."""
        parents = choice.parents.gather(1, choice.kept)  # (B,K)
        self.tokens = choice.tokens.gather(1, choice.kept).flatten()
        beam = parents.shape[1]
        if self.grid is not None:
            self.grid = self.grid.follow(self.cache.parent_rows(parents), self.tokens)
        by_group = choice.kept_scores.view(*over.shape, -1)
        self.scores = by_group.masked_fill(over[:, :, None], -INFINITY).flatten(1)
        if beam == 1:  # every hypothesis is its own parent
            self.cache.next_step()
        else:
            rows = self.cache.parent_rows(parents)
            self.cache.next_step(rows, beam)
            self.state = self.state.select(rows)
            self.history = None if self.history is None else self.history.index_select(0, rows)
            self.coverage = None if self.coverage is None else self.coverage.index_select(0, rows)
        if self.history is not None:
            self._remember(self.history)

    def _remember(self, history: Tensor) -> None:
        """Appends the words just chosen, each behind the words of its own hypothesis."""
        if history.shape[1] < self.cache.length - 1:
            history = pad(history, (0, 1), value=NOTHING)
        last = (self.cache.position - 1).repeat_interleave(self.config.beam_size)[:, None]
        self.history = history.scatter(1, last, self.tokens[:, None])


def _divisors(config: SearchConfig, most: int) -> Tensor:
    """The length penalties of 1 to so many tokens."""
    return config.divisors(torch.arange(1, most + 1))


def _is_there(tensor: Tensor | None) -> TypeGuard[Tensor]:
    return tensor is not None
