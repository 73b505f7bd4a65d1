"""A bank of slots: in each a sentence that is searched, with its K hypotheses, at a position of its own.

Letters as in `nmtkit.search.choose`. All that a step decides stays on the device. A slot whose sentence is done goes on
computing what nobody reads, until another sentence takes its place or the slot is given up.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.batch import Batch, Rows
from nmtkit.data.vocabulary import BOS, PAD
from nmtkit.layers.past import Past
from nmtkit.models.base import DecoderState, Memory, Readout, Seq2Seq
from nmtkit.search.choose import Choice, Choose
from nmtkit.search.rules import INFINITY, SearchConfig, apply_rules, least_lengths, length_limits
from nmtkit.search.scoring import coverage_penalty, length_penalty

NOTHING = -1
"""Stands in a history behind the last token."""


@dataclass(frozen=True)
class Sentences(Rows):
    """What has one row per sentence, and does not belong to the model."""

    written: Tensor
    """Tokens of its hypotheses so far `(B,)`."""
    limits: Tensor
    """Most tokens, EOS counted, `(B,)`."""
    least: Tensor | None
    """Fewest tokens `(B,)`, EOS not counted; None where no rule asks for any."""
    prefix: Tensor | None
    """Forced tokens `(B,P)`."""
    done: Tensor
    """`(B,)`, bool."""
    n_finished: Tensor
    """Finished hypotheses so far `(B,)`."""
    best: Tensor
    """Scores of the best finished hypotheses `(B,n_best)`, best first; kept for `exact` only."""


@dataclass(frozen=True)
class Record(Rows):
    """What one step decided, as it is read back."""

    choice: Choice
    final: Tensor
    """What candidates are ranked by, `(B,C)`."""
    attention: Tensor | None
    """Of the hypotheses before the choice `(B,K,*)`, where asked for; in the first step all are one."""
    copy_gate: Tensor | None
    """`(B,K,1)`."""


@dataclass
class Bank:
    """Where a search stands between two steps."""

    model: Seq2Seq
    config: SearchConfig
    sentences: Sentences
    divisors: Tensor
    """The length penalty of 1, 2, ... tokens, as many as any sentence may have."""
    limits: list[int]
    """The most tokens of the sentences that it began with, on the host."""
    memory: Memory
    state: DecoderState
    past: Past
    tokens: Tensor
    """The words just chosen, `(N,)`."""
    scores: Tensor
    """Log-probabilities of the hypotheses, `(B,W)`."""
    history: Tensor | None
    """All words so far `(N,t)`, `NOTHING` behind them, where a rule asks for them."""
    coverage: Tensor | None = None
    """The sum of all attention so far `(N,S)`, where a penalty asks for it."""

    @classmethod
    def begin(cls, model: Seq2Seq, batch: Batch, config: SearchConfig, n_best: int, prefix: Tensor | None) -> "Bank":
        """All sentences of a batch before their first step."""
        memory = model.encode(batch)
        device, size = memory.mask.device, batch.size
        lengths = batch.src_lengths.cpu()
        limits = length_limits(config, lengths, None if prefix is None else prefix.cpu())
        most = int(limits.max())
        model.reserve(most)
        divisors = length_penalty(config.length_penalty, torch.arange(1, most + 1), config.alpha).to(device)
        least = least_lengths(config, lengths).to(device) if config.min_length or config.min_length_ratio else None
        zeros = torch.zeros(size, dtype=torch.long, device=device)
        sentences = Sentences(
            written=zeros,
            limits=limits.to(device),
            least=least,
            prefix=None if prefix is None else prefix.to(device),
            done=zeros.bool(),
            n_finished=zeros,
            best=torch.full((size, n_best), -INFINITY, device=device),
        )
        return cls(
            model=model,
            config=config,
            sentences=sentences,
            divisors=divisors,
            limits=limits.tolist(),
            memory=memory,
            state=model.start(memory),
            past=Past(size, config.beam_size, width=1),
            tokens=torch.full((size,), BOS, device=device),
            scores=torch.zeros(size, 1, device=device),
            history=zeros[:, None][:, :0] if config.no_repeat_ngram else None,
        )

    def step(self, choose: Choose, need_attention: bool) -> Record:
        """Makes one step with every sentence."""
        config, attend = self.config, need_attention or self.config.coverage_penalty > 0
        log_probs, readout, self.state = self.model.step(self.tokens, self.state, self.memory, self.past, attend)
        if log_probs.dtype in (torch.float16, torch.bfloat16):
            log_probs = log_probs.float()
        choice = choose(self._ruled(log_probs), self.scores, config.beam_size)
        choice = replace(choice, ended=choice.ended & ~self.sentences.done[:, None])
        place = self.sentences.written.clamp(max=len(self.divisors) - 1)
        final = choice.scores / self.divisors[place].to(choice.scores)[:, None]  # (B,C)
        if config.coverage_penalty:
            final = final + self._cost(readout).gather(1, choice.parents)
        self._note_finished(choice, final)
        record = self._record(choice, final, readout) if need_attention else Record(choice, final, None, None)
        self._follow(choice)
        return record

    def select(self, kept: Tensor) -> None:
        """Goes on with these sentences, by number, `(M,)`."""
        rows = self._rows(kept)
        self.sentences, self.memory = self.sentences.select(kept), self.memory.select(kept)
        self.scores = self.scores.index_select(0, kept)
        self.past.select(kept)
        self.state, self.tokens = self.state.select(rows), self.tokens.index_select(0, rows)
        self.history = None if self.history is None else self.history.index_select(0, rows)
        self.coverage = None if self.coverage is None else self.coverage.index_select(0, rows)

    def put(self, slots: Tensor, other: "Bank") -> None:
        """Puts the sentences of another bank into slots `(M,)`; both have made a step, and S is the same."""
        rows = self._rows(slots)
        self.divisors = max(self.divisors, other.divisors, key=len)
        self.sentences.put(slots, other.sentences)
        self.memory = replace(self.memory, n_oov=max(self.memory.n_oov, other.memory.n_oov))
        self.memory.put(slots, other.memory)
        self.state.put(rows, other.state)
        self.past.put(slots, other.past)
        self.tokens.index_copy_(0, rows, other.tokens)
        self.scores.index_copy_(0, slots, other.scores)
        if self.history is not None and other.history is not None:
            shorter = self.history.shape[1] - other.history.shape[1]
            self.history.index_copy_(0, rows, pad(other.history, (0, shorter), value=NOTHING))
        if self.coverage is not None and other.coverage is not None:
            self.coverage.index_copy_(0, rows, other.coverage)

    def _rows(self, sentences: Tensor) -> Tensor:
        """The rows of their hypotheses."""
        width = self.scores.shape[1]
        return (sentences[:, None] * width + torch.arange(width, device=sentences.device)).flatten()

    def _ruled(self, log_probs: Tensor) -> Tensor:
        """The log-probabilities `(N,X)` under the rules."""
        sentences, width = self.sentences, self.scores.shape[1]
        wanted = None
        if sentences.prefix is not None:
            columns = sentences.prefix.shape[1]
            wanted = sentences.prefix.gather(1, sentences.written.clamp(max=columns - 1)[:, None]).squeeze(1)
            wanted = wanted.masked_fill(sentences.written >= columns, PAD)

        def of_rows(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.repeat_interleave(width, 0)

        written = of_rows(sentences.written if self.history is not None or sentences.least is not None else None)
        return apply_rules(log_probs, self.config, written, self.history, of_rows(wanted), of_rows(sentences.least))

    def _cost(self, readout: Readout) -> Tensor:
        """The coverage penalty of each hypothesis `(B,W)`, once it has looked as it does in this step."""
        assert readout.attention is not None
        before = 0.0 if self.coverage is None else self.coverage
        self.coverage = readout.attention + before  # never the readout's own tensor: `put` writes into it
        mask = self.memory.mask.repeat_interleave(self.scores.shape[1], 0)
        cost = coverage_penalty(self.config.coverage_kind, self.coverage, mask, self.config.coverage_penalty)
        return cost.view(self.scores.shape)

    def _note_finished(self, choice: Choice, final: Tensor) -> None:
        """Counts the hypotheses that ended in this step, and says which sentences are done."""
        now = self.sentences
        written = now.written + 1
        n_finished, best = now.n_finished + choice.ended.sum(1), now.best
        top = choice.kept_scores.amax(1)  # (B,)
        if self.config.stop == "exact":
            ended = final.masked_fill(~choice.ended, -INFINITY)
            best = torch.cat([best.to(final.dtype), ended], 1).topk(best.shape[1], 1)[0]
            largest = self.divisors[now.limits - 1].to(top)
            satisfied = best[:, -1] >= top / largest  # as if the rest cost nothing, at the largest divisor
        else:
            satisfied = n_finished >= self.config.beam_size
        # Where no live hypothesis is left, all ways were forbidden or have ended.
        done = now.done | satisfied | (now.limits <= written) | (top == -INFINITY)
        self.sentences = replace(now, written=written, done=done, n_finished=n_finished, best=best)

    def _record(self, choice: Choice, final: Tensor, readout: Readout) -> Record:
        size, beam = len(final), self.config.beam_size

        def of_all(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.view(size, -1, values.shape[1]).expand(-1, beam, -1)

        return Record(choice, final, of_all(readout.attention), of_all(readout.copy_gate))

    def _follow(self, choice: Choice) -> None:
        """Goes on with what was chosen."""
        parents = choice.parents.gather(1, choice.kept)  # (B,K)
        self.tokens = choice.tokens.gather(1, choice.kept).flatten()
        width = self.scores.shape[1]
        self.scores = choice.kept_scores
        if parents.shape[1] == 1:  # every hypothesis is its own parent
            self.past.follow()
        else:
            self.past.follow(parents)
            firsts = torch.arange(0, len(parents) * width, width, device=parents.device)
            rows = (parents + firsts[:, None]).flatten()
            self.state = self.state.select(rows)
            self.history = None if self.history is None else self.history.index_select(0, rows)
            self.coverage = None if self.coverage is None else self.coverage.index_select(0, rows)
        if self.history is not None:
            self._remember(self.history)

    def _remember(self, history: Tensor) -> None:
        """Appends the words just chosen, each behind the words of its own hypothesis."""
        last = (self.sentences.written - 1).repeat_interleave(self.config.beam_size)[:, None]
        if history.shape[1] < self.past.places - 1:
            history = pad(history, (0, 1), value=NOTHING)
        self.history = history.scatter(1, last.clamp(max=history.shape[1] - 1), self.tokens[:, None])
