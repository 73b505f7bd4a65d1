"""The folder of a run: the paths of its files, and the lock that lets only one process write at a time.

If a new run replaces an earlier one, the earlier run is set aside until the new run has saved a checkpoint.
"""

import os
import shutil
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import write_errors
from nmtkit.core.registry import suggest_names
from nmtkit.core.user_module import COPY

RUNS_FOLDER = Path("runs")

Notify = Callable[[str], None]


def ignore(message: object) -> None:
    """A `Notify` that ignores messages."""


class _File:
    """Descriptor that returns a path within a run's folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "RunFolder", owner: object = None) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Paths in a run's folder. Creating the object does not access any files."""

    path: Path

    recipe = _File("recipe.yaml")  # resolved, with every default; its presence makes a folder a run
    # if training was started without a recipe: the proposed recipe, with reasons
    chosen = _File("chosen.yaml")
    request = _File("request.json")  # the files and options for which `chosen` was proposed
    text = _File("text")  # the text of `chosen`, if validation pairs were held out
    origin = _File(
        "origin.json"
    )  # the run that provided the initial weights, their checksum, and scores
    vocabulary = _File("vocabulary")  # the tokenizers
    user_module = _File(COPY)  # the file of `--user-module`
    # the memory-mapped arrays; a stage with its own text has its arrays in the subfolder `NAME`
    data = _File("data")
    report = _File("data-report.json")  # counts and problems of the text
    # weights and training state; stages have the subfolders `1-NAME`, `2-NAME`
    checkpoints = _File("checkpoints")
    # written by `nmtkit average`; the only weights of an imported run
    average = _File("average.safetensors")
    imported = _File("imported.json")  # toolkit, architecture and licence of an imported run
    # copies of the settings and tokenizer files of an imported model, for export
    public = _File("public")
    metrics = _File("metrics.jsonl")  # logged updates and validations, one JSON object per line
    tensorboard = _File("tensorboard")
    # the recipe settings that decoding needs, for a finished, averaged or imported run
    inference = _File("inference.json")
    result = _File("result.json")  # how training ended; only finished runs have it
    train_log = _File("train.log")  # timestamped messages of training, for people
    test_output = _File("test.out")  # translations of the test set, one per line
    test_scores = _File("test.json")
    page = _File("report.html")  # curves, samples, data, machine
    lock = _File("run.lock")  # names the process that holds the lock; removed only with the run
    # the weights in CTranslate2's format; recreated if it is missing
    ctranslate2 = _File("ctranslate2")
    # the run folder of the earlier run, until the new run has a checkpoint
    replaced = _File("replaced")

    @classmethod
    def at(cls, path: str | None, name: str) -> "RunFolder":
        """Returns the folder at a path or, without a path, the folder with this name under `runs/`."""
        return cls(Path(path) if path else RUNS_FOLDER / name)

    def stage(self, number: int, name: str) -> Path:
        """Returns the checkpoint folder of a stage, counted from 1; the name is empty in a run without stages."""
        return self.checkpoints / f"{number}-{name}" if name else self.checkpoints

    def exists(self) -> bool:
        """Returns whether this is the folder of a run."""
        return self.recipe.is_file()

    def parts(self) -> list[Path]:
        """Returns all existing files and folders that nmtkit writes."""
        names = [name for name, part in vars(RunFolder).items() if isinstance(part, _File)]
        return [
            part for part in {getattr(self, name): None for name in names} if os.path.lexists(part)
        ]

    def lock_holder(self) -> str:
        """Returns the process that holds the lock, e.g. "process 7 on host"; empty if none is known."""
        with suppress(OSError, ImportError), self.lock.open("rb") as file:
            import fcntl  # does not exist on Windows

            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file.fileno())
        return ""

    def has_training(self) -> bool:
        """Returns whether the folder contains training results that a new run would replace."""
        saved = any(self.checkpoints.rglob("*.safetensors"))
        return self.exists() and (saved or self.average.exists() or self.result.exists())

    def has_checkpoint(self) -> bool:
        """Returns whether training has saved a state to resume from."""
        return any(self.checkpoints.rglob("last.safetensors"))

    def training_files(self) -> list[Path]:
        """Returns the files with training results, which a new run replaces, checkpoints first."""
        parts = [
            self.checkpoints,
            self.average,
            self.metrics,
            self.tensorboard,
            self.inference,
            self.result,
        ]
        more = (
            self.train_log,
            self.imported,
            self.public,
            self.test_output,
            self.test_scores,
            self.page,
        )
        return [part for part in (*parts, *more) if part.exists()]

    def require_free(self, overwrite: bool) -> None:
        """Rejects a folder with other files, or, unless `overwrite` is set, with a trained run."""
        if self.has_training() and not overwrite:
            raise NmtkitError(
                f"{self.path} already contains a training run; resume it (train --resume), replace it "
                "(train --overwrite), or use another folder (--run DIR)"
            )
        self.require_own()

    def require_own(self) -> None:
        """Rejects a folder that is neither a run nor empty."""
        ours = self.exists() or self.chosen.is_file() or self.lock.is_file()
        if self.path.exists() and not ours and any(self.path.iterdir()):
            raise NmtkitError(
                f"{self.path} is neither a run folder nor empty; use another folder with --run DIR"
            )


def run_folders(runs: Path) -> list[RunFolder]:
    """Returns the runs in a folder, sorted by name."""
    return [folder for folder in map(RunFolder, sorted(runs.glob("[!.]*"))) if folder.exists()]


