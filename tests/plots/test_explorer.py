import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from nmtkit.core.errors import NmtkitError
from nmtkit.plots import HeadsPicture
from nmtkit.plots.pages import DIGITS, pack, save_heads
from tests.plots.examples import SRC, TGT, head_pictures
from tests.support.markup import Page


def scripts(page: Page) -> list[str]:
    return [text for tag, _, text in page.elements if tag == "script"]


def unpack(text: str, shape: tuple[int, ...]) -> np.ndarray:
    values = [
        64 * DIGITS.index(text[i]) + DIGITS.index(text[i + 1]) for i in range(0, len(text), 2)
    ]
    return np.array(values).reshape(shape) / 1000


def test_templates_are_installed() -> None:
    """An installed package has only the files that `pyproject.toml` names."""
    root = Path(__file__).resolve().parents[2]
    patterns = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["package-data"]
    files = {"nmtkit.plots": "plots/templates/*.*", "nmtkit.datacheck": "datacheck/page.*"}
    for package, files_of_pages in files.items():
        folder = root / package.replace(".", "/")
        installed = {
            path
            for pattern in [*patterns["*"], *patterns.get(package, [])]
            for path in folder.glob(pattern)
        }
        pages = set((root / "nmtkit").glob(files_of_pages))
        assert {".css", ".html"} <= {path.suffix for path in pages}
        assert pages <= installed


def test_two_signs_a_weight() -> None:
    # 0, 1, 64 = 1*64, 500 = 7*64+52, 1000 = 15*64+40
    assert pack(np.array([0.0, 0.001, 0.064, 0.5, 1.0])) == "AAABBAH0Po"
    assert pack(np.array([0.0004, 0.0006, 1.0000001])) == "AAABPo"
    weights = np.random.default_rng(0).random((2, 3, 4, 5))
    np.testing.assert_allclose(unpack(pack(weights), weights.shape), weights, atol=0.0005)


def test_the_page_holds_all_words_and_weights(tmp_path: Path) -> None:
    given = head_pictures()
    save_heads([given], tmp_path / "a.html")
    first = (tmp_path / "a.html").read_bytes()
    save_heads([given], tmp_path / "a.html")
    assert (tmp_path / "a.html").read_bytes() == first
    (found,) = json.loads(scripts(Page(tmp_path / "a.html"))[0])
    assert found["heading"] == "made up  (score -1.25)"
    assert (found["src"], found["tgt"]) == (SRC, TGT)
    assert found["inputs"] == ["<s>", *TGT[:-1]]
    assert found["layers"] == {"encoder": 3, "decoder": 2, "cross": 2}
    assert found["heads"] == {"encoder": 2, "decoder": 4, "cross": 4}
    for kind in ("encoder", "decoder", "cross"):
        weights = getattr(given, kind)
        np.testing.assert_allclose(unpack(found[kind], weights.shape), weights, atol=0.0005)


def test_the_page_stands_alone_and_no_word_can_end_its_script(tmp_path: Path) -> None:
    evil = [
        "</script><script>alert(1)</script>",
        "<!--",
        '"',
        "\\",
        "\u2028",
        "{{ 7 * 7 }}{% raw %}",
    ]
    save_heads([head_pictures(evil, evil, title=evil[0])], tmp_path / "a.html")
    page = Page(tmp_path / "a.html")
    page.check_stands_alone()
    facts, _ = scripts(page)
    (found,) = json.loads(facts)
    assert found["src"] == evil
    assert found["heading"].startswith(evil[0])


def broken(value: float) -> HeadsPicture:
    given = head_pictures()
    given.cross[1, 2, 3, 4] = value
    return given


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        ([], "no sentences"),
        ([head_pictures(), head_pictures(SRC, [])], "sentence 2 has no words"),
        ([broken(np.nan)], "sentence 1 has non-finite attention weights"),
        ([broken(np.inf)], "sentence 1 has non-finite attention weights"),
    ],
    ids=["none", "no words", "nan", "infinite"],
)
def test_what_cannot_be_shown(tmp_path: Path, pictures: list[HeadsPicture], message: str) -> None:
    with pytest.raises(NmtkitError, match=message):
        save_heads(pictures, tmp_path / "a.html")
    with pytest.raises(NmtkitError, match=r"use a name that ends in \.html"):
        save_heads(pictures, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
