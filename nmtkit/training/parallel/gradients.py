"""The gradients of several processes, added up.

Each process adds up the gradients of its own batches, divided by the number of target tokens of all processes. The sum
over the processes is the gradient that a single process computes from the same batches.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nmtkit.training.parallel.processes import is_initialized, naming_who_is_missing

_BUCKET_BYTES = 25 << 20  # of gradients in one message; a larger one has its own


class GradientSum:
    """Replaces each gradient of an update by its sum over all processes, while backward still computes others.

    Messages have the gradients of several parameters, the last ones first, as backward comes to them. All processes
    send the same messages in the same order, for each waits until those before it are sent. (What torch has for it,
    DistributedDataParallel, takes an update to be one forward and one backward pass.)
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._buckets: list[list[nn.Parameter]] = []
        room = 0
        for parameter in reversed(parameters if is_initialized() else []):
            room -= parameter.nbytes
            if room < 0:
                self._buckets.append([])
                room = _BUCKET_BYTES - parameter.nbytes
            self._buckets[-1].append(parameter)
        self._sent: list[tuple[Tensor, dist.Work | None]] = []

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Backward in this block is the last: the gradient of each parameter that it reaches is whole from there on.

        If it fails all may be done again: what was sent was whole, and stays so.
        """
        missing = [len(bucket) for bucket in self._buckets]

        def is_whole(number: int, _: Tensor) -> None:
            missing[number] -= 1
            while len(self._sent) < len(self._buckets) and not missing[len(self._sent)]:
                self._send()

        with ExitStack() as hooks:
            for number, bucket in enumerate(self._buckets):
                for one in bucket:
                    look = partial(is_whole, number)
                    hook = one.register_post_accumulate_grad_hook(look)  # type: ignore[no-untyped-call]  # as torch has it
                    hooks.callback(hook.remove)
            yield

    def finish(self) -> None:
        """Sends the others, and waits for all."""
        while len(self._sent) < len(self._buckets):
            self._send()
        for bucket, (flat, message) in zip(self._buckets, self._sent, strict=True):
            if message is not None:
                with naming_who_is_missing():
                    message.wait()
            parts = torch.split(flat, [parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad = part.view_as(parameter)

    def _send(self) -> None:
        gradients = []
        for parameter in self._buckets[len(self._sent)]:
            # What this process did not use another may have used.
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradients.append(gradient.flatten())
        flat = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
        with naming_who_is_missing():
            self._sent.append((flat, dist.all_reduce(flat, async_op=True)))
