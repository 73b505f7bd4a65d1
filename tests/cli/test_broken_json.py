"""JSON that is nested without end, or that spells what is no text: one message with file and line, wherever it is."""

import json
from pathlib import Path

import pytest
from commands import Command, refused

from nmtkit.core.errors import CheckpointError, DataError
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.reading import read_pairs
from nmtkit.data.shards import read_manifest
from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.metrics_log import MetricsLog

GOOD = '{"article": "Ba ce.", "summary": "ba"}\n'
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
        ("score-summaries two.txt --ref two.txt --terms odd.jsonl --terms-field summary", "odd.jsonl, line 2: "),
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


@pytest.mark.parametrize("change", [{"score": 10**400}, {"score": None}, {"tokens": 5}, {"tokens": None}])
def test_values_that_are_none(nmtkit: Command, trained: Path, change: dict[str, object], tmp_path: Path) -> None:
    best = {"text": "BA", "score": -1, "log_prob": -1, "tokens": ["▁BA"], "finished": True, **change}
    (tmp_path / "given.jsonl").write_text(json.dumps({"best": best}), encoding="utf-8")
    (tmp_path / "one.txt").write_text("ba\n", encoding="utf-8")
    refused(
        nmtkit("rescore", "-m", trained, "--source", "one.txt", "--target", "given.jsonl", cwd=tmp_path),
        "given.jsonl, line 1: not what",
    )


def test_rescoring_refuses_it(nmtkit: Command, trained: Path, broken: str, tmp_path: Path) -> None:
    (tmp_path / "given.jsonl").write_text(broken * 2, encoding="utf-8")
    refused(
        nmtkit("rescore", "-m", trained, "--source", "two.txt", "--target", "given.jsonl", cwd=tmp_path),
        "given.jsonl, line 1: ",
        "plain text",
    )


@pytest.mark.parametrize("tokens", [["</s>", "<pad>", "<s>"], ["▁BA", "</s>"], ["▁nowhere"]])
def test_tokens_that_no_translation_has(nmtkit: Command, trained: Path, tokens: list[str], tmp_path: Path) -> None:
    best = {"text": "BA", "score": -1, "log_prob": -1, "tokens": tokens, "finished": True}
    (tmp_path / "given.jsonl").write_text(json.dumps({"best": best}), encoding="utf-8")
    (tmp_path / "one.txt").write_text("ba\n", encoding="utf-8")
    done = refused(
        nmtkit("rescore", "-m", trained, "--source", "one.txt", "--target", "given.jsonl", cwd=tmp_path), "pair 1"
    )
    assert repr(tokens[-1]) in done.err or repr(tokens[0]) in done.err
