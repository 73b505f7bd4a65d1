"""The inner loops of a search: plain forms beside torch's own functions, the Triton programs beside the plain forms."""

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from nmtkit import layers
from nmtkit.layers import kernels

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def on_cuda(test: Callable[..., None]) -> Callable[..., None]:
    """A test for a real device, without gradients."""
    here = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    return pytest.mark.cuda(here(torch.no_grad()(test)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [1, 63, 64, 200])
def test_maxima_are_those_of_torch(columns: int, dtype: torch.dtype) -> None:
    logits = torch.randn(5, columns + 3).mul(5).to(dtype)[:, :columns]
    sums, tops = kernels.block_maxima(logits, 64)
    wide = torch.promote_types(dtype, torch.float32)
    assert (sums.dtype, tops.dtype) == (wide, dtype)
    torch.testing.assert_close(sums, logits.to(wide).logsumexp(1))
    assert torch.equal(tops, torch.stack([part.amax(1) for part in torch.split(logits, 64, 1)], 1))


def test_maxima_of_few_rows_at_a_time_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 100)
    logits[2], logits[3, 4], logits[4, 5] = -math.inf, math.inf, math.nan
    sums, tops = kernels.block_maxima(logits, 64)
    monkeypatch.setattr(kernels, "_CACHED_ROWS", 300)
    parts = kernels.block_maxima(logits, 64)
    torch.testing.assert_close(parts[0], sums, rtol=0, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(parts[1], tops, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(sums, logits.logsumexp(1), equal_nan=True)
    assert bool(sums[4].isnan())


@torch.no_grad()
def test_a_device_without_triton_gives_the_shapes_and_types_of_the_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_triton_kernels", lambda device: None)
    queries, keys, energy = (torch.ones(shape).half() for shape in ((2, 3, 8), (2, 5, 8), (8,)))
    energies = kernels._cuda_energies(queries, keys, energy, torch.ones(2, 3, 5), energy)
    weights = kernels._on_cuda(
        "launch_softmax",
        kernels._plain_softmax,
        arguments=(energies, torch.ones(2, 1, 5).bool()),
        longest=5,
    )
    sums, tops = kernels._on_cuda(
        "launch_maxima",
        kernels._plain_maxima,
        arguments=(torch.ones(6, 130).half(), 64),
        longest=64,
    )
    kinds = [(tuple(tensor.shape), tensor.dtype) for tensor in (energies, weights, sums, tops)]
    wide = torch.float32
    assert kinds == [((2, 3, 5), wide), ((2, 3, 5), wide), ((6,), wide), ((6, 3), torch.float16)]


def failing(*_: Tensor) -> Tensor:
    raise RuntimeError("no C compiler here")


def test_triton_that_fails_is_said_once_and_the_plain_form_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        layers, "triton_kernels", SimpleNamespace(launch_softmax=failing), raising=False
    )
    kernels._triton_kernels.cache_clear()
    logits = torch.randn(2, 70)
    try:
        with pytest.warns(RuntimeWarning, match="no C compiler here") as warned:
            results = [
                kernels._on_cuda(
                    "launch_maxima", kernels._plain_maxima, arguments=(logits, 64), longest=64
                )
                for _ in range(2)
            ]
        assert len(warned) == 1
    finally:
        kernels._triton_kernels.cache_clear()
    for sums, tops in results:
        assert torch.equal(sums, kernels.block_maxima(logits, 64)[0])
        assert torch.equal(tops, kernels.block_maxima(logits, 64)[1])


@needs_triton
def test_the_programs_in_tritons_interpreter() -> None:
    """In a process of its own: what is interpreted and what is compiled is settled when Triton is loaded."""
    path = Path(__file__).with_name("interpreted_kernels.py")
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(path)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, env=environment, cwd=path.parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    if " skipped" in done.stdout:
        pytest.skip(
            f"this Triton's interpreter computes no loops with this NumPy: {done.stdout.splitlines()[-1]}"
        )
    assert " passed" in done.stdout


# --- On a real device, at the sizes of real models. ---

SIZES = {
    "sentences": 64,
    "queries": 4,
    "length": 400,
    "attention": 512,
    "rows": 2048,
    "columns": 50_004,
}
TYPES = [torch.float32, torch.float16, torch.bfloat16]
Job = Callable[[], tuple[Tensor, ...]]


def attention_work(dtype: torch.dtype, covered: bool) -> tuple[Tensor, ...]:
    """Queries, keys, v, coverage and its weight, mask."""
    b, q, s, a = (SIZES[name] for name in ("sentences", "queries", "length", "attention"))
    made = torch.Generator("cuda").manual_seed(1)
    shapes = ((b, q, a), (b, s, a), (a,), (b, q, s), (a,))
    queries, keys, energy, coverage, weight = (
        torch.randn(*shape, generator=made, device="cuda") for shape in shapes
    )
    mask = torch.arange(s, device="cuda") < torch.randint(
        0, s + 1, (b, 1, 1), generator=made, device="cuda"
    )
    given = [tensor.to(dtype) for tensor in (queries, keys, energy / math.sqrt(a))]
    return (*given, *((coverage.abs(), weight.to(dtype)) if covered else (None, None)), mask)


def logits_work(dtype: torch.dtype, padded: bool) -> Tensor:
    n, v = SIZES["rows"], SIZES["columns"]
    made = torch.Generator("cuda").manual_seed(2)
    return torch.randn(n, v + 12 * padded, generator=made, device="cuda").mul_(5).to(dtype)[:, :v]


@on_cuda
@pytest.mark.parametrize("covered", [False, True], ids=["plain", "coverage"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_weights_on_cuda(dtype: torch.dtype, covered: bool) -> None:
    *given, mask = attention_work(dtype, covered)
    energies = kernels.additive_energies(*given)
    exact = [None if tensor is None else tensor.double() for tensor in given]
    expected = torch.cat(
        [kernels._plain_energies(*(part if part is None or part.dim() == 1 else part[i : i + 8] for part in exact))
         for i in range(0, SIZES["sentences"], 8)]
    )  # fmt: skip
    torch.testing.assert_close(energies.double(), expected, rtol=0, atol=1e-5)
    near = 5e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(energies, kernels._plain_energies(*given).float(), rtol=0, atol=near)
    weights = kernels.masked_softmax(energies, mask)
    torch.testing.assert_close(
        weights, kernels._plain_softmax(energies, mask), rtol=1e-5, atol=1e-7
    )
    assert bool((weights[~mask.expand_as(weights)] == 0).all())


@on_cuda
@pytest.mark.parametrize("padded", [False, True], ids=["dense", "padded"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_maxima_on_cuda(dtype: torch.dtype, padded: bool) -> None:
    logits = logits_work(dtype, padded)
    sums, tops = kernels.block_maxima(logits, 64)
    expected_sums, expected_tops = kernels._plain_maxima(logits, 64)
    torch.testing.assert_close(sums, expected_sums, rtol=0, atol=1e-5)
    assert torch.equal(tops, expected_tops)


@on_cuda
def test_in_a_captured_graph_they_see_new_numbers() -> None:
    *given, mask = attention_work(torch.float16, True)
    logits = logits_work(torch.float16, True)

    def job() -> tuple[Tensor, ...]:
        return kernels.masked_softmax(
            kernels.additive_energies(*given), mask
        ), *kernels.block_maxima(logits, 64)

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        job()  # compiles
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = job()
    for tensor in (given[0], given[3], logits):
        tensor.copy_(torch.rand_like(tensor))
    mask.logical_not_()
    graph.replay()
    for results, expected in zip(captured, job(), strict=True):
        assert torch.equal(results, expected)


@needs_triton
@on_cuda
def test_the_programs_are_what_computes_there() -> None:
    assert kernels._triton_kernels(torch.device("cuda", torch.cuda.current_device())) is not None
