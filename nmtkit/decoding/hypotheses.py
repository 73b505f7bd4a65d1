"""Hypotheses, built from the results of the steps of a search.

Letters as in `nmtkit.decoding.beam_search`, but B sentences that are read together, which need not have begun together;
T steps at most, n hypotheses wanted for each sentence.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.decoding.beam_search import StepResult
from nmtkit.decoding.rules import INFINITY
from nmtkit.decoding.scorers import coverage_score
from nmtkit.decoding.search_state import Integers
from nmtkit.decoding.settings import SearchConfig

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Hypothesis:
    """One translation, or as much of it as the length limit allowed."""

    ids: list[int]
    """Without BOS and EOS; a model that copies also gives extended ids."""
    finished: bool
    """Whether it ended in EOS; if not, it was cut at the length limit."""
    score: float
    """The ranking score: the log-probability after length and coverage penalty."""
    log_prob: float
    """Sum of `token_log_probs`."""
    token_log_probs: list[float]
    """One for each id, then that of EOS if finished."""
    attention: npt.NDArray[np.float32] | None
    """One row for each of `token_log_probs`, one column for each source token, EOS included. None if not asked for, or
    if the model has no attention."""
    p_gen: list[float] | None = None
    """The probability of generating, not copying, one for each row of `attention`. None if the model does not copy."""


SentenceResult = tuple[int, list[Hypothesis]]
"""The number of a sentence, and its hypotheses, best first."""


@dataclass
class SentenceRecord:
    """A sentence of a search, from its first step to its last."""

    number: int
    """Its number within the whole search."""
    length: int
    """Positions of its memory that are real; of a text its tokens, EOS included."""
    limit: int
    """The most tokens that it may have, EOS included."""
    extended: Tensor | None
    """The extended ids of its source `(S,)`, for a model that copies: the search numbers unknown words by position."""
    first: StepResult
    """The first step, which it made within a batch of new sentences."""
    row: int
    """Its row in `first`."""
    start: int
    """Steps that the batch had made before."""
    slot: int = 0
    """Its row in the last result of the batch, once it is finished."""
    end: int = 0
    """Steps that the batch has made, once it is finished."""

    def extended_ids(self, ids: list[int], size: int) -> list[int]:
        """Returns the tokens of a hypothesis by their extended ids; `size` is V."""
        if self.extended is None or max(ids) < size:
            return ids
        source = self.extended.tolist()
        return [token if token < size else source[token - size] for token in ids]


@dataclass
class CompactionSpan:
    """Steps of a batch between two compactions."""

    start: int
    """Steps that the batch had made before."""
    kept: Integers
    """The row of the previous span that each row continues; empty in the first span."""
    results: list[StepResult]


@dataclass(frozen=True)
class _Ranked:
    """The best hypotheses of B sentences, best first, by their last tokens; all fields are `(B,2n)`."""

    scores: Floats
    """Ranking scores; minus infinity where there are fewer hypotheses."""
    finished: npt.NDArray[np.bool_]
    """Whether they have ended; if not, they were cut at the length limit."""
    steps: Integers
    """The steps of their last tokens."""
    numbers: Integers
    """Their numbers among the candidates of these steps."""


class _Steps:
    """The steps of finished sentences, on the CPU, counted from the first step of each sentence."""

    def __init__(self, sentences: Sequence[SentenceRecord], spans: Sequence[CompactionSpan]) -> None:
        self._sentences = sentences
        starts = np.array([sentence.start for sentence in sentences])
        ends = np.array([sentence.end for sentence in sentences])
        self.counts = ends - starts + 1
        """How many steps each sentence has made, `(B,)`."""
        self._parts = self._find_rows(spans, starts, ends)
        is_made = (np.arange(int(self.counts.max()))[:, None] < self.counts)[:, :, None]  # (T,B,1)
        self.scores: Floats = self.gather(lambda result: result.candidates.scores)  # (T,B,C)
        if np.isnan(self.scores).any(where=is_made):
            raise CheckpointError(
                "the model gives NaN for log-probabilities, so its weights are damaged: use an earlier checkpoint"
            )
        self.tokens: Integers = self.gather(lambda result: result.tokens)  # (T,B,C)
        self.parents: Integers = self.gather(lambda result: result.candidates.parents)  # (T,B,C)
        self.ended = self.gather(lambda result: result.candidates.ended) & is_made  # (T,B,C)
        self.kept: Integers = self.gather(lambda result: result.candidates.survivors)  # (T,B,K)
        self.ranking: Floats = self.gather(lambda result: result.ranking)  # (T,B,C)

    def _find_rows(
        self, spans: Sequence[CompactionSpan], starts: Integers, ends: Integers
    ) -> list[tuple[list[StepResult], tuple[Integers, Integers], tuple[Integers, Integers]]]:
        """For each span its results, the (step, sentence) of what is read of them, and the (result, row) of it.

        A sentence may have been in another row before each compaction, so spans are followed from the last to the
        first.
        """
        parts = []
        rows = np.array([sentence.slot for sentence in self._sentences])  # (B,): where each is in the present span
        for span in reversed(spans):
            if span.results:
                batch_steps = np.arange(span.start, span.start + len(span.results))[:, None]
                steps = batch_steps - starts + 1  # (t,B): of each sentence
                results, sentences = np.nonzero((steps > 0) & (steps < self.counts))
                parts.append((span.results, (steps[results, sentences], sentences), (results, rows[sentences])))
            if len(span.kept):
                was_there = ends > span.start  # the others were finished before, in a row of an earlier span
                earlier_rows = span.kept[np.where(was_there, rows, 0)]
                rows = np.where(was_there, earlier_rows, rows)
        return parts

    def gather(self, pick: Callable[[StepResult], Tensor]) -> npt.NDArray[Any]:
        """Returns one tensor `(*,C)` of each step, `(T,B,C)`; undefined after the last step of a sentence."""
        first_steps: dict[int, npt.NDArray[Any]] = {}  # sentences that began together share one
        for sentence in self._sentences:
            key = id(sentence.first)
            if key not in first_steps:
                first_steps[key] = pick(sentence.first).cpu().numpy()
        first = np.stack([first_steps[id(sentence.first)][sentence.row] for sentence in self._sentences])
        whole = np.zeros((int(self.counts.max()), *first.shape), first.dtype)
        whole[0] = first
        for results, places, origins in self._parts:
            steps = torch.stack([pick(result) for result in results])
            whole[places] = steps.cpu().numpy()[origins]
        return whole

    def gather_inherited(
        self, pick: Callable[[StepResult], Tensor | None], parents: Integers
    ) -> npt.NDArray[np.float32] | None:
        """Returns one tensor `(*,K,*)` of each step, for hypotheses with these parents `(B,n,T)`: `(T,B,n,*)`."""
        if pick(self._sentences[0].first) is None:
            return None
        whole = self.gather(cast(Callable[[StepResult], Tensor], pick))  # (T,B,K,*)
        step = np.arange(len(whole))[:, None, None]
        sentence = np.arange(whole.shape[1])[:, None]
        of_parents = whole[step, sentence, parents.transpose(2, 0, 1)]
        return of_parents.astype(np.float32)

    def rank(self, n_best: int, config: SearchConfig) -> _Ranked:
        """Ranks the candidates that ended in any step, and those that were cut at the length limit.

        Those that ended come before those that were cut, except where `at_limit` ranks them together.
        """
        _, n_sentences, n_candidates = self.tokens.shape
        sentence = np.arange(n_sentences)[:, None]
        is_ranked_together = config.limit_rule != "behind"

        # What ended, in all steps: entry step * C + number.
        ended = np.where(self.ended, self.ranking, -INFINITY)  # (T,B,C)
        ended = ended.transpose(1, 0, 2).reshape(n_sentences, -1)  # (B,T*C)

        # What was cut: candidates that were kept in the last step before the limit.
        limits = np.array([sentence.limit for sentence in self._sentences])
        last = np.minimum(limits, self.counts)[:, None] - 1  # (B,1)
        kept = self.kept[last, sentence, np.arange(self.kept.shape[2])]  # (B,K)
        has_reached_limit = (limits <= self.counts)[:, None]
        is_cut = has_reached_limit & ~self.ended[last, sentence, kept]  # a sample may end in this step
        if is_ranked_together:
            # Of the 2K candidates of a beam, or a group, the second half was only in reserve.
            is_cut &= kept % (n_candidates // config.groups) < config.hypotheses // config.groups
        cut = np.where(is_cut, self.ranking[last, sentence, kept], -INFINITY)  # (B,K)

        scores = np.concatenate([ended, cut], axis=1)
        best_cut = _best_first(cut, n_best) + ended.shape[1]
        order = np.concatenate([_best_first(ended, n_best), best_cut], axis=1)  # (B,2n)
        if is_ranked_together:
            order = order[sentence, _best_first(scores[sentence, order], 2 * n_best)]
        finished = order < ended.shape[1]
        steps, numbers = np.divmod(order, n_candidates)
        numbers_of_cut = np.take_along_axis(kept, np.maximum(order - ended.shape[1], 0), axis=1)
        return _Ranked(
            scores=scores[sentence, order],
            finished=finished,
            steps=np.where(finished, steps, last),
            numbers=np.where(finished, numbers, numbers_of_cut),
        )

    def trace_back(self, ranked: _Ranked) -> tuple[Integers, Floats, Integers]:
        """Returns tokens, log-probabilities from the start, and parents of ranked hypotheses, each `(B,2n,T)`.

        What is after the end of a hypothesis is undefined.
        """
        n_steps, n_sentences, _ = self.tokens.shape
        sentence = np.arange(n_sentences)[:, None]
        shape = (*ranked.numbers.shape, n_steps)
        log_probs = np.zeros(shape, self.scores.dtype)
        tokens = np.zeros(shape, np.int64)
        parents = np.zeros(shape, np.int64)
        slot = np.zeros(ranked.numbers.shape, np.int64)  # (B,2n): of each hypothesis after the step
        for step in reversed(range(n_steps)):
            is_last = step == ranked.steps
            number = np.where(is_last, ranked.numbers, self.kept[step, sentence, slot])  # (B,2n)
            slot = self.parents[step, sentence, number]
            tokens[:, :, step] = self.tokens[step, sentence, number]
            parents[:, :, step] = slot
            log_probs[:, :, step] = self.scores[step, sentence, number]
        return tokens, log_probs, parents


def _best_first(scores: Floats, count: int) -> Integers:
    """The numbers of the best of each row `(B,*)`, of equal ones the first first: `(B,count)`."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def read_hypotheses(
    sentences: Sequence[SentenceRecord], spans: Sequence[CompactionSpan], n_best: int, size: int, config: SearchConfig
) -> list[list[Hypothesis]]:
    """Returns the best hypotheses of B finished sentences, at most `n_best` of each; `size` is V."""
    steps = _Steps(sentences, spans)
    ranked = steps.rank(n_best, config)
    tokens, log_probs, parents = steps.trace_back(ranked)  # (B,2n,T)
    with np.errstate(invalid="ignore"):  # of what is undefined
        token_log_probs = np.diff(log_probs, prepend=0.0)
    attention = steps.gather_inherited(lambda result: result.attention, parents)  # (T,B,2n,S)
    p_gen = steps.gather_inherited(lambda result: result.copy_gate, parents)  # (T,B,2n,1)

    def hypothesis(row: int, rank: int) -> Hypothesis:
        sentence = sentences[row]
        length = int(ranked.steps[row, rank]) + 1
        finished = bool(ranked.finished[row, rank])
        ids = sentence.extended_ids(tokens[row, rank, :length].tolist(), size)
        return Hypothesis(
            ids=ids[:-1] if finished else ids,
            finished=finished,
            score=float(ranked.scores[row, rank]),
            log_prob=float(log_probs[row, rank, length - 1]),
            token_log_probs=token_log_probs[row, rank, :length].tolist(),
            attention=None if attention is None else attention[:length, row, rank, : sentence.length].copy(),
            p_gen=None if p_gen is None else p_gen[:length, row, rank, 0].tolist(),
        )

    results = []
    for row in range(len(sentences)):
        ranks = np.flatnonzero(ranked.scores[row] > -INFINITY)[:n_best].tolist()
        results.append([hypothesis(row, rank) for rank in ranks])
    return results


