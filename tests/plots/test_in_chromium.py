"""The HTML pictures in a real browser: what a reader sees and does, by mouse and by keyboard, without any network."""

from pathlib import Path

import numpy as np
import pytest

from nmtkit.plots import AttentionPicture, SourceWindow, save
from nmtkit.plots.pages import save_heads
from tests.plots.browser import Browser
from tests.plots.examples import SRC, TGT, head_pictures

# What the page shows, read from its elements.
READ = """
const items = (side) => [...document.querySelectorAll(`#${side} li`)];
const words = (side) => items(side).map((item) => item.firstElementChild.textContent);
const numbers = (side) => items(side).map((item) => item.lastElementChild.textContent);
const chosen = (name) => document.querySelector(`input[name=${name}]:checked`).value;
const pressed = document.querySelector("#squares [aria-pressed=true]");
return {
  heading: document.querySelector("#heading").textContent,
  view: chosen("view"), layer: chosen("layer"), head: chosen("head"),
  left: words("left"), right: words("right"), leftNumbers: numbers("left"), rightNumbers: numbers("right"),
  rightShades: items("right").map((item) => item.style.getPropertyValue("--w")),
  selected: [...document.querySelectorAll("[aria-selected=true]")].map((item) => item.title),
  lines: document.querySelectorAll("#lines path").length,
  squares: document.querySelectorAll("#squares canvas").length,
  pressed: pressed && pressed.getAttribute("aria-label"),
  hint: document.querySelector("#hint").textContent.replace(/[\\u2068\\u2069]/g, ""),
  focus: document.activeElement.getAttribute("aria-label") || document.activeElement.value ||
    (document.activeElement.firstElementChild || document.activeElement).textContent,
};
"""


def shown(numbers: list[str]) -> list[float]:
    return [float(number or 0) for number in numbers]


@pytest.fixture
def explorer(browser: Browser, tmp_path: Path) -> Browser:
    """A page of two sentences, the second in scripts that need care."""
    other = head_pictures(
        ["我", "喜欢", "猫", "</s>"], ["▁أحب", "▁القطط", "</s>"], title="zh-ar", seed=1
    )
    save_heads([head_pictures(), other], tmp_path / "a.html")
    browser.open(tmp_path / "a.html")
    return browser


def test_the_page_opens_on_the_last_layer_of_cross_attention(explorer: Browser) -> None:
    page = explorer.run(READ)
    assert (page["view"], page["layer"], page["head"]) == ("cross", "1", "mean")
    assert (page["left"], page["right"]) == (TGT, SRC)
    assert page["squares"] == 2 * (4 + 1)
    assert page["pressed"] == "layer 2, mean of heads"
    assert page["heading"] == "made up  (score -1.25)"
    assert explorer.run("return performance.getEntriesByType('resource').length") == 0
    mean = head_pictures().cross[1].mean(0)  # while no word is chosen the strongest lines are drawn
    assert page["lines"] == int((mean >= mean.max(-1, keepdims=True) / 2).sum())


def test_pointing_at_a_word_shows_what_it_looks_at(explorer: Browser) -> None:
    explorer.point("#left li:nth-child(2)")
    page = explorer.run(READ)
    weights = head_pictures().cross[1].mean(0)
    np.testing.assert_allclose(shown(page["rightNumbers"]), weights[1], atol=0.00101)
    assert page["leftNumbers"] == [""] * len(TGT)
    assert page["lines"] == len(SRC)
    best = int(weights[1].argmax())
    assert page["hint"].startswith(f"Katz looks at {SRC[best].strip('▁')} ")
    np.testing.assert_allclose(shown(page["rightShades"]), np.sqrt(weights[1]), atol=0.02)

    explorer.point("#right li:nth-child(3)")  # and a word on the right shows who looks at it
    page = explorer.run(READ)
    np.testing.assert_allclose(shown(page["leftNumbers"]), weights[:, 2], atol=0.00101)
    assert page["hint"].startswith("s is looked at by ")
    explorer.point("#heading")
    assert explorer.run(READ)["leftNumbers"] == [""] * len(TGT)


