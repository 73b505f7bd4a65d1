"""Folders of CNN/DailyMail stories as a split."""

import gzip
import hashlib
from pathlib import Path

import pytest

from nmtkit.core.errors import DataError
from nmtkit.data.text.config import DataConfig, SplitFiles
from nmtkit.data.text.reading import parse_story, read_pairs

STORY = """\
LONDON (CNN) -- A ferry ran aground on Monday.

No one  was hurt, said Ana Müller.



@highlight

A ferry ran aground on Monday

@highlight

NEW: "No one was hurt."
@highlight

It happened
near Harwich!
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b", "a", hashlib.sha1(b"http://news.example/1").hexdigest()):
        (tmp_path / f"{name}.story").write_text(STORY.replace("Monday", name), encoding="utf-8")
    (tmp_path / "notes.txt").write_text("no story", encoding="utf-8")
    return tmp_path


def test_article_and_highlights(tmp_path: Path) -> None:
    assert parse_story(STORY.split("\n"), "x") == (
        "LONDON (CNN) -- A ferry ran aground on Monday. No one was hurt, said Ana Müller.",
        'A ferry ran aground on Monday. NEW: "No one was hurt." It happened near Harwich!',
    )
    (tmp_path / "x.story").write_bytes(gzip.compress(STORY.replace("\n", "\r\n").encode()))
    [story] = read_pairs(SplitFiles(stories=[str(tmp_path)]))
    assert (story.src, story.tgt) == parse_story(STORY.split("\n"), "x")


def test_all_stories_of_the_folders_by_name(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "c.story").write_text(STORY, encoding="utf-8")
    found = list(read_pairs(SplitFiles(stories=[str(folder), str(other)])))
    assert [pair.line for pair in found] == [1, 2, 3, 4]
    assert [pair.src.split(" on ")[1].split(".")[0] for pair in found[1:]] == ["a", "b", "Monday"]


def test_lists_select_by_name_and_by_address_in_their_own_order(folder: Path) -> None:
    (folder / "train.txt").write_text("b.story\n\nhttp://news.example/1\na\n", encoding="utf-8")
    files = SplitFiles.model_validate(
        {"stories": str(folder), "story_lists": str(folder / "train.txt")}
    )
    named = [pair.src.split(" on ")[1].split(".")[0] for pair in read_pairs(files)]
    assert named == ["b", hashlib.sha1(b"http://news.example/1").hexdigest(), "a"]
    assert files.paths() == [str(folder), str(folder / "train.txt")]


def test_relative_folders_begin_at_the_datas_folder(folder: Path) -> None:
    data = DataConfig.model_validate(
        {"folder": str(folder.parent), "train": {"stories": folder.name}}
    )
    assert data.splits()["train"].stories == [str(folder)]


def test_faults_name_the_file(folder: Path) -> None:
    (folder / "list.txt").write_text("a\nz\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"list.txt, line 2: there is no story z.story in .*correct the list"
    ):
        list(read_pairs(SplitFiles(stories=[str(folder)], story_lists=[str(folder / "list.txt")])))
    (folder / "d.story").write_text("An article and nothing else.\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"d.story: there is no @highlight line"):
        list(read_pairs(SplitFiles(stories=[str(folder)])))
    (folder / "d.story").write_bytes(b"caf\xe9\n@highlight\nx\n")
    with pytest.raises(DataError, match=r"d.story, line 1: not valid UTF-8"):
        list(read_pairs(SplitFiles(stories=[str(folder)])))
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: there are no .story files"):
        list(read_pairs(SplitFiles(stories=[str(folder / "empty")])))
