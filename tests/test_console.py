import io
import os
import pty
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from rich.cells import cell_len
from rich.text import Text

from nmtkit.console import BLOCKS, COLOURS, LineProgress, TrainingDisplay, heatmap, say, table
from nmtkit.pictures import Window

SHARP = np.array([[0.1, 0.9, 0.0], [0.5, 0.2, 0.3]])


def in_terminal(program: str, columns: int = 80, stdout: int | None = None, **variables: str) -> str:
    """Runs a Python program in a real terminal (its stdout too, unless given) and returns what the terminal got."""
    leader, follower = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": str(columns), **variables}
    target = follower if stdout is None else stdout
    process = subprocess.Popen([sys.executable, "-c", program], stdout=target, stderr=follower, env=environment)
    os.close(follower)
    got = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # how Linux tells that the other end is closed
            break
        if not piece:
            break
        got += piece
    os.close(leader)
    assert process.wait(timeout=10) == 0
    return got.decode().replace("\r\n", "\n")


def test_import_is_light():
    program = "import sys, nmtkit.console; print(*[m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_say_leaves_text_alone(capsys):
    text = "[bold]x[/bold] :smile: " + "word " * 60
    say(text)
    say("to stderr", stderr=True)
    captured = capsys.readouterr()
    assert captured.out == text + "\n"
    assert captured.err == "to stderr\n"


