"""Optimizers by name, with torch's fused kernels, and a step that can be skipped on the device."""

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
"""Torch parameter groups, each with `params`, its `weight_decay`, and a `factor` for the learning rate."""

OPTIMIZERS: Registry[Callable[["OptimizerConfig", Groups], Optimizer]] = Registry("optimizer")


@OPTIMIZERS.register("adam")
def adam(config: "OptimizerConfig", groups: Groups) -> Optimizer:
    """Adam (Kingma and Ba 2015)."""
    return Adam(groups, **_adam_arguments(config))


@OPTIMIZERS.register("adamw")
def adamw(config: "OptimizerConfig", groups: Groups) -> Optimizer:
    """AdamW (Loshchilov and Hutter 2019), in which weight decay is decoupled from the gradient."""
    return AdamW(groups, **_adam_arguments(config))


def _adam_arguments(config: "OptimizerConfig") -> dict[str, Any]:
    return {"lr": config.lr, "betas": tuple(config.betas), "eps": config.eps or 1e-8, "fused": True}


@OPTIMIZERS.register("adadelta")
def adadelta(config: "OptimizerConfig", groups: Groups) -> Optimizer:
    """Adadelta (Zeiler 2012), with rho = 0.95 as in the paper's experiments and in Bahdanau et al. 2015."""
    return Adadelta(groups, lr=config.lr, rho=0.95, eps=config.eps or 1e-6)


@OPTIMIZERS.register("adagrad")
def adagrad(config: "OptimizerConfig", groups: Groups) -> Optimizer:
    """Adagrad (Duchi, Hazan and Singer 2011)."""
    start = config.initial_accumulator
    return Adagrad(groups, lr=config.lr, eps=config.eps or 1e-10, initial_accumulator_value=start)


@OPTIMIZERS.register("sgd")
def sgd(config: "OptimizerConfig", groups: Groups) -> Optimizer:
    """Stochastic gradient descent without momentum."""
    # On CUDA, a fused step can be skipped without waiting for the device. With `fused=None`, torch decides.
    return SGD(groups, lr=config.lr, fused=_is_on_cuda(groups) or None)


def _is_on_cuda(groups: Groups) -> bool:
    parameter: nn.Parameter = groups[0]["params"][0]
    return parameter.is_cuda


if TYPE_CHECKING:
    OptimizerName = str
else:
    OptimizerName = registry_name(OPTIMIZERS)


class OptimizerConfig(Settings):
    """The optimizer and its hyperparameters."""

    optimizer: OptimizerName = "adam"
    """Name of the optimizer."""
    lr: float = Field(default=0.001, gt=0, le=1e6)
    """Learning rate; the schedule scales it."""
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=[0.9, 0.98], min_length=2, max_length=2
    )
    """Adam and AdamW: decay rates of the running means of gradients and of squared gradients."""
    eps: float | None = Field(default=None, gt=0)
    """Constant added to denominators. Default: 1e-8 for Adam and AdamW, 1e-6 for Adadelta, 1e-10 for Adagrad."""
    initial_accumulator: float = Field(default=0.0, ge=0, le=1e6)
    """Adagrad: initial value of each weight's sum of squared gradients; a larger value makes the first steps
    smaller."""
    weight_decay: float = Field(default=0.0, ge=0, le=1e6)
    """Weight decay, applied only to matrices, not to vectors such as biases. In AdamW, it is decoupled from
    the gradient."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Ratio of a layer's learning rate to that of the layer above it; embeddings have the lowest rate. Use 0.95 or less
    for fine-tuning (Howard and Ruder 2018, section 3.2; Clark et al. 2020, table 7)."""


