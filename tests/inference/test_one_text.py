"""One text where a list of texts is meant is one text, or is refused: it is never a list of letters."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nmtkit import Translator
from nmtkit.core.errors import DataError
from nmtkit.inference.long_texts import Summarizer
from nmtkit.metrics import score_all


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(str(trained), "cpu")


def test_one_text_is_translated_as_one(translator: Translator) -> None:
    assert translator.translate("ba ce di") == translator.translate(["ba ce di"])[0] != ""
    assert translator.translate("") == ""
    assert translator.translate(iter(["ba", "ce"])) == translator.translate(["ba", "ce"])


def test_one_article_is_summarized_as_one(translator: Translator) -> None:
    summarizer = Summarizer(translator, 5)
    assert summarizer.summarize("ba ce di.") == summarizer.summarize(["ba ce di."])[0] != ""


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.translate(b"ba ce"),
        lambda t: t.search("ba ce"),
        lambda t: t.rescore("ba", "BA"),
        lambda t: t.rescore(["b", "a"], "BA"),
        lambda t: t.align("ba", "BA"),
        lambda t: t.align(["b", "a"], ["B", "A"], "ba", None),
        lambda t: t.pictures("ba"),
        lambda t: t.pictures(["b", "a"], "BA"),
        lambda t: Summarizer(t, 5).search("ba ce"),
        lambda t: score_all("ba", ["BA"], ["bleu"]),
        lambda t: score_all(["ba", "ce"], ["BA", "CE"], ["rouge1"]),
    ],
)
def test_one_text_is_refused_where_results_are_lists(
    translator: Translator, call: Callable[[Translator], object]
) -> None:
    with pytest.raises(DataError, match="a single text"):
        call(translator)
