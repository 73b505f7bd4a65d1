"""Runs that are ready to train."""

from nmtkit.config import Recipe
from nmtkit.core import device as devices
from nmtkit.experiment.execute import begin, prepare
from nmtkit.runs.folder import Notify, ignore
from nmtkit.runs.run import Run
from nmtkit.training.parallel import processes


def begin_run(
    recipe: Recipe,
    path: str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    allow_new_data: bool = False,
    notify: Notify = ignore,
) -> Run:
    """A run in a folder, open for writing and preprocessed; the caller closes it."""
    plan, run = begin(
        recipe, devices.choose("cpu"), path, resume=resume, overwrite=overwrite, notify=notify
    )
    try:
        for _ in processes.events_of_rank_zero(
            prepare(plan, run, notify, allow_new_data=allow_new_data)
        ):
            continue
    except BaseException:
        run.close()
        raise
    run.recipe = Run(run.folder).recipe  # which process 0 wrote
    return run
