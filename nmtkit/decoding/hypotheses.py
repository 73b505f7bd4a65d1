"""Builds hypotheses from the results of the steps of a search.

Letters as in `nmtkit.decoding.beam_search`, but B are sentences whose results are read together, which need not have
begun together; T steps at most, n hypotheses wanted for each sentence.
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
    """A translation, or the part of it that the length limit allowed."""

    ids: list[int]
    """Without BOS and EOS; extended ids if the model copies."""
    finished: bool
    """Whether it ended in EOS; if not, it was cut at the length limit."""
    score: float
    """The ranking score: the log-probability after length and coverage penalty."""
    log_prob: float
    """Sum of `token_log_probs`."""
    token_log_probs: list[float]
    """The log-probability of each id, and of EOS if finished."""
    attention: npt.NDArray[np.float32] | None
    """One row for each of `token_log_probs`, one column for each source token, EOS included. None if not asked for, or
    if the model has no attention."""
    p_gen: list[float] | None = None
    """The probability of generating instead of copying, one for each row of `attention`. None if the model does not
    copy."""


SentenceResult = tuple[int, list[Hypothesis]]
"""The number of a sentence, and its hypotheses, best first."""


@dataclass
class SentenceRecord:
    """A sentence of a search, from its first step to its last."""

    number: int
    """Its number within the whole search."""
    memory_length: int
    """Number of real positions in its memory; for a text its tokens, EOS included."""
    limit: int
    """The maximum number of its tokens, EOS included."""
    extended_source: Tensor | None
    """The extended ids of its source `(S,)`, for a model that copies: the search numbers unknown words by position."""
    first_result: StepResult
    """The result of its first step, which it made in a batch of new sentences."""
    first_row: int
    """Its row in `first_result`."""
    start: int
    """Number of steps that the batch had made before."""
    slot: int = 0
    """Its row in the last result of the batch, once it is finished."""
    end: int = 0
    """Number of steps that the batch has made, once it is finished."""

    def extended_ids(self, ids: list[int], vocabulary_size: int) -> list[int]:
        """Returns the extended ids for the tokens of a hypothesis, where a copied word has a source position."""
        if self.extended_source is None or max(ids) < vocabulary_size:
            return ids
        source = self.extended_source.tolist()
        extended = []
        for token in ids:
            is_copied = token >= vocabulary_size
            extended.append(source[token - vocabulary_size] if is_copied else token)
        return extended


@dataclass
class StepSpan:
    """The steps of a batch between two compactions, which keep the slots of its sentences."""

    start: int
    """Number of steps that the batch had made before."""
    previous_rows: Integers
    """The row of the previous span that each row continues; empty in the first span."""
    results: list[StepResult]


@dataclass(frozen=True)
class _SpanEntries:
    """What is read from the results of a span: M entries, each of one step and one sentence; arrays are `(M,)`."""

    results: list[StepResult]
    result_numbers: Integers
    """The result that an entry is read from."""
    rows: Integers
    """The row of the entry in this result."""
    steps: Integers
    """The step of the entry, counted from the first step of its sentence."""
    sentences: Integers
    """The sentence of the entry, below B."""


@dataclass(frozen=True)
class _Ranked:
    """The best hypotheses of B sentences, best first, by their last tokens; all fields are `(B,2n)`."""

    scores: Floats
    """Ranking scores; minus infinity where there are fewer hypotheses."""
    finished: npt.NDArray[np.bool_]
    """Whether they have ended; if not, they were cut at the length limit."""
    steps: Integers
    """The steps of their last tokens."""
    candidates: Integers
    """The numbers of their last tokens among the candidates of these steps, below C."""


class _StepArrays:
    """The steps of finished sentences as arrays on the CPU, counted from the first step of each sentence."""

    def __init__(self, sentences: Sequence[SentenceRecord], spans: Sequence[StepSpan]) -> None:
        self._sentences = sentences
        starts = np.array([sentence.start for sentence in sentences])  # (B,)
        ends = np.array([sentence.end for sentence in sentences])  # (B,)
        self.counts = ends - starts + 1
        """How many steps each sentence has made, `(B,)`."""
        self._spans = self._find_entries(spans, starts, ends)
        step = np.arange(self.counts.max())[:, None]  # (T,1)
        has_step = (step < self.counts)[:, :, None]  # (T,B,1)
        self.scores: Floats = self.gather(lambda result: result.candidates.scores)  # (T,B,C)
        if np.isnan(self.scores).any(where=has_step):
            raise CheckpointError(
                "the model gives NaN for log-probabilities, so its weights are damaged: use an earlier checkpoint"
            )
        self.tokens: Integers = self.gather(lambda result: result.tokens)  # (T,B,C)
        self.parents: Integers = self.gather(lambda result: result.candidates.parents)  # (T,B,C)
        ended = self.gather(lambda result: result.candidates.ended)
        self.ended = ended & has_step  # (T,B,C)
        self.survivors: Integers = self.gather(
            lambda result: result.candidates.survivors
        )  # (T,B,K)
        self.ranking: Floats = self.gather(lambda result: result.ranking)  # (T,B,C)

    def _find_entries(
        self, spans: Sequence[StepSpan], starts: Integers, ends: Integers
    ) -> list[_SpanEntries]:
        """Finds the results and rows of all steps but the first ones.

        A sentence may have been in another row before each compaction, so the spans are followed from the last to the
        first.
        """
        span_entries = []
        # In the present span.
        rows = np.array([sentence.slot for sentence in self._sentences])  # (B,)
        for span in reversed(spans):
            if span.results:
                # Of R results.
                batch_steps = np.arange(span.start, span.start + len(span.results))  # (R,)
                sentence_steps = batch_steps[:, None] - starts + 1  # (R,B)
                is_read = (sentence_steps > 0) & (sentence_steps < self.counts)  # (R,B)
                result_numbers, sentences = np.nonzero(is_read)  # (M,)
                entries = _SpanEntries(
                    results=span.results,
                    result_numbers=result_numbers,
                    rows=rows[sentences],
                    steps=sentence_steps[result_numbers, sentences],
                    sentences=sentences,
                )
                span_entries.append(entries)
            if len(span.previous_rows):
                # Sentences that were finished before this span have their row in an earlier one already.
                was_in_span = ends > span.start  # (B,)
                previous_rows = span.previous_rows[np.where(was_in_span, rows, 0)]  # (B,)
                rows = np.where(was_in_span, previous_rows, rows)
        return span_entries

    def gather(self, pick: Callable[[StepResult], Tensor]) -> npt.NDArray[Any]:
        """Returns a tensor `(*,C)` of every step, `(T,B,C)`; undefined after the last step of a sentence."""
        # by result: sentences that began together share one
        first_arrays: dict[int, npt.NDArray[Any]] = {}
        first_rows = []
        for sentence in self._sentences:
            key = id(sentence.first_result)
            if key not in first_arrays:
                first_arrays[key] = pick(sentence.first_result).cpu().numpy()
            first_rows.append(first_arrays[key][sentence.first_row])
        first_step = np.stack(first_rows)  # (B,C)
        n_steps = int(self.counts.max())
        steps = np.zeros((n_steps, *first_step.shape), first_step.dtype)  # (T,B,C)
        steps[0] = first_step
        for entries in self._spans:
            span_results = torch.stack([pick(result) for result in entries.results])  # (R,*,C)
            span_array = span_results.cpu().numpy()
            steps[entries.steps, entries.sentences] = span_array[
                entries.result_numbers, entries.rows
            ]
        return steps

    def gather_from_parents(
        self, pick: Callable[[StepResult], Tensor | None], parents: Integers
    ) -> npt.NDArray[np.float32] | None:
        """Returns a tensor `(*,K,*)` of every step, for hypotheses with these parents `(B,n,T)`: `(T,B,n,*)`."""
        if pick(self._sentences[0].first_result) is None:
            return None
        steps = self.gather(cast(Callable[[StepResult], Tensor], pick))  # (T,B,K,*)
        n_steps, n_sentences = steps.shape[:2]
        step = np.arange(n_steps)[:, None, None]  # (T,1,1)
        sentence = np.arange(n_sentences)[:, None]  # (B,1)
        parents_by_step = parents.transpose(2, 0, 1)  # (T,B,n)
        from_parents = steps[step, sentence, parents_by_step]  # (T,B,n,*)
        return from_parents.astype(np.float32)

    def rank(self, n_best: int, config: SearchConfig) -> _Ranked:
        """Ranks the candidates that ended in any step, and those that were cut at the length limit.

        Those that ended come before those that were cut, except where `at_limit` ranks them together.
        """
        _, n_sentences, n_candidates = self.tokens.shape
        sentence = np.arange(n_sentences)[:, None]  # (B,1)
        is_ranked_together = config.effective_at_limit != "behind"

        # 1. Candidates that ended. All steps are one row: entry number step * C + candidate.
        ended_scores = np.where(self.ended, self.ranking, -INFINITY)  # (T,B,C)
        ended_scores = ended_scores.transpose(1, 0, 2).reshape(n_sentences, -1)  # (B,T*C)
        n_ended_entries = ended_scores.shape[1]

        # 2. Candidates that were cut: the survivors of the last step before the limit. They are the entries T*C and
        #    following.
        limits = np.array([record.limit for record in self._sentences])  # (B,)
        last_step = np.minimum(limits, self.counts) - 1  # (B,)
        survivors = self.survivors[last_step, sentence[:, 0]]  # (B,K)
        last_step = last_step[:, None]  # (B,1)
        has_reached_limit = (limits <= self.counts)[:, None]  # (B,1)
        # A sample may end in this step.
        has_ended = self.ended[last_step, sentence, survivors]  # (B,K)
        is_cut = has_reached_limit & ~has_ended  # (B,K)
        if is_ranked_together:
            # Among the 2K candidates of a beam, or a group, the second half is only a reserve for those that end.
            group_candidates = n_candidates // config.n_groups
            group_size = config.n_hypotheses // config.n_groups
            is_cut &= survivors % group_candidates < group_size
        survivor_scores = self.ranking[last_step, sentence, survivors]  # (B,K)
        cut_scores = np.where(is_cut, survivor_scores, -INFINITY)  # (B,K)

        # 3. The best of each kind.
        best_ended = _best_first(ended_scores, n_best)  # (B,n)
        best_cut = _best_first(cut_scores, n_best) + n_ended_entries  # (B,n)
        entries = np.concatenate([best_ended, best_cut], axis=1)  # (B,2n)
        all_scores = np.concatenate([ended_scores, cut_scores], axis=1)  # (B,T*C+K)
        scores = all_scores[sentence, entries]  # (B,2n)
        if is_ranked_together:
            order = _best_first(scores, 2 * n_best)  # (B,2n)
            entries = entries[sentence, order]
            scores = scores[sentence, order]

        # 4. The step and the candidate of each entry.
        finished = entries < n_ended_entries  # (B,2n)
        ended_steps, ended_candidates = np.divmod(entries, n_candidates)  # (B,2n)
        cut_numbers = np.maximum(entries - n_ended_entries, 0)  # (B,2n)
        cut_candidates = np.take_along_axis(survivors, cut_numbers, axis=1)  # (B,2n)
        return _Ranked(
            scores=scores,
            finished=finished,
            steps=np.where(finished, ended_steps, last_step),
            candidates=np.where(finished, ended_candidates, cut_candidates),
        )

    def trace_back(self, ranked: _Ranked) -> tuple[Integers, Floats, Integers]:
        """Returns tokens, log-probabilities from the start, and parents of ranked hypotheses, each `(B,2n,T)`.

        The values after the end of a hypothesis are undefined.
        """
        n_steps, n_sentences, _ = self.tokens.shape
        sentence = np.arange(n_sentences)[:, None]  # (B,1)
        n_ranked = ranked.candidates.shape[1]
        shape = (n_sentences, n_ranked, n_steps)
        log_probs = np.zeros(shape, self.scores.dtype)  # (B,2n,T)
        tokens = np.zeros(shape, np.int64)  # (B,2n,T)
        parents = np.zeros(shape, np.int64)  # (B,2n,T)
        # Of each hypothesis after the step.
        beam_place = np.zeros((n_sentences, n_ranked), np.int64)  # (B,2n)
        for step in reversed(range(n_steps)):
            is_last = step == ranked.steps  # (B,2n)
            survivor = self.survivors[step, sentence, beam_place]  # (B,2n)
            candidate = np.where(is_last, ranked.candidates, survivor)  # (B,2n)
            tokens[:, :, step] = self.tokens[step, sentence, candidate]
            log_probs[:, :, step] = self.scores[step, sentence, candidate]
            beam_place = self.parents[step, sentence, candidate]  # after the step before
            parents[:, :, step] = beam_place
        return tokens, log_probs, parents


def _best_first(scores: Floats, count: int) -> Integers:
    """The numbers of the best of each row `(B,*)`; among equal scores the first comes first: `(B,count)`."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def read_hypotheses(
    sentences: Sequence[SentenceRecord],
    spans: Sequence[StepSpan],
    n_best: int,
    vocabulary_size: int,
    config: SearchConfig,
) -> list[list[Hypothesis]]:
    """Returns the best hypotheses of B finished sentences, at most `n_best` for each."""
    steps = _StepArrays(sentences, spans)
    ranked = steps.rank(n_best, config)
    tokens, log_probs, parents = steps.trace_back(ranked)  # (B,2n,T)
    with np.errstate(invalid="ignore"):  # undefined values after the end of a hypothesis
        token_log_probs = np.diff(log_probs, prepend=0.0)  # (B,2n,T)
    attention = steps.gather_from_parents(lambda result: result.attention, parents)  # (T,B,2n,S)
    p_gen = steps.gather_from_parents(lambda result: result.copy_gate, parents)  # (T,B,2n,1)

    def build_hypothesis(row: int, rank: int) -> Hypothesis:
        sentence = sentences[row]
        length = int(ranked.steps[row, rank]) + 1
        finished = bool(ranked.finished[row, rank])
        ids = sentence.extended_ids(tokens[row, rank, :length].tolist(), vocabulary_size)
        if finished:
            ids = ids[:-1]  # without EOS
        hypothesis_attention = None
        if attention is not None:
            # A copy, so that a hypothesis does not keep the attention of the whole batch.
            hypothesis_attention = attention[:length, row, rank, : sentence.memory_length].copy()
        return Hypothesis(
            ids=ids,
            finished=finished,
            score=float(ranked.scores[row, rank]),
            log_prob=float(log_probs[row, rank, length - 1]),
            token_log_probs=token_log_probs[row, rank, :length].tolist(),
            attention=hypothesis_attention,
            p_gen=None if p_gen is None else p_gen[:length, row, rank, 0].tolist(),
        )

    results = []
    for row in range(len(sentences)):
        ranks = np.flatnonzero(ranked.scores[row] > -INFINITY)[:n_best].tolist()
        results.append([build_hypothesis(row, rank) for rank in ranks])
    return results


