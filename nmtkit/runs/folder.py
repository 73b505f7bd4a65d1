"""The folder of a run: the one place that knows the names of its files, and who may write there.

One process at a time writes; what it replaces is kept until there is something better.
"""

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from weakref import WeakValueDictionary

from nmtkit.core.errors import NmtkitError
from nmtkit.core.registry import near_names

RUNS = Path("runs")

Notify = Callable[[str], None]


def quiet(told: object) -> None:
    """Takes what nobody is to be told."""


class _Named:
    """A path of that name within a folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "RunFolder", owner: object = None) -> Path:
        return folder.path / self.name


def user_cache() -> Path:
    """`nmtkit` in $XDG_CACHE_HOME, else in ~/.cache; a user who has no home has it among the temporary files."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            base = Path(tempfile.gettempdir(), f"cache-{os.getuid()}")
    return base / "nmtkit"


@dataclass(frozen=True)
class RunFolder:
    """Names only: making the object touches no file."""

    path: Path

    recipe = _Named("recipe.yaml")  # resolved, every default written out; where it is, there is a run
    chosen = _Named("chosen.yaml")  # the recipe that was chosen for a training without one, with the reasons
    asked = _Named("asked.json")  # what it was chosen for: files and options
    text = _Named("text")  # of a training without a recipe, where validation pairs had to be held out
    origin = _Named("origin.json")  # the run that training began from, its checksum, and its scores on the test sets
    vocabulary = _Named("vocabulary")  # the tokenizers
    data = _Named("data")  # the memory-mapped arrays
    progress = _Named("data/progress.json")  # how far preprocessing has come; gone when it is complete
    report = _Named("data-report.json")  # what preprocessing found in the text
    checkpoints = _Named("checkpoints")  # weights and training state; of stages in a folder each: `1-NAME`, `2-NAME`
    average = _Named("average.safetensors")  # made by `nmtkit average`; of an imported run the only weights
    imported = _Named("imported.json")  # of an imported run: what it was, and its licence
    metrics = _Named("metrics.jsonl")  # one JSON object a line: every update that was logged, every validation
    tensorboard = _Named("tensorboard")
    result = _Named("result.json")  # how training ended; where it is, the run is finished
    journal = _Named("train.log")  # what training said, with times of day; nothing reads it
    test_output = _Named("test.out")  # the translations of the recipe's test set, one a line
    test_scores = _Named("test.json")
    lock = _Named("run.lock")  # locked by the process that writes here, and names it; it stays
    replaced = _Named("replaced")  # the earlier run, itself such a folder, while a new one has not saved a state yet

    @classmethod
    def at(cls, path: str | None, name: str) -> "RunFolder":
        """The folder at a path; without one that of the name under `runs/`."""
        return cls(Path(path) if path else RUNS / name)

    def manifest(self, split: str) -> Path:
        """What the arrays of one split hold; without it they are nothing."""
        return self.data / f"{split}.json"

    def stage(self, number: int, name: str) -> Path:
        """The checkpoints of one stage, counted from 1; without a name those of a training that has no stages."""
        return self.checkpoints / f"{number}-{name}" if name else self.checkpoints

    def exists(self) -> bool:
        """Whether this is the folder of a run."""
        return self.recipe.is_file()

    def parts(self) -> list[Path]:
        """All that is here and that nmtkit writes."""
        names = [name for name, part in vars(RunFolder).items() if isinstance(part, _Named)]
        return [part for part in {getattr(self, name): None for name in names} if os.path.lexists(part)]

    def marks(self) -> list[Path]:
        """What only a run has beside its recipe, some of it or all."""
        return [self.lock, self.vocabulary, self.checkpoints, self.metrics, self.result]

    def writer(self) -> str:
        """Who writes here just now, as "process 7 on a machine"; empty if nobody does, or it cannot be known."""
        file = None
        try:
            import fcntl  # there is none on Windows

            file = os.open(self.lock, os.O_RDONLY)
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _named(file) if file is not None else ""
        except (OSError, ImportError):
            return ""
        finally:
            if file is not None:
                os.close(file)
        return ""

    def begun(self) -> bool:
        """Whether training has left something here that a new one would replace."""
        saved = any(self.checkpoints.rglob("*.safetensors"))
        return self.exists() and (saved or self.average.exists() or self.result.exists())

    def has_state(self) -> bool:
        """Whether training has saved a state here."""
        return any(self.checkpoints.rglob("last.safetensors"))

    def parts_of_preparation(self) -> list[Path]:
        """All that stands here before training begins."""
        parts = [self.recipe, self.chosen, self.asked, self.text, self.origin, self.vocabulary, self.data, self.report]
        return [part for part in parts if part.exists()]

    def parts_of_training(self) -> list[Path]:
        """All that training wrote here, and that a new training replaces; the states first."""
        parts = [self.checkpoints, self.average, self.metrics, self.tensorboard, self.result, self.journal]
        return [part for part in [*parts, self.imported, self.test_output, self.test_scores] if part.exists()]

    def require_free(self, overwrite: bool) -> None:
        """Refuses a folder that is not free for a training; `overwrite` permits to replace an earlier one."""
        if self.begun() and not overwrite:
            raise NmtkitError(
                f"{self.path}: a training was begun here: go on with it (train --resume), "
                "replace it (train --overwrite), or name another folder (--run DIR)"
            )
        self.require_own()

    def require_own(self) -> None:
        """Makes sure that the folder is a run's, empty, or not there; raises NmtkitError if it holds other things."""
        ours = self.exists() or self.chosen.is_file() or self.lock.is_file()
        if self.path.exists() and not ours and any(self.path.iterdir()):
            raise NmtkitError(f"{self.path}: not the folder of a run and not empty; name another one with --run DIR")


