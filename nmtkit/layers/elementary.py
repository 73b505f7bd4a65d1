"""Small building blocks that many layers use: dropout, maxout, masks, and reading sentences grouped by length."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16
"""Number of distinct 16-bit integers. A random 16-bit integer decides whether an element is dropped."""


def at_least_float32(tensor: Tensor) -> torch.dtype:
    """Returns the tensor's dtype, or float32 if it is a 16-bit type.

    Under autocast, layers return 16-bit tensors, which are too imprecise for sums over many elements, for logarithms,
    and for probabilities near one.
    """
    return torch.promote_types(tensor.dtype, torch.float32)


def dropout(states: Tensor, rate: float, training: bool) -> Tensor:
    """Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate); Srivastava et al. 2014.

    On a CPU, generating a random number for each element would take as long as a matrix product of a small model.
    There, one 64-bit random number is used for four elements, which rounds `rate` to a multiple of 2**-16. The rate
    must be less than 1. If `training` is false, the states are returned unchanged.
    """
    if not training or rate == 0.0:
        return states
    if states.device.type != "cpu":
        return F.dropout(states, rate)
    n_elements = states.numel()
    n_draws = (n_elements + 3) // 4  # one for four elements, rounded up
    # With these bounds, all 64 bits are random.
    draws = torch.empty(n_draws, dtype=torch.int64).random_(-(2**63), None)  # (n_draws,)
    levels = draws.view(torch.int16)[:n_elements].view(
        states.shape
    )  # (...), uniform over -32768..32767
    dropped_levels = round(rate * _LEVELS)
    lowest_kept = dropped_levels - _LEVELS // 2
    factors = (levels >= lowest_kept).to(states.dtype)  # (...)
    factors.mul_(_LEVELS / (_LEVELS - dropped_levels))
    return states * factors


class Dropout(nn.Module):
    """Applies `dropout` at a fixed rate in training mode."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, states: Tensor) -> Tensor:
        """Applies dropout to states of any shape."""
        return dropout(states, self.rate, self.training)


class Maxout(nn.Module):
    """A linear layer followed by the maximum of each pair of its outputs: Goodfellow et al. 2013, with two pieces.

    This is the hidden layer between the decoder and the output layer in Cho et al. 2014 and in Bahdanau et al. 2015,
    appendix A.2.2. The papers pair outputs 2j-1 and 2j; here, outputs j and O+j are a pair, where O is `output_size`.
    """

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.pieces = nn.Linear(input_size, 2 * output_size)

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps `(..., I)` to `(..., O)`."""
        first, second = self.pieces(inputs).chunk(2, -1)  # (..., O) each
        return torch.maximum(first, second)


def mask_without_eos(mask: Tensor) -> Tensor:
    """Returns the mask `(B, S)` of real source tokens except EOS.

    EOS is included if it is the only token, so that every source has a token.
    """
    words = mask.roll(-1, 1)  # (B, S), shifted left by one
    words[:, -1] = False
    words[:, 0] = True
    return words


def run_by_length(
    read: Callable[..., Sequence[Tensor]], lengths: Tensor, padded: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Runs `read` on groups of sentences of similar length if that is faster, which is the case at inference on a CPU.

    If the sentences are sorted by length, padding makes up at most a fifth of each row of a group. On other devices and
    in training, `read` runs once, on all sentences.

    Args:
        read: function from tensors `(b, ..., s)`, with b sentences padded to s columns, to tensors `(b, ..., s, *)`.
        lengths: lengths of the sentences, `(B,)`, on the CPU, preferably in descending order.
        padded: tensors `(B, ..., S)` to be read.

    Returns tensors `(B, ..., S, *)`, undefined at padding.
    """
    width = padded[0].shape[-1]
    if torch.is_grad_enabled() or padded[0].device.type != "cpu":
        return read(*padded)
    # For each sentence, the maximum of its length and the lengths of all later sentences. If the sentences are sorted
    # by length, this is its own length. In any order, these maxima never increase, so a group can end before the first
    # sentence whose maximum is too small.
    longest_up_to, _ = lengths.flip(0).cummax(0)  # (B,), last sentence first
    longest = longest_up_to.flip(0).tolist()
    parts = []
    first = 0
    while first < len(longest):
        columns = longest[first]
        end = first
        while end < len(longest) and 5 * longest[end] >= 4 * columns:
            end += 1
        part = [tensor[first:end, ..., :columns] for tensor in padded]  # (b, ..., s) each
        parts.append(read(*part))
        first = end
    if len(parts) == 1 and longest[0] == width:
        return parts[0]

    results = []
    for tensors in zip(*parts, strict=True):
        widened = [
            F.pad(tensor, (0, 0, 0, width - tensor.shape[-2])) for tensor in tensors
        ]  # (b, ..., S, *) each
        results.append(torch.cat(widened))  # (B, ..., S, *)
    return results


@torch.no_grad()
def set_rows(matrix: Tensor, rows: Tensor, vectors: Tensor) -> float:
    """Sets rows `(M,)` of a matrix `(V, E)` to vectors `(M, E)`, which must not all be zero.

    Scales all vectors by the same factor, so that they have the same mean square as the old matrix. Returns the factor.
    """
    matrix_size = matrix.square().mean().sqrt()  # ()
    vectors_size = vectors.square().mean().sqrt()  # ()
    factor = float(matrix_size / vectors_size)
    matrix[rows] = vectors.to(matrix) * factor
    return factor
