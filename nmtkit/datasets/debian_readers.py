"""Readers for Debian's translated package descriptions and LibreOffice's help pages.

The first line of a description is the summary; " ." separates the following paragraphs, and lines
that begin with two spaces must not be wrapped (mostly lists).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal

from typing_extensions import override

from nmtkit.core.errors import DataError
from nmtkit.datasets.debian import package_files, stanzas
from nmtkit.datasets.readers import Pair, Reader

_BULLET = re.compile(r"[-*+o•·] +")
_VERSION = re.compile(r"(?<=[a-z])[-_]?v?\d[\d.]*(?=$|-)")
_PLACEHOLDERS = re.compile(r"transitional|dummy package", re.IGNORECASE)
_ROOT = "usr/share/libreoffice/help/"
_BLOCKS = ("p", "h1", "h2", "h3", "h4", "h5", "h6")
_SWITCHES = ("switch", "switchinline")
_CODE = ("code", "codeintable", "smathcode")


@dataclass(frozen=True)
class Description:
    """The description of one package in one language."""

    package: str
    md5: str
    """MD5 checksum of the English description, shared by all translations."""
    summary: str
    paragraphs: list[list[str]]
    """The lines of each paragraph, without their leading space."""


class DebianDescriptions(Reader):
    """Summaries and paragraphs of package descriptions in two languages, grouped by package family.

    Paragraphs are paired if both languages have the same number of paragraphs; the same applies to list
    items. Text is unwrapped, and list markers are removed.
    """

    kind: Literal["debian_descriptions"] = "debian_descriptions"
    src: str
    """Debian's code for the source language: en, pt_BR."""
    tgt: str
    """Debian's code for the target language."""

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """Yields pairs in the order of the source index; keeps the target's descriptions (10 to 40 MB) in memory."""
        families = _families(files)
        targets = {item.md5: item for item in descriptions(_of_language(files, self.tgt), self.tgt)}
        for item in descriptions(_of_language(files, self.src), self.src):
            other = targets.get(item.md5)
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


MIN_DESCRIPTION_WORDS = 15
"""Minimum number of words in a long description that is used for summarization."""


class DebianSummaries(Reader):
    """Long package descriptions and their one-line summaries, grouped by package family.

    Descriptions in a family often begin with the same paragraph. Only the first such description is
    used, so that no two articles have the same first paragraph, ignoring digits and punctuation.
    """

    kind: Literal["debian_summaries"] = "debian_summaries"

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """Yields pairs in the order of the index; keeps the letters of each first paragraph in memory."""
        families = _families(files)
        beginnings: set[str] = set()
        for item in descriptions(_of_language(files, "en"), "en"):
            article = " ".join(
                " ".join(line.split()) for lines in item.paragraphs for line in lines
            )
            if len(article.split()) < MIN_DESCRIPTION_WORDS:
                dropped[f"long description with fewer than {MIN_DESCRIPTION_WORDS} words"] += 1
            elif _letters(item.summary) == _letters(item.package) or len(item.summary.split()) < 2:
                dropped["summary that only names the package"] += 1
            elif _PLACEHOLDERS.search(item.summary):
                dropped["package that only points to another one"] += 1
            elif (beginning := _letters(" ".join(item.paragraphs[0]))) in beginnings:
                dropped["first paragraph shared with another package"] += 1
            else:
                beginnings.add(beginning)
                yield Pair(article, item.summary, group=families(item.package))


def descriptions(paths: Sequence[Path], language: str) -> Iterator[Description]:
    """Yields the descriptions from indexes of one language, each text once."""
    text = f"Description-{language}"
    checksums: set[str] = set()
    for path in paths:
        for stanza in stanzas(path, ("Package", "Description-md5", text)):
            if len(stanza) == 3 and stanza["Description-md5"] not in checksums:
                checksums.add(stanza["Description-md5"])
                summary, *lines = stanza[text].split("\n")
                yield Description(
                    stanza["Package"], stanza["Description-md5"], summary.strip(), paragraphs(lines)
                )


def paragraphs(lines: Sequence[str]) -> list[list[str]]:
    """Returns the paragraphs of a long description, without leading spaces."""
    divided: list[list[str]] = [[]]
    for line in lines:
        if line.strip() == ".":
            divided.append([])
        else:
            divided[-1].append(line[1:].rstrip())
    return [paragraph for paragraph in divided if paragraph]


def units(lines: Sequence[str]) -> list[str]:
    """Unwraps a paragraph into units: running text, list items and table lines."""
    pieces: list[list[str]] = []
    depth = 0  # indentation of the last unit
    for line in lines:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        bullet = _BULLET.match(text) if indent else None
        continues = bool(pieces) and (indent == depth == 0 or (indent > depth > 0 and not bullet))
        if continues:
            pieces[-1].append(text)
        else:
            depth = indent
            pieces.append([text[bullet.end() :] if bullet else text])
    return [" ".join(" ".join(unit).split()) for unit in pieces]


def family(source: str) -> str:
    """Returns the family of a source package: its name without versions (gcc-12-cross: gcc-cross)."""
    return _VERSION.sub("", source) or source


