"""From files to examples: line-aligned text, JSONL and stories, plain or compressed, one pair at a time."""

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import Literal

from nmtkit.data.alignments import Links, doubt_of, parse_pharaoh_line
from nmtkit.data.corpus import FILE_KINDS, Files
from nmtkit.errors import DataError
from nmtkit.settings import parse_json, shortened

SAMPLE = 20_000
"""Pairs of a file whose links say what it counts words from."""


@dataclass(frozen=True)
class Example:
    """One sentence or document to translate, with its translation where there is one."""

    src: str
    """Source text."""
    tgt: str | None
    """Target text."""
    line: int
    """The line it came from, counted from 1; over all files of the split where there are several; a story is one."""
    links: Links | None = None
    """Which source word belongs to which target word, as the files say; None where no alignment was given."""
    src_words: str | None = None
    """The source with white space between the words that the links count; None where the source's own is meant."""
    tgt_words: str | None = None
    """The same for the target."""
    file: int = field(default=0, compare=False)
    """Which of the files (or folders of stories) of the split it came from, counted from 0."""


def read_lines(path: str | Path) -> Iterator[str]:
    r"""The lines of a text file, plain or gzip-compressed (told by its first bytes), one at a time, without line ends.

    Only \n and \r\n end a line, so that line numbers agree with every other tool; a byte-order mark at the beginning
    of the file is not part of the text.

    Raises:
        DataError: the file is missing, not UTF-8 (with the line), or a broken gzip file.
    """
    number = 0
    try:
        with open(path, "rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"  # a pipe cannot be wound back
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            for number, line in enumerate(stream, start=1):
                text = line.rstrip(b"\n").removesuffix(b"\r").decode("utf-8")
                yield text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as fault:
        raise DataError(f"{path}, line {number}: not UTF-8 (byte {fault.start + 1} of the line); convert it") from fault
    except (EOFError, gzip.BadGzipFile, zlib.error) as fault:
        raise DataError(
            f"{path}: broken gzip file after line {number} ({fault}); fetch or compress it again"
        ) from fault
    except OSError as fault:
        raise DataError(f"{path}: cannot read it: {fault.strerror or fault}") from fault


LOOKED_AT = 64
"""Lines at the beginning of a text by which it is told from JSON lines."""
WRITE_OUT = "write its text out first, e.g. by `jq -r .KEY`"
AS_JSONL = f"in a recipe name it with `jsonl`, src_field and tgt_field, or {WRITE_OUT}"


def refuse_json_lines(lines: Sequence[str], where: str, remedy: str) -> None:
    """Refuses JSON lines where plain text is read: a model answers braces and keys as fluently as text.

    Args:
        lines: the first ones. They are JSON lines if all that are not empty are objects with keys; text may have such a
            line among others, or begin with a brace.
        where: what to call the place in a message.
        remedy: what to do.

    Raises:
        DataError: they are JSON lines.
    """
    keys: list[str] = []
    for line in filter(str.strip, lines[:LOOKED_AT]):
        try:
            record = parse_json(line, where) if line.lstrip()[0] == "{" else None
        except DataError:
            return
        if not isinstance(record, dict) or not record:
            return
        keys = keys or list(record)
    if keys:
        shown = shortened(", ".join(keys))
        raise DataError(f"{where}: each line is a JSON object (with {shown}), and plain text is read here; {remedy}")


def _text_lines(path: str) -> Iterator[str]:
    """As `read_lines`, of a file that holds text and not JSON lines."""
    lines = read_lines(path)
    first = list(islice(lines, LOOKED_AT))
    refuse_json_lines(first, path, AS_JSONL)
    yield from first
    yield from lines


def read_pairs(files: Files, json_target: bool = False) -> Iterator[Example]:
    """The pairs of one split, one at a time.

    Args:
        files: of the split.
        json_target: whether each target is a JSON text, which is refused otherwise.

    Raises:
        DataError: a file cannot be read, line-aligned files differ in length or are JSON lines, a JSONL line lacks a
            field, a link is malformed or names a word that its sentence does not have, or a file is no story.
    """
    line = 0
    for position, story in story_files(files):
        line += 1
        article, summary = read_story(story)
        yield Example(article, summary, line, file=position)
    for position, path in enumerate(files.jsonl):
        for number, text in enumerate(read_lines(path), start=1):
            line += 1
            src, tgt, links = _from_json(text, files, f"{path}, line {number}")
            yield Example(src, tgt, line, links, file=position)
    for position, src_path in enumerate(files.src):
        if not files.tgt:
            for src in _text_lines(src_path):
                line += 1
                yield Example(src, None, line, file=position)
            continue
        given = {kind: getattr(files, kind)[position] for kind in FILE_KINDS if getattr(files, kind)}
        lines = [
            _text_lines(path) if kind == "src" or (kind == "tgt" and not json_target) else read_lines(path)
            for kind, path in given.items()
        ]
        for number, row in enumerate(_aligned(list(given.values()), lines), start=1):
            line += 1
            if len(row) == 2:
                yield Example(row[0], row[1], line, file=position)
                continue
            texts = dict(zip(given, row, strict=True))
            src_words, tgt_words = texts.get("src_words"), texts.get("tgt_words")
            counted = (src_words or row[0], tgt_words or row[1])
            links = _links(texts["alignment"], *counted, f"{given['alignment']}, line {number}", files.alignment_base)
            yield Example(row[0], row[1], line, links, src_words, tgt_words, position)


def _aligned(paths: list[str], files: list[Iterator[str]]) -> Iterator[Sequence[str]]:
    """Line n of all files, for every n."""
    count = 0
    for lines in zip_longest(*files):
        if None in lines:
            break
        count += 1
        yield lines
    else:
        return
    counts = [count + (line is not None) + sum(1 for _ in file) for line, file in zip(lines, files, strict=True)]
    for path, other in zip(paths, counts, strict=True):
        if other != counts[0]:
            rule = "be the translation of" if path == paths[1] else "belong to"
            raise DataError(
                f"{paths[0]} has {counts[0]} lines, but {path} has {other}: "
                f"line n of one must {rule} line n of the other"
            )


def require_base(files: Files) -> None:
    """Makes sure that links count words from 0, by the first pairs of each file, unless the files say what from.

    Raises:
        DataError: hardly a link holds a first word; or as `read_pairs`.
    """
    if files.alignment_base is not None:
        return
    for number, path in enumerate(files.alignment or (files.jsonl if files.alignment_field else ())):
        one = files.model_copy(update={kind: getattr(files, kind)[number : number + 1] for kind in FILE_KINDS})
        if doubt := doubt_of(pair.links or frozenset() for pair in islice(read_pairs(one), SAMPLE)):
            raise DataError(
                f"{path}: words are taken to be counted from 0, but {doubt}; if they are counted from 1, set "
                "alignment_base: 1 beside the file in the recipe; if it is right so, alignment_base: 0"
            )


def _links(text: str, src: str, tgt: str, where: str, base: Literal[0, 1] | None) -> Links:
    """All links of a line, sure and possible ones; none may lie outside of the sentences, words between white space."""
    from_ = base or 0
    links = parse_pharaoh_line(text, where, from_).possible
    for number, (side, line) in enumerate((("source", src), ("target", tgt))):
        most, words = max((link[number] for link in links), default=-1), len(line.split())
        if most >= words:
            raise DataError(
                f"{where}: a link names {side} word {most + from_}, but there are {words}, counted from {from_}; is it "
                "the alignment of these very files, source first? Words are what white space separates; if it counts "
                "others, name files of them with src_words and tgt_words"
                + ("" if base == 1 else "; if it counts them from 1, set alignment_base: 1")
            )
    return links


def _from_json(text: str, files: Files, where: str) -> tuple[str, str, Links | None]:
    """Source, target and links of a line."""
    record = parse_json(text, where)
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object, found a {type(record).__name__}")
    sides = []
    for name, option in ((files.src_field, "src_field"), (files.tgt_field, "tgt_field")):
        if name not in record:
            raise DataError(
                f"{where}: no field {name!r}; it has {shortened(', '.join(record)) or 'none'}: set {option}"
            )
        value = record[name]
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = " ".join(value)
        if not isinstance(value, str):
            raise DataError(f"{where}: field {name!r} is neither a string nor a list of strings")
        # One example is one line everywhere else: in references, in hypotheses, on the terminal.
        sides.append(" ".join(value.splitlines()))
    if not files.alignment_field:
        return sides[0], sides[1], None
    name = files.alignment_field
    given = record.get(name)
    if not isinstance(given, str):
        raise DataError(f"{where}: field {name!r} (alignment_field) is not a string of links such as '0-0 1-2'")
    return sides[0], sides[1], _links(given, sides[0], sides[1], f"{where}, field {name!r}", files.alignment_base)


_HIGHLIGHT = "@highlight"
_ENDED = re.compile(r"[.!?:;\u2026][\"'\u201d\u2019)\]]*$")


def read_story(path: str | Path) -> tuple[str, str]:
    """The article and the summary of one .story file, each as one line.

    Raises:
        DataError: the file cannot be read, or has no highlight.
    """
    return parse_story(read_lines(path), str(path))


def parse_story(lines: Iterable[str], where: str) -> tuple[str, str]:
    """The article and the summary of one story by its lines, each as one line; `where` is what messages call it.

    Below every line `@highlight` stands one sentence of the summary, as a rule without its full stop, which is put
    where no other mark ends it: what looks for sentences later must find where they end.

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