def suggest_runs(given: str, runs: Path = RUNS_FOLDER) -> str:
    """Returns the end of a message about a missing run, with similar names."""
    names = [folder.path.name for folder in run_folders(runs)]
    if not names:
        return (
            f"there are no runs under {runs}/ either; train one, or give the folder that `train` "
            "wrote"
        )
    return suggest_names(Path(given).name, names, what=f"runs under {runs}/")


class RunLock(AbstractContextManager["RunLock"]):
    """The exclusive right to write in a run's folder; `lock_run` acquires it.

    Acquiring the lock creates the folder if necessary. If the process has acquired it several times, it is released by
    the last `close`; it is also released when the process ends. `flock` also works on network file systems.
    """

    # A class attribute, because `__del__` needs it even if a signal interrupts `__init__` before its first line.
    _file: int | None = None
    holders = 1
    """Number of times that this process has acquired the lock and not yet closed it."""

    def __init__(self, folder: RunFolder, notify: Notify) -> None:
        self._folder = folder
        self._notify = notify
        self._file = self._lock()
        self.commit_or_rollback()

    def _lock(self) -> int:
        path = self._folder.lock
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            import fcntl  # does not exist on Windows

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
            os.close(file)
            raise NmtkitError(
                f"{self._folder.path}: another process is using this folder ({holder}); wait until "
                "it ends, stop it, or use another folder with --run DIR"
            ) from None
        except (OSError, ImportError) as fault:
            self._notify(
                f"{path}: this file system does not support locks ({fault}); make sure that no "
                "other process trains in this folder"
            )
        with suppress(
            OSError
        ):  # on a full disk, the lock is valid, but lacks the name of its holder
            os.truncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        return file

    def set_aside(self) -> None:
        """Sets the results of an earlier run aside until `commit_or_rollback` removes or restores them.

        Text, tokenizers and arrays stay in place, and the earlier run gets copies.
        """
        folder, kept = self._folder, self._folder.replaced
        if (
            not folder.has_training()
        ):  # without weights, the other files of the earlier run are useless
            for part in folder.training_files():
                _remove(part)
            return
        unfinished = kept.with_name(kept.name + ".new")
        shutil.rmtree(unfinished, ignore_errors=True)  # left over from a process that was killed
        with write_errors(kept), ExitStack() as stack:
            stack.callback(shutil.rmtree, unfinished, ignore_errors=True)
            unfinished.mkdir()
            before = [folder.chosen, folder.request, folder.text, folder.origin, folder.user_module]
            for part in filter(
                Path.exists, [*before, folder.vocabulary, folder.data, folder.report]
            ):
                # Arrays and text are never changed in place, so a hard link is as good as a copy.
                copy = _linked if part in (folder.data, folder.text) else shutil.copy2
                if part.is_dir():
                    shutil.copytree(part, unfinished / part.name, copy_function=copy)
                else:
                    shutil.copy2(part, unfinished / part.name)
            os.replace(unfinished, kept)
            for part in folder.training_files():
                os.replace(part, kept / part.name)
            # The recipe comes last, because its presence shows that the earlier run is complete.
            _linked(folder.recipe, RunFolder(kept).recipe)

    def commit_or_rollback(self) -> None:
        """Removes the run that was set aside if the new run has a checkpoint; otherwise restores it."""
        folder, kept = self._folder, self._folder.replaced
        earlier, stay = RunFolder(kept), {folder.lock, folder.recipe, folder.ctranslate2, kept}
        if not kept.is_dir():
            return
        with write_errors(kept):
            if folder.has_checkpoint():
                shutil.rmtree(kept)
                return
            # Without its recipe, the earlier run is incomplete, because a process was killed while moving it.
            if earlier.exists():
                for part in {*folder.parts()} - stay:
                    _remove(part)
            # The checkpoints come last, because their absence shows that the run has not been fully restored.
            for part in sorted(
                kept.iterdir(),
                key=lambda one: (one == earlier.checkpoints) - (one == earlier.recipe),
            ):
                _remove(folder.path / part.name)
                os.replace(part, folder.path / part.name)
            kept.rmdir()
        self._notify(
            f"{folder.path}: restored the earlier run, because its replacement had not saved a "
            "checkpoint"
        )

    def close(self) -> None:
        """Ends one use of the lock; the last holder commits or rolls back, and releases the lock."""
        if not self.is_open:
            return
        self.holders -= 1
        if self.holders > 0:
            return
        try:
            self.commit_or_rollback()
        finally:
            self._release()

    def _release(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.truncate(self._file, 0)
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        self._release()

    def __exit__(self, *fault: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether the lock is still held."""
        return self._file is not None


_LOCKS: WeakValueDictionary[str, RunLock] = WeakValueDictionary()


def lock_run(folder: RunFolder, notify: Notify) -> RunLock:
    """Locks a run's folder for this process, which may acquire the same lock repeatedly and closes it as often."""
    place = os.path.realpath(folder.path)
    lock = _LOCKS.get(place)
    if lock is not None and lock.is_open:
        lock.holders += 1
        return lock
    lock = RunLock(folder, notify)
    _LOCKS[place] = lock
    return lock


def _holder(file: int) -> str:
    """Returns the holder's name from a lock file."""
    return os.pread(file, 200, 0).decode("utf-8", "replace").strip() or "name unknown"


def _linked(source: str | Path, target: str | Path) -> None:
    """Creates a hard link, or a copy if the file system does not support links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _remove(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink(missing_ok=True)
