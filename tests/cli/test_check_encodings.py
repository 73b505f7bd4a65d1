"""`nmtkit check` and files in other encodings than UTF-8."""

import json
from pathlib import Path

import pytest

from tests.support.commands import Command, refused

FRENCH = [
    "Où est passé le garçon ?",
    "Nous étions très fatigués.",
    "Ça va à l'école.",
    "plain ascii text",
] * 20
ENGLISH = [f"Where did the boy number {number} go?" for number in range(len(FRENCH))]
RUSSIAN = [
    f"Медсестра проверила запасы {number}, завтра нам нужно перейти улицу."
    for number in range(len(FRENCH))
]
JAPANESE = [f"看護師は備品を{number}個確認しました。" for number in range(len(FRENCH))]


def write(name: str, lines: list[str], encoding: str = "utf-8") -> None:
    Path(name).write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("a.en", ENGLISH)


@pytest.mark.parametrize(
    ("encoding", "lines"),
    [
        ("cp1252", FRENCH),
        ("utf-16", FRENCH),
        ("utf-16-le", FRENCH),
        ("utf-16-be", FRENCH),
        ("koi8-r", RUSSIAN),
        ("shift_jis", JAPANESE),
    ],
)
def test_fix_converts_a_file_that_it_recognizes(
    console: Command, encoding: str, lines: list[str]
) -> None:
    write("a.tgt", lines, encoding)
    done = console("check", "a.en", "a.tgt", "--fix", "clean")
    assert done.code == 0, done
    assert "a.tgt, from" in done.out
    kept = Path("clean/a.tgt").read_text(encoding="utf-8").splitlines()
    assert kept == lines
    assert Path("clean/a.en").read_text(encoding="utf-8").splitlines() == ENGLISH
    log = [
        json.loads(line)
        for line in Path("clean/dropped.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [(entry["file"], entry["done"]) for entry in log] == [("a.tgt", "converted")]


def test_lines_that_cannot_be_converted_are_left_out_and_counted(console: Command) -> None:
    write("a.tgt", FRENCH, "cp1252")
    data = Path("a.tgt").read_bytes().replace(b"plain ascii text\n", b"bad \x81\n", 1)
    Path("a.tgt").write_bytes(data)
    done = console("check", "a.en", "a.tgt", "--fix", "clean")
    assert done.code == 0, done
    assert Path("clean/a.tgt").read_text(encoding="utf-8").splitlines() == FRENCH[:3] + FRENCH[4:]
    assert Path("clean/a.en").read_text(encoding="utf-8").splitlines() == ENGLISH[:3] + ENGLISH[4:]
    assert any(
        line.split()[:4] == ["data", "left", "out", "1"] for line in done.out.splitlines()
    ), done


def test_candidates_are_named_where_the_encoding_is_not_certain(console: Command) -> None:
    write("a.tgt", [*ENGLISH[:-1], "ő"], "iso8859-2")
    done = console("check", "a.en", "a.tgt", "--fix", "clean")
    assert "a.tgt: not UTF-8, " in done.out
    assert "specify its encoding: --encoding" in done.out
    named = console("check", "a.en", "a.tgt", "--encoding", "a.tgt=iso8859-2", "--fix", "named")
    assert named.code == 0, named
    assert Path("named/a.tgt").read_text(encoding="utf-8").splitlines()[-1] == "ő"


def test_check_names_the_encoding(console: Command) -> None:
    write("a.tgt", FRENCH, "cp1252")
    done = console("check", "a.en", "a.tgt", "--json", "report.json")
    assert done.code == 1
    assert "a.tgt: Windows-1252 (the decoded text has French letters and words" in done.out
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert report["encodings"]["a.tgt"]["names"] == ["cp1252"]
    assert console("check", "a.en", "a.tgt", "--encoding", "a.tgt=cp1252").code == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("check demo --encoding cp1252", "--set data.train.encoding=NAME"),
        ("check a.en --encoding latin-seven", "unknown encoding 'latin-seven'"),
    ],
)
def test_a_wrong_encoding_option_is_refused(console: Command, line: str, message: str) -> None:
    refused(console(*line.split()), message)
