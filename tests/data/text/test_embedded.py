"""The corpora that come with nmtkit, as they lie in the tree; tests/generators asks what makes them."""

import gzip
import json
from collections import Counter
from pathlib import Path

from nmtkit.data.text.alignments import parse_alignments

DATA = Path(__file__).parents[3] / "data"


def lines(name: str) -> list[str]:
    return gzip.open(DATA / f"{name}.gz", "rt", encoding="utf-8").read().splitlines()


def test_the_pairs_have_a_line_on_each_side_and_an_alignment() -> None:
    for part, size in {"train": 20000, "valid": 1000, "test": 1000}.items():
        for file in ("en", "fr", "align"):
            assert len(lines(f"demo-en-fr/{part}.{file}")) == size
    assert sum(path.stat().st_size for path in (DATA / "demo-en-fr").iterdir()) < 2_000_000


def test_words_of_the_test_set_are_those_that_its_alignments_count() -> None:
    found = parse_alignments(lines("demo-en-fr/test.align"), "test.align").pairs
    for side, language in enumerate(("en", "fr")):
        texts, spaced = (lines(f"demo-en-fr/test.{kind}{language}") for kind in ("", "words."))
        for text, words, pair in zip(texts, spaced, found, strict=True):
            assert "".join(words.split()) == "".join(text.split())
            assert {link[side] for link in pair.sure} == set(range(len(words.split()))), text


def test_the_news_have_their_fields_and_kinds() -> None:
    for part, size in {"train": 10000, "valid": 500, "test": 500}.items():
        rows = [json.loads(line) for line in lines(f"demo-news/{part}.jsonl")]
        fields = {"kind", "article", "summary"} | ({"unseen"} if part != "train" else set())
        assert all(set(row) == fields for row in rows)
        assert [*Counter(row["kind"] for row in rows).values()] == [size // 4] * 4
    assert sum(path.stat().st_size for path in (DATA / "demo-news").iterdir()) < 2_500_000
