"""`nmtkit score-summaries`."""

from typing import Any

import click
import cloup

from nmtkit.cli.commands.options import score_options


@click.command("score-summaries", cls=score_options.MetricsCommand)
@score_options.hyps
@cloup.option_group(
    "Common",
    score_options.refs,
    click.option("--source", metavar="SRC", help="File with the articles; adds a quality report."),
    click.option(
        "--terms",
        metavar="JSONL",
        help="File with a list of terms for each article; adds term recall.",
    ),
    score_options.as_json,
    score_options.encoding,
)
@score_options.scoring(summaries=True)
def score_summaries_command(**values: Any) -> None:
    """Score summaries: ROUGE as in Google's rouge-score, with 95% intervals, and a report on the summaries.

    HYP and REF have one summary per line, plain or compressed. One HYP may be "-" for standard input. A .jsonl or
    .jsonl.gz file has one JSON object per line. FILE#FIELD selects the field; the default is "summary", for --source
    "article", and for --terms "unseen". ROUGE uses the reference with the highest F1. Several HYPs are compared with
    the first; * marks a difference with p below 0.05.

    --source adds a report below the scores: novel n-grams, words copied from the article, repeated trigrams, length,
    and how much of the article the summaries use. The report includes hints about good values.

    \b
    Examples:
      nmtkit score-summaries mine.txt --ref gold0.txt --ref gold1.txt --json
      nmtkit score-summaries lead.txt mine.txt --ref gold.txt --source articles.txt
      nmtkit score-summaries mine.txt --ref test.jsonl.gz --source test.jsonl.gz --terms test.jsonl.gz
    """
    from nmtkit.cli.scoring.score_summaries import run_score_summaries

    run_score_summaries(**values)