def _families(files: Sequence[Path]) -> Callable[[str], str]:
    """Returns a function from a package to its family, based on the package indexes among the files."""
    families: dict[str, str] = {}
    for path in files:
        if path.name.startswith("Packages"):
            for stanza in stanzas(path, ("Package", "Source")):
                name = stanza.get("Package", "")
                # If the version of the source package differs, it follows in brackets.
                families.setdefault(name, family(stanza.get("Source", name).split(" ")[0]))
    return lambda package: families.get(package) or family(package)


def _of_language(files: Sequence[Path], language: str) -> list[Path]:
    indexes = [path for path in files if path.name.split(".")[0] == f"Translation-{language}"]
    if not indexes:
        raise DataError(
            f"no source of the corpus has package descriptions in {language!r}; add this "
            "language to `languages`"
        )
    return indexes


def _letters(text: str) -> str:
    return re.sub(r"[\W\d_]+", "", text.lower())


# -------------------------------------------------------------------------------------------------------- help pages


class LibreOfficeHelp(Reader):
    """Paragraphs of LibreOffice help pages from two packages, paired by page and id, grouped by page."""

    kind: Literal["libreoffice_help"] = "libreoffice_help"

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """Yields the pairs page by page in source order; keeps the target's paragraphs (about 10 MB) in memory."""
        if len(files) != 2:
            raise DataError(
                "help pages require one package per language, but the sources have "
                f"{len(files)} files; list exactly two packages under `sources`"
            )
        src_file, tgt_file = files
        targets = dict(pages(tgt_file))
        for page, sources in pages(src_file):
            for name, texts in sources.items():
                translated = targets.get(page, {}).get(name)
                if translated is None:
                    dropped["paragraph missing in the other language"] += len(texts)
                elif len(translated) != len(texts):
                    dropped["paragraph repeated more often in one language"] += len(texts)
                else:
                    for src, tgt in zip(texts, translated, strict=True):
                        if src and tgt:
                            yield Pair(src, tgt, group=page)
                        elif src or tgt:
                            dropped["paragraph that is empty in one language"] += 1


def pages(deb: Path) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yields the help pages of a package as path and paragraphs; DataError if there are none."""
    has_pages = False
    for path, data in package_files(deb):
        if path.startswith(_ROOT) and path.endswith(".html") and "/text/" in path:
            has_pages = True
            try:
                html = data.decode("utf-8")
            except UnicodeDecodeError as fault:
                raise DataError(f"{deb}: {path} is not valid UTF-8 (byte {fault.start})") from fault
            yield path.removeprefix(_ROOT).partition("/text/")[2], page_paragraphs(html)
    if not has_pages:
        raise DataError(
            f"{deb}: this package contains no LibreOffice help pages (expected "
            f"{_ROOT}LANGUAGE/text/...)"
        )


def page_paragraphs(html: str) -> dict[str, list[str]]:
    """Returns the paragraphs and headings of a help page by id, without code.

    An id has several texts if the page embeds a part of another page repeatedly. For text that
    depends on the system or module ("Command" or "Ctrl"), the default variant is used, or else the
    first.
    """
    parser = _PageParser()
    parser.feed(html)
    parser.close()
    return parser.texts


@dataclass
class _Span:
    """An open element: a block, or a span within it. A switch contains variants of a text."""

    name: str
    kind: Literal["plain", "switch", "variant"] = "plain"
    pieces: list[str] = field(default_factory=list)
    variants: list[tuple[str, str]] = field(default_factory=list)
    """The id and text of each variant of a switch."""

    def text(self) -> str:
        if self.kind == "switch":  # only white space is between the variants
            common = [text for name, text in self.variants if name.startswith("default")]
            return (common or [text for _, text in self.variants] or ["".join(self.pieces)])[0]
        return "".join(self.pieces)


class _PageParser(HTMLParser):
    """Collects the texts of blocks by id."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: dict[str, list[str]] = {}
        self._tag = ""
        self._open: list[_Span] = []  # the block and its open spans, the innermost last

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        name = attributes.get("id") or ""
        if not self._open:
            is_text = name.startswith(("par_", "hd_")) and attributes.get("class") not in _CODE
            if tag in _BLOCKS and is_text:
                self._tag = tag
                self._open.append(_Span(name))
        elif tag == "span":
            is_switch, is_variant = attributes.get("class") in _SWITCHES, "hidden" in attributes
            self._open.append(
                _Span(name, "switch" if is_switch else "variant" if is_variant else "plain")
            )
        elif tag == "br":
            self._open[-1].pieces.append(" ")

    @override
    def handle_endtag(self, tag: str) -> None:
        if tag == "span" and len(self._open) > 1:
            self._close_span()
        elif self._open and tag == self._tag:
            while len(self._open) > 1:
                self._close_span()
            block = self._open.pop()
            self.texts.setdefault(block.name, []).append(" ".join(block.text().split()))

    @override
    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1].pieces.append(data)

    def _close_span(self) -> None:
        span, outer = self._open.pop(), self._open[-1]
        if span.kind != "variant":
            outer.pieces.append(span.text())
        elif outer.kind == "switch":
            outer.variants.append((span.name, span.text()))
