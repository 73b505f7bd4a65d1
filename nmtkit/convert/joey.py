"""Imports models from Joey NMT (Kreutzer et al. 2019), version 2: config.yaml, a checkpoint, and the vocabularies."""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nmtkit.convert.checkpoint_converter import CheckpointConverter
from nmtkit.convert.external_files import (
    ExternalSettings,
    ExternalWeights,
    load_pickle,
    read_file,
    read_text,
    require_equal,
    unsupported,
)
from nmtkit.convert.imported_model import READERS, ImportedModel
from nmtkit.convert.vocabulary import (
    ExternalVocabulary,
    find_sentencepiece_models,
    toolkit_tokenizers,
)
from nmtkit.convert.weight_names import Row, Stored, WeightNames
from nmtkit.core.errors import CheckpointError
from nmtkit.core.formats import load_yaml
from nmtkit.core.settings import Beam, Depth, Field, Length, Width, parse
from nmtkit.data.tokenizers.tokenizer import WORD_START
from nmtkit.models.base import ModelConfig
from nmtkit.models.rnn.luong import LuongConfig
from nmtkit.models.transformer import TransformerConfig

_NORM_EPSILON = 1e-6
_CHECKPOINTS = ("best.ckpt", "latest.ckpt")
_REMEDY = "save a file that contains only model_state, with torch.save({'model_state': ...})"

_WORDS: dict[str, Row] = {
    "src_embedding.weight": "src_embed.lut.weight",
    "tgt_embedding.weight": "trg_embed.lut.weight",
    "output.weight": "decoder.output_layer.weight",
}
_TRANSFORMER_NAMES = WeightNames(
    {
        **_WORDS,
        "src_positions.table": "encoder.pe.pe",
        "tgt_positions.table": "decoder.pe.pe",
        "encoder.{layer}.self_attention.query_keys_values.{kind}": [
            "encoder.layers.{layer}.src_src_att.q_layer.{kind}",
            "encoder.layers.{layer}.src_src_att.k_layer.{kind}",
            "encoder.layers.{layer}.src_src_att.v_layer.{kind}",
        ],
        "encoder.{layer}.self_attention.out.{kind}": "encoder.layers.{layer}.src_src_att.output_layer.{kind}",
        "encoder.{layer}.around_self_attention.norm.{kind}": "encoder.layers.{layer}.layer_norm.{kind}",
        "decoder.{layer}.self_attention.query_keys_values.{kind}": [
            "decoder.layers.{layer}.trg_trg_att.q_layer.{kind}",
            "decoder.layers.{layer}.trg_trg_att.k_layer.{kind}",
            "decoder.layers.{layer}.trg_trg_att.v_layer.{kind}",
        ],
        "decoder.{layer}.self_attention.out.{kind}": "decoder.layers.{layer}.trg_trg_att.output_layer.{kind}",
        "decoder.{layer}.around_self_attention.norm.{kind}": "decoder.layers.{layer}.x_layer_norm.{kind}",
        "decoder.{layer}.cross_attention.query.{kind}": "decoder.layers.{layer}.src_trg_att.q_layer.{kind}",
        "decoder.{layer}.cross_attention.keys_values.{kind}": [
            "decoder.layers.{layer}.src_trg_att.k_layer.{kind}",
            "decoder.layers.{layer}.src_trg_att.v_layer.{kind}",
        ],
        "decoder.{layer}.cross_attention.out.{kind}": "decoder.layers.{layer}.src_trg_att.output_layer.{kind}",
        "decoder.{layer}.around_cross_attention.norm.{kind}": "decoder.layers.{layer}.dec_layer_norm.{kind}",
        "{side}.{layer}.feed_forward.inner.{kind}": "{side}.layers.{layer}.feed_forward.pwff_layer.0.{kind}",
        "{side}.{layer}.feed_forward.out.{kind}": "{side}.layers.{layer}.feed_forward.pwff_layer.3.{kind}",
        "{side}.{layer}.around_feed_forward.norm.{kind}": "{side}.layers.{layer}.feed_forward.layer_norm.{kind}",
        "{side}_norm.{kind}": "{side}.layer_norm.{kind}",
    }
)
_RECURRENT_NAMES = WeightNames(
    {
        **_WORDS,
        "encoder.forward_layers.{layer}.{kind}_l0": "encoder.rnn.{kind}_l{layer}",
        "encoder.backward_layers.{layer}.{kind}_l0": "encoder.rnn.{kind}_l{layer}_reverse",
        "decoder.{kind}_l{layer}": "decoder.rnn.{kind}_l{layer}",
        "attention.score.query.weight": "decoder.attention.query_layer.weight",
        "attention.score.key.weight": "decoder.attention.key_layer.weight",
        "attention.score.energy": Stored(["decoder.attention.energy_layer.weight"], as_row=True),
        "attentional.bias": "decoder.att_vector_layer.bias",
    }
)


