"""Summaries in a real browser: the article's colours by coverage and by word, by mouse and by keyboard, offline."""

from pathlib import Path

import numpy as np
import pytest

from nmtkit.plots import AttentionPicture, save
from tests.plots.browser import Browser
from tests.plots.examples import ARTICLE, COVERAGE, P_GEN, SUMMARY, WEIGHTS, long_summary, summary

# What each section shows: shades as a browser sees them (the alpha of the layer over the word), what is read out.
READ = """
return [...document.querySelectorAll("section.summary")].map((section) => {
  const words = (side) => [...section.querySelectorAll(`.${side} span`)];
  const shades = (side) => words(side).map((word) => {
    const parts = getComputedStyle(word).backgroundImage.match(/.*rgba?\\(([^)]*)\\)/)[1].split(/[ ,/]+/);
    return parts.length > 3 ? Number(parts[3]) : 1;
  });
  const plain = (text) => text.replace(/[\\u2068\\u2069]/g, "").replace(/\\u00a0/g, " ");
  return {
    source: shades("source"), target: shades("target"),
    strong: words("source").map((word) => word.classList.contains("strong")),
    on: [...section.querySelectorAll(".on")].map((word) => word.textContent),
    scale: plain(section.querySelector(".what").textContent),
    hint: plain(section.querySelector(".hint").textContent),
    stops: [...section.querySelectorAll("span[tabindex='0']")].map((word) => word.textContent),
    focus: section.contains(document.activeElement) ? document.activeElement.textContent : null,
  };
});
"""


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    """A page of two summaries."""
    save([summary(), long_summary(30, 6)], tmp_path / "a.html")
    browser.open(tmp_path / "a.html")
    browser.point("h1")  # the mouse stays where the last test left it
    return browser


def first(page: Browser) -> dict[str, object]:
    return page.run(READ)[0]


def check_coverage(page: Browser) -> None:
    found = first(page)
    np.testing.assert_allclose(found["source"], np.array(COVERAGE) / 0.9, atol=0.003)
    assert found["target"] == [0] * 5
    assert found["strong"] == [value > 0.785 * 0.9 for value in COVERAGE]
    assert (found["on"], found["scale"], found["hint"]) == ([], "coverage, 0 to 0.90", "")


def check_word(page: Browser, row: int) -> dict[str, object]:
    """The article has the shades of that word of the summary, the strongest for the largest of its weights."""
    found, weights = first(page), np.array(WEIGHTS[row])
    np.testing.assert_allclose(found["source"], weights / weights.max(), atol=0.004)
    assert found["on"] == [SUMMARY[row]]
    assert found["scale"] == f"weights of {SUMMARY[row]}, 0 to {weights.max():.2f}"
    return found


def test_the_page_opens_with_coverage_and_loads_nothing(page: Browser) -> None:
    check_coverage(page)
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


def test_pointing_at_a_word_of_the_summary(page: Browser) -> None:
    page.point(".target span:nth-child(1)")
    found = check_word(page, 0)
    assert found["hint"] == "Tavares (copied, p_gen 0.05) ← Tavares 0.80 · scored 0.20"
    page.point(".target span:nth-child(4)")
    best = "beat 0.30 · Westbrook 0.30 · Ravensmoor 0.20 · after 0.10 · twice. 0.10"
    assert check_word(page, 3)["hint"] == f"home. (p_gen 0.75) ← {best}"
    page.point("h1")
    check_coverage(page)


def test_pointing_at_a_word_of_the_article(page: Browser) -> None:
    page.point(".source span:nth-child(2)")
    found = first(page)
    np.testing.assert_allclose(found["target"], np.array([0, 0.5, 0.1, 0.3, 0]) / 0.5, atol=0.004)
    np.testing.assert_allclose(found["source"], np.array(COVERAGE) / 0.9, atol=0.003)
    assert found["hint"] == "beat (coverage 0.90) → leads 0.50 · home. 0.30 · Ravensmoor 0.10"
    assert found["scale"] == "weights on beat, 0 to 0.50"


def test_by_keyboard(page: Browser) -> None:
    assert first(page)["stops"] == [SUMMARY[0], ARTICLE[0]]
    page.press("Tab")
    check_word(page, 0)
    page.press("ArrowRight", "ArrowDown")
    assert check_word(page, 2)["focus"] == "Ravensmoor"
    page.press("ArrowLeft")
    check_word(page, 1)
    page.press("End")
    check_word(page, 4)
    page.press("ArrowRight")  # there is none behind the last
    check_word(page, 4)
    page.press("Home", "ArrowUp")
    check_word(page, 0)
    page.press("ArrowRight")
    assert first(page)["stops"] == [SUMMARY[1], ARTICLE[0]]  # Tab comes back to where it was
    page.press("Escape")
    check_coverage(page)


