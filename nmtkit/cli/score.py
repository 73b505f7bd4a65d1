"""`nmtkit score`: how good outputs are, with signatures, significance and scores by length; alignment error rates."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from click.core import ParameterSource

from nmtkit import console
from nmtkit.cli.reading import stdin_lines
from nmtkit.cli.reporting import draw_lengths, show_lengths
from nmtkit.cli.score_alignments import score_alignments
from nmtkit.data.corpus import read_lines
from nmtkit.errors import DataError
from nmtkit.metrics import (
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
from nmtkit.pictures import check_path

SIGNIFICANT = 0.05
# Options that mean nothing without --alignment, and those that go with it and without; the others are for text.
FOR_ALIGNMENTS = {"hyp_base", "ref_base", "reverse_hyp"}
FOR_BOTH = {"hyps", "ref_paths", "alignment", "as_json"}


@click.command("score")
@click.argument("hyps", metavar="HYP...", nargs=-1, required=True)
@click.option("--ref", "ref_paths", metavar="REF", multiple=True, required=True, help="Reference; repeat for several.")
@click.option("--source", metavar="SRC", help="Source text; its lengths sort the lines of --by-length.")
@click.option(
    "--metrics",
    metavar="LIST",
    default="bleu,chrf,ter,rouge",
    show_default=True,
    help="Of bleu, chrf, chrf++, ter, rouge1, rouge2, rougeL, rougeLsum, rouge (all four), in the order to print.",
)
@click.option("--tokenize", type=click.Choice(TOKENIZERS), default="13a", show_default=True, help="Tokenizer of BLEU.")
@click.option("--lowercase", is_flag=True, help="BLEU and chrF ignore case (TER and ROUGE always do).")
@click.option("--stem/--no-stem", default=True, show_default=True, help="ROUGE compares English Porter stems.")
@click.option(
    "--sentences",
    type=click.Choice(SENTENCE_RULES),
    default="auto",
    show_default=True,
    help="Sentences of ROUGE-Lsum. auto: cut at <t> or <s> tags, which are removed, else after . ! ?; newline: each "
    "line of a file is one sentence.",
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
    help="Paired bootstrap against the first HYP, with 95% intervals. Default: on with several HYPs.",
)
@click.option(
    "--n-samples", type=click.IntRange(min=1), default=1000, show_default=True, help="Draws of the bootstrap."
)
@click.option("--seed", type=click.IntRange(min=1), default=12345, show_default=True, help="Seed of the bootstrap.")
@click.option("--alignment", is_flag=True, help="HYPs and REF are word alignments: print alignment error rates.")
@click.option(
    "--hyp-base",
    type=click.IntRange(0, 1),
    help="What the HYPs count words from. Default: 0 (naacl files: 1). With --alignment.",
)
@click.option("--ref-base", type=click.IntRange(0, 1), help="The same for REF.")
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
      nmtkit score summaries.txt --ref gold0.txt --ref gold1.txt --metrics rouge --json
      nmtkit score --alignment mine.align --ref test.align
      nmtkit score --alignment giza.talp fast_align.talp --ref gold.wa --ref-base 1
    """
    _refuse_options_of_the_other_kind(alignment)
    if hyps.count("-") > 1:
        raise click.UsageError("standard input (-) can be only one of the HYPs")
    if alignment:
        if len(ref_paths) > 1:
            raise click.UsageError("--alignment takes one --ref")
        systems = [(_name(path), _read(path)) for path in hyps]
        gold = (ref_paths[0], _read(ref_paths[0]))
        score_alignments(systems, _titles(hyps), gold, hyp_base, ref_base, reverse_hyp, as_json)
        return
    names = metric_names(name.strip() for name in metrics.split(",") if name.strip())
    options = Options(tokenize, lowercase, stem, sentences)
    length_edges = _parse_edges(edges)
    if source is not None and not lengths_shown:
        raise click.UsageError("--source is only read for --by-length; give both or neither")
    if plot is not None:
        if not lengths_shown:
            raise click.UsageError("--plot draws --by-length; give both or neither")
        check_path(plot)

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


def _refuse_options_of_the_other_kind(alignment: bool) -> None:
    context = click.get_current_context()
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name is not None
        and parameter.name not in FOR_BOTH
        and (parameter.name in FOR_ALIGNMENTS) is not alignment
        and context.get_parameter_source(parameter.name) is not ParameterSource.DEFAULT
    ]
    if given:
        raise click.UsageError(f"{given[0]} {'does not go' if alignment else 'only goes'} with --alignment")


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
