import gzip
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.text.blocks import Block, Example
from nmtkit.data.text.checking import DataReport, PairChecker
from nmtkit.data.text.config import DataConfig, SplitFiles, joined_corpora
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.files.text_file import TextFile
from nmtkit.data.text.reading import read_pairs


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def files(**settings: object) -> SplitFiles:
    return SplitFiles.model_validate(settings)


def settings(**more: object) -> DataConfig:
    return DataConfig.model_validate({"train": {"src": "a", "tgt": "b"}, **more})


# Reading lines.


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "\ufeffone\r\ntw\u2028o\x85\n\n\rthree\x0c\nlast")
    assert list(read_lines(path)) == ["one", "tw\u2028o\x85", "", "\rthree\x0c", "last"]


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    assert list(read_lines(write(tmp_path / "t.txt", gzip.compress("ä\nb\n".encode())))) == [
        "ä",
        "b",
    ]
    assert list(read_lines(write(tmp_path / "t.gz", "plain\n"))) == ["plain"]
    assert list(read_lines(write(tmp_path / "empty", b""))) == []


def test_a_file_with_only_a_byte_order_mark_has_no_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "mark", b"\xef\xbb\xbf")
    assert list(read_lines(path)) == []
    assert TextFile(str(path)).fill() == 0
    assert list(read_lines(write(tmp_path / "line", b"\xef\xbb\xbf\n"))) == [""]


def test_a_zip_archive_is_to_be_unpacked(tmp_path: Path) -> None:
    path = write(tmp_path / "t", b"PK\x03\x04\x14\0\0\0\x08\0\x9c\x5b")
    for read in (lambda: read_lines(path), lambda: read_pairs(SplitFiles(src=[path], tgt=[path]))):
        with pytest.raises(DataError, match=r"t: this is a ZIP archive, not text. Unpack it first"):
            list(read())


WHOLE = gzip.compress(b"line\n" * 9999)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"good\nb\xc3d\n", r"t, line 2: not valid UTF-8 \(byte 2 of the line\)"),
        (WHOLE[:-20], "broken gzip"),
        (WHOLE[:30] + b"\xff\xff\xff\xff" + WHOLE[34:], "broken gzip"),
        (None, "t: cannot be read: No such file"),
    ],
    ids=["not-utf-8", "cut", "changed", "missing"],
)
def test_bad_input_is_named(tmp_path: Path, content: bytes | None, fault: str) -> None:
    if content is not None:
        write(tmp_path / "t", content)
    with pytest.raises(DataError, match=fault):
        list(read_lines(tmp_path / "t"))
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        list(read_lines(tmp_path))


# Reading pairs.


def test_a_test_set_may_go_without_targets(tmp_path: Path) -> None:
    assert list(read_pairs(files(src=write(tmp_path / "a", "one\n\n")))) == [
        Example("one", None, 1),
        Example("", None, 2),
    ]


@pytest.mark.parametrize(("src", "tgt"), [(3, 5), (5, 3), (1, 0), (0, 2)])
def test_different_line_counts_name_both(tmp_path: Path, src: int, tgt: int) -> None:
    pair = files(src=write(tmp_path / "s", "x\n" * src), tgt=write(tmp_path / "t", "y\n" * tgt))
    with pytest.raises(DataError, match=rf"/s has {src} lines, but .*/t has {tgt}"):
        list(read_pairs(pair))


