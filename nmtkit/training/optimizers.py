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
    """Zeiler 2012."""
    return Adadelta(groups, lr=config.lr, rho=config.rho, eps=config.eps or 1e-6)


@OPTIMIZERS.register("adagrad")
def adagrad(config: "OptimizerConfig", groups: Groups) -> Optimizer:
    """Duchi, Hazan and Singer 2011."""
    start = config.initial_accumulator
    return Adagrad(groups, lr=config.lr, eps=config.eps or 1e-10, initial_accumulator_value=start)


@OPTIMIZERS.register("sgd")
def sgd(config: "OptimizerConfig", groups: Groups) -> Optimizer:
    """Plain descent, with momentum if asked for."""
    fused = _is_on_cuda(groups)
    optimizer = SGD(groups, lr=config.lr, momentum=config.momentum, fused=fused)
    if fused and config.momentum:  # torch's is there, but unwritten, after a first step that was called off
        optimizer.state.update({p: {"momentum_buffer": torch.zeros_like(p)} for g in groups for p in g["params"]})
    return optimizer


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
    rho: float = Field(default=0.95, gt=0, lt=1)
    """Adadelta: decay of the running means of squares."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """SGD: part of the last step that is kept."""
    weight_decay: float = Field(default=0.0, ge=0, le=1e6)
    """Shrinks matrices at every update, never vectors (biases, norms); AdamW does it apart from the gradient."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Layer-wise rates: each layer learns this many times as fast as the one above it, embeddings slowest. 0.95 or less
    for fine-tuning (Howard and Ruder 2018, section 3.2; Clark et al. 2020, table 7)."""


def build_optimizer(config: OptimizerConfig, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
    """Builds the optimizer over the parameters, each given once, all on one device."""
    below, groups = layers_below_top(parameters), dict[tuple[bool, float], dict[str, Any]]()
    for name, parameter in sorted(parameters.items(), key=lambda one: one[1].ndim < 2):
        is_matrix, factor = parameter.ndim >= 2, config.layer_decay ** below[name]
        new = {"params": [], "weight_decay": config.weight_decay if is_matrix else 0.0, "factor": factor}
        groups.setdefault((is_matrix, factor), new)["params"].append(parameter)
    return OPTIMIZERS.get(config.optimizer)(config, [*groups.values()])


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
    state: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        key, _, name = full_name.partition("/")
        shape = torch.Size() if key == "step" or name not in parameters else parameters[name].shape
        if name not in parameters or tensor.shape != shape:
            raise CheckpointError(f"the optimizer's state is of another model: {key} of {name!r} does not fit this one")
        state.setdefault(name, {})[key] = tensor
    numbers = {id(p): n for n, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    new = optimizer.state_dict()
    known = {numbers[id(parameters[name])]: entry for name, entry in state.items()}
    with torch.no_grad():
        optimizer.load_state_dict({"state": {**new["state"], **known}, "param_groups": new["param_groups"]})


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
    """How many layers of its stack lie above each of the weights with these names; 0 if it is in no layer.

    Embeddings and positions lie below all layers, and so does an output layer that shares an embedding's matrix.
    """
    found = {name: _LAYER.match(name) for name in names}
    # Layers that read backward stand beside those that read forward, of which there may be more.
    places = {n: (m[1].replace("backward_", "forward_"), int(m[2] or m[3])) for n, m in found.items() if m}
    counts = {stack: number + 1 for stack, number in sorted(places.values())}
    below = {name: counts[stack] - 1 - number for name, (stack, number) in places.items()}
    lowest = {name: max(counts.values(), default=0) for name in found if name.startswith(("src_", "tgt_", "segment_"))}
    return {name: lowest.get(name, below.get(name, 0)) for name in found}
