"""Models of OpenNMT-py (Klein et al. 2017), version 3, as runs: a checkpoint that holds weights, options and words.

An OpenNMT-py encoder reads no </s>: `source_end` is off. With copy_attn the first head of the last layer's attention is
copied by, and the gate reads the decoder's state alone: its other weights are zero here, and its sign is turned, since
theirs is the probability of copying and ours of generating.
"""

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.core.settings import Depth, Field, Settings, Width, parse
from nmtkit.core.wording import shortened
from nmtkit.interchange.conversion import NEVER
from nmtkit.interchange.importing import Imported
from nmtkit.interchange.outside import ForeignWeights, named_tensors, unpickled
from nmtkit.interchange.toolkits import (
    ForeignModel,
    ForeignWords,
    foreign_tokenizers,
    known_keys,
    piece_models,
    recurrent_place,
)
from nmtkit.models.base import ModelConfig
from nmtkit.models.luong import LuongConfig
from nmtkit.models.transformer import TransformerConfig

_REMEDY = "train and save with OpenNMT-py 3, which writes tensors, words and options alone"
_SPECIALS = {"unknown": "<unk>", "padding": "<blank>", "end": "</s>"}

_SEARCH = {
    "beam_size": 5,
    "stop": "opennmt-py",
    "at_limit": "compete",
    "max_length": 250,
    "max_length_ratio": 1.25,
    "max_length_offset": 5,
}
"""How `onmt_translate` of 3.5 searches where nothing is said; its limit is by the longest source of a batch."""

_LAYER = {
    "self_attention.query_keys_values": tuple(f"self_attn.linear_{part}" for part in ("query", "keys", "values")),
    "self_attention.out": ("self_attn.final_linear",),
    "cross_attention.query": ("context_attn.linear_query",),
    "cross_attention.keys_values": ("context_attn.linear_keys", "context_attn.linear_values"),
    "cross_attention.out": ("context_attn.final_linear",),
    "around_cross_attention.norm": ("layer_norm_2",),
    "feed_forward.inner": ("feed_forward.w_1",),
    "feed_forward.out": ("feed_forward.w_2",),
    "around_feed_forward.norm": ("feed_forward.layer_norm",),
}
"""Of a layer: our module, and those of theirs among which its rows are shared out."""
_FIRST_NORM = {"encoder": "layer_norm", "decoder": "layer_norm_1"}
_STACKS = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
_EMBEDDINGS = "embeddings.make_embedding"


class OpenNmtOptions(Settings):
    """The options that say something here, with what OpenNMT-py takes for those that older checkpoints lack."""

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
    lora_layers: list[str] = Field(default=[], max_length=0)
    lora_embedding: Literal[False] = False
    quant_layers: list[str] = Field(default=[], max_length=0)
    copy_attn: bool = False
    dropout: list[float] | float = 0.0
    transforms: list[str] = Field(default=[])
    src_subword_model: str | None = None
    tgt_subword_model: str | None = None
    src_vocab_threshold: int = 0
    tgt_vocab_threshold: int = 0


class _TransformerOptions(OpenNmtOptions):
    """What a Transformer has beside them."""

    decoder_type: Literal["transformer"]
    heads: int = Field(ge=1)
    transformer_ff: Width = Field(ge=1)
    position_encoding: Literal[True]
    position_encoding_type: Literal["SinusoidalInterleaved"] = "SinusoidalInterleaved"
    self_attn_type: Literal["scaled-dot", "scaled-dot-flash"] = "scaled-dot"
    max_relative_positions: int = Field(default=0, ge=0, le=0)
    relative_positions_buckets: int = Field(default=0, ge=0, le=0)
    pos_ffn_activation_fn: Literal["relu", "gelu"] = "relu"
    add_qkvbias: bool = False
    add_ffnbias: bool = True
    multiquery: Literal[False] = False
    num_kv: int = Field(default=0, ge=0, le=0)
    parallel_residual: Literal[False] = False
    layer_norm: Literal["standard"] = "standard"
    norm_eps: float = Field(default=1e-6, gt=0.0, le=1e-2)
    sliding_window: int = Field(default=0, ge=0, le=0)
    num_experts: int = Field(default=0, ge=0, le=0)
    attention_dropout: list[float] | float = 0.0


