"""Lines in parts: best combinations of translations, glossaries, and summaries within limits."""

from itertools import product

import pytest

from nmtkit import ParagraphTranslator, Summarizer
from nmtkit.core.errors import DataError
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.long_texts import SummaryLimit, count_words
from nmtkit.inference.result import Translation
from nmtkit.inference.translator import Translator
from tests.inference.untrained import WORDS, untrained

PARAGRAPH = "The old man sees the dog . A dog , who is old , sleeps . The house"


@pytest.fixture(scope="module")
def translator() -> Translator:
    return untrained("rnnsearch", WORDS, 2.0, beam_size=4, forbid_unknown=True)


def test_best_combinations_are_those_of_exhaustive_search(translator: Translator) -> None:
    paragraphs = ParagraphTranslator(translator)
    parts = translator.search(paragraphs.cut(PARAGRAPH), n_best=4)
    assert [len(alternatives) for alternatives in parts] == [4, 4, 4]
    every = sorted((sum(one.score for one in chosen) for chosen in product(*parts)), reverse=True)
    (best,) = paragraphs.search([PARAGRAPH], n_best=4)
    results = [best, *best.others]
    assert [one.score for one in results] == pytest.approx(every[:4])
    assert best.text == paragraphs.translate(PARAGRAPH)
    for one in results:
        assert one.log_prob == pytest.approx(sum(part.log_prob for part in one.parts))
        assert one.text == " ".join(part.text for part in one.parts)
    assert len({one.text for one in results}) == 4


def test_translations_that_were_cut_come_last_if_the_search_says_so(translator: Translator) -> None:
    behind = untrained(
        "rnnsearch", WORDS, 2.0, beam_size=4, max_length=4, min_length=1, at_limit="behind"
    )
    (best,) = ParagraphTranslator(behind).search([PARAGRAPH], n_best=4)
    unfinished = [sum(not part.finished for part in one.parts) for one in (best, *best.others)]
    assert unfinished == sorted(unfinished)
    assert (
        best.parts[0].text == behind.translate([ParagraphTranslator(behind).cut(PARAGRAPH)[0]])[0]
    )


def test_an_empty_line_has_one_empty_result(translator: Translator) -> None:
    empty, filled = ParagraphTranslator(translator).search(["", PARAGRAPH], n_best=3)
    assert (empty.text, empty.parts, empty.others) == ("", [], ())
    assert len(filled.others) == 2


def test_terms_belong_to_the_parts_in_which_they_occur(translator: Translator) -> None:
    terms = {"old man": "house", "who": "sleeps"}
    (found,) = ParagraphTranslator(translator.with_terms(terms)).search([PARAGRAPH])
    asked = [() if part.request is None else part.request.must for part in found.parts]
    assert asked == [("house",), ("sleeps",), ()]
    assert "house" in found.parts[0].text.split()
    assert "sleeps" in found.parts[1].text.split()
    assert ParagraphTranslator(translator).translate(PARAGRAPH, terms=terms) == found.text


def test_a_glossary_for_one_call(translator: Translator) -> None:
    free = translator.translate("the dog")
    forced = translator.translate("the dog", terms={"dog": "house"})
    assert "house" in forced.split()
    assert translator.translate("the dog") == free
    other = translator.with_terms({"dog": "house", "the": "sleeps"})
    found = other.translate(["the dog"], terms={"the": "man"})[0].split()
    assert {"house", "man"} <= set(found)
    (replaced,) = other.with_terms({"the": "man"}).search(["the dog"])[0]
    assert replaced.request is not None
    assert replaced.request.must == ("man", "house")
    with pytest.raises(DataError, match="one side has no words"):
        translator.translate("the dog", terms={" ": "house"})


def test_the_cost_of_terms_is_that_of_a_search_without_them(translator: Translator) -> None:
    (free,) = translator.search(["the dog"])[0]
    (forced,) = translator.with_terms({"dog": "old"}).search(["the dog"])[0]
    assert translator.cost_of_terms([forced]) == pytest.approx([free.log_prob - forced.log_prob])
    assert translator.cost_of_terms([free]) == pytest.approx([0.0])


def test_prefixes_and_terms_of_requests_in_parts(translator: Translator) -> None:
    paragraphs = ParagraphTranslator(translator)
    (found,) = paragraphs.search(
        [Request(PARAGRAPH, prefix="house sleeps", must_not=("dog",), place="line 1")]
    )
    assert found.text.startswith("house sleeps ")
    assert "dog" not in found.text.split()
    with pytest.raises(DataError, match='line 7: "must" does not specify which of the 3 sentences'):
        paragraphs.search([Request(PARAGRAPH, must=("dog",), place="line 7")])
    (alone,) = paragraphs.search([Request("the old man", must=("dog",))])
    assert "dog" in alone.text.split()


def summaries(*texts: str, finished: bool = True) -> list[Translation]:
    return [Translation(text, 0.0, 0.0, [], [], [], finished) for text in texts]


FIRST = "Dr. Smith saw 3.5 dogs. They slept! Then it rained."
SECOND = "The river rose. Nobody came."


@pytest.mark.parametrize(
    ("sentences", "words", "texts", "shortened"),
    [
        (1, None, [FIRST], "Dr. Smith saw 3.5 dogs."),
        (2, None, [FIRST], "Dr. Smith saw 3.5 dogs. They slept!"),
        (9, None, [FIRST], FIRST),
        (None, 7, [FIRST], "Dr. Smith saw 3.5 dogs. They slept!"),
        (None, 6, [FIRST], "Dr. Smith saw 3.5 dogs."),
        (None, 3, [FIRST], "Dr. Smith saw …"),
        (2, 5, [FIRST], "Dr. Smith saw 3.5 dogs."),
        (3, None, [FIRST, SECOND], "Dr. Smith saw 3.5 dogs. They slept! The river rose."),
        (None, 10, [FIRST, SECOND], "Dr. Smith saw 3.5 dogs. They slept! The river rose."),
        (1, None, ["the man came . he left ."], "the man came ."),
        (1, None, ["<t> the man came . </t> <t> he left . </t>"], "the man came ."),
        (1, None, ["今日は。元気ですか？"], "今日は。"),
        (None, 3, ["今日は。元気ですか？"], "今日は。"),
        (1, None, [""], ""),
        (None, 3, [""], ""),
    ],
)
def test_summaries_keep_whole_sentences(
    sentences: int | None, words: int | None, texts: list[str], shortened: str
) -> None:
    assert SummaryLimit(sentences, words).shorten(summaries(*texts)) == shortened
    assert words is None or count_words(shortened) <= words


def test_a_sentence_that_the_search_has_cut_is_left_out() -> None:
    cut = "It rained. Then the river"
    assert SummaryLimit(sentences=3).shorten(summaries(cut, finished=False)) == "It rained."
    assert SummaryLimit(sentences=3).shorten(summaries(cut)) == cut
    assert (
        SummaryLimit(sentences=3).shorten(summaries("Then the river", finished=False))
        == "Then the river"
    )


def test_a_summarizer_within_limits(translator: Translator) -> None:
    whole = Summarizer(translator).summarize(PARAGRAPH)
    assert whole == translator.translate(PARAGRAPH)
    assert Summarizer(translator, words=2).summarize(PARAGRAPH) == SummaryLimit(words=2).shorten(
        summaries(whole)
    )
    windows = Summarizer(translator, window=8)
    limited = Summarizer(translator, window=8, words=4)
    (found,) = windows.search([PARAGRAPH])
    assert len(found.parts) > 1
    assert limited.summarize(PARAGRAPH) == SummaryLimit(words=4).shorten(found.parts)
