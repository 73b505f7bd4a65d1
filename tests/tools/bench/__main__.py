"""`make bench` or `python -m tests.tools.bench --help`: training, `decode`, `generate`, `pretrain`, `models`."""

import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import cloup

from nmtkit.cli import terminal
from nmtkit.cli.commands.options import search_options
from nmtkit.cli.commands.training import bench as bench_command
from nmtkit.cli.inference import model_options
from nmtkit.cli.options import Number
from nmtkit.cli.terminal.reporting import tell
from nmtkit.cli.training import bench
from nmtkit.convert.engines import LIBRARIES
from nmtkit.core import device as devices
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import write_json
from nmtkit.data.batches.store import Store
from nmtkit.experiment.bench import spread
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.runs.run import Run

from . import generating, machine, made_text, models, preprocessing, pretraining, search, training
from .decoding import DecodingWork, EngineSpeed, measure_decoding

PARTS = ["transformer", "summarization"]
ON_REQUEST = ["preprocess"]
"""Parts that need minutes, gigabytes, or both: only with --only."""
TOY_PAIRS = {"train": 100, "valid": 10, "test": 10}


def integers(ctx: click.Context, parameter: click.Parameter, given: str) -> list[int]:
    return [int(number) for number in given.split(",")]


def count(name: str, default: int, about: str) -> Any:
    return click.option(name, type=Number(1), default=default, show_default=True, help=about)


@click.group(invoke_without_command=True)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, ... or auto.")
@click.option(
    "--run", type=click.Path(path_type=Path), help="A preprocessed run: train on its data."
)
@click.option(
    "--only", type=click.Choice([*PARTS, *ON_REQUEST]), help="One part instead of the first two."
)
@count("--threads", 2, "CPU threads of every engine, and workers of preprocess.")
@click.option(
    "--shape",
    type=click.Choice(list(training.SHAPES)),
    default="small",
    show_default=True,
    help="Of the Transformer: nmtkit's default, or the paper's base. With `toy` the figures come in seconds and mean "
    "nothing.",
)
@count(
    "--batch-tokens", training.BATCH_TOKENS, "Padded tokens a side of a batch; a GPU wants 25000."
)
@click.option(
    "--arithmetic",
    type=click.Choice(list(training.ARITHMETICS)),
    multiple=True,
    default=list(training.ARITHMETICS),
    show_default="all",
    help="Of the Transformer. A processor without bfloat16 takes very long for bf16.",
)
@click.option(
    "--objective",
    type=click.Choice(["span_corruption", "denoising"]),
    help="Pretrain the Transformer by it on the targets; the floor gets batches that were corrupted before.",
)
@count("--blocks", 5, "Measured blocks of training.")
@count("--updates", 6, "Updates in a block.")
@count("--rounds", 3, "How often the pointer-generator is measured.")
@count("--articles", 128, "Articles to summarize in batches of 32.")
@count("--alone", 32, "Articles of them to summarize one at a time as well.")
@click.option(
    "--lines",
    default="10000,1000000",
    show_default=True,
    callback=integers,
    metavar="N,N,...",
    help="Pairs of each corpus to check and preprocess; 0.7 KB of disk for each.",
)
@click.option(
    "--json",
    "output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all figures there too.",
)
@click.pass_context
def command(ctx: click.Context, only: str | None, output: Path | None, **given: Any) -> None:
    """Measure nmtkit beside bare torch and other engines.

    Without a command: training beside networks in bare torch, and a pointer-generator. Every engine gets the same work,
    in turns. Needs a quiet machine, and says so if other programs are running.
    """
    if ctx.invoked_subcommand is not None:
        return
    begun = time.monotonic()
    place = devices.choose(given["device"])
    devices.prepare(place, threads=given["threads"])
    facts = machine.facts(given["threads"], place)
    bench.show_machine(facts)
    look = partial(machine.look_at_pressure, notify=partial(terminal.say, stderr=True))
    pressure = {"before": look("before")}
    figures: dict[str, Any] = {
        "machine": facts,
        "settings": {key: str(value) for key, value in given.items()},
    }
    with tempfile.TemporaryDirectory(prefix="nmtkit-bench-") as scratch:
        for part in [only] if only else PARTS:
            figures[part] = run_part(part, Path(scratch), place, **given)
            pressure[f"after {part}"] = look(f"after {part}")
    if output is not None:
        write_json(output, {**figures, "cpu pressure": pressure})
        terminal.say(f"wrote {output}")
    terminal.say(f"{time.monotonic() - begun:.0f} seconds in all")


