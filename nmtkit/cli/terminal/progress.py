"""What `nmtkit train` shows during training: events, the end of training, and warnings."""

from collections.abc import Mapping

from nmtkit.cli import terminal
from nmtkit.config import Recipe
from nmtkit.config.groups import Stage
from nmtkit.experiment.stages import StageStarted
from nmtkit.training.config import TrainingConfig
from nmtkit.training.events import Evaluated, Event, Resumed, Step, Stopped
from nmtkit.training.schedules import DecayToZero


def describe_end(stopped: Stopped) -> str:
    """Describes how training ended: the last update, the limit that was reached, and the learning rate."""
    rate = f"learning rate {stopped.lr:.2g} (peak: {stopped.peak_lr:.2g})"
    return f"update {stopped.update:,} ({stopped.reason}), {rate}"


def schedule_warning(
    stopped: Stopped, config: TrainingConfig, stage: Stage | None = None
) -> str | None:
    """Returns a warning if a limit cut the learning rate's schedule short; `config` is the recipe's or the stage's."""
    if stopped.scheduled in (None, 1) or stopped.reason in ("patience", "interrupted"):
        return None
    # a schedule over the budget is cut short by `max_epochs`, or if no time is left for another validation
    over_budget = isinstance(config.schedule, DecayToZero) and config.schedule.over == "budget"
    cause = (
        "the time limit ended training"
        if stopped.reason == "max_minutes"
        else f"{stopped.reason} ended training"
    )
    limit = f"training.{stopped.reason}"
    if stage is not None and limit in dict(stage.changed_keys()):
        limit = f"stages.{stage.name}.{limit}"
    remedy = f"Raise {limit}"
    if not over_budget:
        remedy += ", or let the schedule end when training does (training.schedule.over: budget)"
    return (
        f"warning: {cause} at {stopped.scheduled:.0%} of the learning rate's schedule; the rate was still "
        f"{stopped.lr:.2g} (peak: {stopped.peak_lr:.2g}). {remedy}"
    )


TOO_LARGE = (
    "a batch did not fit into the device's memory, so it was processed in parts; this gives the same result, but takes "
    "longer; to avoid it, lower batch.batch_tokens (shown once)"
)


def show_event(
    display: terminal.TrainingDisplay, event: Event, recipe: Recipe, stage: StageStarted | None
) -> None:
    """Shows an event of the training loop."""
    config = recipe.training if stage is None else stage.training
    if isinstance(event, Step | Resumed):
        updates, seconds = event.update, event.seconds
        if stage is not None:
            updates, seconds = updates - stage.updates_before, seconds - stage.seconds_before
        share = config.share(updates, seconds, event.epoch)
        display.update(
            event.update, share, _step_figures(event) if isinstance(event, Step) else {}, seconds
        )
        if isinstance(event, Step) and event.skipped:
            display.message(
                f"update {event.update}: {event.skipped} updates were skipped because of a non-finite loss"
            )
        if isinstance(event, Step) and event.oom_splits:
            display.message(TOO_LARGE, once=True)
    elif isinstance(event, Evaluated):
        best = "  (best so far)" if event.best else ""
        display.message(
            f"validation at update {event.update}: {_validation_figures(event.metrics, config.best_metric)}{best}"
        )
    elif isinstance(event, Stopped) and stage is not None:
        display.message(f"stage {stage.name} ended after {describe_end(event)}")
        stage_settings = next(one for one in recipe.stages if one.name == stage.name)
        warning = schedule_warning(event, config, stage_settings)
        if warning is not None:
            display.message(warning)


def _step_figures(step: Step) -> dict[str, float]:
    """Returns the metrics of a step, without `nll`, which is the logarithm of `ppl`."""
    terms = {name: term for name, term in step.terms.items() if name != "nll"}
    rest = {"learning_rate": step.lr, "gradient_norm": step.grad_norm}
    return {"tokens_per_second": step.tokens_per_second, "loss": step.loss} | terms | rest


def _validation_figures(metrics: Mapping[str, float], best_metric: str) -> str:
    """Returns the metrics of a validation; the loss (the logarithm of `ppl`) only if it selects the best weights."""
    hidden = {"seconds"} if best_metric == "loss" else {"seconds", "loss"}
    figures = {
        "ppl" if key == "perplexity" else key: value
        for key, value in metrics.items()
        if key not in hidden
    }
    seconds = [f"{metrics['seconds']:.1f} s"] if "seconds" in metrics else []
    return "  ".join([*(f"{name} {value:.2f}" for name, value in figures.items()), *seconds])
