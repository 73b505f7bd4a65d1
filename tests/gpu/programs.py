"""The inner loops of a search as Triton programs, beside torch's own operations and beside the memory's speed.

Each is timed as it is used, captured in a CUDA graph. What it must read and write at the least, by its time, is set
against the speed of a copy within the device. The results of both ways must be near each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from nmtkit.layers import kernels

from . import ceilings
from .results import Part

SIZES = {"sentences": 64, "queries": 4, "length": 400, "attention": 512, "rows": 2048, "columns": 50_048}
"""Of the pointer-generator, its vocabulary padded; 512 sentences of 4 hypotheses."""
QUICK = {"sentences": 2, "queries": 2, "length": 20, "attention": 16, "rows": 4, "columns": 1000}
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
BLOCK = 64
TIMES = 20
"""Of the same in one graph."""


@dataclass(frozen=True)
class Loop:
    """One thing that is done in a search, and the two ways to do it."""

    name: str
    program: Callable[..., Any]
    plain: Callable[..., Any]
    arguments: tuple[Any, ...]
    near: float
    """How far the results of the two may be from each other."""


def loops(place: torch.device, sizes: dict[str, int], dtype: torch.dtype) -> list[Loop]:
    """Energies with and without coverage, the softmax over them, and the maxima of logits."""
    b, q, s, a = (sizes[name] for name in ("sentences", "queries", "length", "attention"))
    shapes = ((b, q, a), (b, s, a), (a,), (a,), (sizes["rows"], sizes["columns"]))
    queries, keys, energy, weight, logits = (torch.randn(shape, device=place).to(dtype) for shape in shapes)
    energies, mask = torch.randn(b, q, s, device=place), torch.rand(b, 1, s, device=place) < 0.5
    sought = queries, keys, energy / a**0.5
    near = 1e-4 if dtype == torch.float32 else 0.2  # torch's operations round what they add up to 16 bits
    ways = kernels.additive_energies, kernels._plain_energies
    return [
        Loop("additive energies", *ways, (*sought, None, None), near),
        Loop("additive energies with coverage", *ways, (*sought, energies.abs(), weight), near),
        Loop("masked softmax", kernels.masked_softmax, kernels._plain_softmax, (energies, mask), 1e-5),
        Loop("maxima of logits", kernels.block_maxima, kernels._plain_maxima, (logits, BLOCK), 1e-4),
    ]


def seconds_of(job: Callable[[], object], place: torch.device) -> float:
    """The median of the rounds; on a CUDA device of a captured graph, so that launches are not what is measured."""
    if place.type != "cuda":
        return median(ceilings.seconds_of(job, place, 1))
    aside = torch.cuda.Stream(place)
    aside.wait_stream(torch.cuda.current_stream(place))
    with torch.cuda.stream(aside):
        job()
    torch.cuda.current_stream(place).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(place), torch.cuda.graph(graph):
        for _ in range(TIMES):
            job()
    return median(ceilings.seconds_of(graph.replay, place, 3)) / TIMES


def look(part: Part, loop: Loop, kind: str, copy: float) -> None:
    """A row of both ways."""
    jobs = [partial(way, *loop.arguments) for way in (loop.program, loop.plain)]
    results, expected = (tree_leaves(job()) for job in jobs)
    apart = max(float((a.float() - b.float()).abs().max()) for a, b in zip(results, expected, strict=True))
    moved = sum(tensor.nbytes for tensor in [*loop.arguments, *results] if isinstance(tensor, Tensor))
    program, plain = (seconds_of(job, part.place) for job in jobs)
    share = moved / program / copy
    figure = f"{1e6 * program:,.1f} us, {moved / 1e6:,.1f} MB, {share:.0%} of a copy's speed, "
    figure += f"{plain / program:.1f} x torch's operations, {apart:.1g} apart"
    values = {"seconds": program, "plain_seconds": plain, "moved_bytes": moved, "share_of_copy": share}
    part.add(f"{loop.name}, {kind}", apart <= loop.near, figure, **values)


@torch.no_grad()
def main(part: Part) -> None:
    place, sizes = part.place, QUICK if part.quick else SIZES
    copy = median(ceilings.copied(place, 32 if part.quick else 2048))
    if place.type == "cuda":
        works = kernels._triton_kernels(torch.device("cuda", place.index or 0)) is not None
        part.add("Triton works here", works, "yes" if works else "no: torch's operations compute")
    torch.manual_seed(1)
    for kind, dtype in TYPES.items():
        for loop in loops(place, sizes, dtype):
            look(part, loop, kind, copy)
