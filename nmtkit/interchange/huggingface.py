"""Imports Hugging Face's Marian models, and Pegasus models with Marian's tokenizer, as `export` writes them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.core.settings import Beam, Depth, Field, Length, Settings, Width, parse
from nmtkit.core.task import TASKS
from nmtkit.core.wording import shorten
from nmtkit.data.tokenizer import MAX_VOCAB_SIZE, TokenizerPair
from nmtkit.data.vocabulary import BOS, EOS, PAD, SPECIALS, UNK
from nmtkit.interchange.checkpoint import SUPPRESSED_BIAS, ExternalCheckpoint, ImportedModel
from nmtkit.interchange.conversion import huggingface_names
from nmtkit.interchange.external_files import (
    ExternalWeights,
    open_weights,
    parse_known,
    read_json_object,
    read_text,
)
from nmtkit.interchange.vocabulary import Maps, map_vocabulary, sentencepiece_tokenizers, tokenizer_config
from nmtkit.models.transformer import TransformerConfig

_NORMS: dict[str, Literal["pre", "post"]] = {"marian": "post", "pegasus": "pre"}
"""The architectures that are supported, and where they normalize."""
_UNSUPPORTED = {
    "t5": "its attention has relative positions",
    "mt5": "its attention has relative positions",
    "bart": "it normalizes its embeddings, and its tokenizer cuts bytes",
    "mbart": "it normalizes its embeddings",
    "m2m_100": "its positions have other wavelengths",
    "fsmt": "its tokenizer is that of Moses",
}
_NO_EFFECT = {"_from_model_config", "bos_token_id", "transformers_version", "use_cache", "output_attentions"}
"""Generation settings that change no text."""
_POSITIONS = {
    "src_positions.table": "model.encoder.embed_positions.weight",
    "tgt_positions.table": "model.decoder.embed_positions.weight",
}
_SHARED, _LM_HEAD = "model.shared.weight", "lm_head.weight"
_EMBEDDINGS = {side: f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")}


class HuggingFaceConfig(Settings):
    """The keys of `config.json` and `generation_config.json` that are read."""

    d_model: Width = Field(ge=2)
    vocab_size: int = Field(ge=2, le=MAX_VOCAB_SIZE)
    decoder_vocab_size: int | None = Field(default=None, ge=2, le=MAX_VOCAB_SIZE)
    encoder_layers: Depth = Field(ge=1)
    decoder_layers: Depth = Field(ge=1)
    encoder_attention_heads: int = Field(ge=1)
    decoder_attention_heads: int = Field(ge=1)
    encoder_ffn_dim: Width = Field(ge=1)
    decoder_ffn_dim: Width = Field(ge=1)
    activation_function: Literal["relu", "gelu", "swish", "silu"]
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    activation_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    scale_embedding: bool = False
    tie_word_embeddings: bool = True
    pad_token_id: int = Field(ge=0)
    eos_token_id: int = Field(ge=0)
    decoder_start_token_id: int = Field(ge=0)
    num_beams: Beam = Field(default=1, ge=1)
    early_stopping: bool | Literal["never"] = False
    length_penalty: float = Field(default=1.0, ge=0.0)
    max_length: Length = Field(default=21, ge=2)
    max_new_tokens: Length | None = Field(default=None, ge=1)
    min_length: Length = Field(default=0, ge=0)
    min_new_tokens: Length = Field(default=0, ge=0)
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    forced_eos_token_id: int | None = None
    bad_words_ids: list[list[int]] = Field(default=[])
    renormalize_logits: bool = False

    @property
    def tgt_vocab_size(self) -> int:
        """The target's tokens."""
        return self.decoder_vocab_size or self.vocab_size

    @property
    def suppressed_tokens(self) -> set[int]:
        """Single tokens that `generate` never writes."""
        return {one[0] for one in self.bad_words_ids if len(one) == 1 and 0 <= one[0] < self.vocab_size}

    def search_settings(self, unknown: int) -> tuple[dict[str, Any], list[str]]:
        """The search of `generate` in transformers 5 as a recipe's settings, and keys that have no counterpart.

        Args:
            unknown: id of the unknown token.
        """
        limit = self.max_new_tokens or self.max_length - 1  # max_length counts the decoder's first input
        least = max(self.min_length - 1, self.min_new_tokens)
        search = {
            "beam_size": self.num_beams,
            "stop": {"True": "first_k", "False": "huggingface", "never": "exact"}[str(self.early_stopping)],
            "at_limit": "compete" if self.forced_eos_token_id is None else "end",
            "alpha": self.length_penalty,
            "max_length": limit,
            "max_length_ratio": 0.0,
            "min_length": min(least, limit - 1),
            "no_repeat_ngram": self.no_repeat_ngram_size,
            "forbid_unknown": unknown in self.suppressed_tokens,
        }
        known = {unknown, self.pad_token_id, self.decoder_start_token_id}
        if self.renormalize_logits:
            known |= self.suppressed_tokens
        ignored = {
            "bad_words_ids": any(len(one) != 1 or one[0] not in known for one in self.bad_words_ids),
            "forced_eos_token_id": self.forced_eos_token_id not in (None, self.eos_token_id),
            "min_length": least >= limit,  # then none of their texts ends by itself
        }
        return search, [key for key, differs in ignored.items() if differs]


