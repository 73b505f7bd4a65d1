"""The bookkeeping of a search on the CPU: which sentence is in which slot, and the results of steps until read."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch
from nmtkit.decoding.beam import LoggedStep
from nmtkit.decoding.decoding_batch import DecodingBatch, Integers
from nmtkit.decoding.hypotheses import CompactionSpan, Hypothesis, SentenceRecord, read_hypotheses

SentenceResult = tuple[int, list[Hypothesis]]
"""The number of a sentence, and its hypotheses, best first."""


class StepLog:
    """Sentences and steps of a decoding batch, from the host's point of view."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.live = np.zeros(slots, dtype=bool)
        """Slots with a sentence that is not finished."""
        self.finished: list[SentenceRecord] = []
        """Finished sentences that have not been read."""
        self._sentences: list[SentenceRecord | None] = [None] * slots
        self._start = np.zeros(slots, dtype=np.int64)  # by slot
        self._due = np.zeros(slots, dtype=np.int64)  # when each slot reaches its length limit
        self._spans = [CompactionSpan(0, np.zeros(0, dtype=np.int64), [])]
        self._clock = 0  # steps so far
        self._next_due = self._oldest = 0  # of the live slots
        self._before = 0  # positions of the longest prompt; sentences with prompts all begin together
        self._is_asynchronous = device.type == "cuda" and torch.cuda.is_available()
        self._polled: tuple[Tensor, torch.cuda.Event, int] | None = None  # flags, when they are there, and their step

    def start(
        self, slots: Integers, numbers: Sequence[int], batch: Batch, decoding: DecodingBatch, first: LoggedStep
    ) -> None:
        """Gives slots to the sentences of a batch that have made their first step, in a decoding batch of their own."""
        extended = list(batch.inputs.copy.extended) if decoding.model.config.copies else [None] * batch.size
        self._before = decoding.cache.length - 2
        lengths = decoding.model.memory_lengths(batch).tolist()
        facts = zip(slots.tolist(), numbers, lengths, decoding.limits, extended, strict=True)
        for row, (slot, number, length, limit, ids) in enumerate(facts):
            self._sentences[slot] = SentenceRecord(number, length, limit, ids, first, row, self._clock)
        self.live[slots] = True
        self._start[slots], self._due[slots] = self._clock, self._clock + np.array(decoding.limits) - 1
        self._look_at_live()

    def add(self, result: LoggedStep) -> None:
        """Adds the result of the next step."""
        self._spans[-1].results.append(result)
        self._clock += 1

    def is_due(self) -> bool:
        """Whether a sentence has reached its length limit, and must not go on."""
        return self._next_due <= self._clock

    def poll_finished(self, done: Tensor) -> bool:
        """Takes note of finished sentences, and says if there are any; `done` is of the decoding batch, `(B,)`.

        Nobody waits for a GPU: each poll reads the flags of the poll before.
        """
        clock = self._clock
        if self._is_asynchronous:
            before, copied = self._polled, torch.empty(done.shape, dtype=torch.bool, pin_memory=True)
            self._polled = copied.copy_(done, non_blocking=True), _event(), clock
            if before is None:
                done, clock = torch.zeros_like(copied), 0
            else:
                before[1].synchronize()
                done, _, clock = before
        ended = done.cpu().numpy() & self.live
        if not (self.is_due() or ended.any()):
            return False
        ended &= self._start < clock  # another may have taken the slot since
        finished = np.flatnonzero(ended | (self._due <= self._clock) & self.live).tolist()
        for slot in finished:
            sentence = self._sentences[slot]
            assert sentence is not None
            sentence.slot, sentence.end = slot, min(self._clock, int(self._due[slot]))
            self.finished.append(sentence)
            self.live[slot] = False
        self._look_at_live()
        return bool(finished)

    def _look_at_live(self) -> None:
        self._next_due = int(self._due[self.live].min(initial=np.iinfo(np.int64).max))
        self._oldest = int(self._start[self.live].min(initial=self._clock + 1))

    def length(self) -> int:
        """Positions in the next step of the live sentence that has come farthest; none has reached its limit."""
        return self._before + self._clock + 1 - self._oldest + 1

    def compact(self, order: Integers) -> None:
        """Keeps these slots, in this order."""
        self._spans.append(CompactionSpan(self._clock, order, []))
        self.live, self._sentences = self.live[order], [self._sentences[slot] for slot in order]
        self._start, self._due = self._start[order], self._due[order]
        self._polled = None

    def take_finished(self, decoding: DecodingBatch, n_best: int) -> Callable[[], list[SentenceResult]]:
        """Removes all finished sentences; returns how to read their hypotheses, at any later time."""
        finished, self.finished = self.finished, []
        spans = [replace(span, results=list(span.results)) for span in self._spans]
        size, config = decoding.model.sizes["tgt"], decoding.config
        first = int(self._start[self.live].min(initial=self._clock))  # earlier steps are not needed any more
        while len(self._spans) > 1 and self._spans[1].start <= first:
            del self._spans[0]
        span = self._spans[0]
        passed = min(max(0, first - span.start), len(span.results))
        span.start, span.results = span.start + passed, span.results[passed:]

        def read() -> list[SentenceResult]:
            hypotheses = read_hypotheses(finished, spans, n_best, size, config) if finished else []
            return list(zip((one.number for one in finished), hypotheses, strict=True))

        return read


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
        computed = _event()

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
        """What is still being read."""
        return [one for pending in self._pending for one in pending.result()]


def _event() -> torch.cuda.Event:
    """An event behind all work that the device has been given so far."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch does not type it
    event.record()
    return event
