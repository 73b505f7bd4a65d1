"""The folder of a run: names of its files, and the lock by which one process at a time writes there.

A training that replaces an earlier one sets it aside until it has saved a checkpoint of its own.
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
    """A `Notify` that shows nothing."""


class _File:
    """A path within a run's folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "RunFolder", owner: object = None) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Paths in a run's folder; making the object touches no file."""

    path: Path

    recipe = _File("recipe.yaml")  # resolved, with every default; a folder with it is a run
    chosen = _File("chosen.yaml")  # of a training without a recipe: the proposed one, with reasons
    request = _File("request.json")  # and its files and options
    text = _File("text")  # and its text, where validation pairs were held out
    origin = _File("origin.json")  # the run to begin from, its checksum and scores
    vocabulary = _File("vocabulary")  # the tokenizers
    user_module = _File(COPY)  # the file of `--user-module`
    data = _File("data")  # the memory-mapped arrays; of stages with a text of their own in `NAME`
    report = _File("data-report.json")  # counts and faults of the text
    # weights and training state; with stages in `1-NAME`, `2-NAME`
    checkpoints = _File("checkpoints")
    # by `nmtkit average`; the only weights of an imported run
    average = _File("average.safetensors")
    imported = _File("imported.json")  # of an imported run: toolkit, architecture, licence
    # settings and tokenizer of an imported model, as its folder had them; for export
    public = _File("public")
    metrics = _File("metrics.jsonl")  # a JSON object a line: logged updates and validations
    tensorboard = _File("tensorboard")
    # what decoding needs of the recipe; of a finished, averaged or imported run
    inference = _File("inference.json")
    result = _File("result.json")  # how training ended; only finished runs have it
    train_log = _File("train.log")  # messages of training with timestamps; nothing reads it
    test_output = _File("test.out")  # translations of the test set, one a line
    test_scores = _File("test.json")
    page = _File("report.html")  # curves, samples, data, machine
    lock = _File("run.lock")  # names the process that holds the lock; never removed
    # the weights as CTranslate2 reads them; made anew where it is gone
    ctranslate2 = _File("ctranslate2")
    # the earlier run, itself a run's folder, until the new one has a checkpoint
    replaced = _File("replaced")

    @classmethod
    def at(cls, path: str | None, name: str) -> "RunFolder":
        """The folder at a path, or of this name under `runs/`."""
        return cls(Path(path) if path else RUNS_FOLDER / name)

    def stage(self, number: int, name: str) -> Path:
        """The checkpoints of a stage, counted from 1; a training without stages has one without a name."""
        return self.checkpoints / f"{number}-{name}" if name else self.checkpoints

    def exists(self) -> bool:
        """Whether this is the folder of a run."""
        return self.recipe.is_file()

    def parts(self) -> list[Path]:
        """All files and folders here that nmtkit writes."""
        names = [name for name, part in vars(RunFolder).items() if isinstance(part, _File)]
        return [
            part for part in {getattr(self, name): None for name in names} if os.path.lexists(part)
        ]

    def lock_holder(self) -> str:
        """The process that holds the lock, as "process 7 on a machine"; empty if none does, or it is unknown."""
        with suppress(OSError, ImportError), self.lock.open("rb") as file:
            import fcntl  # there is none on Windows

            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file.fileno())
        return ""

    def has_training(self) -> bool:
        """Whether there are results of a training that a new one would replace."""
        saved = any(self.checkpoints.rglob("*.safetensors"))
        return self.exists() and (saved or self.average.exists() or self.result.exists())

    def has_checkpoint(self) -> bool:
        """Whether training has saved a state to resume from."""
        return any(self.checkpoints.rglob("last.safetensors"))

    def training_files(self) -> list[Path]:
        """What training wrote and a new training replaces; checkpoints first."""
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
        """Refuses a folder with other files, or with a training unless `overwrite` permits to replace it."""
        if self.has_training() and not overwrite:
            raise NmtkitError(
                f"{self.path}: a training was begun here: go on with it (train --resume), "
                "replace it (train --overwrite), or name another folder (--run DIR)"
            )
        self.require_own()

    def require_own(self) -> None:
        """Refuses a folder that is neither a run's nor empty."""
        ours = self.exists() or self.chosen.is_file() or self.lock.is_file()
        if self.path.exists() and not ours and any(self.path.iterdir()):
            raise NmtkitError(
                f"{self.path}: not the folder of a run and not empty; name another one with --run DIR"
            )


