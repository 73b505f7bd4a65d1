"""Optimizers by name, with torch's fused kernels, and a step that can be called off on the device."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, Optimizer

from nmtkit.core.errors import CheckpointError, RecipeError
from nmtkit.core.registry import Registry
from nmtkit.core.settings import Field, Settings, registry_name

Groups = list[dict[str, Any]]
"""Parameters with one weight decay each, and a factor on their learning rate, as torch takes them."""

OPTIMIZERS: Registry[Callable[["OptimizerConfig", Groups], Optimizer]] = Registry("optimizer")


@OPTIMIZERS.register("adam")
def adam(config: "OptimizerConfig", groups: Groups) -> Optimizer:
    """Kingma and Ba 2015."""
    return Adam(groups, **_adam_arguments(config))


@OPTIMIZERS.register("adamw")
def adamw(config: "OptimizerConfig", groups: Groups) -> Optimizer:
    """Loshchilov and Hutter 2019: the weight decay is no part of the gradient."""
    return AdamW(groups, **_adam_arguments(config))


def _adam_arguments(config: "OptimizerConfig") -> dict[str, Any]:
    return {"lr": config.lr, "betas": tuple(config.betas), "eps": config.eps or 1e-8, "fused": True}


@OPTIMIZERS.register("adadelta")
def adadelta(config: "OptimizerConfig", groups: Groups) -> Optimizer:
    """Zeiler 2012; rho is 0.95, as in his experiments and in those of Bahdanau et al. 2015."""
    return Adadelta(groups, lr=config.lr, rho=0.95, eps=config.eps or 1e-6)


@OPTIMIZERS.register("adagrad")
def adagrad(config: "OptimizerConfig", groups: Groups) -> Optimizer:
    """Duchi, Hazan and Singer 2011."""
    start = config.initial_accumulator
    return Adagrad(groups, lr=config.lr, eps=config.eps or 1e-10, initial_accumulator_value=start)


@OPTIMIZERS.register("sgd")
def sgd(config: "OptimizerConfig", groups: Groups) -> Optimizer:
    """Plain descent."""
    return SGD(groups, lr=config.lr, fused=_is_on_cuda(groups))


def _is_on_cuda(groups: Groups) -> bool | None:
    """True for parameters there, where a step by the fused kernel is called off without a wait."""
    return groups[0]["params"][0].is_cuda or None


if TYPE_CHECKING:
    OptimizerName = str
else:
    OptimizerName = registry_name(OPTIMIZERS)


class OptimizerConfig(Settings):
    """Which optimizer, and its constants. The learning rate's course is the schedule's."""

    optimizer: OptimizerName = "adam"
    """Which optimizer."""
    lr: float = Field(default=0.001, gt=0, le=1e6)
    """Learning rate; the schedule starts from it."""
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(default=[0.9, 0.98], min_length=2, max_length=2)
    """Adam, AdamW: decay of the running mean of the gradients and of their squares."""
    eps: float | None = Field(default=None, gt=0)
    """Added to denominators; unset: Adam and AdamW 1e-8, Adadelta 1e-6, Adagrad 1e-10."""
    initial_accumulator: float = Field(default=0.0, ge=0, le=1e6)
    """Adagrad: what the sum of squares of every weight begins with; larger: smaller first steps."""
    weight_decay: float = Field(default=0.0, ge=0, le=1e6)
    """Shrinks matrices at every update, never vectors (biases, norms); AdamW does it apart from the gradient."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Layer-wise rates: each layer learns this many times as fast as the one above it, embeddings slowest. 0.95 or less
    for fine-tuning (Howard and Ruder 2018, section 3.2; Clark et al. 2020, table 7)."""


def build_optimizer(config: OptimizerConfig, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
    """Builds the optimizer over the parameters, each given once, all on one device."""
    below_top = layers_below_top(parameters)
    matrices = {name: parameter for name, parameter in parameters.items() if parameter.ndim >= 2}
    vectors = {name: parameter for name, parameter in parameters.items() if parameter.ndim < 2}
    groups: list[dict[str, Any]] = []
    for members, weight_decay in ((matrices, config.weight_decay), (vectors, 0.0)):
        by_factor: dict[float, list[nn.Parameter]] = {}
        for name, parameter in members.items():
            factor = config.layer_decay ** below_top[name]
            by_factor.setdefault(factor, []).append(parameter)
        for factor, group in by_factor.items():
            groups.append({"params": group, "weight_decay": weight_decay, "factor": factor})
    return OPTIMIZERS.get(config.optimizer)(config, groups)


def skippable_step(bad: Tensor, optimizer: Optimizer, lr: float) -> None:
    """One optimizer step, or none at all if `bad` is true: weights, running means and step counts stay as they are.

    `bad` is a bool scalar on the parameters' device. The fused kernels read it there, without a wait for the device;
    torch has none of Adadelta, nor on CUDA of Adagrad.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("factor", 1.0)
    if optimizer.param_groups[0].get("fused"):
        # The attribute by which torch's own gradient scaler calls off a fused step.
        optimizer.found_inf = bad.float()  # type: ignore[attr-defined]  # torch's types do not know it
        optimizer.step()
    elif not bool(bad):
        optimizer.step()


