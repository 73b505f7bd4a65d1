"""`nmtkit score` and `nmtkit score-alignments`."""

from typing import Any

import click
import cloup

from nmtkit.cli.commands.options import score_options
from nmtkit.cli.options import Number, only_one, picture_file, table_format


@click.command("score", cls=score_options.MetricsCommand)
@score_options.hyps
@cloup.option_group(
    "Common",
    score_options.refs,
    click.option(
        "--source",
        metavar="SRC",
        help="Source text for --by-length, --known-by and metrics that need it.",
    ),
    click.option(
        "--known-by",
        metavar="RUN",
        help="Score only lines whose SRC and REF contain no words unknown to RUN.",
    ),
    score_options.as_json,
    score_options.encoding,
    table_format,
)
@score_options.scoring(summaries=False)
@cloup.option_group(
    "By length",
    click.option(
        "--by-length",
        "lengths_shown",
        is_flag=True,
        help="Show BLEU by sentence length, counted in words of the source or, without --source, of REF.",
    ),
    picture_file("--plot", meaning="Draw the table of --by-length into FILE"),
)
def score_command(**values: Any) -> None:
    """Score translations as sacrebleu does: BLEU, chrF and TER, each also on one line for pasting into a paper.

    HYP and REF are text files with one sentence per line, plain or compressed. One HYP may be "-" for
    standard input. Text should be detokenized; for tokenized text, use --tokenize none. Several HYPs are compared with
    the first; * marks a difference with p below 0.05.

    accuracy is the share of correct labels. A line must have as many labels as its reference, separated by white space.
    bertscore needs `pip install 'nmtkit[bertscore]'`; COMET runs in a separate environment (`nmtkit guide second`). Use
    score-summaries for summaries (ROUGE), and score-alignments for word alignments.

    --known-by skips lines whose source or reference contains a word unknown to that run, as in "No UNK" in table 1 of
    Bahdanau et al. 2015, where models were also kept from generating unknown words (translate --search
    forbid_unknown=true).

    \b
    Examples:
      nmtkit score output.de --ref test.de
      nmtkit translate < test.en | nmtkit score - --ref test.de --tokenize flores200
      nmtkit score baseline.de new.de --ref test.de --paired-ar
      nmtkit score baseline.de new.de --ref test.de --format latex
      nmtkit score rnn.de attention.de --ref test.de --source test.en --by-length --plot length.png
    """
    from nmtkit.cli.scoring.score import run_score

    run_score(**values)


@click.command("score-alignments")
@score_options.hyps
@click.option(
    "--ref",
    metavar="REF",
    multiple=True,
    required=True,
    callback=only_one,
    help="File with the gold alignment.",
)
@click.option(
    "--hyp-base",
    type=Number(0, 1),
    help="Whether HYPs count words from 0 or 1. Default: 0 (naacl: 1).",
)
@click.option(
    "--ref-base",
    type=Number(0, 1),
    help="Whether REF counts words from 0 or 1. Default: 0 (naacl: 1).",
)
@click.option("--reverse-hyp", is_flag=True, help="Read the links of the HYPs as TARGET-SOURCE.")
@score_options.as_json
def score_alignments_command(**values: Any) -> None:
    """Score word alignments: alignment error rate (Och and Ney 2003), precision and recall. Lower AER is better.

    The pharaoh format (also called talp) has one line per sentence pair, such as "0-0 1-2 2?2". In REF, "?" or "p"
    instead of "-" marks a possible link; in a HYP every link counts. The naacl format has one line per link, "PAIR
    SOURCE TARGET S", with S (sure) or P (possible), and pairs counted from 1. One HYP may be "-" for standard input.

    \b
    Examples:
      nmtkit score-alignments mine.align --ref test.align
      nmtkit score-alignments giza.talp fast_align.talp --ref gold.wa --ref-base 1
    """
    from nmtkit.cli.scoring.score import run_score_alignments

    run_score_alignments(**values)