def test_a_click_keeps_a_word(explorer: Browser) -> None:
    explorer.point("#left li:nth-child(1)", click=True)
    explorer.point("#heading")
    explorer.run("document.activeElement.blur()")
    page = explorer.run(READ)
    np.testing.assert_allclose(
        shown(page["rightNumbers"]), head_pictures().cross[1].mean(0)[0], atol=0.00101
    )
    assert page["selected"] == ["▁Die"]
    explorer.point("#left li:nth-child(1)", click=True)
    assert explorer.run(READ)["selected"] == []


@pytest.mark.parametrize("view", ["encoder", "decoder", "cross"])
def test_every_view_layer_and_head(explorer: Browser, view: str) -> None:
    explorer.point(f"input[value={view}]", click=True)
    weights = getattr(head_pictures(), view)
    explorer.point("input[name=layer][value='0']", click=True)
    explorer.point("input[name=head][value='1']", click=True)
    explorer.point("#left li:nth-child(3)")
    page = explorer.run(READ)
    assert (page["view"], page["layer"], page["head"], page["pressed"]) == (
        view,
        "0",
        "1",
        "layer 1, head 2",
    )
    np.testing.assert_allclose(shown(page["rightNumbers"]), weights[0, 1, 2], atol=0.00051)
    everything = explorer.run(
        """const all = (selector, use) => [...document.querySelectorAll(selector)].map(use);
        return all("input[name=layer]", (layer) => {
          layer.click();
          return all("input[name=head]:not([value=mean])", (head) => {
            head.click();
            return all("#left li", (word) => {
              word.dispatchEvent(new MouseEvent("mouseenter"));
              return all("#right li b", (number) => Number(number.textContent));
            });
          });
        });"""
    )
    np.testing.assert_allclose(np.array(everything), weights, atol=0.00051)
    assert page["squares"] == weights.shape[0] * (weights.shape[1] + 1)
    assert page["left"] == (SRC if view == "encoder" else TGT)
    assert page["right"] == (["<s>", *TGT[:-1]] if view == "decoder" else SRC)


def test_a_square_is_dark_where_its_head_looks(explorer: Browser) -> None:
    explorer.point("#squares [aria-label='layer 1, head 3']", click=True)
    assert explorer.run(READ)["head"] == "2"
    width, height, *pixels = explorer.run(
        """const canvas = document.querySelector("[aria-label='layer 1, head 3'] canvas");
        return [canvas.width, canvas.height,
          ...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];"""
    )
    assert (width, height) == (len(SRC), len(TGT))
    red = np.array(pixels).reshape(len(TGT), len(SRC), 4)[..., 0]
    share = np.sqrt(head_pictures().cross[0, 2])
    # from white to the blue of the page
    np.testing.assert_allclose(red, 255 + (20 - 255) * share, atol=2.0)


def test_everything_can_be_done_by_keyboard(explorer: Browser) -> None:
    visited = []
    for _ in range(7):
        explorer.press("Tab")
        visited.append(explorer.run(READ)["focus"])
        outline = explorer.run(
            """const element = document.activeElement.closest("label:has(input)") || document.activeElement;
            return getComputedStyle(element).outlineStyle + " " + getComputedStyle(element).outlineWidth"""
        )
        # a menu has the browser's own ring
        assert visited[-1] == "0" or not ("none" in outline or " 0px" in outline)
    # One stop each: the menu of sentences, three rows of buttons, both lists of words, all squares together.
    assert visited == ["0", "cross", "1", "mean", "▁Die", "▁The", "layer 2, mean of heads"]

    explorer.press("ArrowUp", "ArrowLeft", "ArrowLeft")
    page = explorer.run(READ)
    assert page["pressed"] == page["focus"] == "layer 1, head 3"
    assert (page["layer"], page["head"]) == ("0", "2")
    explorer.press("Home", "ArrowLeft")  # there is nothing further left
    assert explorer.run(READ)["focus"] == "layer 1, head 1"

    explorer.run("document.querySelector('#left li').focus()")
    explorer.press("ArrowDown", "ArrowDown")
    weights = head_pictures().cross[0, 0]
    page = explorer.run(READ)
    assert page["focus"] == "en"
    np.testing.assert_allclose(shown(page["rightNumbers"]), weights[2], atol=0.00051)
    explorer.press("ArrowRight", "End")
    page = explorer.run(READ)
    assert page["focus"] == "</s>"
    np.testing.assert_allclose(shown(page["leftNumbers"]), weights[:, 4], atol=0.00051)
    explorer.press("Enter")
    assert len(explorer.run(READ)["selected"]) == 1
    explorer.press("Escape")
    assert explorer.run(READ)["selected"] == []

    explorer.run("document.querySelector('input[value=cross]').focus()")
    explorer.press("ArrowLeft")
    assert explorer.run(READ)["view"] == "decoder"