def read_huggingface(folder: Path) -> ImportedModel:
    """Converts a model written by `transformers`.

    Args:
        folder: with config.json, weights, source.spm, target.spm and vocab.json.
    """
    given = read_json_object(folder / "config.json")
    kind, config, ignored = _config(folder, given)
    with open_weights(folder) as weights:
        tokenizers, maps = _tokenizers(folder, config, weights)
        checkpoint = ExternalCheckpoint(weights, tokenizers, maps)
        model, tensors = _convert(_NORMS[kind], config, checkpoint)
    search, no_counterpart = config.search_settings(int(maps[1].rows[UNK]))
    notes = []
    if ignored := [*no_counterpart, *ignored]:
        keys = shorten(", ".join(ignored), 200)
        notes.append(f"ignored in generation_config.json: {keys}; generate may write other texts")
    if config.max_new_tokens is None and "max_length" not in config.model_fields_set:
        notes.append("the folder sets no max_length, so generate writes 20 tokens at most: raise search.max_length")
    description = f"a {kind} model of {model.encoder_layers}+{model.decoder_layers} layers of {model.hidden_size}"
    task, licence = exported_task(given), license_of(folder)
    return ImportedModel("huggingface", kind, description, model, tensors, tokenizers, search, task, licence, notes)


def _config(folder: Path, given: dict[str, Any]) -> tuple[str, HuggingFaceConfig, list[str]]:
    """The architecture, its settings, and which keys of `generation_config.json` are ignored."""
    place, kind = folder / "config.json", str(given.get("model_type"))
    if kind not in _NORMS:
        why = f": {_UNSUPPORTED[kind]}" if kind in _UNSUPPORTED else ""
        raise CheckpointError(
            f"{place}: a model of type {shorten(kind)!r} is not supported{why}; supported: {', '.join(_NORMS)}"
        )
    path = folder / "generation_config.json"
    generation = read_json_object(path) if path.exists() else {}
    config = parse_known(HuggingFaceConfig, given | generation, place)
    for key in ("attention_heads", "ffn_dim"):
        left, right = (getattr(config, f"{side}_{key}") for side in ("encoder", "decoder"))
        if left != right:
            raise CheckpointError(
                f"{place}: {key} of encoder and decoder differ ({left} and {right}), which is not supported"
            )
    read = {*HuggingFaceConfig.model_fields, *_NO_EFFECT}
    return kind, config, [key for key, value in generation.items() if value and key not in read]


def exported_task(given: Mapping[str, Any]) -> str:
    """The task in a `config.json` that `nmtkit export` wrote; translation in others."""
    own = given.get("nmtkit")
    task = str(own.get("task")) if isinstance(own, dict) else "translation"
    return task if task in TASKS.names() else "translation"


def license_of(folder: Path) -> str | None:
    """The licence in the metadata of the model card."""
    try:
        card = read_text(folder / "README.md")
    except CheckpointError:
        return None
    head = re.match(r"---\n(.*?)\n---", card, re.DOTALL)
    named = re.search(r"^license: *([\w.-]+) *$", head.group(1), re.MULTILINE) if head else None
    return named.group(1) if named else None


# ---------------------------------------------------------------------------------------------------------- vocabulary


