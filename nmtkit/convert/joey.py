"""Imports models of Joey NMT (Kreutzer et al. 2019), version 2: config.yaml, a checkpoint, and the vocabularies."""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nmtkit.convert import external_files
from nmtkit.convert.external_files import ExternalSettings, ExternalWeights, require_equal, unsupported
from nmtkit.convert.import_weights import CheckpointConverter, ImportedModel, recurrent_names, transformer_names
from nmtkit.convert.importing import READERS
from nmtkit.convert.vocabulary import ExternalVocabulary, find_sentencepiece_models, toolkit_tokenizers
from nmtkit.core.errors import CheckpointError
from nmtkit.core.formats import load_yaml
from nmtkit.core.settings import Beam, Depth, Field, Length, Width, parse
from nmtkit.data.tokenizers.tokenizer import WORD_START
from nmtkit.models.base import ModelConfig
from nmtkit.models.rnn.luong import LuongConfig
from nmtkit.models.transformer import TransformerConfig

_NORM_EPSILON = 1e-6
_CHECKPOINTS = ("best.ckpt", "latest.ckpt")
_REMEDY = "save what is under model_state alone, with torch.save({'model_state': ...})"
_EMBEDDINGS = ("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight")
_POSITIONS = ("encoder.pe.pe", "decoder.pe.pe")

_TRANSFORMER_NAMES = transformer_names(
    "encoder.layers",
    "decoder.layers",
    {
        "encoder.self_attention.query_keys_values": [f"src_src_att.{part}_layer" for part in "qkv"],
        "encoder.self_attention.out": ["src_src_att.output_layer"],
        "encoder.around_self_attention.norm": ["layer_norm"],
        "decoder.self_attention.query_keys_values": [f"trg_trg_att.{part}_layer" for part in "qkv"],
        "decoder.self_attention.out": ["trg_trg_att.output_layer"],
        "decoder.around_self_attention.norm": ["x_layer_norm"],
        "cross_attention.query": ["src_trg_att.q_layer"],
        "cross_attention.keys_values": ["src_trg_att.k_layer", "src_trg_att.v_layer"],
        "cross_attention.out": ["src_trg_att.output_layer"],
        "around_cross_attention.norm": ["dec_layer_norm"],
        "feed_forward.inner": ["feed_forward.pwff_layer.0"],
        "feed_forward.out": ["feed_forward.pwff_layer.3"],
        "around_feed_forward.norm": ["feed_forward.layer_norm"],
    },
)
_RECURRENT_NAMES = recurrent_names(
    {
        "attentional.bias": "decoder.att_vector_layer.bias",
        "attention.score.key.weight": "decoder.attention.key_layer.weight",
        "attention.score.query.weight": "decoder.attention.query_layer.weight",
    }
)


class _Embeddings(ExternalSettings):
    embedding_dim: Width = Field(ge=1)
    scale: bool = False


class _Encoder(ExternalSettings):
    """A setting of only one architecture is None unless it is given."""

    type: Literal["recurrent", "transformer"] = "recurrent"
    embeddings: _Embeddings
    hidden_size: Width = Field(ge=1)
    num_layers: Depth = Field(default=1, ge=1)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    ff_size: Width | None = Field(default=None, ge=1)
    num_heads: int | None = Field(default=None, ge=1)
    layer_norm: Literal["pre", "post"] | None = None
    activation: str | None = None
    alpha: float = Field(default=1.0, ge=1.0, le=1.0)
    rnn_type: Literal["gru", "lstm"] = "gru"
    bidirectional: Literal[True] = True


class _Decoder(_Encoder):
    type: Literal["recurrent", "transformer"] = "transformer"
    attention: Literal["bahdanau", "luong"] = "bahdanau"
    init_hidden: Literal["bridge", "zero", "last"] = "bridge"
    input_feeding: bool = True


class _Model(ExternalSettings):
    encoder: _Encoder
    decoder: _Decoder
    tied_embeddings: bool = False


class _Pieces(ExternalSettings):
    model_file: str | None = None
    pretokenizer: Literal["none"] = "none"


class _Side(ExternalSettings):
    level: str
    lowercase: bool = False
    normalize: Literal[False] = False
    tokenizer_type: str | None = None
    bpe_type: str | None = None
    tokenizer_cfg: _Pieces = _Pieces()


class _Specials(ExternalSettings):
    unk_id: int = 0
    unk_token: str = "<unk>"
    pad_id: int = 1
    pad_token: str = "<pad>"
    bos_id: int = 2
    bos_token: str = "<s>"
    eos_id: int = 3
    eos_token: str = "</s>"
    sep_token: None = None
    lang_tags: list[str] = Field(default=[], max_length=0)


class _Data(ExternalSettings):
    src: _Side
    trg: _Side
    special_symbols: _Specials = _Specials()


