"""The page of a beam search."""

import re
from pathlib import Path

import pytest

from nmtkit.core.errors import NmtkitError
from nmtkit.plots.trees import RankedResult, SearchTree, TreeNode, save_search


def tree() -> SearchTree:
    steps = [
        [
            TreeNode("▁<b>", 0, "kept", -0.5, -0.5, 1.0, -0.5),
            TreeNode("▁two", 0, "kept", -1.5, -1.5, 0.0, -1.5),
            TreeNode("▁three", 0, "pruned", -2.0, -2.0, -0.5, -2.0),
        ],
        [
            TreeNode("</s>", 0, "ended", -0.25, -0.75, 0.5, -0.375),
            TreeNode("▁two", 0, "blocked", -0.5, -2.0, 0.75, None, "no_repeat_ngram"),
        ],
    ]
    best = RankedResult("<b>", -0.375, -0.75, True, 1, 0)
    return SearchTree("a & b", "demo", "beam size 2", 2, steps, [best], "The search stopped")


def test_the_page_shows_every_continuation_and_where_it_comes_from(tmp_path: Path) -> None:
    save_search([tree()], tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert re.findall(r'class="node ([a-z ]+)"', page) == [
        "kept best",
        "kept",
        "pruned",
        "ended best",
        "blocked",
    ]
    assert re.findall(r'<path class="([a-z ]+)" d="([^"]+)"', page) == [
        ("blocked", "M138 51C154 51 154 109 170 109"),
        ("ended best", "M138 51C154 51 154 51 170 51"),
    ]
    assert f"width:{2 * 170}px" in page
    assert "<b>" not in page.replace('<b dir="auto">', "").replace("<b>{", "")
    assert (
        "▁&lt;b&gt; &lt;/s&gt;: ended; token -0.250, whole hypothesis -0.750, 0.500 above the last one that could end"
        in page
    )
    assert (
        'left:170px;top:86px;width:138px;height:46px" title="▁&lt;b&gt; ▁two: blocked by no_repeat_ngram;'
        in page
    )
    assert '<b dir="auto">▁three</b><i>-2.000</i><small>0.50 below</small>' in page
    assert '<b dir="auto">▁two</b><i>-2.000</i><small>no_repeat_ngram</small>' in page
    assert (
        "not among the 2 best; the second number shows by how much log-probability it missed"
        in page
    )
    assert "<td>-0.375000</td><td>-0.750000</td>" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_only_pages(tmp_path: Path) -> None:
    for name in ("a.png", "a.txt", "none/a.html"):
        with pytest.raises(NmtkitError):
            save_search([tree()], tmp_path / name)