def _tokenizers(folder: Path, config: HuggingFaceConfig, weights: ExternalWeights) -> tuple[TokenizerPair, Maps]:
    separate = (folder / "target_vocab.json").exists()
    sizes = {config.vocab_size, config.tgt_vocab_size}
    lacking = [rows for rows in sizes if (rows, config.d_model) not in weights.shapes.values()]
    if lacking or (len(sizes) > 1 and not separate):
        what = f"{lacking[0]:,} tokens of {config.d_model} numbers" if lacking else "two vocabularies"
        raise CheckpointError(f"{folder / 'config.json'}: sets {what}, but the other files have none")
    tokens = _tokens(folder / ("target_vocab.json" if separate else "vocab.json"), config.tgt_vocab_size)
    special = (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id)
    if max(special) >= config.tgt_vocab_size:
        raise CheckpointError(
            f"{folder / 'config.json'}: a special token has the id {max(special)}, of {config.tgt_vocab_size} tokens"
        )
    bias = weights.tensor("final_logits_bias").flatten() if "final_logits_bias" in weights.shapes else torch.zeros(0)
    padding = {*(bias <= SUPPRESSED_BIAS).nonzero().flatten().tolist()} - {*tokens, *special}
    tgt = src = map_vocabulary(folder, tokens, special, config.tgt_vocab_size, padding)
    if separate:
        place = folder / "vocab.json"
        tokens = _tokens(place, config.vocab_size)
        ids = {token: row for row, token in tokens.items()}
        pad, eos = ids.get(SPECIALS[PAD], -1), ids.get(SPECIALS[EOS], -1)
        if min(pad, eos) < 0:
            raise CheckpointError(f"{place}: {SPECIALS[PAD]} or {SPECIALS[EOS]} is missing in it")
        special, unnamed = (pad, ids.get(SPECIALS[BOS], pad), eos), {*range(config.vocab_size)} - {*tokens}
        src = map_vocabulary(folder, tokens, special, config.vocab_size, unnamed)
    settings = tokenizer_config("marian", (src, tgt), folder, normalization="none")
    return sentencepiece_tokenizers([folder / "source.spm", folder / "target.spm"], settings, (src, tgt)), (src, tgt)


def _tokens(path: Path, size: int) -> dict[int, str]:
    """The tokens of a vocabulary file by their ids."""
    tokens: dict[int, str] = {}
    for token, row in read_json_object(path).items():
        if type(row) is not int or not 0 <= row < size or row in tokens:
            raise CheckpointError(
                f"{path}: {shorten(repr(token))} has the id {shorten(repr(row))}: outside 0 to {size - 1}, or the "
                "id of another token"
            )
        tokens[row] = token
    return tokens


# ------------------------------------------------------------------------------------------------------------- weights


def _convert(
    norm: str, config: HuggingFaceConfig, checkpoint: ExternalCheckpoint
) -> tuple[TransformerConfig, dict[str, Tensor]]:
    shapes, width = checkpoint.weights.shapes, config.d_model
    src, tgt = (name if name in shapes else _SHARED for name in _EMBEDDINGS.values())
    separate = _LM_HEAD in shapes or not config.tie_word_embeddings
    own = checkpoint.word_matrices(src, tgt, _LM_HEAD if separate else tgt, width, width)
    if config.tie_word_embeddings and not torch.equal(own["output.weight"], own["tgt_embedding.weight"]):
        raise checkpoint.fault("config.json says that the output layer is the target's embedding, and they differ")
    bias = checkpoint.tensor("final_logits_bias", (1, config.tgt_vocab_size), optional=True)[0]
    if config.renormalize_logits:  # as if these tokens did not exist
        bias[[*config.suppressed_tokens]] = SUPPRESSED_BIAS
    own["output.bias"] = checkpoint.output_bias(bias)
    positions, tables = checkpoint.positions(_POSITIONS, width)
    settings = {
        "hidden_size": width,
        "feed_forward_size": config.encoder_ffn_dim,
        "heads": config.encoder_attention_heads,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "norm": norm,
        "positions": "sinusoidal_halves",
        "scale_embeddings": config.scale_embedding,
        "tie": checkpoint.tie(own),
        "activation": {"swish": "silu"}.get(config.activation_function, config.activation_function),
    }
    model = parse(TransformerConfig, settings | positions, f"{checkpoint.weights.path.parent / 'config.json'}")
    ignored = (_SHARED, _LM_HEAD, *_EMBEDDINGS.values())
    return model, checkpoint.convert(model, own | tables, huggingface_names, ignored)
