"""FILE#COLUMN: columns of tables, languages of TMX files, fields of JSON lines."""

import csv
import gzip
import json
from collections.abc import Callable
from html import escape
from pathlib import Path

import pytest

from nmtkit.core.errors import DataError
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.files.names import split_reference
from nmtkit.data.text.files.text_file import TextFile
from nmtkit.data.text.reading import read_pairs

PAIRS = [
    ("The dog sleeps.", "Le chien dort."),
    ('A man said "hello, you".', "Un homme a dit « bonjour »."),
    ("She works; he rests, all day.", "Elle travaille ; il se repose."),
    ("It's 5 < 6 & 7.", "C'est 5 < 6 & 7."),
] * 300
ENGLISH, FRENCH = map(list, zip(*PAIRS, strict=True))


def write_tsv(path: Path) -> list[str]:
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS), encoding="utf-8")
    return [f"{path}#1", f"{path}#2"]


def write_csv(path: Path, delimiter: str = ",") -> list[str]:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "English", "French"])
        writer.writerows([number, *pair] for number, pair in enumerate(PAIRS))
    return [f"{path}#English", f"{path}#French"]


def tmx(pairs: list[tuple[str, str]] = PAIRS, head: str = '<?xml version="1.0"?>') -> str:
    units = ""
    for src, tgt in pairs:
        units += f'<tu><tuv xml:lang="en-US"><seg>{escape(src)}</seg></tuv>\n'
        units += f'<tuv xml:lang="FR"><seg>{escape(tgt)}</seg></tuv></tu>\n'
    return f'{head}\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4"><header/><body>{units}</body></tmx>'


def write_tmx(path: Path) -> list[str]:
    path.write_text(tmx(), encoding="utf-8")
    return [f"{path}#en", f"{path}#fr"]


def write_json(path: Path) -> list[str]:
    records = [{"translation": {"en": src, "fr": tgt}} for src, tgt in PAIRS]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return [f"{path}#translation.en", f"{path}#translation.fr"]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.tsv", write_tsv),
        ("a.txt", write_tsv),
        ("a.csv", write_csv),
        ("a.tmx", write_tmx),
        ("a.jsonl", write_json),
    ],
)
def test_columns_are_read_as_texts(
    tmp_path: Path, name: str, write: Callable[..., list[str]]
) -> None:
    src, tgt = write(tmp_path / name)
    assert list(read_lines(src)) == ENGLISH
    assert list(read_lines(tgt)) == FRENCH
    pairs = [(pair.src, pair.tgt) for pair in read_pairs(SplitFiles(src=[src], tgt=[tgt]))]
    assert pairs == PAIRS
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    assert list(read_lines(src.replace(name, packed.name))) == ENGLISH


def test_semicolons_and_other_encodings(tmp_path: Path) -> None:
    src, tgt = write_csv(tmp_path / "a.csv", delimiter=";")
    assert list(read_lines(src)) == ENGLISH
    text = (tmp_path / "a.csv").read_text(encoding="utf-8-sig")
    (tmp_path / "a.csv").write_bytes(text.encode("utf-16"))
    with pytest.raises(DataError, match=r"a.csv: this is UTF-16"):
        list(read_lines(src))
    assert list(read_lines(tgt, "utf-16")) == FRENCH
    files = SplitFiles(src=[src], tgt=[tgt], encoding={str(tmp_path / "a.csv"): "utf-16"})
    assert [(pair.src, pair.tgt) for pair in read_pairs(files)] == PAIRS


