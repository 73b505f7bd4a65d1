"""Files that are not plain text are recognized, and plain text is not taken for another format."""

from pathlib import Path

import pytest

from nmtkit.core.errors import DataError
from nmtkit.data.text.files.formats import binary_format, text_format
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.files.text_file import TextFile

SRT = "1\n00:00:01,000 --> 00:00:03,500\nHello there.\n\n2\n00:00:04,000 --> 00:00:05,500\nHow are you?\n"
TABLE = "A report.\n\n| item | number |\n|------|-------:|\n| tents | 120 |\n"
FORMATS = {
    "HTML page": "<!DOCTYPE html>\n<html><head><title>A</title></head>\n<body><p>Text.</p></body></html>\n",
    "part of an HTML": '<div class="a">\n<p>One.</p>\n<p>Two <b>words</b>.</p>\n<p>Three.</p>\n</div>\n',
    "subtitles (SRT)": SRT,
    "subtitles (WebVTT)": "WEBVTT\n\n00:01.000 --> 00:03.500\nHello there.\n",
    "TMX": '<?xml version="1.0"?>\n<tmx version="1.4">\n<body><tu><tuv xml:lang="de"><seg>x</seg></tuv>\n',
    "XLIFF": '<?xml version="1.0"?>\n<xliff version="1.2">\n<file original="a">\n',
    "XML": '<?xml version="1.0"?>\n<recipe>\n<step/>\n</recipe>\n',
    "separated by tabs": "one\teins\ntwo\tzwei\nthree\tdrei\nfour\tvier\n",
    "separated by commas": 'id,en,fr\n1,dog,chien\n2,cat,chat\n3,"a, b",c\n'.replace(
        '"a, b"', '"a,b"'
    ),
    "separated by semicolons": "en;fr\ndog;chien\ncat;chat\nhouse;maison\n",
    "Markdown with a table": TABLE,
    "JSON list": '[\n {"en": "dog"},\n {"en": "cat"}\n]\n',
    "JSON objects that span several lines": '{\n  "en": "dog"\n}\n',
    "RTF": "{\\rtf1\\ansi\nHello\n}\n",
}


@pytest.mark.parametrize("title", FORMATS)
def test_formats_are_recognized_by_their_lines(title: str) -> None:
    found = text_format(FORMATS[title].splitlines(), "file")
    assert found is not None
    assert title in found.title


ORDINARY = [
    "If a < b and c > d, then x <= y.",
    "The meeting is at 10:30, not at 11:45.",
    "He said: <sigh> I don't know.",
    "From 00:01:02,500 on, the film is boring.",
    "One, two, three.",
    "a\ttab in a line",
    "<t> The dog sleeps. </t> <t> It snores. </t>",
    "x --> y",
    "Either this | or that.",
    "-----",
    "1",
    "{not json}",
    "<2de> The house is red.",
    "100,200 people; 300 dogs",
]


@pytest.mark.parametrize(
    "lines", [ORDINARY, ORDINARY[::-1], *[[line] * 6 for line in ORDINARY if "\t" not in line]]
)
def test_ordinary_text_is_not_taken_for_another_format(lines: list[str]) -> None:
    assert text_format(lines, "text.txt") is None
    assert text_format([], "text.csv") is None


TABLE_ADVICE = {
    "id\tEnglish\tFrench\n1\tThe dog.\tLe chien.\n": "a.tsv#English and a.tsv#French or, if the first row is not",
    "id;Source text;French\n1;The dog.;Le chien.\n": "'a.csv#Source text' and a.csv#French or, if the first row is",
    "The dog.\tLe chien.\nA cat.\tUn chat.\n": "Specify its columns as a.tsv#1 and a.tsv#2.",
    "1\tThe dog.\tLe chien.\n2\tA cat.\tUn chat.\n": "Specify its columns as a.tsv#2 and a.tsv#3.",
}


@pytest.mark.parametrize("text", TABLE_ADVICE)
def test_the_advice_on_a_table_names_its_columns_of_text(text: str) -> None:
    name = "a.tsv" if "\t" in text else "a.csv"
    found = text_format(text.splitlines(), name)
    assert found is not None
    assert TABLE_ADVICE[text] in found.advice


def test_short_tables_are_recognized_by_their_names() -> None:
    assert text_format(["one\teins"], "file") is None
    assert text_format(["one\teins"], "a.tsv") is not None
    assert text_format(["Hello, you", "Good, bye"], "file") is None
    assert text_format(["Hello, you", "Good, bye"], "a.csv.gz") is not None


@pytest.mark.parametrize(
    ("head", "title"),
    [
        (b"%PDF-1.7\n", "PDF"),
        (b"PK\x03\x04....word/document.xml", "Word"),
        (b"PK\x03\x04....mimetypeapplication/vnd.oasis.opendocument.text", "OpenDocument"),
        (b"PK\x03\x04....xl/workbook.xml", "Excel"),
        (b"PK\x03\x04....", "ZIP"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1....", "old Microsoft Office"),
    ],
)
def test_binary_files_are_refused(tmp_path: Path, head: bytes, title: str) -> None:
    found = binary_format(head)
    assert found is not None
    assert title in found.title
    path = tmp_path / "file"
    path.write_bytes(head + b"\nmore\n")
    with pytest.raises(DataError, match=f"file: this is .*{title}.*, not text"):
        list(read_lines(path))
    file = TextFile(str(path))
    file.skip_rest()
    assert [fault.kind.name for fault in file.take_faults()] == ["binary"]
