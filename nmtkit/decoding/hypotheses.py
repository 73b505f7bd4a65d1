"""Builds hypotheses from the step results of a search.

Notation as in `nmtkit.decoding.beam_search`, except for:

    B   sentences whose results are read together; they may have begun at different times
    T   largest number of steps taken by any of these sentences
    n   hypotheses to return for each sentence

Times are numbers of shared steps: see `nmtkit.decoding.slots.Slots`.
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
from nmtkit.data.batches.batch import Batch
from nmtkit.decoding.beam_search import StepResult
from nmtkit.decoding.rules import INFINITY
from nmtkit.decoding.scorers import coverage_score
from nmtkit.decoding.settings import SearchConfig
from nmtkit.models.abilities import memory_lengths
from nmtkit.models.base import Decoder

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Hypothesis:
    """A translation, or the beginning of one that was cut at the length limit."""

    ids: list[int]
    """Token ids, without BOS and EOS; extended ids if the model copies."""
    finished: bool
    """Whether the hypothesis ended in EOS; if not, it was cut at the length limit."""
    score: float
    """Ranking score: the log-probability after length, coverage and repetition penalties."""
    log_prob: float
    """Sum of `token_log_probs`."""
    token_log_probs: list[float]
    """The model's log-probability of each token, including EOS if the hypothesis is finished."""
    attention: npt.NDArray[np.float32] | None
    """Attention weights: one row for each entry of `token_log_probs`, and one column for each source token, including
    EOS. None if attention was not requested or the model has none."""
    p_gen: list[float] | None = None
    """Probability of generating instead of copying, for each row of `attention`; None if the model does not copy."""


SentenceResult = tuple[int, list[Hypothesis]]
"""A sentence's number within the whole search, and its hypotheses, best first."""


@dataclass
class SentenceRecord:
    """Data needed to read the hypotheses of a sentence once its search has ended."""

    number: int
    """The sentence's number within the whole search."""
    memory_length: int
    """Number of memory positions, without padding; for a text, the number of its tokens including EOS."""
    limit: int
    """Maximum number of tokens of a hypothesis, including EOS."""
    extended_source: Tensor | None
    """Extended ids of the source `(S,)`; None if the model does not copy. The search itself numbers unknown words by
    source position."""
    first_result: StepResult
    """Result of the sentence's first step. That step ran in a separate batch of new sentences."""
    first_row: int
    """The sentence's row in `first_result`."""
    start: int
    """Number of completed shared steps when the sentence got its slot."""
    slot: int = 0
    """The slot that the sentence had when it was finished."""
    end: int = 0
    """Number of completed shared steps when the sentence was finished."""

    def extended_ids(self, ids: list[int], vocabulary_size: int) -> list[int]:
        """Converts ids to extended ids; in `ids`, unknown words are numbered by source position."""
        if self.extended_source is None or max(ids) < vocabulary_size:
            return ids
        source = self.extended_source.tolist()
        extended = []
        for token in ids:
            is_copied = token >= vocabulary_size
            extended.append(source[token - vocabulary_size] if is_copied else token)
        return extended


def begin_records(
    model: Decoder,
    batch: Batch,
    numbers: Sequence[int],
    limits: Sequence[int],
    first_result: StepResult,
    start: int,
) -> list[SentenceRecord]:
    """Returns the records of the sentences of a batch, which have taken their first step: see `SentenceRecord`."""
    lengths = memory_lengths(model, batch).tolist()
    records = []
    for row, number in enumerate(numbers):
        record = SentenceRecord(
            number=number,
            memory_length=lengths[row],
            limit=limits[row],
            extended_source=batch.inputs.copy.extended[row] if model.config.copies else None,
            first_result=first_result,
            first_row=row,
            start=start,
        )
        records.append(record)
    return records


@dataclass
class StepSpan:
    """Consecutive shared steps during which no sentence changes its slot. Removing slots begins a new span."""

    start: int
    """Number of shared steps before this span."""
    results: list[StepResult]
    previous_rows: Integers | None = None
    """For each slot in this span, its number in the previous span; None for the first span."""


@dataclass(frozen=True)
class _SpanEntries:
    """M entries to read from the results of a span, one for each pair of a step and a sentence; arrays are `(M,)`."""

    results: list[StepResult]
    result_indices: Integers
    """Index of each entry's result in `results`."""
    rows: Integers
    """Row of each entry in its result."""
    steps: Integers
    """Step of each entry, counted from its sentence's first step."""
    sentences: Integers
    """Index of each entry's sentence, below B."""


