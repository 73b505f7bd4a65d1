"""How fast models are trained, the Transformer beside bare torch."""

from statistics import median

import torch

from nmtkit.experiment.bench import TrainingSpeed, measure_training
from tests.tools.bench import training as bench
from tests.tools.bench.timing import summary

from . import material
from .results import Part

ENOUGH = 0.85
"""Share of bare torch's speed that nmtkit must reach."""


def beside_bare_torch(part: Part) -> None:
    for row in bench.beside_floor(
        material.training_setup(part), material.transformer(part), [bench.BF16]
    ):
        figure = f"{summary(row.tokens_per_second, 'tok/s')}, {row.peak_mib:,.0f} MiB"
        figure += f", {summary(row.ratios, 'of the floor', 2)}" if row.ratios else ""
        # Other dropout is other work: only the same can be held to the floor.
        same = row.engine.endswith("as the floor") and not part.quick
        holds = median(row.ratios) >= ENOUGH if same else None
        values = {
            "tokens_per_second": row.tokens_per_second,
            "ratios": row.ratios,
            "peak_mib": row.peak_mib,
        }
        part.add(f"transformer, {row.engine}, {row.arithmetic}", holds, figure, **values)


def add_row(part: Part, name: str, speed: TrainingSpeed) -> None:
    figure = f"{summary(speed.tokens_per_second, 'tok/s')}, {speed.peak_mib:,.0f} MiB"
    part.add(name, None, figure, tokens_per_second=speed.tokens_per_second, peak_mib=speed.peak_mib)


def main(part: Part) -> None:
    beside_bare_torch(part)
    threads, (updates, rounds) = torch.get_num_threads(), (1, 1) if part.quick else (5, 3)
    overrides = ["training.precision=bf16", *material.luong_sizes(part)]
    workload = bench.made_up_workload(material.LUONG, (30, 30), part.place, threads, overrides)
    add_row(part, "luong, bf16", measure_training(workload, "random words", updates, rounds, print))
    rows = bench.pointer_generator(part.place, threads, updates, rounds, part.quick)
    for speed, kind in zip(rows, ("fp32", "tf32"), strict=True):
        add_row(part, f"pointer-generator, {kind}", speed)