def read_state(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The optimizer's tensors under names `KEY/PARAMETER`, such as `exp_avg/encoder.weight`."""
    return {
        f"{key}/{name}": value
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)  # torch keeps a None where a momentum is off
    }


def restore_state(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]) -> None:
    """Puts what `read_state` gave into a new optimizer of the same kind; it may know some of the parameters only."""
    state_by_name: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        key, _, name = full_name.partition("/")
        parameter = parameters.get(name)
        fits = parameter is not None and tensor.shape == (torch.Size() if key == "step" else parameter.shape)
        if not fits:
            raise CheckpointError(f"the optimizer's state is of another model: {key} of {name!r} does not fit this one")
        state_by_name.setdefault(name, {})[key] = tensor
    # torch numbers parameters in the order of their groups.
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = {id(parameter): number for number, parameter in enumerate(ordered)}
    whole = optimizer.state_dict()
    for name, entry in state_by_name.items():
        whole["state"][numbers[id(parameters[name])]] = entry
    with torch.no_grad():
        optimizer.load_state_dict(whole)


_LAYER = re.compile(r"(.+?)(?<!_heads)(?:\.(\d+)\.|_l(\d+)(?:_reverse)?$)")
"""The stack and the number of a layer in the name of one of its weights: `encoder.2.` here, `_l2` in torch's RNNs."""


def freeze(model: nn.Module, names: Sequence[str]) -> None:
    """Takes weights, or the modules that have them, out of training: no gradient of them is computed.

    Raises a RecipeError for a name that the model lacks, and where nothing would be left to train.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in names:
        frozen = [parameter for full, parameter in parameters.items() if f"{full}.".startswith(f"{name}.")]
        if not frozen:
            there = ", ".join(dict.fromkeys(full.partition(".")[0] for full in parameters))
            raise RecipeError(f"`training.freeze`: the model has no {name!r}; it has {there}, and parts of these")
        for parameter in frozen:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise RecipeError("`training.freeze`: it names all weights, and leaves nothing to train; leave some out")


def layers_below_top(names: Iterable[str]) -> dict[str, int]:
    """Returns how many layers of its stack are above each of the weights with these names; 0 if it is in no layer.

    Embeddings and positions are below all layers, and so is an output layer that shares an embedding's matrix.
    """
    names = list(names)
    places: dict[str, tuple[str, int]] = {}  # the stack and the number of the layer of each weight
    for name in names:
        match = _LAYER.match(name)
        if match is not None:
            # Layers that read backward are beside those that read forward, of which there may be more.
            stack = match[1].replace("backward_", "forward_")
            places[name] = stack, int(match[2] or match[3])
    layers: dict[str, int] = {}  # of each stack
    for stack, number in places.values():
        layers[stack] = max(layers.get(stack, 0), number + 1)
    deepest = max(layers.values(), default=0)
    below_top = dict.fromkeys(names, 0)
    for name in names:
        if name.startswith(("src_", "tgt_", "segment_")):
            below_top[name] = deepest
        elif name in places:
            stack, number = places[name]
            below_top[name] = layers[stack] - 1 - number
    return below_top
