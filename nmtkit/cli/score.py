"""`nmtkit score`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
import cloup

from nmtkit import console
from nmtkit.cli import scoring
from nmtkit.cli.figures import draw_lengths, show_lengths
from nmtkit.cli.options import picture_file
from nmtkit.corpus.json_records import EXTRACT_HINT
from nmtkit.metrics import METRICS, LengthBucket, Options, Resampling, by_length
from nmtkit.metrics.significance import SIGNIFICANT
from nmtkit.metrics.systems import ScoredSystem, bleu_table, require_equal_counts, score_systems, score_table
from nmtkit.pictures import picture_format

REMEDY = f"{EXTRACT_HINT} (only score-summaries reads a .jsonl file by itself)"


@click.command("score", cls=scoring.MetricsCommand)
@scoring.hyps
@cloup.option_group(
    "Common",
    scoring.refs,
    click.option("--source", metavar="SRC", help="Source text, for --by-length and for metrics that need it."),
    scoring.as_json,
)
@scoring.scoring(summaries=False)
@cloup.option_group(
    "By length",
    click.option("--by-length", "lengths_shown", is_flag=True, help="BLEU by words of the source, or of REF."),
    click.option("--edges", metavar="LIST", default="10,20,30,40,50", show_default=True, help="Ends of the ranges."),
    picture_file("--plot", meaning="Draw --by-length"),
)
def command(
    hyps: tuple[str, ...],
    ref_paths: tuple[str, ...],
    source: str | None,
    metrics: list[str],
    options: Options,
    draws: Resampling | None,
    width: int,
    lengths_shown: bool,
    edges: str,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Score translations as sacrebleu does: BLEU, chrF and TER, each also on one line to paste.

    HYP and REF are text files with one sentence per line, plain or gzip-compressed, UTF-8. One HYP may be "-" for
    standard input. Text should be detokenized; for tokenized text give --tokenize none. Several HYPs are compared with
    the first; * marks a difference with p below 0.05.

    comet needs --source and `pip install 'nmtkit[comet]'`, bertscore `pip install 'nmtkit[bertscore]'`.
    score-summaries scores summaries (ROUGE), score-alignments word alignments.

    \b
    Examples:
      nmtkit score output.de --ref test.de
      nmtkit score output.de --ref test.de -m bleu chrf -lc -w 1
      nmtkit translate < test.en | nmtkit score - --ref test.de --tokenize flores200
      nmtkit score baseline.de new.de --ref test.de --paired-ar
      nmtkit score rnn.de attention.de --ref test.de --source test.en --by-length --plot length.png
    """
    length_edges = _parse_edges(edges)
    needs_source = any(METRICS.get(name).needs == "texts and sources" for name in metrics)
    if source is not None and not lengths_shown and not needs_source:
        raise click.UsageError("--source is only read for --by-length; give both or neither")
    if plot is not None:
        if not lengths_shown:
            raise click.UsageError("--plot draws --by-length; give both or neither")
        picture_format(plot)

    paths = [*hyps, *ref_paths, *([source] if source is not None else [])]
    files = [(path, scoring.read_texts(path, REMEDY)) for path in paths]
    require_equal_counts(files)
    outputs, refs = files[: len(hyps)], [lines for _, lines in files[len(hyps) :]]
    source_lines = None if source is None else refs.pop()

    systems = score_systems(outputs, refs, metrics, options, draws, source_lines)
    measured = refs[0] if source_lines is None else source_lines
    buckets = [by_length(lines, refs, measured, length_edges, options) for _, lines in outputs if lengths_shown]
    scoring.say_notes(metrics, refs)
    if as_json:
        ranges = [{"by_length": [asdict(bucket) for bucket in row]} for row in buckets] or [{} for _ in systems]
        records = [system.record() | more for system, more in zip(systems, ranges, strict=True)]
        scoring.print_json(ref_paths, systems=records)
    else:
        _print_tables(systems, buckets, draws, width)
    if plot is not None:
        draw_lengths([system.title for system in systems], buckets, plot)


def _print_tables(
    systems: Sequence[ScoredSystem], buckets: Sequence[Sequence[LengthBucket]], draws: Resampling | None, width: int
) -> None:
    console.table("scores", *score_table(systems, width))
    if draws is not None and len(systems) > 1:
        interval = "" if systems[0].scores[0].interval is None else "; ± is the 95% interval"
        console.say(f"* p < {SIGNIFICANT} against {systems[0].title} ({draws.title}{interval})")
    head, rows = bleu_table(systems)
    if rows:
        console.table("BLEU in parts", head, rows)
    if buckets:
        show_lengths([system.title for system in systems], buckets)
    scoring.say_lines(systems, width)


def _parse_edges(text: str) -> list[int]:
    try:
        return [int(edge) for edge in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is not a list of whole numbers such as 10,20,30", param_hint="--edges"
        ) from error
