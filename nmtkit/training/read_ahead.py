"""Batches that are prepared in a thread while the model learns from those before."""

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, Self

import torch

from nmtkit.data.batch import Batch

AHEAD = 3
"""Batches that are prepared before they are asked for: their times differ."""


class BatchIterator(Protocol):
    """An endless source of batches that can be put back to where it was; of several processes each has its share."""

    @property
    def epoch(self) -> int:
        """How many passes over the data are complete."""

    def __next__(self) -> Batch:
        """The next batch, with targets, on the CPU."""

    def state(self) -> dict[str, Any]:
        """The position in the stream, `epoch` among it; the same in all processes."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes to where `state` was taken."""


class ReadAhead:
    """The same batches in the same order: `epoch` and `state` are those of the batch that comes next.

    What the stream raises, the batch that it was to give raises when its turn comes. For CUDA batches are pinned.
    """

    def __init__(self, stream: BatchIterator, device: torch.device) -> None:
        self._stream, self._pins = stream, device.type == "cuda"
        self._coming: deque[Future[tuple[dict[str, Any], int, Batch]]] = deque()
        self._thread: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    @property
    def epoch(self) -> int:
        """How many passes are complete before the next batch."""
        return self._next()[1]

    def state(self) -> dict[str, Any]:
        """The position of the next batch."""
        return self._next()[0]

    def __next__(self) -> Batch:
        batch = self._next()[2]
        self._coming.popleft()
        self._next_ones()
        return batch

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes to where `state` was taken."""
        self.pause()
        self._coming.clear()
        self._stream.restore(state)

    def pause(self) -> None:
        """Ends the thread, which comes again with the next batch: a process that forks should have no other."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _next(self) -> tuple[dict[str, Any], int, Batch]:
        self._next_ones()
        return self._coming[0].result()

    def _next_ones(self) -> None:
        while len(self._coming) < AHEAD:
            if self._thread is None:  # with one thread for its operations, which are small
                self._thread = ThreadPoolExecutor(1, initializer=partial(torch.set_num_threads, 1))
            self._coming.append(self._thread.submit(self._draw))

    def _draw(self) -> tuple[dict[str, Any], int, Batch]:
        state, epoch = self._stream.state(), self._stream.epoch
        batch = next(self._stream)
        return state, epoch, batch.mapped(lambda tensor: tensor.contiguous().pin_memory()) if self._pins else batch