class _RecurrentOptions(OpenNmtOptions):
    """What a recurrent model has beside them. Its mlp attention has no tanh behind it, as nothing here has."""

    decoder_type: Literal["rnn"]
    rnn_type: Literal["LSTM", "GRU"] = "LSTM"
    position_encoding: Literal[False] = False
    bridge: Literal[False] = False
    input_feed: int = Field(default=1, ge=0, le=1)
    global_attention: Literal["general", "dot"] = "general"
    global_attention_function: Literal["softmax"] = "softmax"
    context_gate: None = None
    coverage_attn: Literal[False] = False
    copy_attn: Literal[False] = False


def read_opennmt(path: Path) -> Imported:
    """A model of OpenNMT-py, to be made a run.

    Args:
        path: a checkpoint, or a folder with one. Models of sentencepiece lie beside it.

    Raises:
        NmtkitError: something is missing or damaged, or has no counterpart here; the message names it.
    """
    path = _checkpoint(path)
    found = _loaded(path)
    kind = "recurrent" if vars(found["opt"]).get("encoder_type") in ("rnn", "brnn") else "transformer"
    options = _options(_RecurrentOptions if kind == "recurrent" else _TransformerOptions, path, vars(found["opt"]))
    src, tgt = _words(path, found["vocab"])
    models, notes = _pieces(path, options, vars(found["opt"]), tgt)
    tokenizers, tables = foreign_tokenizers(src, tgt, models, lowercase=False)
    weights = {**found["model"], **{f"generator.{name}": one for name, one in found["generator"].items()}}
    plain = {name.replace("generator.0.", "generator."): one for name, one in weights.items()}
    theirs = ForeignModel(ForeignWeights.of(path, named_tensors(path, plain, _REMEDY)), tokenizers, tables)
    if isinstance(options, _RecurrentOptions):
        model, tensors = _recurrent(theirs, options, path)
    else:
        model, tensors = _transformer(theirs, cast(_TransformerOptions, options), path)
    layers = f"{options.enc_layers}+{options.dec_layers} layers of {options.dec_hid_size}"
    shape = f"a {kind} model of OpenNMT-py of {layers}"
    return Imported("opennmt-py", f"OpenNMT-py {kind}", shape, model, tensors, tokenizers, _SEARCH, notes=notes)


def _options(cls: type[OpenNmtOptions], path: Path, given: Mapping[str, Any]) -> OpenNmtOptions:
    return parse(cls, known_keys(cls, given), f"{path} (its options)")


