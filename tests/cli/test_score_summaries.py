"""`nmtkit score-summaries`: ROUGE, the quality report, term recall, messages."""

import gzip
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from nmtkit import metrics
from nmtkit.metrics import Resampling, Texts
from nmtkit.metrics.metric import score_texts
from nmtkit.metrics.quality import quality
from nmtkit.metrics.rouge import RougeScore
from tests.support.commands import Command, as_text, succeeded, write_lines

ARTICLES = [
    "The cat sat on the mat. A dog barked at it all night.",
    "Rome won 3-2. Oslo lost its last match at home.",
]
GOLD = ["A dog barked at the cat. The cat sat.", "Oslo lost 3-2 to Rome."]
NEW = ["A dog barked all night. The cat sat on.", "Rome won 3-2 at home."]
OLD = ["The cat sat on the mat.", ""]


@pytest.fixture
def score(console: Command) -> Command:
    """Runs the command in a folder that holds the texts above."""
    for name, lines in (("articles", ARTICLES), ("gold", GOLD), ("new", NEW), ("old", OLD)):
        write_lines(name, lines)
    rows = [
        {"article": article, "summary": gold, "unseen": unseen}
        for article, gold, unseen in zip(ARTICLES, GOLD, [["dog"], ["Oslo", "3-2"]], strict=True)
    ]
    with gzip.open("all.jsonl.gz", "wt", encoding="utf-8") as stream:
        stream.write(as_text(map(json.dumps, rows)))
    return partial(console, "score-summaries")


def row(output: str, start: str) -> list[str]:
    return next(line for line in output.splitlines() if line.startswith(start))[
        len(start) :
    ].split()


BOTH = ("new", "old", "--ref", "gold", "--source", "articles", "--n-samples", 50)


def test_empty_summaries_are_noted(score: Command) -> None:
    done = succeeded(score(*BOTH, "--json"))
    note = "note: 1 of the 2 summaries in old are empty; they get a ROUGE score of 0, and in the quality report they"
    assert done.err == f"{note} affect only the length statistics\n"
    systems = json.loads(done.out)["systems"]
    assert [(system["system"], system["empty"]) for system in systems] == [("new", 0), ("old", 1)]


def test_json_has_rouge_with_intervals_and_p_values(score: Command) -> None:
    systems = json.loads(succeeded(score(*BOTH, "--json")).out)["systems"]
    expected = score_texts(
        [Texts(hyps, [GOLD]) for hyps in (NEW, OLD)], ["rouge"], None, Resampling("bs", 50)
    )
    for system, cells in zip(systems, expected, strict=True):
        assert len(system["scores"]) == 4
        for entry, cell in zip(system["scores"], cells, strict=True):
            assert isinstance(cell.score, RougeScore)
            resampled = {"mean": cell.mean, "interval": cell.interval, "p_value": cell.p_value}
            assert entry == asdict(cell.score) | resampled


def test_json_has_the_quality_of_summaries_and_references(score: Command) -> None:
    printed = json.loads(succeeded(score(*BOTH, "--json")).out)
    report = quality(OLD, ARTICLES, [GOLD])
    old = printed["systems"][1]
    assert old["quality"]["novel"] == list(report.novel)
    assert old["quality"]["length_to_reference"] == report.length_to_reference
    assert printed["quality_of_references"][0]["density"] == quality(GOLD, ARTICLES).density


def test_a_table_has_rouge_with_intervals_and_signatures(score: Command) -> None:
    table = succeeded(score("new", "--ref", "gold", "--n-samples", 50)).out
    assert "quality" not in table
    for cell in score_texts([Texts(NEW, [GOLD])], ["rouge"], None, Resampling("bs", 50))[0]:
        assert row(table, cell.score.name + " ") == [
            f"{cell.score.value:.2f}",
            "±",
            f"{cell.interval:.2f}",
        ]
        assert cell.score.signature in table


