"""Translators of every model, without learned weights; and lines with words that their vocabulary lacks."""

from collections.abc import Sequence

import pytest
import torch

from nmtkit.data.text.blocks import Example
from nmtkit.data.tokenizers.huggingface_tokenizer import HuggingFaceTokenizer
from nmtkit.data.tokenizers.tokenizer import SentencePieceTokenizer, TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import SPECIALS, Vocabulary
from nmtkit.decoding.settings import BeamConfig, change_search
from nmtkit.inference.translator import Translator
from nmtkit.models.base import MODELS, VocabularySizes
from tests.support.learned_tokenizers import learn_tokenizers

KNOWN = ["the old man sees the dog .", "a dog , who is old , sleeps in the house ."]
LINES = [
    "Zyx sees the dog , Abc .",
    "",
    "Def and Ghi and Jkl see Zyx in the old house , and Mno sleeps .",
    "the dog",
    "Abc",
    "the old man and Abc see Abc and Zyx .",
]

RNN = {"embedding_size": 12, "hidden_size": 12}
TRANSFORMER = {
    "hidden_size": 12,
    "feed_forward_size": 12,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 2,
}
SMALL: dict[str, tuple[str, dict[str, object]]] = {
    "rnnsearch": ("rnnsearch", RNN),
    "rnn_encdec": ("rnn_encdec", RNN),
    "luong": ("luong", {**RNN, "reverse_source": True, "window": "local_p", "window_size": 2}),
    "gnmt": ("gnmt", {**RNN, "layers": 3}),
    "lstmn_seq2seq": ("lstmn_seq2seq", RNN),
    "pointer-generator": ("pointer_generator", RNN),
    "pointer-generator-coverage": ("pointer_generator", {**RNN, "coverage": True}),
    "intra-attention": ("intra_attention", RNN),
    "transformer": ("transformer", TRANSFORMER),
    "transformer-head": ("transformer", {**TRANSFORMER, "copying": "head"}),
    "transformer-learned": ("transformer", {**TRANSFORMER, "copying": "learned"}),
    "luong-own": ("luong", {**RNN, "copying": "own"}),
    "t5": ("t5", {**TRANSFORMER, "copying": "learned"}),
    "convs2s": (
        "convs2s",
        {"embedding_size": 12, "hidden_size": 12, "encoder_layers": 1, "decoder_layers": 2},
    ),
}
COPYING = [
    name
    for name, (kind, settings) in SMALL.items()
    if MODELS.get(kind).Config.model_validate(settings).copies
]


def learned(texts: Sequence[str] = KNOWN, kind: str = "word", **settings: object) -> Tokenizers:
    """Tokenizers for sentences that are their own translations."""
    config = TokenizerConfig.model_validate({"kind": kind, **settings})
    return learn_tokenizers(
        config, [Example(text, text, number) for number, text in enumerate(texts, start=1)]
    )


def imported(affixes: dict[str, dict[str, list[str]]], sentinels: Sequence[str] = ()) -> Tokenizers:
    """Tokenizers of an imported model, with the token of one language, sentinels and two words."""
    library = pytest.importorskip("tokenizers")
    names = [*SPECIALS, "en_XX", *sentinels, "▁the", "▁dog"]
    cut = library.Tokenizer(
        library.models.WordLevel({name: n for n, name in enumerate(names)}, unk_token="<unk>")
    )
    cut.pre_tokenizer, cut.decoder = (
        library.pre_tokenizers.Metaspace(),
        library.decoders.Metaspace(),
    )
    cut.add_tokens([library.AddedToken(name, special=False) for name in sentinels])
    content, vocabulary = (
        HuggingFaceTokenizer.pack(cut.to_str(), range(len(names)), False),
        Vocabulary(names, names[4:-2]),
    )
    config = TokenizerConfig.model_validate(
        {"kind": "huggingface", "specials": names[4:-2], "affixes": affixes}
    )
    sides = {
        side: HuggingFaceTokenizer(config, content, vocabulary, side) for side in ("src", "tgt")
    }
    return Tokenizers(config, sides)


def marian() -> Tokenizers:
    """Tokenizers as a model of Marian has them, with the tag of one language and letters."""
    model, config = (
        learned(KNOWN, "char", vocab_size=60).src.content(),
        TokenizerConfig(kind="marian"),
    )
    letters = SentencePieceTokenizer(config, model, Vocabulary(SPECIALS)).model_pieces[
        len(SPECIALS) :
    ]
    own = SentencePieceTokenizer(config, model, Vocabulary([*SPECIALS, ">>en_XX<<", *letters]))
    return Tokenizers(config, {"src": own, "tgt": own})


WORDS = learned()


def untrained(
    name: str, tokenizers: Tokenizers, scale: float = 1.0, **search: object
) -> Translator:
    """A translator in float64; weights are `scale` times as large as fresh ones."""
    torch.manual_seed(4)
    kind, settings = SMALL[name]
    model_class = MODELS.get(kind)
    size = len(tokenizers.tgt.vocabulary)
    model = model_class(
        model_class.Config.model_validate(settings),
        VocabularySizes({"src": size, "tgt": size}, shared=True),
    )
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(scale)
    config = change_search(BeamConfig(), {"min_length": 3, "max_length": 9, **search})
    return Translator(model.double().eval(), tokenizers, config, batch_tokens=40)


def copying(name: str, **search: object) -> Translator:
    """A translator for `LINES`, of which its vocabulary knows some words."""
    width = {} if "samples" in search else {"beam_size": 4}
    return untrained(name, WORDS, **{**width, "no_repeat_ngram": 2, **search})
