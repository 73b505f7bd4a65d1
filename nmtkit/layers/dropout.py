"""Dropout whose random numbers do not hold the CPU up."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16


def dropout(states: Tensor, rate: float, training: bool) -> Tensor:
    """Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate); Srivastava et al. 2014.

    On a CPU the generator is serial, and drawing one number per element took as long as a matrix product of a small
    model. Here one draw of 64 bits decides four elements, so that `rate` is rounded to a multiple of 2**-16.

    Args:
        states: any shape.
        rate: between 0 and 1, 1 excluded.
        training: False returns `states` as they are.
    """
    if not training or rate == 0.0:
        return states
    if states.device.type != "cpu":
        return F.dropout(states, rate)
    dropped = round(rate * _LEVELS)
    draws = torch.empty((states.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    levels = draws.view(torch.int16)[: states.numel()].view(states.shape)  # uniform over -32768..32767
    kept = (levels >= dropped - _LEVELS // 2).to(states.dtype)
    return states * kept.mul_(_LEVELS / (_LEVELS - dropped))


class Dropout(nn.Module):
    """`dropout` at a fixed rate, while the module is in training mode.

    Args:
        rate: between 0 and 1, 1 excluded.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, states: Tensor) -> Tensor:
        """The states, some elements zeroed; any shape."""
        return dropout(states, self.rate, self.training)

    def extra_repr(self) -> str:
        """The rate, for the printed model."""
        return f"rate={self.rate}"
