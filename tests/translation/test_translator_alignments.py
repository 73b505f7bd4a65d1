"""Alignments of every model family are those of its own search; nothing here is trained."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import nmtkit.models  # noqa: F401  # fills the registry
from nmtkit.corpus.blocks import Example
from nmtkit.data.tokenizer import TokenizerConfig, TokenizerPair
from nmtkit.data.tokenizer_training import learn_tokenizers
from nmtkit.models.base import MODELS, VocabularySizes
from nmtkit.search.rules import SearchConfig
from nmtkit.translation.translator import Translator

LINES = ["Otto opens the window, and Anna sees it.", "the dog", "Anna", "", "it sees Otto and the dog and Anna ."]
BARE = ["Otto opens the window and Anna sees it", "the dog", "it sees Otto and the dog"]

RNN = {"embedding_size": 16, "hidden_size": 16}
SMALL: dict[str, dict[str, object]] = {
    "rnnsearch": RNN,
    "rnn_encdec": RNN,
    "luong": {**RNN, "reverse_source": True, "window": "local_p", "window_size": 2},
    "pointer_generator": {**RNN, "coverage": True},
    "intra_attention": RNN,
    "transformer": {"hidden_size": 16, "feed_forward_size": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 2},
}
WITH_ATTENTION = [name for name in MODELS.names() if MODELS.get(name).has_attention]


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    pairs = [Example(line, line, number) for number, line in enumerate(LINES, start=1)]
    return learn_tokenizers(TokenizerConfig.model_validate({"kind": "bpe", "vocab_size": 45}), pairs)


def untrained(kind: str, tokenizers: TokenizerPair) -> Translator:
    torch.manual_seed(3)
    model_class = MODELS.get(kind)
    size = len(tokenizers.src.vocabulary)
    model = model_class(model_class.Config.model_validate(SMALL[kind]), VocabularySizes(size, size, shared=True))
    # Limits, for an untrained model ends at random.
    config = SearchConfig(beam_size=2, min_length=3, max_length=9, forbid_unknown=True)
    return Translator(model.eval(), tokenizers, config, batch_tokens=40)


def test_every_family_is_asked() -> None:
    assert set(SMALL) == set(MODELS.names())
    assert len(WITH_ATTENTION) >= 3


@pytest.mark.parametrize("kind", WITH_ATTENTION)
def test_align_shows_the_attention_of_the_search(kind: str) -> None:
    """Row t is the step that wrote word t. With bare words as tokens, every text is cut as the search built it."""
    torch.set_float32_matmul_precision("highest")  # less exact ones differ with the shape
    pairs = [Example(line, line, number) for number, line in enumerate(BARE, start=1)]
    translator = untrained(kind, learn_tokenizers(TokenizerConfig(kind="word"), pairs))
    searched = [found[0] for found in translator.search(BARE, need_attention=True)]
    aligned = translator.align(BARE, [best.text for best in searched])
    for line, best, soft in zip(BARE, searched, aligned, strict=True):
        assert best.attention is not None
        assert len(best.tokens) >= 3
        assert soft.src_words == line.split()
        assert soft.tgt_words == best.text.split()
        assert soft.weights == pytest.approx(best.attention[: len(best.tokens), :-1].astype(np.float64), abs=1e-5)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", WITH_ATTENTION)
def test_aligning_many_is_aligning_each(kind: str, threads: int, tokenizers: TokenizerPair) -> None:
    """With several threads several batches are read at a time."""
    torch.set_float32_matmul_precision("highest")  # less exact ones differ with the shape
    translator = untrained(kind, tokenizers)
    targets = [LINES[2], LINES[0], LINES[1], "", LINES[0]]
    together = translator.align(LINES, targets)
    assert [one.weights.shape for one in together] == [(1, 8), (8, 2), (2, 1), (0, 0), (8, 9)]
    for line, target, one in zip(LINES, targets, together, strict=True):
        (alone,) = translator.align([line], [target])
        assert alone.weights == pytest.approx(one.weights, abs=1e-5)
