"""What Debian says of its packages: translated paragraph by paragraph, and as articles with their one-line summaries.

The index of packages and the translations of their descriptions are text in stanzas: fields, whose further lines begin
with a space. A description begins with one line, the summary; " ." stands between the paragraphs of the rest, and lines
that begin with two spaces are not to be wrapped: lists, mostly.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nmtkit.corpora.readers import READERS, Pair, Reader
from nmtkit.errors import DataError

_BULLET = re.compile(r"[-*+o•·] +")
_VERSION = re.compile(r"(?<=[a-z])[-_]?v?\d[\d.]*(?=$|-)")
_PLACEHOLDERS = re.compile(r"transitional|dummy package", re.IGNORECASE)


@dataclass(frozen=True)
class Description:
    """What is said of one package in one language."""

    package: str
    sum: str
    """The MD5 sum of the English description, which all its translations carry."""
    summary: str
    """The first line."""
    paragraphs: list[list[str]]
    """The lines of each paragraph of the rest, with their leading spaces but for the first one."""


@READERS.register("debian_descriptions")
class DebianDescriptions(Reader):
    """Summaries and paragraphs of packages in two languages; grouped by families of packages.

    Paragraphs are paired where a translation has as many as the original, and their list items where a paragraph has as
    many; line ends within a sentence become spaces, and the signs before list items are left out.
    """

    kind: Literal["debian_descriptions"] = "debian_descriptions"
    src: str
    """The language of the source, as Debian calls it: en, pt_BR."""
    tgt: str
    """The language of the target."""

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """The pairs, in the order of the source's index; the target's descriptions are in memory, 10 to 40 MB.

        Raises:
            DataError: a file is damaged, or one is missing.
        """
        families = _families(files)
        targets = {item.sum: item for item in descriptions(_of_language(files, self.tgt), self.tgt)}
        for item in descriptions(_of_language(files, self.src), self.src):
            other = targets.get(item.sum)
            if other is None:
                dropped["description without a translation"] += 1
                continue
            group = families(item.package)
            yield Pair(item.summary, other.summary, group=group)
            if len(item.paragraphs) != len(other.paragraphs):
                dropped["description with more paragraphs in one language"] += 1
                continue
            for lines, translated in zip(item.paragraphs, other.paragraphs, strict=True):
                src, tgt = units(lines), units(translated)
                if len(src) != len(tgt):
                    dropped["paragraph with more list items in one language"] += 1
                    continue
                yield from (Pair(one, two, group=group) for one, two in zip(src, tgt, strict=True))


@READERS.register("debian_summaries")
class DebianSummaries(Reader):
    """Long descriptions of packages and their one-line summaries; grouped by families of packages.

    The packages of a family often begin with the same paragraph (a program, its data, its documentation): the first
    one is taken. So no two articles have the same first paragraph, digits and punctuation aside.
    """

    kind: Literal["debian_summaries"] = "debian_summaries"
    language: str = "en"
    """The language, as Debian calls it."""
    min_words: int = 15
    """The fewest words of a long description."""

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """The pairs, in the order of the index; a hash of each first paragraph stays in memory.

        Raises:
            DataError: a file is damaged, or one is missing.
        """
        families = _families(files)
        beginnings: set[str] = set()
        for item in descriptions(_of_language(files, self.language), self.language):
            article = " ".join(" ".join(line.split()) for lines in item.paragraphs for line in lines)
            if len(article.split()) < self.min_words:
                dropped[f"long description of less than {self.min_words} words"] += 1
            elif _letters(item.summary) == _letters(item.package) or len(item.summary.split()) < 2:
                dropped["summary that only names the package"] += 1
            elif _PLACEHOLDERS.search(item.summary):
                dropped["package that only points to another one"] += 1
            elif (beginning := _letters(" ".join(item.paragraphs[0]))) in beginnings:
                dropped["first paragraph that another package has too"] += 1
            else:
                beginnings.add(beginning)
                yield Pair(article, item.summary, group=families(item.package))


def stanzas(path: Path, wanted: Sequence[str]) -> Iterator[dict[str, str]]:
    """The stanzas of an index, each with those of the wanted fields that it has; further lines follow a line end.

    Raises:
        DataError: it cannot be read, or is not text in stanzas.
    """
    fields: dict[str, str] = {}
    name = ""
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line[0] in " \t":
                    if name in fields:
                        fields[name] += "\n" + line.rstrip("\n")
                elif line == "\n":
                    if fields:
                        yield fields
                    fields, name = {}, ""
                else:
                    name, colon, value = line.partition(":")
                    if not colon:
                        raise DataError(f"{path}, line {number}: expected `Field: value`; fetch it again")
                    if name in wanted:
                        fields[name] = value.strip()
    except OSError as fault:
        raise DataError(f"{path}: cannot read it: {fault.strerror or fault}") from fault
    except UnicodeDecodeError as fault:
        raise DataError(f"{path}: not UTF-8 text; fetch it again") from fault
    if fields:
        yield fields


def descriptions(paths: Sequence[Path], language: str) -> Iterator[Description]:
    """The descriptions in some indexes of translations, each text once.

    Args:
        paths: the indexes of one language.
        language: which, as Debian calls it.

    Raises:
        DataError: an index is damaged.
    """
    field = f"Description-{language}"
    seen: set[str] = set()
    for path in paths:
        for stanza in stanzas(path, ("Package", "Description-md5", field)):
            if len(stanza) == 3 and stanza["Description-md5"] not in seen:
                seen.add(stanza["Description-md5"])
                summary, *lines = stanza[field].split("\n")
                yield Description(stanza["Package"], stanza["Description-md5"], summary.strip(), paragraphs(lines))


def paragraphs(lines: Sequence[str]) -> list[list[str]]:
    """Lines of a long description by paragraphs, each without the space before every line."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip() == ".":
            found.append([])
        else:
            found[-1].append(line[1:].rstrip())
    return [paragraph for paragraph in found if paragraph]


