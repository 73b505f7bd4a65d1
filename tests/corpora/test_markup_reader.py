"""Marked-up corpora: talks of WIT3, and segments of SGML and XML as shared tasks publish their test sets."""

from collections import Counter
from pathlib import Path

import pytest
from published import tarred, zipped

from nmtkit.core.errors import DataError
from nmtkit.corpora.aligned import MARK_UP, AlignedReader, ParallelFiles, unescape_entities
from nmtkit.corpora.readers import Pair

TAGS_DE = """<url>http://www.example.org/talks/7</url>
<keywords>sea, ships</keywords>
<speaker>Ada Okafor</speaker>
<talkid>7</talkid>
<title>Ada Okafor: Das Meer</title>
<description>Ein Vortrag über das Meer.</description>
 Das Meer ist tief.
 Wir wissen wenig davon.
<url>http://www.example.org/talks/12</url>
<talkid>12</talkid>
<title>Jon Lind: Brot</title>
<reviewer href="http://www.example.org/1">Someone</reviewer>
<translator href="http://www.example.org/2">Someone else</translator>
 Brot & Butter, 3 < 4.
"""
TAGS_EN = """<url>http://www.example.org/talks/7</url>
<keywords>sea, ships</keywords>
<speaker>Ada Okafor</speaker>
<talkid>7</talkid>
<title>Ada Okafor: The sea</title>
<description>A talk about the sea.</description>
The sea is deep.
We know little of it.
<url>http://www.example.org/talks/12</url>
<talkid>12</talkid>
<title>Jon Lind: Bread</title>
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


def read(form: str, src: str, tgt: str, folder: Path, split: str = "") -> tuple[list[Pair], dict[str, int]]:
    """All pairs of two texts in one archive, and what was left out."""
    archive = tarred(folder / "set.tgz", {"set/a.src": src, "set/a.ref": tgt})
    reader = AlignedReader.model_validate(
        {
            "kind": "aligned",
            "parts": [{"src": "set.tgz:set/a.src", "tgt": "set.tgz:set/a.ref", "format": form, "split": split}],
        }
    )
    dropped: Counter[str] = Counter()
    return list(reader.pairs([archive], dropped)), dict(dropped)


def test_talks_without_the_lines_about_them(tmp_path: Path) -> None:
    pairs, dropped = read("talks", TAGS_DE, TAGS_EN, tmp_path)
    assert [(pair.src, pair.tgt, pair.group) for pair in pairs] == [
        ("Das Meer ist tief.", "The sea is deep.", "talk 7"),
        ("Wir wissen wenig davon.", "We know little of it.", "talk 7"),
        ("Brot & Butter, 3 < 4.", "Bread & butter, 3 < 4.", "talk 12"),
    ]
    assert dropped == {MARK_UP: 11}


def test_talks_that_part_are_named(tmp_path: Path) -> None:
    shifted = TAGS_EN.replace("We know little of it.\n", "")
    with pytest.raises(DataError, match=r"differ at number 2: talk 7 on one side, talk 12 on the other"):
        read("talks", TAGS_DE, shifted, tmp_path)


def test_talks_of_which_one_ends_early(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.src has 4 talks, but set\.tgz:set/a\.ref has 3"):
        read("talks", TAGS_DE + " Noch ein Satz.\n", TAGS_EN, tmp_path)


def test_segments_of_xml_and_sgml(tmp_path: Path) -> None:
    pairs, dropped = read("segments", SRC_XML, REF_SGM, tmp_path, split="test")
    assert [(pair.src, pair.tgt) for pair in pairs] == [
        ("Guten Tag.", "Good day."),
        ('Er sagte "R&D"', 'He said "R&D"'),
        ("Zum Schluss.", "In the end."),
    ]
    assert [pair.group for pair in pairs] == ["69", "69", "70"]
    assert {pair.split for pair in pairs} == {"test"}
    assert dropped == {}


def test_several_segments_in_one_line(tmp_path: Path) -> None:
    src = '<doc docid="a"><seg id="1">eins</seg><seg id="2">zwei</seg></doc>'
    pairs, _ = read("segments", src, src.replace("eins", "one").replace("zwei", "two"), tmp_path)
    assert [(pair.src, pair.tgt) for pair in pairs] == [("eins", "one"), ("zwei", "two")]


def test_entities_of_segments_can_be_kept(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"a.xml": SRC_XML, "b.sgm": REF_SGM})
    part = ParallelFiles(src="a.zip:a.xml", tgt="a.zip:b.sgm", format="segments", entities=False)
    pairs = list(AlignedReader(parts=[part]).pairs([archive], Counter()))
    assert pairs[1].src == "Er sagte &quot;R&amp;D&quot;"


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
    ("broken", "said"),
    [
        (
            SRC_XML.replace('<doc docid="70"', '<doc docid="71"'),
            "differ at number 3: document 71, segment 1 on one side",
        ),
        (SRC_XML.replace('<seg id="2">', '<seg id="3">'), "differ at number 2: document 69, segment 3 on one side"),
        (
            SRC_XML.replace("Guten Tag. </seg>", "Guten Tag."),
            r"line 8: <seg id=\"2\"> inside of the segment that begins in line 7",
        ),
        (SRC_XML.replace("</seg>\n</doc>\n</srcset>", "</srcset>"), "line 11: this segment has no end"),
        (SRC_XML.replace('<seg id="1"> Guten', "Guten"), "line 7: </seg> where no segment is open"),
        (SRC_XML.replace("Guten Tag. </seg>", "Guten </doc> Tag. </seg>"), "line 7: </doc> inside of the segment"),
        (SRC_XML.replace("<seg", "<s").replace("</seg", "</s"), "a.src has 0 segments, but set.tgz:set/a.ref has 3"),
    ],
    ids=["other-document", "other-segment", "not-closed", "cut", "not-opened", "document-inside", "none"],
)
def test_faults_of_segments_are_named(tmp_path: Path, broken: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read("segments", broken, REF_SGM, tmp_path)


def test_a_text_without_any_segment_on_both_sides(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it has no segments; has its layout changed"):
        read("segments", "one\ntwo\n", "eins\nzwei\n", tmp_path)