class _Testing(ExternalSettings):
    beam_size: Beam = Field(default=1, ge=1)
    beam_alpha: float = -1.0
    min_output_length: Length = Field(default=1, ge=0)
    max_output_length: Length = -1
    no_repeat_ngram_size: int = -1
    repetition_penalty: float = -1.0
    generate_unk: bool = True

    def search_settings(self) -> dict[str, Any]:
        """The search as a recipe's settings; without a limit Joey NMT's is by the longest source of a batch."""
        limited = self.max_output_length > 0
        return {
            "beam_size": self.beam_size,
            "stop": "joeynmt",
            "at_limit": "compete",
            "length_penalty": "gnmt" if self.beam_alpha > 0 else "none",
            "alpha": max(0.0, self.beam_alpha),
            "min_length": self.min_output_length,
            "max_length": self.max_output_length if limited else 1000,
            "max_length_ratio": 0.0 if limited else 1.5,
            "max_length_offset": 0,
            "no_repeat_ngram": max(0, self.no_repeat_ngram_size),
            "forbid_unknown": not self.generate_unk,
        }


class JoeyConfig(ExternalSettings):
    """The keys of `config.yaml` that are read."""

    model: _Model
    data: _Data
    testing: _Testing = _Testing()


@READERS.register("joeynmt")
def read_joey(folder: Path) -> ImportedModel:
    """Converts a folder with config.yaml, best.ckpt or latest.ckpt, src_vocab.txt, trg_vocab.txt and their models."""
    place = folder / "config.yaml"
    external_files.read_file(place)
    given, lines = load_yaml(place)
    config = parse(JoeyConfig, given, str(place), lines)
    kind, testing = config.model.encoder.type, config.testing
    require_equal(
        place, config, {"data.trg.lowercase": "data.src.lowercase", "model.decoder.type": "model.encoder.type"}
    )
    src, tgt = (_vocabulary(folder / f"{side}_vocab.txt", config.data.special_symbols) for side in ("src", "trg"))
    models, notes = _sentencepiece_models(folder, config.data, place, any(WORD_START in token for token in tgt.tokens))
    tokenizers, maps = toolkit_tokenizers(src, tgt, models, config.data.src.lowercase, restrict=True)
    path = next((folder / name for name in _CHECKPOINTS if (folder / name).exists()), None)
    if path is None:
        raise CheckpointError(f"{folder}: no weights: none of {', '.join(_CHECKPOINTS)}; copy the whole folder")
    state = external_files.load_pickle(path, remedy=_REMEDY)
    if not isinstance(state, dict) or "model_state" not in state:
        raise CheckpointError(f"{path}: holds no model_state, so it is not a checkpoint of Joey NMT")
    weights = ExternalWeights.of(path, state["model_state"], _REMEDY)
    converter = CheckpointConverter(place, weights, tokenizers, maps)
    model, tensors = (_transformer if kind == "transformer" else _recurrent)(converter, config)
    if testing.repetition_penalty > 1 or testing.no_repeat_ngram_size > 1:
        notes.append(
            "testing: repetition_penalty is ignored, and no_repeat_ngram_size blocks n-grams of the target alone; Joey "
            "NMT may write other texts"
        )
    return ImportedModel("joeynmt", f"Joey NMT {kind}", model, tensors, tokenizers, testing.search_settings(), notes)


def _sentencepiece_models(
    folder: Path, data: _Data, place: Path, pieces: bool
) -> tuple[tuple[Path, Path] | None, list[str]]:
    """The sentencepiece models of both sides, or None and a note; `pieces` says whether the tokens are pieces."""
    names: list[str] = []
    for side, text in (("src", data.src), ("trg", data.trg)):
        kind = text.tokenizer_type or text.bpe_type or "sentencepiece"
        if text.level == "bpe" and kind == "sentencepiece" and text.tokenizer_cfg.model_file:
            names.append(Path(text.tokenizer_cfg.model_file).name)
        elif text.level != "word":
            remedy = "supported: word, and bpe of sentencepiece with tokenizer_cfg.model_file; cut other text yourself"
            raise unsupported(place, f"data.{side}.level: {text.level!r} ({kind})", remedy)
    if len(names) == 1:
        raise unsupported(place, "data.trg.level: not the same on both sides")
    if not names and not pieces:
        return None, []
    return find_sentencepiece_models(folder, names or ["source.model", "target.model"])


def _vocabulary(path: Path, special: _Specials) -> ExternalVocabulary:
    """A file with a token a line; Joey NMT puts special tokens that it lacks before them."""
    ids = {
        special.unk_token: special.unk_id,
        special.pad_token: special.pad_id,
        special.bos_token: special.bos_id,
        special.eos_token: special.eos_id,
    }
    tokens = [*dict.fromkeys([*ids, *filter(None, external_files.read_text(path).split("\n"))])]
    for token, row in ids.items():
        if not 0 <= row < len(tokens) or tokens[row] != token:
            raise CheckpointError(f"{path}: {token!r} does not have the id {row} that special_symbols give it")
    return ExternalVocabulary(path, tokens, *ids.values())


