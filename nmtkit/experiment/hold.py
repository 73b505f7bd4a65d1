"""Who writes in a run's folder: one process at a time, and what it replaces is kept until there is something better."""

import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from weakref import WeakValueDictionary

from nmtkit.errors import NmtkitError
from nmtkit.experiment.folder import RunFolder

Notify = Callable[[str], None]


def quiet(told: object) -> None:
    """Takes what nobody is to be told."""


class Hold:
    """The right to write in a run's folder; `hold` gives it.

    It ends with `close`, or with the process, however that ends. The lock is `flock`'s, which Linux passes on to the
    servers of network file systems.

    Args:
        folder: is made if need be.
        notify: told in a sentence what is done beside the work itself.

    Raises:
        NmtkitError: another process has it, or the folder cannot be written.
    """

    def __init__(self, folder: RunFolder, notify: Notify) -> None:
        self._folder = folder
        self._notify = notify
        self._file: int | None = self._lock()
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
            self._notify(f"{path}: no lock can be had here ({fault}); see that no other process trains in this folder")
        with suppress(OSError):  # on a full disk the lock holds without its holder's name
            os.truncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        return file

    def make_room(self) -> None:
        """Makes the folder free of what training wrote; a run is kept until the next has saved a state: see `settle`.

        Text, tokenizers and arrays stay where they are, and are kept with the run as well.

        Raises:
            NmtkitError: it cannot be written.
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
        if self._file is None:
            return
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
        if hasattr(self, "_file"):
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
    return "one that has not said its name"


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
