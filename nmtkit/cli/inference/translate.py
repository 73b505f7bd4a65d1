"""`nmtkit translate` and `nmtkit summarize`."""

import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import click

from nmtkit.cli.inference import model_options
from nmtkit.cli.terminal.reporting import is_quiet, note, tell
from nmtkit.cli.text_io import results
from nmtkit.cli.text_io.output_folder import OutputFolder, output_folder
from nmtkit.cli.text_io.reading import article_windows, text_windows, windows
from nmtkit.config.tasks.builtin import SUMMARIZATION, TRANSLATION
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.files.json_records import EXTRACT_HINT
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.reading import read_pairs
from nmtkit.decoding.settings import SamplingConfig
from nmtkit.inference.constraints.glossary import parse_dictionary
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.long_texts import (
    ParagraphTranslator,
    Summarizer,
    SummaryLimit,
    looks_like_one_article,
    looks_like_paragraph,
)
from nmtkit.inference.result import Translation
from nmtkit.inference.translator import Translator

COSTLY_NATS = 5
"""Cost of terms, in nats, at which a warning is printed; a rare word that fits the context costs less."""


@results.into_output
@model_options.opens_model
def run_translate(
    how: DecodingOptions,
    files: tuple[Path, ...],
    form: str,
    scores: bool,
    as_json: bool,
    split_sentences: bool,
    interactive: bool,
    prefix: bool,
    jsonl: bool,
    terms: Path | None,
    replace_unknown: bool,
    dictionary: Path | None,
) -> None:
    """Carries out `nmtkit translate`."""
    if prefix and jsonl:
        raise click.UsageError(
            'in --jsonl input, prefixes are in the field "prefix"; remove --prefix'
        )
    constrained = prefix or jsonl or terms is not None
    if interactive:
        from nmtkit.cli.inference.explain import converse

        other = form != "text" or how.engine == "ctranslate2"
        if files or constrained or as_json or scores or split_sentences or other:
            raise click.UsageError(
                "--interactive reads lines from a prompt and has its own output format; remove FILE, --format, "
                "--scores, --json, --split-sentences, --prefix, --jsonl, --terms and --engine"
            )
        if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
            raise click.UsageError(
                "--interactive requires a terminal; to translate files or pipes, remove --interactive"
            )
        how = model_options.without_ctranslate2(how, "the alignments that --interactive shows")
        converse(_open(how, terms, replace_unknown, dictionary), how.n_best)
        return
    how = _with_possible_engine(how, prefix, terms is not None, replace_unknown)
    translator = _open(how, terms, replace_unknown, dictionary)
    if split_sentences and isinstance(translator.config, SamplingConfig) and how.n_best > 1:
        raise click.UsageError(
            "--split-sentences samples each sentence only once; use --samples 1 without --n-best, or put each "
            "sentence on a separate line"
        )
    printer = results.Printer(
        translator.tokenizers.tgt,
        how.n_best,
        as_json,
        scores,
        form,
        replace_unknown,
        checks_numbers=True,
        may_repeat=not translator.config.no_repeat_ngram,
    )
    invitation = "" if files else "type one sentence per line; each is translated"
    text = text_windows(
        files, model_options.window_lines(translator), "" if jsonl else EXTRACT_HINT, tables=prefix
    )
    lines: Iterable[Sequence[str | Request]]
    if constrained:
        lines = _requests(text, prefix, jsonl)
    elif split_sentences:
        lines = text
    else:
        lines = _noting_paragraphs(text)
    if split_sentences:
        paragraphs = ParagraphTranslator(translator).stream(lines, as_json, how.n_best)
        results.write_stream(paragraphs, printer.write_joined, "lines", invitation, files)
    else:
        stream = translator.stream(
            lines, how.n_best, need_copies=as_json, need_scores=scores or how.n_best > 1
        )
        results.write_stream(stream, printer.write, "lines", invitation, files)
    printer.report("translations", "--max-length or --search max_length_ratio=R")
    _warn_of_costly_terms(translator, printer.forced)


