"""Imports models of OpenNMT-py (Klein et al. 2017), version 3: a checkpoint of weights, options and vocabularies.

Its encoder reads no </s>, so `source_end` is off. With copy_attn, words are copied by the first attention head of the
last decoder layer. The gate reads only the decoder's state, so its other weights are zero here. Its sign changes, since
OpenNMT-py's gate is the probability of copying, and ours of generating.
"""

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nmtkit.convert import external_files
from nmtkit.convert.external_files import ExternalSettings, ExternalWeights, require_equal, unsupported
from nmtkit.convert.import_weights import (
    SUPPRESSED_BIAS,
    CheckpointConverter,
    ImportedModel,
    recurrent_names,
    transformer_names,
)
from nmtkit.convert.importing import READERS
from nmtkit.convert.vocabulary import ExternalVocabulary, find_sentencepiece_models, toolkit_tokenizers
from nmtkit.core.errors import CheckpointError, shorten
from nmtkit.core.settings import Depth, Field, Width, parse
from nmtkit.data.tokenizers.tokenizer import WORD_START
from nmtkit.data.tokenizers.vocabulary import PAD
from nmtkit.models.base import ModelConfig
from nmtkit.models.rnn.luong import LuongConfig
from nmtkit.models.transformer import TransformerConfig

_REMEDY = "save it by OpenNMT-py 3 (pytorch format, LoRA merged); its tools/convertv2_v3.py converts older ones"
_SPECIALS = {"unknown": "<unk>", "padding": "<blank>", "end": "</s>"}
_SEARCH = {
    "beam_size": 5,
    "stop": "opennmt-py",
    "at_limit": "compete",
    "max_length": 250,
    "max_length_ratio": 1.25,
    "max_length_offset": 5,
}
"""Defaults of `onmt_translate` 3.5; its limit is by the longest source of a batch."""

_TRANSFORMER_NAMES = transformer_names(
    "encoder.transformer",
    "decoder.transformer_layers",
    {
        "self_attention.query_keys_values": [f"self_attn.linear_{part}" for part in ("query", "keys", "values")],
        "self_attention.out": ["self_attn.final_linear"],
        "encoder.around_self_attention.norm": ["layer_norm"],
        "decoder.around_self_attention.norm": ["layer_norm_1"],
        "cross_attention.query": ["context_attn.linear_query"],
        "cross_attention.keys_values": ["context_attn.linear_keys", "context_attn.linear_values"],
        "cross_attention.out": ["context_attn.final_linear"],
        "around_cross_attention.norm": ["layer_norm_2"],
        "feed_forward.inner": ["feed_forward.w_1"],
        "feed_forward.out": ["feed_forward.w_2"],
        "around_feed_forward.norm": ["feed_forward.layer_norm"],
    },
)
_EMBEDDINGS = [f"{side}.embeddings.make_embedding.emb_luts.0.weight" for side in ("encoder", "decoder")]
_POSITIONS = [f"{side}.embeddings.make_embedding.pe.pe" for side in ("encoder", "decoder")]

# Options without a counterpart here: they must be false, 0, empty or null.
_OFF = ("lora_layers", "lora_embedding", "quant_layers", "num_experts", "parallel_residual")
_OFF_IN_ATTENTION = ("max_relative_positions", "relative_positions_buckets", "multiquery", "num_kv", "sliding_window")
_OFF_IN_RECURRENT = ("position_encoding", "context_gate", "coverage_attn")
_CHANGES = {"bpe", "onmt_tokenize", "normalize"}
"""Transforms of every text, sources to translate included."""


class OpenNmtOptions(ExternalSettings):
    """The options that are read, with OpenNMT-py's defaults for those that older checkpoints lack."""

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
    """Converts a checkpoint, or a folder with one; sentencepiece models are beside it."""
    if path.is_dir():
        files = sorted(path.glob("*.pt"))
        if len(files) != 1:
            raise CheckpointError(f"{path}: holds {len(files)} files *.pt; name the checkpoint")
        path = files[0]
    state = _load(path)
    given = vars(state["opt"])
    kind = "recurrent" if given.get("encoder_type") in ("rnn", "brnn") else "transformer"
    for key in (*_OFF, *_OFF_IN_ATTENTION, *(_OFF_IN_RECURRENT if kind == "recurrent" else ())):
        value = given.get(key)
        if isinstance(value, Tensor) or value:
            raise unsupported(path, f"the option {key}: {shorten(repr(value))}")
    options: OpenNmtOptions = parse(
        _RecurrentOptions if kind == "recurrent" else _TransformerOptions, given, f"{path} (its options)"
    )
    src, tgt = (_vocabulary(path, state["vocab"], side) for side in ("src", "tgt"))
    models, notes = _sentencepiece_models(path, options, given, tgt)
    tokenizers, maps = toolkit_tokenizers(src, tgt, models)
    generator = {
        f"generator.{name}".replace("generator.0.", "generator."): one for name, one in state["generator"].items()
    }
    weights = ExternalWeights.of(path, state["model"] | generator, _REMEDY)
    converter = CheckpointConverter(path, weights, tokenizers, maps)
    convert: Any = _recurrent if kind == "recurrent" else _transformer
    model, tensors = convert(converter, options)
    return ImportedModel("opennmt-py", f"OpenNMT-py {kind}", model, tensors, tokenizers, _SEARCH, notes)


