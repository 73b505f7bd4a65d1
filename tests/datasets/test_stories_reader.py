"""Corpora of one file for every article: stories with highlights, and XSum's pages with sections."""

import json
from pathlib import Path

import pytest

from nmtkit.core.errors import DataError
from nmtkit.datasets.stories import (
    BUTTON_LINES,
    LISTED_TWICE,
    MISSING,
    NO_SUMMARY,
    UNLISTED,
    StoriesReader,
    XsumReader,
)
from tests.datasets.corpus_files import published, read
from tests.datasets.layouts import PAGE, STORY, address, stem


def stories(
    folder: Path, lists: dict[str, list[str]], **changed: str
) -> tuple[list[Path], StoriesReader]:
    """Two archives of stories about a, b, c and d, and the lists of the splits."""
    content = {name: changed.get(name, STORY.format(name)) for name in "abcd"}
    first = {f"cnn/stories/{stem(name)}.story": content[name] for name in "ab"}
    second = {f"dailymail/stories/{stem(name)}.story": content[name] for name in "cd"}
    files = [
        published(folder / "cnn.tgz", {**first, "cnn/README": "x"}),
        published(folder / "dm.tgz", second),
    ]
    files += [published(folder / f"all_{split}.txt", lines) for split, lines in lists.items()]
    named = {split: [f"all_{split}.txt"] for split in lists}
    return files, StoriesReader.model_validate({"archives": ["cnn.tgz", "dm.tgz"], "lists": named})


LISTS = {
    "train": [address("a"), address("c")],
    "valid": [address("d")],
    "test": [f"{stem('b')}.story", ""],
}


def test_stories_go_where_the_lists_say(tmp_path: Path) -> None:
    files, reader = stories(tmp_path, LISTS)
    pairs, dropped = read(reader, *files)
    splits = {"a": "train", "b": "test", "c": "train", "d": "valid"}
    assert [(pair.group, pair.split) for pair in pairs] == [
        (stem(name), split) for name, split in splits.items()
    ]
    assert (pairs[0].src, pairs[0].tgt) == (
        "Article a begins . It ends , says number a .",
        "The point of number a.",
    )
    assert dropped == {}


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    lists = {
        "train": [*map(address, ("a", "c", "nowhere"))],
        "valid": [address("c")],
        "test": [address("b")],
    }
    files, reader = stories(tmp_path, lists, a="@highlight\n\nOnly a summary\n", b="No summary\n")
    pairs, dropped = read(reader, *files)
    assert [(pair.group, pair.split) for pair in pairs] == [(stem("c"), "train")]
    assert dropped == {NO_SUMMARY: 2, UNLISTED: 1, MISSING: 1, LISTED_TWICE: 1}


def pages(folder: Path, splits: object, **changed: str) -> tuple[list[Path], XsumReader]:
    """An archive of pages and the file of the splits."""
    members = {
        f"bbc-summary-data/{name}.summary": changed.get(name, PAGE.format(name))
        for name in ("p1", "p2", "p3")
    }
    listed = splits if isinstance(splits, str) else json.dumps(splits)
    files = [published(folder / "xsum.tar.gz", members), published(folder / "splits.json", listed)]
    return files, XsumReader()


IDS = {"test": ["p1"], "train": ["p3"], "validation": ["p2"]}


def test_pages_of_xsum(tmp_path: Path) -> None:
    files, reader = pages(tmp_path, IDS)
    pairs, dropped = read(reader, *files)
    assert [(pair.group, pair.split) for pair in pairs] == [
        ("p1", "test"),
        ("p2", "valid"),
        ("p3", "train"),
    ]
    assert pairs[0].src == "The text of number p1 . Its end ."
    assert pairs[0].tgt == "Point of number p1 ."
    assert dropped == {BUTTON_LINES: 3}


def test_pages_that_are_not_listed_or_empty_are_counted(tmp_path: Path) -> None:
    empty = "[SN]FIRST-SENTENCE[SN]\n\n[SN]RESTBODY[SN]\nText.\n"
    files, reader = pages(tmp_path, {**IDS, "test": ["gone"]}, p2=empty)
    pairs, dropped = read(reader, *files)
    assert [pair.group for pair in pairs] == ["p3"]
    assert dropped == {BUTTON_LINES: 1, UNLISTED: 1, NO_SUMMARY: 1, MISSING: 1}


def test_a_page_without_a_section_is_named(tmp_path: Path) -> None:
    files, reader = pages(tmp_path, IDS, p2="[SN]RESTBODY[SN]\nText.\n")
    with pytest.raises(DataError, match=r"p2\.summary: has no section \[SN\]FIRST-SENTENCE\[SN\]"):
        read(reader, *files)


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        ("{", "splits.json: expected a JSON object with lists of ids"),
        ("[" * 3000, "splits.json: expected a JSON object with lists of ids"),
        ({"train": [], "test": []}, "expected a list of ids under 'validation'"),
        ([1, 2], "expected a list of ids under 'train'"),
        ({**IDS, "train": [7]}, "expected a list of ids under 'train'"),
    ],
    ids=["no-json", "deep", "no-validation", "a-list", "numbers"],
)
def test_splits_of_another_form(tmp_path: Path, splits: object, said: str) -> None:
    files, reader = pages(tmp_path, splits)
    with pytest.raises(DataError, match=said):
        read(reader, *files)
