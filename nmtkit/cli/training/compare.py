"""`nmtkit compare`."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from nmtkit import config, plots
from nmtkit.cli import options, terminal
from nmtkit.cli.pictures.figures import draw_lengths, show_lengths
from nmtkit.cli.terminal import tables
from nmtkit.cli.terminal.reporting import tell
from nmtkit.cli.training.train import journal_output, train_run
from nmtkit.config import Recipe
from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import RecipeError
from nmtkit.data.text.reading import read_pairs
from nmtkit.experiment.checks import metric_warning, require_same_recipe, require_test_set
from nmtkit.experiment.evaluation import LONG_WORDS, ComparedRun, compare_run
from nmtkit.experiment.execute import begin, choose_device
from nmtkit.metrics.seeds import SeedSummary, summarize_seeds
from nmtkit.metrics.significance import SIGNIFICANCE_LEVEL
from nmtkit.runs.folder import RunFolder, ignore
from nmtkit.runs.run import Run
from nmtkit.training.parallel import processes

EDGES = (10, 20, 30, 40)


def run_compare(
    names: tuple[str, ...],
    overrides: tuple[str, ...],
    runs: Path,
    plot: Path | None,
    seeds: int | None,
    as_json: bool,
    table_format: str | None,
    device: str,
    threads: int | None,
) -> None:
    """Carries out `nmtkit compare`."""
    form = options.chosen_format(table_format, as_json)
    if plot is not None:
        if plot.parent == runs:  # training would create this folder later
            runs.mkdir(parents=True, exist_ok=True)
        plots.picture_format(plot)
    settings = options.with_threads(overrides, threads)
    chosen: list[tuple[RunFolder, Recipe]] = []
    for name in names:
        folder, one = _find_or_load(name, overrides, settings, runs)
        chosen += (
            [(folder, one)] if seeds is None else _with_seeds(name, one, settings, runs, seeds)
        )
    if len({folder.path.resolve() for folder, _ in chosen}) < len(chosen):
        raise RecipeError(
            "two recipes have the same name, so they would share a run; give each recipe a different `name`"
        )
    tests = [require_test_set(one) for _, one in chosen]
    same_test_set = (
        len({tuple((pair.src, pair.tgt) for pair in read_pairs(files)) for files in tests}) == 1
    )
    if not same_test_set:
        tell("warning: these runs have different test sets, so their scores cannot be compared")
    for folder, one in chosen:
        if not folder.result.exists():
            place = choose_device(device, one)
            say = tell if processes.rank() == 0 else ignore
            with journal_output() as journal:
                planned, run = begin(
                    one, place, str(folder.path), resume=folder.has_training(), notify=say
                )
                with run:
                    train_run(planned, run, journal, test=False)
    measured: list[ComparedRun] = []
    for path, one in [(folder.path, one) for folder, one in chosen]:
        name = str(path.relative_to(runs) if path.is_relative_to(runs) else path)
        tell(f"measuring {name}")
        if warning := metric_warning(one):
            tell(warning)
        run = Run.open(path)
        require_same_recipe(run, one)
        measured.append(
            replace(compare_run(run, choose_device(device, one), EDGES, threads), name=name)
        )
    systems = _runs_by_system([one for _, one in chosen], measured)
    summaries: list[SeedSummary] = []
    if same_test_set and any(len(group) > 1 for group in systems.values()):
        outputs = [(name, [run.outputs for run in group]) for name, group in systems.items()]
        summaries = summarize_seeds(
            outputs, measured[0].references, chosen[0][1].evaluation.options
        )
    _print_comparison(form, measured, systems, summaries)
    if plot is not None:
        draw_lengths([one.name for one in measured], [one.by_length for one in measured], plot)


def _print_comparison(
    form: str,
    measured: Sequence[ComparedRun],
    systems: Mapping[str, Sequence[ComparedRun]],
    summaries: Sequence[SeedSummary],
) -> None:
    """Prints a table of the runs and, if there are `summaries`, a table of the systems over their seeds."""
    head, rows = _runs_table(measured)
    if form == "json":
        system_of = {run.name: system for system, group in systems.items() for run in group}
        over_seeds = {
            one.name: asdict(one) | {"mean": one.mean, "deviation": one.deviation}
            for one in summaries
        }
        records = []
        for run in measured:
            record = run.record()
            if summaries:
                record["over_seeds"] = over_seeds[system_of[run.name]]
            records.append(record)
        terminal.say(json.dumps(records, indent=2, ensure_ascii=False))
    elif form == "latex":
        tables.print_latex(*(_seeds_table(summaries) if summaries else (head, rows)))
    elif form == "csv":
        if summaries:
            head, rows = _seeds_table(summaries)
        tables.print_csv(
            head, [[cell.replace(",", "").removesuffix("*") for cell in row] for row in rows]
        )
    else:
        terminal.table("comparison on the test set", head, rows)
        if summaries:
            terminal.say("")
            terminal.table("statistics over seeds", *_seeds_table(summaries))
        terminal.say("")
        show_lengths([one.name for one in measured], [one.by_length for one in measured])


def _with_seeds(
    name: str, first: Recipe, settings: tuple[str, ...], runs: Path, seeds: int
) -> list[tuple[RunFolder, Recipe]]:
    """Loads a recipe with consecutive seeds, starting with the recipe's own; each seed gets its own run."""
    if RunFolder(Path(name)).exists():
        raise RecipeError(
            f"{name}: --seeds trains recipes, but this is a run; remove --seeds, or give a recipe instead"
        )
    chosen = []
    for seed in range(first.seed, first.seed + seeds):
        run_name = f"{first.name}-seed{seed}"
        one = config.load(name, (*settings, f"seed={seed}", f"name={run_name}"))
        chosen.append((RunFolder(runs / run_name), one))
    return chosen


