"""`nmtkit rerank`: choosing among the N best translations with a noisy channel model."""

import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from itertools import chain, islice
from pathlib import Path

import click

from nmtkit.cli.inference import model_options
from nmtkit.cli.scoring.scoring import read_texts
from nmtkit.cli.terminal.reporting import tell
from nmtkit.cli.text_io import results
from nmtkit.cli.text_io.output_folder import output_folder
from nmtkit.cli.text_io.reading import text_windows, watched
from nmtkit.config.tasks.builtin import LANGUAGE_MODELLING, TRANSLATION
from nmtkit.core.formats import dump_yaml, load_yaml
from nmtkit.core.settings import parse
from nmtkit.inference.inputs import require_pairs
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.reranking import (
    Candidate,
    ChannelWeights,
    rerank,
    score_candidates,
    tune_weights,
)
from nmtkit.inference.translator import Translator
from nmtkit.metrics import metric_names
from nmtkit.runs.run import find_run


@results.into_output
@model_options.opens_model
def run_rerank(
    how: DecodingOptions,
    files: tuple[Path, ...],
    channel: str,
    speaker: str | None,
    tuned: Path | None,
    tune: Path | None,
    metric: str | None,
    as_json: bool,
) -> None:
    """Carries out `nmtkit rerank`."""
    if tune is not None and (tuned is not None or as_json):
        raise click.UsageError("--tune prints weights; remove --weights and --json")
    if tune is not None and output_folder() is not None:
        raise click.UsageError(
            "--tune prints a single set of weights; use -o instead of --output-dir"
        )
    if tune is None and metric is not None:
        raise click.UsageError("--metrics requires --tune; use both options or neither")
    names = metric_names([metric or "bleu"])
    if len(names) > 1:
        raise click.UsageError(
            f"--metrics {metric} stands for {', '.join(names)}; choose one of them"
        )
    references = [] if tune is None else read_texts(tune, "--tune")
    chosen = parse(ChannelWeights, {} if tuned is None else load_yaml(tuned)[0], str(tuned))
    if speaker is None and "lm" in chosen.model_fields_set and chosen.lm:
        raise click.UsageError(
            f"{tuned} sets the language model's weight to {chosen.lm:g}, but no language model is given; add --lm RUN"
        )
    translator = model_options.open_model(how, TRANSLATION.name)
    other = DecodingOptions(device=how.device, precision=how.precision, threads=how.threads)
    back = model_options.open_scorer(replace(other, model=channel), TRANSLATION.name)
    lm = (
        model_options.open_scorer(replace(other, model=speaker), LANGUAGE_MODELLING.name)
        if speaker
        else None
    )
    text = text_windows(files, model_options.window_lines(translator))
    scored = _score_windows(text, translator, how.n_best, back, lm)
    if tune is not None:
        candidates = [several for window in scored for several in window]
        require_pairs(candidates, references, "reference")
        scored_as = find_run(how.model, task=TRANSLATION.name)[0].recipe.evaluation.options
        best, value, alone = tune_weights(candidates, references, names[0], scored_as)
        tell(f"{names[0]} {value:.2f} with these weights; {alone:.2f} with the model alone")
        sys.stdout.write(dump_yaml(best.model_dump()))
        return
    printer = results.Printer(translator.tokenizers.tgt, 1, as_json)

    def write(candidates: Sequence[Candidate]) -> None:
        ranked = rerank(candidates, chosen)
        printer.lines += 1
        if not ranked[0].finished:
            printer.unfinished.add(printer.place, ranked[0].text)
        if as_json:
            best, *others = [asdict(one) | {"score": one.score(chosen)} for one in ranked]
            results.write_json_line({"line": printer.number, "best": best, "others": others})
        else:
            results.write_line(ranked[0].text)

    results.write_stream(
        scored, write, "lines", "" if files else "type one sentence per line; each is translated"
    )
    printer.report("translations", "--search max_length=N or --search max_length_ratio=R")


def _score_windows(
    text: Iterator[list[str]],
    translator: Translator,
    n_best: int,
    back: Translator,
    lm: Translator | None,
) -> Generator[list[list[Candidate]], None, None]:
    """Yields the candidates of each window. Line numbers, which seed random samples, continue across windows."""
    waiting: deque[list[str]] = deque()
    with closing(translator.stream(watched(text, waiting.append), n_best)) as groups:
        found = chain.from_iterable(groups)
        for first in found:
            lines = waiting.popleft()
            yield score_candidates(lines, [first, *islice(found, len(lines) - 1)], back, lm)
