"""Characters, words, scripts and histograms, against plain Python."""

import random
import unicodedata
from collections import Counter

import numpy as np

from nmtkit.data.text.scripts import SCRIPTS
from nmtkit.datacheck.characters import (
    BOM,
    CONTROL,
    NUL,
    REPLACED,
    SEPARATOR,
    SPACE,
    TextArrays,
    character_classes,
)
from nmtkit.datacheck.findings import SplitDiagnosis

LINES = [
    "",
    " ",
    "one",
    " two  words\t",
    "Größe 12, ½",
    "Привет, мир!",
    "日本語の テキスト\u3000です。",
    "한국어 123",
]
LINES += ["\U0001f600 \U00020000", "a\u2028b\x0cc\x85d", "ＡＢ ｶﾅ", "x\xa0y", "۱۲ ١٢", "e\u0301"]


def test_lines_are_counted_as_python_counts_them() -> None:
    rng = random.Random(0)
    pool = "".join(LINES)
    lines = LINES + ["".join(rng.choices(pool, k=rng.randint(0, 40))) for _ in range(500)]
    text = TextArrays.of(lines)
    assert text.lengths.tolist() == [len(line) for line in lines]
    assert text.words.tolist() == [len(line.split()) for line in lines]
    assert text.digits.tolist() == [
        sum(unicodedata.category(c) == "Nd" for c in line) for line in lines
    ]
    assert text.starts.tolist() == np.concatenate([[0], np.cumsum(text.lengths + 1)])[:-1].tolist()
    places = np.arange(len(text.codes))
    assert (
        text.line_of(places).tolist() == np.repeat(np.arange(len(lines)), text.lengths + 1).tolist()
    )
    assert len(TextArrays.of([]).codes) == len(TextArrays.of([]).starts) == 0


def test_letters_by_script() -> None:
    lines: dict[str, dict[str, int]] = {
        "Größe 12": {"Latin": 5},
        "Привет a": {"Cyrillic": 6, "Latin": 1},
        "日本語のテキスト": {"Han": 3, "Hiragana": 1, "Katakana": 4},
        "ＡＢ ｶﾅ": {"Latin": 2, "Katakana": 2},
        "한국어": {"Hangul": 3},
        "ابجد עברית ไทย": {"Arabic": 4, "Hebrew": 5, "Thai": 3},
        "\U00020000": {"Han": 1},
        "ελληνικά": {"Greek": 8},
        "1 + 2 = 3 \U0001f600 ½": {},
    }
    text = TextArrays.of(list(lines))
    for row, expected in enumerate(lines.values()):
        counts = {SCRIPTS[script]: int(letters[row]) for script, letters in text.letters.items()}
        assert {script: count for script, count in counts.items() if count} == expected
    # Where no space stands between words, two letters are one.
    assert TextArrays.of(["明日は雨です", "two words"]).word_counts().tolist() == [1 + 1 + 2, 2]


def test_odd_characters_have_classes_of_their_own() -> None:
    table = character_classes()
    # What str.splitlines takes for the end of a line, but for the line feed, is a separator, and US. Nothing else is.
    line_ends = {code for code in range(0x110000) if len(f"a{chr(code)}b".splitlines()) > 1}
    separators = line_ends - {10} | {0x1F}
    assert set(np.flatnonzero(table == SEPARATOR).tolist()) == separators
    assert [table[code] for code in (0, 0xFEFF, 0xFFFD, 7, 0x7F, 0x90)] == [
        NUL,
        BOM,
        REPLACED,
        *[CONTROL] * 3,
    ]
    blank = {code for code in range(0x110000) if chr(code).isspace()}
    assert set(np.flatnonzero((table >= SPACE) & (table <= SEPARATOR)).tolist()) == blank
    assert not np.isin(
        table[[9, 10, 32, 65, 0xAD, 0x200B, 0x200D, 0x200E]], [NUL, BOM, REPLACED, CONTROL]
    ).any()


def test_histograms_against_plain_counting() -> None:
    rng = random.Random(1)
    src = [" ".join(["wort"] * rng.randint(0, 40)) for _ in range(299)] + ["wort " * 3_000]
    tgt = [" ".join(["словo"] * rng.randint(0, 40)) for _ in range(300)]
    split = SplitDiagnosis("train")
    for start in (0, 100):  # two blocks
        part = slice(start, start + 100 if start == 0 else None)
        split.count(TextArrays.of(src[part]), TextArrays.of(tgt[part]))
    assert split.pairs == 300
    assert split.src.words == Counter(len(line.split()) for line in src)
    assert split.tgt.scripts == Counter(
        Cyrillic=4 * (n := sum(line.count(" ") + 1 for line in tgt if line)), Latin=n
    )
    pairs = [(len(a.split()), len(b.split())) for a, b in zip(src, tgt, strict=True)]
    assert split.ratios == Counter(b * 10 // a for a, b in pairs if a and b)
