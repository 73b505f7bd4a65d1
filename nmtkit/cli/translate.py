"""`nmtkit translate`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import cloup
from click.core import ParameterSource

from nmtkit.cli import inference, options, results
from nmtkit.cli.options import FILE
from nmtkit.cli.reading import text_windows
from nmtkit.cli.reporting import is_quiet, note, tell
from nmtkit.corpus.json_records import EXTRACT_HINT
from nmtkit.corpus.text import read_lines
from nmtkit.experiment.loading import ModelOptions
from nmtkit.translation.paragraphs import ParagraphTranslator, looks_like_paragraph
from nmtkit.translation.requests import Request, Terminology
from nmtkit.translation.translator import Translator
from nmtkit.translation.unknowns import parse_dictionary


@dataclass(frozen=True)
class UnknownWordOptions:
    """How words that the target vocabulary lacks are replaced."""

    replace_unknown: bool
    dictionary: Path | None

    def __post_init__(self) -> None:
        if self.dictionary is not None and not self.replace_unknown:
            raise click.UsageError("--dictionary is for --replace-unknown; give both")

    def open(self, how: ModelOptions) -> Translator:
        """Opens the run with these options."""
        path = self.dictionary
        entries = None if path is None else parse_dictionary(read_lines(path), str(path))
        translator = inference.open_model(how, "translation")
        if not self.replace_unknown:
            return translator
        if translator.config.forbid_unknown:
            note("the recipe's search.forbid_unknown is off, for --replace-unknown")
        return translator.replacing_unknown(entries)


@dataclass(frozen=True)
class ConstraintOptions:
    """Constraints on translations: prefixes and terms."""

    prefix: bool
    jsonl: bool
    terms: Path | None

    def __post_init__(self) -> None:
        if self.prefix and self.jsonl:
            raise click.UsageError('--jsonl gives prefixes as "prefix": leave --prefix out')

    def __bool__(self) -> bool:
        return self.prefix or self.jsonl or self.terms is not None

    def apply(self, translator: Translator) -> Translator:
        """The translator with the terms."""
        if self.terms is None:
            return translator
        translator.config.reject_constraints()
        return replace(translator, terminology=Terminology.parse(read_lines(self.terms), str(self.terms)))

    def requests(self, windows: Iterable[list[str]]) -> Iterator[list[Request]]:
        """The lines as requests."""
        read = Request.of_json if self.jsonl else Request.of_fields if self.prefix else Request.of
        count = 0
        for window in windows:
            yield [read(line, f"line {number}") for number, line in enumerate(window, start=count + 1)]
            count += len(window)


@cloup.command()
@options.files
@cloup.option_group(
    "Common",
    options.models,
    inference.checkpoint,
    results.output,
    inference.search_flags("beam_size"),
    inference.n_best,
    click.option("--scores", is_flag=True, help="Print score and log-probability first."),
    options.as_json("Print a JSON object for each line."),
    click.option("--split-sentences", is_flag=True, help="Translate each sentence of a line by itself."),
    click.option("--interactive", is_flag=True, help="Type lines; shows alignment and alternatives."),
    options.devices,
)
@cloup.option_group(
    "Constraints",
    click.option("--terms", type=FILE, metavar="FILE", help="Glossary, SOURCE TAB TARGET on each line."),
    click.option("--prefix", is_flag=True, help="Lines are SOURCE TAB PREFIX; outputs begin with PREFIX."),
    click.option(
        "--jsonl",
        is_flag=True,
        help='Lines are JSON: "source", "prefix", "must", "must_not", "in_order".',
    ),
)
@inference.search_groups(inference.workers)
@cloup.option_group(
    "Output",
    inference.format_option,
    click.option("--replace-unknown", is_flag=True, help="Replace <unk> by the most attended source word."),
    click.option(
        "--dictionary",
        type=FILE,
        metavar="FILE",
        help="For --replace-unknown: SOURCE TAB TARGET a line.",
    ),
)
@options.quiet
@results.into_output
@inference.opens_model
@options.collect(UnknownWordOptions, "unknown")
@options.collect(ConstraintOptions, "constraints")
def command(
    how: ModelOptions,
    files: tuple[Path, ...],
    form: str,
    scores: bool,
    as_json: bool,
    unknown: UnknownWordOptions,
    constraints: ConstraintOptions,
    split_sentences: bool,
    interactive: bool,
) -> None:
    """Translate FILEs, or standard input: one line out for each line in, in order.

    FILEs are plain or .gz and are translated as one text. An empty line gives an empty line. --n-best K prints
    "NUMBER TAB SCORE TAB LOG-PROBABILITY TAB TRANSLATION", with lines counted from 1. The score is the log-probability
    (natural log) after the length penalty. `nmtkit guide decoding` explains constraints, sampling and ensembles.

    \b
    Examples:
      nmtkit translate input.txt -o output.txt
      nmtkit translate -m runs/mine part1.txt part2.txt.gz -o output.txt
      cat input.txt | nmtkit translate --n-best 3
      nmtkit translate --beam-size 10 --length-penalty gnmt:0.6 input.txt
      nmtkit translate --json input.txt | jq .best.score
      nmtkit translate --terms glossary.tsv input.txt
      nmtkit translate -m runs/seed1 -m runs/seed2 -m runs/seed3 input.txt
      nmtkit translate --samples 5 --top-p 0.9 --temperature 0.8 --seed 7 input.txt
      nmtkit translate --beam-size 12 --search diversity_groups=4 --n-best 4 input.txt
    """
    if interactive:
        from nmtkit.cli.interactive import converse

        forms = {"format": form != "text", "scores": scores, "json": as_json, "split-sentences": split_sentences}
        _require_plain(files, {**forms, "prefix, --jsonl and --terms": bool(constraints)})
        given = click.get_current_context().get_parameter_source("n_best") is not ParameterSource.DEFAULT
        converse(unknown.open(how), how.n_best if given else None)
        return
    if split_sentences and (how.n_best > 1 or scores):
        raise click.UsageError("--split-sentences joins one translation of each sentence: leave --n-best, --scores out")
    if split_sentences and constraints:
        raise click.UsageError("--split-sentences translates parts of lines: leave --prefix, --jsonl and --terms out")
    translator = constraints.apply(unknown.open(how))
    printer = results.Printer(translator.tokenizers.tgt, how.n_best, as_json, scores, form, unknown.replace_unknown)
    prompt = results.Prompt(files, "a sentence", "translated")
    windows = text_windows(files, "" if constraints.jsonl else EXTRACT_HINT, translator.window)
    if split_sentences:
        paragraphs = ParagraphTranslator(translator).stream(windows, as_json)
        results.write_stream(paragraphs, printer.write_joined, "lines", prompt)
    else:
        lines = constraints.requests(windows) if constraints else _noting_paragraphs(windows)
        stream = translator.stream(lines, how.n_best, need_copies=as_json)
        results.write_stream(stream, printer.write, "lines", prompt)
    printer.report("translations", "--max-length or --search max_length_ratio=R")


def _require_plain(files: tuple[Path, ...], forms: dict[str, bool]) -> None:
    """Refuses options that `--interactive` does not support."""
    from nmtkit.cli.interactive import require_terminal

    if unfit := [name for name, given in forms.items() if given]:
        raise click.UsageError(f"--interactive shows results in its own way: leave --{unfit[0]} out")
    if files:
        raise click.UsageError("--interactive asks for lines: leave FILE out")
    require_terminal()


def _noting_paragraphs(windows: Iterable[list[str]]) -> Iterator[list[str]]:
    """The windows as they are; warns of the first line that looks like a paragraph."""
    count, warned = 0, is_quiet()
    for window in windows:
        first = None if warned else next((row for row, line in enumerate(window) if looks_like_paragraph(line)), None)
        if first is not None:
            warned = True
            tell(
                f"line {count + first + 1} looks like a paragraph; models learn single sentences: --split-sentences "
                "translates it sentence by sentence"
            )
        count += len(window)
        yield window
