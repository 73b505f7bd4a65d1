"""Imports models from OpenNMT-py (Klein et al. 2017), version 3: a checkpoint with weights, options and vocabularies.

OpenNMT-py's encoder does not read </s>, so `source_end` is off. With copy_attn, the first attention
head of the last decoder layer copies words. OpenNMT-py's gate reads only the decoder's state, so the
other weights of our gate are zero. The signs of the gate's weights change, because OpenNMT-py's gate
is the probability of copying and ours is the probability of generating.
"""

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nmtkit.convert.checkpoint_converter import CheckpointConverter
from nmtkit.convert.external_files import (
    ExternalSettings,
    ExternalWeights,
    load_pickle,
    require_equal,
    unsupported,
)
from nmtkit.convert.imported_model import READERS, ImportedModel
from nmtkit.convert.vocabulary import (
    ExternalVocabulary,
    find_sentencepiece_models,
    toolkit_tokenizers,
)
from nmtkit.convert.weight_names import SUPPRESSED_BIAS, Row, Stored, WeightNames
from nmtkit.core.errors import CheckpointError, shorten
from nmtkit.core.settings import Depth, Field, Width, parse
from nmtkit.data.tokenizers.tokenizer import WORD_START
from nmtkit.data.tokenizers.vocabulary import PAD
from nmtkit.models.base import ModelConfig
from nmtkit.models.rnn.luong import LuongConfig
from nmtkit.models.transformer import TransformerConfig

_REMEDY = (
    "save the model with OpenNMT-py 3 (pytorch format, LoRA merged); OpenNMT-py's "
    "tools/convertv2_v3.py converts older checkpoints"
)
_SPECIALS = {"unknown": "<unk>", "padding": "<blank>", "end": "</s>"}
_SEARCH = {
    "beam_size": 5,
    "at_limit": "compete",
    "max_length": 250,
    "max_length_ratio": 1.25,
    "max_length_offset": 5,
}
"""Defaults of `onmt_translate` 3.5; its length limit depends on the longest source in a batch."""

# Options that nmtkit does not have must be false, 0, empty or null.
_OFF = ("lora_layers", "lora_embedding", "quant_layers", "num_experts", "parallel_residual")
_OFF_IN_ATTENTION = (
    "max_relative_positions",
    "relative_positions_buckets",
    "multiquery",
    "num_kv",
    "sliding_window",
)
_OFF_IN_RECURRENT = ("position_encoding", "context_gate", "coverage_attn")
_TEXT_CHANGES = {"bpe", "onmt_tokenize", "normalize"}
"""Transforms that apply to every text, including sources to translate."""

# ----------------------------------------------------------------------------------------------------------- weights

_TRANSFORMER_ROWS: dict[str, Row] = {
    "src_positions.table": "encoder.embeddings.make_embedding.pe.pe",
    "tgt_positions.table": "decoder.embeddings.make_embedding.pe.pe",
    "encoder.{layer}.self_attention.query_keys_values.{kind}": [
        "encoder.transformer.{layer}.self_attn.linear_query.{kind}",
        "encoder.transformer.{layer}.self_attn.linear_keys.{kind}",
        "encoder.transformer.{layer}.self_attn.linear_values.{kind}",
    ],
    "encoder.{layer}.self_attention.out.{kind}": "encoder.transformer.{layer}.self_attn.final_linear.{kind}",
    "encoder.{layer}.around_self_attention.norm.{kind}": "encoder.transformer.{layer}.layer_norm.{kind}",
    "encoder.{layer}.feed_forward.inner.{kind}": "encoder.transformer.{layer}.feed_forward.w_1.{kind}",
    "encoder.{layer}.feed_forward.out.{kind}": "encoder.transformer.{layer}.feed_forward.w_2.{kind}",
    "encoder.{layer}.around_feed_forward.norm.{kind}": "encoder.transformer.{layer}.feed_forward.layer_norm.{kind}",
    "decoder.{layer}.self_attention.query_keys_values.{kind}": [
        "decoder.transformer_layers.{layer}.self_attn.linear_query.{kind}",
        "decoder.transformer_layers.{layer}.self_attn.linear_keys.{kind}",
        "decoder.transformer_layers.{layer}.self_attn.linear_values.{kind}",
    ],
    "decoder.{layer}.self_attention.out.{kind}": "decoder.transformer_layers.{layer}.self_attn.final_linear.{kind}",
    "decoder.{layer}.around_self_attention.norm.{kind}": "decoder.transformer_layers.{layer}.layer_norm_1.{kind}",
    "decoder.{layer}.cross_attention.query.{kind}": [
        "decoder.transformer_layers.{layer}.context_attn.linear_query.{kind}"
    ],
    "decoder.{layer}.cross_attention.keys_values.{kind}": [
        "decoder.transformer_layers.{layer}.context_attn.linear_keys.{kind}",
        "decoder.transformer_layers.{layer}.context_attn.linear_values.{kind}",
    ],
    "decoder.{layer}.cross_attention.out.{kind}": "decoder.transformer_layers.{layer}.context_attn.final_linear.{kind}",
    "decoder.{layer}.around_cross_attention.norm.{kind}": "decoder.transformer_layers.{layer}.layer_norm_2.{kind}",
    "decoder.{layer}.feed_forward.inner.{kind}": "decoder.transformer_layers.{layer}.feed_forward.w_1.{kind}",
    "decoder.{layer}.feed_forward.out.{kind}": "decoder.transformer_layers.{layer}.feed_forward.w_2.{kind}",
    "decoder.{layer}.around_feed_forward.norm.{kind}": (
        "decoder.transformer_layers.{layer}.feed_forward.layer_norm.{kind}"
    ),
    "{side}_norm.{kind}": "{side}.layer_norm.{kind}",
}
_RECURRENT_ROWS: dict[str, Row] = {
    "encoder.forward_layers.{layer}.{kind}_l0": "encoder.rnn.{kind}_l{layer}",
    "encoder.backward_layers.{layer}.{kind}_l0": "encoder.rnn.{kind}_l{layer}_reverse",
    "attentional.{kind}": "decoder.attn.linear_out.{kind}",
}


