"""`nmtkit translate`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
from click.core import ParameterSource

from nmtkit.cli import inference, options, results
from nmtkit.cli.inference import Printer, write_found
from nmtkit.cli.interactive import converse, require_terminal
from nmtkit.cli.options import FILE
from nmtkit.cli.reading import text_windows
from nmtkit.cli.reporting import is_quiet, note, tell
from nmtkit.corpus.json_records import EXTRACT_HINT
from nmtkit.corpus.text import read_lines
from nmtkit.experiment.opening import Opening
from nmtkit.translation.paragraphs import ParagraphTranslator, looks_like_paragraph
from nmtkit.translation.requests import Request, Terminology
from nmtkit.translation.translator import Translator
from nmtkit.translation.unknowns import parse_dictionary


@dataclass(frozen=True)
class UnknownWords:
    """What is done about words that the target vocabulary lacks."""

    replace_unknown: bool
    dictionary: Path | None

    def __post_init__(self) -> None:
        if self.dictionary is not None and not self.replace_unknown:
            raise click.UsageError("--dictionary is for --replace-unknown; give both")

    def open(self, how: Opening) -> Translator:
        """The run that was asked for, which does that; raises NmtkitError if it or the dictionary cannot be opened."""
        path = self.dictionary
        entries = None if path is None else parse_dictionary(read_lines(path), str(path))
        translator = inference.open_asked(how, "translation")
        if not self.replace_unknown:
            return translator
        if translator.config.forbid_unknown:
            note("the recipe's search.forbid_unknown is off, for --replace-unknown")
        return translator.replacing_unknown(entries)


@dataclass(frozen=True)
class Asking:
    """What is asked of translations beside their source."""

    prefix: bool
    jsonl: bool
    terms: Path | None

    def __post_init__(self) -> None:
        if self.prefix and self.jsonl:
            raise click.UsageError('--jsonl gives prefixes as "prefix": leave --prefix out')

    @property
    def asks(self) -> bool:
        """Whether anything is asked."""
        return self.prefix or self.jsonl or self.terms is not None

    def of(self, translator: Translator) -> Translator:
        """The translator with the terms; raises NmtkitError if they cannot be read, or its search takes none."""
        if self.terms is None:
            return translator
        translator.config.reject_constraints()
        return replace(translator, terminology=Terminology.parse(read_lines(self.terms), str(self.terms)))

    def requests(self, windows: Iterable[list[str]]) -> Iterator[list[Request]]:
        """What is asked in each line."""
        read = Request.of_json if self.jsonl else Request.of_fields if self.prefix else Request.of
        count = 0
        for window in windows:
            yield [read(line, f"line {number}") for number, line in enumerate(window, start=count + 1)]
            count += len(window)


@click.command()
@results.output
@options.files
@inference.which_runs_where
@inference.precision("auto")
@inference.engine
@inference.search_options(*inference.SEARCH)
@inference.shortlist
@inference.n_best
@click.option("--scores", is_flag=True, help="Put score and log-probability before each translation, tab-separated.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each line, with scores and tokens.")
@click.option(
    "--replace-unknown",
    is_flag=True,
    help="Replace an unknown word by the source word that the attention points to.",
)
@click.option(
    "--dictionary",
    type=FILE,
    metavar="FILE",
    help="Translations for --replace-unknown: SOURCE TAB TARGET on each line. Other words are copied.",
)
@click.option(
    "--split-sentences",
    is_flag=True,
    help="Cut each line into sentences, translate each by itself, and join them into one line again.",
)
@click.option(
    "--prefix",
    is_flag=True,
    help="Each line is SOURCE TAB PREFIX: the translation begins with PREFIX, whose last word is taken as whole.",
)
@click.option(
    "--jsonl",
    is_flag=True,
    help='Each line is a JSON object: "source", and if wanted "prefix", "must" and "must_not" (lists of terms) and '
    '"in_order" (true: those of "must" come in their order).',
)
@click.option(
    "--terms",
    type=FILE,
    metavar="FILE",
    help="SOURCE TERM TAB TARGET TERM on each line: where a source contains the one, its translation contains the "
    "other, both as whole words. The longest of overlapping source terms counts.",
)
@click.option(
    "--interactive",
    is_flag=True,
    help="Ask at a terminal; show translation, alignment and alternatives of each line. :help there shows commands.",
)
@inference.workers
@inference.batches
@options.quiet
@options.grouped(UnknownWords, "unknown")
@options.grouped(Asking, "asking")
def command(
    how: Opening,
    files: tuple[Path, ...],
    form: str,
    scores: bool,
    as_json: bool,
    unknown: UnknownWords,
    asking: Asking,
    split_sentences: bool,
    interactive: bool,
) -> None:
    """Translate FILEs, or standard input: one line out for each line in, in order.

    FILEs are plain or .gz. Several are translated one after the other, as one text, into one output. At a terminal,
    translate prints a prompt and answers line by line; --interactive shows more, and edits lines.

    An empty line gives an empty line. --n-best K prints up to K lines for each line: "NUMBER TAB SCORE TAB
    LOG-PROBABILITY TAB TRANSLATION". NUMBER counts input lines from 1. The beam is at least K wide. The score is the
    log-probability (natural log) after the length penalty.

    Several -m are an ensemble: one model whose distribution is the mean of theirs. --samples N draws N translations
    of each line and prints them all; seed and line number decide what is drawn. --mbr prints the candidate (of the
    samples, or of the beam) that the others agree with most, and its expected chrF or BLEU as the score.

    A word that the target vocabulary lacks is printed as <unk>. --replace-unknown prints the source word with the most
    attention instead, or its translation by the dictionary. It passes over punctuation and the end of the sentence,
    and prefers source words that the model does not know. --json then lists what was "replaced" and from which source
    token; tokens, score and log-probability stay those of <unk>.

    If the model copies, --json gives for each token the probability that the model generated it ("p_gen") and the
    source token that it was copied from ("copied"). "copied_spans" are tokens that were copied in one piece.

    What is asked of a translation (--prefix, --jsonl, --terms) costs probability, and is met all the same; terms are
    found again in the text, not only in its tokens. A token that the model lacks is <unk> in a prefix, and refused in
    a term. "must_not" forbids a term as the tokenizer cuts it. --prefix-bias below 1 prefers the prefix only.

    Models learn single sentences, so a paragraph on one line is badly translated as a whole. --split-sentences cuts it
    after . ! ? and their kin, but not after titles (Dr.), initials, abbreviations with inner points (e.g.) and short
    numbers (am 3. Mai). Two sentences stay one where the first ends in such a word.

    \b
    Examples:
      nmtkit translate input.txt -o output.txt
      nmtkit translate -m runs/mine part1.txt part2.txt.gz -o output.txt
      cat input.txt | nmtkit translate --n-best 3
      nmtkit translate --beam-size 10 --length-penalty gnmt:0.6 input.txt
      nmtkit translate --json input.txt | jq .best.score
      nmtkit translate --replace-unknown --dictionary names.tsv input.txt
      nmtkit translate --split-sentences article.txt
      nmtkit translate --terms glossary.tsv input.txt
      printf 'A dog runs.\\tDer Hund\\n' | nmtkit translate --prefix
      nmtkit translate --interactive
      nmtkit translate -m runs/seed1 -m runs/seed2 -m runs/seed3 input.txt
      nmtkit translate --samples 5 --top-p 0.9 --temperature 0.8 --seed 7 input.txt
      nmtkit translate --samples 32 --epsilon 0.02 --mbr chrf input.txt
      nmtkit translate --beam-size 12 --diversity-groups 4 --n-best 4 input.txt
    """
    if "prefix_bias" in (how.search_settings or {}) and not (asking.prefix or asking.jsonl):
        raise click.UsageError("--prefix-bias weighs prefixes, and no line has one: give --prefix or --jsonl with it")
    if interactive:
        forms = {"format": form != "text", "scores": scores, "json": as_json, "split-sentences": split_sentences}
        _require_plain(files, {**forms, "prefix, --jsonl and --terms": asking.asks})
        given = click.get_current_context().get_parameter_source("n_best") is not ParameterSource.DEFAULT
        converse(unknown.open(how), how.n_best if given else None)
        return
    if split_sentences and (how.n_best > 1 or scores):
        raise click.UsageError("--split-sentences joins one translation of each sentence: leave --n-best, --scores out")
    if split_sentences and asking.asks:
        raise click.UsageError("--split-sentences translates parts of lines: leave --prefix, --jsonl and --terms out")
    translator = asking.of(unknown.open(how))
    printer = Printer(translator.tokenizers.tgt, how.n_best, as_json, scores, form, unknown.replace_unknown)
    prompt = results.Prompt(files, "a sentence", "translated")
    windows = text_windows(files, "" if asking.jsonl else EXTRACT_HINT, translator.window)
    if split_sentences:
        paragraphs = ParagraphTranslator(translator).stream(windows, as_json)
        write_found(paragraphs, printer.write_sentences, "lines", prompt)
    else:
        lines = asking.requests(windows) if asking.asks else _noting_paragraphs(windows)
        found = translator.stream(lines, how.n_best, need_copies=as_json)
        write_found(found, printer.write, "lines", prompt)
    printer.say_at_end("translations", "--max-length-ratio or --max-length")


def _require_plain(files: tuple[Path, ...], forms: dict[str, bool]) -> None:
    """Refuses what `--interactive` has no use for."""
    asked = [name for name, given in forms.items() if given]
    if asked:
        raise click.UsageError(f"--interactive shows results in its own way: leave --{asked[0]} out")
    if files:
        raise click.UsageError("--interactive asks for lines: leave FILE out")
    require_terminal()


def _noting_paragraphs(windows: Iterable[list[str]]) -> Iterator[list[str]]:
    """The windows as they are; the first line that looks like a paragraph is told of."""
    lines, told = 0, is_quiet()
    for window in windows:
        first = None if told else next((row for row, line in enumerate(window) if looks_like_paragraph(line)), None)
        if first is not None:
            told = True
            tell(
                f"line {lines + first + 1} looks like a paragraph; models learn single sentences: --split-sentences "
                "translates it sentence by sentence"
            )
        lines += len(window)
        yield window
