"""Pictures as the output of a cell of a notebook: a page in a frame."""

import html
import re
from pathlib import Path

import numpy as np
import pytest

from nmtkit.plots import AttentionPicture
from nmtkit.plots.trees import RankedResult, SearchTree, TreeNode
from tests.plots.browser import Browser
from tests.plots.examples import head_pictures, summary
from tests.support.markup import Page

SENTENCE = "The young woman does not give him the red book, and after working Nina saw a few quiet museums. </s>"
TRANSLATION = (
    'La jeune femme ne lui donne pas le livre rouge, et après <b>"travailler"</b> & voir. </s>'
)


def attention() -> AttentionPicture:
    src, tgt = SENTENCE.split(), TRANSLATION.split()
    weights = np.random.default_rng(0).dirichlet(np.ones(len(src)), size=len(tgt))
    return AttentionPicture(src, tgt, weights, title="demo")


def search() -> SearchTree:
    kept = TreeNode('▁"La"', 0, "kept", -0.5, -0.5, 0.0, -0.5)
    pruned = TreeNode("▁<b>", 0, "pruned", -2.0, -2.0, -1.5, -2.0)
    ended = TreeNode("</s>", 0, "ended", -0.25, -0.75, 0.0, -0.375)
    best = RankedResult("La", -0.375, -0.75, True, 1, 0)
    return SearchTree(
        "a & b", "demo", "beam size 1", 1, [[kept, pruned], [ended]], [best], "The search stopped"
    )


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (attention(), ["museums.", '<b>"travailler"</b>', "demo"]),
        (summary(), ["Ravensmoor", "Summary"]),
        (head_pictures(), ["Katz", "All heads"]),
        (search(), ['▁"La"', "▁<b>", "1.50 below"]),
    ],
    ids=["attention", "summary", "heads", "search"],
)
def test_a_picture_is_a_page_in_a_frame(
    picture: AttentionPicture | SearchTree, words: list[str]
) -> None:
    output = picture._repr_html_()
    cell = Page(output)
    # nothing of the page leaks into the notebook
    assert [name for name, _, _ in cell.elements] == ["iframe"]
    (frame,) = cell.attributes("iframe")
    page = Page(frame["srcdoc"] or "")
    page.check_stands_alone()
    assert page.html.startswith("<!doctype html>")
    for word in words:
        assert word in page.text, word


def in_a_notebook(browser: Browser, path: Path, output: str, width: int) -> None:
    """Opens a page with styles of its own that has the output in it."""
    style = "* { color: red; font-size: 30px; letter-spacing: 9px } body { margin: 0 }"
    cell = f'<div style="width:{width}px">{output}</div>'
    path.write_text(
        f"<!doctype html><meta charset=utf-8><style>{style}</style>{cell}", encoding="utf-8"
    )
    browser.open(path)


INSIDE = "const inside = document.querySelector('iframe').contentDocument;"


def test_styles_of_a_notebook_stay_outside(browser: Browser, tmp_path: Path) -> None:
    in_a_notebook(browser, tmp_path / "a.html", attention()._repr_html_(), width=900)
    style = browser.run(
        f"""{INSIDE} const style = getComputedStyle(inside.querySelector(".src span"));
        return [style.color, style.letterSpacing];"""
    )
    assert style[0] != "rgb(255, 0, 0)"
    assert style[1] == "normal"
    text = browser.run(f"{INSIDE} return inside.body.textContent")
    assert '<b>"travailler"</b>' in text


def test_a_sentence_of_twenty_words_fits_a_telephone(browser: Browser, tmp_path: Path) -> None:
    """All columns of the heat-map are in sight at 400 pixels, and its words are whole."""
    assert len(attention().src_words) == 20
    in_a_notebook(browser, tmp_path / "a.html", attention()._repr_html_(), width=400)
    width, content = browser.run(
        f"""{INSIDE} const table = inside.querySelector(".scroll");
        return [table.clientWidth, table.scrollWidth];"""
    )
    assert content <= width


def test_words_beside_their_weights_are_whole_on_a_telephone(
    browser: Browser, tmp_path: Path
) -> None:
    picture = head_pictures(
        ["▁young", "▁woman", "▁interesting", "</s>"], ["▁jeune", "▁femme", "▁chat", "</s>"]
    )
    in_a_notebook(browser, tmp_path / "a.html", picture._repr_html_(), width=400)
    shown = browser.run(
        f"""{INSIDE} inside.querySelector("#left li").click();
        return [...inside.querySelectorAll("#right li span")].map(
          (word) => [word.nextElementSibling.textContent, word.scrollWidth - word.clientWidth]);"""
    )
    assert [number != "" for number, _ in shown] == [True] * 4
    assert [cut for _, cut in shown] == [0] * 4


def test_the_frame_is_as_high_as_its_picture() -> None:
    short = re.findall(
        r"height:(\d+)px", html.unescape(search()._repr_html_()).rpartition("</html>")[2]
    )
    assert [200 < int(height) <= 900 for height in short] == [True]
