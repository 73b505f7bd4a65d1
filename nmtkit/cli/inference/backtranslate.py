"""`nmtkit backtranslate`: synthetic parallel text from monolingual text."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from nmtkit.cli.inference import model_options
from nmtkit.cli.terminal.reporting import tell
from nmtkit.cli.text_io import results
from nmtkit.cli.text_io.reading import text_windows, watched
from nmtkit.config.tasks.builtin import TRANSLATION
from nmtkit.core.errors import DataError
from nmtkit.core.files import file_sha256
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.result import Translation
from nmtkit.inference.synthetic import SyntheticCorpus, SyntheticFilter, describe_faults
from nmtkit.runs.run import find_run

TAG = "<BT>"
"""Tag at the beginning of back-translated sources (Caswell et al. 2019, "Tagged back-translation")."""


@model_options.opens_model
def run_backtranslate(
    how: DecodingOptions,
    files: tuple[Path, ...],
    folder: Path,
    forward: bool,
    max_ratio: float,
    min_log_prob: float | None,
) -> None:
    """Carries out `nmtkit backtranslate`."""
    translator = model_options.open_model(how, TRANSLATION.name)
    search, members = (
        translator.config.model_dump(mode="json"),
        find_run(how.model, task=TRANSLATION.name)[0].members(),
    )
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
        raise DataError(
            f"{folder}: this corpus is complete, with {corpus.written:,} pairs; to create another corpus, give a new "
            "folder with -o"
        )
    if corpus.read:
        tell(f"{folder}: continuing after {corpus.read:,} lines")
    waiting: deque[str] = deque()

    def pairs() -> Iterator[list[tuple[str, Translation]]]:
        read = watched(text_windows(files, model_options.window_lines(translator)), waiting.extend)
        for group in translator.stream(corpus.to_translate(read)):
            yield [(waiting.popleft(), found[0]) for found in group]

    with results.progress("lines") as display:
        for count in corpus.write(pairs(), SyntheticFilter(max_ratio, min_log_prob)):
            display.advance(count)
    left_out = f"; left out: {describe_faults(corpus.left_out)}" if corpus.left_out else ""
    tell(f"{folder}: {corpus.written:,} pairs from {corpus.read:,} lines{left_out}")
    src, tgt = corpus.paths
    tag = "" if forward else f", tag: {TAG}"
    tell(f"to train on this corpus, add this to data.train: - {{src: {src}, tgt: {tgt}{tag}}}")
