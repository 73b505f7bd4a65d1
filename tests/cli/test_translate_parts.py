"""`translate`: sentences of a line with glossaries, scores and n-best lists; warnings of numbers and terms."""

import json
import re
from pathlib import Path

import pytest

from nmtkit.cli.text_io.results import UnfinishedOutputs
from tests.support.commands import WORDS, Command, json_lines, refused, succeeded, write_lines

LINE = "Ba ce di. Fo gu ha na! Je ki lo."
PARTS = ["Ba ce di.", "Fo gu ha na!", "Je ki lo."]


@pytest.fixture
def run(trained: Path) -> list[str]:
    return ["translate", "-m", str(trained), "-q"]


def columns(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_scores_of_a_line_are_sums_over_its_sentences(run: list[str], console: Command) -> None:
    parts = columns(succeeded(console(*run, "--scores", stdin="\n".join(PARTS))).out)
    ((score, log_prob, text),) = columns(
        succeeded(console(*run, "--scores", "--split-sentences", stdin=LINE)).out
    )
    assert float(score) == pytest.approx(sum(float(part[0]) for part in parts), abs=1e-5)
    assert float(log_prob) == pytest.approx(sum(float(part[1]) for part in parts), abs=1e-5)
    assert text == " ".join(part[2] for part in parts)


def test_n_best_lists_are_of_whole_lines(run: list[str], console: Command) -> None:
    found = columns(
        succeeded(console(*run, "--n-best", "3", "--split-sentences", stdin=f"{LINE}\n\nba\n")).out
    )
    assert [row[0] for row in found] == ["1", "1", "1", "2", "3", "3", "3"]
    scores = [float(row[1]) for row in found[:3]]
    assert scores == sorted(scores, reverse=True)
    assert len({row[3] for row in found[:3]}) == 3
    (record,) = json_lines(
        console(*run, "--n-best", "3", "--split-sentences", "--json", stdin=LINE).out
    )
    assert [record["text"], *(other["text"] for other in record["others"])] == [
        row[3] for row in found[:3]
    ]
    moses = console(
        *run, "--n-best", "3", "--split-sentences", "--format", "moses", stdin=LINE
    ).out.splitlines()
    assert [line.split(" ||| ")[1] for line in moses] == [row[3] for row in found[:3]]


def test_terms_hold_in_each_sentence(run: list[str], console: Command, tmp_path: Path) -> None:
    write_lines(tmp_path / "terms.tsv", ["gu ha\tLO LO", "ki\tBA"])
    done = succeeded(
        console(*run, "--split-sentences", "--terms", "terms.tsv", "--json", stdin=LINE)
    )
    (record,) = json_lines(done.out)
    texts = [sentence["best"]["text"] for sentence in record["sentences"]]
    assert "LO LO" in texts[1]
    assert "BA" in texts[2].split()


def test_a_prefix_begins_the_first_sentence(run: list[str], console: Command) -> None:
    text = succeeded(console(*run, "--split-sentences", "--prefix", stdin=f"{LINE}\tHA BA\n")).out
    assert text.startswith("HA BA ")


def test_json_lines_constrain_all_sentences(run: list[str], console: Command) -> None:
    request = json.dumps({"source": LINE, "prefix": "HA", "must_not": ["FO"]})
    text = succeeded(console(*run, "--split-sentences", "--jsonl", stdin=request)).out
    assert text.startswith("HA ")
    assert "FO" not in text.split()


def test_must_is_only_for_a_line_of_one_sentence(run: list[str], console: Command) -> None:
    split = [*run, "--split-sentences", "--jsonl"]
    several = json.dumps({"source": LINE, "must": ["FO"]})
    refused(
        console(*split, stdin=several),
        'line 1: "must" does not specify which of the 3 sentences',
        "--terms",
    )
    single = json.dumps({"source": "ba ce", "must": ["FO"]})
    assert "FO" in succeeded(console(*split, stdin=single)).out.split()


def test_translations_that_lack_numbers_are_counted_and_named(
    run: list[str], console: Command
) -> None:
    text = "ba ce 120\nba ce\nba 3 ce\n" + "".join(f"ba {n} ce\n" for n in range(20, 26))
    done = succeeded(console(*run, stdin=text))
    shown = " ".join(done.err.split())
    assert "warning: 7 of 9 translations lack a number" in shown
    assert "line 1 (120); line 4 (20); line 5 (21); line 6 (22); line 7 (23); and 2 more" in shown
    records = json_lines(console(*run, "--json", stdin=text).out)
    assert [record.get("missing_numbers") for record in records[:3]] == [["120"], None, None]
    (joined,) = json_lines(
        console(*run, "--json", "--split-sentences", stdin="Ba 120 ce. Di 3 fo.").out
    )
    assert joined["missing_numbers"] == ["120"]
    assert "lack a number" not in console(*run, stdin="ba ce\n").err


def test_terms_that_cost_much_log_probability_are_reported(
    run: list[str], console: Command, tmp_path: Path
) -> None:
    write_lines(tmp_path / "terms.tsv", ["ba\tLO KI LO KI"])
    done = succeeded(console(*run, "--terms", "terms.tsv", stdin="ce di\nba ce di\n"))
    shown = " ".join(done.err.split())
    cost = re.search(r"forcing the terms cost (\d+) nats of log-probability in line 2", shown)
    assert cost is not None, done
    assert int(cost[1]) >= 5
    write_lines(tmp_path / "terms.tsv", ["ba\tBA"])
    assert (
        "forcing the terms"
        not in console(*run, "--terms", "terms.tsv", stdin="ce di\nba ce di\n").err
    )


LOOP = "und ich und ich und ich und ich"
CUT = "the old man has seen the dog in the"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], ""),
        (
            [CUT],
            "warning: 1 of 9 outputs reached the length limit (line 1): if they look cut off, raise the limit with "
            "--max-length",
        ),
        (
            [LOOP, f"S{60 * 'k'}", *[LOOP] * 5],
            "warning: 7 of 9 outputs reached the length limit (line 1, line 2, line 3, line 4, line 5, and 2 more): "
            "they repeat the same words or letters until the limit, which --no-repeat-ngram 3 prevents",
        ),
        (
            [LOOP, CUT],
            "warning: 2 of 9 outputs reached the length limit (line 1, line 2): 1 of them repeats the same words or "
            "letters until the limit, which --no-repeat-ngram 3 prevents; if they look cut off, raise the limit with "
            "--max-length",
        ),
    ],
)
def test_outputs_that_reach_the_limit_are_named_and_loops_are_told_apart(
    texts: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished = UnfinishedOutputs()
    for number, text in enumerate(texts, start=1):
        unfinished.add(f"line {number}", text)
    unfinished.warn("outputs", 9, "--max-length")
    assert capsys.readouterr().err.strip() == expected
    unrepeated = UnfinishedOutputs(may_repeat=False)
    unrepeated.add("line 1", LOOP)
    unrepeated.warn("outputs", 9, "--max-length")
    assert "if they look cut off" in capsys.readouterr().err


def test_repetitions_are_reported_with_the_remedy(run: list[str], console: Command) -> None:
    lines = "".join(" ".join([word] * 12) + "\n" for word in WORDS[:6])
    free = console(*run, "--search", "min_length_ratio=2", "--max-length", "40", stdin=lines)
    assert "warning: the translations repeat themselves" in free.err
    prevented = console(
        *run, "--no-repeat-ngram", "3", "--search", "min_length_ratio=2", stdin=lines
    )
    assert "repeat themselves" not in prevented.err
