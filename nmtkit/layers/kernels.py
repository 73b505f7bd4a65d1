"""The inner loops of decoding, for which torch operations would make many passes over large tensors.

Each function has a plain form in torch operations, which works on every device, in training and at inference. During
decoding on a CUDA device (with gradients disabled), the Triton programs in `triton_kernels.py` compute the same result,
up to rounding, in one pass and without large intermediate tensors. In that case, the plain form is used only for empty
tensors, float64 tensors and rows that are too long for the program, or if Triton is missing or fails; a failure causes
a warning.

Notation: B sentences, Q queries per sentence, S source length, A attention size, N hypotheses, V vocabulary size.
"""

import math
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from nmtkit.layers.elementary import at_least_float32

R = TypeVar("R")

_CACHED = 1 << 18
"""Number of elements of a `(B, Q, S, A)` tensor (1 MiB in float32) that are computed at a time during inference on a
CPU."""
_CACHED_ROWS = 1 << 17
"""Number of logits that are read at a time on a CPU."""


def additive_energies(
    queries: Tensor,
    doubled_keys: Tensor,
    energy: Tensor,
    coverage: Tensor | None = None,
    coverage_weight: Tensor | None = None,
) -> Tensor:
    """Returns `v^T tanh(W s + U h + w c)` for each query-key pair in each sentence, `(B, Q, S)`.

    Equations: Bahdanau et al. 2015, appendix A.1.2; with coverage, See et al. 2017, eq. 11.

    The plain form computes the tanh as `tanh x = 2 sigmoid(2x) - 1`, since a CPU computes a sigmoid much faster. The
    keys already contain the inner factor of 2; the queries and the coverage weight are multiplied by it here. v is
    multiplied by the outer 2.

    At inference on CUDA, the result is float32 or wider, whatever the types of the inputs are.

    Args:
        queries: `W s`, `(B, Q, A)`.
        doubled_keys: `2 U h`, `(B, S, A)`, which is computed once per sentence.
        energy: v, `(A,)`.
        coverage: c, `(B, Q, S)`; None means zeros.
        coverage_weight: w, `(A,)`; required with coverage.
    """
    if torch.is_grad_enabled():
        return _plain_energies(
            queries, doubled_keys, energy, coverage=coverage, coverage_weight=coverage_weight
        )
    if doubled_keys.is_cuda:
        return _cuda_energies(
            queries, doubled_keys, energy, coverage=coverage, coverage_weight=coverage_weight
        )
    is_16_bit = doubled_keys.dtype in (torch.float16, torch.bfloat16)
    fits_cache = queries.shape[1] * doubled_keys.numel() <= _CACHED
    if doubled_keys.device.type != "cpu" or is_16_bit or fits_cache:
        return _plain_energies(
            queries, doubled_keys, energy, coverage=coverage, coverage_weight=coverage_weight
        )
    return _energies_in_parts(
        queries * 2, doubled_keys, energy, coverage=coverage, coverage_weight=coverage_weight
    )