def _require_alike(converter: CheckpointConverter, config: JoeyConfig, *keys: str) -> None:
    require_equal(converter.place, config, {f"model.decoder.{key}": f"model.encoder.{key}" for key in keys})


def _transformer(converter: CheckpointConverter, config: JoeyConfig) -> tuple[ModelConfig, dict[str, Tensor]]:
    encoder = config.model.encoder
    _require_alike(converter, config, "hidden_size", "ff_size", "num_heads", "layer_norm", "activation")
    for key in ("ff_size", "num_heads", "layer_norm"):
        if getattr(encoder, key) is None:
            raise unsupported(converter.place, f"model.encoder.{key}: not set", "set it as the model was trained")
    if not config.model.tied_embeddings:
        _require_alike(converter, config, "embeddings.scale")
    width, activation = encoder.hidden_size, encoder.activation or "relu"
    converter.require_sinusoids(_POSITIONS, width)
    own = converter.word_weights(*_EMBEDDINGS, width, width)
    settings = {
        "hidden_size": width,
        "feed_forward_size": encoder.ff_size,
        "heads": encoder.num_heads,
        "encoder_layers": encoder.num_layers,
        "decoder_layers": config.model.decoder.num_layers,
        **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), encoder.dropout),
        "norm": encoder.layer_norm,
        "norm_epsilon": _NORM_EPSILON,
        "scale_embeddings": encoder.embeddings.scale,
        "activation": {"swish": "silu"}.get(activation, activation),
    }
    return converter.convert(TransformerConfig, settings, own, _TRANSFORMER_NAMES)


def _recurrent(converter: CheckpointConverter, config: JoeyConfig) -> tuple[ModelConfig, dict[str, Tensor]]:
    """A Luong model: the decoder's state is updated before it attends, with Bahdanau's score as well."""
    encoder, decoder = config.model.encoder, config.model.decoder
    width, hidden, memory = encoder.embeddings.embedding_dim, decoder.hidden_size, 2 * encoder.hidden_size
    _require_alike(converter, config, "rnn_type", "embeddings.embedding_dim")
    if encoder.embeddings.scale or decoder.embeddings.scale:
        raise unsupported(converter.place, "embeddings.scale: true in a recurrent model")
    if decoder.activation not in (None, "tanh"):
        raise unsupported(converter.place, f"model.decoder.activation: {decoder.activation} in a recurrent model")
    own = converter.word_weights(*_EMBEDDINGS, width, hidden)
    state_first = converter.tensor("decoder.att_vector_layer.weight", (hidden, hidden + memory))
    own["attentional.weight"] = torch.cat([state_first[:, hidden:], state_first[:, :hidden]], 1)
    additive = decoder.attention == "bahdanau"
    if additive:
        own["attention.score.energy"] = converter.tensor("decoder.attention.energy_layer.weight", (1, hidden))[0]
        own["attention.score.key.bias"] = torch.zeros(hidden)
    bridge, bridge_weights = _bridge(converter, decoder, memory)
    settings = {
        "embedding_size": width,
        "hidden_size": hidden,
        "encoder_hidden_size": encoder.hidden_size,
        "layers": decoder.num_layers,
        "encoder_layers": encoder.num_layers,
        "cell": encoder.rnn_type,
        "bidirectional": True,
        "dropout": encoder.dropout,
        "bridge": bridge,
        "score": "additive" if additive else "general",
        "attention_size": hidden,
        "input_feeding": decoder.input_feeding,
        "attentional_bias": True,
    }
    return converter.convert(LuongConfig, settings, own | bridge_weights, _RECURRENT_NAMES)


def _bridge(converter: CheckpointConverter, decoder: _Decoder, memory: int) -> tuple[str, dict[str, Tensor]]:
    """The map to the decoder's first state, which all its layers, and an LSTM's memory cells, share."""
    if decoder.init_hidden == "zero":
        return "zero", {}
    size = (decoder.hidden_size, memory)
    if decoder.init_hidden == "bridge":
        weight = converter.tensor("decoder.bridge_layer.weight", size)
        bias = converter.tensor("decoder.bridge_layer.bias", size[:1])
    elif memory in (decoder.hidden_size, 2 * decoder.hidden_size):
        weight, bias = torch.eye(*size), torch.zeros(size[0])
    else:
        what = f"model.decoder.init_hidden: last of {memory} numbers for {decoder.hidden_size}"
        raise unsupported(converter.place, what)
    layers = {"weight": weight.repeat(decoder.num_layers, 1), "bias": bias.repeat(decoder.num_layers)}
    states = ("hidden", "cell") if decoder.rnn_type == "lstm" else ("hidden",)
    weights = {f"bridge.{state}.{kind}": tensor.clone() for state in states for kind, tensor in layers.items()}
    return "tanh" if decoder.init_hidden == "bridge" else "linear", weights
