"""How fast models are trained, beside bare torch (the Transformer), and as a share of what the device can multiply."""

from statistics import median

import torch

from tests.bench import training as bench
from tests.bench.timing import summary

from . import material
from .ceilings import ceiling
from .results import Part

ENOUGH = 0.85
"""Share of bare torch's speed that nmtkit must reach."""


def beside_bare_torch(part: Part) -> None:
    for row in bench.beside_floor(material.training_setup(part), material.transformer(part), [bench.BF16]):
        figure = f"{summary(row.tokens_per_second, 'tok/s')}, {row.peak_mib:,.0f} MiB"
        figure += f", {summary(row.ratios, 'of the floor', 2)}" if row.ratios else ""
        # Other dropout is other work: only the same can be held to the floor.
        same = row.engine.endswith("as the floor") and not part.quick
        holds = median(row.ratios) >= ENOUGH if same else None
        values = {"tokens_per_second": row.tokens_per_second, "ratios": row.ratios, "peak_mib": row.peak_mib}
        part.add(f"transformer, {row.engine}, {row.arithmetic}", holds, figure, **values)


def beside_products(part: Part, name: str, measured: bench.BesideProducts, kind: str) -> None:
    """A row with the operations a second that were reached; `kind` of product is what they are held against."""
    speed = measured.speed
    tflops = measured.trace.gflop / 1e3 / median(speed.seconds)
    share = tflops * 1e12 / median(ceiling(part.place, kind, part.quick))
    figure = f"{summary(speed.tokens_per_second, 'tok/s')}, {tflops:.1f} TFLOP/s = {share:.0%} of products in {kind}"
    values = {"tokens_per_second": speed.tokens_per_second, "tflops": tflops, "share": share}
    part.add(name, None, f"{figure}, {speed.peak_mib:,.0f} MiB", **values, peak_mib=speed.peak_mib)


def main(part: Part) -> None:
    beside_bare_torch(part)
    threads, (updates, rounds) = torch.get_num_threads(), (1, 1) if part.quick else (5, 3)
    overrides = ["training.precision=bf16", *material.luong_sizes(part)]
    workload = bench.made_up_workload(material.LUONG, (30, 30), part.place, threads, overrides)
    luong = bench.beside_products(workload, "random words", updates, rounds, print)
    beside_products(part, "luong, bf16", luong, "bf16")
    rows = bench.pointer_generator(part.place, threads, updates, rounds, part.quick)
    for measured, kind in zip(rows, ("fp32", "tf32"), strict=True):
        beside_products(part, f"pointer-generator, {kind}", measured, kind)
