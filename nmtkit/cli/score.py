"""`nmtkit score`: how good outputs are, with signatures, significance and scores by length; alignment error rates."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from click.core import ParameterSource

from nmtkit import console
from nmtkit.cli.numbers import Number
from nmtkit.cli.reading import stdin_lines
from nmtkit.cli.reporting import draw_lengths, show_lengths
from nmtkit.cli.score_alignments import score_alignments
from nmtkit.cli.score_summaries import SIGNIFICANT, Bootstrap, Fields, score_summaries
from nmtkit.data.reading import WRITE_OUT, read_lines, refuse_json_lines
from nmtkit.errors import DataError
from nmtkit.metrics import (
    MOST_SAMPLES,
    ROUGE_METRICS,
    SENTENCE_RULES,
    TOKENIZERS,
    Comparison,
    LengthBucket,
    Options,
    Score,
    by_length,
    compare,
    metric_names,
    outside_rouge,
    score_all,
)
from nmtkit.pictures import picture_format

# What the files may hold, by the option that says so (none: text), and the options that go with some of it only.
TEXT, ALIGNMENT, SUMMARY = "", "--alignment", "--summary"
ONLY_FOR = {
    **dict.fromkeys(("hyp_base", "ref_base", "reverse_hyp"), (ALIGNMENT,)),
    **dict.fromkeys(("lengths_shown", "edges", "plot"), (TEXT,)),
    **dict.fromkeys(("source", "metrics", "tokenize", "lowercase", "stem", "sentences"), (TEXT, SUMMARY)),
    **dict.fromkeys(("significance", "n_samples", "seed"), (TEXT, SUMMARY)),
    **dict.fromkeys(("wanted", "wanted_field", "summary_field", "article_field"), (SUMMARY,)),
}


@click.command("score")
@click.argument("hyps", metavar="HYP...", nargs=-1, required=True)
@click.option("--ref", "ref_paths", metavar="REF", multiple=True, required=True, help="Reference; repeat for several.")
@click.option(
    "--source",
    metavar="SRC",
    help="Source text: its lengths sort the lines of --by-length; with --summary the articles of the quality report.",
)
@click.option(
    "--metrics",
    metavar="LIST",
    default="bleu,chrf,ter,rouge",
    show_default="bleu,chrf,ter,rouge; with --summary rouge",
    help="Of bleu, chrf, chrf++, ter, rouge1, rouge2, rougeL, rougeLsum, rouge (all four), in the order to print.",
)
@click.option("--tokenize", type=click.Choice(TOKENIZERS), default="13a", show_default=True, help="Tokenizer of BLEU.")
@click.option("--lowercase", is_flag=True, help="BLEU, chrF and --wanted ignore case (TER and ROUGE always do).")
@click.option("--stem/--no-stem", default=True, show_default=True, help="ROUGE compares English Porter stems.")
@click.option(
    "--sentences",
    type=click.Choice(SENTENCE_RULES),
    default="auto",
    show_default=True,
    help="Sentences of ROUGE-Lsum. tags: cut at <t>, <s> or <q>, which are removed; punctuation: after . ! ?; newline: "
    "each line of a file is one sentence (in JSONL: at newlines); auto: the first of tags, newline, punctuation that "
    "applies to a text.",
)
@click.option("--by-length", "lengths_shown", is_flag=True, help="BLEU by words of the source, else of the first REF.")
@click.option("--edges", metavar="LIST", default="10,20,30,40,50", show_default=True, help="Ends of the length ranges.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw --by-length as FILE.png, .svg, .pdf or .html.",
)
@click.option(
    "--significance/--no-significance",
    default=None,
    help="Paired bootstrap against the first HYP, with 95% intervals. Default: on with several HYPs or --summary.",
)
@click.option(
    "--n-samples", type=Number(1, MOST_SAMPLES), default=1000, show_default=True, help="Draws of the bootstrap."
)
@click.option("--seed", type=Number(1), default=12345, show_default=True, help="Seed of the bootstrap.")
@click.option("--summary", is_flag=True, help="HYPs and REFs are summaries: ROUGE with intervals, quality by --source.")
@click.option("--wanted", metavar="JSONL", help="Lists of words: print the share that stand in the summaries.")
@click.option(
    "--wanted-field", metavar="KEY", default="unseen", show_default=True, help="Where --wanted has its lists."
)
@click.option(
    "--summary-field", metavar="KEY", default="summary", show_default=True, help="Summaries in HYPs and REFs of JSONL."
)
@click.option(
    "--article-field", metavar="KEY", default="article", show_default=True, help="Articles in a --source of JSONL."
)
@click.option("--alignment", is_flag=True, help="HYPs and REF are word alignments: print alignment error rates.")
@click.option(
    "--hyp-base",
    type=Number(0, 1),
    help="What the HYPs count words from. Default: 0 (naacl files: 1). With --alignment.",
)
@click.option("--ref-base", type=Number(0, 1), help="The same for REF.")
@click.option("--reverse-hyp", is_flag=True, help="The HYPs' links are target-source. With --alignment.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with all digits instead of tables.")
def command(
    hyps: tuple[str, ...],
    ref_paths: tuple[str, ...],
    source: str | None,
    metrics: str,
    tokenize: str,
    lowercase: bool,
    stem: bool,
    sentences: str,
    lengths_shown: bool,
    edges: str,
    plot: Path | None,
    significance: bool | None,
    n_samples: int,
    seed: int,
    summary: bool,
    wanted: str | None,
    wanted_field: str,
    summary_field: str,
    article_field: str,
    alignment: bool,
    hyp_base: int | None,
    ref_base: int | None,
    reverse_hyp: bool,
    as_json: bool,
) -> None:
    """Score outputs against references: BLEU, chrF, TER and ROUGE, each with its signature.

    HYP and REF are text files with one example per line, plain or gzip-compressed, UTF-8; one HYP may be "-" for
    standard input. Detokenized text is expected; give --tokenize none for text that is tokenized already. Several
    HYPs are compared with the first; * marks a difference from it with p below 0.05.

    With --summary the table shows ROUGE-1, -2, -L and -Lsum of Google's rouge-score with 95% intervals; of several
    references the one with the highest F1 counts. --source adds a report on the summaries themselves: how much of them
    is new or copied from the article, how much they repeat, how long they are, how much of the article they use. A
    file whose name ends in .jsonl or .jsonl.gz is read as JSON, an object on each line.

    With --alignment the files hold word alignments, and the table shows the alignment error rate (Och and Ney 2003)
    with precision and recall. Two formats are known by their looks: pharaoh (also talp), a line for each sentence pair,
    "0-0 1-2 2?2", where "?" or "p" instead of "-" makes a link of REF only possible (of a HYP every link counts); and
    naacl, a line for each link, "PAIR SOURCE TARGET S", S or P, pairs counted from 1.

    \b
    Examples:
      nmtkit score output.de --ref test.de
      nmtkit translate < test.en | nmtkit score - --ref test.de --metrics bleu,chrf
      nmtkit score baseline.de new.de --ref test.de --n-samples 2000
      nmtkit score rnn.de attention.de --ref test.de --source test.en --by-length --plot length.png
      nmtkit score --summary mine.txt --ref gold0.txt --ref gold1.txt --json
      nmtkit score --summary lead.txt mine.txt --ref gold.txt --source articles.txt
      nmtkit score --summary mine.txt --ref test.jsonl.gz --source test.jsonl.gz --wanted test.jsonl.gz
      nmtkit score --alignment mine.align --ref test.align
      nmtkit score --alignment giza.talp fast_align.talp --ref gold.wa --ref-base 1
    """
    if alignment and summary:
        raise click.UsageError("--alignment and --summary say different things of the same files; give one")
    _refuse_options_of_another_kind(ALIGNMENT if alignment else SUMMARY if summary else TEXT)
    if hyps.count("-") > 1:
        raise click.UsageError("standard input (-) can be only one of the HYPs")
    if alignment:
        if len(ref_paths) > 1:
            raise click.UsageError("--alignment takes one --ref")
        systems = [(_name(path), _read(path)) for path in hyps]
        gold = (ref_paths[0], _read(ref_paths[0]))
        score_alignments(systems, _titles(hyps), gold, hyp_base, ref_base, reverse_hyp, as_json)
        return
    if summary and _is_default("metrics"):
        metrics = "rouge"
    names = metric_names(name.strip() for name in metrics.split(",") if name.strip())
    options = Options(tokenize, lowercase, stem, sentences)
    if summary:
        bootstrap = None if significance is False else Bootstrap(n_samples, seed)
        fields = Fields(summary_field, article_field, wanted_field)
        score_summaries(hyps, _titles(hyps), ref_paths, source, wanted, fields, names, options, bootstrap, as_json)
        return
    length_edges = _parse_edges(edges)
    if source is not None and not lengths_shown:
        raise click.UsageError("--source is only read for --by-length; give both or neither")
    if plot is not None:
        if not lengths_shown:
            raise click.UsageError("--plot draws --by-length; give both or neither")
        picture_format(plot)

    systems = [(path, _read(path)) for path in hyps]
    n_lines = len(systems[0][1])
    refs = [_read(path) for path in ref_paths]
    others = [*systems[1:], *zip(ref_paths, refs, strict=True)]
    if source is not None:
        source_lines = _read(source)
        others.append((source, source_lines))
    for path, lines in others:
        if len(lines) != n_lines:
            raise DataError(
                f"different line counts: {_name(hyps[0])} has {n_lines} lines, {_name(path)} has {len(lines)}; "
                "every line of one must belong to the same line of the other"
            )

    rows: list[list[Score]]
    comparisons: list[list[Comparison]] | None = None
    if significance or (significance is None and len(systems) > 1):
        comparisons = compare(systems, refs, names, options, n_samples, seed)
        rows = [[cell.score for cell in row] for row in comparisons]
    else:
        rows = [score_all(lines, refs, names, options) for _, lines in systems]
    buckets: list[list[LengthBucket]] | None = None
    if lengths_shown:
        measured = refs[0] if source is None else source_lines
        buckets = [by_length(lines, refs, measured, length_edges, options) for _, lines in systems]

    dropped = sum(outside_rouge(ref) for ref in refs)
    if dropped and any(name in ROUGE_METRICS for name in names):
        console.say(
            f"note: {dropped} of {n_lines * len(refs)} reference lines hold letters or digits other than a-z and 0-9, "
            "which rouge-score drops; compare their ROUGE only with figures made the same way",
            stderr=True,
        )
    if as_json:
        _print_json(hyps, ref_paths, rows, comparisons, buckets)
    else:
        _print_tables(hyps, rows, comparisons, buckets)
    if plot is not None and buckets is not None:
        draw_lengths(_titles(hyps), buckets, plot)


def _refuse_options_of_another_kind(kind: str) -> None:
    for parameter in click.get_current_context().command.params:
        kinds = ONLY_FOR.get(parameter.name or "", (kind,))
        if kind not in kinds and not _is_default(parameter.name or ""):
            reason = f"does not go with {kind}" if kind else f"only goes with {kinds[0]}"
            raise click.UsageError(f"{parameter.opts[0]} {reason}")


def _is_default(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.DEFAULT


def _parse_edges(text: str) -> list[int]:
    try:
        return [int(edge) for edge in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is not a list of whole numbers such as 10,20,30", param_hint="--edges"
        ) from error


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def _read(path: str) -> list[str]:
    lines = list(stdin_lines() if path == "-" else read_lines(path))
    if not lines:
        raise DataError(f"{_name(path)}: no lines; there is nothing to score")
    refuse_json_lines(lines, _name(path), f"{WRITE_OUT} (only --summary reads a .jsonl file by itself)")
    return lines


def _print_json(
    hyps: Sequence[str],
    ref_paths: Sequence[str],
    rows: list[list[Score]],
    comparisons: list[list[Comparison]] | None,
    buckets: list[list[LengthBucket]] | None,
) -> None:
    systems = []
    for i, path in enumerate(hyps):
        scores = [asdict(score) for score in rows[i]]
        if comparisons is not None:
            for entry, cell in zip(scores, comparisons[i], strict=True):
                entry |= {"mean": cell.mean, "interval": cell.interval, "p_value": cell.p_value}
        system: dict[str, object] = {"system": path, "scores": scores}
        if buckets is not None:
            system["by_length"] = [asdict(bucket) for bucket in buckets[i]]
        systems.append(system)
    click.echo(json.dumps({"references": list(ref_paths), "systems": systems}, indent=2, ensure_ascii=False))


def _print_tables(
    hyps: Sequence[str],
    rows: list[list[Score]],
    comparisons: list[list[Comparison]] | None,
    buckets: list[list[LengthBucket]] | None,
) -> None:
    titles = _titles(hyps)
    table = []
    for column, score in enumerate(rows[0]):
        if comparisons is None:
            cells = [f"{row[column].value:.2f}" for row in rows]
        else:
            cells = [_cell(row[column]) for row in comparisons]
        table.append([score.name, *cells])
    console.table("scores", ["metric", *titles], table)
    if comparisons is not None and len(hyps) > 1:
        console.say(f"* p < {SIGNIFICANT} against {titles[0]} (paired bootstrap; ± is the 95% interval)")
    if buckets is not None:
        show_lengths(titles, buckets)
    console.table("signatures", ["metric", "signature"], [[score.name, score.signature] for score in rows[0]])


def _titles(hyps: Sequence[str]) -> Sequence[str]:
    """File names without their folders where that tells the systems apart: whole paths make wide tables."""
    names = [Path(path).name for path in hyps]
    return names if len(set(names)) == len(set(hyps)) else hyps


def _cell(comparison: Comparison) -> str:
    text = f"{comparison.score.value:.2f} ± {comparison.interval:.2f}"
    if comparison.p_value is None:
        return text
    return f"{text} (p {comparison.p_value:.3f}{'*' if comparison.p_value < SIGNIFICANT else ''})"