class _Embeddings(ExternalSettings):
    embedding_dim: Width = Field(ge=1)
    scale: bool = False


class _Encoder(ExternalSettings):
    """Settings of an encoder; settings that only one architecture has are None unless given."""

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
        """Returns the search as recipe settings; Joey NMT's default limit depends on the longest source in a batch."""
        has_limit = self.max_output_length > 0
        return {
            "beam_size": self.beam_size,
            "at_limit": "compete",
            "length_penalty": "gnmt" if self.beam_alpha > 0 else "none",
            "alpha": max(0.0, self.beam_alpha),
            "min_length": self.min_output_length,
            "max_length": self.max_output_length if has_limit else 1000,
            "max_length_ratio": 0.0 if has_limit else 1.5,
            "max_length_offset": 0,
            "no_repeat_ngram": max(0, self.no_repeat_ngram_size),
            "forbid_unknown": not self.generate_unk,
        }


class JoeyConfig(ExternalSettings):
    """The keys that are read from `config.yaml`."""

    model: _Model
    data: _Data
    testing: _Testing = _Testing()


@READERS.register("joeynmt")
def read_joey(folder: Path) -> ImportedModel:
    """Converts a folder with config.yaml, best.ckpt or latest.ckpt, vocabularies and tokenizer models."""
    place = folder / "config.yaml"
    config = _read_config(place)
    kind = config.model.encoder.type
    testing = config.testing
    src = _read_vocabulary(folder / "src_vocab.txt", config.data.special_symbols)
    tgt = _read_vocabulary(folder / "trg_vocab.txt", config.data.special_symbols)
    has_pieces = any(WORD_START in token for token in tgt.tokens)
    models, notes = _sentencepiece_models(folder, config.data, place, has_pieces)
    tokenizers, maps = toolkit_tokenizers(
        src, tgt, models, config.data.src.lowercase, restrict=True
    )
    converter = CheckpointConverter(
        place=place,
        weights=_read_weights(folder),
        names=_TRANSFORMER_NAMES if kind == "transformer" else _RECURRENT_NAMES,
        tokenizers=tokenizers,
        vocabularies=maps,
    )
    model: ModelConfig
    if kind == "transformer":
        model, tensors = _convert_transformer(converter, config)
    else:
        model, tensors = _convert_recurrent(converter, config)
    if testing.repetition_penalty > 1 or testing.no_repeat_ngram_size > 1:
        notes.append(
            "nmtkit ignores testing.repetition_penalty and applies testing.no_repeat_ngram_size only "
            "to n-grams of the target, so its output may differ from Joey NMT's"
        )
    return ImportedModel(
        toolkit="joeynmt",
        architecture=f"Joey NMT {kind}",
        model=model,
        tensors=tensors,
        tokenizers=tokenizers,
        search=testing.search_settings(),
        notes=notes,
    )


