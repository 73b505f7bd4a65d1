"""WordPiece, and the merges of subwords: learned, replayed, and cut as the reference cuts."""

import math
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from nmtkit.core.errors import RecipeError
from nmtkit.data.text.blocks import Example
from nmtkit.data.tokenizers.tokenizer import Tokenizer, TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import UNK
from nmtkit.data.tokenizers.wordpiece import Merges, WordPieceTokenizer, replay
from tests.support.commands import Command, refused, succeeded
from tests.support.learned_tokenizers import learn_tokenizers

LECTURE = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3
"""The dictionary of Sennrich et al. 2016's example, which lectures show."""

RECIPE = """
name: toy
task: language-modelling
data: {{train: {{tgt: &words {}}}, valid: {{tgt: *words}}}}
tokenizer: {{kind: bpe, vocab_size: 20}}
model: {{kind: rnn_lm}}
training: {{max_updates: 1, best_metric: perplexity}}
"""


def learned(kind: str, size: int, texts: list[str]) -> Tokenizer:
    config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": size})
    return learn_tokenizers(
        config, [Example(text, text, line) for line, text in enumerate(texts, 1)]
    ).src


def test_the_merges_of_the_lectures_dictionary() -> None:
    steps = [*replay(learned("bpe", 20, LECTURE), LECTURE)]
    assert [(merge.pair, merge.count) for merge in steps] == [
        (("e", "s"), 9),
        (("es", "t"), 9),
        (("l", "o"), 7),
        (("lo", "w"), 7),
        (("▁", "low"), 7),
    ]
    assert steps[1].words == [["▁", "n", "e", "w", "est"], ["▁", "w", "i", "d", "est"]]


def test_neighbours_are_counted_in_every_word_and_joined_from_the_left() -> None:
    merges = Merges({"aaaaa": 2, "ab": 3})
    assert (merges.count(("a", "a")), merges.count(("a", "b")), merges.count(("b", "a"))) == (
        8,
        3,
        0,
    )
    assert merges.join(("a", "a")) == [0]
    assert merges.words == [(["aa", "aa", "a"], 2), (["a", "b"], 3)]
    assert [merges.count(pair) for pair in (("a", "a"), ("aa", "aa"), ("aa", "a"), ("a", "b"))] == [
        0,
        2,
        2,
        3,
    ]


def test_the_most_likely_neighbours_by_their_formula() -> None:
    """Of 20 symbols: ab 4 times of 5 a and 6 b, cd 3 times of 3 c and 3 d; frequency alone would prefer a b."""
    words = Counter({"ab": 4, "cd": 3, "a": 1, "b": 2, "e": 3})
    gain = {"ab": 4 * math.log(4 * 20 / (5 * 6)), "cd": 3 * math.log(3 * 20 / (3 * 3))}
    assert gain["cd"] > gain["ab"] > 0
    merges = Merges(words)
    assert merges.most_likely() == ("c", "d")
    merges.join(("c", "d"))
    assert merges.most_likely() == ("a", "b")
    merges.join(("a", "b"))
    assert merges.most_likely() is None
    assert Merges({"a": 1}).most_likely() is None


def test_words_are_cut_into_the_longest_tokens_and_given_back(tmp_path: Path) -> None:
    tokenizer = learned("wordpiece", 40, [*LECTURE, "the lower, newest!"])
    assert isinstance(tokenizer, WordPieceTokenizer)
    assert tokenizer.tokens("xlow low") == ["▁xlow", *tokenizer.tokens("low")]
    assert UNK in tokenizer.encode("xlow")
    text = "the newest, lowest! widest"
    assert tokenizer.join(tokenizer.tokens(text)) == "the newest, lowest! widest"
    for word in LECTURE:
        tokens = tokenizer.tokens(word)
        assert "".join(tokens) == f"▁{word}"
        begin = 0
        for token in tokens:
            longer = [f"▁{word}"[begin:end] for end in range(begin + len(token) + 1, len(word) + 2)]
            assert not any(one in tokenizer.vocabulary for one in longer)
            begin += len(token)
    Tokenizers(tokenizer.config, {"src": tokenizer, "tgt": tokenizer}).save(tmp_path)
    again = Tokenizers.load(tmp_path).src
    assert isinstance(again, WordPieceTokenizer)
    assert again.encode(text) == tokenizer.encode(text)


@pytest.mark.skipif(
    find_spec("tokenizers") is None, reason="the library `tokenizers` is not installed"
)
def test_it_cuts_as_another_implementation_does() -> None:
    from tokenizers.models import WordPiece

    texts = Path(__file__).read_text(encoding="utf-8").splitlines()
    tokenizer = learned("wordpiece", 300, texts[:80])
    tokens = tokenizer.vocabulary.tokens
    theirs = WordPiece(
        {token: number for number, token in enumerate(tokens)},
        unk_token="<unk>",
        continuing_subword_prefix="",
    )
    words = [word for word in " ".join(texts).split() if word.isalpha()]
    assert len(words) > 150
    for word in words:
        assert tokenizer.encode(word) == [token.id for token in theirs.tokenize(f"▁{word}")], word


def test_what_has_no_merges_or_no_room() -> None:
    with pytest.raises(RecipeError, match="kind: word has no merges; use bpe or wordpiece"):
        next(replay(learned("word", 100, LECTURE), LECTURE))
    with pytest.raises(
        RecipeError, match="too small for this text: every character needs a token; use at least 15"
    ):
        learned("wordpiece", 14, LECTURE)


def test_the_command_shows_them(nmtkit: Command, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("\n".join(LECTURE), encoding="utf-8")
    (tmp_path / "toy.yaml").write_text(RECIPE.format(words), encoding="utf-8")
    command = (
        "preprocess",
        tmp_path / "toy.yaml",
        "--run",
        tmp_path / "run",
        "--show-merges",
        words,
    )
    out = succeeded(nmtkit(*command)).out
    assert [line.split()[:5] for line in out.splitlines() if " + " in line][:2] == [
        ["1", "e", "+", "s", "9"],
        ["2", "es", "+", "t", "9"],
    ]
    unlike = (*command, "--set", "tokenizer.kind=word", "--run", tmp_path / "other")
    assert "use bpe or wordpiece" in refused(nmtkit(*unlike)).err