def _load(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, checked to have its parts."""
    state = external_files.load_pickle(path, (Namespace,), _REMEDY)
    if not isinstance(state, dict) or not isinstance(state.get("opt"), Namespace):
        raise CheckpointError(f"{path}: holds no options, so it is not a checkpoint of OpenNMT-py")
    for key in ("model", "generator", "vocab"):
        if not isinstance(state.get(key), dict):
            raise CheckpointError(f"{path}: {key!r} is missing, or is not a dictionary; {_REMEDY}")
    return state


def _vocabulary(path: Path, vocabularies: Mapping[Any, Any], side: str) -> ExternalVocabulary:
    if vocabularies.get("src_feats"):
        raise unsupported(path, "src_feats: source words with features")
    task = vocabularies.get("data_task", "seq2seq")
    if task != "seq2seq":
        raise unsupported(path, f"data_task: {shorten(str(task))}")
    tokens = vocabularies.get(side)
    if not isinstance(tokens, list) or not all(type(token) is str for token in tokens):
        raise CheckpointError(f"{path}: its vocabulary {side!r} is not a list of words; download it again")
    rows = {token: row for row, token in enumerate(tokens)}
    special = {key: rows.get(token, -1) for key, token in _SPECIALS.items()}
    if side == "src":  # no text has these
        special = {key: row if row >= 0 else special["unknown"] for key, row in special.items()}
        start = rows.get("<s>", special["padding"])
    else:
        start = rows.get(str(vocabularies.get("decoder_start_token", "<s>")), -1)
    if min(start, *special.values()) < 0:
        needed = f"{', '.join(_SPECIALS.values())} or the decoder's first token"
        raise CheckpointError(f"{path}: its vocabulary {side!r} lacks {needed}")
    return ExternalVocabulary(path, tokens, start=start, **special)


def _sentencepiece_models(
    path: Path, options: OpenNmtOptions, given: Mapping[str, Any], tgt: ExternalVocabulary
) -> tuple[tuple[Path, Path] | None, list[str]]:
    """The sentencepiece models of both sides; or None, with a note where the tokens are pieces."""
    corpora = given.get("data")
    transforms = {*options.transforms}
    for corpus in corpora.values() if isinstance(corpora, dict) else ():
        listed = corpus.get("transforms") if isinstance(corpus, dict) else None
        transforms |= {*map(str, listed)} if isinstance(listed, list) else set()
    if affixes := transforms & {"prefix", "suffix"}:
        raise unsupported(path, f"transforms: {min(affixes)}, which puts words around every source")
    changes = ", ".join(sorted(transforms & _CHANGES))
    told = [f"its text went through {changes}, which is not imported: prepare sources so"] if changes else []
    pieces = "sentencepiece" in transforms
    if not pieces and sum(token.startswith(WORD_START) for token in tgt.tokens) * 4 < len(tgt.tokens):
        return None, told
    if pieces and max(options.src_vocab_threshold, options.tgt_vocab_threshold) > 0:
        raise unsupported(path, "src_vocab_threshold: sentencepiece with a threshold")
    src = options.src_subword_model
    names = (src or "source.model", options.tgt_subword_model or src or "target.model")
    models, notes = find_sentencepiece_models(path.parent, [re.split(r"[/\\]", name)[-1] for name in names])
    return models, notes + told


def _first(value: list[float] | float) -> float:
    """A rate at the beginning of training, where it may change."""
    return value if isinstance(value, float) else [*value, 0.0][0]


def _word_weights(converter: CheckpointConverter, copies: bool, width: int, hidden: int) -> dict[str, Tensor]:
    """Embeddings and output layer, and with copying the bias of the gate."""
    output, (src, tgt) = "generator.linear" if copies else "generator", _EMBEDDINGS
    bias = converter.tensor(f"{output}.bias", (converter.vocabularies[1].size,))
    own = converter.word_weights(src, tgt, f"{output}.weight", width, hidden, bias)
    if copies:
        own["copy_gate.bias"] = -converter.tensor("generator.linear_copy.bias", (1,))
        own["output.bias"][PAD] = SUPPRESSED_BIAS  # padding is no word there
    return own


def _transformer(converter: CheckpointConverter, options: _TransformerOptions) -> tuple[ModelConfig, dict[str, Tensor]]:
    widths = ("dec_hid_size", "src_word_vec_size", "tgt_word_vec_size")
    require_equal(converter.place, options, dict.fromkeys(widths, "enc_hid_size"))
    width = options.enc_hid_size
    converter.require_sinusoids(_POSITIONS, width)
    own = _word_weights(converter, options.copy_attn, width, width)
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
        own["copy_gate.weight"] = torch.cat([zeros, -weight, zeros], 1)

    def optional(name: str) -> bool:
        attention = "_attn." in name and not options.add_qkvbias
        return name.endswith(".bias") and (attention or (".w_" in name and not options.add_ffnbias))

    return converter.convert(TransformerConfig, settings, own, _TRANSFORMER_NAMES, optional=optional)


def _recurrent(converter: CheckpointConverter, options: _RecurrentOptions) -> tuple[ModelConfig, dict[str, Tensor]]:
    """A Luong model: the decoder's state is updated before it attends."""
    pairs = {"tgt_word_vec_size": "src_word_vec_size", "enc_hid_size": "dec_hid_size", "dec_layers": "enc_layers"}
    require_equal(converter.place, options, pairs)
    width, hidden, both = options.src_word_vec_size, options.dec_hid_size, options.encoder_type == "brnn"
    if options.bridge and options.dec_layers > 1:
        raise unsupported(converter.place, "bridge with several layers: releases of OpenNMT-py read it differently")
    if (options.copy_attn_type or options.global_attention) != options.global_attention:
        raise unsupported(converter.place, f"copy_attn_type: {options.copy_attn_type}, unlike global_attention")
    own = _word_weights(converter, options.copy_attn, width, hidden)
    own |= _attention(converter, options.global_attention, "attention", "decoder.attn", hidden)
    copying = "none" if not options.copy_attn else "shared" if options.reuse_copy_attn else "own"
    ignored: list[str] = []
    if options.bridge:
        own |= _bridge(converter, ("hidden", "cell") if options.rnn_type == "LSTM" else ("hidden",), hidden, both)
    if copying != "none":
        own["copy_gate.weight"] = -converter.tensor("generator.linear_copy.weight", (1, hidden))
    if copying == "own":
        own |= _attention(converter, options.global_attention, "copy_attention", "decoder.copy_attn", hidden)
        ignored = [f"decoder.copy_attn.linear_out.{kind}" for kind in ("weight", "bias")]  # only its weights are read
    additive = options.global_attention == "mlp"
    settings = {
        "embedding_size": width,
        "hidden_size": hidden,
        "encoder_hidden_size": hidden // (1 + both),
        "layers": options.dec_layers,
        "cell": options.rnn_type.lower(),
        "bidirectional": both,
        "dropout": _first(options.dropout),
        "bridge": "relu" if options.bridge else "copy",
        "score": "additive" if additive else options.global_attention,
        "attention_size": hidden,
        "attentional_bias": additive,
        "attentional_activation": "none" if additive else "tanh",
        "copying": copying,
        "input_feeding": bool(options.input_feed),
        "source_end": False,
    }
    cells = "decoder.rnn.layers.{layer}.{kind}" if options.input_feed else "decoder.rnn.{kind}_l{layer}"
    others = {f"attentional.{kind}": f"decoder.attn.linear_out.{kind}" for kind in ("weight", "bias")}
    return converter.convert(LuongConfig, settings, own, recurrent_names(others, cells), ignored)


def _bridge(converter: CheckpointConverter, states: tuple[str, ...], size: int, both: bool) -> dict[str, Tensor]:
    """The maps of the last states, by our names; with two directions, one map serves each of them."""
    own, part = {}, size // (1 + both)
    for number, state in enumerate(states):
        weight = converter.tensor(f"encoder.bridge.{number}.weight", (part, part))
        bias = converter.tensor(f"encoder.bridge.{number}.bias", (part,))
        own[f"bridge.{state}.weight"] = torch.kron(torch.eye(1 + both), weight)
        own[f"bridge.{state}.bias"] = bias.repeat(1 + both)
    return own


def _attention(converter: CheckpointConverter, kind: str, ours: str, theirs: str, size: int) -> dict[str, Tensor]:
    """The weights of a score, by our names."""
    if kind == "general":  # it maps the decoder's state, ours the encoder's
        return {
            f"{ours}.score.key.weight": converter.tensor(f"{theirs}.linear_in.weight", (size, size)).t().contiguous()
        }
    if kind == "dot":
        return {}
    return {
        f"{ours}.score.query.weight": converter.tensor(f"{theirs}.linear_query.weight", (size, size)),
        f"{ours}.score.key.weight": converter.tensor(f"{theirs}.linear_context.weight", (size, size)),
        f"{ours}.score.key.bias": converter.tensor(f"{theirs}.linear_query.bias", (size,)),
        f"{ours}.score.energy": converter.tensor(f"{theirs}.v.weight", (1, size))[0],
    }
