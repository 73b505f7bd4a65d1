"""Readers of parallel corpora: aligned lines, marked-up talks and segments, columns; and every fault with its place."""

import gzip
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nmtkit.core.errors import DataError
from nmtkit.data.text.files import lines as line_files
from nmtkit.datasets.readers import (
    MARKUP_LINES,
    AlignedReader,
    Pair,
    ParallelFiles,
    Reader,
    TabSeparatedReader,
    unescape_entities,
)
from tests.datasets.corpus_files import Content, published, read

EN = ["A dog runs.", "Two women sing.", "The bus is late."]
DE = ["Ein Hund rennt.", "Zwei Frauen singen.", "Der Bus hat Verspätung."]
BOTH = list(zip(EN, DE, strict=True))


def texts(reader: Reader, *files: Path) -> list[tuple[str, str]]:
    return [(pair.src, pair.tgt) for pair in read(reader, *files)[0]]


def sides(archive: str, src: str, tgt: str, **settings: Any) -> AlignedReader:
    return AlignedReader(
        parts=[ParallelFiles(src=f"{archive}:{src}", tgt=f"{archive}:{tgt}", **settings)]
    )


def aligned(
    folder: Path, src: Content, tgt: Content, **settings: Any
) -> tuple[list[Pair], dict[str, int]]:
    return read(
        sides("a.tgz", "a.en", "a.de", **settings),
        published(folder / "a.tgz", {"a.en": src, "a.de": tgt}),
    )


def columns(folder: Path, text: Content, **settings: Any) -> tuple[list[Pair], dict[str, int]]:
    archive = published(folder / "a.zip", {"_about.txt": "No pairs\tin here.", "a.txt": text})
    return read(TabSeparatedReader(text="a.zip:a.txt", **settings), archive)


# ---- lines


@pytest.mark.parametrize("name", ["all.tgz", "all.tar"])
def test_tar_with_folders_whichever_side_comes_first(tmp_path: Path, name: str) -> None:
    archive = published(
        tmp_path / name, {"training/a.de": DE, "training/b.txt": "x", "training/a.en": EN}
    )
    assert texts(sides(name, "training/a.en", "training/a.de"), archive) == BOTH
    assert texts(sides(name, "training/a.de", "training/a.en"), archive) == [
        (de, en) for en, de in BOTH
    ]


BOMB = gzip.compress((b"x" * 9999 + b"\n") * 2000)
NUMBERS = gzip.compress("".join(f"{number} words\n" for number in range(2000)).encode())


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (BOMB, "unpacks to more than 200 bytes per compressed byte"),
        (NUMBERS[:2000], "damaged archive"),
    ],
    ids=["bomb", "broken"],
)
def test_faulty_gzip_files_inside_of_a_tar_are_named(
    tmp_path: Path, packed: bytes, said: str
) -> None:
    archive = published(tmp_path / "giga.tar", {"a.gz": packed, "b.gz": packed})
    with pytest.raises(DataError, match=rf"giga\.tar: {said}"):
        read(sides("giga.tar", "a.gz", "b.gz"), archive)


def test_entities_of_lines_stay(tmp_path: Path) -> None:
    text = "don &apos;t &amp; won"
    assert aligned(tmp_path, [text], ["x"])[0] == [Pair(text, "x")]


@pytest.mark.parametrize("name", ["a.zip", "a.tgz"])
def test_memory_does_not_grow_with_the_archive(tmp_path: Path, name: str) -> None:
    lines = [
        f"{number} bottles hang on the wall" + f" of house {number * 7919}" * 50
        for number in range(6000)
    ]
    archive = published(tmp_path / name, {"a.en": lines, "a.de": lines})
    assert sum(map(len, lines)) > 4 << 20
    del lines
    tracemalloc.start()
    try:
        assert sum(1 for _ in sides(name, "a.en", "a.de").pairs([archive], Counter())) == 6000
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


# ---- talks and segments