def score_given(
    config: SearchConfig, ids: Sequence[int], log_probs: Tensor, attention: Floats | None, prompt: Sequence[int] = ()
) -> float:
    """Returns the ranking score of a given hypothesis.

    Args:
        config: the search that would score it so.
        ids: its tokens, extended ids, after a `prompt` and without EOS.
        log_probs: those of its tokens `(T,)`, with EOS if it has ended.
        attention: `(T,S)`, EOS of the source included; None where there is none.
        prompt: ids before it.
    """
    summed = float(log_probs.sum())
    if config.repetition_penalty > 1:
        repeated = [place for place, token in enumerate(ids) if token in ids[:place] or token in prompt]
        summed += (config.repetition_penalty - 1) * float(log_probs[repeated].sum())
    score = summed / float(config.length_penalty_scorer().divisors(torch.tensor(len(log_probs))))
    coverage_penalty = config.coverage_penalty_scorer()
    if coverage_penalty is not None and attention is not None:
        coverage = torch.from_numpy(attention).sum(0)[:-1]  # EOS is not to be covered
        score += float(coverage_score(coverage_penalty, coverage, torch.tensor(True)))
    return score


class ResultReader:
    """Reads the results of steps: on a CPU at once, else in a thread and CUDA stream of its own, beside the steps."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_asynchronous = device.type == "cuda" and torch.cuda.is_available()
        self._pending: deque[Future[list[SentenceResult]]] = deque()

    def __enter__(self) -> "ResultReader":
        if self._is_asynchronous:
            torch.cuda.set_device(self._device)  # a new thread has the first one, whatever `prepare` set in another
            self._thread = ThreadPoolExecutor(1)
            # Torch deals out 32 streams of each priority in turn, and nobody may use the one of a capture meanwhile.
            self._stream = torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]  # as torch has it
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_asynchronous:
            self._thread.shutdown(cancel_futures=True)

    def submit(self, read: Callable[[], list[SentenceResult]]) -> list[SentenceResult]:
        """Begins to read; returns what is there by now, of earlier calls as well."""
        if not self._is_asynchronous:
            return read()
        computed = record_event()

        def run() -> list[SentenceResult]:
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(computed)
                return read()

        self._pending.append(self._thread.submit(run))
        results = []
        while self._pending and self._pending[0].done():
            results += self._pending.popleft().result()
        return results

    def rest(self) -> list[SentenceResult]:
        """Returns what is still being read."""
        results = []
        for pending in self._pending:
            results += pending.result()
        return results


def record_event() -> torch.cuda.Event:
    """Returns an event behind all work that the device has been given so far."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch does not type it
    event.record()
    return event
