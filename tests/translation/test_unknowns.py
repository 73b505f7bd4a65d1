"""Which source word stands in for an unknown one: by hand, and the dictionary."""

import numpy as np
import pytest

from nmtkit.core.errors import DataError
from nmtkit.corpus.blocks import Example
from nmtkit.data.tokenizer import TokenizerConfig, TokenizerPair
from nmtkit.data.tokenizer_training import learn_tokenizers
from nmtkit.translation.unknowns import CLOSE, Replacement, UnknownReplacer, parse_dictionary

TEXT = ["the old man sees Paris , and the dog sleeps .", "the dog sees the old man , and Paris sleeps ."]


def tokenizers(kind: str, **settings: object) -> TokenizerPair:
    config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": 40, **settings})
    return learn_tokenizers(config, [Example(text, text, number) for number, text in enumerate(TEXT, start=1)])


WORDS = tokenizers("word")
UNKNOWN = "▁<unk>"


def replaced(
    line: str, weights: list[float], dictionary: dict[str, str] | None = None
) -> tuple[str, list[Replacement]]:
    """Of the translation "the <unk> sees"; EOS has what is left of the weight."""
    row = [*weights, 1 - sum(weights)]
    attention = np.array([[1 / len(row)] * len(row), row, [1 / len(row)] * len(row)])
    return UnknownReplacer(WORDS, dictionary).replace(line, ["▁the", UNKNOWN, "▁sees"], attention)


def test_the_most_attended_word_is_copied() -> None:
    text, found = replaced("the dog sees", [0.1, 0.6, 0.2])
    assert text == "the dog sees"
    assert found == [Replacement(token=1, source_token=1, source_word="dog", written="dog")]


def test_an_unknown_source_word_is_preferred_if_it_is_close() -> None:
    weights = [0.0, 0.8, 0.8 * CLOSE]
    assert replaced("the dog Zyx", weights)[0] == "the Zyx sees"
    assert replaced("the dog Zyx", [0.0, 0.8, 0.8 * CLOSE - 0.01])[0] == "the dog sees"
    # The most attended of the unknown ones.
    assert replaced("Abc dog Zyx", [0.21, 0.5, 0.22])[0] == "the Zyx sees"


def test_full_stop_and_end_of_sentence_are_passed_over() -> None:
    assert replaced("Zyx sleeps .", [0.02, 0.01, 0.9])[0] == "the Zyx sees"
    assert replaced("Zyx sleeps .", [0.02, 0.01, 0.0])[0] == "the Zyx sees"  # 0.97 for EOS
    assert replaced("the dog , .", [0.0, 0.02, 0.5, 0.4])[0] == "the dog sees"
    assert replaced(". ,", [0.2, 0.5])[0] == "the , sees"  # there is nothing else
    assert replaced("dog € .", [0.2, 0.3, 0.4])[0] == "the € sees"  # a mark that the model does not know


def test_the_dictionary_is_asked_first() -> None:
    text, found = replaced("the dog sees", [0.1, 0.6, 0.2], {"dog": "perro", "Dog": "Perro"})
    assert text == "the perro sees"
    assert found == [Replacement(1, 1, "dog", "perro")]
    lower = UnknownReplacer(tokenizers("word", lowercase=True), {"Zyx": "Zyxien"})
    assert lower.replace("the ZYX", [UNKNOWN], np.array([[0.1, 0.8, 0.1]]))[0] == "Zyxien"


def test_several_unknown_words_and_none() -> None:
    replacer = UnknownReplacer(WORDS)
    attention = np.array([[0.1, 0.8, 0.1], [0.8, 0.1, 0.1], [0.3, 0.3, 0.4]])
    text, found = replacer.replace("Abc Xyz", [UNKNOWN, UNKNOWN, "▁dog"], attention)
    assert text == "Xyz Abc dog"
    assert [(one.token, one.source_token) for one in found] == [(0, 1), (1, 0)]
    assert replacer.replace("Abc Xyz", ["▁the", "▁dog"], attention) == ("the dog", [])
    assert replacer.replace("", [UNKNOWN], np.ones((1, 1))) == ("<unk>", [])  # there is no source word


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_unknown_pieces_of_words(kind: str) -> None:
    """A subword vocabulary lacks characters, not words: only they are copied."""
    replacer = UnknownReplacer(tokenizers(kind, vocab_size=26))
    line = "the 漢字 dog"
    pieces = replacer._tokenizers.src.tokens(line)
    attention = np.full((3, len(pieces) + 1), 0.01)
    attention[1, pieces.index("漢字")] = 0.5
    text, found = replacer.replace(line, ["▁", "<unk>", "s"], attention)
    assert text == "漢字s"
    assert found == [Replacement(1, pieces.index("漢字"), "漢字", "漢字")]


def test_a_known_subword_stands_for_its_word() -> None:
    replacer = UnknownReplacer(tokenizers("char"))
    line = "the (old dog)."
    pieces = replacer._tokenizers.src.tokens(line)
    attention = np.full((2, len(pieces) + 1), 0.01)
    attention[1, pieces.index("g")] = 0.5
    text, found = replacer.replace(line, ["▁", "<unk>"], attention)
    assert text == "dog"
    assert found[0].source_word == "dog"


def test_dictionary_files() -> None:
    assert parse_dictionary(["Haus\thouse", "", " Hund \tbig dog", "Haus\thouse"], "d.tsv") == {
        "Haus": "house",
        "Hund": "big dog",
    }
    with pytest.raises(DataError, match=r"^d\.tsv, line 2: 'Hund dog' is not SOURCE TAB TARGET"):
        parse_dictionary(["Haus\thouse", "Hund dog"], "d.tsv")
    for line in ("Haus\t", "\thouse", "a\tb\tc"):
        with pytest.raises(DataError, match="with a word on both sides"):
            parse_dictionary([line], "d.tsv")
    with pytest.raises(DataError, match=r"^d\.tsv, line 2: 'Haus' has the translation 'house' already"):
        parse_dictionary(["Haus\thouse", "Haus\thome"], "d.tsv")
