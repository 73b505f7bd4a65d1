"""Bars in the terminal."""

import pytest

from nmtkit import console


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, width: int = 40) -> list[str]:
    console.histogram(*arguments, width=width)  # type: ignore[arg-type]  # as given by each test
    return capsys.readouterr().out.splitlines()


def test_bars_are_as_long_as_their_share(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "lengths", ["0–4", "5 and more"], [("all", [50, 100])], width=36)
    assert lines == [
        "lengths",
        "       0–4  ████████          33.3%",
        "5 and more  ████████████████  66.7%",
    ]


def test_series_stand_side_by_side_under_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "words", ["1", "2"], [("source", [1, 3]), ("target", [1000, 0])], width=45)
    assert lines[1].split() == ["source", "target"]
    assert lines[1].index("target") == lines[2].index("█", 20)
    assert lines[2].endswith("100.0%")
    assert lines[3].endswith(" 75.0%")
    assert all(len(line) <= 45 for line in lines)


def test_what_is_there_can_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "lengths", ["a", "b", "c"], [("all", [1, 0, 1_000_000])])
    assert "▏" in lines[1]
    assert lines[2] == "b"


def test_nothing_at_all_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "lengths", [], [("all", [])]) == ["lengths"]
    assert printed(capsys, "lengths", ["a"], [("all", [0])]) == ["lengths", "a"]
