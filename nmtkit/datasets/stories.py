"""Corpora with one file per article: CNN/Daily Mail stories and BBC pages (XSum)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

from nmtkit.core.errors import DataError
from nmtkit.core.formats import parse_json
from nmtkit.core.settings import Field
from nmtkit.data.text.files.lines import read_stream_lines
from nmtkit.data.text.reading import parse_story, story_stem
from nmtkit.datasets.archives import NOT_UTF8, members
from nmtkit.datasets.readers import Pair, Reader, find_file, text_lines

UNLISTED = "articles not listed in any split"
MISSING = "listed articles missing from the archives"
LISTED_TWICE = "articles listed for two splits (only the first counts)"
NO_SUMMARY = "articles without a text or without a summary"
BUTTON_LINES = "labels of web page buttons inside articles"

# Labels of buttons on the BBC's pages that were collected as part of the articles.
_BUTTONS = {
    *(
        "Share this with",
        "Email",
        "Facebook",
        "Messenger",
        "Twitter",
        "Pinterest",
        "WhatsApp",
        "Linkedin",
        "LinkedIn",
    ),
    *("Copy this link", "These are external links and will open in a new window"),
}


class StoriesReader(Reader):
    """Archives of .story files: an article with a summary sentence after each `@highlight` line."""

    kind: Literal["stories"] = "stories"
    archives: list[str] = Field(min_length=1)
    """The archives' file names."""
    lists: dict[Literal["train", "valid", "test"], list[str]] = Field(min_length=1)
    """For each split, the files that list its stories, one per line, by file name or by the URL of the
    web page, whose SHA-1 checksum is the file name.
    """

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """Yields the listed stories in archive order."""
        split_of: dict[str, str] = {}
        for split, names in self.lists.items():
            for name in names:
                listed = filter(None, map(str.strip, text_lines(files, name)))
                _assign_split(split_of, split, map(story_stem, listed), dropped)
        yield from _articles(files, self.archives, ".story", split_of, _parse_story, dropped)


class XsumReader(Reader):
    """XSum as published.

    The first source is an archive of .summary files with sections, the second a JSON file with the
    splits: an object with lists of ids for train, validation and test.
    """

    kind: Literal["xsum"] = "xsum"

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """Yields the listed articles in archive order; the first sentence is the summary."""
        archive, splits = (path.name for path in files)
        split_of: dict[str, str] = {}
        for published, split in (("train", "train"), ("validation", "valid"), ("test", "test")):
            _assign_split(split_of, split, _ids(files, splits, published), dropped)
        parse = partial(_parse_page, dropped=dropped)
        yield from _articles(files, [archive], ".summary", split_of, parse, dropped)


def _ids(files: Sequence[Path], name: str, split: str) -> list[str]:
    text = "\n".join(text_lines(files, name))
    try:
        ids = parse_json(text, "its text")[split]
    except DataError as fault:
        raise DataError(f"{name}: expected a JSON object with lists of ids: {fault}") from fault
    except (KeyError, TypeError):
        ids = None
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise DataError(f"{name}: expected a list of ids under {split!r}")
    return ids


def _assign_split(
    split_of: dict[str, str], split: str, stems: Iterable[str], dropped: Counter[str]
) -> None:
    """Records each article's split: the first split that lists the article."""
    for stem in stems:
        if split_of.setdefault(stem, split) != split:
            dropped[LISTED_TWICE] += 1


def _articles(
    files: Sequence[Path],
    archives: Sequence[str],
    ending: str,
    split_of: dict[str, str],
    parse: Callable[[Iterable[str], str], tuple[str, str]],
    dropped: Counter[str],
) -> Iterator[Pair]:
    """Yields the listed articles in archive order, removing them from `split_of`."""
    for archive in archives:
        for member in members(find_file(files, archive)):
            path = PurePosixPath(member.name)
            if path.suffix != ending or path.name.startswith("."):
                continue
            split = split_of.pop(path.stem, None)
            if split is None:
                dropped[UNLISTED] += 1
                continue
            where = f"{archive}:{member.name}"
            with member.open() as stream:
                article, summary = parse(read_stream_lines(stream, where, remedy=NOT_UTF8), where)
            if article and summary:
                yield Pair(article, summary, group=path.stem, split=split)
            else:
                dropped[NO_SUMMARY] += 1
    if split_of:
        dropped[MISSING] += len(split_of)


def _parse_story(lines: Iterable[str], where: str) -> tuple[str, str]:
    """Returns article and summary of a .story file; both are empty if there is no summary."""
    held = list(lines)
    return parse_story(held, where) if "@highlight" in map(str.strip, held) else ("", "")


def _parse_page(lines: Iterable[str], where: str, dropped: Counter[str]) -> tuple[str, str]:
    """Returns the text and the first sentence in a .summary file; sections begin with `[SN]RESTBODY[SN]` etc."""
    sections: dict[str, list[str]] = {}
    section: list[str] | None = None
    for line in lines:
        text = " ".join(line.split())
        if text.startswith("[SN]") and text.endswith("[SN]") and len(text) > len("[SN][SN]"):
            section = sections.setdefault(text[len("[SN]") : -len("[SN]")], [])
        elif text in _BUTTONS:
            dropped[BUTTON_LINES] += 1
        elif text and section is not None:
            section.append(text)
    for name in ("FIRST-SENTENCE", "RESTBODY"):
        if name not in sections:
            raise DataError(
                f"{where}: has no section [SN]{name}[SN], so this is not an XSum .summary file"
            )
    return " ".join(sections["RESTBODY"]), " ".join(sections["FIRST-SENTENCE"])
