"""The command line inside the test's own process: a call costs less than a start of Python with torch."""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from nmtkit.cli import main


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


Console = Callable[..., Done]


def console_in(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Console:
    """A function that runs `nmtkit ARGUMENTS`; the text of `stdin` goes through a file in `folder`."""
    monkeypatch.delenv("NMTKIT_MODEL", raising=False)

    def run(*arguments: object, stdin: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["nmtkit", *map(str, arguments)])
        (folder / "stdin").write_text(stdin, encoding="utf-8")
        given, before = os.open(folder / "stdin", os.O_RDONLY), os.dup(0)
        os.dup2(given, 0)  # commands read the file descriptor itself
        threads = set(threading.enumerate())
        try:
            with pytest.raises(SystemExit) as stopped:
                main()
        finally:
            os.dup2(before, 0)
            # A command that was refused may leave one that reads on: it must not take the next one's input.
            for thread in set(threading.enumerate()) - threads:
                thread.join(timeout=1)
            os.close(before)
            os.close(given)
        captured = capsys.readouterr()
        assert isinstance(stopped.value.code, int)
        return Done(stopped.value.code, captured.out, captured.err)

    return run
