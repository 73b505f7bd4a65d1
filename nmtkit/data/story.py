"""Stories as CNN/DailyMail is distributed: an article and, below lines `@highlight`, the sentences of its summary."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from nmtkit.data.corpus import Files
from nmtkit.data.text import read_lines
from nmtkit.errors import DataError

_HIGHLIGHT = "@highlight"
_ENDED = re.compile(r"[.!?:;\u2026][\"'\u201d\u2019)\]]*$")


def read_story(path: str | Path) -> tuple[str, str]:
    """The article and the summary of one .story file, each as one line.

    Raises:
        DataError: the file cannot be read, or has no highlight.
    """
    return parse_story(read_lines(path), str(path))


def parse_story(lines: Iterable[str], where: str) -> tuple[str, str]:
    """The article and the summary of one story by its lines, each as one line; messages call it `where`.

    Below every line `@highlight` comes one sentence of the summary, as a rule without its full stop. One is added where
    no other mark ends the sentence: what looks for sentences later must find where they end.

    Raises:
        DataError: it has no highlight.
    """
    article: list[str] = []
    highlights: list[list[str]] = []
    for line in lines:
        text = " ".join(line.split())
        if text == _HIGHLIGHT:
            highlights.append([])
        elif text:
            (highlights[-1] if highlights else article).append(text)
    if not highlights:
        raise DataError(f"{where}: no line {_HIGHLIGHT}, so it is not a story with a summary; leave the file out")
    sentences = [" ".join(lines) for lines in highlights if lines]
    return " ".join(article), " ".join(text if _ENDED.search(text) else f"{text}." for text in sentences)


def story_files(files: Files) -> Iterator[tuple[int, Path]]:
    """The stories of a split, in the order of its lists, or by name where there are none; first, which folder's.

    Raises:
        DataError: there are none, or a list names one that is not there.
    """
    if not files.story_lists:
        for position, folder in enumerate(files.stories):
            found = sorted(Path(folder).glob("*.story"))
            if not Path(folder).is_dir():
                raise DataError(f"{folder}: there is no such folder of .story files")
            if not found:
                raise DataError(f"{folder}: there are no .story files in this folder; name the one that has them")
            yield from ((position, path) for path in found)
    for name in files.story_lists:
        for number, line in enumerate(read_lines(name), start=1):
            given = line.strip()
            if not given:
                continue
            stem = hashlib.sha1(given.encode("utf-8")).hexdigest() if "://" in given else given.removesuffix(".story")
            places = [Path(folder, f"{stem}.story") for folder in files.stories]
            found_in = [position for position, place in enumerate(places) if place.is_file()]
            if not found_in:
                where = " or ".join(files.stories)
                raise DataError(f"{name}, line {number}: there is no story {stem}.story in {where}; correct the list")
            yield found_in[0], places[found_in[0]]
