"""Counts the floating-point operations of training from tensor shapes."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from nmtkit.experiment.bench import TrainingSpeed
from nmtkit.experiment.workloads import TrainingWorkload, planned_seconds
from nmtkit.training import randomness
from nmtkit.training.losses.objective import GradientAccumulator, build_objectives
from nmtkit.training.optimizers import freeze

_BATCHES, _SENTENCES, _CHUNK_BYTES = 2, 1, 1 << 20
WHAT_COUNTS = (
    "matrix products, convolutions and attention, forward and backward, excluding embedding look-ups, "
    "softmax, the optimizer and validation"
)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here, and below
    """Adds up the FLOPs of all operations by torch's formulas; torch's `FlopCounterMode` takes seconds to start."""

    total: float = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first operation would import the compiler

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out, name = func(*args, **(kwargs or {})), func.overloadpacket
        if formula := flop_registry.get(name):
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        elif (
            "mkldnn_rnn_layer" in str(name)
        ):  # inputs (T,B,I) times two matrices; the backward pass computes gradients of inputs and weights
            weights = sum(one.numel() for one in args[1:3] if isinstance(one, Tensor))
            self.total += (
                2
                * args[0].shape[0]
                * args[0].shape[1]
                * weights
                * (2 if "backward" in str(name) else 1)
            )
        return out


def operations_a_token(workload: TrainingWorkload) -> float:
    """Returns training FLOPs per target token; a multiplication and its addition count as two.

    A temporary model is trained on the CPU, on a few sentences of the first batches, including their padding.
    """
    cpu, tokens = torch.device("cpu"), 0
    with randomness.fork_rng(cpu):
        model, objectives = workload.build(), build_objectives(workload.config)
        freeze(model, workload.config.freeze)
        operations: Any = _Operations()  # type: ignore[no-untyped-call]  # torch has no types here
        with (
            operations,
            sdpa_kernel(SDPBackend.MATH),
        ):  # only this backend shows every product to the counter
            for whole in workload.first_batches(_BATCHES):
                batch = whole.select(slice(0, _SENTENCES))
                counts = Counter({"tokens": batch.n_tokens, "sentences": batch.size})
                for objective in objectives:
                    counts.update(objective.counts(batch))
                GradientAccumulator(model, objectives, counts, cpu, _CHUNK_BYTES).backward(batch)
                tokens += batch.n_tokens
    return float(operations.total) / max(tokens, 1)


def planned(workload: TrainingWorkload, speed: TrainingSpeed) -> list[list[str]]:
    """Returns the estimated cost of training (or of the first stage) as names and values."""
    an_update, tokens = median(speed.seconds) / speed.updates, speed.tokens / speed.updates
    seconds = planned_seconds(workload.config, an_update, workload.updates_an_epoch)
    rows = [
        ["parameters", f"{speed.parameters:,}"],
        ["checkpoint size", f"{speed.checkpoint_mib:,.1f} MiB"],
    ]
    operations = operations_a_token(workload) * tokens
    rows.append(["operations per update", f"{operations:.2e}"])
    if math.isinf(seconds):  # limited only by patience, or by max_epochs on random words
        epochs = "limited by max_epochs; the length of an epoch depends on the text"
        return [
            *rows,
            [
                "updates",
                epochs if workload.config.max_epochs else "limited only by patience, so unknown",
            ],
        ]
    updates = seconds / an_update
    epochs = (
        f", {updates / workload.updates_an_epoch:.3g} epochs"
        if workload.updates_an_epoch < math.inf
        else ""
    )
    rows.append(["updates", f"{updates:,.0f} of {an_update:,.2f} s each{epochs}"])
    rows.append(["time without validation", str(timedelta(seconds=round(seconds)))])
    return [
        *rows,
        ["operations", f"{operations * updates:.2e}"],
        ["counted operations", WHAT_COUNTS],
    ]
