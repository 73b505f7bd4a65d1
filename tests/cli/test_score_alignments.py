"""`nmtkit score-alignments` as a user meets it: alignment error rates, formats, messages."""

import json
from collections.abc import Callable

import pytest
from commands import Command, write_lines

GOLD = ["1-1 2-2 2p3", "", "1-2 2?1"]  # from 1
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def aligned(console: Command) -> Run:
    """Runs the command in a folder with two alignments and their gold; returns exit code, stdout and stderr."""
    write_lines("gold.wa", GOLD)
    write_lines("one.talp", ["0-0 1-2", "", "1-1"])
    write_lines("two.talp", ["0-0 1-1", "", "0-1"])

    def call(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        done = console("score-alignments", *arguments, stdin=stdin)
        return done.code, done.out, done.err

    return call


def _table_row(output: str, start: str) -> str:
    return next(line for line in output.splitlines() if line.split()[:1] == [start])


def test_alignment_error_rate_by_hand(aligned: Run) -> None:
    code, out, err = aligned("one.talp", "two.talp", "--ref", "gold.wa", "--ref-base", "1")
    assert (code, err) == (0, "")
    # One: |A| = 3, |S| = 3; 1 sure and 2 possible links found. Two: all sure links.
    assert _table_row(out, "one.talp").split()[1:] == ["50.00", "66.67", "33.33", "3", "pharaoh", "0"]
    assert _table_row(out, "two.talp").split()[1:] == ["0.00", "100.00", "100.00", "3", "pharaoh", "0"]
    assert "against gold.wa (pharaoh, counts from 1): 3 sentence pairs, 3 sure links and 2 that are only" in out

    code, out, _ = aligned("one.talp", "--ref", "gold.wa", "--ref-base", "1", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["gold"] == {"sure": 3, "possible": 5, "format": "pharaoh", "base": 1}
    (system,) = found["systems"]
    assert (system["system"], system["links"], system["format"], system["base"]) == ("one.talp", 3, "pharaoh", 0)
    assert [score["name"] for score in system["scores"]] == ["AER", "alignment precision", "alignment recall"]
    assert [score["value"] for score in system["scores"]] == pytest.approx([50, 200 / 3, 100 / 3])


def test_reversed_alignments_and_standard_input(aligned: Run) -> None:
    args = ["-", "--ref", "gold.wa", "--ref-base", "1", "--json"]
    code, out, _ = aligned(*args, "--reverse-hyp", stdin="0-0 1-1\n\n1-0\n")
    assert code == 0
    assert json.loads(out)["systems"][0]["scores"][0]["value"] == 0
    code, out, _ = aligned(*args, "--hyp-base", "1", stdin="1-1 2-2\n\n1-2\n")
    assert json.loads(out)["systems"][0]["scores"][0]["value"] == 0


def test_naacl_alignments(aligned: Run) -> None:
    write_lines("gold.naacl", ["1 1 1 S", "1 2 2 S", "1 2 3 P", "3 1 2 S", "3 2 1 P"])
    code, out, err = aligned("two.talp", "--ref", "gold.naacl")
    assert (code, err) == (0, "")
    assert _table_row(out, "two.talp").split()[1:4] == ["0.00", "100.00", "100.00"]
    assert "against gold.naacl (naacl, counts from 1): 3 sentence pairs" in out
    # A naacl file says nothing of pairs without links, wherever they stand.
    write_lines("short.naacl", ["1 1 1 S", "1 2 2 S"])
    code, out, _ = aligned("short.naacl", "two.talp", "--ref", "gold.naacl")
    assert _table_row(out, "short.naacl").split()[1:] == ["20.00", "100.00", "66.67", "2", "naacl", "1"]
    code, _, err = aligned("gold.naacl", "--ref", "short.naacl")
    assert code == 0
    write_lines("long.naacl", ["4 1 1"])
    code, _, err = aligned("two.talp", "--ref", "long.naacl")
    assert (code, "long.naacl has a sentence pair 4, but two.talp ends with pair 3" in err) == (2, True)


def test_a_base_that_is_not_said_is_noted(aligned: Run) -> None:
    code, out, err = aligned("two.talp", "--ref", "gold.wa", "--json")
    assert code == 0
    assert json.loads(out)["systems"][0]["scores"][0]["value"] > 0
    assert "note: gold.wa was read as counting words from 0, but no link has a first word" in err
    assert "say --ref-base 1" in err
    code, _, err = aligned("two.talp", "--ref", "gold.wa", "--ref-base", "0")
    assert (code, err) == (0, "")  # it was said


@pytest.mark.parametrize(
    ("rows", "doubt"),
    [
        (["1-1 2-2 3-3"] * 49 + ["0-0 1-1 2-2"], "hardly a link has a first word"),
        (["1-0 2-1 3-2"] * 50, "no link has a first source word"),
    ],
)
@pytest.mark.parametrize("side", ["hyp", "ref"])
def test_a_base_is_doubted_by_what_most_lines_say(aligned: Run, rows: list[str], doubt: str, side: str) -> None:
    write_lines("odd", rows)
    write_lines("good", ["0-0 1-1 2-2"] * 50)
    code, _, err = aligned(*(["odd", "--ref", "good"] if side == "hyp" else ["good", "--ref", "odd"]))
    assert code == 0
    assert f"note: odd was read as counting words from 0, but {doubt}; if it counts from 1, say --{side}-base 1" in err
    assert err.count("note:") == 1


def test_a_pair_far_behind_all_others_is_a_slip(aligned: Run) -> None:
    """Of two naacl files neither says how many pairs there are."""
    write_lines("hyp", ["1 1 1"])
    write_lines("gold", ["1 1 1", "900000000 1 1"])
    code, out, err = aligned("hyp", "--ref", "gold")
    assert (code, out) == (2, "")
    assert "gold, line 2: sentence pair 900000000" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["two.talp", "--ref", "gold.wa", "--hyp-base", "1"], "two.talp, line 1: link '0-0' holds a word 0"),
        (["text.txt", "--ref", "gold.wa"], "text.txt, line 1: 'a' is not a link; write 3-4 (sure) or 3?4 (possible)"),
        (["two.talp", "--ref", "gold.wa", "--metrics", "bleu"], "No such option '--metrics'"),
        (["two.talp", "--ref", "gold.wa", "--ref", "gold.wa"], "takes one --ref"),
        (["-", "-", "--ref", "gold.wa"], "only one of the HYPs"),
        (["two.talp", "--ref", "gold.wa", "--ref-base", "2"], "2 is not in the range"),
        (["short.talp", "--ref", "gold.wa"], "different line counts: gold.wa has 3 lines, short.talp has 1"),
        (["nothing.talp", "--ref", "gold.wa"], "nothing.talp: no lines"),
        (["empty.talp", "--ref", "empty.talp"], "not defined: no link is predicted and no gold link is sure"),
    ],
)
def test_bad_alignments_end_in_exit_code_2(aligned: Run, args: list[str], message: str) -> None:
    write_lines("short.talp", ["0-0"])
    write_lines("text.txt", ["a b c"])
    write_lines("nothing.talp", [])
    write_lines("empty.talp", ["", ""])
    code, out, err = aligned(*args)
    assert (code, out) == (2, "")
    assert message in err
