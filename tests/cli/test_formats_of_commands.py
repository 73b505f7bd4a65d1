"""Commands that read columns of tables, other encodings and compressed text, and warn of what is no plain text."""

import bz2
import json
from pathlib import Path

import pytest
from commands import Command, refused, succeeded


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_translate_reads_columns_and_encodings(console: Command, trained: Path) -> None:
    lines = ["ba ce", "dé", "fo ba dé"]
    Path("plain").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    expected = succeeded(console("translate", "-m", trained, "plain", "-q")).out
    assert expected.count("\n") == 3
    Path("a.tsv").write_text("".join(f"x\t{line}\n" for line in lines), encoding="utf-8")
    Path("a.cp1252").write_bytes("".join(f"{line}\n" for line in lines).encode("cp1252"))
    Path("a.bz2").write_bytes(bz2.compress(Path("plain").read_bytes()))
    for words in (
        ["a.tsv#2"],
        ["a.cp1252", "--encoding", "cp1252"],
        ["a.bz2"],
        ["a.bz2", "--encoding", "a.tsv=cp1252"],
    ):
        done = succeeded(console("translate", "-m", trained, *words, "-q"))
        assert done.out == expected
        assert "warning" not in done.err
    refused(console("translate", "-m", trained, "a.cp1252"), "it looks like", "--encoding")
    stdin = Path("a.cp1252").read_bytes()
    assert succeeded(console("translate", "-m", trained, "-q", "--encoding", "cp1252", stdin=stdin)).out == expected


def test_translate_warns_once_of_what_is_no_plain_text(console: Command, trained: Path) -> None:
    Path("page.html").write_text("<!DOCTYPE html>\n<html><body><p>ba</p></body></html>\n", encoding="utf-8")
    Path("talk.srt").write_text("1\n00:00:01,000 --> 00:00:03,500\nba ce\n", encoding="utf-8")
    for name, title in (("page.html", "an HTML page"), ("talk.srt", "subtitles (SRT)")):
        for done in (
            succeeded(console("translate", "-m", trained, name)),
            succeeded(console("translate", "-m", trained, "-q", stdin=Path(name).read_bytes())),
        ):
            assert done.err.count("this looks like") == 1
            assert f"this looks like {title}" in " ".join(done.err.split())
    prefixed = succeeded(console("translate", "-m", trained, "--prefix", stdin="ba\tBA\nce\tCE\nba\tBA\nce\tCE\n"))
    assert "this looks like" not in prefixed.err
    Path("report.pdf").write_bytes(b"%PDF-1.7\n")
    refused(console("translate", "-m", trained, "report.pdf"), "report.pdf: this is a PDF file, not text. Extract")


def test_scores_read_columns(console: Command) -> None:
    Path("hyp").write_text("the dog sleeps now\na cat sits here\n", encoding="utf-8")
    Path("ref.csv").write_text("n,de\n1,the dog sleeps now\n2,a cat sits there\n", encoding="utf-8")
    Path("ref").write_text("the dog sleeps now\na cat sits there\n", encoding="utf-8")
    plain = json.loads(succeeded(console("score", "hyp", "--ref", "ref", "--json")).out)
    column = json.loads(succeeded(console("score", "hyp", "--ref", "ref.csv#de", "--json")).out)
    assert column["systems"][0]["scores"] == plain["systems"][0]["scores"]


def test_check_says_what_a_file_is_and_how_to_name_its_columns(console: Command) -> None:
    Path("pairs.tsv").write_text("one\teins\ntwo\tzwei\n", encoding="utf-8")
    Path("a.tmx").write_text(
        '<?xml version="1.0"?>\n<tmx version="1.4"><body><tu><tuv xml:lang="en"><seg>dog</seg></tuv>'
        '<tuv xml:lang="de"><seg>Hund</seg></tuv></tu></body></tmx>\n',
        encoding="utf-8",
    )
    for name, columns in (("pairs.tsv", "pairs.tsv#1 and pairs.tsv#2"), ("a.tmx", "a.tmx#en and a.tmx#de")):
        done = succeeded(console("check", name))
        assert columns in " ".join(done.out.split())
        assert "Nothing wrong was found" not in done.out
        named = succeeded(console("check", *columns.split(" and ")))
        assert "does not look like" not in named.out
    refused(console("train", "--source", "pairs.tsv"), "a table of 2 columns separated by tabs", "pairs.tsv#2")