def units(lines: Sequence[str]) -> list[str]:
    """The lines of a paragraph, unwrapped: running text is one unit, every list item or line of a table another one."""
    found: list[list[str]] = []
    depth = 0  # the indentation of the unit that is open
    for line in lines:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        bullet = _BULLET.match(text) if indent else None
        continues = bool(found) and (indent == depth == 0 or (indent > depth > 0 and not bullet))
        if continues:
            found[-1].append(text)
        else:
            depth = indent
            found.append([text[bullet.end() :] if bullet else text])
    return [" ".join(" ".join(unit).split()) for unit in found]


def family(source: str) -> str:
    """The family that a source package belongs to: its name without versions (gcc-12-cross: gcc-cross)."""
    return _VERSION.sub("", source) or source


def _families(files: Sequence[Path]) -> Callable[[str], str]:
    """Gives the family of a package by its name; it knows those of the indexes of packages among the files."""
    found: dict[str, str] = {}
    for path in files:
        if path.name.endswith("_Packages"):
            for stanza in stanzas(path, ("Package", "Source")):
                name = stanza.get("Package", "")
                # A source of another version than the package has it in brackets.
                found.setdefault(name, family(stanza.get("Source", name).split(" ")[0]))
    return lambda package: found.get(package) or family(package)


def _of_language(files: Sequence[Path], language: str) -> list[Path]:
    found = [path for path in files if path.name.endswith(f"_Translation-{language}")]
    if not found:
        raise DataError(
            f"no source of the corpus gives descriptions of packages in {language!r}; add it to `languages`"
        )
    return found


def _letters(text: str) -> str:
    """What texts have in common that differ in digits, capitals or punctuation alone."""
    return re.sub(r"[\W\d_]+", "", text.lower())
