"""Sums of gradients over several processes.

Each process adds up the gradients of its batches, divided by the number of target tokens in all processes. The sum over
the processes is the gradient that a single process would compute from the same batches.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nmtkit.training.parallel.processes import is_initialized, name_missing_process

_BUCKET_BYTES = 25 << 20
"""Maximum size of the gradients in a message, in bytes; a larger gradient is sent in a separate message."""


class GradientSum:
    """Replaces each gradient of an update with its sum over all processes, during the backward pass.

    A message contains a bucket of gradients. The last parameters come first, because the backward pass reaches them
    first. All processes send the same messages in the same order. (torch's DistributedDataParallel expects one forward
    and one backward pass per update; here there may be several.)
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._buckets: list[list[nn.Parameter]] = []
        self._sent: list[tuple[Tensor, dist.Work | None]] = []
        """Gradients of the buckets sent so far, and the pending messages."""
        if not is_initialized():
            return
        free_bytes = 0
        for parameter in reversed(parameters):
            if not self._buckets or parameter.nbytes > free_bytes:
                self._buckets.append([])
                free_bytes = _BUCKET_BYTES
            self._buckets[-1].append(parameter)
            free_bytes -= parameter.nbytes

    @contextmanager
    def last_backward(self) -> Iterator[None]:
        """Context for the last backward pass of an update: sends each bucket as soon as its gradients are complete.

        If the pass fails, the update can be repeated: the gradients already sent are complete and stay valid.
        """
        n_missing = [len(bucket) for bucket in self._buckets]

        def count_gradient(number: int, _: Tensor) -> None:
            n_missing[number] -= 1
            # A complete bucket waits for earlier ones, so that all processes send in the same order.
            while len(self._sent) < len(self._buckets) and n_missing[len(self._sent)] == 0:
                self._send_next()

        with ExitStack() as hooks:
            for number, bucket in enumerate(self._buckets):
                on_gradient = partial(count_gradient, number)
                for parameter in bucket:
                    hook = parameter.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]  # torch has no types here
                    hooks.callback(hook.remove)
            yield

    def finish(self) -> None:
        """Sends the remaining buckets and waits for all messages."""
        while len(self._sent) < len(self._buckets):
            self._send_next()
        for bucket, (flat, message) in zip(self._buckets, self._sent, strict=True):
            if message is not None:
                with name_missing_process():
                    message.wait()
            sizes = [parameter.numel() for parameter in bucket]
            for parameter, part in zip(bucket, torch.split(flat, sizes), strict=True):
                parameter.grad = part.view_as(parameter)

    def _send_next(self) -> None:
        gradients: list[Tensor] = []
        for parameter in self._buckets[len(self._sent)]:
            gradient = parameter.grad
            if gradient is None:  # another process may have used the parameter
                gradient = torch.zeros_like(parameter)
            gradients.append(gradient.flatten())
        # a single large gradient is not copied
        flat = gradients[0] if len(gradients) == 1 else torch.cat(gradients)  # (n,)
        with name_missing_process():
            message = dist.all_reduce(flat, async_op=True)
        self._sent.append((flat, message))
