"""Settings, token matrices and layers that the encoder-decoder families of `transformers` share.

Marian, mBART, M2M100 and Pegasus derive from BART: their layers have the same names and settings.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from nmtkit.config.tasks.builtin import TRANSLATION
from nmtkit.convert.checkpoint_converter import CheckpointConverter
from nmtkit.convert.external_files import ExternalWeights, read_weights, require_equal
from nmtkit.convert.huggingface.families import ACTIVATIONS, Family, PublicWeights, renamed
from nmtkit.convert.huggingface.generation import GenerationConfig, read_config, read_variants
from nmtkit.convert.huggingface.tokenizers import read_tokenizers
from nmtkit.convert.imported_model import ImportedModel
from nmtkit.convert.weight_names import SUPPRESSED_BIAS, Row, Stored, WeightNames
from nmtkit.core.settings import Depth, Field, Width
from nmtkit.data.tokenizers.languages import language_names
from nmtkit.data.tokenizers.tokenizer import MAX_VOCAB_SIZE
from nmtkit.models.transformer import TransformerConfig


class EncoderDecoderConfig(GenerationConfig):
    """The settings that are read from `config.json` and `generation_config.json` of every encoder-decoder model."""

    d_model: Width = Field(ge=2)
    decoder_vocab_size: int | None = Field(default=None, ge=2, le=MAX_VOCAB_SIZE)
    tie_word_embeddings: bool = True
    pad_token_id: int = Field(ge=0)
    decoder_start_token_id: int = Field(ge=0)

    @property
    @override
    def tgt_vocab_size(self) -> int:
        return self.decoder_vocab_size or self.vocab_size


def convert_words(
    config: EncoderDecoderConfig,
    converter: CheckpointConverter,
    shared: str,
    ties_output: bool = True,
    ties_sides: bool = True,
) -> dict[str, Tensor]:
    """Returns the embeddings and the output layer under our names.

    A file contains a tied matrix under only one of its names, because `safetensors` refuses to write
    a tensor twice. `shared` is another name for an embedding that source and target share
    (`ties_sides`). With `ties_output`, an output layer that is missing from the file equals the
    target embedding.
    """
    names = converter.names
    encoder = names.theirs("src_embedding.weight")
    decoder = names.theirs("tgt_embedding.weight")
    output = names.theirs("output.weight")
    source_names = [encoder, shared]
    target_names = [decoder, shared]
    if ties_sides:
        source_names.append(decoder)
        target_names.append(encoder)
    if ties_output:
        target_names.append(output)
    if ties_output and ties_sides:
        source_names.append(output)
    source = converter.present(source_names)
    target = converter.present(target_names)
    is_tied = ties_output and output not in converter.weights.shapes
    words = converter.word_weights(
        width=config.d_model,
        hidden=config.d_model,
        bias=_output_bias(config, converter),
        stored_as={
            "src_embedding.weight": source,
            "tgt_embedding.weight": target,
            "output.weight": target if is_tied else output,
        },
    )
    converter.used.update((shared, encoder, decoder))
    return words


def _output_bias(config: EncoderDecoderConfig, converter: CheckpointConverter) -> Tensor:
    bias = torch.zeros(config.tgt_vocab_size)
    if "output.bias" in converter.names:
        bias = converter.weight("output.bias", (config.tgt_vocab_size,), optional=lambda name: True)
    if config.renormalize_logits:  # `generate` renormalizes without these tokens
        bias[[*config.suppressed_tokens]] = SUPPRESSED_BIAS
    return bias


def public_tensors(public: PublicWeights, names: WeightNames, shared: str) -> dict[str, Tensor]:
    """Returns a model's tensors by their public names; a shared embedding is named `shared`."""
    tensors = public.tensors(names)
    sides = [names.theirs(name) for name in ("src_embedding.weight", "tgt_embedding.weight")]
    embeddings = [name for name in sides if name in tensors]
    if len(embeddings) == 1:  # tied weights are listed once
        tensors[shared] = tensors.pop(embeddings[0])
    return tensors


