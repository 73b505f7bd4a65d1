"""Words and their tokens: white-space words, words given by hand, words without tokens."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nmtkit.core.errors import DataError
from nmtkit.data.text.blocks import Example
from nmtkit.data.tokenizers.huggingface_tokenizer import HuggingFaceTokenizer
from nmtkit.data.tokenizers.tokenizer import Tokenizer, TokenizerConfig
from nmtkit.data.tokenizers.vocabulary import SPECIALS, Vocabulary
from nmtkit.data.tokenizers.words import (
    WORDS_AT_ONCE,
    WordSegmentation,
    cut_words,
    merge_to_words,
    piece_shares,
    share_table,
    token_spans,
    word_spans,
)
from tests.support.learned_tokenizers import learn_tokenizers

KINDS = ["bpe", "unigram", "char", "word"]
SENTENCE = "Otto  opens the\twindow, and Süßmann sees the bridge."


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    nouns, verbs = (
        ["house", "dog", "river", "window", "bridge", "l'homme", "n'a"],
        ["sees", "opens", "likes"],
    )
    texts = [f"Otto {verb} the {noun}, and Süßmann {verb} it." for verb in verbs for noun in nouns]
    pairs = [Example(text, text, number) for number, text in enumerate(texts, start=1)]
    tokenizers = {}
    for kind in KINDS:
        size = 36 if kind == "unigram" else 60  # so few words give unigram no more
        config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": size})
        tokenizers[kind] = learn_tokenizers(config, pairs).src
    return tokenizers


def of_one(tokenizer: Tokenizer, line: str, words: str | None = None) -> WordSegmentation:
    (segmented,) = cut_words(tokenizer, [line], [words], ["line 1"])
    return segmented


def shared(segmented: WordSegmentation) -> np.ndarray:
    """`(W,P)`: which part of each token belongs to each word."""
    return share_table(segmented.shares)


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_what_white_space_separates(kind: str, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers[kind]
    segmented = of_one(tokenizer, SENTENCE)
    assert segmented.words == SENTENCE.split()
    assert segmented.ids == tokenizer.encode(SENTENCE)
    assert shared(segmented).shape == (9, len(segmented.ids))
    pieces = tokenizer.tokens(SENTENCE)
    for word, row in zip(segmented.words, shared(segmented), strict=True):
        own = [piece for piece, share in zip(pieces, row, strict=True) if share]
        assert "".join(own).replace("▁", "") == word  # glued punctuation belongs to its word
    assert shared(segmented).sum(axis=0).tolist() == [1.0] * len(segmented.ids)


@pytest.mark.parametrize("kind", KINDS)
def test_words_given_by_hand(kind: str, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers[kind]
    segmented = of_one(tokenizer, "Otto n'a l'homme.", "Otto n' a l' homme .")
    assert segmented.words == ["Otto", "n'", "a", "l'", "homme", "."]
    # the model reads the text as it is
    assert segmented.ids == tokenizer.encode("Otto n'a l'homme.")
    characters = [len(piece.replace("▁", "")) for piece in tokenizer.tokens("Otto n'a l'homme.")]
    assert shared(segmented).sum(axis=0) == pytest.approx(np.ones(len(characters)))
    # Each word has as many characters as it has letters.
    assert shared(segmented) @ characters == pytest.approx(np.array([4, 2, 1, 2, 5, 1]))


def test_a_token_of_two_words_belongs_to_both(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["word"]
    assert tokenizer.tokens("window,") == ["▁window", ","]
    assert shared(of_one(tokenizer, "window,", "win dow,")).tolist() == [[0.5, 0.0], [0.5, 1.0]]


@pytest.mark.parametrize("given", [None, "O tt o "])
def test_what_is_kept_of_a_line_grows_with_its_tokens_alone(
    given: str | None, tokenizers: dict[str, Tokenizer]
) -> None:
    for kind in KINDS:
        segmented = of_one(tokenizers[kind], "Otto " * 500, given and given * 500)
        assert sum(len(parts) for _, parts in segmented.shares) <= len(segmented.ids) + len(
            segmented.words
        )


def test_a_word_of_no_tokens(tokenizers: dict[str, Tokenizer]) -> None:
    """In raw text the tokenizers' own mark of a word's beginning counts as white space."""
    for kind in KINDS:
        segmented = of_one(tokenizers[kind], "Otto ▁ Otto")
        assert segmented.words == ["Otto", "▁", "Otto"]
        if kind == "word":
            assert shared(segmented).tolist() == [[1, 0], [0, 0], [0, 1]]
    assert of_one(tokenizers["bpe"], " \t ").words == []
    assert shared(of_one(tokenizers["bpe"], "")).shape == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(alphabet="Oto n'aſüß, .½\u00a0\u3000\u0301", max_size=30))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_has_its_white_space_words(
    kind: str, tokenizers: dict[str, Tokenizer], text: str
) -> None:
    segmented = of_one(tokenizers[kind], text)
    assert segmented.words == text.split()
    assert shared(segmented).shape == (len(segmented.words), len(segmented.ids))
    apart = " ".join("".join(word) for word in text.split())
    given_apart = of_one(tokenizers[kind], text, " ".join(" ".join(word) for word in text.split()))
    assert given_apart.words == [character for character in apart if character != " "]
    assert given_apart.ids == segmented.ids
    assert shared(given_apart).sum(axis=0) == pytest.approx(np.ones(len(segmented.ids)))


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(alphabet="Oto n'aſüß, .½\u00a0\u3000\u0301漢字</s>▁", max_size=30))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_tokens_have_the_ids_of_their_text(
    kind: str, tokenizers: dict[str, Tokenizer], text: str
) -> None:
    """A line is cut once, whether its ids are wanted or the spelling of what the vocabulary lacks."""
    tokenizer = tokenizers[kind]
    assert tokenizer.vocabulary.text_ids(tokenizer.tokens(text)) == tokenizer.encode(text)


def test_an_unknown_token_that_spells_a_special_one_is_unknown() -> None:
    russian = learn_tokenizers(
        TokenizerConfig(kind="bpe", vocab_size=14), [Example("дом и дом", "дом и дом", 1)]
    ).src
    assert "</s>" in russian.tokens("дом </s>")
    assert russian.vocabulary.text_ids(russian.tokens("дом </s>")) == russian.encode("дом </s>")


def test_a_word_begins_at_the_mark() -> None:
    assert word_spans(["▁the", "▁dog", "s", "."]) == [range(0, 1), range(1, 4)]
    assert word_spans(["s", "▁", "dog"]) == [range(0, 1), range(1, 3)]
    assert word_spans([]) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "Otto n' b.",
            r"^line 7: the words file has \"n' b\.\" where the text has \"n'a\.\"; .* nothing else changed",
        ),
        ("Otto n'", r"^line 7: the words file has \"n'\" where the text has \"n'a\.\""),
        ("Otto n' a. Otto", r"^line 7: the words file has 'Otto' where the text ends"),
        ("Otto n'a.x", r"^line 7: the words file has \"n'a\.x\" where the text has \"n'a\.\""),
        ("Otton' a.", r"^line 7: the words file has \"Otton'\" where the text has 'Otto'"),
    ],
)
def test_words_that_do_not_spell_the_text(
    words: str, message: str, tokenizers: dict[str, Tokenizer]
) -> None:
    with pytest.raises(DataError, match=message):
        cut_words(tokenizers["bpe"], ["Otto", "Otto n'a."], ["Otto", words], ["line 6", "line 7"])


# ---- shares of pieces


def test_shares_by_hand() -> None:
    # "n'a" as n|'a against n'|a, and a mark of its own before it.
    assert piece_shares([0, 1, 2], [2, 1]) == [(0, [1, 1, 0.5]), (2, [0.5])]
    assert piece_shares([2, 3], [2, 3]) == [(0, [1]), (1, [1])]
    assert piece_shares([2, 0, 3], [2, 3]) == [(0, [1]), (1, [1, 1])]
    assert share_table(piece_shares([3, 0], [1, 2]))[:, 1].tolist() == [0, 1]
    # Twice as many characters after normalization: boundaries move along.
    assert piece_shares([4, 2], [2, 1]) == [(0, [1]), (1, [1])]
    # The second word ends where the third piece does, though 30 / 22 is no exact number: it has no share in the next.
    assert piece_shares([4, 4, 7, 2, 4, 9], [4, 7, 5, 6]) == [
        (0, [1, 4 / 11]),
        (1, [7 / 11, 1]),
        (3, [1, 1, 1 / 11]),
        (5, [10 / 11]),
    ]
    # Pieces of no characters alone are the last word's.
    assert piece_shares([0, 0], [1, 2]) == [(0, []), (0, [1, 1])]


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_piece_is_shared_out_whole(pieces: list[int], words: list[int]) -> None:
    assert share_table(piece_shares(pieces, words)).sum(axis=0) == pytest.approx(
        np.ones(len(pieces))
    )


def test_merge_by_hand() -> None:
    weights = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.25, 0.25, 0.25]])
    src = [(0, [1.0, 1.0]), (2, [1.0])]  # the first two columns are one word
    tgt = [(0, [1.0]), (1, [1.0, 0.5]), (2, [0.5]), (0, list[float]())]
    expected = [
        [0.75, 0.25],
        [(1.0 + 0.5 * 0.5) / 1.5, 0.5 * 0.25 / 1.5],  # a whole row and half a row
        [0.5, 0.25],
        [0.0, 0.0],  # a word without pieces
    ]
    assert merge_to_words(weights, src, tgt) == pytest.approx(np.array(expected))


def test_long_lines_are_merged_as_short_ones_are() -> None:
    """Some words at a time, which may end in the middle of a piece."""
    draw = np.random.default_rng(5)
    sides = []
    for words in (2 * WORDS_AT_ONCE + 3, WORDS_AT_ONCE + 1):
        lengths = draw.integers(1, 9, words).tolist()
        ends = {
            *draw.choice(sum(lengths), sum(lengths) // 4, replace=False).tolist(),
            sum(lengths),
        } - {0}
        sides.append(piece_shares(np.diff([0, *sorted(ends)]).tolist(), lengths))
    of_src, of_tgt = map(share_table, sides)
    weights = draw.random((of_tgt.shape[1], of_src.shape[1]))
    expected = of_tgt / of_tgt.sum(axis=1, keepdims=True) @ weights @ of_src.T
    assert merge_to_words(weights, *sides) == pytest.approx(expected)


def test_words_of_an_imported_tokenizer_that_have_no_tokens_of_their_own() -> None:
    """Around each text it may put the token of a language, so around each word too."""
    library = pytest.importorskip("tokenizers")
    tokens = [*SPECIALS, "en_XX", "▁the", "▁dog"]
    cut = library.Tokenizer(
        library.models.WordLevel({token: n for n, token in enumerate(tokens)}, unk_token="<unk>")
    )
    cut.pre_tokenizer = library.pre_tokenizers.Metaspace()
    content = HuggingFaceTokenizer.pack(cut.to_str(), range(len(tokens)), False)
    settings = {"kind": "huggingface", "specials": ["en_XX"]}
    for affixes in ({}, {"src": {"before": ["en_XX"]}}):
        config = TokenizerConfig.model_validate({**settings, "affixes": affixes})
        tokenizer = HuggingFaceTokenizer(config, content, Vocabulary(tokens, ["en_XX"]), "src")
        if not affixes:
            assert of_one(tokenizer, "the dog").ids == [5, 6]
            continue
        assert of_one(tokenizer, "dog").ids == [4, 6]
        for ask in (cut_words, token_spans):
            with pytest.raises(
                DataError,
                match="line 2: the tokenizer of this imported model splits the line differently",
            ):
                ask(tokenizer, ["dog", "the dog"], [None, None], ["line 1", "line 2"])
