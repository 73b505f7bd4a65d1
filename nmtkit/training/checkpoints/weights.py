"""Model weights: reading and writing them, averaging checkpoints, and a moving average during training."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nmtkit.core.errors import CheckpointError
from nmtkit.training.checkpoints.tensor_files import open_checkpoint, read_tensors, write_tensors

WEIGHTS = "weights/"
EMA = "ema/"
OPTIMIZER = "optimizer/"
"""Prefixes of the names in `last.safetensors`."""


def strip_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors whose names begin with the prefix, by their names without it."""
    return {
        name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)
    }


def get_weights(model: nn.Module) -> dict[str, Tensor]:
    """Returns a model's weights and persistent buffers, not copied; a tied weight appears only under its first name."""
    weights: dict[str, Tensor] = {}
    seen_ids: set[int] = set()
    # With `keep_vars` the values are the parameters themselves, so a tied weight has the same id under all its names.
    state_dict = model.state_dict(keep_vars=True)
    for name, tensor in state_dict.items():
        if id(tensor) in seen_ids:
            continue
        seen_ids.add(id(tensor))
        weights[name] = tensor.detach()
    return weights


def count_parameters(model: nn.Module) -> int:
    """Returns the number of elements in the weights and buffers of a model that is not prepared for inference."""
    return sum(weight.numel() for weight in get_weights(model).values())


def save_weights(path: Path, weights: Mapping[str, Tensor], vocabulary: str = "") -> None:
    """Writes a weights file, with the vocabulary's checksum if it is known."""
    write_tensors(path, weights, facts={"kind": "weights"}, vocabulary=vocabulary)


def read_weights(path: Path, vocabulary: str = "") -> dict[str, Tensor]:
    """Reads a checkpoint's weights onto the CPU; from a full state, the averaged weights if there are any.

    `vocabulary` is the checksum of the vocabulary with which the weights will be used; an empty string allows any
    vocabulary.
    """
    with open_checkpoint(path) as (file, header):
        header.require_vocabulary(vocabulary)
        if not header.is_state:
            return read_tensors(file, header)
        # Buffers are not averaged, so they always come from the weights.
        tensors = read_tensors(file, header, (WEIGHTS, EMA))
        return strip_prefix(WEIGHTS, tensors) | strip_prefix(EMA, tensors)


def read_vocabulary_checksum(path: Path) -> str:
    """Returns the checksum of a checkpoint's vocabulary; empty if the file has none."""
    with open_checkpoint(path) as (_, header):
        return header.vocabulary


def load_weights(model: nn.Module, path: Path, vocabulary: str = "") -> None:
    """Loads the weights of a weights file or a full state into the model."""
    assign_weights(model, read_weights(path, vocabulary), path)


class SkipInit(TorchFunctionMode):
    """Skips the random initialization of a model built inside the context; its weights are zero until assigned.

    Without `fill` the weights are not written at all, so that they take up no memory; they must then never be read.
    """

    _RANDOM_FILLS = ("uniform_", "normal_", "trunc_normal_", "kaiming_uniform_")

    def __init__(self, fill: bool = True) -> None:
        super().__init__()
        self._fill = fill

    def __torch_function__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Intercepts functions of `torch.nn.init` and tensor methods with the same names."""
        kwargs = kwargs or {}
        function_name = getattr(func, "__name__", "")
        if function_name not in self._RANDOM_FILLS:
            return func(*args, **kwargs)
        tensor = args[0] if args else kwargs["tensor"]
        if self._fill:
            nn.init.zeros_(tensor)
        return tensor


def assign_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Copies weights into the model in place, so that tied weights stay tied and all addresses stay the same.

    Raises a CheckpointError that names `path` if a weight is missing, unknown, or has a different shape or kind of
    number.
    """
    model_weights = get_weights(model)
    _require_fitting(model_weights, weights, path)
    _copy_in_place(model_weights, weights)


def assign_matching_weights(
    model: nn.Module, weights: Mapping[str, Tensor], path: Path
) -> tuple[list[str], list[str]]:
    """Copies those weights that exist in the model, for a model with parts that were added or removed.

    Returns the names of the model's weights that are missing from `weights`, and the names in `weights` that the model
    does not have.
    """
    model_weights = get_weights(model)
    matching = {name: tensor for name, tensor in model_weights.items() if name in weights}
    values = {name: weights[name] for name in matching}
    _require_fitting(matching, values, path)
    _copy_in_place(matching, values)
    missing = [name for name in model_weights if name not in weights]
    unknown = [name for name in weights if name not in model_weights]
    return missing, unknown


