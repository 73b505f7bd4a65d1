"""Lists, removes and renames runs, without torch."""

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import atomic_path, write_errors
from nmtkit.core.formats import dump_yaml, load_yaml, parse_json
from nmtkit.core.settings import is_valid_name
from nmtkit.runs.folder import RUNS_FOLDER, Notify, RunFolder, lock_run, run_folders, suggest_runs


@dataclass(frozen=True)
class RunSummary:
    """A run as one line of a list; unknown values are empty or None."""

    name: str
    recipe: str = ""
    task: str = ""
    state: str = ""
    """`finished`, `stopped`, `training`, `preprocessed` or `damaged`."""
    why: str = ""
    """The reason why training ended, the process that is training the run, or a description of the damage."""
    updates: int | None = None
    metric: str = ""
    """The metric that selects the best weights."""
    validation: float | None = None
    """Best value of the metric."""
    test: dict[str, float] = field(default_factory=dict)
    size: int = 0
    changed: float = 0.0
    """Time of the last change to the recipe, the metrics or the result, in seconds since 1970."""


def list_runs(runs: Path = RUNS_FOLDER) -> list[RunSummary]:
    """Returns all runs in a folder, newest first."""
    return sorted(map(_summary, run_folders(runs)), key=lambda one: -one.changed)


def _summary(folder: RunFolder) -> RunSummary:
    facts: dict[str, Any] = {}
    try:
        recipe, _ = load_yaml(folder.recipe)
        facts |= {"recipe": str(recipe["name"]), "task": str(recipe["task"])}
        facts["metric"] = str(recipe["training"]["best_metric"])
        facts |= _training_facts(folder, facts["metric"])
        if folder.test_scores.is_file():
            scores = parse_json(folder.test_scores.read_bytes(), str(folder.test_scores))["scores"]
            facts["test"] = {str(score["name"]): float(score["value"]) for score in scores}
    except (NmtkitError, ValueError, KeyError, TypeError, AttributeError) as fault:
        facts |= {
            "state": "damaged",
            "why": str(fault) if isinstance(fault, NmtkitError) else repr(fault),
        }
    if writer := folder.lock_holder():
        facts |= {"state": "training", "why": writer}
    times = [
        part.stat().st_mtime
        for part in (folder.recipe, folder.metrics, folder.result)
        if part.exists()
    ]
    return RunSummary(folder.path.name, **facts, size=_size(folder.path), changed=max(times))


def _training_facts(folder: RunFolder, metric: str) -> dict[str, Any]:
    updates, best = None, None
    for line in folder.metrics.read_bytes().splitlines() if folder.metrics.is_file() else ():
        with suppress(NmtkitError):  # the last line may be incomplete
            event = parse_json(line, "")
            updates = int(event["update"])
            best = event.get(f"valid_{metric}") if event.get("best") else best
    if folder.result.is_file():
        result = parse_json(folder.result.read_bytes(), str(folder.result))
        why, share = result["reason"], result.get("scheduled")
        # training ended before the learning rate schedule did
        if share not in (None, 1) and why != "patience":
            why = f"cut short by {why}"
        return {"state": "finished", "why": why, "updates": result["updates"], "validation": best}
    return {
        "state": "stopped" if folder.has_checkpoint() else "preprocessed",
        "updates": updates,
        "validation": best,
    }


def _size(folder: Path) -> int:
    """Returns the total size of all files in bytes."""
    sizes = [0]
    for path in folder.rglob("*"):
        with suppress(OSError):  # the file may have been removed in the meantime
            sizes.append(path.lstat().st_size * path.is_file())
    return sum(sizes)


def require_run(name: str, runs: Path = RUNS_FOLDER) -> RunFolder:
    """Returns the folder of a run that is not in use, by the run's name under `runs` or by its path."""
    folder = RunFolder(runs / name)
    folder = folder if folder.exists() else RunFolder(Path(name))
    if not folder.path.is_dir():
        raise NmtkitError(f"{name}: there is no such run; {suggest_runs(name, runs)}")
    marks = (folder.lock, folder.vocabulary, folder.checkpoints, folder.metrics, folder.result)
    if not folder.exists() or not any(part.exists() for part in marks):
        raise NmtkitError(
            f"{folder.path} is not a run folder, and was not changed; {suggest_runs(name, runs)}"
        )
    if folder.path.is_symlink():
        raise NmtkitError(
            f"{folder.path} is a symbolic link to a run; use {folder.path.resolve()} instead"
        )
    if writer := folder.lock_holder():
        raise NmtkitError(
            f"{folder.path}: another process is using this folder ({writer}); wait until it ends"
        )
    return folder


def remove_run(folder: RunFolder, notify: Notify) -> None:
    """Removes a run returned by `require_run`; keeps and reports files that nmtkit did not write."""
    try:
        with lock_run(folder, notify):
            # The recipe comes last, so that the folder counts as a run until the end.
            for part in sorted(folder.parts(), key=lambda part: part == folder.recipe):
                if part.is_dir() and not part.is_symlink():
                    shutil.rmtree(part)
                elif part != folder.lock:
                    part.unlink(missing_ok=True)
        folder.lock.unlink(missing_ok=True)
        left = sorted(path.name for path in folder.path.iterdir())
        if left:
            notify(f"{folder.path}: kept {', '.join(left)}, which nmtkit did not write")
        else:
            folder.path.rmdir()
    except OSError as fault:
        raise NmtkitError(
            f"cannot remove {fault.filename or folder.path}: {fault.strerror or fault}"
        ) from fault


def rename_run(folder: RunFolder, name: str, notify: Notify) -> RunFolder:
    """Renames or moves a run returned by `require_run`; updates the run's path in its own files."""
    if "/" not in name and not is_valid_name(name):
        raise NmtkitError(f"{name!r} is not a valid folder name; use another name, or a path")
    new = RunFolder(Path(name) if "/" in name else folder.path.parent / name)
    if os.path.lexists(new.path):
        raise NmtkitError(f"{new.path} already exists; choose another name")
    before, now = (os.fsencode(f"{os.path.abspath(one.path)}/") for one in (folder, new))
    # YAML breaks long lines at spaces.
    place = re.compile(re.escape(before).replace(rb"\ ", rb"\s+"))
    # A run that was trained without a recipe has its held-out pairs in its folder, so its files contain their paths.
    files = filter(Path.is_file, (folder.recipe, folder.chosen, folder.request, folder.report))
    own = [part.name for part in files if place.search(part.read_bytes())]
    if own and ('"' in name or dump_yaml({"path": os.fsdecode(now)}).split()[1][0] in "'\""):
        raise NmtkitError(
            f"{new.path}: the run's files store its path, and this name would make them invalid YAML; "
            "choose a name without quotes, colons or number signs (#)"
        )
    with lock_run(folder, notify):
        try:
            new.path.parent.mkdir(parents=True, exist_ok=True)
            os.rename(folder.path, new.path)
        except OSError as fault:
            raise NmtkitError(
                f"cannot move {folder.path} to {new.path}: {fault.strerror or fault}"
            ) from fault
        for part in map(new.path.joinpath, own):
            data = place.sub(lambda _: now, part.read_bytes())
            with write_errors(part), atomic_path(part) as beside:
                beside.write_bytes(data)
    return new
