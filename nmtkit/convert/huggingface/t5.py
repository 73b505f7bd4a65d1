"""T5 (Raffel et al. 2020), T5 v1.1, mT5 (Xue et al. 2021) and Flan-T5 (Chung et al. 2022)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from typing_extensions import override

from nmtkit.convert.checkpoint_converter import CheckpointConverter
from nmtkit.convert.external_files import read_weights
from nmtkit.convert.huggingface.encoder_decoder import (
    EncoderDecoderConfig,
    convert_words,
    public_tensors,
)
from nmtkit.convert.huggingface.families import FAMILIES, Family, PublicWeights
from nmtkit.convert.huggingface.generation import read_config, read_variants
from nmtkit.convert.huggingface.tokenizers import read_tokenizers
from nmtkit.convert.imported_model import ImportedModel
from nmtkit.convert.weight_names import Row, WeightNames
from nmtkit.core.settings import Depth, Field, Width
from nmtkit.models.t5 import T5Config

_SHARED_EMBEDDING = "shared.weight"
_UNREAD = ["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"]
"""Tensors that only the earliest published files contain."""
_ROWS: dict[str, Row] = {
    "src_embedding.weight": "encoder.embed_tokens.weight",
    "tgt_embedding.weight": "decoder.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "src_positions.weight": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "tgt_positions.weight": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "{side}.{layer}.self_attention.query_keys_values.weight": [
        "{side}.block.{layer}.layer.0.SelfAttention.q.weight",
        "{side}.block.{layer}.layer.0.SelfAttention.k.weight",
        "{side}.block.{layer}.layer.0.SelfAttention.v.weight",
    ],
    "{side}.{layer}.self_attention.out.weight": "{side}.block.{layer}.layer.0.SelfAttention.o.weight",
    "{side}.{layer}.around_self_attention.norm.weight": "{side}.block.{layer}.layer.0.layer_norm.weight",
    "{side}.{layer}.cross_attention.query.weight": "{side}.block.{layer}.layer.1.EncDecAttention.q.weight",
    "{side}.{layer}.cross_attention.keys_values.weight": [
        "{side}.block.{layer}.layer.1.EncDecAttention.k.weight",
        "{side}.block.{layer}.layer.1.EncDecAttention.v.weight",
    ],
    "{side}.{layer}.cross_attention.out.weight": "{side}.block.{layer}.layer.1.EncDecAttention.o.weight",
    "{side}.{layer}.around_cross_attention.norm.weight": "{side}.block.{layer}.layer.1.layer_norm.weight",
    "encoder.{layer}.around_feed_forward.norm.weight": "encoder.block.{layer}.layer.1.layer_norm.weight",
    "decoder.{layer}.around_feed_forward.norm.weight": "decoder.block.{layer}.layer.2.layer_norm.weight",
    "encoder.{layer}.feed_forward.gate.weight": "encoder.block.{layer}.layer.1.DenseReluDense.wi_1.weight",
    "decoder.{layer}.feed_forward.gate.weight": "decoder.block.{layer}.layer.2.DenseReluDense.wi_1.weight",
    "encoder.{layer}.feed_forward.out.weight": "encoder.block.{layer}.layer.1.DenseReluDense.wo.weight",
    "decoder.{layer}.feed_forward.out.weight": "decoder.block.{layer}.layer.2.DenseReluDense.wo.weight",
    "{side}_norm.0.weight": "{side}.final_layer_norm.weight",
}
_PLAIN_NAMES = WeightNames(
    {
        **_ROWS,
        "encoder.{layer}.feed_forward.inner.weight": "encoder.block.{layer}.layer.1.DenseReluDense.wi.weight",
        "decoder.{layer}.feed_forward.inner.weight": "decoder.block.{layer}.layer.2.DenseReluDense.wi.weight",
    }
)
_GATED_NAMES = WeightNames(
    {
        **_ROWS,
        "encoder.{layer}.feed_forward.inner.weight": "encoder.block.{layer}.layer.1.DenseReluDense.wi_0.weight",
        "decoder.{layer}.feed_forward.inner.weight": "decoder.block.{layer}.layer.2.DenseReluDense.wi_0.weight",
    }
)
_GATED = "gated-gelu"


class HuggingFaceT5Config(EncoderDecoderConfig):
    """The settings that are read from `config.json` and `generation_config.json`."""

    d_kv: Width = Field(ge=1)
    d_ff: Width = Field(ge=1)
    num_layers: Depth = Field(ge=1)
    num_decoder_layers: Depth | None = Field(default=None, ge=1)
    num_heads: int = Field(ge=1)
    scale_decoder_outputs: bool = True
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float = Field(default=0.1, ge=0.0, lt=1.0)
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: Literal["relu", "gated-gelu"] = "relu"
    pad_token_id: int = Field(default=0, ge=0)
    eos_token_id: int = Field(default=1, ge=0)
    decoder_start_token_id: int = Field(default=0, ge=0)


@FAMILIES.register("t5")
class T5(Family):
    """Converts folders of T5ForConditionalGeneration."""

    model_type = "t5"
    scales_output = True
    """Whether the decoder's output is scaled if the output layer is tied to the embedding."""

    @override
    def read(self, folder: Path) -> ImportedModel:
        config, _ = read_config(folder, HuggingFaceT5Config)
        special = (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id)
        tokenizers, maps = read_tokenizers(
            folder, special, config.vocab_size, first=config.forced_bos_token_id
        )
        is_gated = config.feed_forward_proj == _GATED
        converter = CheckpointConverter(
            place=folder / "config.json",
            weights=read_weights(folder),
            names=_GATED_NAMES if is_gated else _PLAIN_NAMES,
            tokenizers=tokenizers,
            vocabularies=maps,
        )
        settings = {
            "hidden_size": config.d_model,
            "feed_forward_size": config.d_ff,
            "heads": config.num_heads,
            "head_size": config.d_kv,
            "encoder_layers": config.num_layers,
            "decoder_layers": config.num_decoder_layers or config.num_layers,
            "relative_buckets": config.relative_attention_num_buckets,
            "relative_distance": config.relative_attention_max_distance,
            "norm_epsilon": config.layer_norm_epsilon,
            "gated": is_gated,
            "scale_output": self.scales_output
            and config.scale_decoder_outputs
            and config.tie_word_embeddings,
            "activation": "gelu_tanh" if is_gated else "relu",
            "dropout": config.dropout_rate,
            "attention_dropout": config.dropout_rate,
            "activation_dropout": config.dropout_rate,
        }
        words = convert_words(config, converter, _SHARED_EMBEDDING)
        model, tensors = converter.convert(T5Config, settings, words, _UNREAD)
        never_written = {*special}
        search, notes = config.search_settings(folder, maps, never_written)
        search["certain_prefix"] = config.forced_bos_token_id is not None
        return ImportedModel(
            toolkit="huggingface",
            architecture=self.model_type,
            model=model,
            tensors=tensors,
            tokenizers=tokenizers,
            search=search,
            notes=notes,
            variants=read_variants(folder, HuggingFaceT5Config, maps, never_written),
        )

    @override
    def tensors(self, public: PublicWeights, config: Mapping[str, Any]) -> dict[str, Tensor]:
        names = _GATED_NAMES if config.get("feed_forward_proj") == _GATED else _PLAIN_NAMES
        return public_tensors(public, names, _SHARED_EMBEDDING)


@FAMILIES.register("mt5")
class MT5(T5):
    """Converts folders of MT5ForConditionalGeneration."""

    model_type = "mt5"
    scales_output = False
