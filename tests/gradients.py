"""The gradients of what settings of a training minimise, for one batch; for the tests of several rooms."""

from typing import Any

import torch
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.models.base import Seq2Seq
from nmtkit.training.config import TrainingConfig
from nmtkit.training.objectives.objective import GradientAccumulator, build_objectives

CPU = torch.device("cpu")


def backward(
    model: Seq2Seq,
    batch: Batch,
    tokens: int,
    chunk_bytes: int = 1 << 20,
    device: torch.device = CPU,
    links: int = 1,
    **training: Any,
) -> dict[str, Tensor]:
    """Adds the gradient of a batch's part of an update to the parameters.

    Args:
        model: in training mode, on the device.
        batch: with targets, on the CPU.
        tokens: target tokens of the whole update.
        part_bytes: how large the log-probabilities of a part may be.
        device: where to compute.
        links: linked target tokens of the whole update.
        training: what differs from the default settings.
    """
    objectives = build_objectives(TrainingConfig.model_validate({"max_updates": 1, **training}))
    counts = {"tokens": tokens, "links": links, "sentences": batch.size}
    return GradientAccumulator(model, objectives, counts, device, chunk_bytes).backward(batch)
