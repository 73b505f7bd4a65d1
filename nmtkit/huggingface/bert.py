"""Imports BERT (Devlin et al. 2019) with the heads that it has; [CLS] is BOS here, and [SEP] is EOS."""

import re
from pathlib import Path
from typing import Literal

import torch

from nmtkit.core.settings import Depth, Field, Width, parse
from nmtkit.data.tokenizer import MAX_VOCAB_SIZE
from nmtkit.huggingface.reading import ACTIVATIONS, FAMILIES, renamed
from nmtkit.huggingface.tokenizers import read_tokenizers
from nmtkit.interchange.external_files import ExternalSettings, read_json, read_weights
from nmtkit.interchange.import_weights import CheckpointConverter, ImportedModel, transformer_names
from nmtkit.interchange.importing import license_of
from nmtkit.language_models.bert import BertConfig
from nmtkit.tasks.language_modelling import LANGUAGE_MODELLING

_ENCODER = transformer_names(
    "encoder.layer",
    "",
    {
        "self_attention.query_keys_values": [f"attention.self.{part}" for part in ("query", "key", "value")],
        "self_attention.out": ["attention.output.dense"],
        "around_self_attention.norm": ["attention.output.LayerNorm"],
        "feed_forward.inner": ["intermediate.dense"],
        "feed_forward.out": ["output.dense"],
        "around_feed_forward.norm": ["output.LayerNorm"],
    },
)
_OTHERS = {
    "src_positions.table": "embeddings.position_embeddings.weight",
    "segment_embedding.weight": "embeddings.token_type_embeddings.weight",
    "embedding_norm.": "embeddings.LayerNorm.",
    "output.dense.": "cls.predictions.transform.dense.",
    "output.norm.": "cls.predictions.transform.LayerNorm.",
    "pooler.": "pooler.dense.",
    "next_sentence.": "cls.seq_relationship.",
}
_TIED = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")


class BertFolderConfig(ExternalSettings):
    """The keys of `config.json` that are read; those with one value allow no other."""

    vocab_size: int = Field(ge=2, le=MAX_VOCAB_SIZE)
    hidden_size: Width = Field(ge=2)
    num_hidden_layers: Depth = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    intermediate_size: Width = Field(ge=1)
    max_position_embeddings: Width = Field(ge=1)
    type_vocab_size: int = Field(default=2, ge=1)
    hidden_act: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"] = "gelu"
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = Field(default=0.1, ge=0.0, lt=1.0)
    attention_probs_dropout_prob: float = Field(default=0.1, ge=0.0, lt=1.0)
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False


@FAMILIES.register("bert")
def read_bert(folder: Path) -> ImportedModel:
    """Converts a folder of BertForPreTraining, BertForMaskedLM or BertModel."""
    place = folder / "config.json"
    config = parse(BertFolderConfig, read_json(place, dict), str(place))
    width = config.hidden_size
    tokenizers, maps = read_tokenizers(folder, ("[PAD]", "[CLS]", "[SEP]"), config.vocab_size, ("tgt",))
    weights = renamed(read_weights(folder), _plain_name)
    converter = CheckpointConverter(place, weights, tokenizers, maps)
    words = converter.words("embeddings.word_embeddings.weight", width)
    own = {"src_embedding.weight": words, "output.words.weight": words}
    notes = []
    bias = converter.tensor("cls.predictions.bias", (config.vocab_size,), optional=True)
    own["output.words.bias"] = converter.output_bias(bias)
    if "cls.predictions.transform.dense.weight" not in weights.shapes:
        notes.append("the folder has no head for masked words, so that it is a new one: take the encoder, or train on")
        own |= {"output.dense.weight": torch.eye(width), "output.norm.weight": torch.ones(width)}
        own |= {"output.dense.bias": torch.zeros(width), "output.norm.bias": torch.zeros(width)}
    next_sentence = "cls.seq_relationship.weight" in weights.shapes
    settings = {
        "hidden_size": width,
        "feed_forward_size": config.intermediate_size,
        "heads": config.num_attention_heads,
        "layers": config.num_hidden_layers,
        "dropout": config.hidden_dropout_prob,
        "attention_dropout": config.attention_probs_dropout_prob,
        "norm_epsilon": config.layer_norm_eps,
        "max_positions": config.max_position_embeddings,
        "segments": config.type_vocab_size,
        "activation": ACTIVATIONS[config.hidden_act],
        "next_sentence": next_sentence,
    }
    ignored = (*_TIED, *(() if next_sentence else ("pooler.dense.weight", "pooler.dense.bias")))
    model, tensors = converter.convert(BertConfig, settings, own, _source_names, ignored)
    origin = LANGUAGE_MODELLING.name, license_of(folder)
    return ImportedModel("huggingface", "bert", model, tensors, tokenizers, {}, notes, *origin)


def _source_names(name: str) -> list[str]:
    begin = next((ours for ours in _OTHERS if name.startswith(ours)), None)
    return [*_ENCODER(name)] if begin is None else [_OTHERS[begin] + name.removeprefix(begin)]


def _plain_name(name: str) -> str:
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name.removeprefix("bert.")))  # older folders
    return "" if name == "embeddings.position_ids" else name
