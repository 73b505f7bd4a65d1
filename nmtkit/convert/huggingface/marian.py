"""Imports Hugging Face's Marian models, and Pegasus models with Marian's tokenizer, as `export` writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from nmtkit.convert.export_weights import huggingface_names
from nmtkit.convert.external_files import ExternalWeights, read_json, read_weights, require_equal
from nmtkit.convert.huggingface.reading import ACTIVATIONS, FAMILIES, GenerationConfig, read_config
from nmtkit.convert.import_weights import SUPPRESSED_BIAS, CheckpointConverter, ImportedModel, SourceNames
from nmtkit.convert.importing import exported_task
from nmtkit.convert.vocabulary import Maps, build_tokenizers, map_vocabulary
from nmtkit.core.errors import CheckpointError, shorten
from nmtkit.core.settings import Depth, Field, Width
from nmtkit.data.tokenizers.tokenizer import MAX_VOCAB_SIZE
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, SPECIALS, UNK
from nmtkit.models.transformer import TransformerConfig

_SAME_SETTINGS = {"encoder_layers", "decoder_layers", "dropout", "attention_dropout", "activation_dropout"}
POSITIONS = {
    "src_positions.table": "model.encoder.embed_positions.weight",
    "tgt_positions.table": "model.decoder.embed_positions.weight",
}
LM_HEAD = "lm_head.weight"


class PairConfig(GenerationConfig):
    """The keys of `config.json` and `generation_config.json` that are read of every encoder with a decoder."""

    d_model: Width = Field(ge=2)
    decoder_vocab_size: int | None = Field(default=None, ge=2, le=MAX_VOCAB_SIZE)
    tie_word_embeddings: bool = True
    pad_token_id: int = Field(ge=0)
    decoder_start_token_id: int = Field(ge=0)

    @property
    @override
    def tgt_vocab_size(self) -> int:
        return self.decoder_vocab_size or self.vocab_size


class HuggingFaceConfig(PairConfig):
    """Those of Marian and its relatives."""

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


@FAMILIES.register("marian")
def read_marian(folder: Path) -> ImportedModel:
    """Converts a folder with `config.json`, weights, `source.spm`, `target.spm` and `vocab.json`."""
    place = folder / "config.json"
    config, given = read_config(folder, HuggingFaceConfig)
    architecture = str(given["model_type"])
    require_equal(place, config, {f"decoder_{key}": f"encoder_{key}" for key in ("attention_heads", "ffn_dim")})
    weights = read_weights(folder)
    tokenizers, maps = _tokenizers(folder, config, weights)
    converter = CheckpointConverter(place, weights, tokenizers, maps)
    positions, tables = converter.positions(POSITIONS, config.d_model)
    settings = {"norm": "post" if architecture == "marian" else "pre", "positions": "sinusoidal_halves"} | positions
    model, tensors = convert(config, converter, settings, tables, huggingface_names)
    never_written = {int(maps[1].rows[UNK]), config.pad_token_id, config.decoder_start_token_id}
    search, notes = config.search_settings(folder, maps, never_written)
    path = folder / "tokenizer_config.json"
    if tags := read_json(path, dict).get("additional_special_tokens") if path.exists() else None:
        what = shorten(", ".join(map(str, tags)), 100)
        notes.append(f"ignored in {path.name}: additional_special_tokens; no text is cut into {what}")
    return ImportedModel("huggingface", architecture, model, tensors, tokenizers, search, notes, exported_task(given))


def _tokenizers(folder: Path, config: HuggingFaceConfig, weights: ExternalWeights) -> tuple[Tokenizers, Maps]:
    place, separate = folder / "config.json", (folder / "target_vocab.json").exists()
    sizes = {config.vocab_size, config.tgt_vocab_size}
    missing = [rows for rows in sizes if (rows, config.d_model) not in weights.shapes.values()]
    if missing or (len(sizes) > 1 and not separate):
        what = f"{missing[0]:,} tokens of {config.d_model} numbers" if missing else "two vocabularies"
        raise CheckpointError(f"{place}: sets {what}, but the other files have none")
    tokens = _tokens(folder / ("target_vocab.json" if separate else "vocab.json"), config.tgt_vocab_size)
    special = (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id)
    bias = weights.tensor("final_logits_bias").flatten() if "final_logits_bias" in weights.shapes else torch.zeros(0)
    padding = {*(bias <= SUPPRESSED_BIAS).nonzero().flatten().tolist()} - {*tokens, *special}
    tgt = src = map_vocabulary(folder, tokens, special, config.tgt_vocab_size, padding)
    if separate:
        tokens = _tokens(folder / "vocab.json", config.vocab_size)
        ids = {token: row for row, token in tokens.items()}
        pad, eos = ids.get(SPECIALS[PAD], -1), ids.get(SPECIALS[EOS], -1)
        if min(pad, eos) < 0:
            raise CheckpointError(f"{folder / 'vocab.json'}: {SPECIALS[PAD]} or {SPECIALS[EOS]} is missing in it")
        unnamed = {*range(config.vocab_size)} - {*tokens}
        src = map_vocabulary(folder, tokens, (pad, ids.get(SPECIALS[BOS], pad), eos), config.vocab_size, unnamed)
    models = [folder / "source.spm", folder / "target.spm"]
    return build_tokenizers("marian", (src, tgt), folder, models, normalization="none"), (src, tgt)


def _tokens(path: Path, size: int) -> dict[int, str]:
    tokens: dict[int, str] = {}
    for token, row in read_json(path, dict).items():
        if type(row) is not int or not 0 <= row < size or row in tokens:
            fault = f"{shorten(repr(token))} has the id {shorten(repr(row))}"
            raise CheckpointError(f"{path}: {fault}: outside 0 to {size - 1}, or the id of another token")
        tokens[row] = token
    return tokens


def convert(
    config: HuggingFaceConfig,
    converter: CheckpointConverter,
    more: Mapping[str, Any],
    tables: Mapping[str, Tensor],
    names: SourceNames,
) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """The settings and weights of Marian and its relatives.

    `more` are settings in which they differ, `tables` are positions under our names, and `names` those of layers.
    """
    width = config.d_model
    own = convert_words(
        config=config,
        converter=converter,
        ties_output=config.tie_word_embeddings,
        ties_sides=config.share_encoder_decoder_embeddings,
        prefix="model.",
    )
    if config.tie_word_embeddings and not torch.equal(own["output.weight"], own["tgt_embedding.weight"]):
        raise converter.fault("config.json says that the output layer is the target's embedding, and they differ")
    settings = config.model_dump(include=_SAME_SETTINGS) | {
        "hidden_size": width,
        "feed_forward_size": config.encoder_ffn_dim,
        "heads": config.encoder_attention_heads,
        "scale_embeddings": config.scale_embedding,
        "activation": ACTIVATIONS[config.activation_function],
    }
    ignored = [f"model.{side}.embed_positions.weights" for side in ("encoder", "decoder")]  # sinusoids, once saved
    return converter.convert(TransformerConfig, {**settings, **more}, {**own, **tables}, names, ignored)


def convert_words(
    config: PairConfig,
    converter: CheckpointConverter,
    ties_output: bool = True,
    ties_sides: bool = True,
    prefix: str = "",
) -> dict[str, Tensor]:
    """Returns embeddings and output layer by our names.

    A tied matrix needs to be in the file under one of its names only: `safetensors` refuses to write it twice.
    `ties_output` says whether the output layer is the target's embedding where it has no matrix in the file,
    `ties_sides` whether source and target have one embedding. `prefix` comes before the names of embeddings.
    """
    width = config.d_model
    shared = f"{prefix}shared.weight"
    encoder = f"{prefix}encoder.embed_tokens.weight"
    decoder = f"{prefix}decoder.embed_tokens.weight"
    source_names = [encoder, shared]
    target_names = [decoder, shared]
    if ties_sides:
        source_names.append(decoder)
        target_names.append(encoder)
    if ties_output:
        target_names.append(LM_HEAD)
    if ties_output and ties_sides:
        source_names.append(LM_HEAD)
    target = converter.present(target_names)
    is_tied = ties_output and LM_HEAD not in converter.weights.shapes
    bias = converter.tensor("final_logits_bias", (1, config.tgt_vocab_size), optional=True)[0]
    if config.renormalize_logits:  # as if these tokens did not exist
        bias[[*config.suppressed_tokens]] = SUPPRESSED_BIAS
    words = converter.word_weights(
        src=converter.present(source_names),
        tgt=target,
        output=target if is_tied else LM_HEAD,
        width=width,
        hidden=width,
        bias=bias,
    )
    converter.used.update((shared, encoder, decoder))
    return words
