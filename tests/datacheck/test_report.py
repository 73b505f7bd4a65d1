"""What reports say: text made visible, places, shares, histograms, the verdict."""

import json
from collections import Counter

import pytest

from nmtkit.data.text import faults
from nmtkit.data.text.faults import (
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
from nmtkit.datacheck import report
from nmtkit.datacheck.findings import MAX_EXAMPLES, Diagnosis, Finding, Side, SplitDiagnosis

NOTE = FaultKind("odd", "note", "something odd", "Look at it.")


def diagnosis(*kinds: FaultKind) -> Diagnosis:
    """One split of 200 pairs with 3 faults of each kind."""
    split = SplitDiagnosis("train", pairs=200)
    split.src.words[3] = split.tgt.words[4] = 200
    for kind in kinds:
        for line in (7, 8, 9):
            split.find(
                kind, FaultLocation("data/train.en", line, 4 if kind is ENCODING else None, "text")
            )
    return Diagnosis({"train": split})


def test_what_cannot_be_seen_is_written_out() -> None:
    for text, shown in {
        "naïve 漢字 שלום": "naïve 漢字 שלום",
        "a\u2028b": "a⟨U+2028⟩b",
        "a\0b\r\t": "a⟨NUL⟩b⟨CR⟩⟨TAB⟩",
        "caf\udce9": "caf⟨byte E9⟩",
        "zero\u200bwidth\ufeff": "zero⟨U+200B⟩width⟨U+FEFF⟩",
        "\ud800": "⟨U+D800⟩",
    }.items():
        assert report.visible(text) == shown


def test_long_text_is_cut() -> None:
    assert report.visible("x" * 60) == "x" * 60
    assert report.visible("x" * 61) == "x" * 59 + "…"
    assert report.visible("abc\u2028def", 10) == "abc⟨U+202…"
    assert len(report.visible("\0" * 40, 17)) <= 17


def test_short_names_are_enough_to_tell_files_apart() -> None:
    for files, names in (
        (["/a/b/t.en", "/a/b/t.de"], ["t.en", "t.de"]),
        (["/a/en/t", "/a/de/t"], ["en/t", "de/t"]),
    ):
        assert list(report.short_names(files).items()) == list(zip(files, names, strict=True))
    assert report.short_names([]) == {}
    names = {"data/train.en": "train.en"}
    assert report.place_name(FaultLocation("data/train.en", 3, 5), names) == "train.en:3:5"
    assert report.place_name(FaultLocation("other", 3), names) == "other:3"


def test_a_share_never_hides_what_is_there() -> None:
    counts = [(0, 10), (1, 3), (10, 10), (1, 20_000), (9999, 10_000), (1, 10**9), (1, 0)]
    shares = [report.share(count, total) for count, total in counts]
    assert shares == ["0.0%", "33.3%", "100.0%", "0.005%", "99.9%", "0.0001%", ""]


def test_findings_are_told_worst_first_and_then_in_the_order_of_the_splits() -> None:
    rows = report.rows(diagnosis(NOTE, DUPLICATE, ENCODING))
    assert [row[0] for row in rows] == ["error", "warning", "note"]
    assert rows[0] == ("error", "train", ENCODING.title, "3", "1.5%", "train.en:7:4")
    both = Diagnosis({name: SplitDiagnosis(name) for name in ("train", "valid")})
    for name, kind in (("valid", DUPLICATE), ("train", DUPLICATE), ("valid", ENCODING)):
        both.splits[name].find(kind, FaultLocation("f", 1), 500)
    assert [row[1] for row in report.rows(both)] == ["valid", "train", "valid"]
    assert report.rows(both)[0][4] == ""  # more faults than pairs: they are not counted in pairs
    repeated = diagnosis(DUPLICATE, DUPLICATE, DUPLICATE).splits["train"].findings["duplicate"]
    assert (repeated.count, len(repeated.places)) == (9, MAX_EXAMPLES)


def test_the_table_of_kinds() -> None:
    kinds = [value for value in vars(faults).values() if isinstance(value, FaultKind)]
    assert len(kinds) >= 25
    assert len({kind.name for kind in kinds}) == len(kinds)
    for kind in kinds:
        assert kind.remedy.endswith(".")
        assert not (kind.fix_drops and kind.fix_repairs)


def test_the_verdict_says_whether_one_can_train() -> None:
    assert report.verdict(diagnosis()) == "No problems found in 200 pairs."
    assert report.verdict(diagnosis(NOTE)) == "No errors and no warnings in 200 pairs."
    assert (
        report.verdict(diagnosis(EMPTY))
        == "No errors in 200 pairs, but check 3 warnings before training."
    )
    assert (
        report.verdict(diagnosis(EMPTY, ENCODING))
        == "Not ready for training: 3 errors in 200 pairs, and 3 warnings."
    )
    split = SplitDiagnosis("data", pairs=1)
    split.src.words[3] = 1
    assert report.verdict(Diagnosis({"data": split})) == "No problems found in 1 line."
    shifted = diagnosis(EMPTY, ENCODING)
    shifted.splits["train"].find(SHIFT, FaultLocation("train.en", 5), 1999)
    assert report.verdict(shifted).startswith(
        "Not ready for training: 2,002 errors of 2 kinds in 200 pairs, and 3 "
    )


@pytest.mark.parametrize(
    ("kind", "wrong", "wrong_if_strict", "wrong_if_fixed"),
    [
        (ENCODING, True, True, False),
        (EMPTY, False, True, False),
        (NOTE, False, False, False),
        (LINE_COUNTS, True, True, True),
    ],
)
def test_what_a_script_should_stop_at(
    kind: FaultKind, wrong: bool, wrong_if_strict: bool, wrong_if_fixed: bool
) -> None:
    assert report.has_problems(diagnosis(kind)) is wrong
    assert report.has_problems(diagnosis(kind), strict=True) is wrong_if_strict
    assert report.has_problems(diagnosis(kind), strict=True, fixed=True) is wrong_if_fixed


def test_what_fix_does_depends_on_the_split() -> None:
    """Test sets stay comparable: of them only what cannot be read, or is empty, is left out."""
    for kind, split, note in (
        (SEPARATOR, "test", "--fix repairs it"),
        (ENCODING, "test", "--fix converts the file or drops the line"),
        (EMPTY, "valid", "--fix drops it"),
        (DUPLICATE, "train", "--fix drops it"),
        (DUPLICATE, "test", ""),
        (IN_TRAIN, "test", "--fix removes it from train"),
        (NOTE, "train", ""),
    ):
        assert report.remedy_note(Finding(kind), split) == note


def test_histograms_hold_every_line_once() -> None:
    split = SplitDiagnosis("train", pairs=100)
    split.src.words = Counter({1: 10, 5: 60, 12: 29, 900: 1})
    split.tgt.words = Counter({3: 50, 14: 50})
    split.ratios = Counter({2: 10, 10: 20, 140: 60, 9_000: 10})  # a line without spaces is one word
    words, ratios = report.histograms(split)
    assert words.labels == (
        "0–1",
        "2–3",
        "4–5",
        "6–7",
        "8–9",
        "10–11",
        "12–13",
        "14–15",
        "16 and more",
    )
    assert words.series == (
        ("source", (10, 0, 60, 0, 0, 0, 29, 0, 1)),
        ("target", (0, 50, 0, 0, 0, 0, 0, 50, 0)),
    )
    assert words.notes[0] == "source: mean 15.6, median 5, 99% at most 12, maximum 900"
    assert ratios.labels[0] == "0.2–0.3"
    assert ratios.labels[-1] == "5 and more"
    assert sum(ratios.series[0][1]) == 100
    assert ratios.notes == ("half of the pairs have a ratio below 14.1",)


def test_histograms_of_little_and_of_much() -> None:
    split = SplitDiagnosis("data", pairs=4)
    assert report.histograms(split) == []
    split.src.words = Counter({0: 4})
    (words,) = report.histograms(split)
    assert (words.labels, words.series) == (("0",), (("source", (4,)),))
    split.src.words = Counter({1_500: 50, 2_500: 50})
    (words,) = report.histograms(split)
    assert words.notes[0] == "source: mean 2000.0, median 1500, 99% at most 2500, maximum 2500"
    assert sum(words.series[0][1]) == 100


def test_rare_scripts_are_told_together() -> None:
    side = Side(scripts=Counter({"Latin": 9950, "Greek": 48, "Han": 1, "Thai": 1}))
    assert report.scripts(side) == [("Latin", "99.5%"), ("Greek", "0.5%"), ("others", "0.02%")]
    assert report.scripts(Side()) == []


def test_values_for_json_are_plain_and_have_stable_keys() -> None:
    split = SplitDiagnosis("train", pairs=3)
    split.src.words.update({12: 2, 3: 1})
    split.src.scripts.update({"Greek": 1, "Latin": 40})
    split.find(ENCODING, FaultLocation("a.en", 2, 7, "x\ud800"))
    values = report.as_json(Diagnosis({"train": split}))
    assert json.loads(json.dumps(values)) == values
    assert set(values) == {"wrong", "verdict", "errors", "warnings", "notes", "splits"}
    assert (values["wrong"], values["errors"], values["warnings"]) == (True, 1, 0)
    train = values["splits"]["train"]
    assert list(train["src"]["words"].items()) == [("3", 1), ("12", 2)]
    assert list(train["src"]["scripts"]) == ["Latin", "Greek"]
    (finding,) = train["findings"]
    assert (finding["kind"], finding["severity"], finding["count"]) == ("encoding", "error", 1)
    assert finding["places"] == [{"file": "a.en", "line": 2, "byte": 7, "text": "x\\ud800"}]
