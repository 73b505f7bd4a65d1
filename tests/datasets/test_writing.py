"""From pairs to files: what is kept, where it goes, and that everything is counted."""

import hashlib
import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nmtkit.core.errors import DataError
from nmtkit.core.settings import parse
from nmtkit.data.text.scripts import is_unspaced
from nmtkit.datasets import writing
from nmtkit.datasets.catalogue import Entry, FilterConfig
from nmtkit.datasets.readers import Pair
from nmtkit.datasets.writing import (
    WriteResult,
    letter_ratio,
    recipe_data,
    rejection_reason,
    single_line,
    write_pairs,
)


def entry(**changes: Any) -> Entry:
    about = {"title": "A corpus", "src": "en", "tgt": "de", "size": "small", "licence": "none"}
    sources = [{"kind": "debian_package", "package": "none"}]
    read = {"kind": "tab_separated", "text": "a.txt"}
    return parse(Entry, {**about, "sources": sources, "read": read, **changes}, "test")


def write(one: Entry, pairs: list[Pair], folder: Path) -> tuple[WriteResult, Counter[str]]:
    dropped: Counter[str] = Counter()
    return write_pairs(one, iter(pairs), folder, dropped), dropped


def lines(path: Path) -> list[str]:
    text = path.read_bytes().decode("utf-8")
    assert text.endswith("\n")
    return text.removesuffix("\n").split("\n")


SENTENCES = [(f"sentence number {n}", f"Satz Nummer {n}") for n in range(400)]


def test_every_pair_is_in_one_split_and_counted(tmp_path: Path) -> None:
    pairs = [Pair(src, tgt) for src, tgt in SENTENCES]
    written, dropped = write(entry(split={"valid": 0.1, "test": 0.1}), pairs, tmp_path)
    found = {
        split: list(
            zip(lines(tmp_path / f"{split}.en"), lines(tmp_path / f"{split}.de"), strict=True)
        )
        for split in ("train", "valid", "test")
    }
    assert sorted(pair for split in found.values() for pair in split) == sorted(SENTENCES)
    assert {split: count["pairs"] for split, count in written.counts.items()} == {
        s: len(p) for s, p in found.items()
    }
    assert all(20 < len(found[split]) < 60 for split in ("valid", "test"))
    assert not dropped
    assert written.counts["train"]["src_words"] == 3 * len(found["train"])
    for name, digest in written.files.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
    assert set(written.files) == {path.name for path in tmp_path.iterdir()}
    assert written.statistics.pairs == len(found["train"])


def test_summaries_are_lines_of_json(tmp_path: Path) -> None:
    pairs = [
        Pair(f"An article “{n}”,\nof two lines.", f"Summary\t{n}", split="train") for n in range(3)
    ]
    one = entry(task="summarization", tgt="en")
    write(one, pairs, tmp_path)
    assert [json.loads(line) for line in lines(tmp_path / "train.jsonl")] == [
        {"article": f"An article “{n}”, of two lines.", "summary": f"Summary\t{n}"}
        for n in range(3)
    ]
    assert recipe_data(one, ["train"]) == {
        "train": {"jsonl": "train.jsonl", "src_field": "article", "tgt_field": "summary"}
    }


STRICT = FilterConfig(
    min_words=2, max_words=5, max_ratio=2.0, min_letter_ratio=0.5, keep_identical=False
)
JAPANESE = FilterConfig(min_words=3, max_words=10)  # two letters count as a word


@pytest.mark.parametrize(
    ("config", "src", "tgt", "reason"),
    [
        (STRICT, "", "x y z", "an empty side"),
        (STRICT, "x y z", " \u2028 ", "an empty side"),
        (STRICT, "one", "two words", "too few words"),
        (STRICT, "a b c", "a b c d e f", "too many words"),
        (STRICT, "a b", "a b c d e", "lengths too different"),
        (STRICT, "1234 5678 9", "ab cd ef", "too few letters"),
        (STRICT, "a 1 2 3", "b c d", "too few letters"),
        (STRICT, "same thing", "same thing", "both sides identical"),
        (STRICT, "two (2) words", "zwei (2) Worte", ""),
        (JAPANESE, "this is Japanese", "これは日本語です", ""),
        (JAPANESE, "this is Japanese", "日本", "too few words"),
    ],
)
def test_the_reason_is_the_first_that_fits(
    config: FilterConfig, src: str, tgt: str, reason: str
) -> None:
    unspaced = [
        is_unspaced(language) for language in ("en", "ja_JP" if config is JAPANESE else "de")
    ]
    assert rejection_reason(Pair(src, tgt), config, unspaced) == reason


def test_the_share_of_letters() -> None:
    shares = {
        "abc": 1.0,
        "ab 12": 0.5,
        "": 0.0,
        "  ": 0.0,
        "नमस्ते": 1.0,
        "日本語": 1.0,
        "...!": 0.0,
        "día½_": 0.6,
    }
    assert {text: letter_ratio(text) for text in shares} == shares