TAGS_DE = """<url>http://www.example.org/talks/7</url>
<talkid>7</talkid>
<title>Ada Okafor: Das Meer</title>
 Das Meer ist tief.
 Wir wissen wenig davon.
<url>http://www.example.org/talks/12</url>
<talkid>12</talkid>
<reviewer href="http://www.example.org/1">Someone</reviewer>
 Brot & Butter, 3 < 4.
"""
TAGS_EN = """<url>http://www.example.org/talks/7</url>
<talkid>7</talkid>
<title>Ada Okafor: The sea</title>
The sea is deep.
We know little of it.
<talkid>12</talkid>
Bread & butter, 3 < 4.
"""
SRC_XML = """<?xml version="1.0" encoding="UTF-8"?>
<mteval>
<srcset setid="demo-2010" srclang="german">
<doc docid="69" genre="lectures">
<url>http://www.example.org/talks/69</url>
<title>Ein Titel</title>
<seg id="1"> Guten Tag. </seg>
<seg id="2"> Er sagte &quot;R&amp;D&quot; </seg>
</doc>
<doc docid="70" genre="lectures">
<seg id="1"> Zum Schluss. </seg>
</doc>
</srcset>
</mteval>
"""
REF_SGM = """<refset setid="demo-2010" srclang="any" trglang="en">
<DOC sysid="ref" docid="69" genre="lectures" origlang="de">
<hl>
<seg id="1">Good day.</seg>
</hl>
<p>
<seg id='2'>He said "R&D"</seg>
</p>
</DOC>
<doc docid=70>
<seg id=1>In
the end.
</seg></doc></refset>
"""


def test_talks_without_the_lines_about_them(tmp_path: Path) -> None:
    pairs, dropped = aligned(tmp_path, TAGS_DE, TAGS_EN, format="talks")
    assert pairs == [
        Pair("Das Meer ist tief.", "The sea is deep.", group="talk 7"),
        Pair("Wir wissen wenig davon.", "We know little of it.", group="talk 7"),
        Pair("Brot & Butter, 3 < 4.", "Bread & butter, 3 < 4.", group="talk 12"),
    ]
    assert dropped == {MARKUP_LINES: 6}


