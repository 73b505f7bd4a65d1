"""Options and files of the commands that score."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import cloup

from nmtkit import console, metrics
from nmtkit.cli import options
from nmtkit.cli.options import Decorator, Number, collect, pass_as, together
from nmtkit.cli.reading import field_lines, stdin_lines
from nmtkit.core.errors import DataError
from nmtkit.corpus.json_records import refuse_json_lines
from nmtkit.corpus.text import read_lines
from nmtkit.metrics.metric import MAX_SAMPLES, text_metrics
from nmtkit.metrics.significance import SIGNIFICANCE_LEVEL
from nmtkit.metrics.systems import ScoredSystem, named


def _one_stdin(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    if given.count("-") > 1:
        raise click.UsageError("standard input (-) can be only one of the HYPs")
    return given


def require_one_stdin(*paths: str | Path | None) -> None:
    """Refuses standard input as two of the files that are read."""
    if [*map(str, paths)].count("-") > 1:
        raise click.UsageError("standard input (-) is read once, so only one of the files can be it")


hyps: Decorator = click.argument("hyps", metavar="HYP...", nargs=-1, required=True, callback=_one_stdin)
refs: Decorator = click.option(
    "--ref", "ref_paths", metavar="REF", multiple=True, required=True, help="Reference. May be repeated."
)
as_json: Decorator = options.as_json("Print JSON with all digits, no tables.")


def tokenize_option(default: str | None, *more: str, hidden: bool = False) -> Decorator:
    """The option of BLEU's tokenizer."""
    return click.option(
        *more,
        "--tokenize",
        type=click.Choice((*metrics.TOKENIZERS, *metrics.SPM_TOKENIZERS)),
        metavar="NAME",
        default=default,
        hidden=hidden,
        help=f"Tokenizer of BLEU and GLEU: {', '.join((*metrics.TOKENIZERS, *metrics.SPM_TOKENIZERS))}. "
        f"Default: {default or 'that of the recipe'}.",
    )


_METRICS = ("-m", "--metrics")


class MetricsCommand(cloup.Command):
    """A command whose `--metrics` takes names separated by blanks, as sacrebleu does, or by commas."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Joins the names of metrics that follow `--metrics`."""
        known = {name for key, metric in text_metrics().items() for name in (key, metric.family)}
        joined: list[str] = []
        names_follow = False
        for before, word in zip(["", *args], args, strict=False):
            if names_follow and word in known:
                joined[-1] += f",{word}"
            else:
                joined.append(word)
                names_follow = before in _METRICS
        return super().parse_args(ctx, joined)


def _names(ctx: click.Context, parameter: click.Parameter, given: Sequence[str]) -> list[str]:
    return metrics.metric_names(name.strip() for names in given for name in names.split(",") if name.strip())


