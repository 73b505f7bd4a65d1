"""JSON where plain text is read, and JSON that is broken: refused with its place and the remedy, wherever it is."""

import json
from functools import partial
from pathlib import Path

import pytest
from commands import RECIPE, Command, as_text, refused, sentence_pairs, succeeded, write_lines

from nmtkit.core.errors import CheckpointError, DataError
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.json_records import LOOKED_AT, refuse_json_lines
from nmtkit.corpus.reading import read_pairs
from nmtkit.data.shards import read_manifest
from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.metrics_log import MetricsLog

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
        ("summarize --lead 2", "standard input", "--article-field"),
        ("plot-attention -m tiny", "standard input", "jq"),
        ("score - --ref test.tgt", "standard input", "jq"),
        ("score test.tgt --ref json.txt", "json.txt", "jq"),
        ("score-summaries test.tgt --ref json.txt", "json.txt", "--summary-field"),
        ("score-summaries test.tgt --ref test.tgt --source json.txt", "json.txt", "--article-field"),
        ("rescore -m tiny --source json.txt --target test.tgt", "json.txt", "jq"),
        ("rescore -m tiny --source test.src --target json2.txt", "json2.txt", "jq"),
        ("align -m tiny --source test.src --target json.txt", "json.txt", "jq"),
        ("check json.txt", "json.txt", ".jsonl"),
        ("check test.src json2.txt", "json2.txt", "--tgt-field"),
        ("check tiny.yaml --no-tokens", "json.txt", "src_field"),
        ("preprocess tiny.yaml --run run", "json.txt", "src_field"),
        ("train --source json.txt --target train.tgt --run run", "json.txt", "jq"),
    ],
)
def test_json_lines_are_no_text(in_folder: Command, command: str, place: str, remedy: str) -> None:
    done = in_folder(*command.split(), stdin=JSONL)
    refused(done, f"{place}: each line is a JSON object (with article, summary)", remedy)


def test_text_may_have_braces(in_folder: Command) -> None:
    for text in ("{", "{}", "{ba ce}\n{di}", "[1, 2]", '"ba"\n5\nnull', '{"ba": 1} ce', "\n  "):
        refuse_json_lines(text.split("\n"), "here", "")
    for lines in (['{"ba": 1}', "ba ce"], ["ba", *['{"ba": 1}'] * 5]):
        refuse_json_lines(lines, "here", "")
        done = succeeded(in_folder("translate", "-m", "tiny", stdin=as_text(lines)))
        assert done.out.count("\n") == len(lines)


def test_a_long_text_is_told_by_its_beginning(tmp_path: Path) -> None:
    """And read whole: the lines that were looked at are not lost."""
    write_lines(tmp_path / "a", [f"line {number}" for number in range(3 * LOOKED_AT)])
    files = SplitFiles(src=[str(tmp_path / "a")], tgt=[str(tmp_path / "a")])
    assert [pair.line for pair in read_pairs(files)] == list(range(1, 3 * LOOKED_AT + 1))
    assert all(pair.src == pair.tgt == f"line {pair.line - 1}" for pair in read_pairs(files))
    (tmp_path / "a").write_text('{"a": 1}\n' * LOOKED_AT + "text\n", encoding="utf-8")
    with pytest.raises(DataError, match="JSON"):
        next(iter(read_pairs(SplitFiles(src=[str(tmp_path / "a")]))))


# ----------------------------------------------------------------------------------------------------- broken

GOOD = '{"article": "Ba ce.", "summary": "ba", "unseen": ["ba"]}\n'
BROKEN = {
    "deep": '{"article": "Ba.", "summary": "ba", "x": ' + "[" * 3000 + "]" * 3000 + "}",
    "half a character": r'{"article": "ba \ud800 ce", "summary": "ba \ud800"}',
    "endless number": '{"article": "Ba.", "summary": "ba", "x": ' + "9" * 5000 + "}",
}


@pytest.fixture(params=BROKEN)
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A line that is broken; `odd.jsonl` has it as its second."""
    line = BROKEN[request.param] + "\n"
    (tmp_path / "odd.jsonl").write_text(GOOD + line, encoding="utf-8")
    (tmp_path / "two.txt").write_text("ba\nce\n", encoding="utf-8")
    return line


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("summarize --lead 1 --article-field article", "standard input, line 2: "),
        ("score-summaries odd.jsonl --ref two.txt", "odd.jsonl, line 2: "),
        ("score-summaries two.txt --ref two.txt --terms odd.jsonl", "odd.jsonl, line 2: "),
    ],
)
def test_commands_refuse_it_by_its_place(console: Command, broken: str, command: str, place: str) -> None:
    refused(console(*command.split(), stdin=GOOD + broken), place, after_results=True)


def test_a_corpus_refuses_it_and_the_check_finds_it(console: Command, broken: str) -> None:
    assert broken
    files = SplitFiles(jsonl="odd.jsonl", src_field="article", tgt_field="summary")
    with pytest.raises(DataError, match=r"odd.jsonl, line 2: "):
        list(read_pairs(files))
    done = console("check", "odd.jsonl", "--src-field", "article", "--tgt-field", "summary")
    assert done.code == 1
    assert "odd.jsonl:2" in done.out


def test_files_of_a_run_are_called_damaged(broken: str, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(broken, encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(broken, encoding="utf-8")
    with pytest.raises(DataError, match=r"train.json: damaged"):
        read_manifest(tmp_path, "train")
    with pytest.raises(CheckpointError, match=r"tokenizer.json: damaged"):
        TokenizerPair.load(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"update": 1}\n' + broken, encoding="utf-8")
    MetricsLog(RunFolder(tmp_path)).truncate_after(after=5)
    assert (tmp_path / "metrics.jsonl").read_text(encoding="utf-8") == '{"update": 1}\n'


def test_rescoring_refuses_it(console: Command, trained: Path, broken: str) -> None:
    Path("given.jsonl").write_text(broken * 2, encoding="utf-8")
    done = console("rescore", "-m", trained, "--source", "two.txt", "--target", "given.jsonl")
    refused(done, "given.jsonl, line 1: ", "plain text")
