"""`nmtkit train`."""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType

import click
import cloup
import torch

from nmtkit import console, recipe
from nmtkit.cli import bench, completing, options
from nmtkit.cli.options import Number
from nmtkit.cli.progress import describe_end, schedule_warning, show_event
from nmtkit.cli.reporting import tell
from nmtkit.cli.reports import show_changes, show_diagnosis, show_report
from nmtkit.core import device as devices
from nmtkit.core.errors import NmtkitError
from nmtkit.core.processes import available_cores
from nmtkit.distributed import processes
from nmtkit.experiment.report import save_report
from nmtkit.experiment.run import Run, choose_device
from nmtkit.experiment.stages import StageStarted, more_time_advice
from nmtkit.metrics import Comparison, Score
from nmtkit.presets.fine_tuning import score_after, score_before
from nmtkit.presets.fitting import PRESETS, TASKS_WITH_PRESETS
from nmtkit.presets.without_recipe import RecipeRequest, name_of_run, propose_recipe
from nmtkit.runs.folder import RunFolder, ignore
from nmtkit.runs.metrics_log import TrainLog
from nmtkit.tasks.task import TASKS
from nmtkit.training.events import Stopped

EXAMPLES_SHOWN = 5
MAX_MINUTES = 10_000_000


def _text_option(option: str, meaning: str) -> options.Decorator:
    """An option for files of text, which are saved with their absolute paths."""
    return click.option(
        option,
        metavar="FILE",
        multiple=True,
        callback=lambda ctx, parameter, given: tuple(map(os.path.abspath, given)),
        help=meaning,
    )


