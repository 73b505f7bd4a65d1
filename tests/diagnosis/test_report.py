"""What reports say: text made visible, places, shares, histograms, the verdict."""

import json
from collections import Counter

import pytest

from nmtkit.corpus.faults import (
    DUPLICATE,
    EMPTY,
    ENCODING,
    IN_TRAIN,
    LINE_COUNTS,
    SEPARATOR,
    SHIFT,
    FaultKind,
    FaultLocation,
)
from nmtkit.diagnosis import report
from nmtkit.diagnosis.findings import Diagnosis, Finding, Side, SplitDiagnosis

NOTE = FaultKind("odd", "note", "something odd", "Look at it.", drops=False)


def diagnosis(*kinds: FaultKind) -> Diagnosis:
    """One split of 200 pairs with 3 faults of each kind."""
    split = SplitDiagnosis("train", pairs=200)
    split.src.words[3] = split.tgt.words[4] = 200
    for kind in kinds:
        for line in (7, 8, 9):
            split.find(kind, FaultLocation("data/train.en", line, 4 if kind is ENCODING else None, "text"))
    return Diagnosis({"train": split})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("a\u2028b", "a⟨U+2028⟩b"),
        ("a\0b\r", "a⟨NUL⟩b⟨CR⟩"),
        ("tab\there", "tab⟨TAB⟩here"),
        ("caf\udce9", "caf⟨byte E9⟩"),
        ("zero\u200bwidth\ufeff", "zero⟨U+200B⟩width⟨U+FEFF⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("naïve 漢字 שלום", "naïve 漢字 שלום"),
    ],
    ids=["plain", "separator", "control", "tab", "byte", "format", "surrogate", "letters"],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    assert report.visible(text) == shown


def test_long_text_is_cut_and_never_within_a_name() -> None:
    assert report.visible("x" * 60) == "x" * 60
    assert report.visible("x" * 61) == "x" * 59 + "…"
    assert report.visible("abc\u2028def", 10) == "abc…"
    assert len(report.visible("\0" * 40, 17)) <= 17


def test_short_names_are_enough_to_tell_files_apart() -> None:
    assert report.short_names(["/a/b/train.en", "/a/b/train.de"]) == {
        "/a/b/train.en": "train.en",
        "/a/b/train.de": "train.de",
    }
    assert report.short_names(["/a/en/text", "/a/de/text"]) == {"/a/en/text": "en/text", "/a/de/text": "de/text"}
    assert report.short_names([]) == {}


def test_places_are_written_as_compilers_do() -> None:
    names = {"data/train.en": "train.en"}
    assert report.place_name(FaultLocation("data/train.en", 3, 5), names) == "train.en:3:5"
    assert report.place_name(FaultLocation("data/train.en", 3), names) == "train.en:3"
    assert report.place_name(FaultLocation("other", 3), names) == "other:3"


@pytest.mark.parametrize(
    ("count", "total", "said"),
    [
        (0, 10, "0.0%"),
        (1, 3, "33.3%"),
        (10, 10, "100.0%"),
        (1, 20000, "0.005%"),
        (9999, 10000, "99.9%"),
        (1, 10**9, "0.0001%"),
        (1, 0, ""),
    ],
)
def test_a_share_never_hides_what_is_there(count: int, total: int, said: str) -> None:
    assert report.share(count, total) == said


def test_findings_are_told_worst_first() -> None:
    rows = report.rows(diagnosis(NOTE, DUPLICATE, ENCODING))
    assert [row[0] for row in rows] == ["error", "warning", "note"]
    assert rows[0] == ("error", "train", ENCODING.title, "3", "1.5%", "train.en:7:4")


def test_a_count_that_is_not_of_pairs_has_no_share() -> None:
    found = diagnosis()
    found.splits["train"].find(NOTE, FaultLocation("train.en", 1), 500)
    assert report.rows(found)[0][4] == ""


def test_the_verdict_says_whether_one_can_train() -> None:
    assert report.verdict(diagnosis()) == "Nothing wrong was found in 200 pairs."
    assert report.verdict(diagnosis(NOTE)) == "No errors and no warnings in 200 pairs."
    assert report.verdict(diagnosis(EMPTY)) == "No errors in 200 pairs, but 3 warnings to look at before training."
    assert report.verdict(diagnosis(EMPTY, ENCODING)) == "Not ready to train on: 3 errors in 200 pairs, and 3 warnings."
    found = diagnosis(EMPTY, ENCODING)
    found.splits["train"].find(SHIFT, FaultLocation("train.en", 5), 1999)
    assert report.verdict(found).startswith("Not ready to train on: 2,002 errors of 2 kinds in 200 pairs, and 3 ")


def test_a_text_alone_has_lines() -> None:
    split = SplitDiagnosis("data", pairs=1)
    split.src.words[3] = 1
    assert report.verdict(Diagnosis({"data": split})) == "Nothing wrong was found in 1 line."


