"""The most that this device gives: bytes that it copies, products of matrices, small kernels one after another."""

from collections.abc import Callable

import torch

from nmtkit.core import device
from tests.tools.bench.timing import summary, time_in_turns

from .results import Part

ROUNDS = 5
PRODUCTS: dict[str, tuple[device.MatmulPrecision, torch.dtype]] = {
    "fp32": ("highest", torch.float32),
    "tf32": ("high", torch.float32),
    "bf16": ("highest", torch.bfloat16),
    "fp16": ("highest", torch.float16),
}


def seconds_of(job: Callable[[], object], place: torch.device, times: int) -> list[float]:
    """Seconds of one call of `job`, by round."""

    def repeated() -> None:
        for _ in range(times):
            job()

    return [seconds / times for seconds in time_in_turns({"": repeated}, ROUNDS, place)[""].seconds]


def copied(place: torch.device, mib: int) -> list[float]:
    """Bytes read and written in a second."""
    source = torch.ones(mib << 18, device=place)
    target = torch.empty_like(source)
    return [
        2 * source.nbytes / seconds
        for seconds in seconds_of(lambda: target.copy_(source), place, 10)
    ]


def ceiling(place: torch.device, kind: str, quick: bool) -> list[float]:
    """Floating point operations in a second in products of square matrices."""
    (precision, dtype), size = PRODUCTS[kind], 512 if quick else 8192
    device.prepare(place, precision)
    one, other = (torch.randn(size, size, device=place).to(dtype) for _ in range(2))
    out = torch.empty_like(one)
    seconds = seconds_of(lambda: torch.mm(one, other, out=out), place, 10)
    device.prepare(place)
    return [2 * size**3 / one for one in seconds]


def main(part: Part) -> None:
    speeds = [value / 1e9 for value in copied(part.place, 32 if part.quick else 2048)]
    part.add("copy within the device", None, summary(speeds, "GB/s"), gb_per_second=speeds)
    for kind in PRODUCTS:
        speeds = [value / 1e12 for value in ceiling(part.place, kind, part.quick)]
        part.add(f"products in {kind}", None, summary(speeds, "TFLOP/s", 2), tflops=speeds)
    small = torch.zeros(16, device=part.place)
    launches = [1e6 * value for value in seconds_of(lambda: small.add_(1), part.place, 1000)]
    part.add("one small kernel after another", None, summary(launches, "us each", 2), us=launches)
