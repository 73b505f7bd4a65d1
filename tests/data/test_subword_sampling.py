"""Sampled tokenizations against sentencepiece's, and against probabilities that are worked out."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

from nmtkit.data.text.blocks import Example
from nmtkit.data.tokenizers.subword_sampling import UnigramSampler, generator_for
from nmtkit.data.tokenizers.tokenizer import SentencePieceTokenizer, TokenizerConfig
from nmtkit.data.tokenizers.vocabulary import UNK
from tests.support.learned_tokenizers import learn_tokenizers

TEXTS = [
    "the old man sees the 犬犬 in a gardenx",
    "  wide   \u3000spaces ▁ and ½ ",
    "犬",
    "",
    "-- 犬 犬 --",
    "x" * 80,
]
SIZES = {"bpe": 120, "unigram": 60}


def tokenizer_of(kind: str, pairs: list[Example], sampling: float) -> SentencePieceTokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=SIZES[kind], sampling=sampling)  # type: ignore[arg-type]  # kind is a str
    tokenizer = learn_tokenizers(config, pairs).src
    assert isinstance(tokenizer, SentencePieceTokenizer)
    return tokenizer


def test_without_dropout_merges_are_those_of_sentencepiece(pairs: list[Example]) -> None:
    tokenizer = tokenizer_of("bpe", pairs, sampling=1e-12)
    texts = [pair.src for pair in pairs[:300]] + TEXTS
    assert tokenizer.encode_many(texts, seed=1) == tokenizer.encode_many(texts)


@pytest.mark.parametrize(
    ("kind", "sampling"), [("bpe", 0.1), ("bpe", 0.5), ("unigram", 0.2), ("unigram", 1.0)]
)
def test_tokenizations_have_the_frequencies_of_sentencepiece(
    kind: str, sampling: float, pairs: list[Example]
) -> None:
    tokenizer = tokenizer_of(kind, pairs, sampling)
    count = 20_000
    for text in ("window", "sees the", "bri犬犬ge"):
        texts = [text] * count
        sampled = Counter(map(tuple, tokenizer.encode_many(texts, seed=1)))
        reference = Counter(
            map(
                tuple,
                tokenizer._processor.encode(
                    texts, enable_sampling=True, alpha=sampling, nbest_size=-1
                ),
            )
        )
        for ids in sampled | reference:
            variance = sampled[ids] + reference[ids]
            assert abs(sampled[ids] - reference[ids]) < 6 * math.sqrt(variance) + 1, (text, ids)


def segmentations(word: str, scores: dict[str, float]) -> Iterator[tuple[list[str], float]]:
    if not word:
        yield [], 0.0
    for end in range(1, len(word) + 1):
        if word[:end] in scores:
            for pieces, score in segmentations(word[end:], scores):
                yield [word[:end], *pieces], scores[word[:end]] + score


def test_unigram_draws_in_proportion_to_powers_of_probabilities() -> None:
    scores = {
        "▁": -2.0,
        "a": -3.0,
        "b": -3.5,
        "▁a": -2.5,
        "ab": -4.0,
        "ba": -4.2,
        "▁ab": -5.0,
        "aba": -6.0,
    }
    ids = {piece: number for number, piece in enumerate(scores, start=4)}
    weights = {
        tuple(ids[piece] for piece in pieces): math.exp(0.5 * score)
        for pieces, score in segmentations("▁abab", scores)
    }
    sampler = UnigramSampler(scores, ids, alpha=0.5)
    draw = generator_for(3).random
    count = 20_000
    found = Counter(tuple(sampler.sample("▁abab", draw)) for _ in range(count))
    assert found.keys() == weights.keys()
    for tokens, weight in weights.items():
        share = weight / sum(weights.values())
        assert abs(found[tokens] / count - share) < 5 * math.sqrt(share * (1 - share) / count)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_unknown_characters_are_one_unknown_token(kind: str, pairs: list[Example]) -> None:
    tokenizer = tokenizer_of(kind, pairs, sampling=0.3)
    for seed in range(20):
        for ids, text in zip(tokenizer.encode_many(TEXTS, seed), TEXTS, strict=True):
            assert (UNK, UNK) not in pairwise(ids)
            assert (UNK in ids) == (UNK in tokenizer.encode(text))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_tokenization_depends_on_no_other_text_and_on_no_earlier_call(
    kind: str, pairs: list[Example]
) -> None:
    texts = [pair.src for pair in pairs[:40]]
    forwards = tokenizer_of(kind, pairs, sampling=0.3)
    backwards = tokenizer_of(kind, pairs, sampling=0.3)
    numbers = range(len(texts))
    first = [forwards.sample(texts[number], generator_for(7, 0, number)) for number in numbers]
    last = [
        backwards.sample(texts[number], generator_for(7, 0, number)) for number in reversed(numbers)
    ]
    assert first == last[::-1]
    assert first != [
        forwards.sample(texts[number], generator_for(7, 1, number)) for number in numbers
    ]


def test_draws_are_the_same_on_every_machine() -> None:
    """They are part of what a training repeats, so this value may not change."""
    assert generator_for(1, 2, 3).random() == 0.6752046923448195


def test_cached_words_are_dropped_when_there_are_too_many(
    pairs: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [pair.src for pair in pairs[:40]]
    for kind in ("bpe", "unigram"):
        expected = tokenizer_of(kind, pairs, sampling=0.3).encode_many(texts, seed=5)
        with monkeypatch.context() as patch:
            for name in ("_MAX_CACHED_WORDS", "_MAX_CACHED_LATTICES"):
                patch.setattr(f"nmtkit.data.tokenizers.subword_sampling.{name}", 3)
            assert tokenizer_of(kind, pairs, sampling=0.3).encode_many(texts, seed=5) == expected
