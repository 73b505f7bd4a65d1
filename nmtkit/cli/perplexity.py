"""`nmtkit perplexity`."""

from itertools import chain
from pathlib import Path

import click
import cloup

from nmtkit import console
from nmtkit.cli import inference, options, results
from nmtkit.cli.options import FILE, Number
from nmtkit.cli.reading import text_windows
from nmtkit.cli.reporting import tell
from nmtkit.data.shards import manifest_path
from nmtkit.data.store import Store
from nmtkit.experiment.evaluation import count_words, fit_text
from nmtkit.experiment.loading import DecodingOptions
from nmtkit.runs.saved import find_run
from nmtkit.tasks.builtin import LANGUAGE_MODELLING


@cloup.command()
@options.files
@cloup.option_group(
    "Common",
    options.model,
    inference.checkpoint,
    click.option("--block-tokens", type=Number(1), metavar="N", help="Tokens of a block. Default: as in training."),
    click.option(
        "--frequencies", type=FILE, metavar="FILE", help="Count words here. Default: the run's training text."
    ),
    options.as_json("Print a JSON object with all digits."),
    options.device,
)
@cloup.option_group("Speed", inference.precision("fp32"), inference.batch_tokens, options.threads)
@options.quiet
@inference.opens_model
def command(
    how: DecodingOptions, files: tuple[Path, ...], frequencies: Path | None, as_json: bool, block_tokens: int | None
) -> None:
    """Measure how well a language model predicts FILEs, or standard input: perplexity by token, word and byte.

    A line is a document. Its end counts as a token, a word and a byte; empty lines are left out. Words are what white
    space separates. The second table has them by how often they stand in the training text of the run.

    A run with batch.block_tokens reads running text in such blocks, as in training: what a block begins with is
    predicted from the token before it alone. Larger blocks have more context, as far as the model has positions. Any
    other run reads each line by itself; --block-tokens cuts the longer ones.

    \b
    Examples:
      nmtkit perplexity -m runs/mine test.txt
      nmtkit perplexity -m runs/mine --json test.txt | jq '.by_unit[1].perplexity'
    """
    run = find_run(how.model, task=None if how.model else LANGUAGE_MODELLING.name)[0]
    system = inference.open_model(how, run.inference.task)
    lines, tokenizer = [*chain.from_iterable(text_windows(files))], system.tokenizers.tgt
    counts = None
    if frequencies is not None:
        known = chain.from_iterable(text_windows([frequencies]))
        counts = count_words(tokenizer, map(tokenizer.encode, known))
    elif manifest_path(run.folder.data, "train").is_file():
        store = Store.open(run.folder.data, "train")
        counts = count_words(tokenizer, (store.ids("tgt", number).tolist() for number in range(len(store))))
    else:
        tell("no table by frequency: the run has no training text; --frequencies FILE names a text to count words in")
    config = run.newest_stage().recipe.batch
    across = config.across_documents and config.block_tokens is not None  # else each line was an example
    config = config.changed({"block_tokens": block_tokens or config.block_tokens, "across_documents": across})
    tables = dict(zip(("by_unit", "by_frequency"), fit_text(system, lines, config, counts), strict=True))
    if as_json:
        results.write_json_line({name: [vars(one) | one.figures for one in fits] for name, fits in tables.items()})
        return
    for title, fits in zip(("perplexity", "words by their number in the training text"), tables.values(), strict=True):
        rows = [[one.unit, f"{one.count:,}", *(f"{value:.3f}" for value in one.figures.values())] for one in fits]
        if rows:
            console.table(title, ["unit", "number", *fits[0].figures], rows)
