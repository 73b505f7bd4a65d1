"""`nmtkit train`."""

import os
from itertools import pairwise
from typing import Any

import click
import cloup

from nmtkit.cli import completing, options
from nmtkit.cli.options import Number
from nmtkit.experiment.presets.sizes import PRESETS, TASKS_WITH_PRESETS

MAX_MINUTES = 10_000_000


SPLIT_OPTIONS = ("--valid", "--test", "--general", "--general-test")


def _text_option(option: str, meaning: str) -> options.Decorator:
    """Returns an option for text files, whose paths are made absolute."""
    return click.option(
        option,
        metavar="SRC TGT" if option in SPLIT_OPTIONS else "FILE",
        multiple=True,
        callback=lambda ctx, parameter, given: tuple(map(os.path.abspath, given)),
        help=meaning,
    )


class _TrainCommand(cloup.Command):
    """A command with two kinds of options that click lacks.

    `--resume` takes the word after it only if that word is `auto`; any other word is the recipe. `--valid` and similar
    options take a variable number of files.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [
            "--resume=always" if word == "--resume" and following != "auto" else word
            for word, following in pairwise([*args, ""])
        ]
        return super().parse_args(ctx, options.spread_files(words, SPLIT_OPTIONS))


@cloup.command(cls=_TrainCommand)
@click.argument("name", metavar="[RECIPE]", required=False, shell_complete=completing.recipes)
@cloup.option_group(
    "Common",
    options.overrides,
    options.run_folder,
    click.option(
        "--resume",
        "resuming",
        type=click.Choice(["always", "auto"]),
        metavar="[auto]",
        help="Resume a stopped run. The result is bit-identical to that of an uninterrupted run on a CPU, and on CUDA "
        "with training.deterministic; otherwise, it is equal up to rounding. auto: start a new run if there is none.",
    ),
    click.option(
        "--overwrite",
        is_flag=True,
        help="Replace an existing run once the new one has saved its first state.",
    ),
    click.option(
        "--allow-new-data",
        is_flag=True,
        help="With --resume, continue on different text. The tokenizer stays the same, and the epoch restarts.",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Run one update, and print memory, speed, operations and the estimated time of training (or of its first "
        "stage), without saving anything.",
    ),
    options.device,
    options.training_threads,
)
@cloup.option_group(
    "Text, without a recipe",
    _text_option("--source", "Source text, one sentence or article per line. May be repeated."),
    _text_option(
        "--target",
        "Translations, summaries or labels of the source, line by line; for --task language-modelling, the text.",
    ),
    _text_option(
        "--valid", "Validation set. Default: hold out 5% of the pairs, but at most 1,000 sources."
    ),
    _text_option(
        "--test",
        "Test set, scored at the end. Default: hold out as many pairs as for validation, unless --valid is given.",
    ),
    click.option(
        "--encoding",
        multiple=True,
        metavar=options.ENCODING_FORM,
        help="Encoding of all text files, or of one FILE. Default: utf-8. May be repeated.",
    ),
    click.option(
        "--minutes",
        type=Number(0, MAX_MINUTES, whole=False, above=True),
        help="Training time in minutes. The full time is used, unless fine-tuning stops improving earlier.",
    ),
    click.option(
        "--task",
        type=click.Choice(TASKS_WITH_PRESETS),
        help="Task of the model. Default: translation.",
    ),
    click.option(
        "--preset",
        type=click.Choice([*PRESETS]),
        metavar="NAME",
        help="Size of the model. "
        + "; ".join(f"{name}: {meaning}" for name, meaning in PRESETS.items())
        + ". Default: chosen to suit the corpus and the device.",
    ),
)
@cloup.option_group(
    "Fine-tuning on that text",
    click.option(
        "--init-from",
        metavar="RUN",
        shell_complete=completing.runs,
        help="Fine-tune this run, with its weights and tokenizer.",
    ),
    click.option(
        "--from",
        "source_language",
        metavar="LANG",
        help="Source language, if RUN is an imported multilingual model, e.g. eng_Latn.",
    ),
    click.option(
        "--to", metavar="LANG", help="Target language, if RUN is multilingual, e.g. fra_Latn."
    ),
    _text_option(
        "--general", "General text to mix in, as half of the pairs, so that the model forgets less."
    ),
    _text_option(
        "--general-test",
        "General test set to score before and after fine-tuning. Default: the test set of RUN.",
    ),
)
def train_command(**values: Any) -> None:
    """Train a model from RECIPE: a file, or the name of a recipe that comes with nmtkit.

    With --source and --target instead of RECIPE, nmtkit chooses a tokenizer, a model and a schedule based on the size
    of the text. It explains its choice, and saves it in the run's folder as chosen.yaml, a recipe like any other.
    Without a validation set, it holds out pairs for validation and for a test set. For a task with only one side,
    options take one file instead of SRC TGT. Every option that takes files may be repeated. --init-from fine-tunes a
    run, trained here or imported, and shows scores before and after fine-tuning, on your test set and on the test set
    of that run.

    The run's folder, runs/NAME, contains the resolved recipe, the tokenizer, checkpoints, metrics.jsonl, train.log, and
    curves for TensorBoard if that is installed. Ctrl-C and SIGTERM save the state and stop; a second Ctrl-C stops at
    once. If the recipe has a test set, the trained model translates (or summarizes) it, and the output is scored.

    In the log, "loss" is the training loss with label smoothing and other objectives; "ppl" is the perplexity of the
    references alone. Each stage of a recipe begins with the best weights of the previous one; --resume continues the
    stage that was interrupted. With --resume, --set may change limits, batch.*, training.accumulate, threads, shard,
    and the settings for logging and for saving and keeping checkpoints.

    \b
    Examples:
      nmtkit train demo
      nmtkit train --source train.en --target train.de
      nmtkit train --source a.en.gz --source b.en --target a.de.gz --target b.de --preset tiny --minutes 20
      nmtkit train --source pairs.csv#English --target pairs.csv#French
      nmtkit train --source help.en --target help.de --init-from runs/general
      nmtkit train --source help.en --target help.fr --init-from runs/nllb --from eng_Latn --to fra_Latn
      nmtkit train --task summarization --source articles.txt --target summaries.txt --run runs/news
      nmtkit train --task language-modelling --target text.en
      nmtkit train --task classification --source texts.txt --target labels.txt
      nmtkit train mine.yaml --set training.lr=0.0005 --set model.layers=2 --run runs/two-layers
      nmtkit train mine.yaml --dry-run
      nmtkit train mine.yaml --resume
      nmtkit train mine.yaml --resume --set training.max_minutes=90
      torchrun --nproc-per-node 4 -m nmtkit train mine.yaml --resume auto
    """
    from nmtkit.cli.training.train import run_train

    run_train(**values)