def build_optimizer(config: OptimizerConfig, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
    """Builds the optimizer for parameters, which are given by name and must all be on one device."""
    below_top = layers_below_top(parameters)
    matrices_by_factor: dict[float, list[nn.Parameter]] = {}
    vectors_by_factor: dict[float, list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        factor = config.layer_decay ** below_top[name]
        members = matrices_by_factor if parameter.ndim >= 2 else vectors_by_factor
        members.setdefault(factor, []).append(parameter)
    groups: Groups = []
    for factor, matrices in matrices_by_factor.items():
        groups.append({"params": matrices, "weight_decay": config.weight_decay, "factor": factor})
    for factor, vectors in vectors_by_factor.items():
        groups.append({"params": vectors, "weight_decay": 0.0, "factor": factor})
    return OPTIMIZERS.get(config.optimizer)(config, groups)


def skippable_step(is_bad: Tensor, optimizer: Optimizer, lr: float) -> None:
    """Runs an optimizer step; if `is_bad`, weights, running means and step counts stay unchanged.

    `is_bad` is a bool scalar on the parameters' device. Fused kernels read it on the device, without waiting; torch has
    no fused kernel for Adadelta, or for Adagrad on CUDA.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("factor", 1.0)
    if optimizer.param_groups[0].get("fused"):
        # torch's gradient scaler uses this attribute to skip a fused step.
        optimizer.found_inf = is_bad.float()  # type: ignore[attr-defined]  # torch does not declare it
        optimizer.step()
    elif not bool(is_bad):
        optimizer.step()


def read_state(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Returns the optimizer's tensors, named `KEY/PARAMETER`, such as `exp_avg/encoder.weight`."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):  # an unused momentum is None
                tensors[f"{key}/{name}"] = value
    return tensors


def restore_state(
    optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]
) -> None:
    """Loads tensors from `read_state` into a new optimizer of the same kind.

    Parameters without tensors start with an empty state. Raises a CheckpointError if a tensor does not fit its
    parameter.
    """
    state_by_name: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        key, _, name = full_name.partition("/")
        parameter = parameters.get(name)
        fits = False
        if parameter is not None:
            expected_shape = torch.Size() if key == "step" else parameter.shape
            fits = tensor.shape == expected_shape
        if not fits:
            raise CheckpointError(
                f"the optimizer's state belongs to a different model: {key} of {name!r} does not fit this one"
            )
        state_by_name.setdefault(name, {})[key] = tensor
    # A state dict numbers the parameters in the order of their groups.
    numbers: dict[int, int] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            numbers[id(parameter)] = len(numbers)
    state_dict = optimizer.state_dict()
    for name, state in state_by_name.items():
        number = numbers[id(parameters[name])]
        state_dict["state"][number] = state
    with torch.no_grad():
        optimizer.load_state_dict(state_dict)


_LAYER = re.compile(r"(.+?)(?<!_heads)(?:\.(\d+)\.|_l(\d+)(?:_reverse)?$)")
"""Stack and number of a layer in a weight's name: `encoder.2.` in nmtkit, `_l2` or `_l2_reverse` in torch's RNNs.
Numbered heads, `..._heads.2.`, are not layers."""


def freeze(model: nn.Module, names: Sequence[str]) -> None:
    """Excludes weights, or all weights of modules, from training.

    Raises a RecipeError if the model has no weight with such a name, or if no weight is left to train.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in names:
        # The dots prevent `decoder.1` from matching `decoder.10`.
        frozen = [full_name for full_name in parameters if f"{full_name}.".startswith(f"{name}.")]
        if not frozen:
            # without duplicates, in order
            parts = dict.fromkeys(full_name.partition(".")[0] for full_name in parameters)
            listed = ", ".join(parts)
            raise RecipeError(
                f"`training.freeze`: the model has no part {name!r}; use {listed}, or parts of them"
            )
        for full_name in frozen:
            parameters[full_name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise RecipeError(
            "`training.freeze` includes all weights, so nothing is left to train; remove some names"
        )


def layers_below_top(names: Iterable[str]) -> dict[str, int]:
    """Returns the number of layers above each weight's layer in the same stack; 0 for a weight outside the stacks.

    Embeddings, position embeddings, and output layers that share an embedding matrix are treated as if they were below
    all layers.
    """
    names = list(names)
    # stack and layer number of each weight
    positions: dict[str, tuple[str, int]] = {}
    for name in names:
        match = _LAYER.match(name)
        if match is not None:
            # A backward layer counts as level with the forward layer of the same number; there may be more forward
            # layers.
            stack = match[1].replace("backward_", "forward_")
            number = int(match[2] or match[3])
            positions[name] = (stack, number)
    stack_sizes: dict[str, int] = {}
    for stack, number in positions.values():
        stack_sizes[stack] = max(stack_sizes.get(stack, 0), number + 1)
    largest = max(stack_sizes.values(), default=0)
    below_top = dict.fromkeys(names, 0)
    for name in names:
        if name.startswith(("src_", "tgt_", "segment_")):
            below_top[name] = largest
        elif name in positions:
            stack, number = positions[name]
            below_top[name] = stack_sizes[stack] - 1 - number
    return below_top
