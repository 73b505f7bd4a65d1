"""`nmtkit translate --interactive`, in a real terminal."""

import re
from pathlib import Path

import pytest
from commands import Command, refused
from keyboard import typed
from untrained_runs import TRANSLATION, make_run

from nmtkit import Translator
from nmtkit.cli.interactive import converse

KEYS = [
    b"ba ce di\r",
    b"\x1b[A\x7f\x7ffo\r",  # the last line again, its last word replaced
    b":n 2\r",
    b"ba ce di\r",
    b":explain\r",
    b":beam 1\r",
    b":beam 0\r",
    b":sing\r",
    b":help\r",
    b":quit\r",
]


def test_a_conversation(trained: Path, console: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("readline")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("INPUTRC", "/dev/null")
    best, other = (
        console("translate", "-m", trained, "--n-best", "3", stdin=f"{line}\n").out.splitlines()
        for line in ("ba ce di", "ba ce fo")
    )
    code, shown = typed(KEYS, "translate", "-m", trained, "--interactive", after=b"> ")
    assert code == 0, shown
    answers = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]|\r", "", shown).split("\n> ")[1:]
    assert len(answers) == len(KEYS)
    first, edited, set_n, again, explained, beam, nothing, unknown, told, _ = (one.splitlines() for one in answers)

    def results(lines: list[str]) -> list[list[str]]:
        return [line.split(maxsplit=2) for line in lines if line.startswith(("  1 ", "  2 ", "  3 "))]

    for lines, found in ((first, best), (edited, other), (again, best[:2])):
        asked = [line.split("\t") for line in found]
        assert results(lines) == [[str(rank), one[1], one[3]] for rank, one in enumerate(asked, start=1)]
        assert asked[0][3] in lines
    assert set_n[-1] == "beam size 3, 2 results"
    assert any("BA[ba]" in line for line in first)
    assert "ba ce di" in explained
    assert any(line.startswith(" 1* score " + best[0].split("\t")[1]) for line in explained)
    assert beam[-1] == "beam size 1, 1 result"
    assert "give a number from 1" in nothing[-1]
    assert ":sing is no command" in unknown[-1]
    assert any(":explain" in line for line in told)


@pytest.mark.parametrize("key", [b"\x04", b"\x03"])
def test_ctrl_d_and_ctrl_c_end_it(trained: Path, key: bytes) -> None:
    code, shown = typed([b"ba\r", key], "translate", "-m", trained, "--interactive", after=b"> ")
    assert code == 0, shown
    assert "Traceback" not in shown
    assert shown.endswith("\n")


def test_what_it_has_no_use_for(trained: Path, console: Command) -> None:
    for words, told in (
        (["--json"], "leave --json out"),
        (["--split-sentences"], "leave --split-sentences out"),
        ([__file__], "leave FILE out"),
        ([], "needs a terminal"),
        (["-o", "out"], "needs a terminal"),
    ):
        refused(console("translate", "-m", trained, "--interactive", *words), told)


def test_a_model_without_attention_says_so_once(console: Command, tmp_path: Path) -> None:
    run = make_run(tmp_path, "blind", TRANSLATION.replace("rnnsearch", "rnn_encdec"))
    code, shown = typed([b"dog\r", b"man\r", b"\x04"], "translate", "-m", run, "--interactive", after=b"> ")
    assert code == 0, shown
    assert shown.count("has no attention: alignments are not shown") == 1
    assert "[dog]" not in shown
    refused(console("plot-attention", "-m", run, "dog"), "no attention")


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"samples": 2}, ["samples are drawn without a beam", "samples 4, 4 results", "all samples ended"]),
        ({"beam_size": 4, "diversity_groups": 2}, ["do not make a beam of 3", "beam size 6, 5 results", "hypotheses"]),
        ({"beam_size": 2}, ["beam size 3, 2 results", "beam size 5, 5 results", "the beam is 5 wide"]),
    ],
)
def test_samples_groups_and_ensembles(
    trained: Path,
    settings: dict[str, object],
    shown: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    several = ":n 4" if "samples" in settings else ":n 5"
    lines = iter(["ba ce di", ":beam 3", several, "ba ce di", ":explain", ":quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    converse(Translator.load([str(trained)] * 2, "cpu", search_settings=settings), None)
    told = capsys.readouterr()
    assert next(lines, None) is None
    assert "error" not in told.err
    assert "BA[ba]" in told.out
    for message in shown:
        assert message in told.err + told.out
