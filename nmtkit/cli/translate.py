"""`nmtkit translate` and `nmtkit summarize`."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import click

from nmtkit.cli import inference, results
from nmtkit.cli.reading import field_lines, text_windows, windows
from nmtkit.cli.reporting import is_quiet, note, tell
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.json_records import EXTRACT_HINT
from nmtkit.corpus.reading import read_pairs
from nmtkit.corpus.text import read_lines
from nmtkit.experiment.loading import DecodingOptions
from nmtkit.tasks.builtin import SUMMARIZATION, TRANSLATION
from nmtkit.translation.long_texts import ParagraphTranslator, Summarizer, looks_like_paragraph
from nmtkit.translation.requests import Request, Terminology, parse_dictionary
from nmtkit.translation.translator import Translator


@results.into_output
@inference.opens_model
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
        raise click.UsageError('--jsonl gives prefixes as "prefix": leave --prefix out')
    constrained = prefix or jsonl or terms is not None
    if interactive:
        from nmtkit.cli.explain import converse

        other = form != "text" or how.engine == "ctranslate2"
        if files or constrained or as_json or scores or split_sentences or other:
            raise click.UsageError(
                "--interactive asks for lines and shows results in its own way: leave FILE and the options --format, "
                "--scores, --json, --split-sentences, --prefix, --jsonl, --terms and --engine out"
            )
        if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
            raise click.UsageError("--interactive needs a terminal; files and pipes are translated without it")
        converse(_open(how, terms, replace_unknown, dictionary), how.n_best)
        return
    if split_sentences and (how.n_best > 1 or scores or constrained):
        raise click.UsageError(
            "--split-sentences joins translations of parts of lines: leave --n-best, --scores, --prefix, --jsonl and "
            "--terms out, and draw one of --samples at most"
        )
    translator = _open(how, terms, replace_unknown, dictionary)
    printer = results.Printer(translator.tokenizers.tgt, how.n_best, as_json, scores, form, replace_unknown)
    invitation = "" if files else "type a sentence on each line; it is translated"
    text = text_windows(files, inference.window_lines(translator), "" if jsonl else EXTRACT_HINT)
    if split_sentences:
        paragraphs = ParagraphTranslator(translator).stream(text, as_json)
        results.write_stream(paragraphs, printer.write_joined, "lines", invitation)
    else:
        read = Request.of_json if jsonl else Request.of_fields if prefix else Request.of
        numbers = count(1)
        requests = ([read(line, f"line {next(numbers)}") for line in window] for window in text)
        lines = requests if constrained else _noting_paragraphs(text)
        stream = translator.stream(lines, how.n_best, need_copies=as_json)
        results.write_stream(stream, printer.write, "lines", invitation)
    printer.report("translations", "--max-length or --search max_length_ratio=R")


def _open(how: DecodingOptions, terms: Path | None, replace_unknown: bool, dictionary: Path | None) -> Translator:
    if dictionary is not None and not replace_unknown:
        raise click.UsageError("--dictionary is for --replace-unknown; give both")
    entries = None if dictionary is None else parse_dictionary(read_lines(dictionary), str(dictionary))
    translator = inference.open_model(how, TRANSLATION.name)
    if replace_unknown:
        if translator.config.forbid_unknown:
            note("the recipe's search.forbid_unknown is off, for --replace-unknown")
        translator = translator.replacing_unknown(entries)
    if terms is not None:
        translator.config.reject_constraints()
        translator = replace(translator, terminology=Terminology(parse_dictionary(read_lines(terms), str(terms))))
    return translator


def _noting_paragraphs(text: Iterable[list[str]]) -> Iterator[list[str]]:
    """The windows as they are; warns of the first line that looks like a paragraph."""
    numbers, warned = count(1), is_quiet()
    for window in text:
        for line, number in zip(window, numbers, strict=False):
            if not warned and looks_like_paragraph(line):
                tell(f"line {number} looks like a paragraph: --split-sentences translates it sentence by sentence")
                warned = True
        yield window


@results.into_output
@inference.opens_model
def run_summarize(
    how: DecodingOptions,
    files: tuple[Path, ...],
    article_field: str | None,
    stories: Path | None,
    form: str,
    as_json: bool,
    window: int | None,
    lead: int | None,
) -> None:
    """Carries out `nmtkit summarize`."""
    if stories is not None and (files or article_field is not None):
        raise click.UsageError("--stories reads a folder, FILE and --article-field do not: leave one of them out")
    if lead is not None:
        if how != DecodingOptions(search_settings={}) or as_json or window:
            raise click.UsageError("--lead copies sentences without a model: leave the options of a model out")
        from nmtkit.metrics import lead as lead_of

        for part in _articles(files, article_field, stories):
            sys.stdout.write("".join(lead_of(article, lead) + "\n" for article in part))
            sys.stdout.flush()
        return
    if window is not None and (how.max_source_tokens is not None or how.n_best > 1):
        raise click.UsageError("--window reads whole articles, for one summary each: leave the other option out")
    translator = inference.open_model(how, SUMMARIZATION.name)
    printer = results.Printer(translator.tokenizers.tgt, how.n_best, as_json, form=form)
    invitation = "" if files or stories else "type an article on each line; it is summarized"
    articles = _articles(files, article_field, stories, inference.window_lines(translator))
    if window is None:
        stream = translator.stream(articles, how.n_best, need_copies=as_json)
        results.write_stream(stream, printer.write, "articles", invitation)
    else:
        summaries = Summarizer(translator, window).stream(articles, as_json)
        results.write_stream(summaries, printer.write_joined, "articles", invitation)
    results.tell_cut(printer.cut, printer.lines, "articles", translator, "; --window reads them whole")
    printer.report("summaries", "--max-length or --search max_length_ratio=R")


def _articles(
    files: tuple[Path, ...], article_field: str | None, stories: Path | None, most: int = 256
) -> Iterator[list[str]]:
    if stories is not None:
        return windows((story.src for story in read_pairs(SplitFiles(stories=[str(stories)]))), most)
    if article_field is not None:
        return windows(field_lines(files, article_field), most)
    return text_windows(files, most, "name the key of the articles with --article-field KEY")