@pytest.mark.parametrize(
    ("form", "src", "tgt", "said"),
    [
        (
            "lines",
            EN,
            [*EN, "One more.", "And one."],
            r"a\.tgz:a\.en has 3 lines, but a\.tgz:a\.de has 5",
        ),
        (
            "lines",
            [*EN, "One more.", "And one."],
            EN,
            r"a\.tgz:a\.en has 5 lines, but a\.tgz:a\.de has 3",
        ),
        (
            "lines",
            EN,
            b"gut\nauch gut\nsp\xe4t\n",
            r"a\.tgz:a\.de, line 3: not valid UTF-8 \(byte 3 of the line\)",
        ),
        ("lines", "", "", r"a\.tgz:a\.en: contains no lines"),
        (
            "talks",
            TAGS_DE,
            TAGS_EN.replace("We know little of it.\n", ""),
            "item 2 is talk 7 on one side and talk 12",
        ),
        (
            "talks",
            TAGS_DE + " Noch ein Satz.\n",
            TAGS_EN,
            r"a\.en has 4 talks, but a\.tgz:a\.de has 3",
        ),
    ],
    ids=["longer-target", "longer-source", "not-utf-8", "empty", "shifted-talks", "longer-talks"],
)
def test_sides_that_do_not_belong_together_are_named(
    tmp_path: Path, form: str, src: Content, tgt: Content, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        aligned(tmp_path, src, tgt, format=form)


def test_segments_of_xml_and_sgml(tmp_path: Path) -> None:
    pairs, dropped = aligned(tmp_path, SRC_XML, REF_SGM, format="segments", split="test")
    assert pairs == [
        Pair("Guten Tag.", "Good day.", group="69", split="test"),
        Pair('Er sagte "R&D"', 'He said "R&D"', group="69", split="test"),
        Pair("Zum Schluss.", "In the end.", group="70", split="test"),
    ]
    assert dropped == {}


def test_several_segments_in_one_line(tmp_path: Path) -> None:
    src = '<doc docid="a"><seg id="1">eins</seg><seg id="2">zwei</seg></doc>'
    pairs, _ = aligned(tmp_path, src, src, format="segments")
    assert [pair.tgt for pair in pairs] == ["eins", "zwei"]


@pytest.mark.parametrize(
    ("marked", "text"),
    [
        ("don&apos;t &amp; &quot;won&#39;t&quot; &lt;b&gt;", "don't & \"won't\" <b>"),
        ("&#x20AC; 5, caf&eacute;", "\u20ac 5, caf\xe9"),
        ("R&D, &notit; AT&T; &; &#; &copy 2016", "R&D, &notit; AT&T; &; &#; &copy 2016"),
        ("&amp;amp;", "&amp;"),
    ],
    ids=["common", "others", "none", "once"],
)
def test_entities(marked: str, text: str) -> None:
    assert unescape_entities(marked) == text


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            '<doc docid="70"',
            '<doc docid="71"',
            "are not parallel: item 3 is document 71, segment 1 on one side",
        ),
        (
            '<seg id="2">',
            '<seg id="3">',
            "are not parallel: item 2 is document 69, segment 3 on one side",
        ),
        (
            "Tag. </seg>",
            "Tag.",
            r"line 8: found <seg id=\"2\"> inside the segment that begins on line 7",
        ),
        ("</seg>\n</doc>\n</srcset>", "</srcset>", "line 11: this segment is not closed"),
        ('<seg id="1"> Guten', "Guten", "line 7: found </seg> outside any segment"),
        ("Tag. </seg>", "</doc> Tag. </seg>", "line 7: found </doc> inside the segment"),
        ("seg", "s", r"a\.en has 0 segments, but a\.tgz:a\.de has 3"),
    ],
    ids=[
        "other-document",
        "other-segment",
        "not-closed",
        "cut",
        "not-opened",
        "document-inside",
        "none",
    ],
)
def test_faults_of_segments_are_named(tmp_path: Path, before: str, after: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        aligned(tmp_path, SRC_XML.replace(before, after), REF_SGM, format="segments")


# ---- columns

TATOEBA = (
    "Go.\tGeh.\tCC-BY 2.0 (France) Attribution: tatoeba.org #1 (a) & #2 (b)\n"
    "Go.\tLos!\tCC-BY 2.0 (France) Attribution: tatoeba.org #1 (a) & #3 (c)\n"
    "Where is the cat?\tWo ist die Katze?\tCC-BY 2.0 (France) Attribution: tatoeba.org #4 (a) & #5 (b)\n"
)


@pytest.mark.parametrize("group", [1, None])
def test_columns_in_both_directions(tmp_path: Path, group: int | None) -> None:
    """Without a group of its own the source is one; with one both directions have the same groups."""
    there, _ = columns(tmp_path, TATOEBA, group=group)
    assert [(pair.src, pair.tgt) for pair in there] == [
        ("Go.", "Geh."),
        ("Go.", "Los!"),
        ("Where is the cat?", "Wo ist die Katze?"),
    ]
    back, dropped = columns(tmp_path, TATOEBA, src=2, tgt=1, group=group)
    assert back == [
        Pair(pair.tgt, pair.src, group=pair.group if group else pair.tgt) for pair in there
    ]
    assert dropped == {}


def test_empty_lines_are_counted_and_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    pairs, dropped = columns(
        tmp_path, "\ufeffHi.\tSalut\u2028encore !\r\n\r\nRun!\tCours\x85 !\r\n"
    )
    assert [(pair.src, pair.tgt) for pair in pairs] == [
        ("Hi.", "Salut\u2028encore !"),
        ("Run!", "Cours\x85 !"),
    ]
    assert dropped == {"empty lines": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one\teins\nno tab here\n", "line 2: expected 2 tab-separated columns, but found 1"),
        (b"one\teins\ntwo\tf\xfcnf\n", r"line 2: not valid UTF-8 \(byte 6 of the line\)"),
        ("one\teins\n" + "x" * 60_000 + "\n", "line 2: the line is longer than 20,000 bytes"),
    ],
    ids=["one-column", "not-utf-8", "endless"],
)
def test_lines_that_are_no_pair_are_named(
    tmp_path: Path, text: Content, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_files, "MAX_LINE_BYTES", 20_000)
    with pytest.raises(DataError, match=rf"a\.zip:a\.txt, {said}"):
        columns(tmp_path, text)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (
            "a.zip:b.txt",
            r"a\.zip:b\.txt: no such text among the members of .* \(0\.txt, .*, 9\.txt and 15 more\);",
        ),
        ("a.zip", r"\(0\.txt, .* and 15 more\); specify one as a\.zip:MEMBER"),
        (
            "b.zip:0.txt",
            r"b\.zip: the sources of the corpus provide no file with this name \(available: a\.zip\)",
        ),
    ],
    ids=["other-member", "no-member", "other-file"],
)
def test_a_text_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, place: str, said: str
) -> None:
    archive = published(tmp_path / "a.zip", {f"{number}.txt": TATOEBA for number in range(25)})
    with pytest.raises(DataError, match=said):
        read(TabSeparatedReader(text=place), archive)