# ------------------------------------------------------------------------------------------------ BART's relatives


class BartLikeConfig(EncoderDecoderConfig):
    """The settings of BART and of families derived from it."""

    encoder_layers: Depth = Field(ge=1)
    decoder_layers: Depth = Field(ge=1)
    encoder_attention_heads: int = Field(ge=1)
    decoder_attention_heads: int = Field(ge=1)
    encoder_ffn_dim: Width = Field(ge=1)
    decoder_ffn_dim: Width = Field(ge=1)
    activation_function: Literal["relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "swish", "silu"]
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    activation_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    scale_embedding: bool = False
    share_encoder_decoder_embeddings: bool = True


SETTINGS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("d_model",),
    "feed_forward_size": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "heads": ("encoder_attention_heads", "decoder_attention_heads"),
    "encoder_layers": ("encoder_layers",),
    "decoder_layers": ("decoder_layers",),
    "dropout": ("dropout",),
    "attention_dropout": ("attention_dropout",),
    "activation_dropout": ("activation_dropout",),
    "scale_embeddings": ("scale_embedding",),
}
"""The names of our settings in `transformers`; where there are two names, their values must be equal."""

SHARED_EMBEDDING = "model.shared.weight"
BART_LIKE_ROWS: dict[str, Row] = {
    "src_embedding.weight": "model.encoder.embed_tokens.weight",
    "tgt_embedding.weight": "model.decoder.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "{side}.{layer}.self_attention.query_keys_values.{kind}": [
        "model.{side}.layers.{layer}.self_attn.q_proj.{kind}",
        "model.{side}.layers.{layer}.self_attn.k_proj.{kind}",
        "model.{side}.layers.{layer}.self_attn.v_proj.{kind}",
    ],
    "{side}.{layer}.self_attention.out.{kind}": "model.{side}.layers.{layer}.self_attn.out_proj.{kind}",
    "{side}.{layer}.around_self_attention.norm.{kind}": "model.{side}.layers.{layer}.self_attn_layer_norm.{kind}",
    "{side}.{layer}.cross_attention.query.{kind}": "model.{side}.layers.{layer}.encoder_attn.q_proj.{kind}",
    "{side}.{layer}.cross_attention.keys_values.{kind}": [
        "model.{side}.layers.{layer}.encoder_attn.k_proj.{kind}",
        "model.{side}.layers.{layer}.encoder_attn.v_proj.{kind}",
    ],
    "{side}.{layer}.cross_attention.out.{kind}": "model.{side}.layers.{layer}.encoder_attn.out_proj.{kind}",
    "{side}.{layer}.around_cross_attention.norm.{kind}": "model.{side}.layers.{layer}.encoder_attn_layer_norm.{kind}",
    "{side}.{layer}.feed_forward.inner.{kind}": "model.{side}.layers.{layer}.fc1.{kind}",
    "{side}.{layer}.feed_forward.out.{kind}": "model.{side}.layers.{layer}.fc2.{kind}",
    "{side}.{layer}.around_feed_forward.norm.{kind}": "model.{side}.layers.{layer}.final_layer_norm.{kind}",
    "{side}_norm.{kind}": "model.{side}.layer_norm.{kind}",
}
OUTPUT_BIAS_ROW: dict[str, Row] = {"output.bias": Stored(["final_logits_bias"], as_row=True)}
POSITION_ROWS: dict[str, Row] = {
    "src_positions.table": "model.encoder.embed_positions.weight",
    "tgt_positions.table": "model.decoder.embed_positions.weight",
}

_SINUSOIDS = ["model.encoder.embed_positions.weights", "model.decoder.embed_positions.weights"]
"""Tensors in older folders that nmtkit computes itself."""


def read_bart_like_config(
    folder: Path, kind: type[BartLikeConfig]
) -> tuple[BartLikeConfig, dict[str, Any]]:
    """Like `read_config`; rejects settings that differ between encoder and decoder."""
    config, content = read_config(folder, kind)
    for names in SETTINGS.values():
        if len(names) == 2:
            require_equal(folder / "config.json", config, {names[1]: names[0]})
    return config, content


