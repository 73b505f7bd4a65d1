"""`nmtkit align` and `nmtkit rescore`: word alignments and scores of existing translations."""

from typing import Any

import click
import cloup

from nmtkit.cli import options
from nmtkit.cli.commands.options import search_options
from nmtkit.cli.options import FILE, NEW_FILE, Decorator, Number

SYMMETRIZATIONS = (
    "intersection",
    "union",
    "grow-diag",
    "grow-diag-final",
    "grow-diag-final-and",
    "grow-diag-strict",
    "grow-diag-final-strict",
)
"""Values of --symmetrize."""


def _common(target: str, *more: Decorator, source: str = "") -> Decorator:
    """Returns the option group Common; `target` is the help text of `--target`.

    If `source` is given, `--source` is optional, and `source` is appended to its help text.
    """
    return cloup.option_group(
        "Common",
        options.models,
        search_options.checkpoint,
        search_options.language,
        click.option(
            "--source", required=not source, type=FILE, help=f"Source text, line by line.{source}"
        ),
        click.option("--target", required=True, type=FILE, help=target),
        options.output,
        *more,
        options.device,
    )


@cloup.command("align")
@_common(
    "Translations of the source, line by line.",
    click.option(
        "--threshold",
        type=Number(0, 1, whole=False, above=True),
        help="Link every pair of words with at least this weight. "
        "Default: link each target word to the source word with the largest weight.",
    ),
    click.option(
        "--soft",
        type=NEW_FILE,
        metavar="FILE",
        help="Also write the attention weights to FILE.json or FILE.npz.",
    ),
    click.option(
        "--shortlist",
        "likely",
        type=NEW_FILE,
        metavar="FILE",
        help="Also write a shortlist for `translate --shortlist`.",
    ),
)
@cloup.option_group(
    "Words",
    click.option(
        "--source-words",
        type=FILE,
        metavar="FILE",
        help="Source text with the words separated by spaces (l' homme). Default: --source.",
    ),
    click.option(
        "--target-words",
        type=FILE,
        metavar="FILE",
        help="Target text with the words separated by spaces. Default: --target.",
    ),
)
@cloup.option_group(
    "Two directions",
    options.run_option(
        "--reverse-model",
        help="Run that translates from target to source; its alignment is combined with that of the first run.",
    ),
    click.option(
        "--symmetrize",
        "method",
        type=click.Choice(SYMMETRIZATIONS),
        metavar="METHOD",
        help=f"How to combine the two directions: {', '.join(SYMMETRIZATIONS)}. "
        "Default with --reverse-model: grow-diag.",
    ),
)
@cloup.option_group(
    "Attention, search and speed",
    search_options.layer,
    search_options.head,
    search_options.search,
    search_options.precision("fp32"),
    search_options.batch_tokens,
    options.threads,
)
@options.encoding
@options.quiet
def align_command(**values: Any) -> None:
    """Align the words of existing translations using a model's attention.

    Prints one line per pair in the Pharaoh format: "i-j" links source word i and target word j, counted from 0. A pair
    with an empty side gets an empty line. Words are separated by white space, however the tokenizer splits them. The
    attention of subwords is merged into words: the columns of a source word are added, and the rows of a target word
    are averaged. Each target word is linked to the source word with the largest weight.

    --symmetrize combines the alignments of two directions. With --reverse-model, they come from two models; otherwise,
    both come from the same attention, and the second links each source word to the target word that attends to it most.
    grow-diag starts from the common links and adds neighbouring links; -final also adds links of words that have no
    link yet; -final-and and -strict add a link only if neither of its words has one yet.

    --soft FILE.json is a list with one object per pair: source and target words, and "weights" with one row per target
    word; FILE.npz has one array per pair: "1", "2", ... --reverse-model adds "reverse_weights", or the arrays
    "1.reverse", ..., with one row per source word.

    \b
    Examples:
      nmtkit align --source test.en --target test.fr -o test.align
      nmtkit align -m runs/en-fr --reverse-model runs/fr-en --source test.en --target test.fr -o test.align
      nmtkit align --source test.en --target test.fr --source-words test.tok.en --target-words test.tok.fr
      nmtkit align --source test.en --target test.fr --soft test.npz --threshold 0.3 -o test.align
      nmtkit align --source train.en --target train.fr --shortlist en-fr.shortlist -o train.align
    """
    from nmtkit.cli.inference.pairs import run_align

    run_align(**values)


@cloup.command("rescore")
@_common(
    "Translations or summaries of the source, line by line; or the output of `translate --json` or `summarize --json`.",
    options.as_json("Print a JSON object for each pair, with the scores of its tokens."),
    search_options.search_flags("length_penalty"),
    search_options.language_model,
    search_options.search,
    source=" Not needed for a language model.",
)
@cloup.option_group(
    "Speed", search_options.precision("fp32"), search_options.batch_tokens, options.threads
)
@options.encoding
@options.quiet
def rescore_command(**values: Any) -> None:
    """Print a model's log-probabilities for existing translations or summaries; for a language model, for any text.

    Prints "SCORE TAB LOG-PROBABILITY" for each pair, with the same values as `translate --scores`. The score is the
    log-probability after the length penalty; both are in nats. The total log-probability and the perplexity go to
    stderr. If the model can copy, a source word outside the vocabulary gets the probability of copying it.

    Plain text is tokenized again. The search may have produced the same text from different subwords, with a different
    score. The output of `translate --json` contains the tokens, so it is rescored exactly.

    \b
    Examples:
      nmtkit rescore --source test.en --target test.de -o scores.tsv
      nmtkit translate --json test.en -o found.jsonl && nmtkit rescore --source test.en --target found.jsonl
      nmtkit rescore -m runs/language-model --target test.en
    """
    from nmtkit.cli.inference.pairs import run_rescore

    run_rescore(**values)
