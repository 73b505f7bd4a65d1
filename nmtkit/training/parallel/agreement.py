"""Whether all processes have the same weights, which each has computed for itself."""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from nmtkit.core.errors import TrainingError
from nmtkit.training.parallel import processes

_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def require_same_weights(weights: Mapping[str, Tensor], update: int) -> None:
    """Compares a checksum of each tensor; raises a TrainingError in all processes where one differs from the others."""
    if not processes.is_initialized():
        return
    integers = (one.detach().view(_AS_INTEGERS[one.element_size()]) for one in weights.values())
    own = torch.stack([one.sum(dtype=torch.int64) for one in integers]).tolist()
    everyone = processes.all_gather_objects(own)
    usual, count = Counter(map(tuple, everyone)).most_common(1)[0]
    unsure = f"process {everyone.index([*usual])}", "in one of the two"
    others, place = ("the others", "there") if 2 * count > len(everyone) else unsure
    for number, sums in enumerate(everyone):
        for name, one, other in zip(weights, sums, usual, strict=True):
            if one != other:
                raise TrainingError(
                    f"update {update}: process {number} has other weights than {others}, first in {name!r}: a "
                    f"processor or its memory is at fault {place}; the last saved state, in which all were equal, can "
                    "be resumed without it"
                )
