"""`nmtkit perplexity`."""

from itertools import chain
from pathlib import Path

from nmtkit.cli import terminal
from nmtkit.cli.inference import model_options
from nmtkit.cli.terminal.reporting import tell
from nmtkit.cli.text_io import results
from nmtkit.cli.text_io.reading import text_windows
from nmtkit.config.tasks.builtin import LANGUAGE_MODELLING
from nmtkit.data.batches.shards import manifest_path
from nmtkit.data.batches.store import Store
from nmtkit.experiment.evaluation import count_words, fit_text
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.runs.run import find_run


@model_options.opens_model
def run_perplexity(
    how: DecodingOptions,
    files: tuple[Path, ...],
    frequencies: Path | None,
    as_json: bool,
    block_tokens: int | None,
) -> None:
    """Carries out `nmtkit perplexity`."""
    run = find_run(how.model, task=None if how.model else LANGUAGE_MODELLING.name)[0]
    system = model_options.open_scorer(how, run.inference.task)
    lines, tokenizer = [*chain.from_iterable(text_windows(files))], system.tokenizers.tgt
    texts = results.UnknownTokens("target")
    for ids in tokenizer.encode_many(lines):
        texts.add(tokenizer.pieces(ids))
    texts.tell_if_many()
    counts = None
    if frequencies is not None:
        known = chain.from_iterable(text_windows([frequencies]))
        counts = count_words(tokenizer, map(tokenizer.encode, known))
    elif manifest_path(run.folder.data, "train").is_file():
        store = Store.open(run.folder.data, "train")
        counts = count_words(
            tokenizer, (store.ids("tgt", number).tolist() for number in range(len(store)))
        )
    else:
        tell(
            "there is no table of words by frequency, because the run has no training text; give a text with "
            "--frequencies FILE"
        )
    config = run.newest_stage().recipe.batch
    # without block_tokens, each line was a separate example in training
    across = config.across_documents and config.block_tokens is not None
    config = config.changed(
        {"block_tokens": block_tokens or config.block_tokens, "across_documents": across}
    )
    tables = dict(
        zip(("by_unit", "by_frequency"), fit_text(system, lines, config, counts), strict=True)
    )
    if as_json:
        results.write_json_line(
            {name: [vars(one) | one.figures for one in fits] for name, fits in tables.items()}
        )
        return
    for title, fits in zip(
        ("perplexity", "words by frequency in the training text"), tables.values(), strict=True
    ):
        rows = [
            [one.unit, f"{one.count:,}", *(f"{value:.3f}" for value in one.figures.values())]
            for one in fits
        ]
        if rows:
            terminal.table(title, ["unit", "number", *fits[0].figures], rows)
