"""`nmtkit train`."""

import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import FrameType

import click
import torch

from nmtkit import config
from nmtkit.cli import options, terminal
from nmtkit.cli.terminal.progress import describe_end, schedule_warning, show_event
from nmtkit.cli.terminal.reporting import tell
from nmtkit.cli.terminal.reports import show_changes, show_diagnosis, show_report
from nmtkit.cli.training import bench
from nmtkit.config.tasks.task import TASKS
from nmtkit.core import device as devices
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import file_sha256
from nmtkit.core.processes import available_cores
from nmtkit.core.user_module import load_copy
from nmtkit.data.text.checking import DataReport
from nmtkit.datacheck.findings import Diagnosis
from nmtkit.experiment.execute import (
    Executed,
    FineTuned,
    Prepared,
    Trained,
    begin,
    choose_device,
    execute,
)
from nmtkit.experiment.plan import Plan
from nmtkit.experiment.presets.without_recipe import (
    RecipeRequest,
    held_out_note,
    name_of_run,
    propose_recipe,
)
from nmtkit.experiment.report import save_report
from nmtkit.experiment.stages import StageStarted, more_time_advice
from nmtkit.inference.answering import ScoredAnswers
from nmtkit.metrics import Comparison
from nmtkit.runs.folder import RunFolder, ignore
from nmtkit.runs.metrics_log import TrainLog
from nmtkit.runs.run import Run
from nmtkit.training.events import Stopped
from nmtkit.training.parallel import processes

EXAMPLES_SHOWN = 5


