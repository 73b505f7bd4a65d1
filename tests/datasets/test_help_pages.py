from pathlib import Path

import pytest

from nmtkit.core.errors import DataError
from nmtkit.datasets.debian_readers import LibreOfficeHelp, page_paragraphs, pages
from nmtkit.datasets.readers import Pair
from tests.datasets.corpus_files import read
from tests.datasets.debian_archive import build

PAGE = """<!DOCTYPE html>
<html><head><title>Notes</title><script src="help.js"></script><style>p > a { color: red }</style></head>
<body><header><p dir="auto">Office 1.0 Help</p></header>
<a name="bm_id1"></a><meta itemprop="keywords" content="notes; adding">
<h1 id="hd_id10" dir="auto"><a name="notes"></a>Adding&#32;Notes &amp; More</h1>
<p id="par_id11" class="paragraph" dir="auto">
   Choose <span class="menuitem">Insert - <span class="emph">Note</span></span>,&nbsp;then
   click <a href="x.html">OK<img src="ok.svg" alt="Icon"></a>.<br>Water is H<sub>2</sub>O &lt;liquid&gt;.</p>
<ul><li><p id="par_idN12" class="listitem" dir="auto">One item</p></li></ul>
<table><tr><td><p id="par_id13" class="tablecontentintable">In a cell</p></td></tr></table>
<div class="tip"><div class="notetext"><p id="par_id14" dir="auto">A tip</p></div></div>
<pre dir="auto"><code class="language-visual-basic">Print "&lt;p id='par_id99'&gt;"</code></pre>
<p id="par_id15" class="code" dir="auto">Dim a As Long</p>
<p id="par_id16" class="paragraph" dir="auto"></p>
<div class="embedded"><p class="embedded" dir="auto"><a name="other"></a>Without an id</p></div>
<footer><p id="bm_module" dir="auto">Module</p></footer>
</body></html>
"""


def test_paragraphs_of_a_page() -> None:
    assert page_paragraphs(PAGE) == {
        "hd_id10": ["Adding Notes & More"],
        "par_id11": ["Choose Insert - Note, then click OK. Water is H2O <liquid>."],
        "par_idN12": ["One item"],
        "par_id13": ["In a cell"],
        "par_id14": ["A tip"],
        "par_id16": [""],
    }


def _press(*variants: str) -> str:
    return f'Press <span id="swlnsys1" class="switchinline">\n{"".join(variants)}\n</span><b>+C</b> now.'


MAC = '<span hidden="true" id="MACnote1" class="MAC"><span class="keycode">Command</span></span>\n'
UNIX = '<span hidden="true" id="UNIXnote1" class="UNIX">Meta</span>\n'
COMMON = '<span hidden="true" id="defaultnote1"><span class="keycode">Ctrl</span></span>\n'


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        (_press(COMMON, MAC, UNIX), "Press Ctrl+C now."),
        (_press(UNIX, MAC), "Press Meta+C now."),
        (_press(), "Press +C now."),
        (
            'In text: <span class="switch" id="swlnapp1"><span hidden="true" id="WRITER1" class="WRITER">'
            f'{_press(MAC, COMMON)}</span><span hidden="true" id="CALC1" class="CALC">Press F2.</span></span>',
            "In text: Press Ctrl+C now.",
        ),
        ('A <span hidden="true" id="x">hidden </span>text', "A text"),
    ],
    ids=["common-first", "none-common", "none", "within-variants", "hidden-without-switch"],
)
def test_of_several_variants_one_is_read(inner: str, text: str) -> None:
    assert page_paragraphs(f'<p id="par_id1">{inner}</p>') == {"par_id1": [text]}


@pytest.mark.parametrize(
    ("html", "texts"),
    [
        (
            '<span class="switch" id="s"><span hidden="true" id="WRITER1"><p id="par_id1">Text.</p></span>'
            '<span hidden="true" id="CALC1"><p id="par_id2">Cells.</p></span></span><p id="par_id3">All.</p>',
            {"par_id1": ["Text."], "par_id2": ["Cells."], "par_id3": ["All."]},
        ),
        (
            '<p id="par_id1">One <span class="emph">two</p><p id="par_id2">three</span> four</p>',
            {"par_id1": ["One two"], "par_id2": ["three four"]},
        ),
    ],
    ids=["switch-around-paragraphs", "span-never-closed"],
)
def test_odd_pages(html: str, texts: dict[str, list[str]]) -> None:
    assert page_paragraphs(html) == texts


def _page(**texts: str) -> str:
    return "".join(
        f'<p id="par_{name[:3]}" class="paragraph">{text}</p>\n' for name, text in texts.items()
    )


def _package(folder: Path, language: str, contents: dict[str, str]) -> Path:
    root = f"usr/share/libreoffice/help/{language}"
    contents = {f"{root}/text/{name}": text for name, text in contents.items()} | {
        f"{root}/noscript.html": _page(id9="No script"),
        f"{root}/bookmarks.js": "var bookmarks = 1",
        "usr/share/doc/copyright": "free",
    }
    return build(folder / f"help-{language}.deb", contents)


def test_pairs_are_joined_by_page_and_id(tmp_path: Path) -> None:
    english = {
        "swriter/guide/a.html": _page(
            id1="One", id2="Two", id3="Only English", id4="Again", id4b="Again!", id5="Full"
        ),
        "scalc/b.html": _page(id1="One of another page", id6="Thrice", id6b="Thrice", id7=""),
        "scalc/c.html": _page(id1="A page that is not translated"),
    }
    german = {
        "scalc/b.html": _page(
            id6="Dreimal", id1="Eins einer anderen Seite", id7="Nichts", id8="Nur deutsch"
        ),
        "swriter/guide/a.html": _page(id2="Zwei", id1="Eins", id4="Wieder", id4b="Wieder!", id5=""),
    }
    files = [_package(tmp_path, "en-US", english), _package(tmp_path, "de", german)]
    found, dropped = read(LibreOfficeHelp(), *files)
    assert sorted(found, key=lambda pair: (pair.group, pair.src)) == [
        Pair("One of another page", "Eins einer anderen Seite", group="scalc/b.html"),
        Pair("Again", "Wieder", group="swriter/guide/a.html"),
        Pair("Again!", "Wieder!", group="swriter/guide/a.html"),
        Pair("One", "Eins", group="swriter/guide/a.html"),
        Pair("Two", "Zwei", group="swriter/guide/a.html"),
    ]
    assert dropped == {
        "paragraph missing in the other language": 2,
        "paragraph repeated more often in one language": 2,
        "paragraph that is empty in one language": 2,
    }


def test_packages_without_readable_help_pages_are_named(tmp_path: Path) -> None:
    other = build(tmp_path / "vim.deb", {"usr/share/vim/help.html": _page(id1="One")})
    with pytest.raises(
        DataError, match=r"vim\.deb: this package contains no LibreOffice help pages"
    ):
        list(pages(other))
    page = {
        "usr/share/libreoffice/help/de/text/a.html": '<p id="par_id1">für</p>'.encode("latin-1")
    }
    with pytest.raises(
        DataError,
        match=r"de\.deb: usr/share/libreoffice/help/de/text/a\.html is not valid UTF-8 .*byte 17",
    ):
        list(pages(build(tmp_path / "de.deb", page)))
    with pytest.raises(DataError, match="one package per language, but the sources have 1 files"):
        read(LibreOfficeHelp(), other)
