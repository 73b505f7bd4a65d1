"""The help pages of LibreOffice, aligned: every paragraph has an id that is the same in all languages."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal

from nmtkit.corpora.apt import package_files
from nmtkit.corpora.readers import READERS, Pair, Reader
from nmtkit.errors import DataError

_ROOT = "usr/share/libreoffice/help/"
_BLOCKS = frozenset(("p", "h1", "h2", "h3", "h4", "h5", "h6"))
_SWITCHES = frozenset(("switch", "switchinline"))
_CODE = frozenset(("code", "codeintable", "smathcode"))


@READERS.register("libreoffice_help")
class LibreOfficeHelp(Reader):
    """Paragraphs of LibreOffice's help from two packages, source and target, joined by page and id; grouped by page."""

    kind: Literal["libreoffice_help"] = "libreoffice_help"

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """The pairs, page after page of the source's package; the target's paragraphs are in memory, some 10 MB.

        Raises:
            DataError: a file is damaged, or is no package with help pages.
        """
        src_file, tgt_file = files
        targets = dict(pages(tgt_file))
        for page, sources in pages(src_file):
            yield from _joined(page, sources, targets.get(page, {}), dropped)


def pages(deb: Path) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """The help pages in a package: the path of each below its language, and its paragraphs.

    Raises:
        DataError: it is damaged, or has no help pages.
    """
    found = False
    for path, data in package_files(deb):
        if path.startswith(_ROOT) and path.endswith(".html") and "/text/" in path:
            found = True
            try:
                html = data.decode("utf-8")
            except UnicodeDecodeError as fault:
                raise DataError(f"{deb}: {path}: not UTF-8 text (byte {fault.start})") from fault
            yield path.removeprefix(_ROOT).partition("/text/")[2], page_paragraphs(html)
    if not found:
        raise DataError(f"{deb}: no help pages of LibreOffice in this package (expected {_ROOT}LANGUAGE/text/...)")


def page_paragraphs(html: str) -> dict[str, list[str]]:
    """The paragraphs and headings of a help page by their id, in the order of their first; code is left out.

    An id may occur several times where a page embeds a part of another one, so each has a list of texts.
    Where the text depends on the system or the module ("Command" or "Ctrl"), it is the text for all others, or the
    first where there is none for all others.
    """
    parser = _PageParser()
    parser.feed(html)
    parser.close()
    return parser.texts


def _joined(
    page: str, sources: Mapping[str, list[str]], targets: Mapping[str, list[str]], dropped: Counter[str]
) -> Iterator[Pair]:
    """Pairs the texts of equal ids; those that are repeated, in the order in which they stand."""
    for name, texts in sources.items():
        translated = targets.get(name)
        if translated is None:
            dropped["paragraph that the other language does not have"] += len(texts)
        elif len(translated) != len(texts):
            dropped["paragraph repeated more often in one language"] += len(texts)
        else:
            for src, tgt in zip(texts, translated, strict=True):
                if src and tgt:
                    yield Pair(src, tgt, group=page)
                elif src or tgt:
                    dropped["paragraph that is empty in one language"] += 1


@dataclass
class _Span:
    """An open span within a block."""

    name: str
    """Its id."""
    kind: Literal["plain", "switch", "variant"]
    """A switch holds variants, texts of which the reader sees one."""
    outer: list[str]
    """The pieces of the text about it."""
    variants: list[tuple[str, list[str]]] = field(default_factory=list)
    """Of a switch: the id of each variant, and its text in pieces."""


class _PageParser(HTMLParser):
    """Collects the texts of blocks with an id."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: dict[str, list[str]] = {}
        self._name = ""  # the id of the open block; empty outside of blocks
        self._tag = ""
        self._pieces: list[str] = []  # the text of the innermost switch or variant, or of the block
        self._spans: list[_Span] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opens a block, or a span in it."""
        if not self._name:
            if tag in _BLOCKS:
                self._open_block(tag, dict(attrs))
        elif tag == "span":
            self._open_span(dict(attrs))
        elif tag == "br":
            self._pieces.append(" ")

    def handle_endtag(self, tag: str) -> None:
        """Closes what is open."""
        if self._name and tag == "span" and self._spans:
            self._close_span(self._spans.pop())
        elif self._name and tag == self._tag:
            while self._spans:
                self._close_span(self._spans.pop())
            self.texts.setdefault(self._name, []).append(" ".join("".join(self._pieces).split()))
            self._name = ""

    def handle_data(self, data: str) -> None:
        """Collects text."""
        if self._name:
            self._pieces.append(data)

    def _open_block(self, tag: str, attributes: dict[str, str | None]) -> None:
        name = attributes.get("id") or ""
        if name.startswith(("par_", "hd_")) and attributes.get("class") not in _CODE:
            self._name, self._tag, self._pieces = name, tag, []

    def _open_span(self, attributes: dict[str, str | None]) -> None:
        span = _Span(attributes.get("id") or "", "plain", self._pieces)
        if attributes.get("class") in _SWITCHES:
            span.kind = "switch"
        elif "hidden" in attributes:
            span.kind = "variant"
        if span.kind != "plain":
            self._pieces = []
        self._spans.append(span)

    def _close_span(self, span: _Span) -> None:
        if span.kind == "plain":
            return
        if span.kind == "variant" and self._spans and self._spans[-1].kind == "switch":
            self._spans[-1].variants.append((span.name, self._pieces))
        elif span.kind == "switch":
            # What stands between the variants is white space of the page's making.
            common = [pieces for name, pieces in span.variants if name.startswith("default")]
            span.outer.extend((common or [pieces for _, pieces in span.variants] or [self._pieces])[0])
        self._pieces = span.outer
