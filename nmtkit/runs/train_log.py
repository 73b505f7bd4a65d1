"""`train.log` of a run: messages of its trainings with timestamps, versions and commit. Nothing reads it."""

import platform
import shlex
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import torch

from nmtkit.core.version import __version__
from nmtkit.runs.folder import Notify, RunFolder

_PACKAGE = Path(__file__).parent.parent
_GIT_SECONDS = 10


class TrainLog:
    """Writes the messages of one training; those before `open` are kept until then.

    If the file cannot be written, `notify` is told, and training goes on.
    """

    def __init__(self, command: Sequence[str], notify: Notify) -> None:
        self._notify = notify
        self._waiting: list[str] = []
        self._file: TextIO | None = None
        self.write(f"$ {shlex.join(command)}")
        versions = f"nmtkit {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
        self.write(f"{versions}, {platform.platform()}\ncode: {code_state()}")

    def open(self, folder: RunFolder) -> None:
        """Appends to the file in the run's folder."""
        waiting, self._waiting = self._waiting, []
        try:
            self._file = folder.train_log.open("a", encoding="utf-8", buffering=1)
            self._file.writelines(waiting)
        except OSError as fault:
            self._give_up(folder.train_log, fault)

    def write(self, text: str) -> None:
        """Adds a message of one or more lines."""
        lines = [_stamped(line) for line in text.splitlines() if line]
        if self._file is None:
            self._waiting += lines
            return
        try:
            self._file.writelines(lines)
        except OSError as fault:
            self._give_up(Path(self._file.name), fault)

    def _give_up(self, path: Path, fault: OSError) -> None:
        self.close()
        self._notify(f"{path}: cannot write it ({fault.strerror or fault}); training goes on without it")

    def close(self) -> None:
        """Closes the file; later messages are not written."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what could not be written was told
                file.close()


def code_state() -> str:
    """The git commit of the package, and whether files were changed since; or that it is in no git checkout."""
    with suppress(OSError, subprocess.SubprocessError):
        if _git("ls-files", "--error-unmatch", "__init__.py"):  # it may be installed within another checkout
            return f"git commit {_git('describe', '--always', '--abbrev=40', '--exclude=*', '--dirty=, changed')}"
    return "not in a git checkout"


def _git(*words: str) -> str:
    """Output of git in the package's folder; empty if it fails."""
    command = ["git", "--no-optional-locks", "-C", str(_PACKAGE), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False).stdout.strip()


def _stamped(line: str) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n"