def test_table_outside_a_terminal_cuts_nothing(capsys):
    long = "[red]" + "x" * 200
    table("Scores", ["system", "BLEU"], [[long, 41.25], ["b", 7]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Scores"
    assert lines[1].split() == ["system", "BLEU"]
    assert lines[3].split() == [long, "41.25"]
    assert lines[4].endswith("     7")  # numbers stand to the right
    assert all(line == line.rstrip() for line in lines)


def test_table_to_stderr(capsys):
    table("", ["a"], [["1"]], stream="stderr")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.split()[::2] == ["a", "1"]


def test_table_folds_in_a_terminal():
    program = "from nmtkit.console import table; table('t', ['name', 'n'], [['x' * 100, 1]])"
    lines = [Text.from_ansi(line).plain for line in in_terminal(program, columns=40).splitlines()]
    assert max(map(cell_len, lines)) <= 40
    assert "".join(lines).count("x") == 100


def plain_heatmap(capsys, src, tgt, weights, width=80, title=""):
    heatmap(src, tgt, np.asarray(weights), title=title, width=width)
    return capsys.readouterr().out.splitlines()


def test_heatmap_in_plain_characters(capsys):
    lines = plain_heatmap(capsys, ["the", "cat", "</s>"], ["le", "chat"], SHARP, title="demo")
    assert lines == [
        "demo",
        "         <",
        "     t c /",
        "     h a s",
        "     e t >",
        "  le   ██  ",
        "chat ▒▒░░░░",
        "░▒▓█ to 0.90",
    ]


def test_darkest_block_is_at_the_largest_weight(capsys):
    weights = np.random.default_rng(3).dirichlet(np.ones(7), size=6)
    lines = plain_heatmap(capsys, list("abcdefg"), list("uvwxyz"), weights)
    shades = np.array([[BLOCKS.index(line[2 + 2 * s]) for s in range(7)] for line in lines[1:7]])
    np.testing.assert_array_equal(shades, np.round(weights / weights.max() * 4))
    assert shades[np.unravel_index(weights.argmax(), weights.shape)] == 4
    assert shades.min() == 0


def test_heatmap_with_windows(capsys):
    """Row x may look at the first two words, y at the last two; a weight of nothing inside a window is a space."""
    weights = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    heatmap(list("abcd"), ["x", "y"], weights, windows=[Window(0.2, 1.0), Window(2.75, 1.0)])
    assert capsys.readouterr().out.splitlines() == [
        "   a  b  c  d",
        "x ▒▒+▒▒▒·  ·  ",
        "y ·  ·     ██+",
        "░▒▓█ to 1.00",
        "+ centre of the window, · outside the window",
    ]


@pytest.mark.parametrize("width", [20, 33, 80])
@pytest.mark.parametrize("longest", [3, 30])
def test_heatmap_fits_the_width(capsys, width, longest):
    src = [f"{'w' * (longest - 2)}{i:02}" for i in range(45)]
    tgt = [f"{'z' * longest}{i}" for i in range(5)]
    weights = np.eye(5, 45) + np.eye(5, 45, k=40)
    lines = plain_heatmap(capsys, src, tgt, weights, width, title="a title that is longer than the narrow terminal")
    assert max(map(cell_len, lines)) <= width
    # Every cell is there, over all panels: two columns for each of the ten weights, in blocks of the darkest kind.
    cells = [line for line in lines if "to 1.00" not in line]
    per_cell = 2 if longest == 3 else 3
    assert sum(line.count("█") for line in cells) == 10 * per_cell
    if longest == 30:  # too long to stand upright: the columns are numbered, and a legend tells the words
        assert all(word in "".join(lines) for word in src)


def test_joining_scripts_are_numbered(capsys):
    lines = plain_heatmap(capsys, ["أحب", "القطط"], ["I", "cats"], [[0.0, 1.0], [0.5, 0.5]])
    assert lines[0] == "     1 2"
    assert lines[1] == "   I   ██"
    assert lines[2] == "cats ▒▒▒▒"
    assert [word for word in ("أحب", "القطط") if any(word in line for line in lines[3:])] == ["أحب", "القطط"]


def test_wide_letters_keep_the_columns(capsys):
    lines = plain_heatmap(capsys, ["黑", "猫", "x"], ["喜欢", "a"], [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    assert lines == ["     黑猫x", "喜欢 ██  ██", "   a   ██  ", "░▒▓█ to 1.00"]


def test_control_characters_do_not_reach_the_terminal(capsys):
    out = "\n".join(plain_heatmap(capsys, ["\x1b[2J"], ["a\rb"], [[1.0]], title="\x07"))
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", out)
    assert "a�b" in out


def test_no_words(capsys):
    assert plain_heatmap(capsys, ["a"], [], np.zeros((0, 1))) == ["(no words)"]


COLOUR_PROGRAM = """
import numpy as np
from nmtkit.console import heatmap
heatmap(["the", "cat", "sat"], ["le", "chat"], np.array([[0.1, 0.9, 0.0], [0.5, 0.2, 0.3]]))
"""


def test_heatmap_in_colours():
    lines = in_terminal(COLOUR_PROGRAM).splitlines()
    row = lines[3]
    assert Text.from_ansi(row).plain.rstrip() == "  le 10 90"
    backgrounds = [int(colour) for colour in re.findall(r"48;5;(\d+)m", row)]
    assert backgrounds == [COLOURS[1], COLOURS[-1], COLOURS[0]]
    assert not set(BLOCKS[1:]) & set("".join(lines))


def test_no_color_is_respected():
    out = in_terminal(COLOUR_PROGRAM, NO_COLOR="1")
    assert "48;5;" not in out
    assert "  le   ██  " in out.splitlines()


METRICS = {
    "loss": 2.3456,
    "perplexity": 10.44,
    "tokens_per_second": 3152.4,
    "learning_rate": 0.0007,
    "gradient_norm": 0.82,
    "bleu": 31.25,
}


def test_training_display_writes_plain_lines():
    stream = io.StringIO()
    with TrainingDisplay(stream=stream, seconds_between_lines=0.0) as display:
        display.update(50, 0.25, METRICS)
        display.message("saved")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    facts = lines[0].split("  ")
    shown = ["3,152 tok/s", "loss 2.346", "ppl 10.44", "lr 7.00e-04", "grad 0.82", "bleu 31.25"]
    assert facts[:-1] == ["update 50 (25%)", *shown]
    assert facts[-1] == "? left"  # one update tells no speed
    assert lines[1] == "saved"


def test_training_display_is_quiet_between_lines_but_tells_the_last():
    stream = io.StringIO()
    with TrainingDisplay(stream=stream, seconds_between_lines=60.0) as display:
        for update in range(1, 151):
            display.update(update, update / 200, METRICS)
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1", "150"]
    display.close()
    assert len(stream.getvalue().splitlines()) == 2


def test_time_left_is_reckoned_from_where_training_resumed():
    stream = io.StringIO()
    display = TrainingDisplay(stream=stream, seconds_between_lines=0.0)
    display.update(1000, 1000 / 1020, {})
    time.sleep(0.5)
    display.update(1005, 1005 / 1020, {})  # a tenth of a second each, 15 to go
    first, second = stream.getvalue().splitlines()
    assert first.endswith("? left")
    assert second.endswith(("0:01 left", "0:02 left"))


TRAINING_PROGRAM = """
import time
from nmtkit.console import TrainingDisplay
with TrainingDisplay() as display:
    for update in range(1, 5):
        time.sleep(0.21)
        metrics = {"loss": 2.5, "perplexity": 12.18, "learning_rate": 7e-4, "gradient_norm": 0.8}
        display.update(update * 100, update / 10, metrics)
        if update == 2:
            display.message("BLEU 31.2 " + "x" * 100)
"""


@pytest.mark.parametrize("columns", [50, 100])
def test_training_display_in_a_terminal(columns):
    out = in_terminal(TRAINING_PROGRAM, columns)
    frames = out.split("\x1b[2K")
    plain = [Text.from_ansi(frame).plain for frame in frames]
    assert any("update 100 " in frame and "10%" in frame for frame in plain)
    assert "update 400 " in plain[-1]
    assert "loss 2.500" in plain[-1]
    assert "grad 0.80" in plain[-1]
    assert "BLEU 31.2 " + "x" * 100 + "\n" in out
    assert out.count("\x1b[?25l") == out.count("\x1b[?25h") == 1  # the cursor comes back
    for line in out.splitlines():
        assert "x" * 100 in line or cell_len(Text.from_ansi(line.split("\x1b[2K")[-1]).plain) <= columns


PROGRESS_PROGRAM = """
import sys, time
from nmtkit.console import LineProgress
with LineProgress(total=40) as progress:
    for _ in range(4):
        time.sleep(0.21)
        progress.advance(10)
        print("translation")
"""


def test_line_progress_when_only_stderr_is_a_terminal(tmp_path):
    with open(tmp_path / "out", "w") as out:
        shown = Text.from_ansi(in_terminal(PROGRESS_PROGRAM, stdout=out.fileno()).split("\x1b[2K")[-1]).plain
    assert re.match(r"40/40 lines  \d+\.\d lines/s  0:01  0:00 left", shown)
    assert (tmp_path / "out").read_text() == "translation\n" * 4


def test_line_progress_leaves_a_terminal_full_of_results_alone():
    assert in_terminal(PROGRESS_PROGRAM) == "translation\n" * 4


def test_line_progress_is_silent_elsewhere():
    stream = io.StringIO()
    with LineProgress(total=40, stream=stream) as progress:
        progress.advance(40)
    assert stream.getvalue() == ""
