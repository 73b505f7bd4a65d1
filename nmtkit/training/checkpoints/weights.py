"""Weights: of a model, in a file of their own or in a training's state; the mean of several, and a moving average."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nmtkit.core.errors import CheckpointError
from nmtkit.training.checkpoints.tensor_files import open_checkpoint, read_tensors, write_tensors

WEIGHTS, EMA, OPTIMIZER = "weights/", "ema/", "optimizer/"
"""How the names in `last.safetensors` begin; the file also has the facts as JSON in its head."""


def strip_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a full state whose names begin with WEIGHTS, EMA or OPTIMIZER, under the rest of their names."""
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def get_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights and persistent buffers of a model, not copied; a tied one once, under its first name."""
    weights: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            weights[name] = tensor.detach()
    return weights


def count_parameters(model: nn.Module) -> int:
    """The number of weights in the file of a model, as long as it is not prepared for inference."""
    return sum(weight.numel() for weight in get_weights(model).values())


def save_weights(path: Path, weights: Mapping[str, Tensor], vocabulary: str = "") -> None:
    """Writes weights to a file of their own, with the checksum of their vocabulary, if it is known."""
    write_tensors(path, weights, {"kind": "weights"}, vocabulary)


def read_weights(path: Path, vocabulary: str = "") -> dict[str, Tensor]:
    """The weights in a checkpoint of either kind, on the CPU; of a full state the averaged ones, if it has any.

    `vocabulary` is the checksum of the vocabulary that they are to be used with; empty: any.
    """
    with open_checkpoint(path) as (file, header):
        header.require_vocabulary(vocabulary)
        if not header.is_state:
            return read_tensors(file, header)
        # Buffers have no average, so the averages are laid over the weights.
        tensors = read_tensors(file, header, (WEIGHTS, EMA))
        return strip_prefix(WEIGHTS, tensors) | strip_prefix(EMA, tensors)


def read_vocabulary_checksum(path: Path) -> str:
    """The checksum of the vocabulary that a checkpoint was trained with; empty if it does not say."""
    with open_checkpoint(path) as (_, header):
        return header.vocabulary


def load_weights(model: nn.Module, path: Path, vocabulary: str = "") -> None:
    """Fills the model with the weights in a checkpoint of either kind."""
    assign_weights(model, read_weights(path, vocabulary), path)


class SkipInit(TorchFunctionMode):
    """Skips the random initialization of a model built inside: its weights are zero until they are assigned.

    Without `fill` nothing is written into them, so that they take no memory: they are never to be read.
    """

    _DRAWS = ("uniform_", "normal_", "trunc_normal_", "kaiming_uniform_")

    def __init__(self, fill: bool = True) -> None:
        super().__init__()
        self._fill = fill

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        """Intercepts `torch.nn.init` and the methods that models call."""
        given = kwargs or {}
        if getattr(func, "__name__", "") in self._DRAWS:
            drawn = args[0] if args else given["tensor"]
            return nn.init.zeros_(drawn) if self._fill else drawn
        return func(*args, **given)


def assign_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Fills the model in place, so that tied weights stay tied and every address stays the same.

    A weight that is missing, unknown, or of another shape or kind of number raises a CheckpointError that names `path`.
    """
    own = get_weights(model)
    _require_fitting(own, weights, path)
    _fill(own, weights)


def assign_matching_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> tuple[list[str], list[str]]:
    """Fills the model in place with those weights that it has, for a model of which parts were added or taken away.

    Gives the names of the model's weights that are not among these, and of those among these that it does not have.
    """
    own = get_weights(model)
    matching = {name: tensor for name, tensor in own.items() if name in weights}
    values = {name: weights[name] for name in matching}
    _require_fitting(matching, values, path)
    _fill(matching, values)
    missing = [name for name in own if name not in weights]
    unknown = [name for name in weights if name not in own]
    return missing, unknown


def _fill(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():  # in place: compiled and captured code relies on the addresses
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def _require_fitting(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path) -> None:
    wanted, given = _describe(own), _describe(weights)
    faults = [
        f"{name!r} is {given.get(name, 'missing')}, the model has {wanted.get(name, 'none')}"
        for name in {**wanted, **given}
        if given.get(name) != wanted.get(name)
    ]
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise CheckpointError(
            f"{path}: the checkpoint is of another model: {'; '.join(faults[:3])}{more}; "
            "use the recipe it was trained with"
        )


def _describe(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Kind of number and shape of each, which must be equal for one to replace the other."""

    def kind(tensor: Tensor) -> str:
        return "bool" if tensor.dtype == torch.bool else "float" if tensor.is_floating_point() else "int"

    return {name: f"{kind(tensor)} {list(tensor.shape)}" for name, tensor in weights.items()}


def average_weights(paths: Sequence[Path], model: nn.Module | None = None, vocabulary: str = "") -> dict[str, Tensor]:
    """The mean of the weights of one or more checkpoints, added up in float64, in the type of the first.

    Tensors that are not floating-point are taken from the first. `model` is one that the average must fit.
    """
    first = read_weights(paths[0], vocabulary)
    if not any(tensor.is_floating_point() for tensor in first.values()):
        raise CheckpointError(f"{paths[0]}: holds no weights that can be averaged; name other checkpoints")
    if model is not None:
        _require_fitting(get_weights(model), first, paths[0])
    total = {name: tensor.double() for name, tensor in first.items()}
    for path in paths[1:]:
        weights = read_weights(path, vocabulary)
        if _describe(weights) != _describe(first):
            raise CheckpointError(f"{path}: of another model than {paths[0]}; average checkpoints of one run only")
        for name, tensor in weights.items():
            total[name] += tensor.double()
    return {
        name: (total[name] / len(paths)).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in first.items()
    }


class Ema:
    """An exponential moving average of weights w: a <- d a + (1 - d) w; often a better model than the last weights.

    The decay of update n is d = min(decay, (1 + n) / (10 + n)), so that the random first weights are soon forgotten in
    a short training. About 1 / (1 - decay) updates are averaged over.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._parameters = dict(parameters)
        self._decay = decay
        self.averages = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def update(self, number: int) -> None:
        """Takes in the weights as they are after update `number`, from 1."""
        decay = min(self._decay, (1 + number) / (10 + number))
        weights = [parameter.detach() for parameter in self._parameters.values()]
        torch._foreach_lerp_(list(self.averages.values()), weights, 1 - decay)  # one call for all tensors

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averages as its weights."""
        own = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        _fill(self._parameters, self.averages)
        try:
            yield
        finally:
            _fill(self._parameters, own)

    def restore(self, averages: Mapping[str, Tensor]) -> None:
        """Takes over averages that were saved; without any they start from the weights as they are now."""
        for name, average in self.averages.items():
            saved = averages.get(name) if averages else self._parameters[name].detach()
            if saved is None or saved.shape != average.shape:
                raise CheckpointError(f"the averaged weights belong to another model: {name!r}")
            average.copy_(saved)