class _TrainCommand(cloup.Command):
    """A command whose `--resume` takes the word after it only if that is `auto`: any other is the recipe."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [
            "--resume=always" if word == "--resume" and following != "auto" else word
            for word, following in pairwise([*args, ""])
        ]
        return super().parse_args(ctx, words)


@cloup.command(cls=_TrainCommand)
@click.argument("name", metavar="[RECIPE]", required=False, shell_complete=completing.recipes)
@cloup.option_group(
    "Common",
    options.overrides,
    options.run_folder,
    click.option(
        "--resume",
        "resuming",
        type=click.Choice(["always", "auto"]),
        metavar="[auto]",
        help="Continue a stopped run: bit-identical to an uninterrupted one on a CPU, and on CUDA with "
        "training.deterministic; else up to rounding. auto: begin the run if there is none.",
    ),
    click.option(
        "--overwrite", is_flag=True, help="Replace an earlier run, once the new one has saved its first state."
    ),
    click.option(
        "--allow-new-data",
        is_flag=True,
        help="With --resume: continue with other text. The tokenizer stays; the epoch begins anew.",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Make one update and print memory, speed, operations and the time of the whole, or of the first stage; "
        "save nothing.",
    ),
    options.device,
    options.training_threads,
)
@cloup.option_group(
    "Text, without a recipe",
    _text_option("--source", "Source text, one sentence or article per line. May be repeated."),
    _text_option(
        "--target", "Its translation, summary or label, line by line; or, for --task language-modelling, the text."
    ),
    _text_option("--valid-source", "Validation text. Default: 5 % of the pairs held out, at most 1,000 sources."),
    _text_option("--valid-target", "Its translation."),
    _text_option("--test-source", "Text scored at the end. Default: as many held out, unless --valid-source is given."),
    _text_option("--test-target", "Its translation."),
    click.option(
        "--minutes",
        type=Number(0, MAX_MINUTES, whole=False, above=True),
        help="Minutes to train for: all are used, but for a fine-tuning that gains no more.",
    ),
    click.option("--task", type=click.Choice(TASKS_WITH_PRESETS), help="Default: translation."),
    click.option(
        "--preset",
        type=click.Choice([*PRESETS]),
        metavar="NAME",
        help="; ".join(f"{name} {meaning}" for name, meaning in PRESETS.items()) + ". Default: by corpus and device.",
    ),
)
@cloup.option_group(
    "Fine-tuning on that text",
    click.option(
        "--init-from",
        metavar="RUN",
        shell_complete=completing.runs,
        help="Fine-tune this run: its weights and tokenizer.",
    ),
    _text_option("--general-source", "General text to mix in, half of the pairs, so that the model forgets less."),
    _text_option("--general-target", "Its translation."),
    _text_option("--general-test-source", "General text to score before and after. Default: the test set of RUN."),
    _text_option("--general-test-target", "Its translation."),
)
@options.collect(RecipeRequest, "request")
def command(
    name: str | None,
    request: RecipeRequest,
    overrides: tuple[str, ...],
    run_path: str | None,
    resuming: str | None,
    overwrite: bool,
    allow_new_data: bool,
    dry_run: bool,
    device: str,
    threads: int | None,
) -> None:
    """Train the model of RECIPE: a file, or the name of a recipe that comes with nmtkit.

    With --source and --target instead of RECIPE, nmtkit chooses a recipe by the size of the text: tokenizer, model,
    schedule. It says what it chose and why, and saves it in the run's folder as chosen.yaml, a recipe like any other.
    Without a validation set it holds pairs out for one, and for a test set. Every option that takes a FILE may be
    repeated. --init-from fine-tunes a run, trained here or imported, and shows the scores before and after on your test
    set and on that of the run.

    The run's folder, runs/NAME, holds the resolved recipe, the tokenizer, checkpoints, metrics.jsonl, train.log, and
    curves for TensorBoard if that is installed. Ctrl-C and SIGTERM save the state and stop; a second Ctrl-C stops at
    once. If the recipe names a test set, the trained model translates (or summarizes) it, and the output is scored.

    In the log, "loss" is the training loss with label smoothing and other objectives; "ppl" is the perplexity of the
    references alone. Each stage of a recipe begins with the best weights of the one before; --resume continues the
    stage that was stopped. With --resume, --set may change limits, batch.*, training.accumulate, what is logged,
    saved and kept, threads and shard.

    \b
    Examples:
      nmtkit train demo
      nmtkit train --source train.en --target train.de
      nmtkit train --source a.en.gz --source b.en --target a.de.gz --target b.de --preset tiny --minutes 20
      nmtkit train --source help.en --target help.de --init-from runs/general
      nmtkit train --task summarization --source articles.txt --target summaries.txt --run runs/news
      nmtkit train --task language-modelling --target text.en
      nmtkit train --task classification --source texts.txt --target labels.txt
      nmtkit train mine.yaml --set training.lr=0.0005 --set model.layers=2 --run runs/two-layers
      nmtkit train mine.yaml --dry-run
      nmtkit train mine.yaml --resume
      nmtkit train mine.yaml --resume --set training.max_minutes=90
      torchrun --nproc-per-node 4 -m nmtkit train mine.yaml --resume auto
    """
    _require_fitting_options(name, request, resuming, overwrite, allow_new_data, dry_run)
    settings = options.with_threads(overrides, threads)
    with ExitStack() as ending:
        ending.callback(processes.leave)
        journal = ending.enter_context(journal_output())
        loaded = None if name is None else recipe.load(name, settings)
        folder = RunFolder.at(run_path, name_of_run(request) if loaded is None else loaded.name)
        if dry_run:
            folder = RunFolder(Path(ending.enter_context(tempfile.TemporaryDirectory()), folder.path.name))
        path = str(folder.path)
        resume = _resume(resuming, folder, device, loaded)
        if loaded is None:
            lock = propose_recipe(
                request, path, overrides, resume=resume, overwrite=overwrite, device=device, notify=tell
            )
            if lock is not None:
                ending.enter_context(lock)
            loaded = recipe.load(str(folder.chosen), settings)
        place = choose_device(device, loaded)
        if dry_run:
            bench.dry_run(loaded, path, place)
            return
        run = begin_training(loaded, path, resume, overwrite, allow_new_data)
        ending.callback(run.close)
        processes.run_on_rank_zero(partial(score_before, run, place, threads, tell))
        stopped = train_run(run, place, resume, journal)
        if processes.rank() == 0:
            own = _test_model(run, place, threads)
            show_changes(score_after(run, place, own, threads), len(run.recipe.data.train.weights) > 1)
            tell(f"training took {stopped.seconds / 60:.1f} minutes")
            try:  # a fault there is none of the training; counting operations is for those of more than a minute
                save_report(run, run.folder.page, count=stopped.seconds > 60)
                tell(f"a page about this training: {run.folder.page}")
            except Exception as fault:
                tell(f"{run.folder.page}: the page about this training is not drawn: {fault}")
            if advice := more_time_advice(run, stopped):
                tell(advice)


def _require_fitting_options(
    name: str | None, request: RecipeRequest, resuming: str | None, overwrite: bool, allow_new_data: bool, dry_run: bool
) -> None:
    given = request.given()
    if resuming and overwrite:
        raise click.UsageError("--resume continues a run and --overwrite replaces it: give one of them")
    if allow_new_data and not resuming:
        raise click.UsageError("--allow-new-data is for a run that is resumed: give it with --resume")
    if dry_run and (resuming or overwrite):
        raise click.UsageError("--dry-run saves nothing: leave --resume and --overwrite out")
    if name is not None and given:
        raise click.UsageError(
            f"{name} is a recipe, and {', '.join(given)} are for training without one; a recipe is changed by its "
            "keys: --set training.max_minutes=N, --set init_from=RUN, --set 'data.train={src: FILE, tgt: FILE}'"
        )
    if name is None and not given:
        raise click.UsageError("name a recipe (`nmtkit recipe ls`), or your text: --source FILE --target FILE")
    if name is None and (fault := request.fault()):
        raise click.UsageError(fault)


def _resume(resuming: str | None, folder: RunFolder, device: str, loaded: recipe.Recipe | None) -> bool:
    """Whether to continue the run in a folder; process 0 looks, before it changes anything there."""
    if resuming != "auto":
        return resuming is not None
    if loaded is None:
        processes.join(devices.choose(device))
    else:  # which takes a GPU in use as the recipe wants, if that is deterministic
        choose_device(device, loaded)
    begun = processes.broadcast_object(folder.has_training() if processes.rank() == 0 else None)
    if processes.rank() == 0:
        tell(f"{folder.path}: {'resuming the training in this folder' if begun else 'nothing to resume: beginning'}")
    return begun


@contextmanager
def journal_output() -> Iterator[TrainLog]:
    """Copies what is written to the terminal inside into train.log, and the error that ended it."""
    with closing(TrainLog(["nmtkit", *sys.argv[1:]], tell)) as journal, console.tee(journal.write):
        try:
            yield journal
        except Exception as fault:
            journal.write(f"error: {fault}" if isinstance(fault, NmtkitError) else f"error: {fault!r}")
            raise


def begin_training(
    loaded: recipe.Recipe, path: str, resume: bool, overwrite: bool = False, allow_new_data: bool = False
) -> Run:
    """A run in a folder, ready to train; see `Run.begin`. The caller closes it."""
    return Run.begin(
        loaded,
        path,
        resume=resume,
        overwrite=overwrite,
        allow_new_data=allow_new_data,
        notify=tell if processes.rank() == 0 else ignore,
        report=show_report,
        diagnosed=show_diagnosis,
        # Preprocessing takes as many cores as training may; of several processes one does it, while the others wait.
        processes=torch.get_num_threads() if processes.size() == 1 else available_cores(),
    )


def train_run(run: Run, place: torch.device, resume: bool, journal: TrainLog) -> Stopped:
    """Trains a run and shows its progress; ends the program when a signal stops it."""
    first = processes.rank() == 0
    if first:
        journal.open(run.folder)
    say = tell if first else ignore
    run.resolve_auto(place, say)
    say(f"training {run.recipe.name} in {run.folder.path}, on {devices.describe(place)}")
    stop = threading.Event()

    def stop_once(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        tell("stopping after this update; the state will be saved (once more to stop at once)")

    _on_signals(stop_once)
    stopped, stage = None, None
    with console.TrainingDisplay() as display:
        for event in run.train(place, display.message if first else ignore, resume, stop.is_set):
            if isinstance(event, StageStarted):
                stage = event
                continue
            if first:
                show_event(display, event, run.recipe, stage)
            if isinstance(event, Stopped):
                stopped = event
    _on_signals(signal.default_int_handler)
    assert stopped is not None
    if first and stopped.reason == "interrupted":
        tell(f"stopped after update {stopped.update}; the state is saved: go on with --resume")
        raise SystemExit(130)
    say(f"finished after {describe_end(stopped)}")
    if stage is None and (warning := schedule_warning(stopped)):
        say(warning)
    return stopped


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _test_model(run: Run, place: torch.device, threads: int | None) -> Score | None:
    """Tests the model, and shows scores and examples; returns the first score."""
    result = run.test(place, tell, threads)
    if result is None:
        return None
    lines = len(result.examples)
    task = TASKS.get(run.recipe.task)
    speed = lines / max(result.seconds, 1e-9)
    if result.outputs:
        tell(f"{task.done} the test set: {lines} lines at {speed:.0f} lines/s, in {run.folder.test_output}")
    if result.cut:
        tell(f"of {result.cut} of them only the beginning was read, as in training (data.over_long: truncate)")
    if not result.scores:
        return None
    for number in range(0, len(result.outputs), max(lines // EXAMPLES_SHOWN, 1))[:EXAMPLES_SHOWN]:
        example = result.examples[number]
        console.say(f"\nsource       {example.src or f'line {example.line}'}")
        console.say(f"reference    {getattr(example, task.references)}")
        console.say(f"{task.result:11}  {result.outputs[number]}")
    console.say("")
    console.table("test set", ["metric", "score"], [[score.name, f"{score.value:.2f}"] for score in result.scores])
    console.say("")
    for score in result.scores:
        console.say(Comparison(score).line(2))
    return result.scores[0]