@dataclass(frozen=True)
class _Ranked:
    """The best hypotheses of B sentences, best first, each identified by its last token; all fields are `(B,2n)`."""

    scores: Floats
    """Ranking scores, padded with minus infinity if there are fewer than 2n hypotheses."""
    finished: npt.NDArray[np.bool_]
    """Whether each hypothesis ended in EOS; if not, it was cut at the length limit."""
    steps: Integers
    """Step in which each last token was chosen."""
    candidates: Integers
    """Index of each last token among the candidates of its step, below C."""


class _StepArrays:
    """The steps of finished sentences as arrays on the CPU. Each sentence's steps are counted from its first step."""

    def __init__(self, sentences: Sequence[SentenceRecord], spans: Sequence[StepSpan]) -> None:
        self._sentences = sentences
        starts = np.array([sentence.start for sentence in sentences])  # (B,)
        ends = np.array([sentence.end for sentence in sentences])  # (B,)
        self.n_steps = ends - starts + 1
        """Number of steps that each sentence took, `(B,)`."""
        self._spans = self._find_entries(spans, starts, ends)
        step = np.arange(self.n_steps.max())[:, None]  # (T,1)
        has_step = (step < self.n_steps)[:, :, None]  # (T,B,1)
        self.scores: Floats = self.gather(lambda result: result.candidates.scores)  # (T,B,C)
        if np.isnan(self.scores).any(where=has_step):
            raise CheckpointError(
                "the model's log-probabilities are NaN, so its weights are damaged: use an earlier checkpoint"
            )
        self.tokens: Integers = self.gather(lambda result: result.tokens)  # (T,B,C)
        self.parents: Integers = self.gather(lambda result: result.candidates.parents)  # (T,B,C)
        ended = self.gather(lambda result: result.candidates.ended)  # (T,B,C)
        self.ended = ended & has_step  # (T,B,C)
        self.survivors: Integers = self.gather(
            lambda result: result.candidates.survivors
        )  # (T,B,K)
        self.ranking: Floats = self.gather(lambda result: result.ranking)  # (T,B,C)

    def _find_entries(
        self, spans: Sequence[StepSpan], starts: Integers, ends: Integers
    ) -> list[_SpanEntries]:
        """Finds the results and rows of all shared steps of the sentences.

        A sentence may have moved to a different slot from one span to the next, so its slot is traced back from the
        last span to the first.
        """
        span_entries = []
        # The slot of each sentence in the current span.
        rows = np.array([sentence.slot for sentence in self._sentences])  # (B,)
        for span in reversed(spans):
            if span.results:
                # The span has R results.
                shared_steps = np.arange(span.start, span.start + len(span.results))  # (R,)
                sentence_steps = shared_steps[:, None] - starts + 1  # (R,B)
                is_read = (sentence_steps > 0) & (sentence_steps < self.n_steps)  # (R,B)
                result_indices, sentences = np.nonzero(is_read)  # (M,)
                entries = _SpanEntries(
                    results=span.results,
                    result_indices=result_indices,
                    rows=rows[sentences],
                    steps=sentence_steps[result_indices, sentences],
                    sentences=sentences,
                )
                span_entries.append(entries)
            if span.previous_rows is not None:
                # If a sentence finished before this span, its slot already refers to an earlier span.
                was_in_span = ends > span.start  # (B,)
                previous_rows = span.previous_rows[np.where(was_in_span, rows, 0)]  # (B,)
                rows = np.where(was_in_span, previous_rows, rows)  # (B,)
        return span_entries

    def gather(self, pick: Callable[[StepResult], Tensor]) -> npt.NDArray[Any]:
        """Collects one tensor, `(*,C)`, from all step results, as `(T,B,C)`.

        The values after the last step of a sentence are undefined.
        """
        # Keyed by `id(result)`, because sentences that began together share their first result.
        first_arrays: dict[int, npt.NDArray[Any]] = {}
        first_rows = []
        for sentence in self._sentences:
            key = id(sentence.first_result)
            if key not in first_arrays:
                first_arrays[key] = pick(sentence.first_result).cpu().numpy()  # (*,C)
            first_rows.append(first_arrays[key][sentence.first_row])
        first_step = np.stack(first_rows)  # (B,C)
        most_steps = int(self.n_steps.max())
        steps = np.zeros((most_steps, *first_step.shape), first_step.dtype)  # (T,B,C)
        steps[0] = first_step
        for entries in self._spans:
            span_results = torch.stack([pick(result) for result in entries.results])  # (R,*,C)
            span_array = span_results.cpu().numpy()  # (R,*,C)
            steps[entries.steps, entries.sentences] = span_array[
                entries.result_indices, entries.rows
            ]
        return steps

    def gather_from_parents(
        self, pick: Callable[[StepResult], Tensor | None], parents: Integers
    ) -> npt.NDArray[np.float32] | None:
        """Collects one tensor, `(*,K,*)`, from all step results, at the parents `(B,n,T)` of hypotheses: `(T,B,n,*)`.

        Returns None if the results do not have this tensor.
        """
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
        """Ranks the candidates that ended in any step and the candidates that were cut at the length limit.

        Candidates that ended come first, unless `at_limit` requires that both kinds be ranked together.
        """
        _, n_sentences, n_candidates = self.tokens.shape
        sentence = np.arange(n_sentences)[:, None]  # (B,1)
        is_ranked_together = config.effective_at_limit != "behind"

        # 1. Candidates that ended. All steps of a sentence form one row, with the index step * C + candidate.
        ended_scores = np.where(self.ended, self.ranking, -INFINITY)  # (T,B,C)
        ended_scores = ended_scores.transpose(1, 0, 2).reshape(n_sentences, -1)  # (B,T*C)
        n_ended = ended_scores.shape[1]

        # 2. Candidates that were cut: the survivors of the last step within the limit. Their indices begin at T*C.
        limits = np.array([record.limit for record in self._sentences])  # (B,)
        last_step = np.minimum(limits, self.n_steps) - 1  # (B,)
        survivors = self.survivors[last_step, sentence[:, 0]]  # (B,K)
        last_step = last_step[:, None]  # (B,1)
        has_reached_limit = (limits <= self.n_steps)[:, None]  # (B,1)
        # When sampling, a sample that ended in this step is also among the survivors.
        has_ended = self.ended[last_step, sentence, survivors]  # (B,K)
        is_cut = has_reached_limit & ~has_ended  # (B,K)
        if is_ranked_together:
            # A group of K/G hypotheses has 2K/G candidates. Those in the second half only replace candidates in the
            # first half that end.
            candidates_per_group = n_candidates // config.n_groups
            group_size = config.n_hypotheses // config.n_groups
            is_cut &= survivors % candidates_per_group < group_size
        survivor_scores = self.ranking[last_step, sentence, survivors]  # (B,K)
        cut_scores = np.where(is_cut, survivor_scores, -INFINITY)  # (B,K)

        # 3. The best candidates of each kind.
        best_ended = _best_first(ended_scores, n_best)  # (B,n)
        best_cut = _best_first(cut_scores, n_best) + n_ended  # (B,n)
        indices = np.concatenate([best_ended, best_cut], axis=1)  # (B,2n)
        all_scores = np.concatenate([ended_scores, cut_scores], axis=1)  # (B,T*C+K)
        scores = all_scores[sentence, indices]  # (B,2n)
        if is_ranked_together:
            order = _best_first(scores, 2 * n_best)  # (B,2n)
            indices = indices[sentence, order]  # (B,2n)
            scores = scores[sentence, order]  # (B,2n)

        # 4. The step and the candidate of each index.
        finished = indices < n_ended  # (B,2n)
        ended_steps, ended_candidates = np.divmod(indices, n_candidates)  # (B,2n)
        beam_indices = np.maximum(indices - n_ended, 0)  # (B,2n)
        cut_candidates = np.take_along_axis(survivors, beam_indices, axis=1)  # (B,2n)
        return _Ranked(
            scores=scores,
            finished=finished,
            steps=np.where(finished, ended_steps, last_step),
            candidates=np.where(finished, ended_candidates, cut_candidates),
        )

    def trace_back(self, ranked: _Ranked) -> tuple[Integers, Floats, Integers]:
        """Returns the tokens, cumulative log-probabilities and parents of ranked hypotheses, each `(B,2n,T)`.

        Values after the end of a hypothesis are undefined.
        """
        n_steps, n_sentences, _ = self.tokens.shape
        sentence = np.arange(n_sentences)[:, None]  # (B,1)
        n_ranked = ranked.candidates.shape[1]
        shape = (n_sentences, n_ranked, n_steps)
        log_probs = np.zeros(shape, self.scores.dtype)  # (B,2n,T)
        tokens = np.zeros(shape, np.int64)  # (B,2n,T)
        parents = np.zeros(shape, np.int64)  # (B,2n,T)
        # Index of each hypothesis in the beam after the step.
        beam_index = np.zeros((n_sentences, n_ranked), np.int64)  # (B,2n)
        for step in reversed(range(n_steps)):
            is_last = step == ranked.steps  # (B,2n)
            survivor = self.survivors[step, sentence, beam_index]  # (B,2n)
            candidate = np.where(is_last, ranked.candidates, survivor)  # (B,2n)
            tokens[:, :, step] = self.tokens[step, sentence, candidate]
            log_probs[:, :, step] = self.scores[step, sentence, candidate]
            # Index of each hypothesis's parent in the beam of the previous step.
            beam_index = self.parents[step, sentence, candidate]  # (B,2n)
            parents[:, :, step] = beam_index
        return tokens, log_probs, parents