@pytest.mark.parametrize(
    "end", ["\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\0"], ids=ascii
)
def test_a_text_is_one_line_for_every_program(end: str) -> None:
    assert single_line(f" one{end}two{end} ") == "one two"
    assert len(single_line(f"one{end}two").splitlines()) == 1
    assert single_line(f"half a{end}\ud800") == "half a \ufffd"


def test_repeated_pairs_are_dropped_across_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "CHUNK_PAIRS", 7)
    pairs = [Pair(f"s {n % 30}", f"t {n % 60}") for n in range(120)]
    written, dropped = write(entry(), pairs, tmp_path)
    assert dropped == {"duplicate": 60}
    assert lines(tmp_path / "train.en") == [f"s {n % 30}" for n in range(60)]
    written, dropped = write(entry(filter={"keep_duplicates": True}), pairs, tmp_path)
    assert written.counts["train"]["pairs"] == 120
    assert not dropped


def test_what_stands_in_train_is_not_tested(tmp_path: Path) -> None:
    """Every sentence of test or validation that another page has in train, on either side, goes."""
    pairs = [Pair(f"source {n}", f"target {n}", group=f"page {n}") for n in range(300)]
    pairs += [Pair(f"source {n}", "another target", group=f"other {n}") for n in range(0, 300, 3)]
    pairs += [Pair("another source", f"target {n}", group=f"third {n}") for n in range(1, 300, 3)]
    written, dropped = write(entry(split={"valid": 0.2, "test": 0.2}), pairs, tmp_path)
    texts = {
        split: {*lines(tmp_path / f"{split}.en"), *lines(tmp_path / f"{split}.de")}
        for split in written.counts
    }
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["valid"]
    assert not texts["valid"] & texts["test"]
    assert dropped["test: a side also occurs in train"] > 10
    assert dropped["valid: a side also occurs in train or test"] > 10
    assert sum(count["pairs"] for count in written.counts.values()) + sum(dropped.values()) == len(
        pairs
    )


def test_splits_of_the_corpus_itself_are_kept_as_they_are(tmp_path: Path) -> None:
    """Published figures are measured on them: not a line is left out, whatever they share with train."""
    pairs = [Pair(f"s {n}", f"t {n}", split="train") for n in range(50)]
    given = [
        ("s 1", "t 1"),
        ("s 1", "new"),
        ("x", ""),
        ("x", ""),
        ("", ""),
        ("7", "7"),
        ("new", "t 2"),
    ]
    pairs += [Pair(src, tgt, split="test") for src, tgt in given] + [
        Pair("v w", "v w", split="valid")
    ]
    written, dropped = write(
        entry(filter={"min_words": 2, "keep_identical": False, "min_letter_ratio": 0.3}),
        pairs,
        tmp_path,
    )
    assert list(zip(lines(tmp_path / "test.en"), lines(tmp_path / "test.de"), strict=True)) == given
    assert lines(tmp_path / "valid.en") == ["v w"]
    assert written.counts["train"]["pairs"] == 50
    assert not dropped


def test_a_pair_of_the_test_set_does_not_make_one_of_train_a_duplicate(tmp_path: Path) -> None:
    pairs = [
        Pair("s", "t", split="test"),
        Pair("s", "t", split="train"),
        Pair("s", "t", split="train"),
    ]
    _, dropped = write(entry(), pairs, tmp_path)
    assert dropped == {"duplicate": 1}


def test_validation_is_taken_from_train_where_only_a_test_set_is_given(tmp_path: Path) -> None:
    pairs = [Pair(src, tgt) for src, tgt in SENTENCES] + [
        Pair("a b", "c d", split="test"),
        Pair(*SENTENCES[0]),
    ]
    written, _ = write(entry(split={"valid": 0.1}), pairs, tmp_path)
    assert written.counts["test"]["pairs"] == 1
    assert 20 < written.counts["valid"]["pairs"] < 60


def test_nothing_left_for_train_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no pairs are left for training .too few words: 3"):
        write(entry(filter={"min_words": 9}), [Pair(f"a {n}", "b") for n in range(3)], tmp_path)
    with pytest.raises(DataError, match="the files contain no pairs"):
        write(entry(), [], tmp_path)


@pytest.mark.slow
def test_only_a_chunk_and_what_is_held_for_testing_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "CHUNK_PAIRS", 100)
    one = entry(split={"valid": 0.2, "test": 0.2, "max_pairs": 50})
    pairs = (Pair(f"source {n}" + " x" * 5000, f"target {n}") for n in range(2000))  # 20 MB
    tracemalloc.start()
    try:
        written = write_pairs(one, pairs, tmp_path, Counter())
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert written.counts["train"]["pairs"] == 1900
