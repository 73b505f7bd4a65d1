"""`nmtkit backtranslate`: synthetic parallel text from text of one language."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import click
import cloup

from nmtkit.cli import inference, options, results
from nmtkit.cli.options import FILE, Number
from nmtkit.cli.reading import text_windows, watched
from nmtkit.cli.reporting import tell
from nmtkit.core.errors import DataError
from nmtkit.core.files import file_sha256
from nmtkit.experiment.loading import DecodingOptions
from nmtkit.runs.saved import find_run
from nmtkit.tasks.builtin import TRANSLATION
from nmtkit.translation.result import Translation
from nmtkit.translation.synthetic import SyntheticCorpus, SyntheticFilter, describe_faults

TAG = "<BT>"
"""The tag before a back-translated source: Caswell et al. 2019, "Tagged back-translation"."""


@cloup.command("backtranslate")
@options.files
@cloup.option_group(
    "Common",
    options.models,
    inference.checkpoint,
    inference.language,
    click.option("-o", "--output", "folder", required=True, type=FILE, metavar="DIR", help="Folder of the new corpus."),
    inference.search_flags("beam_size"),
    click.option("--forward", is_flag=True, help="The text is of the source language: translations are targets."),
    options.devices,
)
@cloup.option_group(
    "Pairs that are kept",
    click.option(
        "--max-ratio",
        type=Number(1, whole=False),
        default=3.0,
        show_default=True,
        metavar="R",
        help="The longer side has at most R times the tokens of the shorter.",
    ),
    click.option(
        "--min-log-prob",
        type=float,
        metavar="X",
        help="The model gives a translation at least X nats a token, e.g. -2. Default: any.",
    ),
)
@inference.search_groups(inference.workers)
@options.quiet
@inference.opens_model
def command(
    how: DecodingOptions,
    files: tuple[Path, ...],
    folder: Path,
    forward: bool,
    max_ratio: float,
    min_log_prob: float | None,
) -> None:
    """Translate FILEs, or standard input, and write the pairs as a corpus to train on.

    Back-translation: FILEs are text of the target language, and the model translates into the source language. DIR gets
    src.txt (translations) and tgt.txt (FILEs), without pairs that are empty, cut, or too unlike in length. A stopped
    command goes on where it was if it is given again. Recipes name the corpus with the tag <BT>, which tells the model
    that its sources are synthetic.

    --forward: FILEs are of the source language, and translations are the targets: distillation of a large model, or
    self-training.

    \b
    Examples:
      nmtkit backtranslate -m runs/de-en mono.de -o back
      nmtkit backtranslate -m runs/de-en mono.de.gz -o back --samples 1 --top-k 10
      nmtkit backtranslate -m runs/large train.en -o distilled --forward --beam-size 5
    """
    translator = inference.open_model(how, TRANSLATION.name)
    search, members = translator.config.model_dump(mode="json"), find_run(how.model, task=TRANSLATION.name)[0].members()
    beside = "source_language", "lm", "lm_weight", "ensemble_weights", "shortlist"
    settings = {
        "model": translator.name,
        "checkpoint": how.weights,
        "direction": "forward" if forward else "backward",
        "language": how.to,
        "checkpoint file": [file_sha256(one.weights(how.weights))[:16] for one in members],
        "ensemble": how.ensemble if how.ensemble != "probabilities" else None,
        **{key: value and str(value) for key in beside for value in [getattr(how, key)]},
        "max_ratio": max_ratio,
        "min_log_prob": min_log_prob,
        **{f"search.{key}": value for key, value in search.items()},
    }
    corpus = SyntheticCorpus(folder, settings, forward)
    if corpus.over:
        pairs_kept = f"with {corpus.kept:,} pairs; for another one name another folder with -o"
        raise DataError(f"{folder}: is complete, {pairs_kept}")
    if corpus.read:
        tell(f"{folder}: goes on after {corpus.read:,} lines")
    waiting: deque[str] = deque()

    def pairs() -> Iterator[list[tuple[str, Translation]]]:
        read = watched(text_windows(files, inference.window_lines(translator)), waiting.extend)
        for group in translator.stream(corpus.to_translate(read)):
            yield [(waiting.popleft(), found[0]) for found in group]

    with results.progress("lines") as display:
        for count in corpus.write(pairs(), SyntheticFilter(max_ratio, min_log_prob)):
            display.advance(count)
    left_out = f"; left out: {describe_faults(corpus.left_out)}" if corpus.left_out else ""
    tell(f"{folder}: {corpus.kept:,} pairs of {corpus.read:,} lines{left_out}")
    src, tgt = corpus.paths
    tag = "" if forward else f", tag: {TAG}"
    tell(f"add it to the corpora of data.train: - {{src: {src}, tgt: {tgt}{tag}}}")