def ranking_score(
    config: SearchConfig,
    ids: Sequence[int],
    log_probs: Tensor,
    attention: Floats | None,
    prompt: Sequence[int] = (),
) -> float:
    """Returns the score by which a search would rank a hypothesis that it did not find itself.

    Args:
        config: the search.
        ids: the extended ids of the hypothesis, without the prompt and EOS.
        log_probs: the log-probabilities of its tokens `(T,)`, including EOS if it has ended.
        attention: `(T,S)`, EOS of the source included; None if the model has none.
        prompt: ids before the hypothesis.
    """
    total = float(log_probs.sum())
    if config.repetition_penalty > 1:
        seen_ids = set(prompt)
        repeated_positions = []
        for position, token in enumerate(ids):
            if token in seen_ids:
                repeated_positions.append(position)
            seen_ids.add(token)
        total += (config.repetition_penalty - 1) * float(log_probs[repeated_positions].sum())

    length = torch.tensor(len(log_probs))
    score = total / float(config.build_length_penalty().divisors(length))

    coverage_penalty = config.build_coverage_penalty()
    if coverage_penalty is not None and attention is not None:
        coverage = torch.from_numpy(attention).sum(0)[:-1]  # (S-1,): EOS need not be covered
        score += float(coverage_score(coverage_penalty, coverage, torch.tensor(True)))
    return score