def _word_rows(copies: bool) -> dict[str, Row]:
    generator = "generator.linear" if copies else "generator"
    return {
        "src_embedding.weight": "encoder.embeddings.make_embedding.emb_luts.0.weight",
        "tgt_embedding.weight": "decoder.embeddings.make_embedding.emb_luts.0.weight",
        "output.weight": f"{generator}.weight",
        "output.bias": f"{generator}.bias",
    }


def _cell_rows(input_feeding: bool) -> dict[str, Row]:
    """Returns the rows for the decoder's cells; without input feeding, they are a single torch module."""
    if input_feeding:
        return {"decoder.{kind}_l{layer}": "decoder.rnn.layers.{layer}.{kind}"}
    return {"decoder.{kind}_l{layer}": "decoder.rnn.{kind}_l{layer}"}


def _attention_rows(kind: str, ours: str, theirs: str) -> dict[str, Row]:
    """Returns the rows for a score; OpenNMT-py's general score projects decoder states, ours encoder states."""
    if kind == "general":
        return {f"{ours}.score.key.weight": Stored([f"{theirs}.linear_in.weight"], transposed=True)}
    if kind == "dot":
        return {}
    return {
        f"{ours}.score.query.weight": f"{theirs}.linear_query.weight",
        f"{ours}.score.key.weight": f"{theirs}.linear_context.weight",
        f"{ours}.score.key.bias": f"{theirs}.linear_query.bias",
        f"{ours}.score.energy": Stored([f"{theirs}.v.weight"], as_row=True),
    }


# ---------------------------------------------------------------------------------------------------------- settings


class OpenNmtOptions(ExternalSettings):
    """The options that are read; those missing from older checkpoints have OpenNMT-py's defaults."""

    model_task: Literal["seq2seq"] = "seq2seq"
    model_type: Literal["text"] = "text"
    encoder_type: Literal["transformer", "rnn", "brnn"]
    decoder_type: Literal["transformer", "rnn"]
    enc_layers: Depth = Field(ge=1)
    dec_layers: Depth = Field(ge=1)
    enc_hid_size: Width = Field(ge=1)
    dec_hid_size: Width = Field(ge=1)
    src_word_vec_size: Width = Field(ge=1)
    tgt_word_vec_size: Width = Field(ge=1)
    parallel_mode: Literal["data_parallel"] = "data_parallel"
    copy_attn: bool = False
    dropout: list[float] | float = 0.0
    transforms: list[str] = Field(default=[])
    src_subword_model: str | None = None
    tgt_subword_model: str | None = None
    src_vocab_threshold: int = 0
    tgt_vocab_threshold: int = 0


