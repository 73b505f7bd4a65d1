"""`nmtkit summarize`."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import cloup

from nmtkit.cli import inference, options, results
from nmtkit.cli.options import FILE, Number
from nmtkit.cli.reading import field_lines, text_windows, windows
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.reading import read_pairs
from nmtkit.experiment.loading import ModelOptions
from nmtkit.metrics import lead as lead_of
from nmtkit.translation.summarizer import Summarizer

AT_ONCE = 256
"""Articles read together by `--lead`."""


@dataclass(frozen=True)
class ArticleOptions:
    """Where the articles are."""

    files: tuple[Path, ...]
    """None for standard input."""
    article_field: str | None
    stories: Path | None

    def __post_init__(self) -> None:
        if self.stories is not None and (self.files or self.article_field is not None):
            raise click.UsageError("--stories reads a folder, FILE and --article-field do not: leave one of them out")

    def windows(self, most: int) -> Iterator[list[str]]:
        """The articles, each as one line, at most `most` together."""
        if self.stories is not None:
            return windows((story.src for story in read_pairs(SplitFiles(stories=[str(self.stories)]))), most)
        if self.article_field is not None:
            return windows(field_lines(self.files, self.article_field), most)
        return text_windows(self.files, "name the key of the articles with --article-field KEY", most)

    def prompt(self) -> results.Prompt:
        """The prompt for articles that are typed."""
        files = self.files if self.stories is None else [self.stories]
        return results.Prompt(files, "an article", "summarized")


@cloup.command()
@options.files
@cloup.option_group(
    "Common",
    options.models,
    inference.checkpoint,
    results.output,
    inference.search_flags("beam_size"),
    inference.n_best,
    options.as_json("Print a JSON object for each article: scores, tokens, copied spans."),
    options.devices,
)
@cloup.option_group(
    "Input",
    click.option("--article-field", metavar="KEY", help="Read JSON lines with the article under KEY, not plain text."),
    click.option("--stories", type=FILE, metavar="DIR", help="Read the .story files of a folder, without highlights."),
    click.option(
        "--max-source-tokens",
        type=Number(1),
        metavar="N",
        help="Read only the first N tokens of an article. Default: as in training.",
    ),
    click.option(
        "--window",
        type=Number(1),
        metavar="N",
        help="Summarize whole articles window by window, N tokens at most each.",
    ),
    click.option("--lead", type=Number(1), metavar="N", help="Print the first N sentences; needs no model."),
)
@inference.search_groups(inference.workers)
@cloup.option_group("Output", inference.format_option)
@options.quiet
@results.into_output
@inference.opens_model
@options.collect(ArticleOptions, "articles")
def command(
    how: ModelOptions, articles: ArticleOptions, form: str, as_json: bool, window: int | None, lead: int | None
) -> None:
    """Summarize FILEs, or standard input: one line out for each article in, in order.

    FILEs are plain or .gz and are read as one text; every line is an article. An empty line gives an empty line.
    --n-best K prints "NUMBER TAB SCORE TAB LOG-PROBABILITY TAB SUMMARY", with articles counted from 1. A model that
    was trained on the beginnings of articles (data.over_long: truncate) reads as many tokens here; --window reads all.
    `nmtkit guide decoding` explains windows, copied spans, sampling and ensembles.

    \b
    Examples:
      nmtkit summarize articles.txt -o summaries.txt
      nmtkit summarize -m runs/mine --article-field article test.jsonl.gz -o summaries.txt
      cat articles.txt | nmtkit summarize --min-length 35 --max-length 100 --no-repeat-ngram 3
      nmtkit summarize --coverage-penalty 5 --search coverage_kind=summary articles.txt
      nmtkit summarize --window 400 reports.txt | nmtkit summarize -o short.txt
      nmtkit summarize --json articles.txt | jq '.best.copied_spans[].text'
      nmtkit summarize --lead 3 articles.txt -o baseline.txt
      nmtkit summarize --stories cnn/stories -o summaries.txt
    """
    if lead is not None:
        if any((how.model, how.search_settings, how.max_source_tokens, how.n_best > 1, as_json, window, how.shortlist)):
            raise click.UsageError("--lead copies sentences without a model: leave the options of a model out")
        for part in articles.windows(AT_ONCE):
            sys.stdout.write("".join(lead_of(article, lead) + "\n" for article in part))
            sys.stdout.flush()
        return
    if window is not None and (how.max_source_tokens is not None or how.n_best > 1):
        raise click.UsageError("--window reads whole articles, for one summary each: leave the other option out")
    translator = inference.open_model(how, "summarization")
    printer = results.Printer(translator.tokenizers.tgt, how.n_best, as_json, form=form)
    prompt = articles.prompt()
    given = articles.windows(inference.window_lines(translator))
    if window is None:
        stream = translator.stream(given, how.n_best, need_copies=as_json)
        results.write_stream(stream, printer.write, "articles", prompt)
    else:
        summaries = Summarizer(translator, window).stream(given, as_json)
        results.write_stream(summaries, printer.write_joined, "articles", prompt)
    results.tell_cut(printer.cut, printer.lines, "articles", translator, "; --window reads them whole")
    printer.report("summaries", "--max-length")
