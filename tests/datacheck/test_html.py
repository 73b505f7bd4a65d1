"""The page of a diagnosis: whole, self-contained, and safe with any text."""

import re
from collections import Counter

import pytest

from nmtkit.data.text.faults import DUPLICATE, ENCODING, FaultLocation
from nmtkit.datacheck.findings import Diagnosis, SplitDiagnosis
from nmtkit.datacheck.html import diagnosis_page
from nmtkit.datacheck.report import ReportTable
from tests.support.markup import Page


@pytest.fixture
def diagnosis() -> Diagnosis:
    train = SplitDiagnosis("train", pairs=1000)
    train.src.words = Counter({5: 600, 9: 400})
    train.tgt.words = Counter({6: 700, 70: 300})
    train.ratios = Counter({10: 900, 45: 100})
    train.src.scripts = Counter({"Latin": 5000, "Cyrillic": 100})
    train.src.language = "uk"
    train.find(
        ENCODING,
        FaultLocation(
            "data/train.en", 12, 4, "caf\udce9 <script>alert(1)</script> {{ 7 * 7 }}{% raw %}"
        ),
    )
    train.find(DUPLICATE, FaultLocation("data/train.en", 30, None, "שלום & goodbye"), 400)
    test = SplitDiagnosis("test", pairs=0)
    return Diagnosis({"train": train, "test": test})


def test_the_page_says_all_that_was_found(diagnosis: Diagnosis) -> None:
    sheet = ReportTable(
        "What preprocessing will do", ("split", "pairs"), (("train", "1,000"),), "A note."
    )
    page = Page(diagnosis_page(diagnosis, "Data check: <mine>", "train.en", [sheet]))
    for said in (
        "Data check: <mine>",
        "Not ready for training: 1 error in 1,000 pairs, and 400 warnings.",
        "train.en:12:4",
        "⟨byte E9⟩",
        "<script>alert(1)</script> {{ 7 * 7 }}{% raw %}",
        ENCODING.remedy,
        DUPLICATE.title,
        "and 399 more",
        "What preprocessing will do",
        "A note.",
        "mean 6.6",
        "Cyrillic",
        "source: the language is uk",
    ):
        assert said in page.text, said
    assert len(page.attributes("svg")) == 2
    assert len(page.attributes("rect")) == 5  # a bar of sources, two of targets, two of ratios


def test_bars_of_scripts_are_of_sides_with_several(diagnosis: Diagnosis) -> None:
    """A single script is a sentence; a bar of 100 % would say no more."""
    split = diagnosis.splits["train"]
    split.tgt.scripts = Counter({"Greek": 70})
    page = Page(diagnosis_page(diagnosis))
    assert "target: all letters are Greek" in page.text
    assert "source: all letters" not in page.text
    assert page.html.count('class="script"') == 2
    split.src.scripts = Counter({"Latin": 5000})
    page = Page(diagnosis_page(diagnosis))
    assert "source: all letters are Latin" in page.text
    assert "letters by script" not in page.text


def test_the_page_needs_nothing_else(diagnosis: Diagnosis) -> None:
    page = Page(diagnosis_page(diagnosis))
    page.check_stands_alone()
    assert page.attributes("script") == []
    assert "prefers-color-scheme: dark" in page.html
    assert not re.search("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]", page.html)


def test_a_clean_or_empty_corpus_makes_a_short_page() -> None:
    split = SplitDiagnosis("data")
    assert "No problems found in 0 lines." in Page(diagnosis_page(Diagnosis({"data": split}))).text
    split.pairs, split.src.words = 3, Counter({4: 3})
    page = Page(diagnosis_page(Diagnosis({"data": split})))
    assert "No problems found in 3 lines." in page.text
    assert "Where, and what to do" not in page.text
    assert len(page.attributes("svg")) == 1
