"""Commands that read columns of tables, other encodings and compressed text, and warn of what is no plain text."""

import bz2
import json
from pathlib import Path

import pytest

from tests.support.command_cases import by_name
from tests.support.commands import (
    Command,
    as_text,
    contents,
    lines_in,
    refused,
    succeeded,
    write_lines,
)

HTML = "<!DOCTYPE html>\n<html><body><p>ba</p></body></html>\n"
SUBTITLES = "1\n00:00:01,000 --> 00:00:03,500\nba ce\n"
TABLE = "one\teins\ntwo\tzwei\n"
TMX = """\
<?xml version="1.0"?>
<tmx version="1.4"><body><tu>
<tuv xml:lang="en"><seg>dog</seg></tuv><tuv xml:lang="de"><seg>Hund</seg></tuv>
</tu></body></tmx>
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


LINES = ["ba ce", "dé", "fo ba dé"]
FORMS = {
    "a column of a table": "a.tsv#2",
    "a named encoding": "a.cp1252 --encoding cp1252",
    "bzip2": "a.bz2",
    "an encoding of another file": "a.bz2 --encoding a.tsv=cp1252",
    "standard input in a named encoding": "--encoding cp1252 < a.cp1252",
}


@pytest.fixture
def forms(folder: Path) -> None:
    """The same lines as plain text, as a column of a table, in another encoding and packed."""
    write_lines("plain", LINES)
    write_lines("a.tsv", [f"x\t{line}" for line in LINES])
    (folder / "a.cp1252").write_bytes(as_text(LINES).encode("cp1252"))
    (folder / "a.bz2").write_bytes(bz2.compress(as_text(LINES).encode()))


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize("line", by_name(FORMS))
def test_translate_reads(console: Command, trained: Path, line: str) -> None:
    expected = succeeded(console("translate", "-m", trained, "plain", "-q")).out
    assert expected.count("\n") == len(LINES)
    arguments, _, input_file = line.partition("< ")
    stdin = Path(input_file).read_bytes() if input_file else b""
    done = succeeded(console("translate", "-m", trained, "-q", *arguments.split(), stdin=stdin))
    assert done.out == expected
    assert "warning" not in done.err


@pytest.mark.usefixtures("forms")
def test_translate_guesses_the_encoding_of_text_that_is_not_utf_8(
    console: Command, trained: Path
) -> None:
    refused(console("translate", "-m", trained, "a.cp1252"), "it looks like", "--encoding")


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        pytest.param("Le garçon aime l'été, déjà.\n" * 9, "cp1252", id="cp1252"),
        pytest.param("The dog.\n", "utf-16", id="utf-16"),
    ],
)
def test_the_remedy_for_standard_input_is_an_option_and_no_file(
    console: Command, trained: Path, text: str, encoding: str
) -> None:
    done = refused(
        console("translate", "-m", trained, stdin=text.encode(encoding)), f"--encoding {encoding}"
    )
    assert "--fix" not in done.err


@pytest.mark.parametrize("by", ["name", "standard input"])
@pytest.mark.parametrize(
    ("name", "text", "title"),
    [
        pytest.param("page.html", HTML, "an HTML page", id="html"),
        pytest.param("talk.srt", SUBTITLES, "subtitles (SRT)", id="srt"),
    ],
)
def test_translate_warns_once_of_what_is_no_plain_text(
    console: Command, trained: Path, name: str, text: str, title: str, by: str
) -> None:
    Path(name).write_text(text, encoding="utf-8")
    if by == "name":
        done = console("translate", "-m", trained, name)
    else:
        done = console("translate", "-m", trained, "-q", stdin=text)
    assert succeeded(done).err.count(" looks like ") == 1
    assert f"looks like {title}" in " ".join(done.err.split())


def test_sources_with_prefixes_are_not_taken_for_a_table(console: Command, trained: Path) -> None:
    done = succeeded(
        console("translate", "-m", trained, "--prefix", stdin="ba\tBA\nce\tCE\nba\tBA\nce\tCE\n")
    )
    assert " looks like " not in done.err


def test_translate_refuses_a_pdf_file(console: Command, trained: Path) -> None:
    Path("report.pdf").write_bytes(b"%PDF-1.7\n")
    refused(
        console("translate", "-m", trained, "report.pdf"),
        "report.pdf: this is a PDF file, not text. Extract",
    )


def test_scores_read_columns(console: Command) -> None:
    write_lines("hyp", ["the dog sleeps now", "a cat sits here"])
    write_lines("ref.csv", ["n,de", "1,the dog sleeps now", "2,a cat sits there"])
    write_lines("ref", ["the dog sleeps now", "a cat sits there"])
    plain = json.loads(succeeded(console("score", "hyp", "--ref", "ref", "--json")).out)
    column = json.loads(succeeded(console("score", "hyp", "--ref", "ref.csv#de", "--json")).out)
    assert column["systems"][0]["scores"] == plain["systems"][0]["scores"]


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        pytest.param("pairs.tsv", TABLE, ["pairs.tsv#1", "pairs.tsv#2"], id="a table"),
        pytest.param("a.tmx", TMX, ["a.tmx#en", "a.tmx#de"], id="a translation memory"),
    ],
)
def test_check_says_how_to_name_the_columns_of_a_file(
    console: Command, name: str, text: str, columns: list[str]
) -> None:
    Path(name).write_text(text, encoding="utf-8")
    done = succeeded(console("check", name))
    assert " and ".join(columns) in " ".join(done.out.split())
    assert "No problems found" not in done.out
    named = succeeded(console("check", *columns))
    assert "does not look like" not in named.out


def test_train_says_how_to_name_the_columns_of_a_table(console: Command) -> None:
    Path("pairs.tsv").write_text(TABLE, encoding="utf-8")
    refused(
        console("train", "--source", "pairs.tsv"),
        "a table with 2 columns separated by tabs",
        "pairs.tsv#2",
    )


def test_fix_writes_columns_as_texts(console: Command, folder: Path) -> None:
    Path("in").mkdir()
    rows = [
        f"{number}\tThe dog number {number} sleeps.\tLe chien {number} dort, très bien."
        for number in range(30)
    ]
    table = as_text(rows).encode("cp1252")
    Path("in/pairs.tsv").write_bytes(table)
    succeeded(
        console("check", folder / "in/pairs.tsv#2", folder / "in/pairs.tsv#3", "--fix", "clean")
    )
    assert lines_in(Path("clean/pairs.3")) == [row.split("\t")[2] for row in rows]
    assert contents(Path("clean")).keys() == {"dropped.jsonl", "pairs.2", "pairs.3"}
    assert contents(Path("in")) == {"pairs.tsv": table}


def test_fix_unpacks_a_text(console: Command, folder: Path) -> None:
    Path("in").mkdir()
    packed = bz2.compress(b"The dog sleeps.\nThe cat sits.\n")
    Path("in/a.bz2").write_bytes(packed)
    succeeded(console("check", folder / "in/a.bz2", "--fix", "plain"))
    assert lines_in(Path("plain/a")) == ["The dog sleeps.", "The cat sits."]
    assert contents(Path("in")) == {"a.bz2": packed}


def test_fix_repairs_nested_fields(console: Command) -> None:
    record = {"translation": {"en": "The dog\u0007 sleeps.", "de": "Der Hund schläft."}, "id": 1}
    Path("a.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    succeeded(
        console("check", "a.jsonl#translation.en", "a.jsonl#translation.de", "--fix", "clean")
    )
    mended = json.loads(Path("clean/a.jsonl").read_text(encoding="utf-8"))
    assert mended == {"translation": {"en": "The dog sleeps.", "de": "Der Hund schläft."}, "id": 1}


def test_a_recipe_trains_on_columns_in_another_encoding(
    console: Command, small_corpus: Path
) -> None:
    rows = zip(
        lines_in(small_corpus / "train.src"), lines_in(small_corpus / "train.tgt"), strict=True
    )
    table = as_text(["source,target", *(f'"{src}","{tgt}"' for src, tgt in rows)])
    Path("train.csv").write_bytes(table.encode("utf-16"))
    recipe = (small_corpus / "tiny.yaml").read_text(encoding="utf-8")
    Path("tiny.yaml").write_text(recipe, encoding="utf-8")
    columns = "data.train={src: train.csv#source, tgt: train.csv#target, encoding: utf-16}"
    folder = ("--set", f"data.folder={small_corpus}")
    succeeded(console("preprocess", "tiny.yaml", *folder, "--run", "plain"))
    succeeded(console("preprocess", "tiny.yaml", *folder, "--set", columns, "--run", "table"))
    reports = [
        json.loads(Path(run, "data-report.json").read_text(encoding="utf-8"))
        for run in ("plain", "table")
    ]
    assert reports[0]["splits"] == reports[1]["splits"]