class _TransformerOptions(OpenNmtOptions):
    decoder_type: Literal["transformer"]
    heads: int = Field(ge=1)
    transformer_ff: Width = Field(ge=1)
    position_encoding: Literal[True]
    position_encoding_type: Literal["SinusoidalInterleaved"] = "SinusoidalInterleaved"
    self_attn_type: Literal["scaled-dot", "scaled-dot-flash"] = "scaled-dot"
    pos_ffn_activation_fn: Literal["relu", "gelu"] = "relu"
    add_qkvbias: bool = False
    add_ffnbias: bool = True
    layer_norm: Literal["standard"] = "standard"
    norm_eps: float = Field(default=1e-6, gt=0.0, le=1e-2)
    attention_dropout: list[float] | float = 0.0


class _RecurrentOptions(OpenNmtOptions):
    decoder_type: Literal["rnn"]
    rnn_type: Literal["LSTM", "GRU"] = "LSTM"
    input_feed: int = Field(default=1, ge=0, le=1)
    global_attention: Literal["general", "dot", "mlp"] = "general"
    global_attention_function: Literal["softmax"] = "softmax"
    bridge: bool = False
    copy_attn_type: Literal["general", "dot", "mlp"] | None = None
    reuse_copy_attn: bool = False


@READERS.register("opennmt-py")
def read_opennmt(path: Path) -> ImportedModel:
    """Converts a checkpoint, or a folder that contains one; SentencePiece models must be next to the checkpoint."""
    if path.is_dir():
        files = sorted(path.glob("*.pt"))
        if len(files) != 1:
            raise CheckpointError(
                f"{path}: contains {len(files)} *.pt files; specify the path of one"
            )
        path = files[0]
    state = _load(path)
    given_options = vars(state["opt"])
    is_recurrent = given_options.get("encoder_type") in ("rnn", "brnn")
    _require_off(path, given_options, is_recurrent)
    options: _RecurrentOptions | _TransformerOptions
    if is_recurrent:
        options = parse(_RecurrentOptions, given_options, f"{path} (its options)")
    else:
        options = parse(_TransformerOptions, given_options, f"{path} (its options)")
    src = _read_vocabulary(path, state["vocab"], "src")
    tgt = _read_vocabulary(path, state["vocab"], "tgt")
    models, notes = _sentencepiece_models(path, options, given_options, tgt)
    tokenizers, maps = toolkit_tokenizers(src, tgt, models)
    converter = CheckpointConverter(
        place=path,
        weights=_weights(path, state),
        names=_weight_names(options),
        tokenizers=tokenizers,
        vocabularies=maps,
    )
    model: ModelConfig
    if isinstance(options, _RecurrentOptions):
        model, tensors = _convert_recurrent(converter, options)
    else:
        model, tensors = _convert_transformer(converter, options)
    return ImportedModel(
        toolkit="opennmt-py",
        architecture=f"OpenNMT-py {'recurrent' if is_recurrent else 'transformer'}",
        model=model,
        tensors=tensors,
        tokenizers=tokenizers,
        search=_SEARCH,
        notes=notes,
    )


def _load(path: Path) -> dict[str, Any]:
    """Returns the content of a checkpoint after checking that all its parts exist."""
    state = load_pickle(path, (Namespace,), _REMEDY)
    if not isinstance(state, dict) or not isinstance(state.get("opt"), Namespace):
        raise CheckpointError(f"{path}: contains no options, so it is not an OpenNMT-py checkpoint")
    for key in ("model", "generator", "vocab"):
        if not isinstance(state.get(key), dict):
            raise CheckpointError(f"{path}: {key!r} is missing or not a dictionary; {_REMEDY}")
    return state


def _weights(path: Path, state: Mapping[str, Any]) -> ExternalWeights:
    """Returns the weights of a checkpoint; the output layer's weights are named `generator.*`."""
    weights = dict(state["model"])
    for name, tensor in state["generator"].items():
        whole_name = f"generator.{name}".replace("generator.0.", "generator.")
        weights[whole_name] = tensor
    return ExternalWeights.of_pickle(path, weights, _REMEDY)


def _weight_names(options: _RecurrentOptions | _TransformerOptions) -> WeightNames:
    rows = _word_rows(options.copy_attn)
    if not isinstance(options, _RecurrentOptions):
        return WeightNames(rows | _TRANSFORMER_ROWS)
    rows |= _RECURRENT_ROWS | _cell_rows(bool(options.input_feed))
    rows |= _attention_rows(options.global_attention, "attention", "decoder.attn")
    rows |= _attention_rows(options.global_attention, "copy_attention", "decoder.copy_attn")
    return WeightNames(rows)


def _require_off(path: Path, options: Mapping[str, Any], is_recurrent: bool) -> None:
    """Rejects unsupported options that are in use."""
    keys = [*_OFF, *_OFF_IN_ATTENTION]
    if is_recurrent:
        keys += _OFF_IN_RECURRENT
    for key in keys:
        value = options.get(key)
        if isinstance(value, Tensor) or value:
            raise unsupported(path, f"the option {key} with value {shorten(repr(value))}")