def run_folders(runs: Path) -> list[RunFolder]:
    """The runs in a folder, sorted by name."""
    return [folder for folder in map(RunFolder, sorted(runs.glob("[!.]*"))) if folder.exists()]


def suggest_runs(given: str, runs: Path = RUNS_FOLDER) -> str:
    """The end of a message about a missing run: names that are similar."""
    names = [folder.path.name for folder in run_folders(runs)]
    if not names:
        return f"there is no run under {runs}/ either; train one, or name the folder that `train` wrote"
    return suggest_names(Path(given).name, names, what=f"runs under {runs}/")


class RunLock(AbstractContextManager["RunLock"]):
    """The exclusive right to write in a run's folder, which is made if need be; `lock_run` acquires it.

    It ends with `close`, or with the process, however that ends. `flock` also locks on network file systems.
    """

    # of the class: a signal may end `__init__` before its first line, and `__del__` asks
    _file: int | None = None

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
            import fcntl  # there is none on Windows

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
            os.close(file)
            raise NmtkitError(
                f"{self._folder.path}: another process works in this folder ({holder}); wait for its end, stop it, or "
                "name another folder with --run DIR"
            ) from None
        except (OSError, ImportError) as fault:
            self._notify(
                f"{path}: files cannot be locked here ({fault}); let no other process train in this folder"
            )
        with suppress(OSError):  # on a full disk the lock holds without its holder's name
            os.truncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        return file

    def set_aside(self) -> None:
        """Moves the results of an earlier training away, until `commit_or_rollback` removes or restores them.

        Text, tokenizers and arrays stay, and the earlier run gets a copy.
        """
        folder, kept = self._folder, self._folder.replaced
        if not folder.has_training():  # nothing of it could be used
            for part in folder.training_files():
                _remove(part)
            return
        unfinished = kept.with_name(kept.name + ".new")
        shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
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
            # last: with it the earlier run is whole there
            _linked(folder.recipe, RunFolder(kept).recipe)

    def commit_or_rollback(self) -> None:
        """Removes the run that was set aside if the new one has a checkpoint; else restores it."""
        folder, kept = self._folder, self._folder.replaced
        earlier, stay = RunFolder(kept), {folder.lock, folder.recipe, folder.ctranslate2, kept}
        if not kept.is_dir():
            return
        with write_errors(kept):
            if folder.has_checkpoint():
                shutil.rmtree(kept)
                return
            # else the process that moved it there, or back, was killed meanwhile
            if earlier.exists():
                for part in {*folder.parts()} - stay:
                    _remove(part)
            # The checkpoints come last: while there are none, it is known that not all is back.
            for part in sorted(
                kept.iterdir(),
                key=lambda one: (one == earlier.checkpoints) - (one == earlier.recipe),
            ):
                _remove(folder.path / part.name)
                os.replace(part, folder.path / part.name)
            kept.rmdir()
        self._notify(
            f"{folder.path}: restored the earlier run: its replacement had no checkpoint yet"
        )

    def close(self) -> None:
        """Commits or rolls back, and releases the lock."""
        if self.is_open:
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
        """Whether it still holds the lock."""
        return self._file is not None


_LOCKS: WeakValueDictionary[str, RunLock] = WeakValueDictionary()


def lock_run(folder: RunFolder, notify: Notify) -> RunLock:
    """Locks a run's folder for this process, which may do so again while it holds the lock."""
    place = os.path.realpath(folder.path)
    known = _LOCKS.get(place)
    if known is None or not known.is_open:
        known = _LOCKS[place] = RunLock(folder, notify)
    return known


def _holder(file: int) -> str:
    """The holder's name in a lock file."""
    return os.pread(file, 200, 0).decode("utf-8", "replace").strip() or "one whose name is unknown"


def _linked(source: str | Path, target: str | Path) -> None:
    """A hard link, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _remove(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink(missing_ok=True)
