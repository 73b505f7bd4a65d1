"""`nmtkit bench decode` and `nmtkit bench train`: the speed of a user's own run and recipe."""

from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import click
import cloup

from nmtkit import console, recipe
from nmtkit.cli import inference, options
from nmtkit.cli.options import FILE, NEW_FILE, Number, with_threads
from nmtkit.cli.reading import stdin_lines
from nmtkit.cli.reporting import tell
from nmtkit.core.errors import DataError
from nmtkit.core.files import write_json
from nmtkit.corpus.reading import read_pairs
from nmtkit.corpus.text import read_lines
from nmtkit.experiment.bench import (
    DecodingSpeed,
    TrainingBenchmark,
    TrainingSpeed,
    measure_decoding,
    spread,
    training_workload,
)
from nmtkit.experiment.loading import ModelOptions
from nmtkit.experiment.run import choose_device
from nmtkit.runs.saved import find_run

rounds = click.option(
    "--rounds",
    type=Number(1, 1000),
    default=3,
    show_default=True,
    help="Measured repetitions; the table has their median and spread.",
)
output = click.option("-o", "--output", type=NEW_FILE, metavar="FILE", help="Also write all figures to FILE, as JSON.")
decode_options = (
    options.model,
    inference.checkpoint,
    click.option(
        "--source", metavar="FILE", help="Lines to translate; - is standard input. Default: the recipe's test set."
    ),
    click.option("--ref", type=FILE, metavar="FILE", help="Their references, to score the translations."),
    click.option("--lines", type=Number(1), metavar="N", help="Use only the first N lines."),
    click.option(
        "--alone", type=Number(1), metavar="N", default=50, show_default=True, help="Lines to time one by one."
    ),
    rounds,
    output,
    inference.search_flags("beam_size"),
    options.device,
)


@click.group()
def command() -> None:
    """Measure how fast this machine decodes and trains. Other running programs make the figures worse.

    \b
    Examples:
      nmtkit bench decode -m runs/mine
      nmtkit bench train demo
    """


@command.command("decode", cls=cloup.Command)
@cloup.option_group("Common", *decode_options)
@inference.search_groups()
@inference.opens_model
def bench_decoding(
    how: ModelOptions,
    source: str | None,
    ref: Path | None,
    lines: int | None,
    alone: int,
    rounds: int,
    output: Path | None,
) -> None:
    """Measure how fast a trained model translates.

    It uses the fastest settings on this machine: measured now, or earlier by `train` or `tune`.

    "alone" is the time of a line that is decoded by itself. "MiB" is the peak memory: of tensors on a GPU, elsewhere of
    the whole process.

    \b
    Examples:
      nmtkit bench decode -m runs/mine
      nmtkit bench decode --source test.en --ref test.de --beam-size 5 --lines 300 -o figures.json
    """
    sources, references = read_test_lines(how, source, ref, lines)
    facts, config, speed = measure_decoding(how, sources, references, rounds, alone, tell)
    show_machine(facts)
    console.table(
        f"decoding {len(sources):,} lines, {rounds} rounds",
        ["configuration", *DECODING_COLUMNS, *speed.scores],
        [[config, *decoding_cells(speed)]],
    )
    if output is not None:
        write_figures(output, {"facts": facts, "configuration": config, **speed.figures()})


@command.command("train")
@options.recipe
@options.overrides
@options.run_folder
@options.device
@options.training_threads
@click.option("--updates", type=Number(1, 1000), default=5, show_default=True, help="Updates in a round.")
@rounds
@output
def bench_training(
    name: str,
    overrides: tuple[str, ...],
    run_path: str | None,
    device: str,
    threads: int | None,
    updates: int,
    rounds: int,
    output: Path | None,
) -> None:
    """Measure how fast this machine trains a recipe.

    Real updates of the recipe's model are made: loss, gradients, clipping, optimizer. The batches are those of a run of
    the recipe, else of its text, which is preprocessed for this; where the files are missing, they are random words.
    Settings that the recipe leaves to `auto` are the fastest ones on this machine. No weights are saved, and no run
    is changed.

    \b
    Examples:
      nmtkit bench train demo
      nmtkit bench train mine.yaml --set batch.batch_tokens=2048 --updates 10 -o figures.json
    """
    loaded = recipe.load(name, with_threads(overrides, threads))
    with ExitStack() as stack:
        workload, data = training_workload(loaded, run_path, choose_device(device, loaded), stack, tell)
        benchmark = TrainingBenchmark(workload, data, updates, tell)
        for _ in range(rounds):
            benchmark.measure_round()
    show_training(loaded.name, benchmark.speed)
    if output is not None:
        write_figures(output, benchmark.speed.figures())


def read_test_lines(
    how: ModelOptions, source: str | None, ref: Path | None, count: int | None
) -> tuple[list[str], list[str] | None]:
    """The first lines of a file or of the recipe's test set, and their references if there are any."""
    if source is not None:
        lines = list(stdin_lines()) if source == "-" else list(read_lines(Path(source)))
        return lines[:count], None if ref is None else list(read_lines(ref))[:count]
    if ref is not None:
        raise click.UsageError("--ref belongs to --source; give both")
    run = find_run(how.model)[0]
    splits = run.recipe.data.splits()
    files = splits.get("test") or splits.get("valid")
    if files is None:
        raise DataError(f"{run.folder.path}: its recipe names neither a test nor a validation set; give --source FILE")
    pairs = list(read_pairs(files))[:count]
    targets = [pair.tgt for pair in pairs if pair.tgt is not None]
    return [pair.src for pair in pairs], targets if len(targets) == len(pairs) else None


def show_machine(facts: dict[str, object]) -> None:
    """Prints the table of the machine."""
    console.table("machine", ["what", "value"], [[name, str(value)] for name, value in facts.items()])


DECODING_COLUMNS = ["sentences/s", "min-max", "tokens/s", "alone, ms", "p95", "MiB"]


def decoding_cells(speed: DecodingSpeed) -> list[str]:
    """The cells of `DECODING_COLUMNS` and the scores."""
    figures = speed.figures()
    return [
        f"{median(figures['sentences_per_second']):,.1f}",
        spread(figures["sentences_per_second"], 1),
        f"{speed.tokens / median(speed.seconds):,.0f}",
        f"{figures['latency_ms_median']:.1f}",
        f"{figures['latency_ms_p95']:.1f}",
        f"{speed.peak_mib:,.0f}" if speed.peak_mib else "-",
        *(f"{value:.2f}" for value in speed.scores.values()),
    ]


def show_training(name: str, speed: TrainingSpeed, **more: str) -> None:
    """The tables of the machine and of a recipe's updates; `more` are further columns."""
    show_machine(speed.facts)
    cells = {
        "configuration": str(speed.config),
        "tokens/s": f"{median(speed.tokens_per_second):,.0f}",
        "min-max": spread(speed.tokens_per_second),
        "ms an update": f"{1e3 * median(speed.seconds) / speed.updates:,.0f}",
        "tokens an update": f"{speed.tokens / speed.updates:,.0f}",
        "MiB": f"{speed.peak_mib:,.0f}",
        **more,
    }
    title = f"training {name} on {speed.data}, {len(speed.seconds)} rounds of {speed.updates} updates"
    console.table(title, list(cells), [list(cells.values())])


def write_figures(path: Path, figures: dict[str, Any]) -> None:
    """Writes all figures as JSON."""
    write_json(path, figures)
    tell(f"wrote {path}")