def folders_in(runs: Path) -> list[RunFolder]:
    """The runs in a folder, by their names; none if there is no such folder."""
    return [folder for folder in map(RunFolder, sorted(runs.glob("[!.]*"))) if folder.exists()]


def runs_there(given: str, runs: Path = RUNS) -> str:
    """Says which runs there are, for a message about one that is not there."""
    there = [folder.path.name for folder in folders_in(runs)]
    if not there:
        return f"there is no run under {runs}/ either; train one, or name the folder that `train` wrote"
    return near_names(Path(given).name, there, what=f"runs under {runs}/")


class Hold:
    """The right to write in a run's folder, which is made if need be; `hold` gives it.

    It ends with `close`, or with the process, however that ends. The lock is `flock`'s, which Linux passes on to the
    servers of network file systems. `notify` is told in a sentence what is done beside the work itself.
    """

    def __init__(self, folder: RunFolder, notify: Notify) -> None:
        self._folder = folder
        self._notify = notify
        self._file: int | None = None  # first, for `__del__` where it cannot be locked
        self._file = self._lock()
        self.settle("the training that was to replace it was stopped before its first state was saved")

    def _lock(self) -> int:
        path = self._folder.lock
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as fault:
            raise NmtkitError(f"{path}: cannot write it: {fault.strerror or fault}") from fault
        try:
            import fcntl  # there is none on Windows

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _named(file)
            os.close(file)
            raise NmtkitError(
                f"{self._folder.path}: another process works in this folder ({holder}); wait for its end, stop it, or "
                "name another folder with --run DIR"
            ) from None
        except (OSError, ImportError) as fault:
            self._notify(f"{path}: files cannot be locked here ({fault}); let no other process train in this folder")
        with suppress(OSError):  # on a full disk the lock holds without its holder's name
            os.truncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        return file

    def make_room(self) -> None:
        """Makes the folder free of what training wrote; a run is kept until the next has saved a state: see `settle`.

        Text, tokenizers and arrays stay where they are, and are kept with the run as well.
        """
        folder, kept = self._folder, self._folder.replaced
        if not folder.begun():  # what a training without a state leaves is of no use
            for part in folder.parts_of_training():
                _remove(part)
            return
        unfinished = kept.with_name(kept.name + ".new")
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            for part in folder.parts_of_preparation():
                # Arrays and text are never written in place, so a second name is as good as a copy.
                copy = _linked if part in (folder.data, folder.text) else shutil.copy2
                if part.is_dir():
                    shutil.copytree(part, unfinished / part.name, copy_function=copy)
                else:
                    shutil.copy2(part, unfinished / part.name)
            os.replace(unfinished, kept)
            for part in folder.parts_of_training():
                os.replace(part, kept / part.name)
        except OSError as fault:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise NmtkitError(f"{kept}: cannot keep the earlier run there: {fault.strerror or fault}") from fault

    def settle(self, why: str = "the training that was to replace it did not come to its first state") -> None:
        """Removes the run that was set aside if the new one has a state; else puts it back, and says why."""
        folder, kept = self._folder, self._folder.replaced
        if not kept.is_dir():
            return
        try:
            if folder.has_state():
                shutil.rmtree(kept)
                return
            for part in folder.parts_of_training():
                _remove(part)
            for part in sorted(kept.iterdir()):
                _remove(folder.path / part.name)
                os.replace(part, folder.path / part.name)
            kept.rmdir()
        except OSError as fault:
            raise NmtkitError(f"{kept}: cannot bring the earlier run back: {fault.strerror or fault}") from fault
        self._notify(f"{folder.path}: the earlier run is as it was: {why}")

    def close(self) -> None:
        """Settles, and lets others have the folder."""
        if self.is_open:
            try:
                self.settle()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.truncate(self._file, 0)
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        self._let_go()

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, *fault: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return self._file is not None


_HELD: WeakValueDictionary[str, Hold] = WeakValueDictionary()


def hold(folder: RunFolder, notify: Notify) -> Hold:
    """The right to write in a run's folder, for this process; the same one if it has it already.

    Raises:
        NmtkitError: another process has it, or the folder cannot be written.
    """
    place = os.path.realpath(folder.path)
    known = _HELD.get(place)
    if known is None or not known.is_open:
        known = _HELD[place] = Hold(folder, notify)
    return known


def _named(file: int) -> str:
    """Who holds a lock, by its file; who has just locked it is given a moment to write its name there."""
    for _ in range(20):
        if name := os.pread(file, 200, 0).decode("utf-8", "replace").strip():
            return name
        time.sleep(0.05)
    return "one whose name is unknown"


def _linked(source: str, target: str) -> None:
    """A second name of a file, or a copy where the file system has only one name for each."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _remove(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink(missing_ok=True)
