import numpy as np
import pytest

from nmtkit.pictures import SourceWindow
from nmtkit.translation.attention_views import merge_gates, merge_subwords, merge_windows

# Merging, by hand: two target pieces over the four source pieces.
SRC_PIECES = ["▁un", "seen", "▁cat", "</s>"]
WEIGHTS = np.array([[0.5, 0.25, 0.125, 0.125], [0.0, 0.5, 0.25, 0.25]])


def test_source_pieces_of_a_word_are_added():
    src_words, tgt_words, merged = merge_subwords(SRC_PIECES, ["▁chat", "</s>"], WEIGHTS)
    assert src_words == ["unseen", "cat", "</s>"]
    assert tgt_words == ["chat", "</s>"]
    assert merged.tolist() == [[0.75, 0.125, 0.125], [0.5, 0.25, 0.25]]


def test_target_pieces_of_a_word_are_averaged():
    src_words, tgt_words, merged = merge_subwords(["▁a", "▁b", "▁c", "</s>"], ["▁ch", "at"], WEIGHTS)
    assert src_words == ["a", "b", "c", "</s>"]
    assert tgt_words == ["chat"]
    assert merged.tolist() == [[0.25, 0.375, 0.1875, 0.1875]]


def test_both_sides_merge_at_once():
    _, _, merged = merge_subwords(SRC_PIECES, ["▁ch", "at"], WEIGHTS)
    assert merged.tolist() == [[0.625, 0.1875, 0.1875]]


def test_merged_rows_still_sum_to_one():
    tgt_pieces = ["▁ein", "e", "▁Katze", "n", "klappe", ".", "</s>"]
    weights = np.random.default_rng(1).dirichlet(np.ones(4), size=len(tgt_pieces))
    _, words, merged = merge_subwords(SRC_PIECES, tgt_pieces, weights)
    assert words == ["eine", "Katzenklappe.", "</s>"]
    assert merged.shape == (3, 3)
    np.testing.assert_allclose(merged.sum(axis=1), 1.0, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([], []),
        (["no", "▁start"], ["no", "start"]),  # the first piece starts a word even without the sign
        (["▁a", "</s>", "b"], ["a", "</s>", "b"]),
        (["▁", "cat", "s"], ["cats"]),  # the sign as a piece of its own
        (["▁", "</s>"], ["▁", "</s>"]),
        (["▁我", "喜欢", "猫", "。", "</s>"], ["我", "喜欢", "猫。", "</s>"]),  # no spaces: pieces stay words
        (["▁", "猫", "は", "NLP", "です"], ["猫", "は", "NLP", "です"]),
        (["▁na", "ï", "ve"], ["naïve"]),
        (["▁Кош", "ка"], ["Кошка"]),
        (["▁고양", "이"], ["고양이"]),  # Korean has spaces
    ],
)
def test_word_borders(pieces, words):
    src_words, tgt_words, merged = merge_subwords(pieces, ["▁x"], np.ones((1, len(pieces))))
    assert src_words == words
    assert tgt_words == ["x"]
    assert merged.shape == (1, len(words))


def test_a_window_moves_with_its_words():
    """Pieces un|seen|cat|</s> are columns of width 1/2, 1/2, 1 and 1 of the words unseen, cat, </s>."""
    (window,) = merge_windows(SRC_PIECES, ["▁x"], [SourceWindow(1.0, 1.0)])
    assert window.centre == pytest.approx(0.25)  # the middle of the second half of column 0
    assert window.left == pytest.approx(-0.25)  # the middle of its first half
    assert window.right == pytest.approx(1.0)  # the middle of "cat"


def test_a_window_may_reach_beyond_the_sentence():
    (window,) = merge_windows(SRC_PIECES, ["▁x"], [SourceWindow(3.0, 5.0)])
    assert window.centre == pytest.approx(2.0)
    assert window.left == pytest.approx(-2.0)  # 1.5 pieces before the edge at -0.5
    assert window.right == pytest.approx(7.0)  # 4.5 pieces behind the edge at 2.5


def test_the_window_of_a_word_spans_those_of_its_pieces():
    first, second = merge_windows(
        ["▁a", "▁b", "▁c"], ["▁x", "y", "▁z"], [SourceWindow(0.0, 0.5), SourceWindow(1.0, 0.5), SourceWindow(2.0, 1.0)]
    )
    assert (first.centre, first.left, first.right) == (0.5, -0.5, 1.5)
    assert (second.centre, second.left, second.right) == (2.0, 1.0, 3.0)


def test_windows_over_whole_words_stay_as_they_are():
    given = [SourceWindow(0.3, 1.5), SourceWindow(2.0, 1.5)]
    merged = merge_windows(["▁a", "▁b", "▁c"], ["▁x", "▁y"], given)
    for before, after in zip(given, merged, strict=True):
        assert (after.centre, after.left, after.right) == pytest.approx((before.centre, before.left, before.right))


def test_gates_of_words():
    """A word has the mean of its pieces; a comma does not speak for the word that it joins; punctuation for itself."""
    pieces = ["▁Har", "row", "gate", ",", "▁won", "▁4", "-", "2", "▁—", "</s>"]
    p_gen = [0.1, 0.2, 0.3, 0.99, 0.8, 0.1, 0.9, 0.3, 0.4, 1.0]
    merged, copied = merge_gates(pieces, p_gen, [0, 1, 2, 5, 7, 8])
    np.testing.assert_allclose(merged, [0.2, 0.8, 0.2, 0.4, 1.0], rtol=0, atol=1e-12)
    assert copied == {0, 2, 3}
    assert merge_subwords(["▁x"], pieces, np.ones((10, 1)))[1] == ["Harrowgate,", "won", "4-2", "—", "</s>"]


def test_a_word_is_copied_only_if_all_of_it_is():
    assert merge_gates(["▁un", "seen", "."], [0.0, 1.0, 0.0], [0, 2])[1] == frozenset()
    assert merge_gates(["▁un", "seen", "."], [0.0, 1.0, 0.0], [0, 1])[1] == {0}


def test_gates_of_nothing():
    merged, copied = merge_gates([], [], [])
    assert merged.shape == (0,)
    assert copied == frozenset()


def test_gates_need_one_a_piece():
    with pytest.raises(AssertionError, match="p_gen of 1 for 2 pieces"):
        merge_gates(["▁a", "</s>"], [0.5], [])