def _read_vocabulary(path: Path, vocabularies: Mapping[Any, Any], side: str) -> ExternalVocabulary:
    if vocabularies.get("src_feats"):
        raise unsupported(path, "source word features (src_feats)")
    task = vocabularies.get("data_task", "seq2seq")
    if task != "seq2seq":
        raise unsupported(path, f"data_task {shorten(str(task))}")
    tokens = vocabularies.get(side)
    if not isinstance(tokens, list) or not all(type(token) is str for token in tokens):
        raise CheckpointError(
            f"{path}: the {side!r} vocabulary is not a list of words; download the file again"
        )
    rows = {token: row for row, token in enumerate(tokens)}
    special = {key: rows.get(token, -1) for key, token in _SPECIALS.items()}
    if side == "src":  # source text does not contain these
        special = {key: row if row >= 0 else special["unknown"] for key, row in special.items()}
        start = rows.get("<s>", special["padding"])
    else:
        start = rows.get(str(vocabularies.get("decoder_start_token", "<s>")), -1)
    missing = [f"special token {_SPECIALS[key]!r}" for key, row in special.items() if row < 0]
    if start < 0:
        missing.append("decoder start token")
    if missing:
        raise CheckpointError(
            f"{path}: the {'source' if side == 'src' else 'target'} vocabulary lacks the {missing[0]}; "
            "download the file again"
        )
    return ExternalVocabulary(path, tokens, start=start, **special)


def _sentencepiece_models(
    path: Path, options: OpenNmtOptions, given_options: Mapping[str, Any], tgt: ExternalVocabulary
) -> tuple[tuple[Path, Path] | None, list[str]]:
    """Returns the SentencePiece models of both sides, or None, with a note if the tokens are pieces."""
    transforms = {*options.transforms} | _transforms_of_corpora(given_options.get("data"))
    affixes = transforms & {"prefix", "suffix"}
    if affixes:
        raise unsupported(
            path,
            f"the `{min(affixes)}` transform (option `transforms`), which adds words to every source",
        )
    notes = []
    changes = ", ".join(sorted(transforms & _TEXT_CHANGES))
    if changes:
        notes.append(
            f"the training text was processed with {changes}, which nmtkit does not apply; process "
            "your sources in the same way"
        )
    uses_pieces = "sentencepiece" in transforms
    word_starts = sum(token.startswith(WORD_START) for token in tgt.tokens)
    if not uses_pieces and 4 * word_starts < len(tgt.tokens):
        return None, notes
    if uses_pieces and max(options.src_vocab_threshold, options.tgt_vocab_threshold) > 0:
        raise unsupported(
            path,
            "sentencepiece with a vocabulary threshold (src_vocab_threshold, tgt_vocab_threshold)",
        )
    src_model = options.src_subword_model or "source.model"
    tgt_model = options.tgt_subword_model or options.src_subword_model or "target.model"
    names = [re.split(r"[/\\]", model)[-1] for model in (src_model, tgt_model)]
    models, notes_on_models = find_sentencepiece_models(path.parent, names)
    return models, notes_on_models + notes


def _transforms_of_corpora(corpora: Any) -> set[str]:
    """Returns the transforms of all corpora in the option `data`."""
    transforms: set[str] = set()
    for corpus in corpora.values() if isinstance(corpora, dict) else ():
        listed = corpus.get("transforms") if isinstance(corpus, dict) else None
        if isinstance(listed, list):
            transforms.update(map(str, listed))
    return transforms


def _first(value: list[float] | float) -> float:
    """Returns the initial value of a rate that may change during training."""
    if isinstance(value, float):
        return value
    return value[0] if value else 0.0


def _convert_words(
    converter: CheckpointConverter, copies: bool, width: int, hidden: int
) -> dict[str, Tensor]:
    """Returns the embeddings, the output layer and, for copying models, the bias of the gate."""
    bias = converter.weight("output.bias", (converter.vocabularies[1].size,))
    words = converter.word_weights(width=width, hidden=hidden, bias=bias)
    if copies:
        words["copy_gate.bias"] = -converter.tensor("generator.linear_copy.bias", (1,))
        words["output.bias"][PAD] = SUPPRESSED_BIAS  # OpenNMT-py never generates padding
    return words


