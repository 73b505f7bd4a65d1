"""Gradients of an update: summed over batches and processes, with smaller batches if memory runs out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from nmtkit.core.errors import TrainingError
from nmtkit.data.batches.batch import Batch
from nmtkit.models.base import Model
from nmtkit.training.losses.objective import GradientAccumulator, Objective
from nmtkit.training.parallel import processes
from nmtkit.training.parallel.gradients import GradientSum
from nmtkit.training.sharding import Shards

GradientReducer = GradientSum | Shards
"""Sums gradients over all processes."""

_CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}
"""Maximum size, in bytes, of the log-probabilities held in memory at once: large enough for full speed and, on a CPU,
small enough to fit into its caches."""


class UpdateGradients:
    """Adds up the gradients of an update, divided by counts over all batches in all processes."""

    def __init__(
        self,
        model: Model,
        objectives: Sequence[Objective],
        parameters: Sequence[nn.Parameter],
        device: torch.device,
    ) -> None:
        self.model = model
        self.objectives = objectives
        self.parameters = parameters
        self.device = device
        self.shards: Shards | None = None
        self.in_bf16 = False
        self.per_sentence = False
        """Whether the loss is a mean over sentences (a sentence's loss is the sum over its words) instead of a mean
        over words."""
        self.normalizers: dict[str, str] = {}
        """Names of the sums of all objectives, each with the name of the count by which the sum is divided."""
        for objective in objectives:
            self.normalizers.update(objective.normalizers)
        self.oom_splits = 0
        """Number of updates that did not fit into memory and were repeated with halved batches."""

    def count(self, batches: Sequence[Batch]) -> dict[str, int]:
        """Returns the normalizers of an update: counts over its batches in all processes."""
        names = ["tokens", "sentences", *self.normalizers.values()]
        # all processes must have the same names in the same order
        counts = Counter(dict.fromkeys(names, 0))
        for batch in batches:
            counts["tokens"] += batch.n_tokens
            counts["sentences"] += batch.size
            for objective in self.objectives:
                counts.update(objective.counts(batch))
        totals = processes.sum_over_ranks(list(counts.values()))
        return dict(zip(counts, totals, strict=True))

    def add_up(self, batches: Sequence[Batch], counts: Mapping[str, int]) -> Tensor:
        """Adds up the gradients of an update over its batches and all processes.

        If memory runs out, starts again with halved batches. The loss is a sum over examples, divided by the counts of
        the whole update, so its gradient stays the same.

        Returns the sums over this process's batches `(n,)`, in the order of `normalizers`.
        """
        update = self.accumulator(counts)
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        reducer = self.shards or GradientSum(trained)
        current_batches = batches
        while True:
            try:
                sums = self.parameters[0].new_zeros(len(self.normalizers))  # (n,)
                with processes.name_missing_process() if self.shards else nullcontext():
                    for number, batch in enumerate(current_batches, 1):
                        # `Shards` adds up gradients after every batch, `GradientSum` only once per update.
                        is_last = number == len(current_batches)
                        sums = sums + self.backward(
                            update, batch, reducer if is_last else self.shards
                        )
                reducer.finish()
                return sums
            except torch.OutOfMemoryError as fault:
                if self.shards:
                    raise TrainingError(
                        "out of memory, and with training.shard an update cannot be split into smaller batches; lower "
                        "batch.batch_tokens, and continue with --resume"
                    ) from fault
                if max(batch.size for batch in current_batches) == 1:
                    longest = max(
                        int(batch.lengths.max()) + batch.n_tokens for batch in current_batches
                    )
                    raise TrainingError(
                        f"even one example at a time does not fit into memory (the longest has {longest:,} positions "
                        "in all); lower data.max_length, or train a smaller model"
                    ) from fault
            # This must be outside `except`, where the traceback would keep the tensors of the failed pass in memory.
            self.clear()
            if current_batches is batches:
                self.oom_splits += 1
            halves: list[Batch] = []
            for batch in current_batches:
                halves += batch.halves()
            current_batches = halves

    def accumulator(self, counts: Mapping[str, int]) -> GradientAccumulator:
        """Returns an accumulator for an update with these normalizers."""
        factor = 1.0
        if self.per_sentence:
            # Losses are divided by word counts; this factor turns the mean per word into a mean per sentence.
            factor = counts["tokens"] / max(1, counts["sentences"])
        return GradientAccumulator(
            model=self.model,
            objectives=self.objectives,
            counts=counts,
            device=self.device,
            chunk_bytes=_CHUNK_BYTES.get(self.device.type, _CHUNK_BYTES["cpu"]),
            factor=factor,
        )

    def backward(
        self, update: GradientAccumulator, batch: Batch, reducer: GradientReducer | None = None
    ) -> Tensor:
        """Adds the gradient of a batch; returns the batch's sums `(n,)`, in the order of `normalizers`.

        If `reducer` is given, it sums the gradients over all processes during the backward pass.
        """
        around_last = None
        if reducer is not None:
            around_last = reducer.last_backward()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bf16):
            sums_by_name = update.backward(batch, around_last=around_last)
        sums = [sums_by_name[name].view(1) for name in self.normalizers]  # (1,) each
        return torch.cat(sums)

    def clear(self) -> None:
        """Deletes all gradients and returns unused memory to the device."""
        for parameter in self.parameters:
            parameter.grad = None
        torch.cuda.empty_cache()