def _checkpoint(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.pt"))
    if len(found) != 1:
        raise CheckpointError(f"{path}: holds {len(found)} files *.pt; name the checkpoint")
    return found[0]


def _loaded(path: Path) -> dict[str, Any]:
    """What a checkpoint holds, and that it holds what is needed."""
    try:
        found = unpickled(path, (Namespace,), _REMEDY)
    except CheckpointError as fault:
        if "torchtext" not in str(fault):
            raise
        raise CheckpointError(
            f"{path}: its vocabulary is one of torchtext, as OpenNMT-py 1 and 2 wrote it; nothing of it was run; "
            "make it one of version 3 with OpenNMT-py's tools/convertv2_v3.py"
        ) from fault
    if not isinstance(found, dict) or not isinstance(found.get("opt"), Namespace):
        raise CheckpointError(f"{path}: holds no options, so it is no checkpoint of OpenNMT-py")
    for key, what in (("model", "save with save_format pytorch"), ("generator", "merge its LoRA weights first")):
        if not isinstance(found.get(key), dict):
            raise CheckpointError(f"{path}: {key!r} is missing in it, or is no table of tensors; {what}")
    if not isinstance(found.get("vocab"), dict):
        raise CheckpointError(f"{path}: its vocabulary is not of OpenNMT-py 3; make it so with tools/convertv2_v3.py")
    return found


# --------------------------------------------------------------------------------------------------------------- words


def _words(path: Path, vocabulary: Mapping[Any, Any]) -> tuple[ForeignWords, ForeignWords]:
    if vocabulary.get("src_feats"):
        raise CheckpointError(f"{path}: src_feats: its source words have features, which is not read")
    task = vocabulary.get("data_task", "seq2seq")
    if task != "seq2seq":
        raise CheckpointError(f"{path}: data_task: {shortened(str(task))}, which is not read; what is read: seq2seq")
    sides = []
    for side in ("src", "tgt"):
        tokens = vocabulary.get(side)
        if not isinstance(tokens, list) or not all(type(token) is str for token in tokens):
            raise CheckpointError(f"{path}: its vocabulary {side!r} is no list of words; get it again")
        rows = {token: row for row, token in enumerate(tokens)}
        marks = {key: rows.get(token, -1) for key, token in _SPECIALS.items()}
        start = rows.get(str(vocabulary.get("decoder_start_token", "<s>")), -1) if side == "tgt" else marks["padding"]
        if side == "src":
            marks = {key: row if row >= 0 else marks["unknown"] for key, row in marks.items()}
            start = rows.get("<s>", marks["padding"])
        if min(start, *marks.values()) < 0:
            lacks = f"{', '.join(_SPECIALS.values())} or the decoder's first word"
            raise CheckpointError(f"{path}: its vocabulary {side!r} lacks {lacks}")
        sides.append(ForeignWords(path, tokens, start=start, **marks))
    return sides[0], sides[1]


def _pieces(
    path: Path, options: OpenNmtOptions, given: Mapping[str, Any], words: ForeignWords
) -> tuple[tuple[Path, Path] | None, list[str]]:
    """Where the sentencepiece models lie; None where words or pieces stand between blanks, and what to say then."""
    corpora = given.get("data")
    transforms = {*options.transforms}
    for corpus in corpora.values() if isinstance(corpora, dict) else ():
        named = corpus.get("transforms") if isinstance(corpus, dict) else None
        transforms |= {str(one) for one in named} if isinstance(named, list) else set()
    if "prefix" in transforms:
        raise CheckpointError(f"{path}: transforms: prefix puts words before every source, which is not read")
    cut = "sentencepiece" in transforms
    if not cut and sum(token.startswith("\u2581") for token in words.tokens) * 4 < len(words.tokens):
        return None, []
    if cut and max(options.src_vocab_threshold, options.tgt_vocab_threshold) > 0:
        raise CheckpointError(f"{path}: src_vocab_threshold restricts sentencepiece, which is not read")
    src = options.src_subword_model
    named = (src or "source.model", options.tgt_subword_model or src or "target.model")
    return piece_models(path.parent, [re.split(r"[/\\]", name)[-1] for name in named])


# ------------------------------------------------------------------------------------------------------------- weights


def _first(value: list[float] | float) -> float:
    """Of a rate that changes in training."""
    return value if isinstance(value, float) else [*value, 0.0][0]


def _matrices(theirs: ForeignModel, output: str, width: int, hidden: int) -> tuple[dict[str, Tensor], set[str]]:
    """The matrices of words, the bias of the output, and what these were made of."""
    names = {
        "src_embedding.weight": f"encoder.{_EMBEDDINGS}.emb_luts.0.weight",
        "tgt_embedding.weight": f"decoder.{_EMBEDDINGS}.emb_luts.0.weight",
        "output.weight": f"{output}.weight",
    }
    own = {
        name: theirs.rows(there, hidden if name == "output.weight" else width, int(not name.startswith("src")))
        for name, there in names.items()
    }
    return own | {"output.bias": theirs.bias(f"{output}.bias")}, {*names.values(), f"{output}.bias"}


def _transformer(
    theirs: ForeignModel, options: _TransformerOptions, path: Path
) -> tuple[ModelConfig, dict[str, Tensor]]:
    width = options.enc_hid_size
    for key in ("dec_hid_size", "src_word_vec_size", "tgt_word_vec_size"):
        if getattr(options, key) != width:
            what = f"{getattr(options, key)} beside enc_hid_size {width}"
            raise CheckpointError(f"{path}: {key}: {what}, which is not read")
    output = "generator.linear" if options.copy_attn else "generator"
    own, read = _matrices(theirs, output, width, width)
    positions = {f"{side}.{_EMBEDDINGS}.pe.pe" for side in ("encoder", "decoder")}
    for name in sorted(positions):
        theirs.check_sinusoids(name, width)
    given = {
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
        "tie": theirs.tie(own["src_embedding.weight"], own["tgt_embedding.weight"], own["output.weight"]),
        "activation": options.pos_ffn_activation_fn,
    }
    if options.copy_attn:
        given |= {"copying": "head", "alignment_layer": options.dec_layers, "alignment_heads": 1}
        own |= _gate(theirs, width)
        own["output.bias"][0] = NEVER  # padding is no word there
        read |= {f"generator.linear_copy.{kind}" for kind in ("weight", "bias")}
    model = parse(TransformerConfig, given, str(path))
    return model, theirs.joined(model, own, _places, read | positions, lambda name: _may_lack(name, options))


def _gate(theirs: ForeignModel, width: int) -> dict[str, Tensor]:
    weight = theirs.tensor("generator.linear_copy.weight", (1, width))
    bias = theirs.tensor("generator.linear_copy.bias", (1,))
    zeros = torch.zeros_like(weight)
    return {"copy_gate.weight": torch.cat([zeros, -weight, zeros], 1), "copy_gate.bias": -bias}


def _may_lack(name: str, options: _TransformerOptions) -> bool:
    """Whether a bias is not there by the options."""
    if not name.endswith(".bias"):
        return False
    return ("_attn." in name and not options.add_qkvbias) or (".w_" in name and not options.add_ffnbias)


def _places(name: str) -> list[str]:
    """Where the parts of one of our weights of the layers stand."""
    side, _, rest = name.partition(".")
    module, _, kind = rest.rpartition(".")
    if side in ("encoder_norm", "decoder_norm"):
        return [f"{side.removesuffix('_norm')}.layer_norm.{kind}"]
    number, _, module = module.partition(".")
    there = (_FIRST_NORM[side],) if module == "around_self_attention.norm" else _LAYER[module]
    return [f"{_STACKS[side]}.{number}.{theirs}.{kind}" for theirs in there]


def _recurrent(theirs: ForeignModel, options: _RecurrentOptions, path: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Their decoder updates, then looks: that is a Luong model."""
    width, hidden, both = options.src_word_vec_size, options.dec_hid_size, options.encoder_type == "brnn"
    for key, wanted in (("tgt_word_vec_size", width), ("enc_hid_size", hidden), ("dec_layers", options.enc_layers)):
        if getattr(options, key) != wanted:
            raise CheckpointError(f"{path}: {key}: {getattr(options, key)} beside {wanted}, which is not read")
    own, read = _matrices(theirs, "generator", width, hidden)
    if options.global_attention == "general":  # theirs maps the decoder's state, ours the encoder's
        name = "decoder.attn.linear_in.weight"
        own["attention.score.key.weight"] = theirs.tensor(name, (hidden, hidden)).t().contiguous()
        read |= {name}
    given = {
        "embedding_size": width,
        "hidden_size": hidden,
        "encoder_hidden_size": hidden // (1 + both),
        "layers": options.dec_layers,
        "cell": options.rnn_type.lower(),
        "bidirectional": both,
        "dropout": _first(options.dropout),
        "tie": theirs.tie(own["src_embedding.weight"], own["tgt_embedding.weight"], own["output.weight"]),
        "bridge": "copy",
        "score": options.global_attention,
        "input_feeding": bool(options.input_feed),
        "source_end": False,
    }
    decoder = "decoder.rnn.layers.{layer}.{kind}" if options.input_feed else "decoder.rnn.{kind}_l{layer}"
    model = parse(LuongConfig, given, str(path))
    places = {"attentional.weight": "decoder.attn.linear_out.weight"}
    return model, theirs.joined(model, own, lambda name: [recurrent_place(name, decoder) or places[name]], read)