def _best_first(scores: Floats, count: int) -> Integers:
    """Returns the columns `(B,count)` of the best scores in each row `(B,*)`; breaks ties by column, lowest first."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def read_hypotheses(
    sentences: Sequence[SentenceRecord],
    spans: Sequence[StepSpan],
    n_best: int,
    vocabulary_size: int,
    config: SearchConfig,
) -> list[list[Hypothesis]]:
    """Returns the best hypotheses of B finished sentences, at most `n_best` for each, best first."""
    steps = _StepArrays(sentences, spans)
    ranked = steps.rank(n_best, config)
    tokens, log_probs, parents = steps.trace_back(ranked)  # (B,2n,T)
    with np.errstate(invalid="ignore"):  # the values after the end of a hypothesis are undefined
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
            # A copy, so that a hypothesis does not keep the attention of the whole batch in memory.
            n_columns = sentence.memory_length
            hypothesis_attention = attention[:length, row, rank, :n_columns].copy()  # (length,S)
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
    """Returns the ranking score that a search would give to a hypothesis that it did not find itself.

    Args:
        config: the search settings.
        ids: the extended ids of the hypothesis, without prompt and EOS.
        log_probs: the log-probabilities of its tokens `(T,)`, including EOS if it has ended.
        attention: the attention of its tokens `(T,S)`, including the source's EOS; None if the model has no attention.
        prompt: ids of the prompt that the hypothesis continues.
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

    length = torch.tensor(len(log_probs))  # ()
    score = total / float(config.build_length_penalty().divisors(length))

    coverage_penalty = config.build_coverage_penalty()
    if coverage_penalty is not None and attention is not None:
        coverage = torch.from_numpy(attention).sum(0)[:-1]  # (S-1,): EOS need not be covered
        score += float(coverage_score(coverage_penalty, coverage, torch.tensor(True)))
    return score


class ResultReader:
    """Reads step results: on CUDA in a thread with its own stream while the search continues, otherwise immediately."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_asynchronous = device.type == "cuda" and torch.cuda.is_available()
        self._pending: deque[Future[list[SentenceResult]]] = deque()

    def __enter__(self) -> "ResultReader":
        if self._is_asynchronous:
            # The search may run in a new thread, where the current device is initially always the first one.
            torch.cuda.set_device(self._device)
            self._thread = ThreadPoolExecutor(1)
            # Torch reuses 32 streams of each priority in turn. A different priority ensures that this stream is not the
            # one on which graphs are captured, because nothing else may use that stream during a capture.
            self._stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]  # torch has no types for streams
                self._device, priority=-1
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_asynchronous:
            self._thread.shutdown(cancel_futures=True)

    def submit(self, read: Callable[[], list[SentenceResult]]) -> list[SentenceResult]:
        """Starts reading, and returns all results that are complete by now, including results of earlier calls."""
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
        """Waits for all pending reads and returns their results."""
        results = []
        for pending in self._pending:
            results += pending.result()
        return results


def record_event() -> torch.cuda.Event:
    """Returns an event that fires once the device has completed all work queued so far."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types for events
    event.record()
    return event