def test_tab_goes_from_text_to_text(page: Browser) -> None:
    page.press("Tab", "Tab")
    assert first(page)["focus"] == ARTICLE[0]
    assert str(first(page)["hint"]).startswith("Ravensmoor (coverage 0.80) → Ravensmoor 0.60")
    page.press("Tab")
    assert [section["focus"] for section in page.run(READ)] == [None, "out0"]
    assert first(page)["hint"] == ""


def test_a_click_keeps_a_word_while_the_mouse_is_elsewhere(page: Browser) -> None:
    page.point(".target span:nth-child(3)", click=True)
    page.point("h1")
    check_word(page, 2)
    page.point(".target span:nth-child(1)")
    check_word(page, 0)
    page.point("h1")
    check_word(page, 2)


def test_how_words_were_made_can_be_seen(page: Browser) -> None:
    """Copied words are bold and of their own colour; the bar below each word ends where its p_gen says."""
    style = """return [...document.querySelectorAll("section:first-of-type .target span")].map((word) => {
      const style = getComputedStyle(word);
      return [style.fontWeight, style.color, style.backgroundImage.match(/[\\d.]+%/)[0], style.backgroundSize];
    })"""
    found = page.run(style)
    assert [weight for weight, *_ in found] == ["700", "400", "700", "400", "400"]
    assert len({colour for _, colour, *_ in found}) == 2
    np.testing.assert_allclose(
        [float(end.rstrip("%")) / 100 for *_, end, _ in found], P_GEN, atol=0.001
    )
    assert all(size.startswith("100% 4px") for *_, size in found)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_word_can_be_read(browser: Browser, tmp_path: Path, dark: bool) -> None:
    """Contrast of at least 4.5 to 1 (WCAG 2, AA) between a word and what it lies on, whatever its shade."""
    weights = np.array([np.arange(201) / 200, np.zeros(201)])
    both = AttentionPicture(["word"] * 201, ["x", "y"], weights, article=True)
    copied = AttentionPicture(
        ["a"], ["x"] * 201, weights[:1].T, p_gen=np.zeros(201), copied=frozenset(range(201))
    )
    save([both, copied], tmp_path / "a.html")
    browser.open(tmp_path / "a.html", dark=dark)
    for selector in ("h1", "section:last-of-type .source span"):
        browser.point(selector)
        contrasts = browser.run(CONTRASTS)
        assert len(contrasts) == 2 * (201 + 1) + 1
        assert min(contrasts) >= 4.5, selector


CONTRASTS = """
const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (colour) => {
  const linear = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = colour.map((value) => linear(value / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const section = getComputedStyle(document.querySelector("section"));
const paper = numbers(section.backgroundColor);
const shade = numbers(section.getPropertyValue("--hue"));
return [...document.querySelectorAll(".text span")].map((word) => {
  const style = getComputedStyle(word);
  const alpha = Number(style.getPropertyValue("--w") || 0);
  const ground = paper.slice(0, 3).map((value, i) => value * (1 - alpha) + shade[i] * alpha);
  const [a, b] = [light(numbers(style.color)), light(ground)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
});
"""


def test_a_narrow_window(browser: Browser, tmp_path: Path) -> None:
    """The texts stand one below the other, and the words of the summary stay in sight of the article."""
    save([long_summary(400, 60)], tmp_path / "a.html")
    browser.open(tmp_path / "a.html", width=500, height=900)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    browser.run("scrollTo(0, 1200)")
    box = browser.run("return document.querySelector('.written').getBoundingClientRect()")
    assert box["top"] >= 0
    assert box["bottom"] < 0.7 * browser.run("return innerHeight")


def test_from_right_to_left(browser: Browser, tmp_path: Path) -> None:
    words = ["فاز", "الفريق", "أمس", "</s>"]
    save([AttentionPicture(words, words, np.eye(4), p_gen=np.full(4, 0.25))], tmp_path / "a.html")
    browser.open(tmp_path / "a.html")
    browser.point(".target span:nth-child(2)", click=True)
    browser.point("h1")
    lefts = browser.run(
        "return [...document.querySelectorAll('.source span')].map((w) => w.getBoundingClientRect().left)"
    )
    assert lefts == sorted(lefts, reverse=True)
    browser.press("ArrowLeft")  # onward, as the text runs
    assert browser.run(READ)[0]["focus"] == "أمس"
