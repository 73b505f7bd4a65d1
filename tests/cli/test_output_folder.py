"""`--output-dir`: one output for each input file; `--per-file`: one article in each."""

import gzip
from pathlib import Path

import pytest

from tests.cli.untrained_runs import CAPTIONER, PARSER, SUMMARIZATION, TRANSLATION, make_run
from tests.support.command_cases import refusals, words_of
from tests.support.commands import (
    ROOT,
    Command,
    contents,
    json_lines,
    lines_in,
    refused,
    succeeded,
    write_lines,
)

FIRST = ["The old man sees the dog.", "It sleeps."]
SECOND = ["The man sleeps in the old house.", "", "The dog sees the man.", "The dog sleeps."]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make_run(tmp_path, "text", TRANSLATION)
    write_lines(tmp_path / "docs/a.txt", FIRST)
    write_lines(tmp_path / "docs/empty.txt", [])
    write_lines(tmp_path / "docs/b.txt", SECOND)
    return tmp_path


def test_each_file_has_an_output_with_its_lines(place: Path, console: Command) -> None:
    names = ["docs/a.txt", "docs/empty.txt", "docs/b.txt"]
    done = succeeded(console("translate", *names, "--output-dir", "out/new"))
    assert done.out == ""
    assert done.err.count("model runs/text") == 1
    assert "wrote 3 files to out/new" in done.err
    expected = console("translate", "-q", *names).out.splitlines()
    assert lines_in(place / "out/new/a.txt") == expected[:2]
    assert lines_in(place / "out/new/empty.txt") == []
    assert lines_in(place / "out/new/b.txt") == expected[2:]
    assert expected[3] == ""
    assert sorted(path.name for path in (place / "out/new").iterdir()) == [
        "a.txt",
        "b.txt",
        "empty.txt",
    ]


def test_lines_are_numbered_within_their_files(place: Path, console: Command) -> None:
    files = ["docs/a.txt", "docs/b.txt"]
    succeeded(console("translate", *files, "--output-dir", "out", "--n-best", "2"))
    numbers = [line.split("\t")[0] for line in lines_in(place / "out/b.txt")]
    assert numbers == ["1", "1", "2", "3", "3", "4", "4"]
    succeeded(console("translate", *files, "--output-dir", "out", "--json"))
    records = json_lines((place / "out/b.txt").read_text(encoding="utf-8"))
    assert [record["line"] for record in records] == [1, 2, 3, 4]
    succeeded(console("translate", *files, "--output-dir", "out", "--format", "moses"))
    assert lines_in(place / "out/b.txt")[0].startswith("0 ||| ")


def test_warnings_name_file_and_line(place: Path, console: Command) -> None:
    write_lines(place / "docs/b.txt", ["The dog.", "The man sees 120 dogs."])
    done = succeeded(console("translate", "docs/a.txt", "docs/b.txt", "--output-dir", "out"))
    assert "1 of 4 translations lack a number" in done.err
    assert "docs/b.txt, line 2 (120)" in " ".join(done.err.split())


def test_errors_name_file_and_line(place: Path, console: Command) -> None:
    write_lines(place / "docs/b.txt", ["The dog.\tThe\tman"])
    done = console("translate", "--prefix", "docs/a.txt", "docs/b.txt", "--output-dir", "new")
    refused(done, "docs/b.txt, line 1: more than one tab")


def test_existing_outputs_are_replaced_and_named(place: Path, console: Command) -> None:
    write_lines(place / "out/b.txt", ["old"])
    done = succeeded(console("translate", "docs/a.txt", "docs/b.txt", "--output-dir", "out"))
    assert "1 of 2 outputs already exist and will be replaced: out/b.txt" in done.err
    assert lines_in(place / "out/b.txt") != ["old"]


def test_a_fault_leaves_only_complete_outputs(place: Path, console: Command) -> None:
    (place / "docs/bad.txt").write_bytes(b"The dog.\n\xff\xfe\xff\n")
    write_lines(place / "out/bad.txt", ["old"])
    done = console("translate", "docs/a.txt", "docs/bad.txt", "docs/b.txt", "--output-dir", "out")
    refused(done, "docs/bad.txt, line 2")
    assert len(lines_in(place / "out/a.txt")) == 2
    assert lines_in(place / "out/bad.txt") == ["old"]
    assert sorted(path.name for path in (place / "out").iterdir()) == ["a.txt", "bad.txt"]


def test_compressed_inputs_have_plain_outputs(place: Path, console: Command) -> None:
    (place / "docs/c.txt.gz").write_bytes(gzip.compress(b"The dog.\n"))
    succeeded(console("translate", "docs/c.txt.gz", "docs/a.txt", "--output-dir", "out"))
    assert len(lines_in(place / "out/c.txt")) == 1


REFUSED = {
    "translate": {
        "docs/a.txt other/a.txt --output-dir out": "docs/a.txt and other/a.txt would both be written to out/a.txt",
        "docs/a.txt docs/a.txt.gz --output-dir out": "would both be written",
        "docs/a.txt --output-dir docs": "--output-dir would overwrite a file",
        "docs/a.txt --output-dir docs/b.txt": "--output-dir requires a folder",
        "--output-dir out": "--output-dir writes one output for each",
        "docs/a.txt --output-dir out -o x": "use only one of them",
        "docs/a.txt -o docs": "use --output-dir docs",
        "docs": "docs: this is a folder; pass the files in it instead, for example docs/*.txt",
    },
    "summarize": {"--lead 2 --words 9": "remove all options that apply to a model"},
}