class ResultReader:
    """Reads the results of steps: on a CPU at once, else in a thread with a CUDA stream of its own, during steps."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_asynchronous = device.type == "cuda" and torch.cuda.is_available()
        self._pending: deque[Future[list[SentenceResult]]] = deque()

    def __enter__(self) -> "ResultReader":
        if self._is_asynchronous:
            # The thread that searches may be new, and a new thread begins with the first device.
            torch.cuda.set_device(self._device)
            self._thread = ThreadPoolExecutor(1)
            # Torch hands out 32 streams of each priority in turn. A priority of its own keeps this stream different
            # from the stream of a capture, which must not be used by anyone else at the same time.
            self._stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]  # torch has no types for streams
                self._device, priority=-1
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_asynchronous:
            self._thread.shutdown(cancel_futures=True)

    def submit(self, read: Callable[[], list[SentenceResult]]) -> list[SentenceResult]:
        """Starts to read; returns the results that are complete by now, of earlier calls as well."""
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

    def drain(self) -> list[SentenceResult]:
        """Waits for all reads that are pending, and returns their results."""
        results = []
        for pending in self._pending:
            results += pending.result()
        return results


def record_event() -> torch.cuda.Event:
    """Returns an event that is reached once the device has done all work that it was given so far."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types for events
    event.record()
    return event
