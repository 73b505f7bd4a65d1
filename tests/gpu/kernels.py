"""What the device does in a search and in an update: how many kernels, how long it waits for the next, the dearest."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from nmtkit import console
from nmtkit.experiment.bench import read_clock
from tests.bench import training as bench

from . import fixed_length, work
from .results import Given, given

TOP = 15
BATCH = 32
BEAM = 4


def is_kernel(event: FunctionEvent, cuda: bool) -> bool:
    """On a CPU an operation that calls no other stands for one; names that torch gives to whole stretches are none."""
    if cuda:
        return event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    return not event.cpu_children


def look(told: Given, name: str, job: Callable[[], object], steps: int = 1) -> None:
    """Profiles the job, which was done before."""
    cuda = told.place.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as recorded:
        job()
        read_clock(told.place)
    events = [event for event in recorded.events() or [] if is_kernel(event, cuda)]
    spans = sorted((event.time_range.start, event.time_range.end) for event in events)  # microseconds
    assert spans, "the profiler saw no kernel"
    busy, until = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    whole = until - spans[0][0]
    dearest: dict[str, list[float]] = defaultdict(list)
    for event in events:
        dearest[event.name].append(event.time_range.elapsed_us())
    top = sorted(dearest.items(), key=lambda item: -sum(item[1]))[:TOP]
    each = "a step" if steps > 1 else "in all"
    figure = f"{len(events) / steps:,.0f} kernels, {whole / steps / 1000:.2f} ms {each}, {1 - busy / whole:.0%} gaps"
    told.results.add(
        name,
        None,
        figure,
        steps=steps,
        kernels=len(events),
        ms=whole / 1000,
        gaps=1 - busy / whole,
        top=[{"name": kernel, "calls": len(times), "us": sum(times)} for kernel, times in top],
    )
    rows = [[kernel[:90], len(times), f"{sum(times):,.0f}"] for kernel, times in top]
    console.table(f"{name}: the dearest", ["kernel", "calls", "us"], rows)


def main(told: Given) -> None:
    to_decode = replace(work.to_decode(told, BATCH), batch_size=BATCH)
    for way in fixed_length.ways(to_decode, BEAM, []):
        way.decode()
        name = f"transformer, {way.engine}, {way.arithmetic}, beam {BEAM}, batch {BATCH}, with its encoder"
        look(told, name, way.decode, to_decode.longest)

    to_train = work.to_train(told, updates=1)
    for label, config in (("transformer", work.transformer(told)), ("luong", work.luong(told))):
        trained = bench.Trained(label, config, bench.BF16, to_train, told.scratch / label)
        trained.block()
        look(told, f"{label}, an update of {to_train.batch_tokens:,} tokens, bf16", trained.block)


if __name__ == "__main__":
    main(given("kernels", __doc__))
