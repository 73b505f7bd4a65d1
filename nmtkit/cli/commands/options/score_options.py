"""Options for the scoring commands."""

import click
import cloup

from nmtkit.cli import options
from nmtkit.cli.options import Decorator, Number, together

METRICS = (
    "accuracy",
    "bleu",
    "bleu1",
    "bleu2",
    "bleu3",
    "bracket-exact",
    "bracket-f1",
    "bracket-precision",
    "bracket-recall",
    "chrf",
    "chrf++",
    "cider",
    "f1",
    "gleu",
    "rouge1",
    "rouge2",
    "rougeL",
    "rougeLsum",
    "ter",
)
"""Values of --metrics that need no extra package; a user's file may register more."""
EXTRA_METRICS = ("bertscore", "bertscore-en")
"""Values of --metrics that need an extra package."""
TOKENIZERS = (
    "13a",
    "intl",
    "char",
    "zh",
    "ja-mecab",
    "ko-mecab",
    "none",
    "flores101",
    "flores200",
    "spm",
)
"""Values of --tokenize."""
SENTENCE_RULES = ("auto", "tags", "newline", "punctuation")
"""Values of --sentences."""
MAX_SAMPLES = 10_000


def _one_stdin(
    ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    if given.count("-") > 1:
        raise click.UsageError("only one HYP can be standard input (-); save the others to files")
    return given


hyps: Decorator = click.argument(
    "hyps", metavar="HYP...", nargs=-1, required=True, callback=_one_stdin
)
refs: Decorator = click.option(
    "--ref",
    "ref_paths",
    metavar="REF",
    multiple=True,
    required=True,
    help="File with the references. May be repeated.",
)
encoding: Decorator = options.encoding
as_json: Decorator = options.as_json("Print unrounded values as JSON instead of tables.")


_FROM_RECIPE = "the recipe's"


def tokenize_option(default: str | None, *more: str, hidden: bool = False) -> Decorator:
    """Returns the option that selects BLEU's tokenizer."""
    return click.option(
        *more,
        "--tokenize",
        type=click.Choice(TOKENIZERS),
        metavar="NAME",
        default=default,
        hidden=hidden,
        help=f"Tokenizer for BLEU and GLEU: {', '.join(TOKENIZERS)}. Default: {default or _FROM_RECIPE}.",
    )


_METRICS = ("-m", "--metrics")


class MetricsCommand(cloup.Command):
    """A command whose `--metrics` takes names separated by spaces, as in sacrebleu, or by commas."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Joins the metric names after `--metrics` with commas."""
        names: set[str] = set()
        if any(word in _METRICS for word in args):
            from nmtkit.cli.scoring.scoring import names_of_metrics

            names = names_of_metrics()
        joined: list[str] = []
        names_follow = False
        for before, word in zip(["", *args], args, strict=False):
            if names_follow and word in names:
                joined[-1] += f",{word}"
            else:
                joined.append(word)
                names_follow = before in _METRICS
        return super().parse_args(ctx, joined)


def scoring(summaries: bool) -> Decorator:
    """Returns the scoring options, whose values `nmtkit.cli.scoring.scoring.passes_settings` turns into objects.

    With `summaries`, the default metric is ROUGE, always with intervals. Otherwise, the default metrics are BLEU, chrF
    and TER, with intervals if there is more than one system.
    """
    return together(_metric_options(summaries), _significance_options(summaries))


def _metric_options(summaries: bool) -> Decorator:
    return cloup.option_group(
        "Metrics",
        click.option(
            *_METRICS,
            metavar="LIST",
            multiple=True,
            default=["rouge"] if summaries else ["bleu", "chrf", "ter"],
            show_default=True,
            help=f"Metrics to compute: {', '.join(METRICS)}, rouge (all four). "
            f"With an extra package: {', '.join(EXTRA_METRICS)}. "
            "Scores are printed in the order of LIST.",
        ),
        tokenize_option("13a", "-tok", hidden=summaries),
        click.option(
            "-lc",
            "--lowercase",
            is_flag=True,
            help="Ignore case in terms, BLEU, chrF and CIDEr-D. ROUGE always ignores it."
            if summaries
            else "Ignore case in BLEU, chrF and CIDEr-D (sacrebleu: -lc --chrf-lowercase). TER always ignores it.",
        ),
        click.option(
            "-w",
            "--width",
            type=Number(0, 9),
            default=2,
            show_default=True,
            help="Number of digits after the decimal point.",
        ),
        click.option(
            "--stem/--no-stem",
            default=True,
            show_default=True,
            hidden=not summaries,
            help="Compare word stems in ROUGE (Porter stemmer, for English).",
        ),
        click.option(
            "--words",
            type=click.Choice(["auto", "a-z0-9", "unicode"]),
            default="auto",
            show_default=True,
            hidden=not summaries,
            help="What ROUGE treats as words. a-z0-9: as in rouge-score; unicode: all letters, with each Chinese or "
            "Thai character as a word; auto: unicode if most letters in the references are not Latin.",
        ),
        click.option(
            "--sentences",
            type=click.Choice(SENTENCE_RULES),
            default="auto",
            show_default=True,
            hidden=not summaries,
            help="Where ROUGE-Lsum splits a text into sentences. tags: at <t>, <s> or <q>, which are removed; newline: "
            "at newlines; punctuation: after . ! ?; auto: the first of these that applies.",
        ),
    )


def _significance_options(summaries: bool) -> Decorator:
    return cloup.option_group(
        "Significance",
        click.option(
            "--paired-bs/--no-significance",
            "--significance",
            "significance",
            default=None,
            help="Paired bootstrap test against the first HYP, with 95% intervals. Default: on"
            + ("." if summaries else " if there is more than one HYP."),
        ),
        click.option(
            "--paired-ar",
            is_flag=True,
            help="Paired approximate randomization test instead of the bootstrap, without intervals.",
        ),
        click.option(
            "--n-samples",
            type=Number(1, MAX_SAMPLES),
            help="Number of samples for the test. Default: 1,000 for the bootstrap, 10,000 for randomization.",
        ),
        click.option(
            "--seed",
            type=Number(1),
            default=12345,
            show_default=True,
            help="Random seed for the test.",
        ),
    )
