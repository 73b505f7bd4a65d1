"""`nmtkit translate` and `nmtkit summarize`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import click
import cloup

from nmtkit.cli import options
from nmtkit.cli.commands.options import search_options
from nmtkit.cli.options import FILE, Decorator, Number

_one_file = partial(
    click.option, type=FILE, metavar="FILE", multiple=True, callback=options.only_one
)


scores_option: Decorator = click.option(
    "--scores", is_flag=True, help="Print score and log-probability before an output."
)


def decoding_options(
    common: Sequence[Decorator], *groups: Decorator, output: Sequence[Decorator] = ()
) -> Decorator:
    """Returns the options of commands that decode; `common` and `output` are added to the groups Common and Output."""
    return options.together(
        options.files,
        cloup.option_group(
            "Common",
            options.models,
            search_options.checkpoint,
            options.outputs,
            search_options.search_flags("beam_size"),
            search_options.n_best,
            *common,
            options.devices,
        ),
        *groups,
        search_options.search_groups(search_options.engine, search_options.workers),
        cloup.option_group("Output", search_options.format_option, *output),
        options.encoding,
        options.quiet,
    )


@cloup.command("translate")
@decoding_options(
    [
        search_options.language,
        scores_option,
        options.as_json("Print a JSON object for each line."),
        click.option(
            "--split-sentences", is_flag=True, help="Translate each sentence of a line separately."
        ),
        click.option(
            "--interactive", is_flag=True, help="Prompt for lines; show alignment and alternatives."
        ),
    ],
    cloup.option_group(
        "Constraints",
        _one_file("--terms", help="Glossary with lines of the form SOURCE TAB TARGET."),
        click.option(
            "--prefix",
            is_flag=True,
            help="Input lines are SOURCE TAB PREFIX; each output starts with its PREFIX.",
        ),
        click.option(
            "--jsonl",
            is_flag=True,
            help='Read JSON objects with "source" and, optionally, "prefix", "must", "must_not" and "in_order".',
        ),
    ),
    output=[
        click.option(
            "--replace-unknown",
            is_flag=True,
            help="Replace each <unk> with the source word that gets the most attention.",
        ),
        _one_file("--dictionary", help="Dictionary for --replace-unknown, same format as --terms."),
    ],
)
def translate_command(**values: Any) -> None:
    """Translate FILEs, or standard input: one output line per input line, in order.

    FILEs are read as one text; with --output-dir, each FILE has its own output. --n-best K prints "NUMBER TAB
    SCORE TAB LOG-PROBABILITY TAB TRANSLATION", with lines counted from 1. The score is the log-probability (natural
    log) after the length penalty. `nmtkit guide decoding` explains constraints.

    \b
    Examples:
      nmtkit translate input.txt -o output.txt
      nmtkit translate docs/*.txt --output-dir translated
      cat input.txt | nmtkit translate --n-best 3 --length-penalty gnmt:0.6
      nmtkit translate --json input.txt | jq .best.score
      nmtkit translate -m runs/seed1 -m runs/seed2 input.txt
      nmtkit translate --samples 5 --top-p 0.9 --temperature 0.8 --seed 7 input.txt
    """
    from nmtkit.cli.inference.translate import run_translate

    run_translate(**values)


@cloup.command("summarize")
@decoding_options(
    [
        search_options.language,
        options.as_json(
            "Print a JSON object for each article, with scores, tokens and copied spans."
        ),
    ],
    cloup.option_group(
        "Input",
        click.option(
            "--per-file",
            is_flag=True,
            help="Read each FILE, or standard input, as one article with many lines.",
        ),
        click.option(
            "--stories",
            type=FILE,
            metavar="DIR",
            help="Read the CNN/DailyMail .story files in DIR, without their highlights.",
        ),
        click.option(
            "--max-source-tokens",
            type=Number(1),
            metavar="N",
            help="Read at most N tokens of an article. Default: as in training.",
        ),
        click.option(
            "--window",
            type=Number(1),
            metavar="N",
            help="Read whole articles, at most N tokens at a time.",
        ),
        click.option(
            "--lead",
            type=Number(1),
            metavar="N",
            help="Print the first N sentences of each article, without a model.",
        ),
    ),
    cloup.option_group(
        "Length limits (--min-length and --max-length count tokens)",
        click.option(
            "--sentences",
            type=Number(1),
            metavar="N",
            help="Keep at most the first N sentences of a summary.",
        ),
        click.option(
            "--words",
            type=Number(1),
            metavar="N",
            help="Keep as many sentences as fit into N words.",
        ),
    ),
)
def summarize_command(**values: Any) -> None:
    """Summarize FILEs, or standard input: one output line per article, in order.

    FILEs, plain or compressed, are read as one text with one article per line. With --per-file, each FILE is one
    article, with its paragraphs on separate lines; --output-dir then writes one file per article. The summary of an
    empty line is an empty line. --n-best K prints "NUMBER TAB SCORE TAB LOG-PROBABILITY TAB SUMMARY", with articles
    counted from 1. A model that was trained on the beginnings of articles (data.over_long: truncate) reads the same
    number of tokens here; --window reads whole articles.
    `nmtkit guide decoding` explains windows, lengths, copied spans, sampling and ensembles.

    \b
    Examples:
      nmtkit summarize articles.txt -o summaries.txt
      nmtkit summarize --per-file --sentences 3 news/*.txt --output-dir summaries
      nmtkit summarize -m runs/mine test.jsonl.gz#article -o summaries.txt
      cat articles.txt | nmtkit summarize --min-length 35 --max-length 100 --no-repeat-ngram 3
      nmtkit summarize --window 400 --words 100 reports.txt -o short.txt
      nmtkit summarize --json articles.txt | jq '.best.copied_spans[].text'
    """
    from nmtkit.cli.inference.translate import run_summarize

    run_summarize(**values)
