"""The gradients of what settings of a training minimise, for one batch; for the tests of several rooms."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from nmtkit.data.batches.batch import Batch
from nmtkit.models.base import Seq2Seq
from nmtkit.training.config import TrainingConfig
from nmtkit.training.losses.objective import GradientAccumulator, build_objectives

CPU = torch.device("cpu")


def training_settings(**given: Any) -> dict[str, Any]:
    """The settings of a training; objectives are given by their names, wherever a recipe has them."""
    settings: dict[str, Any] = {"objectives": {}}
    for name, value in given.items():
        is_key = name in TrainingConfig.model_fields
        (settings if is_key else settings["objectives"])[name] = value
    return settings


def backward(
    model: Seq2Seq,
    batch: Batch,
    tokens: int,
    chunk_bytes: int = 1 << 20,
    device: torch.device = CPU,
    links: int = 1,
    counts: Mapping[str, int] = MappingProxyType({}),
    **training: Any,
) -> dict[str, Tensor]:
    """Adds the gradient of a batch's part of an update to the parameters.

    Args:
        model: in training mode, on the device.
        batch: with targets, on the CPU.
        tokens: target tokens of the whole update.
        chunk_bytes: how large the log-probabilities of a part may be.
        device: where to compute.
        links: linked target tokens of the whole update.
        counts: further counts of the whole update; by default those of the batch.
        training: what differs from the default settings.
    """
    objectives = build_objectives(
        TrainingConfig.model_validate(training_settings(max_updates=1, **training))
    )
    own = {
        name: count for objective in objectives for name, count in objective.counts(batch).items()
    }
    of_update = {**own, "tokens": tokens, "links": links, "sentences": batch.size, **counts}
    return GradientAccumulator(model, objectives, of_update, device, chunk_bytes).backward(batch)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradients by name of parameter, which the model has no longer."""
    found = {
        name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return found


def assert_same_gradients(
    found: dict[str, Tensor], expected: dict[str, Tensor], within: float = 1e-9
) -> None:
    """Compares gradients in float64."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=within, atol=1e-3 * within, msg=name)