@pytest.mark.parametrize(("line", "message"), refusals(REFUSED))
def test_outputs_that_would_be_lost_are_refused(
    place: Path, console: Command, line: str, message: str
) -> None:
    write_lines(place / "other/a.txt", FIRST)
    (place / "docs/a.txt.gz").write_bytes(gzip.compress(b"The dog.\n"))
    before = contents(place)
    refused(console(*words_of(line), stdin="The dog.\n"), message)
    assert contents(place) == before


def test_tokenize_and_rerank_write_one_output_for_each_file(place: Path, console: Command) -> None:
    files = ["docs/a.txt", "docs/b.txt"]
    succeeded(console("tokenize", *files, "--output-dir", "out"))
    assert [len(lines_in(place / "out" / name)) for name in ("a.txt", "b.txt")] == [2, 4]
    make_run(place, "back", TRANSLATION)
    succeeded(
        console(
            "rerank",
            "-m",
            "runs/text",
            "--channel",
            "runs/back",
            *files,
            "--output-dir",
            "new",
            "--json",
        )
    )
    records = json_lines((place / "new/b.txt").read_text(encoding="utf-8"))
    assert [record["line"] for record in records] == [1, 2, 3, 4]


ARTICLE = ["A title", "", "The old man sees the dog. It sleeps.", "", "The dog sees the man."]


def test_per_file_summarizes_each_file_as_one_article(place: Path, console: Command) -> None:
    make_run(place, "news", SUMMARIZATION)
    write_lines(place / "news/a.txt", ARTICLE)
    write_lines(place / "news/b.txt", [SECOND[0]])
    files = ["news/a.txt", "news/b.txt"]
    joined = "A title The old man sees the dog. It sleeps. The dog sees the man."
    expected = [console("summarize", "-q", stdin=text + "\n").out for text in (joined, SECOND[0])]
    assert succeeded(console("summarize", "-q", "--per-file", *files)).out == "".join(expected)
    succeeded(console("summarize", "--per-file", *files, "--output-dir", "out"))
    assert [
        (place / "out" / name).read_text(encoding="utf-8") for name in ("a.txt", "b.txt")
    ] == expected
    assert console("summarize", "-q", "--per-file", stdin="\n".join(ARTICLE)).out == expected[0]
    lead = succeeded(console("summarize", "--lead", "1", "--per-file", *files))
    assert lead.out.splitlines() == ["A title The old man sees the dog.", SECOND[0]]


@pytest.mark.parametrize(
    ("line", "noticed"),
    [
        ("summarize news/a.txt", True),
        ("summarize --lead 2 news/a.txt", True),
        ("summarize --per-file news/a.txt", False),
        ("summarize docs/b.txt", False),
    ],
)
def test_lines_that_look_like_one_article_are_noticed(
    place: Path, console: Command, line: str, noticed: bool
) -> None:
    make_run(place, "news", SUMMARIZATION)
    write_lines(place / "news/a.txt", ARTICLE)
    done = succeeded(console(*line.split()))
    assert ("news/a.txt looks like one article" in done.err) == noticed
    assert ("--per-file" in done.err) == noticed


def test_a_summary_is_cut_after_a_number_of_words(place: Path, console: Command) -> None:
    make_run(place, "news", SUMMARIZATION)
    whole = succeeded(console("summarize", "-q", stdin=ARTICLE[2])).out.split()
    short = succeeded(console("summarize", "-q", "--words", "2", stdin=ARTICLE[2])).out.split()
    assert len(whole) > 2
    assert short == [*whole[:2], "…"]


def test_summaries_of_windows_have_n_best_lists(place: Path, console: Command) -> None:
    make_run(place, "news", SUMMARIZATION)
    windows = ["--window", "6", "--words", "2", "--n-best", "2", "--json"]
    (record,) = json_lines(succeeded(console("summarize", *windows, stdin=ARTICLE[2])).out)
    assert len(record["windows"]) == 2
    assert len(record["others"]) == 1
    assert record["score"] >= record["others"][0]["score"]


def test_parse_writes_trees_of_each_file(place: Path, console: Command) -> None:
    make_run(place, "parser", PARSER, [*FIRST, "(S (NP XX )NP XX )S"])
    succeeded(
        console("parse", "-m", "runs/parser", "docs/a.txt", "docs/b.txt", "--output-dir", "trees")
    )
    assert [len(lines_in(place / "trees" / name)) for name in ("a.txt", "b.txt")] == [2, 4]


def test_caption_writes_captions_of_each_file(place: Path, console: Command) -> None:
    make_run(place, "pictures", CAPTIONER, features=96)
    images = ROOT / "data" / "demo-scenes" / "valid.images.npz"
    (place / "one.npz").symlink_to(images)
    (place / "two.npz").symlink_to(images)
    succeeded(
        console("caption", "-m", "runs/pictures", "one.npz", "two.npz", "--output-dir", "captions")
    )
    counts = [len(lines_in(place / "captions" / name)) for name in ("one.txt", "two.txt")]
    assert counts[0] == counts[1] > 0