@options.collect(RecipeRequest, "request")
def run_train(
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
    """Carries out `nmtkit train`."""
    _require_fitting_options(name, request, resuming, overwrite, allow_new_data, dry_run)
    settings = options.with_threads(overrides, threads)
    with ExitStack() as ending:
        ending.callback(processes.leave)
        journal = ending.enter_context(journal_output())
        if name is not None and not overwrite:
            load_copy(RunFolder.at(run_path, config.run_name(name, overrides)).path)
        loaded = None if name is None else config.load(name, settings)
        folder = RunFolder.at(run_path, name_of_run(request) if loaded is None else loaded.name)
        if dry_run:
            folder = RunFolder(
                Path(ending.enter_context(tempfile.TemporaryDirectory()), folder.path.name)
            )
        path = str(folder.path)
        resume = _resume(resuming, folder, device, loaded)
        if loaded is None:
            lock = propose_recipe(
                request,
                path,
                overrides,
                resume=resume,
                overwrite=overwrite,
                device=device,
                notify=tell,
            )
            if lock is not None:
                ending.enter_context(lock)
            loaded = config.load(str(folder.chosen), settings)
        place = choose_device(device, loaded)
        if dry_run:
            bench.dry_run(loaded, path, place)
            return
        say = tell if processes.rank() == 0 else ignore
        planned, run = begin(loaded, place, path, resume=resume, overwrite=overwrite, notify=say)
        ending.callback(run.close)
        stopped = train_run(planned, run, journal, allow_new_data=allow_new_data, threads=threads)
        if processes.rank() == 0:
            _show_end(run, stopped)


def _show_end(run: Run, stopped: Stopped) -> None:
    """Writes the report on the run, and prints advice on longer training."""
    tell(f"training took {stopped.seconds / 60:.1f} minutes")
    # An error here does not affect the run. Operations are counted only for runs longer than a minute.
    try:
        save_report(run, run.folder.page, count=stopped.seconds > 60)
        tell(f"report on this run: {run.folder.page}")
    except Exception as fault:
        tell(f"{run.folder.page}: the report on this run could not be written: {fault}")
    if advice := more_time_advice(run, stopped):
        tell(advice)


_KEYS = {
    "--source": "'data.train={src: FILE, tgt: FILE}'",
    "--target": "'data.train={src: FILE, tgt: FILE}'",
    "--valid": "'data.valid={src: FILE, tgt: FILE}'",
    "--test": "'data.test={src: FILE, tgt: FILE}'",
    "--minutes": "training.max_minutes=N",
    "--encoding": "data.train.encoding=NAME",
    "--init-from": "init_from=RUN",
}
"""Keys of recipes that have the same effect as options for training without a recipe."""


def _keys_instead(given: Iterable[str]) -> str:
    """Returns the keys that replace some options, as the end of a message."""
    keys = {_KEYS[option] for option in given if option in _KEYS}
    if not keys:
        return " (`nmtkit recipe explain` lists them)"
    return f": {', '.join(f'--set {key}' for key in sorted(keys))}"


def _require_fitting_options(
    name: str | None,
    request: RecipeRequest,
    resuming: str | None,
    overwrite: bool,
    allow_new_data: bool,
    dry_run: bool,
) -> None:
    given = request.given()
    if resuming and overwrite:
        raise click.UsageError(
            "--resume continues a run, but --overwrite replaces it; use only one of them"
        )
    if allow_new_data and not resuming:
        raise click.UsageError("--allow-new-data applies only to a resumed run; add --resume")
    if dry_run and (resuming or overwrite):
        raise click.UsageError("--dry-run saves nothing; remove --resume and --overwrite")
    if name is not None and given:
        raise click.UsageError(
            f"{name} is a recipe, but {', '.join(given)} can be used only without one; set keys of the recipe instead"
            + _keys_instead(given)
        )
    if name is None and not given:
        raise click.UsageError(
            "there is nothing to train on; give a recipe (`nmtkit recipe ls` lists them), or your own text with "
            "--source FILE --target FILE"
        )
    if name is None and (fault := request.fault()):
        raise click.UsageError(fault)


def _resume(
    resuming: str | None, folder: RunFolder, device: str, loaded: config.Recipe | None
) -> bool:
    """Returns whether to resume the run in a folder; process 0 checks this before it changes any files."""
    if resuming != "auto":
        return resuming is not None
    if loaded is None:
        processes.join(devices.choose(device))
    else:  # chooses deterministic operations before the GPU is first used, if the recipe requires them
        choose_device(device, loaded)
    begun = processes.broadcast_object(folder.has_training() if processes.rank() == 0 else None)
    if processes.rank() == 0:
        tell(
            f"{folder.path}: "
            + (
                "resuming the run in this folder"
                if begun
                else "there is nothing to resume, so a new run is started"
            )
        )
    return begun


@contextmanager
def journal_output() -> Iterator[TrainLog]:
    """Copies the terminal output of the block, and any error that ends the block, to train.log."""
    with closing(TrainLog(["nmtkit", *sys.argv[1:]], tell)) as journal, terminal.tee(journal.write):
        try:
            yield journal
        except Exception as fault:
            journal.write(
                f"error: {fault}" if isinstance(fault, NmtkitError) else f"error: {fault!r}"
            )
            raise


def train_run(
    planned: Plan,
    run: Run,
    journal: TrainLog,
    *,
    allow_new_data: bool = False,
    threads: int | None = None,
    test: bool = True,
) -> Stopped:
    """Carries out a plan and shows its progress; ends the program if a signal stops training."""
    first = processes.rank() == 0
    with closing(_ShownTraining(run, journal)) as shown:
        for event in execute(
            planned,
            run,
            notify=shown.message if first else ignore,
            stop=shown.is_stopping,
            # Preprocessing uses as many cores as training. If there are several processes, one of them preprocesses
            # and the others wait.
            workers=torch.get_num_threads() if processes.size() == 1 else available_cores(),
            allow_new_data=allow_new_data,
            threads=threads,
            test=test,
        ):
            shown.show(event)
    stopped = shown.stopped
    assert stopped is not None
    if first and stopped.reason == "interrupted":
        tell(
            f"stopped after update {stopped.update}; the state is saved. Resume with:\n  {resume_command(sys.argv)}"
        )
        raise SystemExit(130)
    return stopped


class _ShownTraining:
    """Shows training in the terminal; the first signal asks training to stop."""

    def __init__(self, run: Run, journal: TrainLog) -> None:
        self._run = run
        self._journal = journal
        self._display: terminal.TrainingDisplay | None = None
        self._stage: StageStarted | None = None
        self._stop = threading.Event()
        self.stopped: Stopped | None = None
        """Event at the end of the newest stage."""

    def message(self, text: str) -> None:
        """Shows a message, above the progress display if there is one."""
        if self._display is None:
            tell(text)
        else:
            self._display.message(text)

    def is_stopping(self) -> bool:
        """Returns whether a signal has requested a stop."""
        return self._stop.is_set()

    def show(self, event: Executed) -> None:
        """Shows an event in process 0; other processes only record how training ended."""
        if isinstance(event, Prepared):
            self._begin()
        elif isinstance(event, StageStarted):
            self._stage = event
        elif isinstance(event, Stopped):
            self.stopped = event
        elif isinstance(event, Trained):
            self.close()
        if processes.rank() == 0:
            self._show(event)

    def _show(self, event: Executed) -> None:
        if isinstance(event, Diagnosis):
            show_diagnosis(event)
        elif isinstance(event, DataReport):
            show_report(event)
        elif isinstance(event, Trained):
            tell(f"finished after {describe_end(event.stopped)}")
            if self._stage is None:
                warning = schedule_warning(event.stopped, self._run.recipe.training)
                if warning is not None:
                    tell(warning)
        elif isinstance(event, ScoredAnswers):
            _show_test(self._run, event)
        elif isinstance(event, FineTuned):
            show_changes(event.changes, len(self._run.recipe.data.train.weights) > 1)
        elif self._display is not None and not isinstance(event, Prepared | StageStarted):
            show_event(self._display, event, self._run.recipe, self._stage)

    def _begin(self) -> None:
        folder = self._run.folder
        if processes.rank() == 0:
            self._journal.open(folder)
            if folder.user_module.is_file():
                self._journal.write(
                    f"{folder.user_module}: SHA-256 {file_sha256(folder.user_module)}"
                )
        _on_signals(self._stop_once)
        self._display = terminal.TrainingDisplay()
        self._display.__enter__()

    def close(self) -> None:
        """Ends the progress display, and restores the default handling of signals."""
        if self._display is not None:
            self._display.__exit__(None, None, None)
            self._display = None
            _on_signals(signal.default_int_handler)

    def _stop_once(self, number: int, frame: FrameType | None) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt
        self._stop.set()
        tell(
            "stopping after this update; the state will be saved (interrupt again to stop at once)"
        )


def resume_command(words: Sequence[str]) -> str:
    """Returns the command that resumes a run; `words` is the command that started it, including the program."""
    program = "nmtkit"
    if Path(words[0]).suffix == ".py" and Path(words[0]).name != "__main__.py":
        program = f"python {shlex.quote(words[0])}"
    arguments = [word for word in words[1:] if word != "--overwrite"]
    is_resumed = any(word.split("=")[0] == "--resume" for word in arguments)
    if arguments[:1] == ["train"] and not is_resumed:  # `compare` always resumes
        arguments.append("--resume")
    command = f"{program} {shlex.join(arguments)}"
    if processes.size() > 1:
        return f"{command}   (with several processes, as before)"
    return command


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _show_test(run: Run, result: ScoredAnswers) -> None:
    """Prints the scores on the test set, and some examples."""
    lines = len(result.examples)
    task = TASKS.get(run.recipe.task)
    speed = lines / max(result.seconds, 1e-9)
    if result.answers.texts:
        tell(
            f"{task.done} the test set: {lines} lines at {speed:.0f} lines/s; output: {run.folder.test_output}"
        )
    if result.answers.n_truncated:
        tell(
            f"{result.answers.n_truncated} test sources were truncated, as in training (data.over_long: truncate)"
        )
    if not result.scores:
        return
    for number in range(0, len(result.answers.texts), max(lines // EXAMPLES_SHOWN, 1))[
        :EXAMPLES_SHOWN
    ]:
        example = result.examples[number]
        terminal.say(f"\nsource       {example.src or f'line {example.line}'}")
        terminal.say(f"reference    {getattr(example, task.references)}")
        terminal.say(f"{task.result:11}  {result.answers.texts[number]}")
    terminal.say("")
    terminal.table(
        "test set",
        ["metric", "score"],
        [[score.name, f"{score.value:.2f}"] for score in result.scores],
    )
    terminal.say("")
    for score in result.scores:
        terminal.say(Comparison(score).line(2))
    if note := held_out_note(run):
        tell(f"note: {note}")
