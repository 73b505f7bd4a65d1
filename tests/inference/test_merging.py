import numpy as np
import pytest

from nmtkit.inference.attention_views import merge_gates, merge_subwords, merge_windows
from nmtkit.plots import SourceWindow

# Merging, by hand: two target pieces over the four source pieces.
SRC_PIECES = ["▁un", "seen", "▁cat", "</s>"]
WEIGHTS = np.array([[0.5, 0.25, 0.125, 0.125], [0.0, 0.5, 0.25, 0.25]])


@pytest.mark.parametrize(
    ("src", "tgt", "src_words", "tgt_words", "weights"),
    [
        # Source pieces of a word are added.
        (
            SRC_PIECES,
            ["▁chat", "</s>"],
            ["unseen", "cat", "</s>"],
            ["chat", "</s>"],
            [[0.75, 0.125, 0.125], [0.5, 0.25, 0.25]],
        ),
        # Target pieces of a word are averaged.
        (
            ["▁a", "▁b", "▁c", "</s>"],
            ["▁ch", "at"],
            ["a", "b", "c", "</s>"],
            ["chat"],
            [[0.25, 0.375, 0.1875, 0.1875]],
        ),
        (SRC_PIECES, ["▁ch", "at"], ["unseen", "cat", "</s>"], ["chat"], [[0.625, 0.1875, 0.1875]]),
    ],
    ids=["source", "target", "both"],
)
def test_pieces_are_merged(
    src: list[str],
    tgt: list[str],
    src_words: list[str],
    tgt_words: list[str],
    weights: list[list[float]],
) -> None:
    merged_src, merged_tgt, merged = merge_subwords(src, tgt, WEIGHTS)
    assert (merged_src, merged_tgt, merged.tolist()) == (src_words, tgt_words, weights)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([], []),
        (["no", "▁start"], ["no", "start"]),  # the first piece starts a word even without the sign
        (["▁a", "</s>", "b"], ["a", "</s>", "b"]),
        (["▁", "cat", "s"], ["cats"]),  # the sign as a piece of its own
        (["▁", "</s>"], ["▁", "</s>"]),
        (
            ["▁我", "喜欢", "猫", "。", "</s>"],
            ["我", "喜欢", "猫。", "</s>"],
        ),  # no spaces: pieces stay words
        (["▁", "猫", "は", "NLP", "です"], ["猫", "は", "NLP", "です"]),
        (["▁ein", "e", "▁Katze", "n", "klappe", ".", "</s>"], ["eine", "Katzenklappe.", "</s>"]),
        (["▁na", "ï", "ve"], ["naïve"]),
        (["▁Кош", "ка"], ["Кошка"]),
        (["▁고양", "이"], ["고양이"]),  # Korean has spaces
    ],
)
def test_word_borders(pieces: list[str], words: list[str]) -> None:
    src_words, tgt_words, merged = merge_subwords(pieces, ["▁x"], np.ones((1, len(pieces))))
    assert src_words == words
    assert tgt_words == ["x"]
    assert merged.shape == (1, len(words))


@pytest.mark.parametrize(
    ("src", "tgt", "windows", "centre_left_right"),
    [
        # Pieces un|seen|cat|</s> are columns of width 1/2, 1/2, 1 and 1: the centre is the middle of the second half of
        # column 0, the left end that of its first half, the right end that of "cat".
        (SRC_PIECES, ["▁x"], [(1.0, 1.0)], [(0.25, -0.25, 1.0)]),
        # Beyond the sentence: 1.5 pieces before the edge at -0.5, 4.5 pieces behind the edge at 2.5.
        (SRC_PIECES, ["▁x"], [(3.0, 5.0)], [(2.0, -2.0, 7.0)]),
        # The window of a word spans those of its pieces.
        (
            ["▁a", "▁b", "▁c"],
            ["▁x", "y", "▁z"],
            [(0, 0.5), (1, 0.5), (2, 1)],
            [(0.5, -0.5, 1.5), (2, 1, 3)],
        ),
        # Windows over whole words stay as they are.
        (
            ["▁a", "▁b", "▁c"],
            ["▁x", "▁y"],
            [(0.3, 1.5), (2, 1.5)],
            [(0.3, -1.2, 1.8), (2, 0.5, 3.5)],
        ),
    ],
    ids=["in a word", "beyond the sentence", "of several pieces", "whole words"],
)
def test_windows_move_with_their_words(
    src: list[str],
    tgt: list[str],
    windows: list[tuple[float, float] | tuple[int, float]]
    | list[tuple[float, float]]
    | list[tuple[int, float] | tuple[int, int]],
    centre_left_right: list[tuple[float, float, float] | tuple[int, float, float]]
    | list[tuple[float, float, float] | tuple[int, int, int]]
    | list[tuple[float, float, float]],
) -> None:
    merged = merge_windows(
        src, tgt, [SourceWindow(centre, centre - half, centre + half) for centre, half in windows]
    )
    assert [(one.centre, one.left, one.right) for one in merged] == [
        pytest.approx(one) for one in centre_left_right
    ]


def test_gates_of_words() -> None:
    """A word has the mean of its pieces; a comma does not speak for the word that it joins; punctuation for itself."""
    pieces = ["▁Har", "row", "gate", ",", "▁won", "▁4", "-", "2", "▁—", "</s>"]
    p_gen = [0.1, 0.2, 0.3, 0.99, 0.8, 0.1, 0.9, 0.3, 0.4, 1.0]
    merged, copied = merge_gates(pieces, p_gen, [0, 1, 2, 5, 7, 8])
    np.testing.assert_allclose(merged, [0.2, 0.8, 0.2, 0.4, 1.0], rtol=0, atol=1e-12)
    assert copied == {0, 2, 3}
    assert merge_subwords(["▁x"], pieces, np.ones((10, 1)))[1] == [
        "Harrowgate,",
        "won",
        "4-2",
        "—",
        "</s>",
    ]

    # A word is copied only if all of it is.
    assert merge_gates(["▁un", "seen", "."], [0.0, 1.0, 0.0], [0, 2])[1] == frozenset()
    assert merge_gates(["▁un", "seen", "."], [0.0, 1.0, 0.0], [0, 1])[1] == {0}