def run_part(
    part: str, scratch: Path, place: Any, *, threads: int, rounds: int, **given: Any
) -> Any:
    """Measures a part, shows its table and gives its figures."""
    toy = given["shape"] == "toy"
    if part == "preprocess":
        corpora = [
            preprocessing.measure(lines, scratch / str(lines), threads) for lines in given["lines"]
        ]
        preprocessing.show(corpora, threads)
        return corpora
    if part == "summarization":
        network = search.TOY if toy else search.POINTER_GENERATOR
        trained = training.pointer_generator(place, threads, given["updates"], rounds, toy)
        for speed in trained:
            bench.show_training("the pointer-generator", speed)
        rows = search.measure_summaries(
            network, given["articles"], given["alone"], 32, rounds, threads, place
        )
        search.show_summaries(rows)
        return {"training": [speed.figures() for speed in trained], "decoding": rows}
    if given["run"] is not None:
        folder = Run.open(str(given["run"])).folder
    else:
        sizes = (100, TOY_PAIRS) if toy else ()
        folder = made_text.make_captions(scratch, {"kind": "transformer"}, *sizes)
    store = Store.open(folder.data, "train")
    training.check_store(store)
    terminal.say(
        f"training on {len(store):,} pairs of {store.folder}, vocabulary {store.tgt_size:,}"
    )
    setup = training.Setup(
        store, scratch, place, threads, given["blocks"], given["updates"], given["batch_tokens"]
    )
    if given["objective"]:
        setup = replace(setup, corrupt=training.corruption(given["objective"]))
    arithmetics = [training.ARITHMETICS[name] for name in given["arithmetic"]]
    speeds = training.beside_floor(setup, training.SHAPES[given["shape"]], arithmetics)
    training.show(speeds, setup)
    return [vars(speed) for speed in speeds]


def names_of(what: str, known: Collection[str]) -> Callable[..., tuple[str, ...]]:
    """Reads NAME,NAME,... of which each must be known."""

    def read(ctx: click.Context, parameter: click.Parameter, given: str | None) -> tuple[str, ...]:
        names = tuple(
            dict.fromkeys(name.strip() for name in (given or "").split(",") if name.strip())
        )
        for name in names:
            if name not in known:
                raise click.BadParameter(f"there is no {what} {name!r}: take {' or '.join(known)}")
        return names

    return read


