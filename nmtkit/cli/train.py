"""`nmtkit train`."""

import signal
import threading
from types import FrameType

import click
import torch

from nmtkit import console, device, recipe, run
from nmtkit.cli import options, without_recipe
from nmtkit.cli.asked import Asked, stand_in
from nmtkit.cli.diagnosing import show_diagnosis
from nmtkit.cli.reporting import show_report
from nmtkit.folder import RUNS
from nmtkit.training import distributed
from nmtkit.training.loop import Evaluated, Event, Step, Stopped, TrainingConfig

EXAMPLES_SHOWN = 5


@click.command()
@click.argument("name", metavar="[RECIPE]", required=False)
@stand_in
@options.overrides
@options.run_folder
@click.option("--resume", is_flag=True, help="Go on where the run stopped, bit for bit as if it never had.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier run in the same folder.")
@options.device
@options.threads
def command(
    name: str | None,
    asked: Asked,
    overrides: tuple[str, ...],
    run_path: str | None,
    resume: bool,
    overwrite: bool,
    device: str,
    threads: int | None,
) -> None:
    """Train the model of RECIPE: a file, or the name of a recipe that comes with nmtkit.

    With --source and --target instead of RECIPE a recipe is chosen by the size of the text: tokenizer, model, schedule.
    What was chosen and why is said, and written into the run's folder as chosen.yaml, a recipe like any other. Where no
    validation set is named, pairs are held out for it (and for a test set, if none is named either).

    Everything goes into one folder, runs/NAME: the resolved recipe, the tokenizer, checkpoints, metrics.jsonl. Ctrl-C
    and SIGTERM save the state and stop; `--resume` goes on from there, a second Ctrl-C stops at once. When training is
    over the recipe's test set, if it names one, is translated (or summarized) and scored.

    A recipe may train in stages, one after the other: growing inputs, coverage, reinforcement. Each begins with
    the best weights of the one before. `--resume` goes on in whichever was stopped.

    \b
    Examples:
      nmtkit train demo
      nmtkit train --source train.en --target train.de
      nmtkit train --source a.en.gz --source b.en --target a.de.gz --target b.de --preset tiny --minutes 20
      nmtkit train --task summarization --source articles.txt --target summaries.txt --run runs/news
      nmtkit train mine.yaml --set training.lr=0.0005 --set model.layers=2 --run runs/two-layers
      nmtkit train mine.yaml --set pretrained_embeddings.src=vectors.txt.gz
      nmtkit train mine.yaml --set data.train.alignment=train.align --set training.guided_alignment.weight=0.05
      nmtkit train demo-news-pointer-generator --set stages.coverage.training.max_updates=500
      nmtkit train mine.yaml --resume
      torchrun --nproc-per-node 4 -m nmtkit train mine.yaml
    """
    if resume and overwrite:
        raise click.UsageError("--resume goes on with a run and --overwrite replaces it: give one of them")
    if name is not None and asked.given():
        raise click.UsageError(
            f"{name} is a recipe, and {', '.join(asked.given())} are for training without one; to train the recipe on "
            "other text, override its files: --set 'data.train={src: FILE, tgt: FILE}'"
        )
    if name is None and not asked.given():
        raise click.UsageError("name a recipe (`nmtkit recipe ls`), or your text: --source FILE --target FILE")
    try:
        if name is None:
            asked.require_usable()
            chosen = without_recipe.choose_recipe(asked, run_path, overrides, resume, overwrite, device, _say)
            name, run_path = str(chosen), str(chosen.parent)
        named = (f"training.threads={threads}",) if threads else ()
        loaded = recipe.load(name, (*overrides, *named))
        place = run.choose_device(device, loaded)
        work = carry_out(loaded, run_path or str(RUNS / loaded.name), resume, overwrite, place)
        if distributed.rank() == 0:
            _test(work, place)
    finally:
        distributed.leave()