def _read_config(place: Path) -> JoeyConfig:
    read_file(place)  # rejects anything that is not a file or is too large
    content, lines = load_yaml(place)
    config = parse(JoeyConfig, content, str(place), lines)
    pairs = {"data.trg.lowercase": "data.src.lowercase", "model.decoder.type": "model.encoder.type"}
    require_equal(place, config, pairs)
    return config


def _read_weights(folder: Path) -> ExternalWeights:
    path = next((folder / name for name in _CHECKPOINTS if (folder / name).exists()), None)
    if path is None:
        raise CheckpointError(
            f"{folder}: contains no weights ({', '.join(_CHECKPOINTS)}); copy the whole folder"
        )
    state = load_pickle(path, remedy=_REMEDY)
    if not isinstance(state, dict) or "model_state" not in state:
        raise CheckpointError(
            f"{path}: contains no model_state, so it is not a Joey NMT checkpoint"
        )
    return ExternalWeights.of_pickle(path, state["model_state"], _REMEDY)


def _sentencepiece_models(
    folder: Path, data: _Data, place: Path, has_pieces: bool
) -> tuple[tuple[Path, Path] | None, list[str]]:
    """Returns the SentencePiece models of both sides, or None, with a note if the tokens are pieces."""
    names: list[str] = []
    for side, text in (("src", data.src), ("trg", data.trg)):
        kind = text.tokenizer_type or text.bpe_type or "sentencepiece"
        if text.level == "bpe" and kind == "sentencepiece" and text.tokenizer_cfg.model_file:
            names.append(Path(text.tokenizer_cfg.model_file).name)
        elif text.level != "word":
            remedy = (
                "only level word, and level bpe with sentencepiece and tokenizer_cfg.model_file, are "
                "supported; tokenize other text yourself"
            )
            raise unsupported(place, f"data.{side}.level {text.level!r} ({kind})", remedy)
    if len(names) == 1:
        raise unsupported(place, "a data.trg.level that differs from data.src.level")
    if not names and not has_pieces:
        return None, []
    return find_sentencepiece_models(folder, names or ["source.model", "target.model"])


def _read_vocabulary(path: Path, special: _Specials) -> ExternalVocabulary:
    """Reads a file with one token per line; the special tokens come first, as in Joey NMT."""
    ids = {
        special.unk_token: special.unk_id,
        special.pad_token: special.pad_id,
        special.bos_token: special.bos_id,
        special.eos_token: special.eos_id,
    }
    lines = [line for line in read_text(path).split("\n") if line]
    tokens = [*dict.fromkeys([*ids, *lines])]
    for token, row in ids.items():
        if not 0 <= row < len(tokens) or tokens[row] != token:
            raise CheckpointError(
                f"{path}: {token!r} does not have id {row}, which special_symbols assigns to it; "
                "correct special_symbols in config.yaml, or copy the vocabulary again"
            )
    return ExternalVocabulary(
        place=path,
        tokens=tokens,
        unknown=special.unk_id,
        padding=special.pad_id,
        start=special.bos_id,
        end=special.eos_id,
    )


def _require_alike(converter: CheckpointConverter, config: JoeyConfig, *keys: str) -> None:
    require_equal(
        converter.place, config, {f"model.decoder.{key}": f"model.encoder.{key}" for key in keys}
    )


def _convert_transformer(
    converter: CheckpointConverter, config: JoeyConfig
) -> tuple[TransformerConfig, dict[str, Tensor]]:
    encoder = config.model.encoder
    _require_alike(
        converter, config, "hidden_size", "ff_size", "num_heads", "layer_norm", "activation"
    )
    for key in ("ff_size", "num_heads", "layer_norm"):
        if getattr(encoder, key) is None:
            raise unsupported(
                converter.place,
                f"an encoder whose model.encoder.{key} is not set",
                "set it to the value used in training",
            )
    if not config.model.tied_embeddings:
        _require_alike(converter, config, "embeddings.scale")
    width = encoder.hidden_size
    converter.require_sinusoids(width)
    words = converter.word_weights(width=width, hidden=width)
    activation = encoder.activation or "relu"
    settings = {
        "hidden_size": width,
        "feed_forward_size": encoder.ff_size,
        "heads": encoder.num_heads,
        "encoder_layers": encoder.num_layers,
        "decoder_layers": config.model.decoder.num_layers,
        "dropout": encoder.dropout,
        "attention_dropout": encoder.dropout,
        "activation_dropout": encoder.dropout,
        "norm": encoder.layer_norm,
        "norm_epsilon": _NORM_EPSILON,
        "scale_embeddings": encoder.embeddings.scale,
        "activation": "silu" if activation == "swish" else activation,
    }
    return converter.convert(TransformerConfig, settings, words)