def test_json_lines(tmp_path: Path) -> None:
    lines = [{"text": "a\nb", "sum": ["c d", "e"], "id": 1}, {"text": "", "sum": "ü"}]
    path = write(tmp_path / "j", gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    assert list(read_pairs(files(jsonl=path, src_field="text", tgt_field="sum"))) == [
        Example("a b", "c d e", 1),
        Example("", "ü", 2),
    ]


# Settings.


PAIR = {"src": "a", "tgt": "b"}


@pytest.mark.parametrize("without_encoding", [{}, {"encoding": ""}, {"encoding": None}])
def test_corpora_of_a_list_may_have_different_encodings(
    without_encoding: dict[str, object],
) -> None:
    corpora = [{**PAIR, "encoding": "cp1252"}, {"src": "c", "tgt": "d", **without_encoding}]
    joined = joined_corpora(corpora)
    assert (joined["src"], joined["tgt"]) == (["a", "c"], ["b", "d"])
    assert joined["encoding"] == {"a": "cp1252", "b": "cp1252"}


def test_an_empty_encoding_of_a_corpus_is_utf8() -> None:
    assert joined_corpora([PAIR, {**PAIR, "encoding": None}])["encoding"] == ""


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"train": {"src_field": "b"}}, "`train`: specify exactly one of"),
        (
            {"train": {"features": ["a", "b"], "tgt": "c"}},
            "tgt and features must have the same number of entries, but have 1 and 2",
        ),
        (
            {"train": {"labels": "a", "jsonl": "b"}},
            "labels, features, alignment, src_words and tgt_words cannot be combined with jsonl",
        ),
        ({"train": {"tgt": "a", "alignment": "b"}}, "links connect words in src to words in tgt"),
        (
            {"train": {"src": "a", "labels": "b", "alignment": "c"}},
            "links connect words in src to words in tgt",
        ),
        ({"train": {**PAIR, "jsonl": "c"}}, "`train`: specify exactly one of"),
        ({"train": {"stories": "a", "src": "b"}}, "`train`: specify exactly one of"),
        ({"train": PAIR, "test": {"src": []}}, "use `--set data.test=null`"),
        ({"train": {"jsonl": "c", "tgt": "b"}}, "cannot be combined with jsonl or stories"),
        ({"train": {"stories": "a", "tgt": "b"}}, "already contain both sides"),
        ({"train": {**PAIR, "story_lists": "c"}}, "set the folders with `stories`"),
        (
            {"train": {"src": ["a", "b"], "tgt": "c"}},
            "src and tgt must have the same number of entries, but have 2 and 1",
        ),
        ({"train": {"src": 3, "tgt": "c"}}, "train.src"),
        ({"train": {"source": "a", "tgt": "b"}}, "unknown key `train.source`"),
        (
            {"train": {"jsonl": "a", "alignment": "b"}},
            "specify every column, for example `src: FILE#KEY`",
        ),
        ({"train": {**PAIR, "alignment": ["c", "d"]}}, "but have 1 and 2"),
        ({"train": {**PAIR, "src_words": "c"}}, "set `alignment` as well"),
        ({"train": {**PAIR, "alignment_base": 1}}, "set `alignment` as well"),
        ({"train": {**PAIR, "alignment": "c", "alignment_base": 2}}, "alignment_base"),
        (
            {"train": PAIR, "valid": {**PAIR, "alignment": "c"}},
            "valid: `alignment` can be set only in train",
        ),
        (
            {"train": {"src": ["a", "b"], "tgt": ["c", "d"], "weights": [1]}},
            "src and weights must have the same number of entries, but have 2 and 1",
        ),
        ({"train": {"jsonl": ["a"], "weights": [1, 2]}}, "but have 1 and 2"),
        ({"train": {"stories": ["a"], "weights": [1, 2]}}, "but have 1 and 2"),
        (
            {"train": {"stories": ["a"], "story_lists": ["b"], "weights": [1]}},
            "`weights` applies to individual folders of stories",
        ),
        (
            {"train": {"jsonl": ["a", "b"], "weights": [1, 0]}},
            "train.weights.1`: Input should be greater than 0",
        ),
        (
            {"train": {"jsonl": "a"}, "valid": {"jsonl": "b", "weights": [1]}},
            "valid: weights and temperature determine how often",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(data: dict[str, object], fault: str) -> None:
    with pytest.raises(RecipeError) as error:
        parse(DataConfig, data, "recipe")
    assert fault in str(error.value)


def test_paths_begin_at_the_folder_only_where_the_file_is_there(tmp_path: Path) -> None:
    write(tmp_path / "a", "")
    config = settings(folder=str(tmp_path), test={"src": str(tmp_path / "a")})
    assert config.paths() == [str(tmp_path / "a"), "b", str(tmp_path / "a")]


# Checking.


def check(
    config: DataConfig, **splits: list[tuple[str, str]]
) -> tuple[DataReport, dict[str, list[int]]]:
    """Texts, then lengths in words; returns the report and the lines that stay."""
    checker = PairChecker(config, DataReport())
    blocks = {
        name: Block(name, "src", "tgt", 1, *([list(side) for side in zip(*pairs, strict=True)]))
        for name, pairs in splits.items()
    }
    stay = {}
    for name, block in blocks.items():
        if name != "train":
            checker.register(block)
    for name, block in blocks.items():
        verdict = checker.judge(block)
        checker.add_to_report(name, verdict)
        lengths = {
            column: np.array([len(text.split()) for text in side])[verdict.keep]
            for column, side in block.texts.items()
        }
        lines = block.lines[verdict.keep]
        stay[name] = lines[checker.check_lengths(name, lines, lengths)].tolist()
    return checker.report, stay


def found(report: DataReport, split: str) -> dict[str, tuple[int, int, str]]:
    return {
        kind: (f.count, f.first_line, f.action) for kind, f in report.splits[split].findings.items()
    }


TRAIN = [
    ("a b", "A B"),
    ("", "A"),
    ("a b", "A B"),
    ("a b c d e f", "A B C D E"),
    ("a b", "other"),
    ("c", "A B C D"),
    ("d", "  "),
    ("a b", "A B"),
]


def test_faulty_training_pairs_are_dropped_and_counted() -> None:
    report, stay = check(settings(max_length=5, max_ratio=3.0, drop_duplicates=True), train=TRAIN)
    assert stay["train"] == [1, 5]
    assert found(report, "train") == {
        "empty side": (2, 2, "dropped"),
        "duplicate": (2, 3, "dropped"),
        "over-long": (1, 4, "dropped"),
        "length ratio": (1, 6, "dropped"),
    }
    assert report.splits["train"].read == 8


def test_without_limits_only_empty_sides_are_dropped() -> None:
    report, stay = check(settings(), train=TRAIN)
    assert stay["train"] == [1, 3, 4, 5, 6, 8]
    assert found(report, "train") == {"empty side": (2, 2, "dropped"), "duplicate": (2, 3, "kept")}


def test_the_limits_themselves_are_allowed() -> None:
    _, stay = check(settings(max_length=6, max_tgt_length=5, max_ratio=4.0), train=TRAIN)
    assert stay["train"] == [1, 3, 4, 5, 6, 8]
    _, stay = check(settings(max_length=6, max_tgt_length=4), train=TRAIN)
    assert stay["train"] == [1, 3, 5, 6, 8]


def test_truncated_pairs_are_counted_and_stay() -> None:
    report, stay = check(settings(max_length=5, over_long="truncate"), train=TRAIN)
    assert stay["train"] == [1, 3, 4, 5, 6, 8]
    assert found(report, "train")["over-long"] == (1, 4, "truncated")


def test_other_splits_keep_everything_and_are_compared_with_train() -> None:
    valid = [("new", "NEW"), ("a b", "A B"), ("", ""), ("a b", "changed"), ("x " * 9, "y")]
    report, stay = check(settings(max_length=5, max_ratio=2.0), train=TRAIN, valid=valid)
    assert stay["valid"] == [1, 2, 3, 4, 5]
    assert found(report, "valid") == {
        "empty side": (1, 3, "kept"),
        "pair also in train": (1, 2, "kept"),
        "source also in train": (1, 4, "kept"),
        "over-long": (1, 5, "kept"),
        "length ratio": (1, 5, "kept"),
    }


def test_the_report_as_a_line_as_table_and_as_json() -> None:
    report, _ = check(settings(), train=TRAIN)
    report.splits["train"].add_tokens("src", np.array([3, 1]), np.array([1, 1]))
    report.tokenizer = {"kind": "bpe", "src_size": 100, "tgt_size": 90, "pairs_used": 6, "pairs": 8}
    report.splits["train"].kept = 6
    line = report.one_line_summary()
    assert line.startswith(
        "the data: train 6 of 8 pairs (0.7 and 0.0 tokens per pair, at most 3 and 0); unknown "
    )
    assert (
        "unknown source and target tokens: train 50.0% and 0.0%; dropped or truncated: see below"
        in line
    )
    assert line.endswith(
        "found and kept: 2 duplicate in train; bpe tokenizer with 100/90 tokens trained on 6 of 8 pairs"
    )
    plain = json.loads(json.dumps(asdict(report)))
    assert plain["splits"]["train"]["src_tokens"] == 4
    assert plain["splits"]["train"]["src_longest"] == 3
    assert plain["splits"]["train"]["findings"]["duplicate"] == {
        "count": 2,
        "first_line": 3,
        "action": "kept",
    }


def test_a_text_that_is_taken_whole_needs_one_line() -> None:
    report, _ = check(settings(), train=[("a", "A"), ("b", "B")])
    report.splits["train"].kept = 2
    assert report.one_line_summary() == "the data: train 2 pairs; nothing was left out"
