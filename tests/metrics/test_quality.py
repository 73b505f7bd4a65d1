"""The quality report against numbers worked out by hand."""

import pytest

from nmtkit.core.errors import DataError
from nmtkit.metrics.quality import copied_fragments, quality, sentence_words

ARTICLE = "The cat sat on the mat. A dog barked at the cat. It was late."


def test_words_are_lower_cased_and_punctuation_and_tags_are_left_out() -> None:
    assert sentence_words("The U-turn's 3.5%. -- Äpfel!") == [
        ["the", "u", "turn", "s", "3", "5"],
        ["äpfel"],
    ]
    assert sentence_words("<t> one , two . </t> <t> three </t>") == [["one", "two"], ["three"]]
    assert sentence_words(" ... ") == []


def test_fragments_are_the_longest_runs_from_the_left() -> None:
    # Grusky et al. 2018, figure 3, by hand: "a b" stands first at 0, but "a b c" at 3 is longer; x is nowhere.
    found = copied_fragments([["a", "b", "c", "x", "a", "b"]], ["a", "b", "d", "a", "b", "c"])
    assert found == [range(3, 6), range(0, 2)]


def test_fragments_end_with_their_sentence_and_never_overlap() -> None:
    assert copied_fragments([["a", "b"], ["c", "d"]], ["a", "b", "c", "d"]) == [
        range(0, 2),
        range(2, 4),
    ]
    # Greedy: "a b" is taken, and only "c" is left for the second, though "b c" stands in the article too.
    assert copied_fragments([["a", "b", "c"]], ["a", "b", "x", "b", "c"]) == [
        range(0, 2),
        range(4, 5),
    ]
    assert copied_fragments([[]], ["a"]) == copied_fragments([["a"]], []) == []


def test_an_extract_is_all_copied() -> None:
    report = quality(["A dog barked at the cat."], [ARTICLE])
    assert report.novel == (0, 0, 0, 0)
    assert (report.words, report.empty, report.summaries, report.repeated_trigrams) == (6, 0, 1, 0)
    assert report.copied == pytest.approx(100)
    assert report.density == pytest.approx(6)  # one fragment of six words
    assert report.length_to_article == report.source_words == pytest.approx(100 * 6 / 15)
    assert report.source_sentences == pytest.approx(100 / 3)


def test_rates_by_hand() -> None:
    # Words: the cat slept on the mat. Fragments: "the cat", "on the mat"; "slept" is new.
    report = quality(
        ["The cat slept on the mat"], [ARTICLE], [["the cat rested"], ["it was the cat that slept"]]
    )
    assert report.novel == pytest.approx((100 / 6, 100 * 2 / 5, 100 * 3 / 4, 100))
    assert report.copied == pytest.approx(100 * 5 / 6)
    assert report.density == pytest.approx((2**2 + 3**2) / 6)
    assert report.source_words == pytest.approx(100 * 5 / 15)
    # "the cat" alone is too short to show its sentence
    assert report.source_sentences == pytest.approx(100 / 3)
    assert report.length_to_reference == pytest.approx(100 * 6 / 4.5)


def test_ngrams_do_not_cross_sentences() -> None:
    # "late a" would be new; both sentences are copied, in another order.
    report = quality(["It was late. A dog barked."], [ARTICLE])
    assert report.novel[:3] == (0, 0, 0)
    assert report.novel[3] is None  # three words each: no n-gram of order 4
    assert report.density == pytest.approx(3)


def test_repeated_trigrams_by_hand() -> None:
    # a b a b a b: aba bab aba bab, the last two of which occurred before.
    assert quality(["a b a b a b"], ["x"]).repeated_trigrams == pytest.approx(50)
    assert quality(["a b c. a b c. a b c."], ["x"]).repeated_trigrams == pytest.approx(100 * 2 / 3)
    assert quality(["a b"], ["x"]).repeated_trigrams is None


def test_means_are_over_the_summaries_that_have_such_ngrams() -> None:
    # Bigrams: 1 of 1 new, 0 of 3 new, none, none. By words: 1 of 2, 0 of 4, 1 of 1.
    report = quality(["the moon", "the cat sat on", "moon", ""], [ARTICLE] * 4)
    assert report.novel[0] == pytest.approx(100 * (1 / 2 + 0 + 1) / 3)
    assert report.novel[1] == pytest.approx(50)
    assert (report.summaries, report.empty) == (4, 1)
    assert report.words == pytest.approx(7 / 4)
    assert report.source_words == pytest.approx(100 * (1 + 4 + 0) / 15 / 3)


def test_nothing_is_none_and_not_a_number() -> None:
    report = quality([""], [""], [[""]])
    assert report.novel == (None, None, None, None)
    assert {report.copied, report.density, report.source_words} == {None}
    assert {report.length_to_article, report.length_to_reference} == {None}
    assert quality(["a b"], [""]).copied == 0


def test_lines_must_pair() -> None:
    for summaries, articles, references, message in (
        (["a", "b"], ["a"], [], "2 summaries, but 1 articles"),
        (["a"], ["a"], [["a", "b"]], "1 summaries, but 2 references"),
        ([], [], [], "no summaries"),
    ):
        with pytest.raises(DataError, match=message):
            quality(summaries, articles, references)
