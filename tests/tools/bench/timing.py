"""Several jobs in turns on one device, with their seconds, memory and results: most figures here are made by it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from nmtkit.experiment.bench import peak_memory_mib, read_clock, reset_peak_memory, spread


@dataclass
class Timing:
    """What one job took, in the order of its rounds."""

    seconds: list[float] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    peak_mib: float = 0.0
    """See `peak_memory_mib`; what other jobs keep in memory is part of it."""

    def per_second(self, count: float) -> list[float]:
        """The speed of each round that does `count` things."""
        return [count / seconds for seconds in self.seconds]


def time_in_turns(
    jobs: Mapping[str, Callable[[], Any]], rounds: int, device: torch.device, warm_up: bool = True
) -> dict[str, Timing]:
    """Does every job once a round, in an order that rotates; with `warm_up` once before, which is not counted."""
    names, timings = list(jobs), {name: Timing() for name in jobs}
    for number in range(0 if warm_up else 1, rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            timing = timings[name]
            reset_peak_memory(device)
            begun = read_clock(device)
            result = jobs[name]()
            seconds = read_clock(device) - begun
            timing.peak_mib = max(timing.peak_mib, peak_memory_mib(device))
            if number > 0:
                timing.seconds.append(seconds)
                timing.results.append(result)
    return timings


def summary(values: list[float], unit: str, digits: int = 0) -> str:
    """The median, with the minimum and maximum."""
    return f"{median(values):,.{digits}f} {unit} ({spread(values, digits)})"
