"""Lines, tables and bars in the terminal."""

import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.text import Text

from nmtkit.cli.terminal import histogram, say, table
from nmtkit.cli.terminal.tables import wrapped
from tests.cli.terminal.terminal import in_terminal


def test_import_is_light() -> None:
    program = (
        "import sys, nmtkit.cli.terminal; "
        "print(*[m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""


def test_say_leaves_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[bold]x[/bold] :smile: " + "word " * 60
    say(text)
    say("to stderr", stderr=True)
    captured = capsys.readouterr()
    assert captured.out == text + "\n"
    assert captured.err == "to stderr\n"


def test_table_outside_a_terminal_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    long = "[red]" + "x" * 200
    table("Scores", ["system", "BLEU"], [[long, 41.25], ["b", 7]], stderr=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0] == "Scores"
    assert lines[1].split() == ["system", "BLEU"]
    assert lines[3].split() == [long, "41.25"]
    assert lines[4].split() == ["b", "7"]


def test_table_folds_in_a_terminal() -> None:
    program = "from nmtkit.cli.terminal import table; table('t', ['name', 'n'], [['x' * 100, 1]])"
    lines = [Text.from_ansi(line).plain for line in in_terminal(program, columns=40).splitlines()]
    assert max(map(cell_len, lines)) <= 40
    assert "".join(lines).count("x") == 100


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, width: int = 40) -> list[str]:
    histogram(*arguments, width=width)  # type: ignore[arg-type]  # as given by each test
    return capsys.readouterr().out.splitlines()


def test_bars_are_as_long_as_their_share(capsys: pytest.CaptureFixture[str]) -> None:
    title, *lines = printed(
        capsys, "lengths", ["0–4", "5 and more"], [("all", [50, 100])], width=36
    )
    assert title == "lengths"
    assert [line.split()[-1] for line in lines] == ["33.3%", "66.7%"]
    assert 2 * lines[0].count("█") == lines[1].count("█") > 0
    assert lines[1].startswith("5 and more")


def test_series_are_side_by_side_under_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(
        capsys, "words", ["1", "2"], [("source", [1, 3]), ("target", [1000, 0])], width=45
    )
    assert lines[1].split() == ["source", "target"]
    assert [word for word in lines[2].split() if "%" in word] == ["25.0%", "100.0%"]
    assert [word for word in lines[3].split() if "%" in word] == ["75.0%"]


def test_the_smallest_share_has_a_bar_and_no_counts_are_no_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys, "lengths", ["a", "b", "c"], [("all", [1, 0, 1_000_000])])
    assert "▏" in lines[1]
    assert lines[2] == "b"
    assert printed(capsys, "lengths", [], [("all", [])]) == ["lengths"]
    assert printed(capsys, "lengths", ["a"], [("all", [0])]) == ["lengths", "a"]


def test_table_outside_a_terminal_wraps_prose_but_no_long_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    words = [f"word{number}" for number in range(60)]
    table(
        "", ["what", "said", "n"], [["signature|of:13a|" * 2, " ".join(words), 7], ["b", "c", 10]]
    )
    lines = capsys.readouterr().out.splitlines()
    # the signature stays whole, and the prose is no wider than it must be
    assert max(map(cell_len, lines)) < 55
    assert lines[2].startswith("signature|of:13a|signature|of:13a|   word0 ")
    assert [word for line in lines for word in line.split() if word.startswith("word")] == words


@pytest.mark.parametrize("width", [60, 80, 100])
def test_messages_are_wrapped_at_words_with_their_indent(width: int) -> None:
    told = "because no more subwords are learned well from 35,000 words a side (Sennrich and Zhang 2019)"
    path = "/a/" + "long" * 30
    command = "  nmtkit train runs/demo/recipe.yaml --run runs/demo --resume --set training.max_minutes=7 --set a.b=c"
    lines = wrapped(f"  tokenizer: bpe with 2,000, {told}\n{path}\n{command}", width).splitlines()
    assert lines[-1] == command  # to be copied
    assert lines[-2] == path
    assert " ".join(" ".join(lines[:-2]).split()) == f"tokenizer: bpe with 2,000, {told}"
    assert all(len(line) <= width for line in lines[:-2])
    assert lines[0].startswith("  tokenizer")
    assert all(line.startswith("    ") for line in lines[1:-2])


def test_only_messages_in_a_terminal_are_wrapped() -> None:
    program = (
        "from nmtkit.cli.terminal import say; say('word ' * 30, stderr=True); say('line ' * 30)"
    )
    shown = in_terminal(program, 60)
    assert [len(line) for line in shown.splitlines() if line.startswith("word")] == [59]
    assert "line " * 30 in shown


LOG_PROGRAM = """
import sys
from nmtkit.cli import terminal
lines = []
with terminal.tee(lines.append), terminal.TrainingDisplay() as display:
    terminal.say("a sentence of many words " * 9, stderr=True)
    display.message("another sentence of many words " * 9)
    display.update(1, 0.5, {})
    display.message("a third sentence of many words " * 9)
    terminal.table("title", ["one", "two"], [["many words " * 20, "1"]], stderr=True)
open(sys.argv[1], "w").write("\\n".join(lines))
"""


def test_copies_for_a_log_are_not_wrapped_at_the_width_of_the_terminal(tmp_path: Path) -> None:
    program = LOG_PROGRAM.replace("sys.argv[1]", repr(str(tmp_path / "log")))
    shown = in_terminal(program)
    assert "many words " * 9 not in " ".join(shown.splitlines())
    log = (tmp_path / "log").read_text()
    for beginning in (
        "a sentence of many words ",
        "another sentence of many words ",
        "a third sentence of many words ",
    ):
        assert (beginning * 9).rstrip() in log
    assert ("many words " * 20).rstrip() in log
