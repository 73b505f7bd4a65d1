"""Lines in the language of the other side: swapped pairs and files; and lines in another script."""

import random
import tempfile
import unicodedata
from pathlib import Path

import pytest

from nmtkit.data.text.scripts import SCRIPTS
from nmtkit.datacheck import examine as examining
from nmtkit.datacheck import language
from nmtkit.datacheck.characters import TextArrays
from nmtkit.datacheck.examine import examine
from nmtkit.datacheck.language import Languages, in_foreign_script, main_scripts
from tests.datacheck import real_looking
from tests.datacheck.real_looking import lines_by_kind

SRC, TGT = real_looking.pairs(2000)
TEST_SRC, TEST_TGT = real_looking.pairs(500, "test")
LOAD_IDENTIFIER = language._load_identifier
"""The function itself; while tests run, its result is kept for all of them."""


def arrays(src: list[str], tgt: list[str]) -> dict[str, TextArrays]:
    return {"src": TextArrays.of(src), "tgt": TextArrays.of(tgt)}


@pytest.fixture(scope="module")
def languages() -> Languages:
    return Languages(arrays(SRC, TGT))


def test_languages_of_the_sides(languages: Languages) -> None:
    assert languages.codes == {"src": "en", "tgt": "fr"}
    assert languages.unclear == {}


def test_right_pairs_are_not_doubted(languages: Languages) -> None:
    doubts = languages.doubts(arrays(TEST_SRC, TEST_TGT), 500)
    masks = [doubts.swapped, *doubts.other_side.values(), *doubts.third.values()]
    assert [int(mask.sum()) for mask in masks] == [0] * 5


def test_swapped_pairs_are_found(languages: Languages) -> None:
    doubts = languages.doubts(arrays(TEST_TGT, TEST_SRC), 500)
    assert doubts.swapped.mean() > 0.97
    # What is swapped has no other doubt.
    assert not (doubts.swapped & (doubts.other_side["src"] | doubts.third["src"])).any()


def test_untranslated_lines_are_in_the_language_of_the_other_side(languages: Languages) -> None:
    doubts = languages.doubts(arrays(TEST_SRC, TEST_SRC), 500)
    assert doubts.other_side["tgt"].mean() > 0.95
    assert not doubts.other_side["src"].any()
    assert not doubts.swapped.any()


def test_only_the_first_lines_are_examined(languages: Languages) -> None:
    doubts = languages.doubts(arrays(TEST_TGT, TEST_SRC), 20)
    assert doubts.swapped[:20].mean() > 0.9
    assert not doubts.swapped[20:].any()


def test_languages_are_learned_from_files_with_some_swapped_pairs() -> None:
    rng = random.Random(0)
    src, tgt = list(SRC), list(TGT)
    for row in rng.sample(range(2000), 40):
        src[row], tgt[row] = tgt[row], src[row]
    languages = Languages(arrays(src, tgt))
    assert languages.codes == {"src": "en", "tgt": "fr"}
    assert 35 <= languages.doubts(arrays(src, tgt), 2000).swapped.sum() <= 40


@pytest.mark.parametrize(
    "lines",
    [SRC[:49], ["12 + 12 = 24"] * 500, ["yes"] * 500],
    ids=["few lines", "numbers", "single words"],
)
def test_nothing_is_learned_from_too_little(lines: list[str]) -> None:
    languages = Languages({"src": TextArrays.of(lines)})
    assert languages.codes == languages.unclear == {}
    assert not languages.doubts({"src": TextArrays.of(TEST_TGT)}, 500).third["src"].any()


