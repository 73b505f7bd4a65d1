"""`python -m tests.bench decode` and `train`: `nmtkit bench` beside other engines and beside bare matrix products."""

from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import click
import cloup

from nmtkit import console, recipe
from nmtkit.cli import bench, inference, options
from nmtkit.cli.options import Number, with_threads
from nmtkit.cli.reporting import tell
from nmtkit.experiment.bench import TrainingBenchmark, spread, training_workload
from nmtkit.experiment.loading import ModelOptions
from nmtkit.experiment.run import choose_device
from nmtkit.interchange.conversion import LIBRARIES

from . import machine
from .decoding import DecodingWork, EngineSpeed, measure_decoding
from .products import Products


@click.group()
def command() -> None:
    """How near nmtkit is to other engines with the same weights, and to its matrix products alone.

    It needs a quiet machine, and says so if other programs are running.
    """


def engines(ctx: click.Context, parameter: click.Parameter, given: str | None) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in (given or "").split(",") if name.strip()))
    for name in names:
        if name not in LIBRARIES:
            raise click.BadParameter(f"there is no engine {name!r}: take {' or '.join(LIBRARIES)}")
    return names


@command.command("decode", cls=cloup.Command)
@cloup.option_group(
    "Common",
    *bench.decode_options,
    click.option(
        "--against",
        metavar="ENGINE,...",
        callback=engines,
        help="Other engines with the same weights: ctranslate2, huggingface (pip install 'nmtkit[peers]').",
    ),
)
@inference.search_groups()
@inference.opens_model
def decode(
    how: ModelOptions,
    source: str | None,
    ref: Path | None,
    lines: int | None,
    alone: int,
    rounds: int,
    output: Path | None,
    against: tuple[str, ...],
) -> None:
    """Measure how fast a trained model translates, beside other engines with the same weights.

    Some of the lines are decoded in every configuration of an engine: precision, batch, threads. A row is its fastest
    exact configuration (fp32), a second one its fastest of all. Every row has a process of its own, which stays, and
    gets the same lines of text, in turns.

    "CPU s" are the seconds of all threads for all lines. "alone" is the time of a line that is decoded by itself. "MiB"
    is what the process needs beyond loading torch. "of floor": the time of the matrix products alone, of the same
    shapes, in bare torch, as part of nmtkit's time.

    "differ": lines unlike those of nmtkit's first row; "ties": those of them that the model scores equally; "cut":
    those that reached a length limit. These differ by rule: the others have one limit for all lines, and rank what has
    not ended among what has. --max-length 100 --search max_length_ratio=100 gives nmtkit one limit for all lines too.
    """
    sources, references = bench.read_test_lines(how, source, ref, lines)
    result = measure_decoding(DecodingWork(how, sources, references, against, rounds, alone), tell)
    bench.show_machine(result.facts)
    console.table(
        f"decoding {len(sources):,} lines, {rounds} rounds",
        [
            *("engine", "way", "CPU s", "of floor", "differ", "ties", "cut"),
            *bench.DECODING_COLUMNS,
            *result.rows[0].scores,
        ],
        [cells(row) for row in result.rows],
    )
    cold = [[name, f"{median(taken):.2f}", spread(taken, 2)] for name, taken in result.cold.items()]
    console.table("one line, from a cold start", ["process", "seconds", "min-max"], cold)
    for one in result.examples:
        tell(f"{one['engine']}, line {one['line']}: {one['other']}\n  nmtkit: {one['nmtkit']}")
    if output is not None:
        figures: dict[str, Any] = {"facts": result.facts, "rows": [row.figures() for row in result.rows]}
        figures |= {"cold_start_seconds": result.cold, "differing": result.examples, "cpu_pressure": result.pressure}
        bench.write_figures(output, figures)


def cells(row: EngineSpeed) -> list[str]:
    return [
        row.engine,
        str(row.setting),
        f"{median(row.cpu_seconds):,.1f}",
        f"{median(row.share):.0%}" if row.share else "-",
        *(f"{count:,}" for count in (row.differing, row.ties, row.cut)),
        *bench.decoding_cells(row),
    ]


@command.command("train")
@options.recipe
@options.overrides
@options.run_folder
@options.device
@options.training_threads
@click.option("--updates", type=Number(1, 1000), default=5, show_default=True, help="Updates in a round.")
@bench.rounds
@bench.output
def train(
    name: str,
    overrides: tuple[str, ...],
    run_path: str | None,
    device: str,
    threads: int | None,
    updates: int,
    rounds: int,
    output: Path | None,
) -> None:
    """`nmtkit bench train`, and how much of the time the matrix products of the same updates take alone."""
    loaded = recipe.load(name, with_threads(overrides, threads))
    watch, products, bare = machine.Watch(tell), Products(), list[float]()
    watch.look("before")
    with ExitStack() as stack:
        workload, data = training_workload(loaded, run_path, choose_device(device, loaded), stack, tell)
        benchmark = TrainingBenchmark(workload, data, updates, tell)
        products.record(benchmark.make_updates)
        for number in range(rounds):
            watch.look(f"before round {number + 1}")
            benchmark.measure_round()
            bare.append(products.seconds(benchmark.device))
    share = [alone / whole for alone, whole in zip(bare, benchmark.speed.seconds, strict=True)]
    bench.show_training(loaded.name, benchmark.speed, **{"of floor": f"{median(share):.0%}"})
    if output is not None:
        figures = {**benchmark.speed.figures(), "gflop": products.gflop, "gigabytes": products.gigabytes}
        bench.write_figures(output, {**figures, "bare": bare, "share_of_floor": share, "pressure": watch.seen})
