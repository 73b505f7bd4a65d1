"""The inner loops of a search that torch would do in many passes over large tensors: plain forms, and one pass on CUDA.

Every function here has a plain form in torch's own operations, which trains and computes on every device. In a search
on a CUDA device (gradients off) the Triton programs of `triton_kernels.py` do the same, up to rounding, without the
large tensors between. Where Triton is missing, or fails, which is a warning, or where the numbers are float64, the
plain form computes on the same device.

Letters: B sentences, Q queries per sentence, S source length, A attention size, N hypotheses, V vocabulary.
"""

import math
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nmtkit.layers.elementary import at_least_float32

_CACHED = 1 << 18
"""Numbers of a `(B,Q,S,A)` tensor, 1 MiB in float32, that a search on a CPU works on at a time."""
_CACHED_ROWS = 1 << 17
"""Numbers of logits that a CPU works on at a time."""


def additive_energies(
    queries: Tensor, keys: Tensor, energy: Tensor, coverage: Tensor | None = None, coverage_weight: Tensor | None = None
) -> Tensor:
    """`v^T tanh(W s + U h + w c)` of every query and key of a sentence: Bahdanau et al. 2015, See et al. 2017 eq. 11.

    The plain form computes the tanh as `tanh x = 2 sigmoid(2x) - 1`: a CPU is much quicker at a sigmoid than at a tanh.
    The inner 2 is in the keys and is given to queries and weight, the outer to v.

    Queries are `W s` `(B,Q,A)`, keys `2 U h` `(B,S,A)`, doubled once per sentence; energy is v `(A,)`, coverage c
    `(B,Q,S)`, or None for nothing, its weight w `(A,)`. Returns `(B,Q,S)`; in a search on CUDA in float32 or wider,
    whatever the inputs are.
    """
    if torch.is_grad_enabled():
        return _plain_energies(queries, keys, energy, coverage, coverage_weight)
    if keys.is_cuda:
        return _cuda_energies(queries, keys, energy, coverage, coverage_weight)
    narrow = keys.dtype in (torch.float16, torch.bfloat16)
    if keys.device.type != "cpu" or narrow or queries.shape[1] * keys.numel() <= _CACHED:
        return _plain_energies(queries, keys, energy, coverage, coverage_weight)
    return _energies_in_parts(queries * 2, keys, energy, coverage, coverage_weight)


