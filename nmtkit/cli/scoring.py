"""What the commands that score share: options, and files of text."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from nmtkit.cli.options import Decorator, Number
from nmtkit.cli.reading import stdin_lines
from nmtkit.data.records import refuse_json_lines
from nmtkit.data.text import read_lines
from nmtkit.errors import DataError
from nmtkit.metrics import MOST_SAMPLES, SENTENCE_RULES, TOKENIZERS, Bootstrap, Options, metric_names, text_metrics
from nmtkit.metrics.systems import named


@dataclass(frozen=True)
class Scoring:
    """How texts are scored."""

    metrics: list[str]
    """Names in the order to print."""
    options: Options
    """How texts are compared."""
    significance: bool | None
    """Whether there is a bootstrap; None if nothing was said."""
    draws: Bootstrap
    """What it draws."""

    def bootstrap(self, usual: bool) -> Bootstrap | None:
        """What is drawn, if anything; `usual` says whether anything is where nothing was said."""
        wanted = usual if self.significance is None else self.significance
        return self.draws if wanted else None


def _one_stdin(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    if given.count("-") > 1:
        raise click.UsageError("standard input (-) can be only one of the HYPs")
    return given


hyps: Decorator = click.argument("hyps", metavar="HYP...", nargs=-1, required=True, callback=_one_stdin)
refs: Decorator = click.option(
    "--ref", "ref_paths", metavar="REF", multiple=True, required=True, help="Reference; repeat for several."
)
as_json: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON with all digits, no tables.")


TEXTS: list[Decorator] = [
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
        help="Sentences of ROUGE-Lsum. tags: cut at <t>, <s> or <q>, which are removed; punctuation: after . ! ?; "
        "newline: each line of a file is one sentence (in JSONL: at newlines); auto: the first of tags, newline, "
        "punctuation that applies to a text.",
    ),
    click.option(
        "--n-samples", type=Number(1, MOST_SAMPLES), default=1000, show_default=True, help="Draws of the bootstrap."
    ),
    click.option("--seed", type=Number(1), default=12345, show_default=True, help="Seed of the bootstrap."),
]


def scoring(metrics: str, significance: str) -> Decorator:
    """Gives a command the options of comparing texts; it takes what they make as `how`.

    Args:
        metrics: the default of `--metrics`.
        significance: when there is a bootstrap, where nothing is said.
    """
    which: Decorator = click.option(
        "--metrics",
        metavar="LIST",
        default=metrics,
        show_default=True,
        help=f"Of {', '.join(text_metrics())}, rouge (all four), in the order to print.",
    )
    whether: Decorator = click.option(
        "--significance/--no-significance",
        default=None,
        help=f"Paired bootstrap against the first HYP, with 95% intervals. Default: {significance}.",
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_scoring(metrics: str, significance: bool | None, n_samples: int, seed: int, **given: Any) -> Any:
            options = Options(**{key: given.pop(key) for key in ("tokenize", "lowercase", "stem", "sentences")})
            names = metric_names(name.strip() for name in metrics.split(",") if name.strip())
            return command(how=Scoring(names, options, significance, Bootstrap(n_samples, seed)), **given)

        decorated: Callable[..., Any] = with_scoring
        for decorator in reversed([which, *TEXTS[:-2], whether, *TEXTS[-2:]]):
            decorated = decorator(decorated)
        return decorated

    return decorate


def read_texts(path: str, remedy: str) -> list[str]:
    """The lines of a text file, or of standard input where it is "-".

    Args:
        path: of the file.
        remedy: what to do where it holds JSON lines.

    Raises:
        DataError: it cannot be read, is empty or holds JSON lines.
    """
    lines = list(stdin_lines() if path == "-" else read_lines(path))
    if not lines:
        raise DataError(f"{named(path)}: no lines; there is nothing to score")
    refuse_json_lines(lines, named(path), remedy)
    return lines


def print_json(references: Sequence[str], **more: object) -> None:
    """Prints one object on standard output."""
    click.echo(json.dumps({"references": list(references), **more}, indent=2, ensure_ascii=False))
