"""A beam search in the terminal."""

from dataclasses import replace

import pytest
from rich.cells import cell_len

from nmtkit.cli.terminal.trees import show_search
from nmtkit.plots.trees import RankedResult, SearchTree, TreeNode


def tree(steps: int, beam: int = 2, word: str = "▁Gehsteige") -> SearchTree:
    """Every step keeps as many as the beam is wide, crosses two of them, prunes one and blocks another."""
    parents = [1, 0, *range(2, beam)] if beam > 1 else [0]
    made = []
    for step in range(steps):
        kept = [
            TreeNode(word, parents[slot] if step else 0, "kept", -1.0, -2.5, 0.5, -1.0)
            for slot in range(beam)
        ]
        pruned = TreeNode("▁der", 0, "pruned", -1.0, -3.25, -0.25, -1.0)
        blocked = TreeNode("▁die", 0, "blocked", -1.0, -2.0, 1.0, None, "no_repeat_ngram")
        made.append([*kept, pruned, blocked])
    made.append([TreeNode("</s>", beam - 1, "ended", -0.5, -3.0, 0.0, -0.123)])
    best = RankedResult("die Gehsteige der Stadt", -0.123456, -3.0, True, steps, 0)
    return SearchTree(
        "the pavements", "demo", "beam size 2", beam, made, [best], "The search stopped: 1 ended"
    )


def shown(one: SearchTree, width: int = 80, steps: int | None = None) -> int:
    """Prints the search for a terminal of 24 lines; returns the number of steps that were left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        patch.setenv("LINES", "24")
        return show_search(one, steps)


def signs_in(lines: list[str]) -> list[str]:
    """The signs that the legend explains."""
    (legend,) = (line for line in lines if line.startswith("* best"))
    return legend.split("  ")


@pytest.mark.parametrize("steps", [3, 5])
def test_a_short_sentence_fits_a_screen(steps: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(tree(steps)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 23
    assert max(map(cell_len, lines)) <= 80
    assert lines[0] == "the pavements"
    second = next(line for line in lines if line.startswith("   2 "))
    assert second.split()[1:5] == ["╱*▁Gehsteige", "-2.50", "╲", "▁Gehsteige"]
    assert any("×1 ▁der -3.25 (0.25 below)" in line for line in lines)
    assert any("⊘1 ▁die -2.00 no_repeat_ngram" in line for line in lines)
    assert any("■2 *score -0.123" in line for line in lines)
    results = [line.split() for line in lines if line.startswith(" 1* ")]
    assert results == [
        [
            "1*",
            "score",
            "-0.123456",
            "log-probability",
            "-3.000000",
            "die",
            "Gehsteige",
            "der",
            "Stadt",
        ]
    ]
    assert signs_in(lines) == ["* best", "╲ left", "╱ right", "■ ended", "× pruned", "⊘ blocked"]


@pytest.mark.parametrize(
    ("steps", "beam", "signs"),
    [
        (2, 1, ["* best", "│ from above", "■ ended", "× pruned", "⊘ blocked"]),
        (
            60,
            4,
            [
                *("* best", "│ from above", "╲ left", "╱ right", "■ ended"),
                *("× pruned", "⊘ blocked", "… left out"),
            ],
        ),
    ],
)
def test_only_signs_that_occur_are_explained(
    steps: int, beam: int, signs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown(tree(steps, beam))
    assert signs_in(capsys.readouterr().out.splitlines()) == signs


@pytest.mark.parametrize("beam", [1, 2, 5, 12])
def test_steps_of_a_long_sentence_are_left_out_with_a_hint(
    beam: int, capsys: pytest.CaptureFixture[str]
) -> None:
    left_out = shown(tree(60, beam))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 23
    assert max(map(cell_len, lines)) <= 80
    advice = f"… {left_out} of 61 steps are not shown: --steps 0 or -o page.html shows all …"
    assert [line.strip() for line in lines if "not shown" in line] == [advice]
    numbers = [int(line[:4]) for line in lines if line[:4].strip().isdigit()]
    assert len(numbers) == 61 - left_out
    assert (numbers[0], numbers[-1]) == (1, 61 if len(numbers) > 1 else 1)
    assert shown(tree(60, beam), steps=0) == 0
    assert shown(tree(60, beam), steps=7) == 54


def test_distances_are_explained_where_there_are_some(capsys: pytest.CaptureFixture[str]) -> None:
    """A number in brackets is compared with the last hypothesis kept; an end, or a blocked token, has none."""
    one = tree(2)
    steps = [[node for node in step if node.fate != "pruned"] for step in one.steps]
    shown(replace(one, steps=steps))
    assert "below" not in capsys.readouterr().out
    shown(one)
    assert "0.1 nats below the last hypothesis kept" in capsys.readouterr().out


def test_lanes_of_a_wide_beam_are_numbered(capsys: pytest.CaptureFixture[str]) -> None:
    shown(tree(2, 4, "▁a"), width=100, steps=0)
    lines = capsys.readouterr().out.splitlines()
    second = next(line for line in lines if line.startswith("   2 "))
    assert "2╱" in second
    assert "1╲" in second
    assert " │" in second


def test_control_characters_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    shown(tree(2, 2, "\x1b[2J"))
    assert "\x1b" not in capsys.readouterr().out
