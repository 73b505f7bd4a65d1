"""JSON where plain text is read, and JSON that is broken: refused with its place and the remedy, wherever it is."""

import json
from functools import partial
from pathlib import Path

import pytest

from nmtkit.core.errors import DataError
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.files.json_records import DETECTION_LINES, refuse_json_lines
from nmtkit.data.text.reading import read_pairs
from tests.support.commands import (
    RECIPE,
    Command,
    as_text,
    refused,
    sentence_pairs,
    succeeded,
    write_lines,
)

PAIRS = sentence_pairs(80, 5)
JSONL = as_text(json.dumps({"article": src, "summary": tgt}) for src, tgt in PAIRS)


@pytest.fixture
def in_folder(tmp_path: Path, trained: Path, nmtkit: Command) -> Command:
    """In a folder with the same pairs as JSON lines and as text; what is refused may leave a thread that reads on."""
    (tmp_path / "tiny.yaml").write_text(RECIPE.replace("train.src", "json.txt"), encoding="utf-8")
    (tmp_path / "json.txt").write_text(JSONL, encoding="utf-8")
    (tmp_path / "json2.txt").write_text("\n" + JSONL.split("\n", 1)[1], encoding="utf-8")
    for name in ("train.tgt", "valid.src", "valid.tgt", "test.src", "test.tgt"):
        write_lines(tmp_path / name, [src for src, _ in PAIRS])
    (tmp_path / "tiny").symlink_to(trained)
    return partial(nmtkit, cwd=tmp_path)


@pytest.mark.parametrize(
    ("command", "place", "remedy"),
    [
        ("translate -m tiny", "standard input", "jq"),
        ("summarize --lead 2", "standard input", "FILE.jsonl#FIELD"),
        ("plot-attention -m tiny", "standard input", "jq"),
        ("score - --ref test.tgt", "standard input", "jq"),
        ("score test.tgt --ref json.txt", "json.txt", "jq"),
        ("score-summaries test.tgt --ref json.txt", "json.txt", "FILE.jsonl#FIELD"),
        (
            "score-summaries test.tgt --ref test.tgt --source json.txt",
            "json.txt",
            "FILE.jsonl#FIELD",
        ),
        ("rescore -m tiny --source json.txt --target test.tgt", "json.txt", "jq"),
        ("rescore -m tiny --source test.src --target json2.txt", "json2.txt", "jq"),
        ("align -m tiny --source test.src --target json.txt", "json.txt", "jq"),
        ("bench decode --source test.src --ref json.txt", "json.txt", "jq"),
        ("perplexity -m tiny test.src --frequencies json.txt", "json.txt", "jq"),
        ("check json.txt", "json.txt", ".jsonl"),
        ("check test.src json2.txt", "json2.txt", "FILE.jsonl#FIELD"),
        ("check tiny.yaml --no-tokens", "json.txt", "src_field"),
        ("preprocess tiny.yaml --run run", "json.txt", "src_field"),
        ("train --source json.txt --target train.tgt --run run", "json.txt", "jq"),
    ],
)
def test_json_lines_are_refused_where_text_is_read(
    in_folder: Command, command: str, place: str, remedy: str
) -> None:
    done = in_folder(*command.split(), stdin=JSONL)
    refused(done, f"{place}: each line is a JSON object (with the keys article, summary)", remedy)


def test_text_may_have_braces(in_folder: Command) -> None:
    for text in ("{", "{}", "{ba ce}\n{di}", "[1, 2]", '"ba"\n5\nnull', '{"ba": 1} ce', "\n  "):
        refuse_json_lines(text.split("\n"), "here", "")
    for lines in (['{"ba": 1}', "ba ce"], ["ba", *['{"ba": 1}'] * 5]):
        refuse_json_lines(lines, "here", "")
        done = succeeded(in_folder("translate", "-m", "tiny", stdin=as_text(lines)))
        assert done.out.count("\n") == len(lines)


def test_json_is_detected_in_the_first_lines_of_a_text(tmp_path: Path) -> None:
    """And read whole: the lines that were looked at are not lost."""
    write_lines(tmp_path / "a", [f"line {number}" for number in range(3 * DETECTION_LINES)])
    files = SplitFiles(src=[str(tmp_path / "a")], tgt=[str(tmp_path / "a")])
    assert [pair.line for pair in read_pairs(files)] == list(range(1, 3 * DETECTION_LINES + 1))
    assert all(pair.src == pair.tgt == f"line {pair.line - 1}" for pair in read_pairs(files))
    (tmp_path / "a").write_text('{"a": 1}\n' * DETECTION_LINES + "text\n", encoding="utf-8")
    with pytest.raises(DataError, match="JSON"):
        next(iter(read_pairs(SplitFiles(src=[str(tmp_path / "a")]))))


# ----------------------------------------------------------------------------------------------------- broken

BROKEN = {
    "deep": '{"article": "Ba.", "x": ' + "[" * 3000 + "]" * 3000 + "}",
    "half a character": r'{"article": "ba \ud800 ce"}',
    "endless number": '{"article": "Ba.", "x": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN)
def test_summarize_refuses_broken_json_by_its_line(
    console: Command, tmp_path: Path, line: str
) -> None:
    file = tmp_path / "articles.jsonl"
    file.write_text(f'{{"article": "Ba"}}\n{line}\n', encoding="utf-8")
    refused(
        console("summarize", "--lead", 1, f"{file}#article"),
        f"{file}, line 2: ",
        after_results=True,
    )


@pytest.mark.parametrize(
    "command",
    [
        "score-summaries odd.jsonl --ref two.txt",
        "score-summaries two.txt --ref two.txt --terms odd.jsonl",
        "rescore -m tiny --source two.txt --target odd.jsonl",
    ],
)
def test_broken_json_in_files_is_refused_by_its_line(
    in_folder: Command, tmp_path: Path, command: str
) -> None:
    best = {"text": "BA", "score": -1, "log_prob": -1, "tokens": ["\u2581BA"], "finished": True}
    good = json.dumps({"article": "Ba", "summary": "ba", "unseen": ["ba"], "best": best})
    write_lines(tmp_path / "odd.jsonl", [good, BROKEN["deep"]])
    write_lines(tmp_path / "two.txt", ["ba", "ce"])
    refused(in_folder(*command.split()), "odd.jsonl, line 2: ")
