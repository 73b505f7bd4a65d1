"""Batches that are prepared in a thread while the model learns from those before."""

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import torch

from nmtkit.data.batches.batch import Batch
from nmtkit.training.parallel import processes

AHEAD = 3
"""Batches that are prepared before they are asked for: their times differ."""


class OwnBatches(Protocol):
    """An endless source of the batches of this process, which can be put back to where it was."""

    @property
    def epoch(self) -> int:
        """How many passes over the data are complete."""

    def __next__(self) -> Batch | None:
        """The next batch, with targets, on the CPU; None where the update has none left for this process."""

    def state(self) -> dict[str, Any]:
        """The position in the stream, `epoch` among it; the same in all processes."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes to where `state` was taken."""


class BatchIterator(OwnBatches, Protocol):
    """The batches of all processes, in one order that all know."""

    def __next__(self) -> Batch:
        """The next batch, with targets, on the CPU."""

    def skip(self) -> None:
        """Passes over a batch, which need not be made."""


class ReadAhead(AbstractContextManager["ReadAhead"]):
    """The same batches in the same order: `epoch` and `state` are those of the batch that comes next.

    The batches of an update, `per_update`, are dealt out to the processes in turn, from the first process on. So the
    same batches make the same update whatever the number of processes; a process may have one less, or none. What the
    stream raises, the batch that it was to give raises when its turn comes. For CUDA batches are pinned.
    """

    def __init__(self, stream: BatchIterator, device: torch.device, per_update: int = 1) -> None:
        self._per_update = self._left = per_update  # the latter of the update that is being drawn
        self._stream, self._pins = stream, device.type == "cuda"
        self._coming: deque[Future[tuple[dict[str, Any], int, Batch | None]]] = deque()
        self._thread: ThreadPoolExecutor | None = None

    def __exit__(self, *_: object) -> None:
        self.pause()

    @property
    def epoch(self) -> int:
        """How many passes are complete before the next batch."""
        return self._next()[1]

    def state(self) -> dict[str, Any]:
        """The position of the next batch."""
        return self._next()[0]

    def __next__(self) -> Batch | None:
        batch = self._next()[2]
        self._coming.popleft()
        self._next_ones()
        return batch

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes to where `state` was taken, between two updates."""
        self.pause()
        self._left = self._per_update
        self._coming.clear()
        self._stream.restore(state)

    def pause(self) -> None:
        """Ends the thread, which comes again with the next batch: a process that forks should have no other."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _next(self) -> tuple[dict[str, Any], int, Batch | None]:
        self._next_ones()
        return self._coming[0].result()

    def _next_ones(self) -> None:
        while len(self._coming) < AHEAD:
            if self._thread is None:  # with one thread for its operations, which are small
                self._thread = ThreadPoolExecutor(1, initializer=partial(torch.set_num_threads, 1))
            self._coming.append(self._thread.submit(self._draw))

    def _draw(self) -> tuple[dict[str, Any], int, Batch | None]:
        state, epoch, batch = self._stream.state(), self._stream.epoch, None
        dealt = min(self._left, processes.size())  # one to each process, or what is left
        self._left = self._left - dealt or self._per_update
        for turn in range(dealt):
            if turn == processes.rank():
                batch = next(self._stream)
            else:
                self._stream.skip()
        if batch is not None and self._pins:
            batch = batch.mapped(lambda tensor: tensor.contiguous().pin_memory())
        return state, epoch, batch