def test_what_fix_puts_right_is_no_longer_wrong() -> None:
    assert not report.has_problems(diagnosis(ENCODING), fixed=True)
    assert not report.has_problems(diagnosis(EMPTY), strict=True, fixed=True)
    assert report.has_problems(diagnosis(LINE_COUNTS), fixed=True)


@pytest.mark.parametrize(
    ("kind", "wrong", "wrong_if_strict"), [(ENCODING, True, True), (EMPTY, False, True), (NOTE, False, False)]
)
def test_what_a_script_should_stop_at(kind: FaultKind, wrong: bool, wrong_if_strict: bool) -> None:
    assert report.has_problems(diagnosis(kind)) is wrong
    assert report.has_problems(diagnosis(kind), strict=True) is wrong_if_strict


def test_what_fix_does_depends_on_the_split() -> None:
    """Test sets stay comparable: of them only what cannot be read, or is empty, is left out."""
    assert report.remedy_note(Finding(SEPARATOR), "test") == "--fix mends it"
    assert report.remedy_note(Finding(ENCODING), "test") == "--fix leaves it out"
    assert report.remedy_note(Finding(EMPTY), "valid") == "--fix leaves it out"
    assert report.remedy_note(Finding(DUPLICATE), "train") == "--fix leaves it out"
    assert report.remedy_note(Finding(DUPLICATE), "test") == ""
    assert report.remedy_note(Finding(IN_TRAIN), "test") == "--fix takes it out of train"
    assert report.remedy_note(Finding(NOTE), "train") == ""


def test_histograms_hold_every_line_once() -> None:
    split = SplitDiagnosis("train", pairs=100)
    split.src.words = Counter({1: 10, 5: 60, 12: 29, 900: 1})
    split.tgt.words = Counter({3: 50, 14: 50})
    split.ratios = Counter({2: 10, 10: 80, 50: 10})
    words, ratios = report.histograms(split)
    assert words.labels == ("0–1", "2–3", "4–5", "6–7", "8–9", "10–11", "12–13", "14–15", "16 and more")
    assert words.series == (("source", (10, 0, 60, 0, 0, 0, 29, 0, 1)), ("target", (0, 50, 0, 0, 0, 0, 0, 50, 0)))
    assert words.notes[0] == "source: mean 15.6, half at most 5, 99% at most 12, longest 900"
    assert ratios.labels[0] == "0.2–0.3"
    assert ratios.labels[-1] == "5 and more"
    assert sum(ratios.series[0][1]) == 100


def test_a_histogram_of_one_length_is_one_bar() -> None:
    split = SplitDiagnosis("data", pairs=4)
    split.src.words = Counter({0: 4})
    (words,) = report.histograms(split)
    assert words.labels == ("0",)
    assert words.series == (("source", (4,)),)


def test_what_is_longer_than_is_counted_is_not_told_as_its_length() -> None:
    split = SplitDiagnosis("data", pairs=1)
    split.src.words = Counter({1000: 1})
    assert report.histograms(split)[0].notes[0].endswith("longest 1000 or more")


def test_an_empty_split_has_no_histograms() -> None:
    assert report.histograms(SplitDiagnosis("data")) == []


def test_rare_scripts_are_told_together() -> None:
    side = Side(scripts=Counter({"Latin": 9950, "Greek": 48, "Han": 1, "Thai": 1}))
    assert report.scripts(side) == [("Latin", "99.5%"), ("Greek", "0.5%"), ("others", "0.02%")]
    assert report.scripts(Side()) == []


def test_values_for_json_have_stable_keys() -> None:
    values = report.as_json(diagnosis(EMPTY), strict=True)
    assert set(values) == {"wrong", "verdict", "errors", "warnings", "notes", "seconds", "vocabulary", "splits"}
    assert (values["wrong"], values["errors"], values["warnings"], values["notes"]) == (True, 0, 3, 0)
    (finding,) = values["splits"]["train"]["findings"]
    assert finding["kind"] == "empty"
    assert finding["places"][0] == {"file": "data/train.en", "line": 7, "byte": None, "text": "text"}


def test_values_are_plain_and_in_order() -> None:
    split = SplitDiagnosis("train", pairs=3)
    split.src.words.update({12: 2, 3: 1})
    split.src.scripts.update({"Greek": 1, "Latin": 40})
    split.find(ENCODING, FaultLocation("a.en", 2, 7, "x\ud800"))
    values = report.as_json(Diagnosis({"train": split}, {"src": 100}, 1.23456))
    assert json.loads(json.dumps(values)) == values
    assert values["seconds"] == 1.235
    train = values["splits"]["train"]
    assert list(train["src"]["words"].items()) == [("3", 1), ("12", 2)]
    assert list(train["src"]["scripts"]) == ["Latin", "Greek"]
    (finding,) = train["findings"]
    assert (finding["kind"], finding["severity"], finding["count"]) == ("encoding", "error", 1)
    assert finding["places"] == [{"file": "a.en", "line": 2, "byte": 7, "text": "x\\ud800"}]