def _convert_transformer(
    converter: CheckpointConverter, options: _TransformerOptions
) -> tuple[TransformerConfig, dict[str, Tensor]]:
    widths = ("dec_hid_size", "src_word_vec_size", "tgt_word_vec_size")
    require_equal(converter.place, options, dict.fromkeys(widths, "enc_hid_size"))
    width = options.enc_hid_size
    converter.require_sinusoids(width)
    converted = _convert_words(converter, options.copy_attn, width, width)
    settings: dict[str, Any] = {
        "hidden_size": width,
        "feed_forward_size": options.transformer_ff,
        "heads": options.heads,
        "encoder_layers": options.enc_layers,
        "decoder_layers": options.dec_layers,
        "dropout": _first(options.dropout),
        "attention_dropout": _first(options.attention_dropout),
        "activation_dropout": _first(options.dropout),
        "norm": "pre",
        "norm_epsilon": options.norm_eps,
        "source_end": False,
        "activation": options.pos_ffn_activation_fn,
    }
    if options.copy_attn:
        settings |= {"copying": "head", "alignment_layer": options.dec_layers, "alignment_heads": 1}
        weight = converter.tensor("generator.linear_copy.weight", (1, width))
        zeros = torch.zeros_like(weight)
        converted["copy_gate.weight"] = torch.cat([zeros, -weight, zeros], 1)

    def optional(name: str) -> bool:
        if not name.endswith(".bias"):
            return False
        is_attention = "_attn." in name
        is_feed_forward = ".w_" in name
        return (is_attention and not options.add_qkvbias) or (
            is_feed_forward and not options.add_ffnbias
        )

    return converter.convert(TransformerConfig, settings, converted, optional=optional)


def _convert_recurrent(
    converter: CheckpointConverter, options: _RecurrentOptions
) -> tuple[LuongConfig, dict[str, Tensor]]:
    """Converts a Luong model, whose decoder updates its state before attending."""
    pairs = {
        "tgt_word_vec_size": "src_word_vec_size",
        "enc_hid_size": "dec_hid_size",
        "dec_layers": "enc_layers",
    }
    require_equal(converter.place, options, pairs)
    if options.bridge and options.dec_layers > 1:
        raise unsupported(
            converter.place,
            "a bridge to several decoder layers, which different releases of OpenNMT-py "
            "interpret in different ways",
        )
    if (options.copy_attn_type or options.global_attention) != options.global_attention:
        raise unsupported(
            converter.place,
            f"copy_attn_type {options.copy_attn_type}, which differs from global_attention",
        )
    width = options.src_word_vec_size
    hidden = options.dec_hid_size
    directions = 2 if options.encoder_type == "brnn" else 1
    converted = _convert_words(converter, options.copy_attn, width, hidden)
    if options.bridge:
        converted |= _convert_bridge(converter, options.rnn_type, hidden, directions)
    copying = "none"
    unread = []
    if options.copy_attn:
        copying = "shared" if options.reuse_copy_attn else "own"
        converted["copy_gate.weight"] = -converter.tensor(
            "generator.linear_copy.weight", (1, hidden)
        )
    if copying == "own":  # the second attention provides only weights of source words, no context
        unread = ["decoder.copy_attn.linear_out.weight", "decoder.copy_attn.linear_out.bias"]
    is_additive = options.global_attention == "mlp"
    settings = {
        "embedding_size": width,
        "hidden_size": hidden,
        "encoder_hidden_size": hidden // directions,
        "layers": options.dec_layers,
        "cell": options.rnn_type.lower(),
        "bidirectional": directions == 2,
        "dropout": _first(options.dropout),
        "bridge": "relu" if options.bridge else "copy",
        "score": "additive" if is_additive else options.global_attention,
        "attention_size": hidden,
        "attentional_bias": is_additive,
        "attentional_activation": "none" if is_additive else "tanh",
        "copying": copying,
        "input_feeding": bool(options.input_feed),
        "source_end": False,
    }
    return converter.convert(LuongConfig, settings, converted, unread)


def _convert_bridge(
    converter: CheckpointConverter, rnn_type: str, hidden: int, directions: int
) -> dict[str, Tensor]:
    """Returns the bridge layers by our names; both directions share a layer."""
    converted = {}
    size = hidden // directions
    for number, state in enumerate(("hidden", "cell") if rnn_type == "LSTM" else ("hidden",)):
        weight = converter.tensor(f"encoder.bridge.{number}.weight", (size, size))
        bias = converter.tensor(f"encoder.bridge.{number}.bias", (size,))
        converted[f"bridge.{state}.weight"] = torch.kron(torch.eye(directions), weight)
        converted[f"bridge.{state}.bias"] = bias.repeat(directions)
    return converted