def _convert_recurrent(
    converter: CheckpointConverter, config: JoeyConfig
) -> tuple[LuongConfig, dict[str, Tensor]]:
    """Converts a Luong model, whose decoder updates its state before attending, even with Bahdanau's score."""
    encoder = config.model.encoder
    decoder = config.model.decoder
    hidden = decoder.hidden_size
    memory = 2 * encoder.hidden_size
    _require_alike(converter, config, "rnn_type", "embeddings.embedding_dim")
    if encoder.embeddings.scale or decoder.embeddings.scale:
        raise unsupported(converter.place, "embeddings.scale in a recurrent model")
    if decoder.activation not in (None, "tanh"):
        raise unsupported(
            converter.place, f"model.decoder.activation {decoder.activation} in a recurrent model"
        )
    converted = converter.word_weights(width=encoder.embeddings.embedding_dim, hidden=hidden)
    # Joey NMT concatenates the state and the context, nmtkit the context and the state.
    state_and_context = converter.tensor(
        "decoder.att_vector_layer.weight", (hidden, hidden + memory)
    )
    converted["attentional.weight"] = torch.cat(
        [state_and_context[:, hidden:], state_and_context[:, :hidden]], 1
    )
    is_additive = decoder.attention == "bahdanau"
    if is_additive:
        converted["attention.score.key.bias"] = torch.zeros(hidden)
    bridge, bridge_weights = _convert_bridge(converter, decoder, memory)
    settings = {
        "embedding_size": encoder.embeddings.embedding_dim,
        "hidden_size": hidden,
        "encoder_hidden_size": encoder.hidden_size,
        "layers": decoder.num_layers,
        "encoder_layers": encoder.num_layers,
        "cell": encoder.rnn_type,
        "bidirectional": True,
        "dropout": encoder.dropout,
        "bridge": bridge,
        "score": "additive" if is_additive else "general",
        "attention_size": hidden,
        "input_feeding": decoder.input_feeding,
        "attentional_bias": True,
    }
    return converter.convert(LuongConfig, settings, converted | bridge_weights)


def _convert_bridge(
    converter: CheckpointConverter, decoder: _Decoder, memory: int
) -> tuple[str, dict[str, Tensor]]:
    """Returns the kind of bridge and its weights, which all decoder layers and both LSTM states share."""
    hidden = decoder.hidden_size
    if decoder.init_hidden == "zero":
        return "zero", {}
    if decoder.init_hidden == "bridge":
        weight = converter.tensor("decoder.bridge_layer.weight", (hidden, memory))
        bias = converter.tensor("decoder.bridge_layer.bias", (hidden,))
    elif memory in (hidden, 2 * hidden):  # last state of the forward layer, or both directions
        weight = torch.eye(hidden, memory)
        bias = torch.zeros(hidden)
    else:
        raise unsupported(
            converter.place,
            f"model.decoder.init_hidden: last if the encoder's size ({memory}) differs from the "
            f"decoder's ({hidden})",
        )
    weights = {}
    for state in ("hidden", "cell") if decoder.rnn_type == "lstm" else ("hidden",):
        weights[f"bridge.{state}.weight"] = weight.repeat(decoder.num_layers, 1)
        weights[f"bridge.{state}.bias"] = bias.repeat(decoder.num_layers)
    return "tanh" if decoder.init_hidden == "bridge" else "linear", weights
