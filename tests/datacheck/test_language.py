"""Which language a line is in: wrong ones are found, right ones are left alone."""

import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import real_looking
from real_looking import lines_by_kind

from nmtkit.data.text.reading import SplitReader
from nmtkit.data.text.scripts import SCRIPTS
from nmtkit.datacheck.characters import TextArrays
from nmtkit.datacheck.examine import examine
from nmtkit.datacheck.language import MIN_LINES, Languages, in_foreign_script, main_scripts
from nmtkit.datacheck.norms import learn_norms

SRC, TGT = real_looking.pairs(3000)


def learned(src: list[str], tgt: list[str]) -> Languages | None:
    return Languages.learn([(TextArrays.of(src), TextArrays.of(tgt))])


@pytest.fixture(scope="module")
def languages() -> Languages:
    made = learned(SRC, TGT)
    assert made is not None
    return made


def test_swapped_pairs_are_told_from_right_ones(languages: Languages) -> None:
    assert languages.src_median > 0 > languages.tgt_median
    src, tgt = real_looking.pairs(1000, "test")
    assert [int(mask.sum()) for mask in languages.doubts(TextArrays.of(src), TextArrays.of(tgt))] == [0, 0, 0]
    swapped, src_wrong, tgt_wrong = languages.doubts(TextArrays.of(tgt), TextArrays.of(src))
    long = np.array([min(len(a), len(b)) >= 30 for a, b in zip(src, tgt, strict=True)])
    assert swapped[long].mean() > 0.95
    swapped, src_wrong, tgt_wrong = languages.doubts(TextArrays.of(tgt), TextArrays.of(tgt))
    assert not swapped.any()
    assert src_wrong[long].mean() > 0.85
    assert not (src_wrong & tgt_wrong).any()


def test_it_may_be_learned_from_files_with_some_swapped_pairs() -> None:
    rng = random.Random(0)
    mixed = [(b, a) if rng.random() < 0.02 else (a, b) for a, b in zip(SRC, TGT, strict=True)]
    languages = learned([a for a, _ in mixed], [b for _, b in mixed])
    assert languages is not None
    assert languages.doubts(TextArrays.of(TGT[:500]), TextArrays.of(SRC[:500]))[0].mean() > 0.8


def test_nothing_is_learned_from_little_or_from_one_language() -> None:
    assert learned(SRC[: MIN_LINES - 1], TGT[: MIN_LINES - 1]) is None
    assert learned(SRC[:1500], SRC[1500:]) is None
    assert learned(["a b"] * 1000, ["c d"] * 1000) is None  # lines too short to tell


def test_empty_and_single_lines_have_scores(languages: Languages) -> None:
    assert languages.scores(TextArrays.of([""])).tolist() == [0.0]
    together = languages.scores(TextArrays.of(["", SRC[0], TGT[0], ""]))
    alone = languages.scores(TextArrays.of([SRC[0]]))
    assert together[0] == together[3] == 0
    assert together[1] > 0 > together[2]
    # The line before a line and the line behind it do not matter much: only its ends touch them.
    assert together[1] == pytest.approx(alone[0], abs=12)


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
        ("Latin", ["Это предложение.", "日本語"], ["Die Größe α ist 3.", "Borís (Борис) kam.", "12 + 3"]),
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
    assert in_foreign_script(text, frozenset({script(own)})).tolist() == [True] * len(foreign) + [False] * len(right)
    assert not in_foreign_script(text, frozenset()).any()


def test_swapped_files_are_told_once(tmp_path: Path) -> None:
    """Not for every line, and the other way round counts as usual: nothing else is found."""
    valid_src, valid_tgt = real_looking.pairs(300, "valid")
    files = real_looking.write_splits(tmp_path, train=(SRC, TGT), valid=(valid_tgt, valid_src))
    splits = examine(files).splits
    assert not splits["train"].findings
    assert splits["valid"].findings["swapped-files"].count == len(splits["valid"].findings) == 1


def test_one_side_in_another_script_throughout_is_no_fault(tmp_path: Path) -> None:
    greek = str.maketrans("abcdefghijklmnopqrstuvwxyz", "αβγδεζηθικλμνξοπρστυφχψωϊϋ")
    plain = [unicodedata.normalize("NFD", line.lower()).encode("ascii", "ignore").decode() for line in TGT]
    tgt = [line.translate(greek) for line in plain]
    files = real_looking.write(tmp_path, "train", SRC, tgt)
    norms = learn_norms(SplitReader("train", files))
    assert norms.tgt.scripts == {script("Greek")}
    assert not examine({"train": files}).splits["train"].findings
    # One line that was left untranslated, and a pair that is swapped: not told twice.
    src = list(SRC)
    tgt[99] = SRC[98] + " " + SRC[99]
    src[199], tgt[199] = tgt[198] + tgt[199], SRC[198] + " " + SRC[199]
    split = examine({"train": real_looking.write(tmp_path, "train", src, tgt)}).splits["train"]
    assert lines_by_kind(split) == {"script": [100], "swapped": [200]}


def test_where_source_and_target_are_in_one_language_nothing_is_doubted(tmp_path: Path) -> None:
    long = [f"{a} {b}" for a, b in zip(SRC[:1500], SRC[1500:], strict=True)]
    files = real_looking.write(tmp_path, "train", long, SRC[:1500])
    assert not examine({"train": files}, monolingual=True).splits["train"].findings
    assert learn_norms(SplitReader("train", files)).languages is None
