"""A model in pieces: of each weight, its gradient and what the optimizer keeps of it, every process has a part.

Rajbhandari et al. 2020, "ZeRO", section 5 (stage 3), by torch's `fully_shard`: a layer is put together where it is
computed, forward and backward, and taken apart again. What is in no layer, as embeddings, is whole for the length of a
batch. The processes must compute the same layers equally often, for they wait for each other in each.

Every process has room for all weights before they are cut, and when it validates. A state is gathered in the memory of
process 0's CPU (twice 12 bytes a weight with Adam, 16 with an average) and written as one file, which any number reads.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from nmtkit.core.errors import TrainingError
from nmtkit.models.abilities import transformer_layers
from nmtkit.models.base import Model
from nmtkit.training.checkpoints.weights import SkipInit, assign_weights, get_weights
from nmtkit.training.config import TrainingConfig
from nmtkit.training.parallel import processes


def require_equal_shares(config: TrainingConfig, per_update: int) -> None:
    """Raises a TrainingError if a process that has a part of the model had fewer batches of an update than another."""
    if config.shard and per_update % processes.size():
        raise TrainingError(
            f"training.shard: an update has {per_update} batches, which {processes.size()} processes cannot share "
            f"equally; start a number of processes that divides {per_update}, or one alone"
        )


class Shards:
    """The part of a model that this process has, by the interface of `GradientSum` where gradients are added up."""

    def __init__(self, model: Model, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh  # slow, and rarely needed
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
            raise TrainingError(f"training.shard: it needs torch 2.13 or later, and here is {torch.__version__}")
        if any(not weight.requires_grad or not weight.ndim for weight in model.parameters()):
            raise TrainingError("training.shard: not for frozen weights, nor for scalar ones; leave one of them out")
        self._build = partial(type(model), model.config, model.sizes)
        processes.broadcast_tensors([*get_weights(model).values()])
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # nothing is changed in place
        self._mesh = init_device_mesh(device.type, (processes.size(),))
        for layer in cast(list[Any], transformer_layers(model)):
            if hasattr(layer, "cross_attention"):  # called before the layer, once the encoder's states are known
                fully_shard(layer.cross_attention.keys_values, mesh=self._mesh)
            fully_shard(layer, mesh=self._mesh)
        self.model: Any = fully_shard(model, mesh=self._mesh, reshard_after_forward=False)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # the losses are divided already
                module.set_force_sum_reduction_for_comms(True)  # gloo has no other
        self.model.set_reduce_scatter_unused_params(True)  # what this process did not use another may have used
        for name in ("read", "predict", "logits"):  # which training calls
            register_fsdp_forward_method(model, name)
        self._synchronize(False)
        self._weights: dict[str, Any] = dict(model.named_parameters())
        self.parameters = {name: nn.Parameter(one.to_local().detach()) for name, one in self._weights.items()}
        """The parts of this process, as plain tensors in the same memory; the first axis is cut."""

    def _synchronize(self, on: bool) -> None:
        self.model.set_requires_gradient_sync(on)
        self.model.set_is_last_backward(on)
        self.model.set_reshard_after_backward(on, recurse=False)

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Backward in this block is the last of a batch: gradients are added up over processes, and cut."""
        self._synchronize(True)
        yield
        self._synchronize(False)

    def finish(self) -> None:
        """Gives `parameters` the gradients."""
        for name, weight in self._weights.items():
            self.parameters[name].grad = None if weight.grad is None else weight.grad.to_local()
            weight.grad = None

    def norm(self, own: Tensor) -> Tensor:
        """The norm of all parts, from that of this process's."""
        square = own.square()
        processes.all_reduce_sum(square)
        return square.sqrt()

    def own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parts of this process, of tensors with the shapes of weights, or none."""
        rank, found = processes.rank(), {}
        for name, whole in tensors.items():
            parts = whole.chunk(processes.size()) if whole.ndim else [whole] * processes.size()
            found[name] = (parts[rank] if rank < len(parts) else whole[:0]).clone()  # so that the whole can go
        return found

    def gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`own` undone, in the memory of process 0's CPU alone. Names end in a weight's, after a slash."""
        whole = {}
        for name, part in tensors.items():
            full = self._full(part, name.rpartition("/")[2])
            if processes.rank() == 0:
                whole[name] = full.cpu()
        return whole

    def _joined(self, part: Tensor, like: Tensor) -> Any:
        from torch.distributed.tensor import DTensor, Shard

        return DTensor.from_local(part, self._mesh, [Shard(0)], shape=like.shape, stride=like.stride())

    def _full(self, part: Tensor, name: str) -> Tensor:
        if name not in self._weights or not part.ndim:  # a buffer, or a count
            return part
        with processes.naming_who_is_missing():
            return cast(Tensor, self._joined(part, self._weights[name]).full_tensor())

    def weights(self) -> dict[str, Tensor]:
        """The parts of weights, and buffers."""
        return {name: self.parameters.get(name, one).detach() for name, one in get_weights(self.model).items()}

    @torch.no_grad()
    def whole(self) -> Model:
        """A model of its own with all weights as they are now, in every process, to validate."""
        parts = self.weights()
        first = next(iter(self.parameters.values()))
        with SkipInit():
            model = self._build().to(first.device, first.dtype)
        for name, weight in get_weights(model).items():
            weight.copy_(self._full(parts[name], name))
        return model

    def load(self, weights: Mapping[str, Tensor], path: Path) -> None:
        """Takes its parts of the weights of a whole model, as `assign_weights` takes all."""
        parts = self.own({name: one for name, one in weights.items() if name in self._weights and one.ndim})
        joined = {name: self._joined(part, weights[name]) for name, part in parts.items()}
        assign_weights(self.model, {**weights, **joined}, path)