def test_another_sentence(explorer: Browser) -> None:
    explorer.run(
        "const menu = document.querySelector('#sentence'); menu.value = '1'; menu.dispatchEvent(new Event('change'))"
    )
    page = explorer.run(READ)
    assert page["heading"] == "zh-ar  (score -1.25)"
    assert page["left"] == ["▁أحب", "▁القطط", "</s>"]
    assert page["right"] == ["我", "喜欢", "猫", "</s>"]
    assert (
        explorer.run("return getComputedStyle(document.querySelector('#left li span')).direction")
        == "rtl"
    )
    menu = explorer.run(
        "return [...document.querySelectorAll('option')].map((option) => option.textContent)"
    )
    assert menu == ["1: The cats sat", "2: 我喜欢猫"]
    nameless = """return [...document.querySelectorAll("button, input, select, [tabindex]")].filter((element) =>
      !(element.ariaLabel || element.textContent.trim() || (element.labels && element.labels[0].textContent.trim())))"""
    assert explorer.run(nameless) == []


def test_light_and_dark(browser: Browser, tmp_path: Path) -> None:
    save_heads([head_pictures()], tmp_path / "a.html")
    grounds = []
    for dark in (False, True):
        browser.open(tmp_path / "a.html", dark=dark)
        colours = browser.run(
            "const style = getComputedStyle(document.body); return [style.color, style.backgroundColor]"
        )
        text, ground = (
            sum(map(int, colour.strip("rgb()").split(",")[:3])) / 765 for colour in colours
        )
        assert abs(text - ground) > 0.7
        grounds.append(ground)
        darkest = browser.run(
            """const canvas = document.querySelector("#squares canvas");
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            let sum = 0; for (let i = 0; i < data.length; i += 4) sum += data[i]; return sum / (data.length / 4)"""
        )
        assert (darkest < 128) == dark
    assert grounds[0] > 0.9
    assert grounds[1] < 0.15


def test_a_narrow_window_shows_everything(browser: Browser, tmp_path: Path) -> None:
    long = [f"▁Donaudampfschifffahrtsgesellschaft{i}" for i in range(60)]
    save_heads([head_pictures(long, long[:50])], tmp_path / "a.html")
    browser.open(tmp_path / "a.html", width=520, height=700)
    too_wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.run(too_wide) <= 0
    rows, drawing = browser.run(
        """return [document.querySelector("#right").getBoundingClientRect().height,
        document.querySelector("#lines").getBoundingClientRect().height]"""
    )
    assert rows == pytest.approx(drawing, abs=1)  # a line ends at the middle of its word


def test_the_page_of_heatmaps(browser: Browser, tmp_path: Path) -> None:
    weights = np.array([[0.75, 0.25, 0.0], [0.0, 0.2, 0.8]])
    windows = [SourceWindow(0.5, -0.5, 1.5), SourceWindow(1.5, 0.5, 2.5)]
    save(
        [AttentionPicture(["a", "b", "c"], ["x", "y"], weights, windows=windows)],
        tmp_path / "a.html",
    )
    browser.open(tmp_path / "a.html")
    browser.point(".tgt span:nth-child(2)")
    lit = browser.run(
        """return [...document.querySelectorAll(".src span")].map((word) => [word.textContent,
        word.style.getPropertyValue("--w")])"""
    )
    assert lit == [["a", "0"], ["b", "0.250"], ["c", "1.000"]]
    assert browser.run(
        "return document.querySelector('.hint').textContent.replace(/[\\u2068\\u2069]/g, '')"
    ) == ("y ← c 0.80 · b 0.20")
    hatched = browser.run(
        """return [...document.querySelectorAll("tbody td")].map((cell) =>
        getComputedStyle(cell).backgroundImage.includes("repeating-linear-gradient"))"""
    )
    assert hatched == [False, False, True, True, False, False]
