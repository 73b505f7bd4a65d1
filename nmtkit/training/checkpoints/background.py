"""Writes checkpoints in the background while training continues."""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from nmtkit.training.checkpoints.manager import CheckpointManager, RetentionConfig

_MAX_PENDING = 2
"""Maximum number of files whose tensors wait in memory to be written: the weights and the state of one update."""


class BackgroundCheckpoints(CheckpointManager):
    """A checkpoint folder whose files are written by a thread, in order, from copies of the tensors.

    If a file cannot be written, the error is raised by a later call, `wait` at the latest. Leaving the context waits
    for all files.
    """

    def __init__(self, checkpoints: CheckpointManager) -> None:
        super().__init__(checkpoints.folder, checkpoints.vocabulary)
        self._thread = ThreadPoolExecutor(1, initializer=partial(torch.set_num_threads, 1))
        self._pending: deque[Future[object]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def wait(self) -> None:
        """Waits until all files are on disk."""
        self._wait_until_pending(0)

    @override
    def save_last(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._submit(partial(super().save_last, _copies(tensors), dict(facts)))

    @override
    def keep(
        self,
        weights: Mapping[str, Tensor],
        update: int,
        value: float,
        config: RetentionConfig,
        loss: float | None = None,
    ) -> None:
        write = partial(
            super().keep,
            weights=_copies(weights),
            update=update,
            value=value,
            config=config,
            loss=loss,
        )
        self._submit(write)

    def _submit(self, write: Callable[[], object]) -> None:
        self._wait_until_pending(_MAX_PENDING - 1)
        self._pending.append(self._thread.submit(write))

    def _wait_until_pending(self, count: int) -> None:
        """Waits until at most `count` files are pending; raises the error of a file that could not be written."""
        while self._pending:
            oldest = self._pending[0]
            if len(self._pending) <= count and not oldest.done():
                return
            self._pending.popleft()
            oldest.result()


@torch.no_grad()
def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies tensors to the CPU. Tensors on a GPU are copied asynchronously, into pinned memory."""
    copies: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        copies[name] = copy.copy_(tensor, non_blocking=True)
    if any(tensor.is_cuda for tensor in tensors.values()):
        torch.cuda.synchronize()
    return copies