def _energies_in_parts(
    doubled: Tensor, keys: Tensor, energy: Tensor, coverage: Tensor | None, coverage_weight: Tensor | None
) -> Tensor:
    """As `_plain_energies`, of `2 W s`: so much of `(B,Q,S,A)` at a time, in one place, that it stays in the cache."""
    (sentences, queries, size), length = doubled.shape, keys.shape[1]
    places = max(1, _CACHED // (queries * size))  # of the source, in one sentence or in several
    each, part = max(1, places // length), min(places, length)
    room = keys.new_empty(each * queries * part * size)
    energies = keys.new_empty(sentences, queries, length)
    twice = 2 * energy.to(keys.dtype)
    for first in range(0, sentences, each):
        rows = slice(first, first + each)
        for begin in range(0, length, part):
            columns = slice(begin, begin + part)
            key = keys[rows, columns]
            shape = (key.shape[0], queries, key.shape[1], size)
            sums = room[: math.prod(shape)].view(shape)
            torch.add(doubled[rows].unsqueeze(2), key.unsqueeze(1), out=sums)
            if coverage is not None and coverage_weight is not None:
                covered = coverage[rows, :, columns].unsqueeze(3).to(keys.dtype)
                sums.addcmul_(covered, 2 * coverage_weight.to(keys.dtype))
            energies[rows, :, columns] = torch.matmul(sums.sigmoid_(), twice)
    return energies.sub_(energy.sum())


def _plain_energies(
    queries: Tensor, keys: Tensor, energy: Tensor, coverage: Tensor | None, coverage_weight: Tensor | None
) -> Tensor:
    doubled = (queries * 2).unsqueeze(2) + keys.unsqueeze(1)  # (B,Q,S,A), overwritten: by far the largest tensor of all
    energy = energy.to(doubled.dtype)
    if coverage is not None:
        assert coverage_weight is not None, "coverage needs its weight"
        doubled.addcmul_(coverage.unsqueeze(3).to(doubled.dtype), 2 * coverage_weight.to(doubled.dtype))
    if doubled.dtype in (torch.float16, torch.bfloat16):  # near 0.5 a sigmoid of 16 bits is too coarse
        return torch.matmul(doubled.mul_(0.5).tanh_(), energy)
    return torch.matmul(doubled.sigmoid_(), 2 * energy) - energy.sum()


def masked_softmax(energies: Tensor, mask: Tensor) -> Tensor:
    """Weights that sum to one over the positions where `mask` is True and are exactly zero elsewhere.

    The mask broadcasts to the energies `(...,S)`. A row without any True position gets weights of zero, and a gradient
    of zero. The softmax of 16-bit energies is taken, and returned, in float32.
    """
    if energies.is_cuda and energies.dim() == 3 and not torch.is_grad_enabled():
        weights: Tensor = _on_cuda("launch_softmax", _plain_softmax, energies.shape[2], energies, mask)
        return weights
    return _plain_softmax(energies, mask)


def _plain_softmax(energies: Tensor, mask: Tensor) -> Tensor:
    if energies.dtype in (torch.float16, torch.bfloat16):
        energies = energies.float()
    hidden = ~mask
    # The lowest finite number, not minus infinity: a row that is all hidden stays finite, forward and backward.
    weights = energies.masked_fill(hidden, torch.finfo(energies.dtype).min).softmax(-1)
    return weights.masked_fill(hidden, 0.0)


def block_maxima(logits: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The log-sum-exp of each row of logits `(N,V)`, and the maxima of its blocks of columns, from one reading.

    A block has a power of two of columns, the last one may have fewer. Returns `(N,)` in float32 or wider and
    `(N,ceil(V/block))` in the logits' type, without gradient. A row that holds a NaN has such a sum; its maxima are
    left open.
    """
    if logits.is_cuda:
        maxima: tuple[Tensor, Tensor] = _on_cuda("launch_maxima", _plain_maxima, block, logits, block)
        return maxima
    return _plain_maxima(logits, block)


@torch.no_grad()
def _plain_maxima(logits: Tensor, block: int) -> tuple[Tensor, Tensor]:
    # A few rows at a time, so that they are read from memory once: the rest is done in the cache.
    each = max(1, _CACHED_ROWS // logits.shape[1]) if logits.device.type == "cpu" else max(1, len(logits))
    maxima, largest = [], []
    for part in torch.split(logits, each):
        rows = part.to(at_least_float32(logits))
        maxima.append(block_tops(rows, block))
        largest.append(rows.log_softmax(1).amax(1))
    # The largest of the logits is that of the log-probabilities and the log of the sum.
    tops = torch.cat(maxima)
    peaks = tops.amax(1)
    return torch.where(peaks.isfinite(), peaks - torch.cat(largest), peaks), tops.to(logits.dtype)


def block_tops(values: Tensor, block: int) -> Tensor:
    """The best of every `block` columns of `(N,V)`, the last of which may be fewer: `(N,ceil(V/block))`."""
    whole, rest = divmod(values.shape[1], block)
    tops = [values[:, : whole * block].view(-1, whole, block).amax(2)] if whole else []
    if rest:
        tops.append(values[:, -rest:].amax(1, keepdim=True))
    return torch.cat(tops, 1) if len(tops) > 1 else tops[0]


@cache
def _triton_kernels(device: torch.device) -> ModuleType | None:
    """The Triton programs, once one of them has run on the device; None where there is no Triton, or it fails."""
    try:
        # Not at the top: Triton takes about as long to load as the rest of this package, and most runs need none of it.
        from nmtkit.layers import triton_kernels

        one = torch.ones(1, 1, 1, device=device)
        triton_kernels.launch_softmax(one, one.bool())
    except Exception as fault:  # a missing C compiler, an old device: each has an error of its own
        if not (isinstance(fault, ModuleNotFoundError) and fault.name == "triton"):
            warnings.warn(
                f"Triton does not work on {device}; torch's own operations compute instead and take longer: {fault}",
                RuntimeWarning,
                stacklevel=3,
            )
        return None
    return triton_kernels


def _on_cuda(launch: str, plain: Callable[..., Any], longest: int, *given: Any) -> Any:
    """What a Triton program makes of these, if it takes their types and rows of `longest` numbers, else `plain`."""
    tensors = [one for one in given if isinstance(one, Tensor)]
    kernels = None
    if not any(tensor.dtype == torch.float64 or tensor.numel() == 0 for tensor in tensors):
        kernels = _triton_kernels(tensors[0].device)
    return (plain if kernels is None or longest > kernels.LONGEST[launch] else getattr(kernels, launch))(*given)


def _cuda_energies(queries: Tensor, keys: Tensor, *others: Tensor | None) -> Tensor:
    energies: Tensor = _on_cuda("launch_energies", _plain_energies, keys.shape[2], queries, keys, *others)
    return energies.to(at_least_float32(energies))