def _copy_in_place(targets: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copies weights into tensors with the same names; compiled and captured code relies on the tensors' addresses."""
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(weights[name])


def _require_fitting(
    model_weights: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path
) -> None:
    expected = _describe(model_weights)
    actual = _describe(weights)
    faults: list[str] = []
    for name in expected | actual:
        in_checkpoint = actual.get(name, "missing")
        in_model = expected.get(name, "missing")
        if in_checkpoint != in_model:
            faults.append(f"{name!r} is {in_checkpoint} in the file, but {in_model} in the model")
    if faults:
        listed = "; ".join(faults[:3])
        if len(faults) > 3:
            listed += f" and {len(faults) - 3} more"
        raise CheckpointError(
            f"{path}: belongs to a different model ({listed}); use the recipe it was trained with"
        )


def _describe(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns each weight's kind of number and shape; both must be equal if one weight is to replace another."""
    descriptions: dict[str, str] = {}
    for name, tensor in weights.items():
        if tensor.dtype == torch.bool:
            kind = "bool"
        elif tensor.is_floating_point():
            kind = "float"
        else:
            kind = "int"
        descriptions[name] = f"{kind} {list(tensor.shape)}"
    return descriptions


def average_weights(
    paths: Sequence[Path], model: nn.Module | None = None, vocabulary: str = ""
) -> dict[str, Tensor]:
    """Returns the mean weights of one or more checkpoints, computed in float64.

    The means have the data types of the first checkpoint. Tensors that are not floating-point are taken from the first
    checkpoint. If `model` is given, the weights must fit it.
    """
    first = read_weights(paths[0], vocabulary)
    if not any(tensor.is_floating_point() for tensor in first.values()):
        raise CheckpointError(
            f"{paths[0]}: contains no weights that can be averaged; use other checkpoints"
        )
    if model is not None:
        _require_fitting(get_weights(model), first, paths[0])
    description = _describe(first)
    totals = {name: tensor.double() for name, tensor in first.items()}
    for path in paths[1:]:
        weights = read_weights(path, vocabulary)
        if _describe(weights) != description:
            raise CheckpointError(
                f"{path}: belongs to a different model from {paths[0]}; only checkpoints of one run can be averaged"
            )
        for name, tensor in weights.items():
            totals[name] += tensor.double()
    means: dict[str, Tensor] = {}
    for name, tensor in first.items():
        if tensor.is_floating_point():
            mean = totals[name] / len(paths)  # in the shape of the weight
            means[name] = mean.to(tensor.dtype)
        else:
            means[name] = tensor
    return means


class Ema:
    """Exponential moving average of weights w: a <- d a + (1 - d) w; often a better model than the last weights.

    The decay of update n is d = min(decay, (1 + n) / (10 + n)), so that even a short run forgets its random initial
    weights. The average covers about 1 / (1 - decay) updates.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._parameters = dict(parameters)
        self._decay = decay
        self.averages = {
            name: parameter.detach().clone() for name, parameter in self._parameters.items()
        }

    def update(self, number: int) -> None:
        """Updates the averages with the weights after update `number`, counted from 1."""
        decay = min(self._decay, (1 + number) / (10 + number))
        weights = [parameter.detach() for parameter in self._parameters.values()]
        # A single call for all tensors avoids the overhead of many small ones.
        torch._foreach_lerp_(list(self.averages.values()), weights, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replaces the model's weights with the averages, and restores them at the end."""
        weights = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        _copy_in_place(self._parameters, self.averages)
        try:
            yield
        finally:
            _copy_in_place(self._parameters, weights)

    def restore(self, averages: Mapping[str, Tensor]) -> None:
        """Restores saved averages; without any, the averages start from the current weights."""
        for name, average in self.averages.items():
            saved = averages.get(name) if averages else self._parameters[name].detach()
            if saved is None or saved.shape != average.shape:
                raise CheckpointError(
                    f"the averaged weights belong to a different model: {name!r} does not fit"
                )
            average.copy_(saved)
