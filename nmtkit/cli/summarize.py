"""`nmtkit summarize`."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from nmtkit.cli import inference, options, results
from nmtkit.cli.inference import Printer, write_found
from nmtkit.cli.options import FILE, Number
from nmtkit.cli.reading import field_lines, text_windows, windows
from nmtkit.cli.reporting import tell
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.reading import read_pairs
from nmtkit.experiment.opening import Opening
from nmtkit.metrics import lead as lead_of
from nmtkit.translation.summarizer import Summarizer

LONGER = 4
"""An article counts as so many lines where it is asked how many are read at a time."""
AT_ONCE = 256
"""Articles that are read at a time where no model is needed."""


@dataclass(frozen=True)
class Articles:
    """Where the articles are."""

    files: tuple[Path, ...]
    """None for standard input."""
    article_field: str | None
    stories: Path | None

    def __post_init__(self) -> None:
        if self.stories is not None and (self.files or self.article_field is not None):
            raise click.UsageError("--stories reads a folder, FILE and --article-field do not: leave one of them out")

    def windows(self, most: int) -> Iterator[list[str]]:
        """The articles, each as one line, at most so many at a time."""
        if self.stories is not None:
            return windows((story.src for story in read_pairs(SplitFiles(stories=[str(self.stories)]))), most)
        if self.article_field is not None:
            return windows(field_lines(self.files, self.article_field), most)
        return text_windows(self.files, "name the key of the articles with --article-field KEY", most)

    def prompt(self) -> results.Prompt | None:
        """Asks for articles if they are typed."""
        return None if self.stories is not None else results.Prompt(self.files, "an article", "summarized")


@click.command()
@results.output
@options.files
@inference.which_runs_where
@inference.precision("auto")
@inference.engine
@click.option(
    "--article-field",
    metavar="KEY",
    help="The input is JSON lines, with the article under KEY. Default: plain text.",
)
@click.option(
    "--stories",
    type=FILE,
    metavar="FOLDER",
    help="Read the .story files of a folder, by name; their own summaries are left out.",
)
@inference.search_options()
@inference.shortlist
@inference.n_best
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object for each article: scores, tokens, copied spans."
)
@click.option(
    "--max-source-tokens",
    type=Number(1),
    metavar="N",
    help="Read only the first N tokens of an article. Default: as in training.",
)
@click.option(
    "--window",
    type=Number(1),
    metavar="N",
    help="Read whole articles, in windows of at most N tokens; each is summarized by itself.",
)
@click.option(
    "--lead", type=Number(1), metavar="N", help="Print the first N sentences of each article; needs no model."
)
@inference.workers
@inference.batches
@options.quiet
@options.grouped(Articles, "articles")
def command(how: Opening, articles: Articles, form: str, as_json: bool, window: int | None, lead: int | None) -> None:
    """Summarize FILEs, or standard input: one line out for each article in, in order.

    FILEs are plain or .gz. Several are summarized one after the other into one output. At a terminal, summarize prints
    a prompt and answers line by line.

    Every line is an article; an empty line gives an empty line. --n-best K prints up to K lines for each article:
    "NUMBER TAB SCORE TAB LOG-PROBABILITY TAB SUMMARY". NUMBER counts articles from 1. The beam is at least K wide.

    A model that was trained on the beginnings of articles (data.over_long: truncate) reads as many tokens here. How
    many articles were cut is said at the end. --window reads whole articles, in windows of whole sentences that do not
    overlap; a sentence longer than a window is cut between words. The summaries of the windows are joined in order, so
    the summary grows with the article. A second pass over it may make it shorter.

    If the model copies, --json gives for each token the probability that the model generated it ("p_gen") and the
    source token that it was copied from ("copied"). A token counts as copied if copying has more than half of its
    probability; of several places the one with the most attention is named. "copied_spans" are tokens in a row that
    were copied from tokens in a row: their text, and their ranges in tokens, source_tokens and source_words (separated
    by white space), 0-based, end exclusive.

    \b
    Examples:
      nmtkit summarize articles.txt -o summaries.txt
      nmtkit summarize -m runs/mine --article-field article test.jsonl.gz -o summaries.txt
      cat articles.txt | nmtkit summarize --min-length 35 --max-length 100 --no-repeat-ngram 3
      nmtkit summarize --coverage-penalty 5 --coverage-kind summary --length-penalty gnmt:0.9 articles.txt
      nmtkit summarize --window 400 reports.txt | nmtkit summarize -o short.txt
      nmtkit summarize -m runs/seed1 -m runs/seed2 --samples 16 --epsilon 0.02 --mbr chrf articles.txt
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
    translator = inference.open_asked(how, "summarization")
    printer = Printer(translator.tokenizers.tgt, how.n_best, as_json, form=form)
    prompt = articles.prompt()
    given = articles.windows(max(1, translator.window // LONGER))
    if window is None:
        write_found(translator.stream(given, how.n_best, need_copies=as_json), printer.write, "articles", prompt)
    else:
        write_found(Summarizer(translator, window).stream(given, as_json), printer.write_windows, "articles", prompt)
    if printer.cut:
        tell(
            f"{printer.cut} of {printer.lines} articles were longer than {translator.max_source_tokens} tokens "
            "and were cut; --window reads them whole"
        )
    printer.say_at_end("summaries", "--max-length")
