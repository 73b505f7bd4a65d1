"""`nmtkit evaluate`."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import click

from nmtkit.cli import terminal
from nmtkit.cli.inference import model_options
from nmtkit.cli.pictures.figures import save_pictures
from nmtkit.cli.scoring import scoring
from nmtkit.cli.scoring.score_summaries import refuse_empty
from nmtkit.cli.terminal.reporting import note
from nmtkit.cli.text_io import results
from nmtkit.cli.text_io.reading import windows
from nmtkit.config.tasks.task import TASKS, Task
from nmtkit.core.columns import label_type
from nmtkit.core.errors import NmtkitError
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.reading import read_pairs
from nmtkit.datasets.sacrebleu_sets import load_sacrebleu_set
from nmtkit.experiment.evaluation import fit_text
from nmtkit.inference.answering import answer
from nmtkit.inference.inputs import TextModel
from nmtkit.inference.loading.opening import load_from_options
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.result import Translation
from nmtkit.inference.translator import Translator
from nmtkit.metrics import Comparison, metric_names, score_all
from nmtkit.metrics.labels import Confusion
from nmtkit.metrics.systems import notes, require_equal_counts
from nmtkit.plots.colour_tables import save_confusion
from nmtkit.plots.pages import picture_format
from nmtkit.runs.run import Run, find_run


@model_options.opens_model
def run_evaluate(
    how: DecodingOptions,
    run: str | None,
    source: Path | None,
    ref: tuple[Path, ...],
    test_set: str | None,
    metrics: str | None,
    tokenize: str | None,
    lowercase: bool | None,
    output: Path | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Carries out `nmtkit evaluate`."""
    if run is not None and how.model is not None:
        raise click.UsageError("RUN and -m both specify the run; use only one of them")
    scoring.require_one_stdin(source, *ref)
    how = replace(how, model=run or how.model)
    saved, _ = find_run(how.model)
    task = TASKS.get(saved.inference.task)
    if source is None and test_set is None and [column.name for column in task.columns] == ["tgt"]:
        beside = {
            "-o": output,
            "--metrics": metrics,
            "--tokenize": tokenize,
            "--[no-]lowercase": lowercase,
        }
        _evaluate_language_model(saved, how, ref, as_json, {**beside, "--plot": plot})
        return
    _require_pairs(task, source, ref, test_set, plot)
    names = metric_names(
        saved.recipe.test_metrics if metrics is None else metrics.replace(",", " ").split()
    )
    sources, refs = _read_test_set(task, source, ref, test_set)
    others = [path for path in (source, *ref, plot) if path is not None]
    with nullcontext() if output is None else results.output_file(output, others) as kept:
        system = load_from_options(how, notify=note)
        begun = time.monotonic()
        texts, outputs = _answers(task, system, sources)
        seconds = time.monotonic() - begun
        if kept is not None:
            kept.writelines(text + "\n" for text in texts)
    n_truncated, n_unfinished = _report_limits(system, outputs)
    runs = " + ".join(str(member.folder.path) for member in saved.members())
    test_name = test_set or str(source)
    defaults = saved.recipe.evaluation.options
    lowercase = defaults.lowercase if lowercase is None else lowercase
    chosen = replace(defaults, tokenize=tokenize or defaults.tokenize, lowercase=lowercase)
    compared, references = task.comparable(texts), [*map(task.comparable, refs)]
    for text in notes(names, references, chosen):
        note(f"note: {text}")
    scores = score_all(compared, references, names, chosen, sources)
    table = None if label_type(task.columns) is None else Confusion.of(compared, references)
    if table is not None and plot is not None:
        draw = partial(save_confusion, table.labels, table.counts, title=f"{runs}: {test_name}")
        save_pictures([plot], draw)
    if as_json:
        facts = {"run": runs, "test_set": test_name, "lines": len(texts), "seconds": seconds}
        record = facts | {
            "sources_cut": n_truncated,
            "unfinished": n_unfinished,
            "scores": [asdict(score) for score in scores],
        }
        record |= (
            {} if table is None else {"labels": table.labels, "confusion": table.counts.tolist()}
        )
        click.echo(json.dumps(record, indent=2, ensure_ascii=False))
        return
    for score in scores:
        note(Comparison(score).line(width=2))
    click.echo(
        "  ".join([runs, test_name, *(f"{score.name} {score.value:.2f}" for score in scores)])
    )
    if table is not None:
        terminal.table("", ["correct \\ predicted", *table.labels], table.rows)