def scoring(summaries: bool) -> Decorator:
    """The options of comparing texts: `metrics`, `options`, `draws` (None: no test) and `width`.

    `summaries`: ROUGE, always with intervals; else BLEU, chrF and TER, with intervals for several systems.
    """

    def draws(given: dict[str, Any]) -> metrics.Resampling | None:
        significance, paired_ar, n_samples, seed = map(given.pop, ("significance", "paired_ar", "n_samples", "seed"))
        require_one_stdin(*given["hyps"], *given["ref_paths"], given["source"])
        several = len(given["hyps"]) > 1
        if paired_ar and not several:
            raise click.UsageError("--paired-ar compares several HYPs")
        if paired_ar and significance is not None:
            raise click.UsageError("--paired-ar replaces the bootstrap: leave the other option out")
        if paired_ar:
            return metrics.Resampling("ar", n_samples or 10_000, seed)
        wanted = (summaries or several) if significance is None else significance
        if n_samples and not wanted:
            raise click.UsageError("--n-samples are draws of a test, and none is made: give --paired-bs, or not this")
        return metrics.Resampling("bs", n_samples or 1_000, seed) if wanted else None

    own = [name for name, metric in text_metrics().items() if not metric.extra]
    extra = [name for name, metric in text_metrics().items() if metric.extra]
    return together(
        cloup.option_group(
            "Metrics",
            click.option(
                *_METRICS,
                metavar="LIST",
                multiple=True,
                default=["rouge"] if summaries else ["bleu", "chrf", "ter"],
                show_default=True,
                callback=_names,
                help=f"{', '.join(own)}, rouge (all four); with an extra package {', '.join(extra)}. "
                "Scores are printed in this order.",
            ),
            tokenize_option("13a", "-tok", hidden=summaries),
            click.option(
                "-lc",
                "--lowercase",
                is_flag=True,
                help="Terms, BLEU, chrF and CIDEr-D ignore case. ROUGE always does."
                if summaries
                else "BLEU, chrF and CIDEr-D ignore case (sacrebleu: -lc --chrf-lowercase). TER always does.",
            ),
            click.option(
                "-w", "--width", type=Number(0, 9), default=2, show_default=True, help="Digits after the point."
            ),
            click.option(
                "--stem/--no-stem",
                default=True,
                show_default=True,
                hidden=not summaries,
                help="ROUGE compares English Porter stems.",
            ),
            click.option(
                "--sentences",
                type=click.Choice(metrics.SENTENCE_RULES),
                default="auto",
                show_default=True,
                hidden=not summaries,
                help="Where ROUGE-Lsum cuts sentences. tags: at <t>, <s> or <q>, which are removed; newline: at ends "
                "of lines; punctuation: after . ! ?; auto: the first of these that applies to a text.",
            ),
        ),
        cloup.option_group(
            "Significance",
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
                type=Number(1, MAX_SAMPLES),
                help="Draws of the test. Default: 1,000 of the bootstrap, 10,000 of the randomization.",
            ),
            click.option("--seed", type=Number(1), default=12345, show_default=True, help="Seed of the test."),
        ),
        collect(metrics.Options, "options"),
        pass_as("draws", draws),
    )


def read_texts(path: str | Path, remedy: str, field: str | None = None, joint: str = "\n") -> list[str]:
    """The lines of a text file, or of standard input for "-"; or one field of a .jsonl or .jsonl.gz file.

    `remedy` is the advice if a text file holds JSON lines; for a `field` the option that names it. `joint` joins the
    strings of a field that is a list; a newline keeps sentences apart for ROUGE-Lsum.
    """
    name = str(path)
    if field is not None and name.endswith((".jsonl", ".jsonl.gz")):
        lines = list(field_lines([Path(name)], field, remedy, joint))
    else:
        lines = list(stdin_lines() if name == "-" else read_lines(name))
        advice = remedy if field is None else f"give a file whose name ends in .jsonl, and {remedy} KEY"
        refuse_json_lines(lines, named(name), advice)
    if not lines:
        raise DataError(f"{named(name)}: no lines; there is nothing to score")
    return lines


def show_scores(systems: Sequence[ScoredSystem], draws: metrics.Resampling | None, width: int) -> None:
    """The table of scores, what its marks mean, and the scores on a line each, which are never wrapped."""
    columns = zip(*(system.scores for system in systems), strict=True)
    rows = [[cells[0].score.name, *(_cell(cell, width) for cell in cells)] for cells in columns]
    console.table("scores", ["metric", *(system.title for system in systems)], rows)
    marks = ["± is half the 95% confidence interval"] if systems[0].scores[0].interval is not None else []
    if draws is not None and len(systems) > 1:
        test = "approximate randomization" if draws.kind == "ar" else "paired bootstrap"
        marks.append(f"* p < {SIGNIFICANCE_LEVEL} against {systems[0].title} ({test})")
    if marks:
        console.say("; ".join(marks))
    for system in systems:
        console.say(f"\n{system.title}:" if len(systems) > 1 else "")
        for cell in system.scores:
            console.say(cell.line(width))


def _cell(comparison: metrics.Comparison, width: int) -> str:
    text = f"{comparison.score.value:.{width}f}"
    if comparison.interval is not None:
        text += f" ± {comparison.interval:.{width}f}"
    if comparison.p_value is not None:
        text += f" (p {comparison.p_value:.3f}{'*' if comparison.p_value < SIGNIFICANCE_LEVEL else ''})"
    return text


def print_json(references: Sequence[str], **more: object) -> None:
    """Prints one object on standard output."""
    click.echo(json.dumps({"references": list(references), **more}, indent=2, ensure_ascii=False))
