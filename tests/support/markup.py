"""What the tests read from the files that were written: the elements of pages, the texts and shapes of SVG."""

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

Attributes = dict[str, str | None]
SVG = "{http://www.w3.org/2000/svg}"


def svg_texts(path: Path) -> list[tuple[str, str]]:
    """The texts of an SVG, each with its style."""
    return [
        ("".join(node.itertext()), node.get("style", ""))
        for node in ET.parse(path).iter(f"{SVG}text")
    ]


def svg_shapes(path: Path, style: str) -> list[list[tuple[float, float]]]:
    """The corners, from the left and from the top, of all shapes of an SVG whose style has these words."""
    shapes = []
    for node in ET.parse(path).iter(f"{SVG}path"):
        if style in node.get("style", ""):
            numbers = [float(number) for number in re.findall(r"-?[\d.]+", node.get("d", ""))]
            shapes.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return shapes


class Page(HTMLParser):
    """The elements of a page, tag, attributes and the text up to the next tag; and all text outside of styles."""

    VOID = ("meta", "link", "img", "input")

    def __init__(self, page: Path | str) -> None:
        super().__init__()
        self.html = page.read_text(encoding="utf-8") if isinstance(page, Path) else page
        self.text = ""
        self.elements: list[tuple[str, Attributes, str]] = []
        self._open: list[str] = []
        self._begins = False
        self.feed(self.html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), ""))
        self._begins = tag not in self.VOID
        self._open += [tag] * self._begins

    def handle_endtag(self, tag: str) -> None:
        assert tag in self.VOID or self._open.pop() == tag
        self._begins = False

    def handle_data(self, data: str) -> None:
        if self._begins:
            tag, attributes, text = self.elements[-1]
            self.elements[-1] = (tag, attributes, text + data)
        if "style" not in self._open:
            self.text += data

    def attributes(self, tag: str) -> list[Attributes]:
        return [attributes for name, attributes, _ in self.elements if name == tag]

    def texts(self) -> list[str]:
        return [text for _, _, text in self.elements]

    def check_stands_alone(self) -> None:
        """Nothing is loaded from anywhere, and links lead to the page itself."""
        assert not re.search(
            r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(|fetch\(|import\(", self.html
        )
        assert "default-src 'none'" in self.html
        links = [attributes.get("href") or "data:," for _, attributes, _ in self.elements]
        assert {link for link in links if not link.startswith("#")} <= {"data:,"}
        ids = [attributes.get("id") for _, attributes, _ in self.elements]
        assert all(link[1:] in ids for link in links if link.startswith("#"))
        assert all(
            (attributes.get("src") or "data:").startswith("data:")
            for _, attributes, _ in self.elements
        )