def _read_test_set(
    task: Task, source: Path | None, ref: tuple[Path, ...], test_set: str | None
) -> tuple[list[str], list[list[str]]]:
    """Returns the sources, and the lines of each set of references."""
    if source is None:
        return load_sacrebleu_set(test_set or "")
    sources = scoring.read_texts(source, scoring.JSON_REMEDY, scoring.ARTICLE_FIELD, joint=" ")
    refs = [scoring.read_texts(path, scoring.JSON_REMEDY, scoring.SUMMARY_FIELD) for path in ref]
    named_refs = [*zip(map(str, ref), refs, strict=True)]
    require_equal_counts([(str(source), sources), *named_refs])
    if task.monolingual:
        refuse_empty(named_refs)
    return sources, refs


def _report_limits(system: TextModel, outputs: Sequence[Translation]) -> tuple[int, int]:
    """Reports truncated sources, outputs that reached the length limit, and unknown tokens.

    Returns the numbers of truncated sources and of unfinished outputs.
    """
    n_truncated = sum(output.src_left_out > 0 for output in outputs)
    may_repeat = isinstance(system, Translator) and not system.config.no_repeat_ngram
    unfinished = results.UnfinishedOutputs(may_repeat)
    for number, output in enumerate(outputs, start=1):
        if not output.finished:
            unfinished.add(f"line {number}", output.text)
    results.tell_cut(n_truncated, len(outputs), "sources", system)
    unfinished.warn("outputs", len(outputs), "--max-length or --search max_length_ratio=R")
    unknown_tokens = results.UnknownTokens("source")
    for output in outputs:
        unknown_tokens.add(output.src_tokens)
    unknown_tokens.tell_if_many()
    return n_truncated, unfinished.count


def _answers(
    task: Task, system: TextModel, sources: Sequence[str]
) -> tuple[list[str], list[Translation]]:
    """Returns the output for each source, and the `Translation` of each output found by a search."""
    if not isinstance(system, Translator):
        examples = [Example(line, None, number) for number, line in enumerate(sources, start=1)]
        return answer(task, system, examples).texts, []
    outputs: list[Translation] = []
    # batched as in `translate`
    stream = system.stream(windows(sources, model_options.window_lines(system)))
    results.write_stream(stream, lambda ranked: outputs.append(ranked[0]), "lines", "")
    return [one.text for one in outputs], outputs


def _require_pairs(
    task: Task,
    source: Path | None,
    ref: tuple[Path, ...],
    test_set: str | None,
    confusion: Path | None,
) -> None:
    if confusion is not None and label_type(task.columns) is None:
        raise click.UsageError(
            f"--plot applies only to labels, but the task {task.name} has none; remove --plot"
        )
    if confusion is not None:
        picture_format(confusion)
    if (test_set is None) != (source is not None and bool(ref)) or (
        test_set is not None and (source or ref)
    ):
        raise click.UsageError(
            "specify either --source FILE and --ref FILE, or --test-set NAME, but not both"
        )
    if not task.references or task.columns[0].name != "src":
        raise NmtkitError(
            f"evaluate requires source texts and references, which the task {task.name} does not have"
        )


def _evaluate_language_model(
    saved: Run,
    how: DecodingOptions,
    ref: tuple[Path, ...],
    as_json: bool,
    beside: Mapping[str, object],
) -> None:
    """Prints loss and perplexity on a text; rejects the other options in `beside`, whose keys are option names."""
    beside = {**beside, "all search options": how.search_settings or how.shortlist or None}
    if ignored := [name for name, value in beside.items() if value is not None]:
        raise click.UsageError(
            f"a language model is scored only by loss and perplexity; remove {', '.join(ignored)}"
        )
    files = SplitFiles(tgt=[*map(str, ref)]) if ref else saved.recipe.data.splits().get("test")
    if files is None:
        raise NmtkitError(
            f"{saved.folder.path}: the run's recipe has no test set; give a text with --ref FILE"
        )
    lines = [str(one.tgt) for one in read_pairs(files)]
    (tokens, words, _), _ = fit_text(
        model_options.open_scorer(how), lines, saved.newest_stage().recipe.batch
    )
    fit, run, test_set = tokens.figures, str(saved.folder.path), " + ".join(files.paths())
    scores = {
        "loss": fit["nats"],
        "perplexity": fit["perplexity"],
        "word perplexity": words.figures["perplexity"],
    }
    if as_json:
        results.write_json_line(
            {"run": run, "test_set": test_set, "lines": len(lines), "scores": scores}
        )
    else:
        click.echo(
            "  ".join([run, test_set, *(f"{name} {value:.2f}" for name, value in scores.items())])
        )
