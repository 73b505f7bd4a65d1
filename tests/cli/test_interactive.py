"""`nmtkit translate --interactive`, in a real terminal."""

import re
from pathlib import Path

import pytest

from nmtkit import Translator
from nmtkit.cli.inference.explain import converse
from nmtkit.cli.terminal.heatmaps import show_attention
from tests.cli.keyboard import typed
from tests.cli.untrained_runs import TRANSLATION, make_run
from tests.support.commands import Command, refused

KEYS = [
    b"ba ce di\r",
    b"\x1b[A\x7f\x7ffo\r",  # the last line again, its last word replaced
    b":set beam_size=2\r",
    b"ba ce di\r",
    b":explain\r",
    b":set beam_size=0\r",
    b":set samples=2 beam_size=2\r",
    b":help\r",
    b":quit\r",
]


def test_a_session_with_edited_lines_settings_and_explanations(
    trained: Path, console: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("readline")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("INPUTRC", "/dev/null")
    best, other, two = (
        console(
            "translate", "-m", trained, "--n-best", n, "--beam-size", n, stdin=f"{line}\n"
        ).out.splitlines()
        for n, line in ((3, "ba ce di"), (3, "ba ce fo"), (2, "ba ce di"))
    )
    code, shown = typed(KEYS, "translate", "-m", trained, "--interactive", after=b"> ")
    assert code == 0, shown
    answers = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]|\r", "", shown).split("\n> ")[1:]
    assert len(answers) == len(KEYS)
    first, edited, _, again, explained, zero, unused, helped, _ = (
        one.splitlines() for one in answers
    )

    def results(lines: list[str]) -> list[list[str]]:
        return [
            line.split(maxsplit=2) for line in lines if line.startswith(("  1 ", "  2 ", "  3 "))
        ]

    for lines, printed in ((first, best), (edited, other), (again, two)):
        rows = [line.split("\t") for line in printed]
        assert results(lines) == [
            [str(rank), row[1], row[3]] for rank, row in enumerate(rows, start=1)
        ]
        assert rows[0][3] in lines
    assert any("BA[ba]" in line for line in first)
    assert "ba ce di" in explained
    (score,) = [float(line.split()[2]) for line in explained if line.startswith(" 1* score ")]
    assert score == pytest.approx(float(two[0].split("	")[1]), abs=1.5e-6)  # both are rounded
    assert "`beam_size`" in zero[-1]
    assert any("beam_size has no effect" in line for line in unused)
    assert any(":explain" in line for line in helped)


def test_settings_of_opening_a_model_are_refused_in_a_session(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter([":set ensemble=log-probabilities", ":set engine=nmtkit beam_size=2", ":quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    converse(Translator.load(str(trained), "cpu"), 4)
    shown = capsys.readouterr().err
    assert "`ensemble`" in shown
    assert "`engine`" in shown


def test_wrong_commands_are_corrected_and_attention_is_shown(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed_lines = [
        ":attention",
        ":beam 2",
        ":beam_size=2",
        ":no-repeat-ngram 3",
        ":explian",
        ":nonsense",
        "ba ce di",
        ":set beam_size=1",
        ":attention",
        ":quit",
    ]
    lines = iter(typed_lines)
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    translator = Translator.load(str(trained), "cpu")
    converse(translator, 1)
    shown = capsys.readouterr()
    assert ":attention shows how a line was translated; type a line first" in shown.err
    assert shown.err.count("did you mean `:set beam_size=2`?") == 2
    assert "did you mean `:set no_repeat_ngram=3`?" in shown.err
    assert "did you mean `:explain`?" in shown.err
    assert "unknown command :nonsense; :help shows the commands" in shown.err
    show_attention(translator.pictures(["ba ce di"])[0])
    assert shown.out.endswith(capsys.readouterr().out), (
        "as `plot-attention` shows it, of the search that was made"
    )


@pytest.mark.parametrize("key", [b"\x04", b"\x03"])
def test_ctrl_d_and_ctrl_c_end_a_session(trained: Path, key: bytes) -> None:
    code, shown = typed([b"ba\r", key], "translate", "-m", trained, "--interactive", after=b"> ")
    assert code == 0, shown
    assert "Traceback" not in shown
    assert shown.endswith("\n")


def test_a_model_without_attention_says_so_once(console: Command, tmp_path: Path) -> None:
    run = make_run(tmp_path, "blind", TRANSLATION.replace("rnnsearch", "rnn_encdec"))
    code, shown = typed(
        [b"dog\r", b"man\r", b"\x04"], "translate", "-m", run, "--interactive", after=b"> "
    )
    assert code == 0, shown
    assert shown.count("has no attention, so alignments are not shown") == 1
    assert "[dog]" not in shown
    refused(console("plot-attention", "-m", run, "dog"), "no attention")


@pytest.mark.parametrize(
    ("settings", "ended"),
    [
        ("samples=4", "all samples ended"),
        ("beam_size=6 diversity_groups=2", "hypotheses"),
        ("beam_size=5", "reaching the beam size of 5"),
    ],
)
def test_explain_shows_samples_groups_and_ensembles(
    trained: Path,
    settings: str,
    ended: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = iter([":explain", f":set {settings}", " :quit", "ba ce di", ":explain", ":quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    converse(Translator.load([str(trained)] * 2, "cpu"), 4)
    shown = capsys.readouterr()
    assert next(lines, None) is None
    assert shown.err.count("type a line first") == 1
    assert "BA[ba]" in shown.out
    assert ended in shown.out
    assert "\n  4  " in shown.out or "samples" in settings  # equal samples are one
