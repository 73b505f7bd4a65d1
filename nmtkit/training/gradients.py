"""The gradients of an update: of several batches, in several processes, in parts where memory does not suffice."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial, reduce

import torch
from torch import Tensor, nn

from nmtkit.core.errors import TrainingError
from nmtkit.data.batches.batch import Batch
from nmtkit.models.base import Model
from nmtkit.training.losses.objective import GradientAccumulator, Objective
from nmtkit.training.parallel import processes
from nmtkit.training.parallel.gradients import GradientSum
from nmtkit.training.sharding import Shards

Summing = GradientSum | Shards

_CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}
"""Size of the log-probabilities that are in memory at a time: large enough for full speed, on a CPU near its caches."""


class UpdateGradients:
    """Adds up the gradients of an update, weighted by what all its batches in all processes have."""

    def __init__(
        self, model: Model, objectives: Sequence[Objective], parameters: Sequence[nn.Parameter], device: torch.device
    ) -> None:
        self.model = model
        self.objectives = objectives
        self.parameters = parameters
        self.device = device
        self.shards: Shards | None = None
        self.in_bf16 = False
        self.per_sentence = False
        """Whether the loss is a mean over sentences, of sums over their words: the mean over words, so much larger."""
        self.normalizers = {name: count for objective in objectives for name, count in objective.normalizers.items()}
        self.halved = 0
        """Updates that were made in parts."""

    def count(self, batches: Sequence[Batch]) -> dict[str, int]:
        """The normalizers of the update: counts over its batches in all processes."""
        counts = Counter(dict.fromkeys(["tokens", "sentences", *self.normalizers.values()], 0))
        for batch in batches:
            counts.update({"tokens": batch.n_tokens, "sentences": batch.size})
            for objective in self.objectives:
                counts.update(objective.counts(batch))
        return dict(zip(counts, processes.sum_over_ranks(list(counts.values())), strict=True))

    def add_up(self, batches: Sequence[Batch], counts: Mapping[str, int]) -> Tensor:
        """Adds up the gradients of an update in all processes; gives the sums here of all names in `normalizers`.

        Where memory does not suffice all is done again with halved batches. The loss is a sum over examples, divided by
        the counts of the whole update, so its gradient is the same.
        """
        update = self.accumulator(counts)
        summed = self.shards or GradientSum([one for one in self.parameters if one.requires_grad])
        whole = batches
        while True:
            try:
                of_last = [*[self.shards] * (len(batches) - 1), summed]
                each = map(partial(self.backward, update), batches, of_last)
                with processes.naming_who_is_missing() if self.shards else nullcontext():
                    sums = reduce(torch.add, each, self.parameters[0].new_zeros(len(self.normalizers)))
                summed.finish()
                return sums
            except torch.OutOfMemoryError as fault:
                if self.shards:
                    raise TrainingError(
                        "memory does not suffice, and with training.shard an update cannot be made in smaller parts; "
                        "lower batch.batch_tokens, and go on with --resume"
                    ) from fault
                if max(batch.size for batch in batches) == 1:
                    raise TrainingError(
                        "even one example at a time does not fit into memory (the longest has "
                        f"{max(int(one.lengths.max()) + one.n_tokens for one in batches):,} positions in all); "
                        "lower data.max_length, or train a smaller model"
                    ) from fault
            self.clear()  # the error is gone, and with it all that it held
            self.halved += batches is whole
            batches = [half for batch in batches for half in batch.halves()]

    def accumulator(self, counts: Mapping[str, int]) -> GradientAccumulator:
        """For an update with these normalizers."""
        chunk_bytes = _CHUNK_BYTES.get(self.device.type, _CHUNK_BYTES["cpu"])
        factor = counts["tokens"] / max(1, counts["sentences"]) if self.per_sentence else 1.0
        return GradientAccumulator(self.model, self.objectives, counts, self.device, chunk_bytes, factor)

    def backward(self, update: GradientAccumulator, batch: Batch, last: Summing | None = None) -> Tensor:
        """Adds the gradient of this batch's part of the update; gives the sums of all names in `normalizers`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bf16):
            sums = update.backward(batch, around_last=last.begun() if last else nullcontext())
        return torch.cat([sums[name].view(1) for name in self.normalizers])

    def clear(self) -> None:
        """Drops all gradients, and memory that nothing uses."""
        for parameter in self.parameters:
            parameter.grad = None
        torch.cuda.empty_cache()