@pytest.fixture
def unwrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell of a table is wrapped."""
    monkeypatch.setenv("COLUMNS", "300")


@pytest.mark.usefixtures("unwrapped")
def test_the_quality_of_systems_is_beside_that_of_the_references(score: Command) -> None:
    done = succeeded(
        score("old", "new", "--ref", "gold", "--source", "articles", "--n-samples", 50)
    )
    assert row(done.out, "measure")[:3] == ["old", "new", "reference"]
    reports = [quality(OLD, ARTICLES), quality(NEW, ARTICLES), quality(GOLD, ARTICLES)]
    assert row(done.out, "novel 2-grams")[:3] == [f"{report.novel[1]:.2f}%" for report in reports]
    assert row(done.out, "words in copied fragments")[:3] == [
        f"{report.copied:.2f}%" for report in reports
    ]
    assert row(done.out, "length vs. reference")[2] == "-"
    assert row(done.out, "empty summaries") == ["1", "0", "0", "0"], (
        "the last column has the best value"
    )
    assert row(done.out, "repeated trigrams")[3:] == ["near", "0"]
    assert reports[0].signature in done.out


@pytest.mark.usefixtures("unwrapped")
def test_systems_are_compared_with_the_first(score: Command) -> None:
    done = succeeded(score("old", "new", "--ref", "gold", "--n-samples", 50))
    assert "* p < 0.05 against old (paired bootstrap)" in done.out
    assert "(p " in done.out


@pytest.mark.usefixtures("unwrapped")
def test_the_best_of_several_references_counts(score: Command) -> None:
    done = succeeded(
        score("new", "--ref", "gold", "--ref", "new", "--source", "articles", "--no-significance")
    )
    assert row(done.out, "ROUGE-2 ") == ["100.00"]
    assert "nrefs:2|multi:best-f1|agg:mean-f1" in done.out
    assert row(done.out, "measure")[:3] == ["new", "gold", "new"]


def test_repetitions_are_reported_with_the_remedy(score: Command) -> None:
    write_lines(
        "loop",
        ["the cat sat the cat sat the cat sat the cat sat", "Rome won Rome won Rome won Rome won"],
    )
    done = succeeded(
        score("loop", "new", "--ref", "gold", "--source", "articles", "--n-samples", 5)
    )
    assert "loop repeats itself" in done.err
    assert "--no-repeat-ngram 3" in done.err
    assert "new repeats itself" not in done.err


def test_texts_and_terms_may_be_fields_of_json_lines(score: Command) -> None:
    args = [
        "--ref",
        "all.jsonl.gz",
        "--source",
        "all.jsonl.gz",
        "--terms",
        "all.jsonl.gz",
        "--n-samples",
        20,
    ]
    done = succeeded(score("new", "old", *args))
    # new: dog and 3-2 of three; old: none.
    assert row(done.out, "term recall ") == ["66.67", "0.00"]
    assert "terms:3|examples:2|case:mixed" in done.out
    plain = score("new", "old", "--ref", "gold", "--source", "articles", "--n-samples", 20)
    for name in ("ROUGE-Lsum ", "novel 1-grams", "article words copied"):
        assert row(done.out, name) == row(plain.out, name)


def test_sentences_in_a_list_stay_apart(score: Command) -> None:
    Path("listed.jsonl").write_text(
        '{"text": ["the cat sat", "a dog barked at"]}\n{"text": ["Rome won"]}\n'
    )
    done = succeeded(score("listed.jsonl#text", "--ref", "gold", "--no-significance", "--json"))
    expected = metrics.score_all(["the cat sat\na dog barked at", "Rome won"], [GOLD], ["rouge"])
    assert [entry["value"] for entry in json.loads(done.out)["systems"][0]["scores"]] == [
        s.value for s in expected
    ]


def test_letters_that_rouge_drops_are_noted(score: Command) -> None:
    done = succeeded(
        score("new", "--ref", write_lines("umlauts", ["Köln", "Rom"]), "--n-samples", 5)
    )
    assert (
        "note: 1 of 2 reference lines contain letters or digits other than a-z and 0-9" in done.err
    )