def _energies_in_parts(
    doubled_queries: Tensor,
    doubled_keys: Tensor,
    energy: Tensor,
    coverage: Tensor | None,
    coverage_weight: Tensor | None,
) -> Tensor:
    """Computes `_plain_energies` from `2 W s`, one part of the `(B, Q, S, A)` tensor at a time.

    All parts use the same memory, which is small enough to stay in the CPU's cache. A part covers either several whole
    sentences, or some positions of a single sentence.
    """
    sentences, n_queries, size = doubled_queries.shape
    length = doubled_keys.shape[1]
    # The number of source positions that fit into the cache.
    cached_positions = max(1, _CACHED // (n_queries * size))
    part_sentences = max(1, cached_positions // length)
    part_length = min(cached_positions, length)
    # The memory of the largest part; smaller parts use the beginning of it.
    largest_part = part_sentences * n_queries * part_length * size
    memory = doubled_keys.new_empty(largest_part)  # (largest_part,)
    energies = doubled_keys.new_empty(sentences, n_queries, length)  # (B, Q, S)
    doubled_energy = 2 * energy.to(doubled_keys.dtype)  # (A,)
    for first_sentence in range(0, sentences, part_sentences):
        rows = slice(first_sentence, first_sentence + part_sentences)
        for first_position in range(0, length, part_length):
            columns = slice(first_position, first_position + part_length)
            part_keys = doubled_keys[rows, columns]  # (b, s, A)
            part_shape = (part_keys.shape[0], n_queries, part_keys.shape[1], size)
            part_memory = memory[: math.prod(part_shape)]  # (b * Q * s * A,)
            sums = part_memory.view(part_shape)  # (b, Q, s, A)
            torch.add(doubled_queries[rows].unsqueeze(2), part_keys.unsqueeze(1), out=sums)
            if coverage is not None and coverage_weight is not None:
                part_coverage = coverage[rows, :, columns].unsqueeze(3)  # (b, Q, s, 1)
                sums.addcmul_(
                    part_coverage.to(doubled_keys.dtype), 2 * coverage_weight.to(doubled_keys.dtype)
                )
            energies[rows, :, columns] = torch.matmul(sums.sigmoid_(), doubled_energy)
    return energies.sub_(energy.sum())


def _plain_energies(
    queries: Tensor,
    doubled_keys: Tensor,
    energy: Tensor,
    coverage: Tensor | None,
    coverage_weight: Tensor | None,
) -> Tensor:
    # `doubled` is by far the largest tensor, so all operations on it are in place.
    doubled = (queries * 2).unsqueeze(2) + doubled_keys.unsqueeze(1)  # (B, Q, S, A)
    energy = energy.to(doubled.dtype)  # (A,)
    if coverage is not None:
        assert coverage_weight is not None, "coverage needs a coverage weight"
        doubled_weight = 2 * coverage_weight.to(doubled.dtype)  # (A,)
        doubled.addcmul_(coverage.unsqueeze(3).to(doubled.dtype), doubled_weight)
    # 16-bit types are too coarse for a sigmoid near 0.5.
    if doubled.dtype in (torch.float16, torch.bfloat16):
        return torch.matmul(doubled.mul_(0.5).tanh_(), energy)
    return torch.matmul(doubled.sigmoid_(), 2 * energy) - energy.sum()


def masked_softmax(energies: Tensor, mask: Tensor) -> Tensor:
    """Returns the softmax over the positions where `mask` is True; all other positions have a weight of exactly zero.

    The mask broadcasts to the energies `(..., S)`. If a row of the mask is False everywhere, its weights and its
    gradient are zero. For 16-bit energies, the weights are computed and returned in float32.
    """
    if energies.is_cuda and energies.dim() == 3 and not torch.is_grad_enabled():
        return _on_cuda(
            "launch_softmax", _plain_softmax, arguments=(energies, mask), longest=energies.shape[2]
        )
    return _plain_softmax(energies, mask)


def _plain_softmax(energies: Tensor, mask: Tensor) -> Tensor:
    if energies.dtype in (torch.float16, torch.bfloat16):
        energies = energies.float()  # (..., S)
    hidden = ~mask  # broadcasts to (..., S)
    # The lowest finite number is used instead of minus infinity, so that a completely hidden row has finite weights and
    # gradients.
    weights = energies.masked_fill(hidden, torch.finfo(energies.dtype).min).softmax(-1)  # (..., S)
    return weights.masked_fill(hidden, 0.0)


def block_maxima(logits: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Returns the log-sum-exp of each row of logits `(N, V)`, and the maximum of each block of columns in each row.

    Both are computed in a single pass over the logits, without gradients. A block has `block` columns, a power of two;
    the last block may have fewer.

    The log-sum-exps are `(N,)`, in float32 or wider; the maxima are `(N, ceil(V / block))`, in the dtype of the logits.
    If a row contains a NaN, its log-sum-exp is NaN and its maxima are undefined.
    """
    if logits.is_cuda:
        return _on_cuda("launch_maxima", _plain_maxima, arguments=(logits, block), longest=block)
    return _plain_maxima(logits, block)


@torch.no_grad()
def _plain_maxima(logits: Tensor, block: int) -> tuple[Tensor, Tensor]:
    # On a CPU, a few rows are processed at a time. They are read from memory only once, and then from the cache.
    part_rows = max(1, len(logits))
    if logits.device.type == "cpu":
        part_rows = max(1, _CACHED_ROWS // logits.shape[1])
    tops = []
    largest_log_probs = []
    for part in torch.split(logits, part_rows):
        rows = part.to(at_least_float32(logits))  # (n, V)
        tops.append(block_tops(rows, block))  # (n, blocks)
        largest_log_probs.append(rows.log_softmax(1).amax(1))  # (n,)
    all_tops = torch.cat(tops)  # (N, blocks)
    largest_logits = all_tops.amax(1)  # (N,)
    # A log-probability is the logit minus the log-sum-exp, so the log-sum-exp is the largest logit minus the largest
    # log-probability.
    log_sums = largest_logits - torch.cat(largest_log_probs)  # (N,)
    log_sums = torch.where(largest_logits.isfinite(), log_sums, largest_logits)  # (N,)
    return log_sums, all_tops.to(logits.dtype)


def block_tops(values: Tensor, block: int) -> Tensor:
    """Returns the maximum of each block of columns in each row of `(N, V)`: `(N, ceil(V / block))`.

    A block has `block` columns; the last one may have fewer.
    """
    whole_blocks, rest = divmod(values.shape[1], block)
    tops = []
    if whole_blocks > 0:
        complete = values[:, : whole_blocks * block]  # (N, whole blocks * block)
        blocks = complete.view(-1, whole_blocks, block)  # (N, whole blocks, block)
        tops.append(blocks.amax(2))  # (N, whole blocks)
    if rest > 0:
        tops.append(values[:, -rest:].amax(1, keepdim=True))  # (N, 1)
    return torch.cat(tops, 1) if len(tops) > 1 else tops[0]


@cache
def _triton_kernels(device: torch.device) -> ModuleType | None:
    """Returns the module with the Triton programs, or None if Triton is missing or does not work on the device."""
    try:
        # Not imported at the top: Triton takes about as long to load as the rest of nmtkit, and most runs do not need
        # it.
        from nmtkit.layers import triton_kernels

        energies = torch.ones(1, 1, 1, device=device)  # (1, 1, 1)
        triton_kernels.launch_softmax(energies, energies.bool())
    except Exception as fault:
        # There are many possible causes (a missing C compiler, an old device), each with its own type of exception.
        is_missing = isinstance(fault, ModuleNotFoundError) and fault.name == "triton"
        if not is_missing:
            warnings.warn(
                f"Triton does not work on {device}; falling back to torch's own operations, which are slower: {fault}",
                RuntimeWarning,
                stacklevel=3,
            )
        return None
    return triton_kernels


def _on_cuda(launch: str, plain: Callable[..., R], arguments: tuple[Any, ...], longest: int) -> R:
    """Calls a Triton program if possible, and the plain form otherwise.

    Args:
        launch: name of the function in `triton_kernels` that launches the program.
        plain: the plain form, a function with the same arguments.
        arguments: arguments of both functions.
        longest: length of the longest row or block that the program would process at once.
    """
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    if any(tensor.dtype == torch.float64 or tensor.numel() == 0 for tensor in tensors):
        return plain(*arguments)
    device = tensors[0].device
    kernels = _triton_kernels(device)
    if kernels is None or longest > kernels.LONGEST[launch]:
        return plain(*arguments)
    program = getattr(kernels, launch)
    result: R = program(*arguments)
    return result


def _cuda_energies(
    queries: Tensor,
    doubled_keys: Tensor,
    energy: Tensor,
    coverage: Tensor | None,
    coverage_weight: Tensor | None,
) -> Tensor:
    """Computes `_plain_energies` on CUDA; returns energies in float32 or wider."""
    energies = _on_cuda(
        "launch_energies",
        _plain_energies,
        arguments=(queries, doubled_keys, energy, coverage, coverage_weight),
        longest=doubled_keys.shape[2],
    )  # (B, Q, S)
    return energies.to(at_least_float32(energies))
