"""Imports BERT (Devlin et al. 2019) with the heads that it has; [CLS] is BOS here, and [SEP] is EOS."""

import re
from pathlib import Path
from typing import Literal

import torch

from nmtkit.convert.external_files import ExternalSettings, read_json, read_weights, unsupported
from nmtkit.convert.huggingface.reading import ACTIVATIONS, FAMILIES, renamed
from nmtkit.convert.huggingface.tokenizers import read_tokenizers
from nmtkit.convert.import_weights import CheckpointConverter, ImportedModel, transformer_names
from nmtkit.core.settings import Depth, Field, Width, parse
from nmtkit.data.tokenizers.tokenizer import MAX_VOCAB_SIZE
from nmtkit.models.language.bert import BertConfig
from nmtkit.tasks.builtin import LANGUAGE_MODELLING

_MODULES = {
    "self_attention.query_keys_values": [f"attention.self.{part}" for part in ("query", "key", "value")],
    "self_attention.out": ["attention.output.dense"],
    "around_self_attention.norm": ["attention.output.LayerNorm"],
    "feed_forward.inner": ["intermediate.dense"],
    "feed_forward.out": ["output.dense"],
    "around_feed_forward.norm": ["output.LayerNorm"],
}
_OTHERS = {
    "src_positions.table": "embeddings.position_embeddings.weight",
    "segment_embedding.": "embeddings.token_type_embeddings.",
    "src_embedding_norm.": "embeddings.LayerNorm.",
    "output.dense.": "cls.predictions.transform.dense.",
    "output.norm.": "cls.predictions.transform.LayerNorm.",
    "pooler.": "pooler.dense.",
    "next_sentence.": "cls.seq_relationship.",
}
_OUTPUT = "cls.predictions.decoder.weight"
_OUTPUT_BIAS = ("cls.predictions.bias", "cls.predictions.decoder.bias")
"""Two names of one tied vector."""
_IGNORED = [f"{name}.{kind}" for name in ("cls.predictions.decoder", "pooler.dense") for kind in ("weight", "bias")]
"""Given twice, or of no use without the head for the next sentence."""


class BertFolderConfig(ExternalSettings):
    """The keys of `config.json` that are read, by our names; those with one value allow no other."""

    vocab_size: int = Field(ge=2, le=MAX_VOCAB_SIZE)
    hidden_size: Width
    feed_forward_size: Width = Field(alias="intermediate_size")
    heads: int = Field(alias="num_attention_heads")
    layers: Depth = Field(alias="num_hidden_layers")
    max_positions: Width = Field(alias="max_position_embeddings")
    segments: int = Field(default=2, alias="type_vocab_size")
    activation: str = Field(default="gelu", alias="hidden_act")
    norm_epsilon: float = Field(default=1e-12, alias="layer_norm_eps")
    dropout: float = Field(default=0.1, alias="hidden_dropout_prob")
    attention_dropout: float = Field(default=0.1, alias="attention_probs_dropout_prob")
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False


@FAMILIES.register("bert")
def read_bert(folder: Path) -> ImportedModel:
    """Converts a folder of BertForPreTraining, BertForMaskedLM or BertModel."""
    place = folder / "config.json"
    config = parse(BertFolderConfig, read_json(place, dict), str(place))
    width, notes = config.hidden_size, list[str]()
    tokenizers, maps = read_tokenizers(folder, ("[PAD]", "[CLS]", "[SEP]"), config.vocab_size, ("tgt",))
    weights = renamed(read_weights(folder), _plain_name)
    converter = CheckpointConverter(place, weights, tokenizers, maps)
    words = converter.words(converter.present(["embeddings.word_embeddings.weight", _OUTPUT]), width)
    if _OUTPUT in weights.shapes and not torch.equal(converter.words(_OUTPUT, width), words):
        raise unsupported(place, f"{_OUTPUT}: output words that are not those of the input")
    bias_name = next((name for name in _OUTPUT_BIAS if name in weights.shapes), _OUTPUT_BIAS[0])
    bias = converter.tensor(bias_name, (config.vocab_size,), optional=True)
    own = {
        "src_embedding.weight": words,
        "output.words.weight": words,
        "output.words.bias": converter.output_bias(bias),
    }
    if "cls.predictions.transform.dense.weight" not in weights.shapes:
        notes.append("the folder has no head for masked words, so that it is a new one: take the encoder, or train on")
        own |= {"output.dense.weight": torch.eye(width), "output.norm.weight": torch.ones(width)}
        own |= {f"output.{part}.bias": torch.zeros(width) for part in ("dense", "norm")}
    settings = config.model_dump(include={*BertConfig.model_fields}) | {
        "activation": ACTIVATIONS.get(config.activation, config.activation),
        "next_sentence": "cls.seq_relationship.weight" in weights.shapes,
    }
    model, tensors = converter.convert(BertConfig, settings, own, _source_names, _IGNORED)
    return ImportedModel("huggingface", "bert", model, tensors, tokenizers, {}, notes, LANGUAGE_MODELLING.name)


def _source_names(name: str) -> list[str]:
    begin = next((ours for ours in _OTHERS if name.startswith(ours)), None)
    if begin is None:
        return [*transformer_names("encoder.layer", "", _MODULES)(name)]
    return [_OTHERS[begin] + name.removeprefix(begin)]


def _plain_name(name: str) -> str:
    """As it is called today; empty for the numbers of positions that older folders hold."""
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name.removeprefix("bert.")))
    return "" if name == "embeddings.position_ids" else name
