"""What the commands that score share: options, and files of text."""

import json
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from nmtkit.cli.options import Decorator, Number, grouped, together
from nmtkit.cli.reading import stdin_lines
from nmtkit.cli.reporting import tell
from nmtkit.data.records import refuse_json_lines
from nmtkit.data.text import read_lines
from nmtkit.errors import DataError
from nmtkit.metrics import MOST_SAMPLES, SENTENCE_RULES, TOKENIZERS, Bootstrap, Options, metric_names, text_metrics
from nmtkit.metrics.systems import named, notes


def _one_stdin(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    if given.count("-") > 1:
        raise click.UsageError("standard input (-) can be only one of the HYPs")
    return given


hyps: Decorator = click.argument("hyps", metavar="HYP...", nargs=-1, required=True, callback=_one_stdin)
refs: Decorator = click.option(
    "--ref", "ref_paths", metavar="REF", multiple=True, required=True, help="Reference. May be repeated."
)
as_json: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON with all digits, no tables.")


def _names(ctx: click.Context, parameter: click.Parameter, given: str) -> list[str]:
    return metric_names(name.strip() for name in given.split(",") if name.strip())


def scoring(metrics: str, always: bool) -> Decorator:
    """Gives a command the options of comparing texts, as `metrics`, `options` and `draws` (None: no bootstrap).

    Args:
        metrics: the default of `--metrics`.
        always: whether there is a bootstrap for one HYP too, where nothing is said.
    """

    def decide(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_draws(hyps: tuple[str, ...], significance: bool | None, draws: Bootstrap, **given: Any) -> Any:
            wanted = always or len(hyps) > 1 if significance is None else significance
            return command(hyps=hyps, draws=draws if wanted else None, **given)

        return with_draws

    return together(
        click.option(
            "--metrics",
            metavar="LIST",
            default=metrics,
            show_default=True,
            callback=_names,
            help=f"Of {', '.join(text_metrics())}, rouge (all four), in the order to print.",
        ),
        click.option(
            "--tokenize", type=click.Choice(TOKENIZERS), default="13a", show_default=True, help="Tokenizer of BLEU."
        ),
        click.option(
            "--lowercase", is_flag=True, help="BLEU, chrF and wanted words ignore case (TER and ROUGE always do)."
        ),
        click.option("--stem/--no-stem", default=True, show_default=True, help="ROUGE compares English Porter stems."),
        click.option(
            "--sentences",
            type=click.Choice(SENTENCE_RULES),
            default="auto",
            show_default=True,
            help="Where ROUGE-Lsum cuts sentences. tags: at <t>, <s> or <q>, which are removed; newline: at ends "
            "of lines; punctuation: after . ! ?; auto: the first of these that applies to a text.",
        ),
        click.option(
            "--significance/--no-significance",
            default=None,
            help="Paired bootstrap against the first HYP, with 95% intervals. Default: on"
            + ("." if always else " with several HYPs."),
        ),
        click.option(
            "--n-samples", type=Number(1, MOST_SAMPLES), default=1000, show_default=True, help="Draws of the bootstrap."
        ),
        click.option("--seed", type=Number(1), default=12345, show_default=True, help="Seed of the bootstrap."),
        grouped(Options, "options"),
        grouped(Bootstrap, "draws"),
        decide,
    )


def read_texts(path: str, remedy: str) -> list[str]:
    """The lines of a text file, or of standard input where it is "-"; `remedy` is what to do about JSON lines.

    Raises:
        DataError: it cannot be read, is empty or holds JSON lines.
    """
    lines = list(stdin_lines() if path == "-" else read_lines(path))
    if not lines:
        raise DataError(f"{named(path)}: no lines; there is nothing to score")
    refuse_json_lines(lines, named(path), remedy)
    return lines


def say_notes(metrics: Sequence[str], refs: Sequence[Sequence[str]]) -> None:
    """What readers of the figures should know of the references, on stderr."""
    for note in notes(metrics, refs):
        tell(f"note: {note}")


def print_json(references: Sequence[str], **more: object) -> None:
    """Prints one object on standard output."""
    click.echo(json.dumps({"references": list(references), **more}, indent=2, ensure_ascii=False))
