"""`nmtkit score-alignments` as a user meets it: alignment error rates, formats, messages."""

import json
from functools import partial

import pytest

from tests.support.commands import Command, as_text, succeeded, write_lines


@pytest.fixture
def score(console: Command) -> Command:
    """Runs the command in a folder with two alignments and their gold, which counts from 1."""
    write_lines("gold.wa", ["1-1 2-2 2p3", "", "1-2 2?1"])
    write_lines("one.talp", ["0-0 1-2", "", "1-1"])
    write_lines("two.talp", ["0-0 1-1", "", "0-1"])
    return partial(console, "score-alignments")


GOLD = ["--ref", "gold.wa", "--ref-base", "1"]


def cells(output: str, start: str) -> list[str]:
    """The row of a table, without its name."""
    return next(line.split()[1:] for line in output.splitlines() if line.split()[:1] == [start])


def test_alignment_error_rate_by_hand(score: Command) -> None:
    done = succeeded(score("one.talp", "two.talp", *GOLD))
    assert done.err == ""
    # One: |A| = 3, |S| = 3; 1 sure and 2 possible links printed. Two: all sure links.
    assert cells(done.out, "one.talp") == ["50.00", "66.67", "33.33", "3", "pharaoh", "0"]
    assert cells(done.out, "two.talp") == ["0.00", "100.00", "100.00", "3", "pharaoh", "0"]
    assert (
        "against gold.wa (pharaoh, counts from 1): 3 sentence pairs, 3 sure links and 2 links that are only"
        in done.out
    )


def test_json_has_links_formats_and_scores(score: Command) -> None:
    printed = json.loads(succeeded(score("one.talp", *GOLD, "--json")).out)
    assert printed["gold"] == {"sure": 3, "possible": 5, "format": "pharaoh", "base": 1}
    (system,) = printed["systems"]
    assert (system["system"], system["links"], system["format"], system["base"]) == (
        "one.talp",
        3,
        "pharaoh",
        0,
    )
    assert [one["name"] for one in system["scores"]] == [
        "AER",
        "alignment precision",
        "alignment recall",
    ]
    assert [one["value"] for one in system["scores"]] == pytest.approx([50, 200 / 3, 100 / 3])


@pytest.mark.parametrize(
    ("option", "links"),
    [("--reverse-hyp", ["0-0 1-1", "", "1-0"]), ("--hyp-base=1", ["1-1 2-2", "", "1-2"])],
)
def test_links_may_be_reversed_or_counted_from_1(
    score: Command, option: str, links: list[str]
) -> None:
    done = succeeded(score("-", *GOLD, "--json", option, stdin=as_text(links)))
    assert json.loads(done.out)["systems"][0]["scores"][0]["value"] == 0


def test_naacl_alignments(score: Command) -> None:
    write_lines("gold.naacl", ["1 1 1 S", "1 2 2 S", "1 2 3 P", "3 1 2 S", "3 2 1 P"])
    done = succeeded(score("two.talp", "--ref", "gold.naacl"))
    assert done.err == ""
    assert cells(done.out, "two.talp")[:3] == ["0.00", "100.00", "100.00"]
    assert "against gold.naacl (naacl, counts from 1): 3 sentence pairs" in done.out
    # A naacl file says nothing of pairs without links, wherever they stand.
    write_lines("short.naacl", ["1 1 1 S", "1 2 2 S"])
    shorter = succeeded(score("short.naacl", "two.talp", "--ref", "gold.naacl")).out
    assert cells(shorter, "short.naacl") == ["20.00", "100.00", "66.67", "2", "naacl", "1"]
    succeeded(score("gold.naacl", "--ref", "short.naacl"))


@pytest.mark.parametrize("side", ["hyp", "ref"])
def test_a_base_without_any_link_of_a_first_word_is_doubted(score: Command, side: str) -> None:
    write_lines("odd", ["1-1 2-2 3-3"] * 50)
    write_lines("good", ["0-0 1-1 2-2"] * 50)
    files = ["odd", "--ref", "good"] if side == "hyp" else ["good", "--ref", "odd"]
    err = succeeded(score(*files)).err
    doubt = (
        "note: odd was read as counting words from 0, but no link refers to the first word of a sentence; "
        "if it counts from 1, add "
    )
    assert f"{doubt}--{side}-base 1" in err
    assert err.count("note:") == 1
    assert succeeded(score(*files, f"--{side}-base", "0")).err == ""  # it was said
