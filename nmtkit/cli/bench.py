"""`nmtkit bench decode` and `nmtkit bench train`."""

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
from nmtkit.experiment.bench.decoding import DecodingSpeed, DecodingWork, measure_decoding
from nmtkit.experiment.bench.machine import spread
from nmtkit.experiment.bench.updates import a_trial, measure_training
from nmtkit.experiment.loading import ModelOptions
from nmtkit.experiment.run import choose_device
from nmtkit.interchange.conversion import LIBRARIES
from nmtkit.runs.saved import find_run

COLUMNS = ["engine", "way", "sentences/s", "min-max", "tokens/s", "CPU s", "alone, ms", "p95", "MiB", "of floor"]
COLUMNS += ["differ", "ties", "cut"]

rounds = click.option(
    "--rounds",
    type=Number(1, 1000),
    default=3,
    show_default=True,
    help="Rounds of each engine; the table has medians and their spread.",
)
output = click.option("-o", "--output", type=NEW_FILE, metavar="FILE", help="Write all figures there as JSON as well.")


@click.group()
def command() -> None:
    """Measure how fast this machine decodes and trains, and how near that is to its matrix products alone.

    It needs a quiet machine, and says so if other programs are running.

    \b
    Examples:
      nmtkit bench decode -m runs/mine --against ctranslate2,huggingface
      nmtkit bench train demo
    """


def _names(ctx: click.Context, parameter: click.Parameter, given: str | None) -> tuple[str, ...]:
    """The engines of a list with commas."""
    names = tuple(dict.fromkeys(name.strip() for name in (given or "").split(",") if name.strip()))
    for name in names:
        if name not in LIBRARIES:
            raise click.BadParameter(f"there is no engine {name!r}: take {' or '.join(LIBRARIES)}")
    return names


@command.command("decode", cls=cloup.Command)
@cloup.option_group(
    "Common",
    options.model,
    inference.checkpoint,
    click.option(
        "--source", metavar="FILE", help="Lines to translate; - is standard input. Default: the recipe's test set."
    ),
    click.option("--ref", type=FILE, metavar="FILE", help="Their references, to score the translations."),
    click.option(
        "--against",
        metavar="ENGINE,...",
        callback=_names,
        help="Other engines with the same weights: ctranslate2, huggingface (pip install 'nmtkit[peers]').",
    ),
    click.option("--lines", type=Number(1), metavar="N", help="Take only N of the lines."),
    click.option(
        "--alone", type=Number(1), metavar="N", default=50, show_default=True, help="Lines to time one by one."
    ),
    rounds,
    output,
    inference.search_flags("beam_size"),
    options.device,
)
@inference.search_groups()
@inference.opens_model
def bench_decoding(
    how: ModelOptions,
    source: str | None,
    ref: Path | None,
    against: tuple[str, ...],
    lines: int | None,
    alone: int,
    rounds: int,
    output: Path | None,
) -> None:
    """Measure how fast a trained model translates, beside engines of others with the same weights.

    Some of the lines are decoded in every way that an engine knows: precision, batch, threads. A row is its quickest
    exact way (fp32), a second one its quickest of all. Every row has a process of its own, which stays, and gets the
    same lines of text, in turns.

    "CPU s" are the seconds of all threads for all lines. "alone" is the time of a line that comes by itself. "MiB" is
    what the process needs beyond loading torch. "of floor": the time of the matrix products alone, of the same shapes,
    in bare torch, as part of nmtkit's time.

    "differ": lines unlike those of nmtkit's first row; "ties": those of them that the model scores equally; "cut":
    those that reached a length limit. These differ by rule: the others have one limit for all lines, and rank what has
    not ended among what has. --max-length 100 --search max_length_ratio=100 gives nmtkit one limit for all lines too.

    \b
    Examples:
      nmtkit bench decode -m runs/mine
      nmtkit bench decode --source test.en --ref test.de --against ctranslate2,huggingface --beam-size 5
      nmtkit bench decode --against ctranslate2 --lines 300 -o figures.json
    """
    sources, references = _text(how, source, ref)
    work = DecodingWork(
        how, sources[:lines], None if references is None else references[:lines], against, rounds, alone
    )
    result = measure_decoding(work, tell)
    _show_machine(result.facts)
    names = list(result.rows[0].scores)
    console.table(
        f"decoding {len(work.sources):,} lines, {rounds} rounds",
        [*COLUMNS, *names],
        [[*_row(row), *(f"{row.scores[name]:.2f}" for name in names)] for row in result.rows],
    )
    cold = [[name, f"{median(taken):.2f}", spread(taken, 2)] for name, taken in result.cold.items()]
    console.table("one line, from a cold start", ["process", "seconds", "min-max"], cold)
    for one in result.examples:
        tell(f"{one['engine']}, line {one['line']}: {one['other']}\n  nmtkit: {one['nmtkit']}")
    if output is not None:
        figures: dict[str, Any] = {"facts": result.facts, "rows": [row.figures() for row in result.rows]}
        figures |= {"cold_start_seconds": result.cold, "differing": result.examples, "cpu_pressure": result.pressure}
        _write(output, figures)


