"""BERT (Devlin et al. 2019) with its heads; [CLS] becomes BOS, and [SEP] becomes EOS."""

import re
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from nmtkit.config.tasks.builtin import LANGUAGE_MODELLING
from nmtkit.convert.checkpoint_converter import CheckpointConverter
from nmtkit.convert.external_files import (
    ExternalSettings,
    ExternalWeights,
    read_json,
    read_weights,
    unsupported,
)
from nmtkit.convert.huggingface.families import ACTIVATIONS, FAMILIES, Family, renamed
from nmtkit.convert.huggingface.tokenizers import read_tokenizers
from nmtkit.convert.imported_model import ImportedModel
from nmtkit.convert.weight_names import WeightNames
from nmtkit.core.settings import Depth, Field, Width, parse
from nmtkit.data.tokenizers.tokenizer import MAX_VOCAB_SIZE
from nmtkit.models.language.bert import BertConfig

_NAMES = WeightNames(
    {
        "src_embedding.weight": "embeddings.word_embeddings.weight",
        "src_positions.table": "embeddings.position_embeddings.weight",
        "segment_embedding.{kind}": "embeddings.token_type_embeddings.{kind}",
        "src_embedding_norm.{kind}": "embeddings.LayerNorm.{kind}",
        "encoder.{layer}.self_attention.query_keys_values.{kind}": [
            "encoder.layer.{layer}.attention.self.query.{kind}",
            "encoder.layer.{layer}.attention.self.key.{kind}",
            "encoder.layer.{layer}.attention.self.value.{kind}",
        ],
        "encoder.{layer}.self_attention.out.{kind}": "encoder.layer.{layer}.attention.output.dense.{kind}",
        "encoder.{layer}.around_self_attention.norm.{kind}": "encoder.layer.{layer}.attention.output.LayerNorm.{kind}",
        "encoder.{layer}.feed_forward.inner.{kind}": "encoder.layer.{layer}.intermediate.dense.{kind}",
        "encoder.{layer}.feed_forward.out.{kind}": "encoder.layer.{layer}.output.dense.{kind}",
        "encoder.{layer}.around_feed_forward.norm.{kind}": "encoder.layer.{layer}.output.LayerNorm.{kind}",
        "output.dense.{kind}": "cls.predictions.transform.dense.{kind}",
        "output.norm.{kind}": "cls.predictions.transform.LayerNorm.{kind}",
        "output.words.weight": "cls.predictions.decoder.weight",
        "output.words.bias": "cls.predictions.bias",
        "pooler.{kind}": "pooler.dense.{kind}",
        "next_sentence.{kind}": "cls.seq_relationship.{kind}",
    }
)
_OUTPUT_BIASES = ("cls.predictions.bias", "cls.predictions.decoder.bias")
"""The two names under which a file may store the output bias."""
_UNREAD = [
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "pooler.dense.weight",
    "pooler.dense.bias",
]
"""Tensors that are stored twice, or that only the head for next-sentence prediction uses."""


class BertFolderConfig(ExternalSettings):
    """The settings that are read from `config.json`, under our names; a `Literal` allows only one value."""

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
class Bert(Family):
    """Converts folders of BertForPreTraining, BertForMaskedLM or BertModel."""

    model_type = "bert"

    @override
    def read(self, folder: Path) -> ImportedModel:
        place = folder / "config.json"
        config = parse(BertFolderConfig, read_json(place, dict), str(place))
        tokenizers, maps = read_tokenizers(
            folder, ("[PAD]", "[CLS]", "[SEP]"), config.vocab_size, ("tgt",)
        )
        weights = _with_plain_names(read_weights(folder))
        converter = CheckpointConverter(
            place=place, weights=weights, names=_NAMES, tokenizers=tokenizers, vocabularies=maps
        )
        converted = _convert_words(config, converter)
        notes = []
        if _NAMES.theirs("output.dense.weight") not in weights.shapes:
            notes.append(
                "the folder has no head for masked language modelling, so a new one was added; use "
                "only the encoder, or continue training"
            )
            converted |= _new_head(config.hidden_size)
        settings = config.model_dump(include={*BertConfig.model_fields}) | {
            "activation": ACTIVATIONS.get(config.activation, config.activation),
            "next_sentence": _NAMES.theirs("next_sentence.weight") in weights.shapes,
        }
        model, tensors = converter.convert(BertConfig, settings, converted, _UNREAD)
        return ImportedModel(
            toolkit="huggingface",
            architecture=self.model_type,
            model=model,
            tensors=tensors,
            tokenizers=tokenizers,
            search={},
            notes=notes,
            task=LANGUAGE_MODELLING.name,
        )


def _convert_words(config: BertFolderConfig, converter: CheckpointConverter) -> dict[str, Tensor]:
    """Returns the embedding, which is also the output layer, and the output bias under our names."""
    shapes = converter.weights.shapes
    output = _NAMES.theirs("output.words.weight")
    words = converter.words(
        converter.present([_NAMES.theirs("src_embedding.weight"), output]), config.hidden_size
    )
    if output in shapes and not torch.equal(converter.words(output, config.hidden_size), words):
        raise unsupported(
            converter.place, f"output embeddings ({output}) that differ from the input embeddings"
        )
    bias_name = next((name for name in _OUTPUT_BIASES if name in shapes), _OUTPUT_BIASES[0])
    bias = converter.tensor(bias_name, (config.vocab_size,), optional=True)
    return {
        "src_embedding.weight": words,
        "output.words.weight": words,
        "output.words.bias": converter.output_bias(bias),
    }


def _new_head(width: int) -> dict[str, Tensor]:
    """Returns an identity head for masked language modelling under our names."""
    return {
        "output.dense.weight": torch.eye(width),
        "output.dense.bias": torch.zeros(width),
        "output.norm.weight": torch.ones(width),
        "output.norm.bias": torch.zeros(width),
    }


def _with_plain_names(weights: ExternalWeights) -> ExternalWeights:
    """Returns weights under the current names of BertModel, without the position ids of older folders."""
    names = {}
    for name in weights.shapes:
        plain_name = name.removeprefix("bert.")
        plain_name = re.sub(r"\.gamma$", ".weight", plain_name)
        plain_name = re.sub(r"\.beta$", ".bias", plain_name)
        if plain_name != "embeddings.position_ids":
            names[plain_name] = name
    return renamed(weights, names)
