"""In which type to compute what 16 bits are too few for."""

import torch
from torch import Tensor


def wide(tensor: Tensor) -> torch.dtype:
    """The tensor's type, or float32 if that has more digits.

    Under autocast a layer gives 16 bits: enough for its own output, too few for a sum over many of them, for a
    logarithm, or for a probability near one.
    """
    return torch.promote_types(tensor.dtype, torch.float32)