def test_fix_writes_columns_as_texts(console: Command, folder: Path) -> None:
    Path("in").mkdir()
    rows = [f"{number}\tThe dog number {number} sleeps.\tLe chien {number} dort, très bien." for number in range(30)]
    Path("in/pairs.tsv").write_bytes("".join(f"{row}\n" for row in rows).encode("cp1252"))
    before = Path("in/pairs.tsv").read_bytes()
    succeeded(console("check", folder / "in/pairs.tsv#2", folder / "in/pairs.tsv#3", "--fix", "clean"))
    assert Path("clean/pairs.3").read_text(encoding="utf-8").splitlines() == [row.split("\t")[2] for row in rows]
    assert sorted(path.name for path in Path("clean").iterdir()) == ["dropped.jsonl", "pairs.2", "pairs.3"]
    assert Path("in/pairs.tsv").read_bytes() == before
    Path("in/a.bz2").write_bytes(bz2.compress(b"The dog sleeps.\nThe cat sits.\n"))
    succeeded(console("check", folder / "in/a.bz2", "--fix", "plain"))
    assert Path("plain/a").read_text(encoding="utf-8") == "The dog sleeps.\nThe cat sits.\n"
    assert sorted(path.name for path in Path("in").iterdir()) == ["a.bz2", "pairs.tsv"]


def test_fix_mends_nested_fields(console: Command) -> None:
    record = {"translation": {"en": "The dog\u0007 sleeps.", "de": "Der Hund schläft."}, "id": 1}
    Path("a.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    fields = ("--src-field", "translation.en", "--tgt-field", "translation.de")
    succeeded(console("check", "a.jsonl", *fields, "--fix", "clean"))
    mended = json.loads(Path("clean/a.jsonl").read_text(encoding="utf-8"))
    assert mended == {"translation": {"en": "The dog sleeps.", "de": "Der Hund schläft."}, "id": 1}


def test_a_recipe_trains_on_columns_in_another_encoding(console: Command, small_corpus: Path) -> None:
    def texts(name: str) -> list[str]:
        return (small_corpus / name).read_text(encoding="utf-8").splitlines()

    rows = zip(texts("train.src"), texts("train.tgt"), strict=True)
    table = "".join(f'"{src}","{tgt}"\n' for src, tgt in rows)
    Path("train.csv").write_bytes(f"source,target\n{table}".encode("utf-16"))
    recipe = (small_corpus / "tiny.yaml").read_text(encoding="utf-8")
    Path("tiny.yaml").write_text(recipe, encoding="utf-8")
    columns = "data.train={src: train.csv#source, tgt: train.csv#target, encoding: utf-16}"
    folder = ("--set", f"data.folder={small_corpus}")
    succeeded(console("preprocess", "tiny.yaml", *folder, "--run", "plain"))
    succeeded(console("preprocess", "tiny.yaml", *folder, "--set", columns, "--run", "table"))
    reports = [json.loads(Path(run, "data-report.json").read_text(encoding="utf-8")) for run in ("plain", "table")]
    assert reports[0]["splits"] == reports[1]["splits"]


def test_standard_input_in_another_encoding_is_not_told_to_convert_a_file(console: Command, trained: Path) -> None:
    for text, name in (("Le garçon aime l'été, déjà.\n" * 9, "cp1252"), ("The dog.\n", "utf-16")):
        done = console("translate", "-m", trained, stdin=text.encode(name))
        refused(done, f"--encoding {name}")
        assert "--fix" not in done.err
