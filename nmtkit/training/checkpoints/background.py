"""Checkpoints that are written beside the training."""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from nmtkit.training.checkpoints.manager import CheckpointManager, RetentionConfig

_MOST = 2
"""Files whose tensors may be in memory beside the training: the kept weights and the state of one update."""


class BackgroundCheckpoints(CheckpointManager):
    """The same folder: files are written by a thread, in their order, from copies of the tensors.

    What could not be written is told by one of the next calls, at the latest by `wait`. Leaving waits, too.
    """

    def __init__(self, checkpoints: CheckpointManager) -> None:
        super().__init__(checkpoints.folder, checkpoints.vocabulary)
        self._thread = ThreadPoolExecutor(1, initializer=partial(torch.set_num_threads, 1))
        self._writing: deque[Future[object]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def wait(self) -> None:
        """Waits until all files are there."""
        self._leave(0)

    @override
    def save_last(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._begin(partial(super().save_last, _copies(tensors), dict(facts)))

    @override
    def keep(
        self,
        weights: Mapping[str, Tensor],
        update: int,
        value: float,
        config: RetentionConfig,
        loss: float | None = None,
    ) -> None:
        self._begin(partial(super().keep, _copies(weights), update, value, config, loss))

    def _begin(self, write: Callable[[], object]) -> None:
        self._leave(_MOST - 1)
        self._writing.append(self._thread.submit(write))

    def _leave(self, count: int) -> None:
        """Waits until only so many are left."""
        while self._writing and (len(self._writing) > count or self._writing[0].done()):
            self._writing.popleft().result()


@torch.no_grad()
def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    copies = {name: torch.empty_like(one, device="cpu", pin_memory=one.is_cuda) for name, one in tensors.items()}
    for name, one in tensors.items():
        copies[name].copy_(one, non_blocking=True)
    if any(one.is_cuda for one in tensors.values()):
        torch.cuda.synchronize()
    return copies