_SEED_SUFFIX = re.compile(r"[-_.]?(seed|s)?[-_.]?\d+$")


def _runs_by_system(
    recipes: Sequence[Recipe], measured: Sequence[ComparedRun]
) -> dict[str, list[ComparedRun]]:
    """Groups runs by system; the runs of a system differ only in seed, name and description."""
    by_settings: dict[str, list[ComparedRun]] = {}
    for one, run in zip(recipes, measured, strict=True):
        settings = one.model_dump_json(exclude={"name", "description", "seed"})
        by_settings.setdefault(settings, []).append(run)
    groups: dict[str, list[ComparedRun]] = {}
    for group in by_settings.values():
        name = group[0].name
        shorter = _SEED_SUFFIX.sub("", name)
        if len(group) > 1 and shorter and shorter not in groups:
            name = shorter
        groups[name] = group
    return groups


def _seeds_table(summaries: Sequence[SeedSummary]) -> tuple[list[str], list[list[str]]]:
    """Returns a table of each system's BLEU over its seeds; * marks a significant difference from the first system."""
    rows = []
    for one in summaries:
        deviation = "-" if one.deviation is None else f"{one.deviation:.2f}"
        p_value = "-"
        if one.p_value is not None:
            p_value = f"{one.p_value:.3f}{'*' if one.p_value < SIGNIFICANCE_LEVEL else ''}"
        rows.append([one.name, str(len(one.scores)), f"{one.mean:.2f}", deviation, p_value])
    return ["system", "seeds", "mean BLEU", "std. deviation", "p"], rows


def _find_or_load(
    name: str, overrides: tuple[str, ...], settings: tuple[str, ...], runs: Path
) -> tuple[RunFolder, Recipe]:
    """Returns the run folder and recipe for a run or a recipe; `settings` are the overrides and `--threads`."""
    folder = RunFolder(Path(name))
    if not folder.exists():
        one = config.load(name, settings)
        folder = RunFolder(runs / one.name)
    elif overrides:
        raise RecipeError(
            f"{name}: this is a trained run, but --set applies only to recipes; give its recipe instead"
        )
    elif not folder.result.exists():
        raise RecipeError(
            f"{name}: this run is not finished; resume it first (`nmtkit train RECIPE --resume`)"
        )
    else:
        one = Run.open(name).recipe
    if "bleu" not in one.test_metrics or TASKS.get(one.task).columns[0].name != "src":
        remedy = "compare other outputs with `nmtkit score` or `nmtkit score-summaries`"
        raise RecipeError(
            f"{name}: `nmtkit compare` supports only models that translate text; {remedy}"
        )
    return folder, one


def _runs_table(measured: Sequence[ComparedRun]) -> tuple[list[str], list[list[str]]]:
    """Returns a table with a row for each run."""
    head = ["recipe", "BLEU", f"BLEU > {LONG_WORDS} words", "AER"]
    head += ["train tok/s", "beam tok/s", "parameters", "minutes", "checkpoint"]
    rows = [
        [
            one.name,
            f"{one.bleu.value:.2f}",
            "-" if one.long_bleu is None else f"{one.long_bleu.value:.2f}",
            "-" if one.aer is None else f"{one.aer.value:.1f}",
            f"{one.training_speed:,.0f}",
            f"{one.search_speed:,.0f}",
            f"{one.parameters:,}",
            f"{one.training_minutes:.1f}",
            one.checkpoint.removesuffix(".safetensors"),
        ]
        for one in measured
    ]
    return head, rows
