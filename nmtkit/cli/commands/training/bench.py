"""`nmtkit bench`, `tune` and `doctor`: speed of this machine, its fastest training settings, and its devices."""

from typing import Any

import click
import cloup

from nmtkit.cli import options
from nmtkit.cli.commands.options import search_options
from nmtkit.cli.options import FILE, NEW_FILE, Number

rounds = click.option(
    "--rounds",
    type=Number(1, 1000),
    default=3,
    show_default=True,
    help="Number of repetitions; the median and the spread are printed.",
)


output = click.option(
    "-o",
    "--output",
    type=NEW_FILE,
    metavar="FILE",
    help="Also write all measurements to FILE, as JSON.",
)


decode_options = (
    options.model,
    search_options.checkpoint,
    click.option(
        "--source",
        metavar="FILE",
        help="File with the lines to translate; - is standard input. Default: the recipe's test set.",
    ),
    click.option(
        "--ref",
        type=FILE,
        metavar="FILE",
        help="File with the references; adds a score for the translations.",
    ),
    click.option("--lines", type=Number(1), metavar="N", help="Use only the first N lines."),
    rounds,
    output,
    search_options.search_flags("beam_size"),
    options.device,
)


@click.group()
def bench_command() -> None:
    """Measure how fast this machine decodes and trains. Other running programs distort the measurements.

    \b
    Examples:
      nmtkit bench decode -m runs/mine
      nmtkit bench train demo
    """


@bench_command.command("decode", cls=cloup.Command)
@cloup.option_group("Common", *decode_options)
@search_options.search_groups(search_options.engine)
def bench_decoding(**values: Any) -> None:
    """Measure how fast a trained model translates.

    The search is the same as in `nmtkit translate` with the same options. If CTranslate2 is installed and supports the
    model, it decodes the same lines in fp32 and in its fastest type. "other texts" is the number of outputs that differ
    from those in the first row.

    "alone" is the time for a line that is decoded alone, measured on the first 50 lines. "MiB" is the peak memory: on a
    GPU, the memory of the tensors; on a CPU, the memory of the whole process, without its child processes.

    \b
    Examples:
      nmtkit bench decode -m runs/mine
      nmtkit bench decode --source test.en --ref test.de --beam-size 5 --lines 300 -o figures.json
    """
    from nmtkit.cli.training.bench import run_bench_decoding

    run_bench_decoding(**values)


@bench_command.command("train")
@options.recipe
@options.overrides
@options.run_folder
@options.device
@options.training_threads
@rounds
@output
def bench_training(**values: Any) -> None:
    """Measure how fast this machine trains a recipe.

    The command performs real updates of the recipe's model: loss, gradients, clipping, optimizer. The batches come from
    a run of the recipe, or else from its text, which is then preprocessed. If the text files are missing, the command
    uses random words. Settings that are `auto` in the recipe get the fastest values on this machine. No weights are
    saved, and no run is changed.

    \b
    Examples:
      nmtkit bench train demo
      nmtkit bench train mine.yaml --set batch.batch_tokens=2048 --rounds 5 -o figures.json
    """
    from nmtkit.cli.training.bench import run_bench_training

    run_bench_training(**values)


@click.command("tune")
@options.recipe
@options.overrides
@options.run_folder
@options.device
def tune_command(**values: Any) -> None:
    """Find the fastest settings for training a recipe on this machine, and print the speed of each.

    A recipe may leave training.precision, training.matmul_precision and training.threads open (auto). This command
    measures all of their values with updates of the recipe's model on its text, for about five seconds in total. The
    result replaces any earlier result. Later training runs on this machine use it if they have the same kind of model
    and batches; `nmtkit doctor --clear` deletes it. If there is no result, `train` measures the settings itself, unless
    its time is limited to less than two minutes.

    The text is preprocessed into the run's folder, as by `nmtkit preprocess`. To measure how fast a trained run
    decodes, use `nmtkit bench decode`.

    \b
    Examples:
      nmtkit tune demo
      nmtkit tune mine.yaml --set batch.batch_tokens=2048
    """
    from nmtkit.cli.training.bench import run_tune

    run_tune(**values)


@click.command("doctor")
@click.option("--clear", is_flag=True, help="Delete all measured settings and exit.")
def doctor_command(**values: Any) -> None:
    """Show versions and devices, and explain which device is used.

    The fastest settings that `nmtkit train` and `nmtkit tune` measured on this machine are kept until you delete them
    with --clear.

    \b
    Examples:
      nmtkit doctor
      nmtkit doctor --clear
    """
    from nmtkit.cli.training.bench import run_doctor

    run_doctor(**values)