@command.command("train")
@options.recipe
@options.overrides
@options.run_folder
@options.device
@options.training_threads
@click.option("--updates", type=Number(1, 1000), default=5, show_default=True, help="Updates in a turn.")
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

    Real updates of the recipe's model: loss, gradients, clipping, optimizer. The batches are those of its own text: as
    a run of the recipe has stored them, else from text that is preprocessed for this; where the files are not here,
    random words of the recipe's sizes. The way to train is the recipe's, or what was found on this machine if it leaves
    that open. "of floor": the time of the matrix products alone, forward and backward, of the same shapes, in bare
    torch, as part of the update's time. Nothing is kept, and no run is changed.

    \b
    Examples:
      nmtkit bench train demo
      nmtkit bench train mine.yaml --set batch.batch_tokens=2048 --updates 10 -o figures.json
    """
    loaded = recipe.load(name, with_threads(overrides, threads))
    place = choose_device(device, loaded)
    with ExitStack() as stack:
        result = measure_training(a_trial(loaded, run_path, place, stack, tell), rounds, updates, tell)
    _show_machine(result.facts)
    console.table(
        f"training {loaded.name} on {result.data}, {rounds} rounds of {updates} updates",
        ["way", "tokens/s", "min-max", "ms an update", "tokens an update", "MiB", "of floor"],
        [
            [
                str(result.way),
                f"{median(result.tokens_per_second):,.0f}",
                spread(result.tokens_per_second),
                f"{1e3 * median(result.seconds) / updates:,.0f}",
                f"{result.tokens / updates:,.0f}",
                f"{result.peak_mib:,.0f}",
                f"{median(result.share):.0%}",
            ]
        ],
    )
    if output is not None:
        _write(output, result.figures())


def _text(how: ModelOptions, source: str | None, ref: Path | None) -> tuple[list[str], list[str] | None]:
    """The lines and their references, if there are any."""
    if source is not None:
        lines = list(stdin_lines()) if source == "-" else list(read_lines(Path(source)))
        return lines, None if ref is None else list(read_lines(ref))
    if ref is not None:
        raise click.UsageError("--ref belongs to --source; give both")
    run = find_run(how.model)[0]
    splits = run.recipe.data.splits()
    files = splits.get("test") or splits.get("valid")
    if files is None:
        raise DataError(f"{run.folder.path}: its recipe names neither a test nor a validation set; give --source FILE")
    pairs = list(read_pairs(files))
    targets = [pair.tgt for pair in pairs if pair.tgt is not None]
    return [pair.src for pair in pairs], targets if len(targets) == len(pairs) else None


def _show_machine(facts: dict[str, object]) -> None:
    console.table("machine", ["what", "value"], [[name, str(value)] for name, value in facts.items()])


def _row(row: DecodingSpeed) -> list[str]:
    lines, tokens = len(row.found), sum(len(one.tokens) + one.finished for one in row.found)
    speeds = [lines / seconds for seconds in row.seconds]
    figures = row.figures()
    return [
        row.engine,
        str(row.setting),
        f"{median(speeds):,.1f}",
        spread(speeds, 1),
        f"{tokens / median(row.seconds):,.0f}",
        f"{median(row.cpu_seconds):,.1f}",
        f"{figures['latency_ms_median']:.1f}",
        f"{figures['latency_ms_p95']:.1f}",
        f"{row.peak_mib:,.0f}" if row.peak_mib else "-",
        f"{median(row.share):.0%}" if row.share else "-",
        f"{row.differing:,}",
        f"{row.ties:,}",
        f"{row.cut:,}",
    ]


def _write(path: Path, figures: dict[str, Any]) -> None:
    write_json(path, figures)
    tell(f"wrote {path}")
