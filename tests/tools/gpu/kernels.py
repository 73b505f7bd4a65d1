"""What the device does in a search and in an update: how many kernels, how long it waits for the next, the dearest."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from nmtkit.cli import terminal
from nmtkit.config import load as load_recipe
from nmtkit.experiment.bench import read_clock
from tests.tools.bench import training as bench
from tests.tools.bench.search import run_engine

from . import decoding, material
from .results import Part

TOP = 15
BATCH = 32
BEAM = 4


def is_kernel(event: FunctionEvent, cuda: bool) -> bool:
    """On a CPU an operation that calls no other stands for one; names that torch gives to whole stretches are none."""
    if cuda:
        return event.device_type == DeviceType.CUDA and not getattr(
            event, "is_user_annotation", False
        )
    return not event.cpu_children


def look(part: Part, name: str, job: Callable[[], object], steps: int = 1) -> None:
    """Profiles the job, which was done before."""
    cuda = part.place.type == "cuda"
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    ) as recorded:
        job()
        read_clock(part.place)
    events = [event for event in recorded.events() or [] if is_kernel(event, cuda)]
    # microseconds
    spans = sorted((event.time_range.start, event.time_range.end) for event in events)
    assert spans, "the profiler saw no kernel"
    busy, until = 0.0, spans[0][0]
    for first, end in spans:
        busy += max(0.0, end - max(first, until))
        until = max(until, end)
    whole = until - spans[0][0]
    dearest: dict[str, list[float]] = defaultdict(list)
    for event in events:
        dearest[event.name].append(event.time_range.elapsed_us())
    top = sorted(dearest.items(), key=lambda item: -sum(item[1]))[:TOP]
    each, gaps = "a step" if steps > 1 else "in all", 1 - busy / whole
    figure = (
        f"{len(events) / steps:,.0f} kernels, {whole / steps / 1000:.2f} ms {each}, {gaps:.0%} gaps"
    )
    values = {"steps": steps, "kernels": len(events), "ms": whole / 1000, "gaps": gaps}
    named = [{"name": kernel, "calls": len(times), "us": sum(times)} for kernel, times in top]
    part.add(name, None, figure, **values, top=named)
    rows = [[kernel[:90], len(times), f"{sum(times):,.0f}"] for kernel, times in top]
    terminal.table(f"{name}: the dearest", ["kernel", "calls", "us"], rows)


def main(part: Part) -> None:
    network = decoding.NETWORKS["transformer"]
    if part.quick:
        network = replace(network, settings=material.transformer(part).model_dump(), output=4)
    batch = decoding.batch_of(network, BATCH, part.place)
    for way, engine in decoding.engines(network, BEAM, part.place).items():
        run_engine(engine, batch)
        job = partial(run_engine, engine, batch)
        look(
            part,
            f"transformer, {way}, beam {BEAM}, batch {BATCH}, with its encoder",
            job,
            network.output,
        )
    setup = material.training_setup(part, updates=1)
    for config in (
        material.transformer(part),
        load_recipe(material.LUONG, material.luong_sizes(part)).model,
    ):
        blocks = bench.nmtkit_blocks(config, bench.BF16, setup, part.scratch / config.kind)
        next(blocks)
        look(
            part,
            f"{config.kind}, an update of {setup.batch_tokens:,} tokens, bf16",
            partial(next, blocks),
        )
