"""The page of a diagnosis: whole, self-contained, and safe with any text."""

import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from nmtkit.corpus.faults import DUPLICATE, ENCODING, FaultLocation
from nmtkit.diagnosis.findings import Diagnosis, SplitDiagnosis
from nmtkit.diagnosis.html import diagnosis_page
from nmtkit.diagnosis.report import ReportTable


class Reader(HTMLParser):
    """Collects text and attributes, and checks that tags are closed in order."""

    VOID = ("meta", "link")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture
def diagnosis() -> Diagnosis:
    train = SplitDiagnosis("train", pairs=1000)
    train.src.words = Counter({5: 600, 9: 400})
    train.tgt.words = Counter({6: 700, 70: 300})
    train.ratios = Counter({10: 900, 45: 100})
    train.src.scripts = Counter({"Latin": 5000, "Cyrillic": 100})
    train.find(
        ENCODING, FaultLocation("data/train.en", 12, 4, "caf\udce9 <script>alert(1)</script> {{ 7 * 7 }}{% raw %}")
    )
    train.find(DUPLICATE, FaultLocation("data/train.en", 30, None, "שלום & goodbye"), 400)
    test = SplitDiagnosis("test", pairs=0)
    return Diagnosis({"train": train, "test": test}, seconds=2.5)


def test_the_page_says_all_that_was_found(diagnosis: Diagnosis) -> None:
    sheet = ReportTable("What preprocessing will do", ("split", "pairs"), (("train", "1,000"),), "A note.")
    reader = read(diagnosis_page(diagnosis, "Data check: <mine>", "train.en", [sheet]))
    for said in (
        "Data check: <mine>",
        "Not ready to train on: 1 error in 1,000 pairs, and 400 warnings.",
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
        "2.5",
    ):
        assert said in reader.text, said
    assert reader.tags["svg"] == 2
    assert reader.tags["rect"] == 5  # a bar of sources, two of targets, two of ratios


def test_the_page_needs_nothing_else(diagnosis: Diagnosis) -> None:
    page = diagnosis_page(diagnosis)
    reader = read(page)
    assert reader.tags["script"] == 0
    assert all(link.startswith(("#", "data:")) for link in reader.links)
    assert "http" not in page.replace("http-equiv", "")
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page
    assert all(link[1:] in reader.ids for link in reader.links if link.startswith("#"))
    assert not re.search("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]", page)
    page.encode("utf-8")


def test_a_clean_or_empty_corpus_makes_a_short_page() -> None:
    split = SplitDiagnosis("data")
    assert "Nothing wrong was found in 0 lines." in read(diagnosis_page(Diagnosis({"data": split}))).text
    split.pairs, split.src.words = 3, Counter({4: 3})
    reader = read(diagnosis_page(Diagnosis({"data": split})))
    assert "Nothing wrong was found in 3 lines." in reader.text
    assert "Where, and what to do" not in reader.text
    assert reader.tags["svg"] == 1
