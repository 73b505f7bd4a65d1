"""What layers of every kind use: wide types, dropout, maxout."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16


def at_least_float32(tensor: Tensor) -> torch.dtype:
    """The tensor's type, or float32 if that has more digits.

    Under autocast a layer gives 16 bits: too few for a sum over many of them, a logarithm, or a probability near one.
    """
    return torch.promote_types(tensor.dtype, torch.float32)


def dropout(states: Tensor, rate: float, training: bool) -> Tensor:
    """Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate); Srivastava et al. 2014.

    The generator of a CPU is serial: one draw for each element takes as long as a matrix product of a small model. Here
    one draw of 64 bits decides four elements, so that `rate` is rounded to a multiple of 2**-16.

    A `rate` of 1 is not allowed. Without `training` the states are returned as they are.
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
    """`dropout` at a fixed rate, while the module is in training mode."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, states: Tensor) -> Tensor:
        """The states, some elements zeroed; any shape."""
        return dropout(states, self.rate, self.training)


class Maxout(nn.Module):
    """The larger of each pair of numbers of a linear map: Goodfellow et al. 2013, with two pieces.

    It is the hidden layer between a decoder and its output words in Cho et al. 2014 and in Bahdanau et al. 2015,
    appendix A.2.2. The papers pair number 2j-1 with 2j; here j is paired with l+j, where l is `output_size`.
    """

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.pieces = nn.Linear(input_size, 2 * output_size)

    def forward(self, inputs: Tensor) -> Tensor:
        """`(...,l)` from `(...,I)`."""
        first, second = self.pieces(inputs).chunk(2, -1)
        return torch.maximum(first, second)


def mask_without_eos(mask: Tensor) -> Tensor:
    """The mask `(B,S)` of real source tokens without </s>; an empty source keeps it, to have one token at all."""
    words = mask.roll(-1, 1)
    words[:, -1] = False
    words[:, 0] = True
    return words


def run_by_length(read: Callable[..., Sequence[Tensor]], lengths: Tensor, *padded: Tensor) -> Sequence[Tensor]:
    """Runs `read` on sentences of about one length at a time, where that is faster: in a search on a CPU.

    The share of padding is kept under a fifth. `read` maps some sentences `(b,...,s)`, however padded, to tensors
    `(b,...,s,*)`; `lengths` `(B,)` are on the CPU, best in falling order. Returns tensors `(B,...,S,*)`, undefined at
    padding.
    """
    width = padded[0].shape[-1]
    if torch.is_grad_enabled() or padded[0].device.type != "cpu":
        return read(*padded)
    longest = lengths.flip(0).cummax(0)[0].flip(0).tolist()  # of each sentence and those behind it
    parts, first = [], 0
    while first < len(longest):
        end = next((one for one, length in enumerate(longest) if 5 * length < 4 * longest[first]), len(longest))
        parts.append(read(*(whole[first:end, ..., : longest[first]] for whole in padded)))
        first = end
    if len(parts) == 1 and longest[0] == width:
        return parts[0]
    return [
        torch.cat([F.pad(one, (0, 0, 0, width - one.shape[-2])) for one in same]) for same in zip(*parts, strict=True)
    ]


@torch.no_grad()
def set_rows(matrix: Tensor, rows: Tensor, vectors: Tensor) -> float:
    """Sets the rows `(M,)` of a matrix `(V,E)` to vectors `(M,E)`, which are not all zero.

    All of them are multiplied by one factor, so that the mean square of their elements becomes that of the matrix
    before. Returns the factor.
    """
    factor = float(matrix.square().mean().sqrt() / vectors.square().mean().sqrt())
    matrix[rows] = vectors.to(matrix) * factor
    return factor
