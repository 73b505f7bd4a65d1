"""JSON lines where plain text is read: refused with the remedy, for a model would answer the braces as fluently."""

import json
from functools import partial
from pathlib import Path

import pytest
from commands import RECIPE, Command, refused, sentence_pairs, succeeded

from nmtkit.core.errors import DataError
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.json_records import LOOKED_AT, refuse_json_lines
from nmtkit.corpus.reading import read_pairs

PAIRS = sentence_pairs(80, 5)
JSONL = "".join(json.dumps({"article": src, "summary": tgt}) + "\n" for src, tgt in PAIRS)


@pytest.fixture
def console(tmp_path: Path, trained: Path, nmtkit: Command) -> Command:
    """In a folder with the same pairs as JSON lines and as text; what is refused may leave a thread that reads on."""
    (tmp_path / "tiny.yaml").write_text(RECIPE.replace("train.src", "json.txt"), encoding="utf-8")
    (tmp_path / "json.txt").write_text(JSONL, encoding="utf-8")
    (tmp_path / "json2.txt").write_text("\n" + JSONL.split("\n", 1)[1], encoding="utf-8")
    for name in ("train.tgt", "valid.src", "valid.tgt", "test.src", "test.tgt"):
        (tmp_path / name).write_text("".join(src + "\n" for src, _ in PAIRS), encoding="utf-8")
    (tmp_path / "tiny").symlink_to(trained)
    return partial(nmtkit, cwd=tmp_path)


@pytest.mark.parametrize(
    ("command", "place", "remedy"),
    [
        ("translate -m tiny", "standard input", "jq"),
        ("translate -m tiny --json --n-best 2", "standard input", "jq"),
        ("summarize --lead 2", "standard input", "--article-field"),
        ("plot-attention -m tiny", "standard input", "jq"),
        ("score - --ref test.tgt", "standard input", "jq"),
        ("score test.tgt --ref json.txt", "json.txt", "jq"),
        ("score test.tgt --ref test.tgt --by-length --source json.txt", "json.txt", "jq"),
        ("score-summaries test.tgt --ref json.txt", "json.txt", "--summary-field"),
        ("score-summaries test.tgt --ref test.tgt --source json.txt", "json.txt", "--article-field"),
        ("rescore -m tiny --source json.txt --target test.tgt", "json.txt", "jq"),
        ("rescore -m tiny --source test.src --target json2.txt", "json2.txt", "jq"),
        ("align -m tiny --source test.src --target json.txt", "json.txt", "jq"),
        ("check json.txt", "json.txt", ".jsonl"),
        ("check test.src json2.txt", "json2.txt", "--tgt-field"),
        ("check test.src test.tgt --valid json.txt test.src", "json.txt", ".jsonl"),
        ("check tiny.yaml --no-tokens", "json.txt", "src_field"),
        ("preprocess tiny.yaml --run run", "json.txt", "src_field"),
        ("train --source json.txt --target train.tgt --run run", "json.txt", "jq"),
    ],
)
def test_json_lines_are_no_text(console: Command, command: str, place: str, remedy: str) -> None:
    done = refused(console(*command.split(), stdin=JSONL))
    assert done.out == ""
    assert done.err.count("nmtkit: error: ") == 1
    assert f"{place}: each line is a JSON object (with article, summary)" in done.err
    assert remedy in done.err


@pytest.mark.parametrize(
    "lines",
    [
        ["{"],
        ["{}"],
        ["{ba ce}", "{di}"],
        ["[1, 2]"],
        ['"ba"', "5", "null"],
        ['{"ba": 1} ce'],
        ['{"ba": 1}', "ba ce"],
        ["", "  "],
        ["ba", *['{"ba": 1}'] * 5],
    ],
)
def test_text_may_have_braces(console: Command, lines: list[str]) -> None:
    refuse_json_lines(lines, "here", "")
    done = succeeded(console("translate", "-m", "tiny", stdin="".join(line + "\n" for line in lines)))
    assert done.out.count("\n") == len(lines)


def test_a_long_text_is_told_by_its_beginning(tmp_path: Path) -> None:
    """And read whole: the lines that were looked at are not lost."""
    (tmp_path / "a").write_text("".join(f"line {number}\n" for number in range(3 * LOOKED_AT)), encoding="utf-8")
    files = SplitFiles(src=[str(tmp_path / "a")], tgt=[str(tmp_path / "a")])
    assert [pair.line for pair in read_pairs(files)] == list(range(1, 3 * LOOKED_AT + 1))
    assert all(pair.src == pair.tgt == f"line {pair.line - 1}" for pair in read_pairs(files))
    (tmp_path / "a").write_text('{"a": 1}\n' * LOOKED_AT + "text\n", encoding="utf-8")
    with pytest.raises(DataError, match="JSON"):
        next(iter(read_pairs(SplitFiles(src=[str(tmp_path / "a")]))))
