"""The Triton programs beside the plain forms, computed by Triton's interpreter: `test_kernels.py` runs this file.

It needs TRITON_INTERPRET=1 in its environment, before anything loads Triton. Type and size of what is compared come
from every corner that a program treats in a way of its own.
"""

import math

import pytest
import torch
import triton
from torch import Tensor
from triton import language as tl

from nmtkit.layers import kernels, triton_kernels

TYPES = [torch.float32, torch.float16, torch.bfloat16]
NEAR = {torch.float32: 2e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3}
"""How far from each other energies of order one may be; 16-bit inputs are exact, the plain form rounds between."""


@triton.jit
def _count(numbers, n):
    for number in range(n):
        tl.store(numbers + number, number)


def counts() -> bool:
    """Whether the interpreter computes a loop up to a number that it is given: Triton 3.5 does not with NumPy 2.4."""
    try:
        _count[(1,)](torch.zeros(2), 2)
    except triton.runtime.errors.InterpreterError:
        return False
    return True


needs_loops = pytest.mark.skipif(
    not counts(), reason="this Triton's interpreter computes no loops with this NumPy"
)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


def random_inputs(
    sentences: int, queries: int, length: int, size: int, dtype: torch.dtype
) -> list[Tensor]:
    """Queries, keys, v, coverage and its weight."""
    shapes = (
        (sentences, queries, size),
        (sentences, length, size),
        (size,),
        (sentences, queries, length),
        (size,),
    )
    drawn = [torch.randn(shape) for shape in shapes]
    drawn[2] /= math.sqrt(size)
    drawn[3] = drawn[3].abs()
    return [tensor if number == 3 else tensor.to(dtype) for number, tensor in enumerate(drawn)]


@needs_loops
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("covered", [False, True], ids=["plain", "coverage"])
@pytest.mark.parametrize(
    "sizes", [(2, 3, 37, 20), (1, 1, 1, 1), (3, 5, 33, 64), (2, 2, 9, 600)], ids=str
)
def test_energies(sizes: tuple[int, int, int, int], covered: bool, dtype: torch.dtype) -> None:
    queries, keys, energy, coverage, weight = random_inputs(*sizes, dtype)
    history = (coverage, weight) if covered else (None, None)
    result = triton_kernels.launch_energies(queries, keys, energy, *history)
    assert result.dtype == torch.float32
    exact = [None if part is None else part.double() for part in (queries, keys, energy, *history)]
    torch.testing.assert_close(result.double(), kernels._plain_energies(*exact), rtol=0, atol=2e-6)
    plain = kernels._plain_energies(queries, keys, energy, *history)
    torch.testing.assert_close(result, plain.float(), rtol=0, atol=8 * NEAR[dtype])


@needs_loops
def test_energies_far_from_zero_are_where_the_tanh_ends() -> None:
    queries, keys, energy, *_ = random_inputs(1, 2, 3, 4, torch.float32)
    result = triton_kernels.launch_energies(queries * 1e4, keys * 0, energy, None, None)
    expected = (queries.sign() * energy).sum(2, keepdim=True).expand(1, 2, 3)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)


@needs_loops
def test_energies_of_parts_of_larger_tensors() -> None:
    """Rows that stand further apart than they are long, as in buffers for longer sentences, and one set of queries."""
    queries, keys, energy, coverage, weight = random_inputs(3, 4, 20, 24, torch.float32)
    shared, some = queries[:1, ::2, 3:].expand(2, 2, 21), keys[1:, 2:15, :21]
    parts = (shared, some, energy[3:], coverage[1:, 1:3, 5:18], weight[:21])
    result = triton_kernels.launch_energies(*parts)
    torch.testing.assert_close(result, kernels._plain_energies(*parts), rtol=0, atol=2e-6)
    swapped = (shared, some.mT.contiguous().mT, *parts[2:])
    torch.testing.assert_close(triton_kernels.launch_energies(*swapped), result, rtol=0, atol=0)


@needs_loops
def test_energies_of_a_sentence_do_not_depend_on_its_neighbours() -> None:
    queries, keys, energy, *_ = random_inputs(5, 4, 12, 40, torch.float32)
    together = triton_kernels.launch_energies(queries, keys, energy, None, None)
    alone = triton_kernels.launch_energies(queries[3:4], keys[3:4], energy, None, None)
    assert torch.equal(together[3:4], alone)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("length", [1, 7, 64, 130])
def test_softmax(length: int, dtype: torch.dtype) -> None:
    energies = torch.randn(3, 4, length).mul(5).to(dtype)
    mask = torch.rand(3, 1, length) < 0.6
    mask[1] = False
    # what is hidden must not be what the others are compared with
    energies = torch.where(mask, energies, 1000)
    result = triton_kernels.launch_softmax(energies, mask)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, kernels._plain_softmax(energies, mask), rtol=1e-6, atol=1e-7)
    assert bool((result[~mask.expand_as(result)] == 0).all())
    assert bool((result[1] == 0).all())


def test_softmax_under_masks_of_every_shape() -> None:
    whole = torch.randn(4, 6, 12)
    energies = whole[1:, ::2, 2:11]  # (3,3,9)
    masks = [
        torch.rand(3, 3, 9),
        torch.rand(3, 1, 9),
        torch.rand(3, 9),
        torch.rand(9, 3, 3).permute(1, 2, 0),
    ]
    for mask in masks:
        shown = mask < 0.5
        result = triton_kernels.launch_softmax(energies, shown)
        torch.testing.assert_close(
            result, kernels._plain_softmax(energies, shown), rtol=1e-6, atol=1e-7
        )


def test_softmax_of_what_is_not_finite() -> None:
    infinity, nan = math.inf, math.nan
    rows = [
        [-infinity, -infinity, 2.0],
        [-infinity, 1.0, nan],
        [nan, 1.0, 1.0],
        [infinity, 1.0, 1.0],
    ]
    energies = torch.tensor([rows])
    mask = torch.tensor([True, True, False])
    result = triton_kernels.launch_softmax(energies, mask)
    torch.testing.assert_close(result, kernels._plain_softmax(energies, mask), equal_nan=True)


@needs_loops
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("block", [64, 16])
@pytest.mark.parametrize("columns", [1, 64, 65, 8192, 9001])
def test_maxima(columns: int, block: int, dtype: torch.dtype) -> None:
    logits = torch.randn(3, columns + 7).mul(6).to(dtype)[:, 3 : columns + 3]
    logits[1, 1:] = -math.inf
    sums, tops = triton_kernels.launch_maxima(logits, block)
    expected_sums, expected_tops = kernels._plain_maxima(logits, block)
    assert sums.dtype == torch.float32
    assert tops.dtype == dtype
    assert torch.equal(tops, expected_tops)
    torch.testing.assert_close(sums.double(), logits.double().logsumexp(1), rtol=0, atol=5e-6)
    torch.testing.assert_close(sums, expected_sums, rtol=0, atol=5e-6)


@needs_loops
def test_maxima_of_what_is_not_finite() -> None:
    infinity, lowest = math.inf, torch.finfo(torch.float32).min
    rows = [
        [-infinity] * 5,
        [infinity, 1.0, 2.0, 3.0, 4.0],
        [lowest] * 5,
        [math.nan, 1.0, 2.0, 3.0, 4.0],
    ]
    sums, tops = triton_kernels.launch_maxima(torch.tensor(rows), 2)
    expected_sums, expected_tops = kernels._plain_maxima(torch.tensor(rows), 2)
    torch.testing.assert_close(sums, expected_sums, equal_nan=True)
    assert torch.equal(tops[:3], expected_tops[:3])
