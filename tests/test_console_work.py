"""How far a long piece of work is: plain lines now and then where there is no terminal, a live line where there is."""

import io
import os
import pty
import sys
from contextlib import suppress

from nmtkit.console import WorkDisplay


def test_without_a_terminal_lines_come_now_and_then():
    stream = io.StringIO()
    with WorkDisplay(stream, seconds_between_lines=0.0) as display:
        display.update("1 of 4 MB", 0.25)
        display.message("a word in between")
        display.update("2 of 4 MB", 0.5)
    assert stream.getvalue() == "1 of 4 MB\na word in between\n2 of 4 MB\n"
    rare = io.StringIO()
    with WorkDisplay(rare, seconds_between_lines=1000.0) as display:
        for step in range(100):
            display.update(f"{step} MB", step / 100)
    assert rare.getvalue() == ""


def read_to_end(terminal: int) -> str:
    """What was written to a pseudo-terminal whose other end is closed; reading then ends in an error."""
    blocks = []
    with suppress(OSError):
        while block := os.read(terminal, 4096):
            blocks.append(block)
    os.close(terminal)
    return b"".join(blocks).decode("utf-8")


def test_in_a_terminal_there_is_one_live_line(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream, WorkDisplay(stream) as display:
        display.update("2.0 of 4.0 MB", 0.5)  # too early to be drawn
        display.update("4.0 of 4.0 MB", 1.0)
        display.message("done")
    shown = read_to_end(ours)
    assert "4.0 of 4.0 MB" in shown
    assert "100%" in shown
    assert "done" in shown
    assert "2.0 of 4.0 MB" not in shown
