"""Sharded training: each process holds a part of every weight, of its gradient and of its optimizer state.

Rajbhandari et al. 2020, "ZeRO", section 5 (stage 3), with torch's `fully_shard`: the weights of a layer are gathered
for its forward and its backward pass, and then freed again. Weights outside layers, such as embeddings, stay gathered
for a whole batch. All processes must run the same layers the same number of times, because they wait for each other in
each layer.

Every process needs memory for all weights before they are sharded, and during validation. To be saved, the
whole state is gathered in the CPU memory of process 0 (2 x 12 bytes per weight with Adam, 2 x 16 with an EMA) and
written as one file, from which any number of processes can resume.
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
    """Raises a TrainingError if sharded processes would have different numbers of batches in an update."""
    if config.shard and per_update % processes.size():
        raise TrainingError(
            f"training.shard: an update has {per_update} batches, which {processes.size()} processes cannot share "
            f"equally; use a number of processes that divides {per_update}, or a single process"
        )


class Shards:
    """This process's part of a model; sums gradients through the same interface as `GradientSum`."""

    def __init__(self, model: Model, device: torch.device) -> None:
        # slow to import, and rarely needed
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
            raise TrainingError(
                "training.shard requires torch 2.13 or later, but the installed version is "
                f"{torch.__version__}; upgrade torch, or remove training.shard"
            )
        if any(not weight.requires_grad or not weight.ndim for weight in model.parameters()):
            raise TrainingError(
                "training.shard does not support frozen or scalar weights; remove training.shard"
            )
        self._build = partial(type(model), model.config, model.sizes)
        processes.broadcast_tensors(list(get_weights(model).values()))
        # The warning concerns writing into a view, which never happens here.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
        self._mesh = init_device_mesh(device.type, (processes.size(),))
        for layer in cast(list[Any], transformer_layers(model)):
            if hasattr(layer, "cross_attention"):
                # This part runs before the rest of the layer, as soon as the encoder states are available.
                fully_shard(layer.cross_attention.keys_values, mesh=self._mesh)
            fully_shard(layer, mesh=self._mesh)
        self.model: Any = fully_shard(model, mesh=self._mesh, reshard_after_forward=False)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # the losses are already normalized
                module.set_force_sum_reduction_for_comms(True)  # gloo supports no other reduction
        # another process may have used parameters that this one did not
        self.model.set_reduce_scatter_unused_params(True)
        for name in ("read", "predict", "logits"):  # training calls these instead of `forward`
            register_fsdp_forward_method(model, name)
        self._synchronize(False)
        self._weights: dict[str, Any] = dict(model.named_parameters())
        self.parameters: dict[str, nn.Parameter] = {}
        """This process's parts of the weights, split along the first axis: plain tensors that share memory with the
        sharded weights."""
        for name, weight in self._weights.items():
            self.parameters[name] = nn.Parameter(weight.to_local().detach())

    def _synchronize(self, is_last: bool) -> None:
        """Sets whether the next backward pass sums gradients over processes and frees the gathered weights."""
        self.model.set_requires_gradient_sync(is_last)
        self.model.set_is_last_backward(is_last)
        self.model.set_reshard_after_backward(is_last, recurse=False)

    @contextmanager
    def last_backward(self) -> Iterator[None]:
        """Context for the last backward pass of a batch, which sums gradients over processes and shards them."""
        self._synchronize(True)
        yield
        self._synchronize(False)

    def finish(self) -> None:
        """Moves the gradients to `parameters`."""
        for name, weight in self._weights.items():
            self.parameters[name].grad = None if weight.grad is None else weight.grad.to_local()
            weight.grad = None

    def norm(self, local_norm: Tensor) -> Tensor:
        """Returns the norm over all processes, given the norm of this process's parts."""
        square = local_norm.square()  # ()
        processes.all_reduce_sum(square)
        return square.sqrt()

    def local_parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns this process's parts of tensors that are shaped like weights; scalars stay whole."""
        rank = processes.rank()
        parts: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            part = tensor
            if tensor.ndim:
                chunks = tensor.chunk(processes.size())
                # As in `fully_shard`, the last processes get nothing if there are too few rows.
                part = chunks[rank] if rank < len(chunks) else tensor[:0]
            parts[name] = part.clone()  # a view would keep the whole tensor in memory
        return parts

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Reverses `local_parts`: returns whole tensors on the CPU in process 0, and nothing in other processes.

        Each tensor has the name of its weight, possibly with a prefix that ends in a slash.
        """
        whole: dict[str, Tensor] = {}
        for name, part in tensors.items():
            weight_name = name.rpartition("/")[2]
            full_tensor = self._full_tensor(part, weight_name)
            if processes.rank() == 0:
                whole[name] = full_tensor.cpu()
        return whole

    def _distributed(self, part: Tensor, like: Tensor) -> Any:
        from torch.distributed.tensor import DTensor, Shard

        return DTensor.from_local(
            part, self._mesh, [Shard(0)], shape=like.shape, stride=like.stride()
        )

    def _full_tensor(self, part: Tensor, name: str) -> Tensor:
        if name not in self._weights or not part.ndim:  # a buffer, or a step count of the optimizer
            return part
        distributed = self._distributed(part, self._weights[name])
        with processes.name_missing_process():
            return cast(Tensor, distributed.full_tensor())

    def weights(self) -> dict[str, Tensor]:
        """Returns this process's parts of the weights, and all buffers."""
        parts: dict[str, Tensor] = {}
        for name, weight in get_weights(self.model).items():
            part = self.parameters.get(name, weight)
            parts[name] = part.detach()
        return parts

    @torch.no_grad()
    def whole_model(self) -> Model:
        """Returns a new model with all current weights in every process, for validation."""
        parts = self.weights()
        example = next(iter(self.parameters.values()))
        with SkipInit():
            model = self._build().to(example.device, example.dtype)
        for name, weight in get_weights(model).items():
            full_tensor = self._full_tensor(parts[name], name)
            weight.copy_(full_tensor)
        return model

    def load(self, weights: Mapping[str, Tensor], path: Path) -> None:
        """Assigns a whole model's weights, as `assign_weights` does."""
        values = dict(weights)
        for name, tensor in weights.items():
            if name not in self._weights or not tensor.ndim:  # a buffer
                continue
            part = self.local_parts({name: tensor})[name]
            values[name] = self._distributed(part, tensor)
        assign_weights(self.model, values, path)
