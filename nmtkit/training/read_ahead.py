"""Prepares batches in a thread while the model is trained on earlier ones."""

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from nmtkit.data.batches.batch import Batch
from nmtkit.training.parallel import processes

AHEAD = 3
"""Number of batches that are prepared in advance. It is more than one, because some batches take longer than others."""


class LocalBatches(Protocol):
    """Endless stream of this process's batches, which can be moved back to an earlier position."""

    @property
    def epoch(self) -> int: ...

    def __next__(self) -> Batch | None:
        """Returns the next batch, with targets, on the CPU; None if the update has no batch left for this process."""

    def state(self) -> dict[str, Any]:
        """Returns the position in the stream, including `epoch`. It is the same in all processes."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Moves to the position at which `state` was taken."""


class BatchIterator(LocalBatches, Protocol):
    """Stream of the batches of all processes, in the same order in every process."""

    def __next__(self) -> Batch:
        """Returns the next batch, with targets, on the CPU."""

    def skip(self) -> None:
        """Skips a batch without creating it."""


class _Prepared(NamedTuple):
    """A batch for this process, and the stream position before it."""

    state: dict[str, Any]
    epoch: int
    batch: Batch | None


class ReadAhead(AbstractContextManager["ReadAhead"]):
    """Reads this process's batches ahead of time; `epoch` and `state` refer to the position before the next batch.

    The `per_update` batches of an update are dealt out to the processes in turn, starting with process 0. The same
    batches therefore give the same update with any number of processes; some processes may get one batch fewer, or
    none. An error in the stream is raised when the affected batch is requested. For CUDA, batches are in pinned memory.
    """

    def __init__(self, stream: BatchIterator, device: torch.device, per_update: int = 1) -> None:
        self._stream = stream
        self._pin_memory = device.type == "cuda"
        self._per_update = per_update
        self._left_in_update = per_update
        """Number of batches of the current update that have not been dealt out."""
        self._prepared: deque[Future[_Prepared]] = deque()
        self._thread: ThreadPoolExecutor | None = None

    def __exit__(self, *_: object) -> None:
        self.pause()

    @property
    def epoch(self) -> int:
        """Number of complete epochs before the next batch."""
        return self._peek().epoch

    def state(self) -> dict[str, Any]:
        """Returns the position of the next batch."""
        return self._peek().state

    def __next__(self) -> Batch | None:
        batch = self._peek().batch
        self._prepared.popleft()
        self._fill()
        return batch

    def restore(self, state: Mapping[str, Any]) -> None:
        """Moves to the position at which `state` was taken; it must be between two updates."""
        self.pause()
        self._left_in_update = self._per_update
        self._prepared.clear()
        self._stream.restore(state)

    def pause(self) -> None:
        """Stops the thread until the next batch is requested; a process that forks should have no other threads."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _peek(self) -> _Prepared:
        self._fill()
        return self._prepared[0].result()

    def _fill(self) -> None:
        while len(self._prepared) < AHEAD:
            if self._thread is None:
                # The operations are small, so torch needs only one thread for them.
                self._thread = ThreadPoolExecutor(1, initializer=partial(torch.set_num_threads, 1))
            future = self._thread.submit(self._prepare)
            self._prepared.append(future)

    def _prepare(self) -> _Prepared:
        state = self._stream.state()
        epoch = self._stream.epoch
        batch = None
        # One batch for each process or, at the end of an update, only for the first ones.
        dealt = min(self._left_in_update, processes.size())
        self._left_in_update -= dealt
        if self._left_in_update == 0:
            self._left_in_update = self._per_update
        for rank in range(dealt):
            if rank == processes.rank():
                batch = next(self._stream)
            else:
                self._stream.skip()
        if batch is not None and self._pin_memory:
            batch = batch.mapped(lambda tensor: tensor.contiguous().pin_memory())
        return _Prepared(state, epoch, batch)
