"""The displays of progress: plain lines now and then where there is no terminal, live lines where there is."""

import io
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.text import Text

from nmtkit.cli.terminal import LineProgress, ProgressDisplay, TrainingDisplay
from tests.cli.terminal.terminal import in_terminal
from tests.support.cases import daily

METRICS = {"loss": 2.3456, "ppl": 10.44, "tokens_per_second": 3152.4, "learning_rate": 0.0007}
METRICS |= {"gradient_norm": 0.82, "bleu": 31.25}
SHOWN = ["3,152 tok/s", "loss 2.346", "ppl 10.44", "lr 7.00e-04", "grad 0.82", "bleu 31.25"]


def test_training_display_writes_plain_lines() -> None:
    stream = io.StringIO()
    with TrainingDisplay(stream=stream, seconds_between_lines=0.0) as display:
        display.update(50, 0.25, METRICS, seconds=66.0)
        display.message("saved")
        display.update(51, None, {}, seconds=67.0)
    first, message, last = stream.getvalue().splitlines()
    for fact in ("update 50 (25%)", *SHOWN, "0:03:18 left"):
        assert fact in first
    assert message == "saved"
    assert "update 51" in last
    assert "? left" in last


def test_training_display_skips_lines_but_not_the_last() -> None:
    stream = io.StringIO()
    with TrainingDisplay(stream=stream, seconds_between_lines=60.0) as display:
        for update in range(1, 151):
            display.update(update, update / 200, METRICS)
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["1", "150"]


TRAINING_PROGRAM = """
import time
from nmtkit.cli.terminal import TrainingDisplay
with TrainingDisplay() as display:
    for update in range(1, 5):
        time.sleep(0.21)
        metrics = {"loss": 2.5, "ppl": 12.18, "learning_rate": 7e-4, "gradient_norm": 0.8}
        display.update(update * 100, update / 10, metrics)
        if update == 2:
            display.message("  BLEU 31.2 " + "word " * 20 + "x" * 100)
"""


@pytest.mark.parametrize("columns", daily([50, 100]))
def test_training_display_in_a_terminal(columns: int) -> None:
    out = in_terminal(TRAINING_PROGRAM, columns)
    frames = out.split("\x1b[2K")
    plain = [Text.from_ansi(frame).plain for frame in frames]
    assert any("update 100 " in frame and "10%" in frame for frame in plain)
    assert "update 400 " in plain[-1]
    assert "loss 2.500" in plain[-1]
    assert "grad 0.80" in plain[-1]
    assert "\n    " + "x" * 100 + "\n" in out  # no word is broken
    said = [line.split("\x1b[2K")[-1] for line in out.splitlines()]
    said = [Text.from_ansi(line).plain.rstrip() for line in said if "word" in line]
    assert said[0].startswith("  BLEU 31.2 word word")
    assert all(line.startswith("    word") and line.endswith(" word") for line in said[1:])
    assert sum(line.split().count("word") for line in said) == 20
    assert out.count("\x1b[?25l") == out.count("\x1b[?25h") == 1  # the cursor comes back
    for line in out.splitlines():
        assert (
            "x" * 100 in line
            or cell_len(Text.from_ansi(line.split("\x1b[2K")[-1]).plain) <= columns
        )


PROGRESS_PROGRAM = """
import sys, time
from nmtkit.cli.terminal import LineProgress
with LineProgress() as progress:
    for _ in range(4):
        time.sleep(0.21)
        progress.advance(10)
        print("translation")
"""


def test_line_progress_when_only_stderr_is_a_terminal(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as out:
        shown = Text.from_ansi(
            in_terminal(PROGRESS_PROGRAM, stdout=out.fileno()).split("\x1b[2K")[-1]
        ).plain
    assert re.match(r"40 lines +\d+\.\d lines/s +0:00:01$", shown)
    assert (tmp_path / "out").read_text() == "translation\n" * 4


def test_line_progress_of_a_known_number_of_lines_shows_the_time_left(tmp_path: Path) -> None:
    program = PROGRESS_PROGRAM.replace(
        "for _ in range(4):", "progress.total = 4_000\n    for _ in range(4):"
    )
    with open(tmp_path / "out", "w") as out:
        shown = Text.from_ansi(in_terminal(program, stdout=out.fileno()).split("\x1b[2K")[-1]).plain
    assert re.match(r"40 of 4,000 lines +\d+\.\d lines/s +0:00:01, 0:01:\d\d left$", shown)


def test_line_progress_is_not_mixed_with_results_in_a_terminal() -> None:
    assert in_terminal(PROGRESS_PROGRAM) == "translation\n" * 4


def test_line_progress_is_silent_elsewhere() -> None:
    stream = io.StringIO()
    with LineProgress(stream=stream) as progress:
        progress.advance(40)
    assert stream.getvalue() == ""


def test_without_a_terminal_progress_is_lines() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream, seconds_between_lines=0.0) as display:
        display.update("1 of 4 MB", 0.25)
        display.message("a word in between")
        display.update("2 of 4 MB", 0.5)
    assert stream.getvalue() == "1 of 4 MB\na word in between\n2 of 4 MB\n"


DONE_PROGRAM = """
from nmtkit.cli.terminal import ProgressDisplay
with ProgressDisplay() as display:
    display.update("2.0 of 4.0 MB", 0.5)  # too early to be drawn
    display.update("4.0 of 4.0 MB", 1.0)
    display.message("done")
"""


def test_in_a_terminal_there_is_one_live_line(tmp_path: Path) -> None:
    shown = in_terminal(DONE_PROGRAM)
    assert all(text in shown for text in ("4.0 of 4.0 MB", "100%", "done"))
    assert "2.0 of 4.0 MB" not in shown
