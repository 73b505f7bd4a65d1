"""`nmtkit evaluate`."""

import json
import time
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import cloup

from nmtkit.cli import completing, inference, options, results, scoring
from nmtkit.cli.options import FILE
from nmtkit.cli.reading import windows
from nmtkit.cli.reporting import note, tell
from nmtkit.corpora.sacrebleu_sets import load_sacrebleu_set
from nmtkit.experiment.loading import ModelOptions
from nmtkit.metrics import Comparison, Score, metric_names, score_all
from nmtkit.metrics.systems import require_equal_counts
from nmtkit.recipe import Recipe
from nmtkit.runs.saved import find_run
from nmtkit.translation.result import Translation
from nmtkit.translation.translator import Translator


@dataclass(frozen=True)
class TestSetOptions:
    """The test set: files, or a set of sacrebleu."""

    source: Path | None
    ref: tuple[Path, ...]
    test_set: str | None
    article_field: str
    summary_field: str

    def __post_init__(self) -> None:
        if (self.test_set is None) != (self.source is not None and bool(self.ref)) or (
            self.test_set is not None and (self.source is not None or self.ref)
        ):
            raise click.UsageError("give --source FILE and --ref FILE, or --test-set NAME alone")

    def read(self) -> tuple[list[str], list[list[str]]]:
        """The sources, and a list for each reference."""
        if self.test_set is not None:
            published = load_sacrebleu_set(self.test_set)
            return published.sources, published.references
        assert self.source is not None
        sources = scoring.read_texts(self.source, "--article-field", self.article_field, joint=" ")
        refs = [scoring.read_texts(path, "--summary-field", self.summary_field) for path in self.ref]
        require_equal_counts([(str(self.source), sources), *zip(map(str, self.ref), refs, strict=True)])
        return sources, refs

    @property
    def name(self) -> str:
        """The name of the test set."""
        return self.test_set or str(self.source)


@dataclass(frozen=True)
class MetricOptions:
    """Metrics and their settings; None: the recipe's."""

    metrics: str | None
    tokenize: str | None
    lowercase: bool | None

    def score(self, texts: list[str], refs: list[list[str]], sources: list[str], recipe: Recipe) -> list[Score]:
        """The scores, in order."""
        defaults = recipe.evaluation.options
        lowercase = defaults.lowercase if self.lowercase is None else self.lowercase
        chosen = replace(defaults, tokenize=self.tokenize or defaults.tokenize, lowercase=lowercase)
        return score_all(texts, refs, self.names(recipe), chosen, sources)

    def names(self, recipe: Recipe) -> list[str]:
        """The names of the metrics."""
        return metric_names(recipe.test_metrics if self.metrics is None else self.metrics.replace(",", " ").split())


@cloup.command()
@click.argument("run", required=False, shell_complete=completing.runs)
@cloup.option_group(
    "Common",
    options.models,
    inference.checkpoint,
    click.option("--source", type=FILE, help="Sources of the test set, plain or .gz, or .jsonl."),
    click.option("--ref", type=FILE, multiple=True, help="Its references. May be repeated."),
    click.option("--test-set", metavar="NAME/PAIR", help="A test set of sacrebleu, such as wmt14/en-de; downloaded."),
    results.output,
    click.option("--metrics", metavar="LIST", help="As in `nmtkit score`, e.g. bleu,ter. Default: the recipe's."),
    inference.search_flags("beam_size"),
    options.as_json("Print a JSON object: scores with signatures, time, counts."),
    options.devices,
)
@inference.search_groups(inference.workers)
@cloup.option_group(
    "Texts and metrics",
    click.option("--article-field", metavar="KEY", default="article", help="Key of articles in .jsonl. [article]"),
    click.option("--summary-field", metavar="KEY", default="summary", help="Key of summaries in .jsonl. [summary]"),
    scoring.tokenize_option(None, "BLEU's tokenizer. Default: the recipe's."),
    click.option("--lowercase/--no-lowercase", default=None, help="BLEU and chrF ignore case. Default: the recipe's."),
)
@options.quiet
@inference.opens_model
@options.collect(TestSetOptions, "files")
@options.collect(MetricOptions, "metrics")
def command(
    how: ModelOptions,
    run: str | None,
    files: TestSetOptions,
    metrics: MetricOptions,
    output: Path | None,
    as_json: bool,
) -> None:
    """Translate or summarize a test set with a RUN, and score it.

    Prints one line, "RUN  TEST SET  METRIC VALUE ...". The figures are those of `nmtkit translate` (or `summarize`)
    and `nmtkit score` (or `score-summaries`). Lines to paste, with signatures, go to stderr. -o keeps the outputs.

    \b
    Examples:
      nmtkit evaluate runs/mine --source test.en --ref test.de
      nmtkit evaluate runs/mine --test-set wmt14/en-de -o wmt14.de
      nmtkit evaluate runs/news --source test.jsonl.gz --ref test.jsonl.gz --json
      nmtkit evaluate --source test.en --ref a.de --ref b.de --metrics bleu,chrf,ter --beam-size 10
    """
    if run is not None and how.model is not None:
        raise click.UsageError("RUN and -m name the same thing: give one of them")
    how = replace(how, model=run or how.model)
    saved, _ = find_run(how.model)
    metrics.names(saved.recipe)
    sources, refs = files.read()
    read = results.paths_in({"source": files.source, "ref": files.ref})
    with nullcontext() if output is None else results.output_file(output, read) as kept:
        translator = inference.open_model(how)
        begun = time.monotonic()
        outputs = _outputs(translator, sources)
        seconds = time.monotonic() - begun
        texts = [one.text for one in outputs]
        if kept is not None:
            kept.writelines(text + "\n" for text in texts)
    cut, unfinished = sum(one.src_left_out > 0 for one in outputs), sum(not one.finished for one in outputs)
    results.tell_cut(cut, len(outputs), "sources", translator)
    if unfinished:
        tell(f"{unfinished} of {len(outputs)} outputs reached the length limit; --max-length raises it")
    runs = " + ".join(str(one.folder.path) for one in saved.members())
    scores = metrics.score(texts, refs, sources, saved.recipe)
    if as_json:
        facts = {"run": runs, "test_set": files.name, "lines": len(texts), "seconds": seconds}
        record = facts | {"sources_cut": cut, "unfinished": unfinished, "scores": [asdict(score) for score in scores]}
        click.echo(json.dumps(record, indent=2, ensure_ascii=False))
        return
    for score in scores:
        note(Comparison(score).line(width=2))
    figures = (f"{score.name} {score.value:.2f}" for score in scores)
    click.echo("  ".join([runs, files.name, *figures]))


def _outputs(translator: Translator, sources: list[str]) -> list[Translation]:
    """The best output for each source, in the same batches as by `translate` or `summarize`."""
    outputs: list[Translation] = []
    stream = translator.stream(windows(sources, inference.window_lines(translator)))
    with results.progress("lines") as display, closing(stream):
        for batch in stream:
            outputs += [best for best, *_ in batch]
            display.advance(len(batch))
    return outputs