def test_a_full_temporary_folder_leaves_the_languages_unexamined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """py3langid unpacks its model there; a folder that is missing fails as a full one does."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr(language, "_load_identifier", LOAD_IDENTIFIER)
    languages = Languages(arrays(SRC, TGT))
    assert languages.codes == {}
    assert set(languages.unclear) == {"src", "tgt"}
    assert str(tmp_path / "missing") in languages.unclear["src"]
    assert "TMPDIR" in languages.unclear["src"]
    assert not languages.doubts(arrays(SRC, TGT), 2000).swapped.any()


def test_swapped_files_are_told_once(tmp_path: Path) -> None:
    """Not for every line; and the other way round counts as usual: nothing else is found."""
    valid_src, valid_tgt = real_looking.pairs(300, "valid")
    files = real_looking.write_splits(tmp_path, train=(SRC, TGT), valid=(valid_tgt, valid_src))
    splits = examine(files).splits
    assert not splits["train"].findings
    assert splits["valid"].findings["swapped-files"].count == len(splits["valid"].findings) == 1


def test_a_quick_examination_looks_at_the_languages_of_the_first_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "QUICK_LANGUAGE_PAIRS", 1000)
    src, tgt = list(SRC), list(TGT)
    for row in (500, 1500):
        src[row], tgt[row] = tgt[row], src[row]
    files = {"train": real_looking.write(tmp_path, "train", src, tgt)}
    assert lines_by_kind(examine(files, quick=True).splits["train"]) == {"swapped": [501]}
    assert lines_by_kind(examine(files).splits["train"]) == {"swapped": [501, 1501]}


def test_where_both_sides_are_in_one_language_nothing_is_doubted(tmp_path: Path) -> None:
    long = [f"{a} {b}" for a, b in zip(SRC[:1000], SRC[1000:], strict=True)]
    files = real_looking.write(tmp_path, "train", long, SRC[:1000])
    split = examine({"train": files}, monolingual=True).splits["train"]
    assert (split.src.language, split.tgt.language) == ("en", "en")
    assert not split.findings


# ---------------------------------------------------------------------------------------------------------- scripts


def script(name: str) -> int:
    return SCRIPTS.index(name)


def test_the_scripts_of_a_side() -> None:
    latin, greek, han, kana = map(script, ("Latin", "Greek", "Han", "Hiragana"))
    assert main_scripts({latin: 1000, greek: 3}) == {latin}
    assert main_scripts({latin: 1000, greek: 300}) == {latin, greek}
    assert main_scripts({han: 500, kana: 500}) == {han, kana, script("Katakana")}
    assert main_scripts({han: 500, latin: 4}) == {han}
    assert main_scripts({}) == frozenset()


@pytest.mark.parametrize(
    ("own", "foreign", "right"),
    [
        (
            "Latin",
            ["Это предложение.", "日本語"],
            ["Die Größe α ist 3.", "Borís (Борис) kam.", "12 + 3"],
        ),
        (
            "Han",
            ["This sentence was never translated at all."],
            ["Windows NT 4.0", "我喜欢 Microsoft Office Plus 软件。"],
        ),
        ("Cyrillic", ["Never translated at all, not a word of it."], ["Он сказал", ""]),
    ],
)
def test_lines_in_another_script(own: str, foreign: list[str], right: list[str]) -> None:
    text = TextArrays.of([*foreign, *right])
    assert in_foreign_script(text, frozenset({script(own)})).tolist() == [True] * len(foreign) + [
        False
    ] * len(right)
    assert not in_foreign_script(text, frozenset()).any()


def test_one_side_in_another_script_throughout_is_no_fault(tmp_path: Path) -> None:
    """Whatever its language seems to be: the text is French in Greek letters."""
    greek = str.maketrans("abcdefghijklmnopqrstuvwxyz", "αβγδεζηθικλμνξοπρστυφχψωϊϋ")
    plain = [
        unicodedata.normalize("NFD", line.lower()).encode("ascii", "ignore").decode()
        for line in TGT
    ]
    tgt = [line.translate(greek) for line in plain]
    files = real_looking.write(tmp_path, "train", SRC, tgt)
    assert not examine({"train": files}).splits["train"].findings
    # One line that was left untranslated, and a pair that is swapped: not told twice.
    src = list(SRC)
    tgt[99] = SRC[98] + " " + SRC[99]
    src[199], tgt[199] = tgt[198] + tgt[199], SRC[198] + " " + SRC[199]
    split = examine({"train": real_looking.write(tmp_path, "train", src, tgt)}).splits["train"]
    assert lines_by_kind(split) == {"script": [100], "swapped": [200]}
