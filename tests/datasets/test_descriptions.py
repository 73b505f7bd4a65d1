import lzma
from pathlib import Path

import pytest

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.settings import parse
from nmtkit.datasets.debian import stanzas
from nmtkit.datasets.debian_readers import (
    DebianDescriptions,
    DebianSummaries,
    descriptions,
    family,
    units,
)
from nmtkit.datasets.readers import Pair
from tests.datasets.corpus_files import read

PACKAGES = """\
Package: frob
Version: 1.0
Description: frobs widgets
Depends: libc6,
 libfrob2

Package: frob-doc
Source: frob
Version: 1.0

Package: libfrob2
Source: frob (0.9)

Package: knit3
Source: knit3

"""
ENGLISH = """\
Package: frob
Description-md5: a1
Description-en: frobs widgets
 Frob is a program that
 frobs  widgets.
 .
 It can:
  * frob widgets that are wide
    or even wider, and
  * unfrob them.
 That is all.

Package: frob-doc
Description-md5: a2
Description-en: frobs widgets (documentation)
 Frob is a program that frobs widgets.
 .
 This is its documentation.

Package: knit3
Description-md5: a3
Description-en: knits
 Knits what was
 frobbed.

"""
GERMAN = """\
Package: knit3
Description-md5: a3
Description-de: strickt
 Strickt.
 .
 Noch ein Absatz.

Package: frob
Description-md5: a1
Description-de: frobt Teile
 Frob ist ein Programm, das Teile
 frobt.
 .
 Es kann:
  * Teile frobben, die breit sind, und
  * sie entfrobben.
 Das ist alles.

Package: frob
Description-md5: gone
Description-de: was einmal war
 Nichts.
"""


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    texts = {"Packages": PACKAGES, "Translation-en": ENGLISH, "Translation-de": GERMAN}
    for name, text in texts.items():
        (tmp_path / f"{name}.xz").write_bytes(lzma.compress(text.encode()))
    return [tmp_path / f"{name}.xz" for name in texts]


def test_stanzas_end_with_blank_lines_or_the_file_and_lines_with_line_feeds_only(
    tmp_path: Path,
) -> None:
    (tmp_path / "index").write_text(
        "\n\nA: 1\n\n\nA: 2\u2028two\x85.\n three\r\x0c\nB: 3", encoding="utf-8", newline=""
    )
    assert list(stanzas(tmp_path / "index", ("A",))) == [
        {"A": "1"},
        {"A": "2\u2028two\x85.\n three\r\x0c"},
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"A: 1\nwhat is this\n", "index, line 2: expected `Field: value`"),
        (
            b"A: f\xfcr\n",
            r"index, line 1: not valid UTF-8 \(byte 5 of the line\); convert the file to UTF-8",
        ),
        (None, "index: cannot be read: No such file"),
    ],
    ids=["other-text", "not-utf-8", "missing"],
)
def test_what_is_no_index_is_refused_by_its_line(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "index").write_bytes(content)
    with pytest.raises(DataError, match=said):
        list(stanzas(tmp_path / "index", ("A",)))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["one", "two  three"], ["one two three"]),
        (
            ["Can:", " * one", "   and more", " - two", " + three"],
            ["Can:", "one and more", "two", "three"],
        ),
        (
            [" * outer", "   - inner", "   - inner too", " * outer again"],
            ["outer", "inner", "inner too", "outer again"],
        ),
        ([" name   what it is", " other  what that is"], ["name what it is", "other what that is"]),
        ([" -v  be loud", "     at once", "Then so."], ["-v be loud at once", "Then so."]),
        (["- not a list,", "but a dash"], ["- not a list, but a dash"]),
        ([" a * b"], ["a * b"]),
        ([], []),
    ],
    ids=["text", "list", "lists-in-lists", "table", "options", "dash", "star", "nothing"],
)
def test_units_of_a_paragraph(lines: list[str], expected: list[str]) -> None:
    assert units(lines) == expected


def test_families() -> None:
    families = {
        **{
            "gcc-12": "gcc",
            "gcc-12-cross": "gcc-cross",
            "python3.11": "python",
            "libsdl1.2": "libsdl",
        },
        **{"llvm-toolchain-14": "llvm-toolchain", "openjdk-17-jre8": "openjdk-jre"},
        **{"0ad": "0ad", "7zip": "7zip", "mp3info": "mp3info", "2048": "2048"},
    }
    assert {source: family(source) for source in families} == families