def carry_out(loaded: recipe.Recipe, path: str, resume: bool, overwrite: bool, place: torch.device) -> run.Run:
    """Trains a recipe in a folder and shows how it goes; ends the program when a signal stops it.

    Args:
        loaded: the recipe.
        path: the run's folder.
        resume: go on with the run that is there.
        overwrite: replace the run that is there.
        place: where to train.
    """
    first = distributed.rank() == 0
    # Preprocessing takes as many cores as training may.
    processes = torch.get_num_threads()
    say = _say if first else _quiet
    work = run.Run.begin(loaded, path, resume, overwrite, say, show_report, show_diagnosis, processes)
    work.settle(place, say)
    if first:
        _say(f"training {work.recipe.name} in {work.folder.path}, on {device.describe(place)}")
    stop = threading.Event()
    _stop_on_signals(stop)
    stopped, stage = None, None
    with console.TrainingDisplay() as display:
        for event in work.train(place, display.message if first else _quiet, resume, stop.is_set):
            if isinstance(event, run.StageBegun):
                stage = event
                continue
            if first:
                _show(display, event, work.recipe.training, stage)
            if isinstance(event, Stopped):
                stopped = event
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert stopped is not None
    if not first:
        return work
    if stopped.reason == "interrupted":
        _say(f"stopped after update {stopped.update}; the state is saved: go on with --resume")
        raise SystemExit(130)
    _say(f"finished after update {stopped.update} ({stopped.reason})")
    return work


def _say(text: str) -> None:
    console.say(text, stderr=True)


def _quiet(text: str) -> None:
    """Only the first of several processes speaks."""


def _stop_on_signals(stop: threading.Event) -> None:
    """The first signal asks training to save and stop; a second one stops at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        _say("stopping after this update; the state will be saved (once more to stop at once)")

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)


def _show(display: console.TrainingDisplay, event: Event, config: TrainingConfig, stage: run.StageBegun | None) -> None:
    if isinstance(event, Step):
        shown = {
            "tokens_per_second": event.tokens_per_second,
            "loss": event.loss,
            "perplexity": event.ppl,
            "learning_rate": event.lr,
            "gradient_norm": event.grad_norm,
        }
        for name in ("alignment_loss", "coverage_loss", "sampled_reward", "greedy_reward"):
            value = getattr(event, name)
            if value is not None:
                shown[name] = value
        share = _share(event.update, event.seconds, event.epoch, config)
        if stage is not None:
            updates, seconds = event.update - stage.updates_before, event.seconds - stage.seconds_before
            share = _share(updates, seconds, event.epoch, stage.training)
        display.update(event.update, share, shown)
        if event.skipped:
            display.message(f"update {event.update}: {event.skipped} updates left out, their loss was not finite")
    elif isinstance(event, Evaluated):
        figures = "  ".join(f"{key} {value:.2f}" for key, value in event.metrics.items())
        best = "  (best so far)" if event.best else ""
        display.message(f"validation at update {event.update}: {figures}{best}")
    elif isinstance(event, Stopped) and stage is not None:
        display.message(f"stage {stage.name} is over after update {event.update} ({event.reason})")


def _share(update: int, seconds: float, epoch: int, config: TrainingConfig) -> float | None:
    """How much of a stage is done, by the limit that is nearest; None if only `patience` will end it."""
    shares = []
    if config.max_updates:
        shares.append(update / config.max_updates)
    if config.max_minutes:
        shares.append(seconds / (60 * config.max_minutes))
    if config.max_epochs:
        shares.append(epoch / config.max_epochs)
    return min(max(shares), 1.0) if shares else None


def _test(work: run.Run, place: torch.device) -> None:
    """Translates or summarizes the test set, scores it, and shows a few of the texts."""
    result = work.test(place)
    if result is None:
        return
    speed = len(result.sources) / max(result.seconds, 1e-9)
    did, text = ("summarized", "summary") if work.recipe.task == "summarization" else ("translated", "translation")
    _say(f"{did} the test set: {len(result.sources)} lines at {speed:.0f} lines/s, in {work.folder.test_output}")
    if result.cut:
        _say(f"of {result.cut} of them only the beginning was read, as in training (data.over_long: truncate)")
    if not result.scores:
        return
    step = max(len(result.sources) // EXAMPLES_SHOWN, 1)
    for number in range(0, len(result.sources), step)[:EXAMPLES_SHOWN]:
        console.say("")
        console.say(f"source       {result.sources[number]}")
        console.say(f"reference    {result.references[number]}")
        console.say(f"{text:11}  {result.translations[number].text}")
    console.say("")
    rows = [[score.name, f"{score.value:.2f}", score.signature] for score in result.scores]
    console.table("test set", ["metric", "score", "signature"], rows)