@command.command("decode", cls=cloup.Command)
@cloup.option_group(
    "Common",
    *bench_command.decode_options,
    count("--alone", 50, "Lines to time one by one."),
    click.option(
        "--against",
        metavar="ENGINE,...",
        callback=names_of("engine", LIBRARIES),
        help="Other engines with the same weights: ctranslate2, huggingface (pip install 'nmtkit[peers]').",
    ),
)
@search_options.search_groups()
@model_options.opens_model
def decode(
    how: DecodingOptions,
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
    facts = machine.facts(how.threads or devices.cpu_threads(), devices.choose(how.device))
    sources = [Request.from_line(line).text for line in sources]  # other engines know no tags
    work = DecodingWork(how, sources, references, against, rounds, alone)
    rows, seconds, examples, pressure = measure_decoding(work, tell)
    bench.show_machine(facts)
    columns = [
        "engine",
        "settings",
        "CPU s",
        "of floor",
        "differ",
        "ties",
        "cut",
        *bench.DECODING_COLUMNS,
    ]
    title = f"decoding {len(sources):,} lines, {rounds} rounds"
    terminal.table(title, [*columns, *rows[0].scores], [decoding_row(row) for row in rows])
    cold = [[name, f"{median(taken):.2f}", spread(taken, 2)] for name, taken in seconds.items()]
    terminal.table("one line, from a cold start", ["process", "seconds", "min-max"], cold)
    for one in examples:
        tell(f"{one['engine']}, line {one['line']}: {one['other']}\n  nmtkit: {one['nmtkit']}")
    if output is not None:
        figures: dict[str, Any] = {"facts": facts, "rows": [row.figures() for row in rows]}
        figures |= {"cold_start_seconds": seconds, "differing": examples, "cpu_pressure": pressure}
        bench.write_figures(output, figures)


@command.command("generate")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, ... or auto.")
@click.option(
    "--shape", type=click.Choice(list(generating.SHAPES)), default="gpt2", show_default=True
)
@click.option(
    "--batches",
    default="16,1",
    show_default=True,
    callback=integers,
    metavar="N,N,...",
    help="Prompts.",
)
@click.option(
    "--against/--alone",
    default=True,
    show_default=True,
    help="Beside transformers, which must be there.",
)
@count("--threads", 2, "CPU threads of every engine.")
@count("--rounds", 3, "How often each engine is measured.")
@click.option(
    "--json",
    "output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all figures there too.",
)
def generate(
    device: str,
    shape: str,
    batches: list[int],
    against: bool,
    threads: int,
    rounds: int,
    output: Path | None,
) -> None:
    """Measure how fast a language model goes on with prompts, beside transformers with the same random weights."""
    place, asked = devices.choose(device), generating.SHAPES[shape]
    facts = machine.facts(threads, place)
    rows = generating.measure(asked, batches, rounds, threads, place, against)
    bench.show_machine(facts)
    generating.show(rows, asked)
    if output is not None:
        write_json(output, {"machine": facts, "generation": rows})


@command.command("pretrain")
@click.option(
    "--only",
    type=click.Choice(list(pretraining.WORK)),
    multiple=True,
    help="An objective of pretraining, or a language model; can be repeated. Default: all.",
)
@click.option(
    "--shape", type=click.Choice(list(pretraining.SHAPES)), default="small", show_default=True
)
@count("--threads", 2, "CPU threads of both.")
@count("--updates", 10, "In a block.")
@count("--rounds", 5, "How often each is measured.")
@click.option(
    "--json",
    "output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all figures there too.",
)
def pretrain(
    only: tuple[str, ...], shape: str, threads: int, updates: int, rounds: int, output: Path | None
) -> None:
    """Measure how fast models are trained on texts alone, beside the same networks in bare torch.

    Pretraining is that of BERT (masked_words, next_sentence), ELECTRA (replaced_tokens), XLNet (permutation) and ELMo
    (both_directions). The language models transformer_lm, rnn_lm and pointer_sentinel learn by the likelihood.
    """
    with tempfile.TemporaryDirectory() as scratch:
        works = {name: pretraining.WORK[name] for name in only or pretraining.WORK}
        rows = pretraining.measure(works, shape, updates, rounds, threads, Path(scratch))
    facts = machine.facts(threads, devices.choose("cpu"))
    bench.show_machine(facts)
    pretraining.show(rows, f"{pretraining.SAID} ({shape})")
    if output is not None:
        write_json(output, {"machine": facts, "pretraining": rows})


@command.command("models")
@click.option(
    "--only",
    metavar="NAME,...",
    callback=names_of("model", models.WORK),
    help=f"Of {', '.join(models.WORK)}. Default: all.",
)
@click.option("--shape", type=click.Choice(list(models.SHAPES)), default="small", show_default=True)
@count("--threads", 2, "CPU threads of both.")
@count("--updates", 2, "In a block.")
@count("--rounds", 4, "How often each is measured.")
@count("--beam-size", 5, "Of the searches.")
@click.option(
    "--json",
    "output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all figures there too.",
)
def models_command(
    only: tuple[str, ...], beam_size: int, output: Path | None, **given: Any
) -> None:
    """Measure how fast further models are trained beside the same networks in bare torch, and how fast they write.

    Both get the same batches, which are made before. Those that write do so with random weights, many texts at a time
    and one at a time.
    """
    shape, rounds, threads = given["shape"], given["rounds"], given["threads"]
    works = {name: models.WORK[name] for name in only or models.WORK}
    models.check_same_function(works, shape)
    with tempfile.TemporaryDirectory() as scratch:
        trained = pretraining.measure(
            works, shape, given["updates"], rounds, threads, Path(scratch)
        )
    written = models.measure_writing(works, shape, beam_size, rounds, threads)
    facts = machine.facts(threads, devices.choose("cpu"))
    bench.show_machine(facts)
    pretraining.show(trained, f"{models.SAID} ({shape})")
    models.show_writing(written, beam_size)
    if output is not None:
        write_json(output, {"machine": facts, "training": trained, "decoding": written})


def decoding_row(row: EngineSpeed) -> list[str]:
    return [
        row.engine,
        str(row.setting),
        f"{median(row.cpu_seconds):,.1f}",
        f"{median(row.share_of_floor):.0%}" if row.matmul_seconds else "-",
        *(f"{number:,}" for number in (row.differing, row.ties, row.cut)),
        *bench.decoding_cells(row),
    ]


def main() -> int:
    try:
        command(prog_name="python -m tests.tools.bench", standalone_mode=True)
    except NmtkitError as fault:
        terminal.say(f"error: {fault}", stderr=True)
    return 2


if __name__ == "__main__":
    sys.exit(main())
