"""Options and files of the commands that score."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import click
import cloup

from nmtkit import console
from nmtkit.cli import options
from nmtkit.cli.options import Decorator, Number, collect, together
from nmtkit.cli.reading import stdin_lines
from nmtkit.cli.reporting import tell
from nmtkit.core.errors import DataError
from nmtkit.corpus.json_records import refuse_json_lines
from nmtkit.corpus.text import read_lines
from nmtkit.metrics import (
    MOST_SAMPLES,
    SENTENCE_RULES,
    SPM_TOKENIZERS,
    TOKENIZERS,
    Bootstrap,
    Options,
    Randomization,
    Resampling,
    metric_names,
    text_metrics,
)
from nmtkit.metrics.systems import ScoredSystem, named, notes, score_lines


def _one_stdin(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    if given.count("-") > 1:
        raise click.UsageError("standard input (-) can be only one of the HYPs")
    return given


hyps: Decorator = click.argument("hyps", metavar="HYP...", nargs=-1, required=True, callback=_one_stdin)
refs: Decorator = click.option(
    "--ref", "ref_paths", metavar="REF", multiple=True, required=True, help="Reference. May be repeated."
)
as_json: Decorator = options.as_json("Print JSON with all digits, no tables.")


def tokenize_option(default: str | None, meaning: str, *more: str, hidden: bool = False) -> Decorator:
    """The option of BLEU's tokenizer."""
    return click.option(
        *more,
        "--tokenize",
        type=click.Choice((*TOKENIZERS, *SPM_TOKENIZERS)),
        metavar="NAME",
        default=default,
        hidden=hidden,
        help=f"{meaning} {', '.join((*TOKENIZERS, *SPM_TOKENIZERS))}.",
    )


_METRICS = ("-m", "--metrics")


class MetricsCommand(cloup.Command):
    """A command whose `--metrics` takes names separated by blanks, as sacrebleu does, or by commas."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Joins the names of metrics that follow `--metrics`."""
        return super().parse_args(ctx, [*_joined(args)])


def _joined(args: Sequence[str]) -> Iterator[str]:
    families = {metric.family for metric in text_metrics().values()}
    known = {*text_metrics(), *filter(None, families)}
    names: list[str] = []
    for place, word in enumerate(args):
        if place and args[place - 1] in _METRICS:
            names = [word]
        elif names and word in known:
            names.append(word)
        else:
            yield from filter(None, [",".join(names), word])
            names = []
    yield from filter(None, [",".join(names)])


def _names(ctx: click.Context, parameter: click.Parameter, given: Sequence[str]) -> list[str]:
    return metric_names(name.strip() for names in given for name in names.split(",") if name.strip())


def _test(n_hyps: int, bootstrap: bool | None, randomize: bool, always: bool) -> type[Resampling] | None:
    """The test of significance."""
    if randomize and (n_hyps < 2 or bootstrap is not None):
        reason = "compares several HYPs" if n_hyps < 2 else "replaces the bootstrap: leave the other option out"
        raise click.UsageError(f"--paired-ar {reason}")
    wanted = always or n_hyps > 1 if bootstrap is None else bootstrap
    return Randomization if randomize else Bootstrap if wanted else None


def scoring(summaries: bool) -> Decorator:
    """The options of comparing texts: `metrics`, `options`, `draws` (None: no test) and `width`.

    `summaries`: ROUGE, always with intervals; else BLEU, chrF and TER, with intervals for several systems.
    """

    def decide(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_draws(
            hyps: tuple[str, ...],
            significance: bool | None,
            paired_ar: bool,
            n_samples: int | None,
            seed: int,
            **given: Any,
        ) -> Any:
            test = _test(len(hyps), significance, paired_ar, always=summaries)
            draws = test and (test(seed=seed) if n_samples is None else test(n_samples, seed))
            return command(hyps=hyps, draws=draws, **given)

        return with_draws

    return together(
        cloup.option_group("Metrics", *_about_texts(summaries)),
        cloup.option_group("Significance", *_about_tests(summaries)),
        collect(Options, "options"),
        decide,
    )


def _about_texts(summaries: bool) -> list[Decorator]:
    own = [name for name, metric in text_metrics().items() if not metric.extra]
    more = [name for name, metric in text_metrics().items() if metric.extra]
    return [
        click.option(
            *_METRICS,
            metavar="LIST",
            multiple=True,
            default=["rouge"] if summaries else ["bleu", "chrf", "ter"],
            show_default=True,
            callback=_names,
            help=f"{', '.join(own)}, rouge (all four); with an extra {', '.join(more)}. In the order to print.",
        ),
        tokenize_option("13a", "BLEU's tokenizer. Default: 13a.", "-tok", hidden=summaries),
        click.option(
            "-lc",
            "--lowercase",
            is_flag=True,
            help="Terms, BLEU and chrF ignore case. ROUGE always does."
            if summaries
            else "BLEU and chrF ignore case, as sacrebleu does with -lc --chrf-lowercase. TER always does.",
        ),
        click.option("-w", "--width", type=Number(0, 9), default=2, show_default=True, help="Digits after the point."),
        click.option(
            "--stem/--no-stem",
            default=True,
            show_default=True,
            hidden=not summaries,
            help="ROUGE compares English Porter stems.",
        ),
        click.option(
            "--sentences",
            type=click.Choice(SENTENCE_RULES),
            default="auto",
            show_default=True,
            hidden=not summaries,
            help="Where ROUGE-Lsum cuts sentences. tags: at <t>, <s> or <q>, which are removed; newline: at ends "
            "of lines; punctuation: after . ! ?; auto: the first of these that applies to a text.",
        ),
    ]


def _about_tests(summaries: bool) -> list[Decorator]:
    return [
        click.option(
            "--paired-bs/--no-significance",
            "--significance",
            "significance",
            default=None,
            help="Paired bootstrap against the first HYP, with 95% intervals. Default: on"
            + ("." if summaries else " with several HYPs."),
        ),
        click.option("--paired-ar", is_flag=True, help="Paired approximate randomization instead; no intervals."),
        click.option(
            "--n-samples",
            type=Number(1, MOST_SAMPLES),
            help="Draws of the test. Default: 1,000 of the bootstrap, 10,000 of the randomization.",
        ),
        click.option("--seed", type=Number(1), default=12345, show_default=True, help="Seed of the test."),
    ]


def say_lines(systems: Sequence[ScoredSystem], width: int) -> None:
    """Prints the one-line form of every score, unwrapped."""
    for line in score_lines(systems, width):
        console.say(line)


def read_texts(path: str, remedy: str) -> list[str]:
    """The lines of a text file, or of standard input for "-"; `remedy` is the advice if they are JSON lines."""
    lines = list(stdin_lines() if path == "-" else read_lines(path))
    if not lines:
        raise DataError(f"{named(path)}: no lines; there is nothing to score")
    refuse_json_lines(lines, named(path), remedy)
    return lines


def say_notes(metrics: Sequence[str], refs: Sequence[Sequence[str]]) -> None:
    """Prints notes about the references on stderr."""
    for note in notes(metrics, refs):
        tell(f"note: {note}")


def print_json(references: Sequence[str], **more: object) -> None:
    """Prints one object on standard output."""
    click.echo(json.dumps({"references": list(references), **more}, indent=2, ensure_ascii=False))
