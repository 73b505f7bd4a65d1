"""Compares the weights of all processes, each of which updates its own copy."""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from nmtkit.core.errors import TrainingError
from nmtkit.training.parallel import processes

_INTEGER_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by the size of an element in bytes."""


def require_same_weights(weights: Mapping[str, Tensor], update: int) -> None:
    """Compares the processes' checksums of each tensor; raises a TrainingError in all processes if they differ."""
    if not processes.is_initialized():
        return
    # A checksum is the sum of a tensor's elements, with their bits read as integers.
    sums: list[Tensor] = []
    for weight in weights.values():
        integer_type = _INTEGER_TYPES[weight.element_size()]
        integers = weight.detach().view(integer_type)  # in the shape of the weight
        sums.append(integers.sum(dtype=torch.int64))
    checksums_by_rank = processes.all_gather_objects(torch.stack(sums).tolist())
    most_common, n_equal = Counter(map(tuple, checksums_by_rank)).most_common(1)[0]
    if 2 * n_equal > len(checksums_by_rank):
        others = "the others"
        location = "that process"
    else:  # without a majority, either may be wrong
        others = f"process {checksums_by_rank.index(list(most_common))}"
        location = "one of the two processes"
    for rank, checksums in enumerate(checksums_by_rank):
        for name, checksum, expected in zip(weights, checksums, most_common, strict=True):
            if checksum != expected:
                raise TrainingError(
                    f"update {update}: the weights of process {rank} differ from those of {others}, first in {name!r}, "
                    f"so a processor or memory used by {location} is faulty; replace it, and resume from the last "
                    "saved state, in which all weights were equal"
                )
