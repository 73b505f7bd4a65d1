"""Translators that copy, of every model that can, without learned weights; and lines with words that they lack."""

import torch

import nmtkit.models  # noqa: F401  # fills the registry
from nmtkit.corpus.blocks import Example
from nmtkit.data.tokenizer import TokenizerConfig, TokenizerPair
from nmtkit.data.tokenizer_training import learn_tokenizers
from nmtkit.models.base import MODELS, VocabularySizes
from nmtkit.search.rules import SearchConfig
from nmtkit.translation.translator import Translator

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
TRANSFORMER = {"hidden_size": 12, "feed_forward_size": 12, "heads": 2, "encoder_layers": 1, "decoder_layers": 2}
COPYING: dict[str, tuple[str, dict[str, object]]] = {
    "pointer-generator": ("pointer_generator", RNN),
    "pointer-generator-coverage": ("pointer_generator", {**RNN, "coverage": True}),
    "intra-attention": ("intra_attention", RNN),
    "transformer-head": ("transformer", {**TRANSFORMER, "copying": "head"}),
    "transformer-learned": ("transformer", {**TRANSFORMER, "copying": "learned"}),
}


def learned_words() -> TokenizerPair:
    config = TokenizerConfig(kind="word")
    return learn_tokenizers(config, [Example(line, line, number) for number, line in enumerate(KNOWN, start=1)])


def untrained(name: str, tokenizers: TokenizerPair, **search: object) -> Translator:
    torch.manual_seed(4)
    kind, settings = COPYING[name]
    model_class = MODELS.get(kind)
    size = len(tokenizers.tgt.vocabulary)
    model = model_class(model_class.Config.model_validate(settings), VocabularySizes(size, size, shared=True))
    config = {"beam_size": 4, "min_length": 3, "max_length": 9, "no_repeat_ngram": 2, **search}
    return Translator(model.double().eval(), tokenizers, SearchConfig.model_validate(config), batch_tokens=40)