@pytest.mark.parametrize(
    ("name", "text"), [("a.tsv", b"a\tb\nx\xff\ty\n"), ("a.jsonl", b'{"1": "a"}\n{"1": "x\xff"}\n')]
)
def test_bytes_that_are_not_utf8_in_a_column(tmp_path: Path, name: str, text: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    lines = read_lines(f"{path}#1")
    assert next(lines) == "a"
    with pytest.raises(DataError, match=rf"{name}, line 2: not valid UTF-8 \(byte"):
        next(lines)


def test_cells_with_line_ends_and_missing_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('en,fr\n"one\r\nline","a ""b"""\nonly\n', encoding="utf-8")
    assert list(read_lines(f"{path}#en")) == ["one line", "only"]
    assert list(read_lines(f"{path}#fr")) == ['a "b"', ""]


@pytest.mark.parametrize(
    ("name", "text", "column", "told"),
    [
        (
            "a.csv",
            "English,French\na,b\n",
            "Englisch",
            r"a.csv: there is no column 'Englisch' in the first row \(English, French\)",
        ),
        ("a.tsv", "a\tb\n", "3", "a.tsv: there is no column 3; the first row has 2 columns"),
        ("a.tsv", "a\tb\n", "0", "there is no column 0"),
        ("a.csv", 'a,b\n"c"d,e\n', "1", "a.csv, line 2: not valid CSV"),
        ("a.csv", 'a,b\n"c,e\n', "1", "not valid CSV"),
        (
            "a.jsonl",
            '{"a": {"b": "c"}}\n',
            "a.x",
            "a.jsonl, line 1: there is no field 'a.x', only a.b; specify a different",
        ),
        ("one.txt", "a\n", "2", "there is no column 2; the first row has 1 column$"),
        (
            "a.json",
            '[\n{"a": "b"}\n]\n',
            "a",
            "a.json: this is a JSON list. Write one object per line first",
        ),
        (
            "a.srt",
            "1\n00:00:01,000 --> 00:00:02,000\na\n",
            "1",
            "files of this kind have no columns",
        ),
        (
            "a.tmx",
            tmx(),
            "de",
            "a.tmx: there is no text in the language 'de'; languages in this file: en-US, FR",
        ),
        ("a.tmx", tmx()[:-30], "en", "a.tmx, line .*: not valid XML"),
    ],
)
def test_a_column_that_is_not_there(
    tmp_path: Path, name: str, text: str, column: str, told: str
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=told):
        list(read_lines(f"{path}#{column}"))
    file = TextFile(f"{path}#{column}")
    file.skip_rest()
    assert [fault.kind.name for fault in file.take_faults()] == ["column"]


def test_a_fault_of_a_column_is_located_and_ends_its_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "x"}\n' * 699 + "{}\n" + '{"a": "y"}\n', encoding="utf-8")
    file = TextFile(f"{path}#a")
    assert file.fill(700) == 699
    (fault,) = file.take_faults()
    assert (fault.kind.name, fault.location.line) == ("column", 700)
    assert not file.is_readable


def test_inline_tags_of_tmx(tmp_path: Path) -> None:
    segment = (
        'Press <bpt i="1">&lt;b&gt;<sub>x</sub></bpt>the <hi>red</hi><ept i="1">&lt;/b&gt;</ept>'
    )
    segment += " key<ph>&lt;br/&gt;</ph>now &eacute;"
    other = "<tu><tuv xml:lang='de'><seg>nur deutsch</seg></tuv></tu>"
    variants = "<tu><tuv xml:lang='en-GB'><seg>colour</seg></tuv><tuv xml:lang='en'><seg>color</seg></tuv></tu>"
    path = tmp_path / "a.tmx"
    body = f"<tu><tuv lang='EN_us'><seg>{segment}</seg></tuv></tu>{other}{variants}"
    path.write_text(
        f'<!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx><body>{body}</body></tmx>', encoding="utf-8"
    )
    assert list(read_lines(f"{path}#en")) == ["Press the red key now é", "", "color"]
    assert list(read_lines(f"{path}#en-gb")) == ["", "", "colour"]


def test_tmx_says_its_own_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.tmx"
    path.write_bytes(tmx(head='<?xml version="1.0" encoding="UTF-16"?>').encode("utf-16"))
    assert list(read_lines(f"{path}#fr")) == FRENCH
    path.write_bytes(tmx(head='<?xml version="1.0" encoding="iso-8859-1"?>').encode("iso-8859-1"))
    assert list(read_lines(f"{path}#fr")) == FRENCH


def test_entities_of_tmx_are_not_expanded(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret", encoding="utf-8")
    path = tmp_path / "a.tmx"
    for entity in ('<!ENTITY x "lol">', f'<!ENTITY x SYSTEM "{secret}">'):
        path.write_text(
            f"<!DOCTYPE tmx [{entity}]><tmx><body><tu><tuv xml:lang='en'><seg>&x;</seg></tuv></tu></body></tmx>",
            encoding="utf-8",
        )
        with pytest.raises(DataError, match="declares the entity"):
            list(read_lines(f"{path}#en"))


def test_a_file_whose_name_has_the_sign(tmp_path: Path) -> None:
    path = tmp_path / "c#1"
    path.write_text("a line\n", encoding="utf-8")
    assert list(read_lines(path)) == ["a line"]
    assert split_reference("pairs.tsv#2") == ("pairs.tsv", "2")  # though the file does not exist
    assert split_reference("notes#2") == ("notes#2", "")
    with pytest.raises(DataError, match=r"nowhere.tsv.*: cannot be read: No such file"):
        list(read_lines(str(tmp_path / "nowhere.tsv#1")))


def test_paths_of_a_corpus_are_files(tmp_path: Path) -> None:
    src, tgt = write_tsv(tmp_path / "a.tsv")
    files = SplitFiles(src=["a.tsv#1"], tgt=["a.tsv#2"]).resolved(str(tmp_path))
    assert (files.src, files.tgt) == ([src], [tgt])
    assert files.paths() == [str(tmp_path / "a.tsv")]