def _with_possible_engine(
    how: DecodingOptions, prefix: bool, terms: bool, replace_unknown: bool
) -> DecodingOptions:
    """Excludes CTranslate2 if the options ask for something that it does not support."""
    unsupported = {
        "prefixes": prefix,
        "terms": terms,
        "the replacement of unknown words": replace_unknown,
    }
    requested = [name for name, is_requested in unsupported.items() if is_requested]
    if not requested:
        return how
    return model_options.without_ctranslate2(how, " and ".join(requested))


def _requests(text: Iterable[list[str]], prefix: bool, jsonl: bool) -> Iterator[list[Request]]:
    """Yields each line as a request; with neither `prefix` nor `jsonl`, lines are plain text."""
    read = Request.from_json if jsonl else Request.from_tsv if prefix else Request.from_line
    folder = output_folder()
    numbers = count(1)

    def place() -> str:
        number = next(numbers)
        return f"line {number}" if folder is None else folder.place_of(number)

    return ([read(line, place()) for line in window] for window in text)


def _warn_of_costly_terms(
    translator: Translator, forced: Sequence[tuple[str, Translation]]
) -> None:
    """Warns if terms make translations far less probable than the translations found without these terms."""
    if not forced:
        return
    costs = translator.cost_of_terms([translation for _, translation in forced])
    costly = [
        (cost, place) for cost, (place, _) in zip(costs, forced, strict=True) if cost >= COSTLY_NATS
    ]
    if costly:
        cost, place = max(costly)
        extent = ""
        if len(forced) > 1:
            extent = f", and {COSTLY_NATS} or more in {len(costly)} of the first {len(forced)} translations with terms"
        tell(
            f"warning: forcing the terms cost {cost:.0f} nats of log-probability in {place}{extent}. The model hardly "
            "knows these terms, so the text around them may be wrong; check it"
        )


def _open(
    how: DecodingOptions, terms: Path | None, replace_unknown: bool, dictionary: Path | None
) -> Translator:
    if dictionary is not None and not replace_unknown:
        raise click.UsageError(
            "--dictionary requires --replace-unknown; use both options or neither"
        )
    entries = (
        None if dictionary is None else parse_dictionary(read_lines(dictionary), str(dictionary))
    )
    translator = model_options.open_model(how, TRANSLATION.name)
    if replace_unknown:
        if translator.config.forbid_unknown:
            note("--replace-unknown turns off the recipe's search.forbid_unknown")
        translator = translator.replacing_unknown(entries)
    if terms is not None:
        translator = translator.with_terms(parse_dictionary(read_lines(terms), str(terms)))
    return translator