def convert_bart_like(
    config: BartLikeConfig,
    converter: CheckpointConverter,
    form: Mapping[str, Any],
    tables: Mapping[str, Tensor],
) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """Returns a model's settings and weights; `form` contains the settings that depend on the family.

    `tables` are position tables under our names.
    """
    words = convert_words(
        config=config,
        converter=converter,
        shared=SHARED_EMBEDDING,
        ties_output=config.tie_word_embeddings,
        ties_sides=config.share_encoder_decoder_embeddings,
    )
    if config.tie_word_embeddings and not torch.equal(
        words["output.weight"], words["tgt_embedding.weight"]
    ):
        raise converter.fault(
            "config.json ties the output layer to the target embedding, but their weights differ"
        )
    settings = {ours: getattr(config, theirs[0]) for ours, theirs in SETTINGS.items()}
    settings["activation"] = ACTIVATIONS[config.activation_function]
    return converter.convert(
        TransformerConfig, {**settings, **form}, {**words, **tables}, unread=_SINUSOIDS
    )


class BartLike(Family):
    """A family derived from BART, with a Hugging Face tokenizer."""

    config_kind: ClassVar[type[BartLikeConfig]] = BartLikeConfig
    names: ClassVar[WeightNames]
    form: ClassVar[Mapping[str, Any]]
    """Settings of the Transformer that depend on the model family."""
    task: ClassVar[str] = TRANSLATION.name

    @override
    def read(self, folder: Path) -> ImportedModel:
        config, _ = read_bart_like_config(folder, self.config_kind)
        start = config.decoder_start_token_id
        special = (
            config.pad_token_id,
            config.eos_token_id if start is None else start,
            config.eos_token_id,
        )
        tokenizers, maps = read_tokenizers(
            folder=folder,
            special=special,
            size=config.vocab_size,
            first=config.forced_bos_token_id,
            model_type=self.model_type,
        )
        converter = CheckpointConverter(
            place=folder / "config.json",
            weights=_with_whole_names(read_weights(folder)),
            names=self.names,
            tokenizers=tokenizers,
            vocabularies=maps,
        )
        positions, tables = self.positions(converter, config)
        ends_source = not tokenizers.config.affixes.get("src", {}).get("after")
        form = {**self.form, **positions, "source_end": ends_source}
        model, tensors = convert_bart_like(config, converter, form, tables)
        begins_with_language = "start" in tokenizers.config.affixes.get("tgt", {})
        never_written = {*special} - ({start} if begins_with_language else set())
        search, notes = config.search_settings(folder, maps, never_written)
        has_languages = bool(language_names(tokenizers.config.specials))
        search["certain_prefix"] = config.forced_bos_token_id is not None or has_languages
        return ImportedModel(
            toolkit="huggingface",
            architecture=self.model_type,
            model=model,
            tensors=tensors,
            tokenizers=tokenizers,
            search=search,
            notes=notes,
            task=self.task,
            variants=read_variants(folder, self.config_kind, maps, never_written),
        )

    def positions(
        self, converter: CheckpointConverter, config: BartLikeConfig
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns the settings and tables of learned position embeddings under our names."""
        if self.form["positions"] != "learned":
            return {}, {}
        tables = converter.learned_positions(config.d_model)
        return {"max_positions": min(map(len, tables.values()))}, tables

    @override
    def tensors(self, public: PublicWeights, config: Mapping[str, Any]) -> dict[str, Tensor]:
        return public_tensors(public, self.names, SHARED_EMBEDDING)


def _with_whole_names(weights: ExternalWeights) -> ExternalWeights:
    """Renames weights as in a model with an output layer; files of BartModel lack the prefix `model.`."""
    names = {}
    for name in weights.shapes:
        is_whole = name.startswith(("model.", "lm_head.", "final_logits_bias"))
        names[name if is_whole else f"model.{name}"] = name
    return renamed(weights, names)