def test_pairs_are_joined_by_sum_and_by_paragraph(files: list[Path]) -> None:
    pairs, dropped = read(DebianDescriptions(src="en", tgt="de"), *files)
    assert pairs == [
        Pair("frobs widgets", "frobt Teile", group="frob"),
        Pair(
            "Frob is a program that frobs widgets.",
            "Frob ist ein Programm, das Teile frobt.",
            group="frob",
        ),
        Pair("It can:", "Es kann:", group="frob"),
        Pair(
            "frob widgets that are wide or even wider, and",
            "Teile frobben, die breit sind, und",
            group="frob",
        ),
        Pair("unfrob them.", "sie entfrobben.", group="frob"),
        Pair("That is all.", "Das ist alles.", group="frob"),
        Pair("knits", "strickt", group="knit"),
    ]
    assert dropped == {
        "description without a translation": 1,
        "description with more paragraphs in one language": 1,
    }
    back, _ = read(DebianDescriptions(src="de", tgt="en"), *files)
    assert {(pair.tgt, pair.src) for pair in back} == {(pair.src, pair.tgt) for pair in pairs}


def test_paragraphs_with_other_lists_are_left_out(files: list[Path]) -> None:
    # it need not be compressed
    files[2].write_text(GERMAN.replace("  * sie entfrobben.\n", ""), encoding="utf-8")
    pairs, dropped = read(DebianDescriptions(src="en", tgt="de"), *files)
    assert [pair.src for pair in pairs] == [
        "frobs widgets",
        "Frob is a program that frobs widgets.",
        "knits",
    ]
    assert dropped["paragraph with more list items in one language"] == 1


def test_a_description_in_several_indexes_is_read_once(files: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "Translation-en"
    other.write_text(ENGLISH.replace("a3", "a4"), encoding="utf-8")
    assert [item.md5 for item in descriptions([files[1], other], "en")] == ["a1", "a2", "a3", "a4"]


def test_a_language_that_no_file_has_is_named(files: list[Path]) -> None:
    with pytest.raises(
        DataError,
        match=r"no source of the corpus has package descriptions in 'fr'; add this language",
    ):
        read(DebianDescriptions(src="en", tgt="fr"), *files)


def _english(tmp_path: Path, *items: tuple[str, str, str]) -> list[Path]:
    """An index of translations out of packages, summaries and long descriptions."""
    path = tmp_path / "Translation-en"
    stanzas = [
        f"Package: {name}\nDescription-md5: {number}\nDescription-en: {summary}\n{text}\n"
        for number, (name, summary, text) in enumerate(items)
    ]
    path.write_text("\n".join(stanzas), encoding="utf-8")
    return [path]


LONG = (
    " Frob 2.0 is a program that frobs widgets, whether they are wide or\n narrow, all day long.\n"
)


def test_summaries_have_their_long_description_as_article(tmp_path: Path) -> None:
    files = _english(
        tmp_path, ("frob2-data", "frobs widgets", LONG + " .\n It can:\n  * frob\n  * unfrob\n")
    )
    article = (
        "Frob 2.0 is a program that frobs widgets, whether they are wide or narrow, all day long. "
        "It can: * frob * unfrob"
    )
    assert read(DebianSummaries(), *files)[0] == [Pair(article, "frobs widgets", group="frob-data")]


def test_summaries_that_teach_nothing_are_left_out(tmp_path: Path) -> None:
    files = _english(
        tmp_path,
        ("frob", "frobs widgets", LONG),
        ("frob-short", "frobs few widgets", " Frobs.\n .\n Few widgets only.\n"),
        ("frob-empty", "frobs no widgets", ""),
        ("lib-frob", "Lib Frob", LONG.replace("Frob", "Lib")),
        ("unfrob", "unfrobs", LONG.replace("Frob", "Unfrob")),
        ("frob-old", "transitional package", LONG.replace("Frob", "Old")),
        ("frob-older", "Dummy package for frob", LONG.replace("Frob", "Older")),
        ("frob-doc", "frobs widgets (documentation)", LONG + " .\n This is the documentation.\n"),
        ("frob3", "frobs new widgets", LONG.replace("2.0", "3.1").replace("widgets,", "WIDGETS")),
        ("frob-dev", "frobs widgets - development files", LONG.replace("Frob", "Frob-dev")),
    )
    pairs, dropped = read(DebianSummaries(), *files)
    assert [pair.tgt for pair in pairs] == ["frobs widgets", "frobs widgets - development files"]
    assert dropped == {
        "long description with fewer than 15 words": 2,
        "summary that only names the package": 2,
        "package that only points to another one": 2,
        "first paragraph shared with another package": 2,
    }
    # an empty description has no first paragraph
    with pytest.raises(RecipeError, match="min_words"):
        parse(DebianSummaries, {"min_words": 0}, "here")