def _noting_paragraphs(text: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yields the windows unchanged; warns about the first line that looks like a paragraph."""
    # Both arguments are looked up here, because click's context does not exist in the thread that reads ahead.
    return _noted(text, output_folder(), is_quiet())


def _noted(
    text: Iterable[list[str]], folder: OutputFolder | None, warned: bool
) -> Iterator[list[str]]:
    numbers = count(1)
    for window in text:
        for line, number in zip(window, numbers, strict=False):
            if not warned and looks_like_paragraph(line):
                place = f"line {number}" if folder is None else folder.place_of(number)
                tell(
                    f"{place} looks like a paragraph; to translate it sentence by sentence, use --split-sentences"
                )
                warned = True
        yield window


@results.into_output
@model_options.opens_model
def run_summarize(
    how: DecodingOptions,
    files: tuple[Path, ...],
    per_file: bool,
    stories: Path | None,
    form: str,
    as_json: bool,
    window: int | None,
    lead: int | None,
    sentences: int | None,
    words: int | None,
) -> None:
    """Carries out `nmtkit summarize`."""
    if stories is not None and (files or per_file):
        raise click.UsageError("--stories reads a folder; remove FILE and --per-file")
    source = _Articles(files, stories, per_file)
    if lead is not None:
        _print_lead(how, source, lead, as_json or bool(window or sentences or words))
        return
    if window is not None and how.max_source_tokens is not None:
        raise click.UsageError("--window reads whole articles; remove --max-source-tokens")
    translator = model_options.open_model(how, SUMMARIZATION.name)
    if window is not None and isinstance(translator.config, SamplingConfig) and how.n_best > 1:
        raise click.UsageError(
            "--window draws a single sample for each window; use --samples 1 without --n-best"
        )
    may_repeat = not translator.config.no_repeat_ngram
    printer = results.Printer(
        translator.tokenizers.tgt, how.n_best, as_json, form=form, may_repeat=may_repeat
    )
    invitation = (
        "" if files or stories or per_file else "type one article per line; each is summarized"
    )
    articles = source.windows(model_options.window_lines(translator))
    files_of_lines = () if per_file else files
    if window is None:
        stream = translator.stream(articles, how.n_best, need_copies=as_json)
        if sentences or words:
            limit = SummaryLimit(sentences, words)
            stream = _shortened(stream, limit)
        results.write_stream(stream, printer.write, "articles", invitation, files_of_lines)
    else:
        summarizer = Summarizer(translator, window, sentences, words)
        summaries = summarizer.stream(articles, as_json, how.n_best)
        results.write_stream(
            summaries, printer.write_joined, "articles", invitation, files_of_lines
        )
    results.tell_cut(
        printer.cut, printer.lines, "articles", translator, "; to read whole articles, use --window"
    )
    printer.report("summaries", "--max-length or --search max_length_ratio=R")


def _shortened(
    stream: Iterable[list[list[Translation]]], limit: SummaryLimit
) -> Generator[list[list[Translation]], None, None]:
    """Shortens the texts of summaries to the limit; their tokens remain those of the full output."""
    for group in stream:
        yield [
            [replace(one, text=limit.shorten([one])) for one in summaries] for summaries in group
        ]


def _print_lead(
    how: DecodingOptions, source: "_Articles", count: int, has_other_options: bool
) -> None:
    """Prints the first sentences of each article."""
    if how != DecodingOptions(search_settings={}) or has_other_options:
        raise click.UsageError(
            "--lead copies sentences without a model; remove all options that apply to a model"
        )
    from nmtkit.metrics import lead as lead_of

    def write(article: str) -> None:
        results.write_line(lead_of(article, count))

    invitation = (
        "" if source.has_files else "type one article per line; its first sentences are printed"
    )
    results.write_stream(source.windows(), write, "articles", invitation)


@dataclass(frozen=True)
class _Articles:
    """Source of the articles to summarize."""

    files: tuple[Path, ...]
    stories: Path | None
    """A folder of .story files."""
    per_file: bool

    @property
    def has_files(self) -> bool:
        """Whether articles are read from files instead of standard input."""
        return bool(self.files) or self.stories is not None or self.per_file

    def windows(self, most: int = 256) -> Generator[list[str], None, None]:
        """Yields windows of at most `most` articles."""
        if self.stories is not None:
            stories = read_pairs(SplitFiles(stories=[str(self.stories)]))
            return windows((story.src for story in stories), most)
        remedy = "specify the field of the articles as FILE.jsonl#FIELD"
        if self.per_file:
            return article_windows(self.files, most, remedy)
        return _noting_articles(text_windows(self.files, most, remedy), self._place)

    @property
    def _place(self) -> str:
        return str(self.files[0]) if self.files else "standard input"


def _noting_articles(text: Iterable[list[str]], place: str) -> Generator[list[str], None, None]:
    """Yields the windows unchanged; warns if the first looks like the paragraphs of one article."""
    for number, window in enumerate(text):
        if number == 0 and looks_like_one_article(window):
            tell(
                f"warning: {place} looks like one article, with blank lines between paragraphs, but each line is "
                "summarized separately; to read each file as one article, use --per-file"
            )
        yield window
