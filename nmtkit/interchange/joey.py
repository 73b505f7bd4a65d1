"""Models of Joey NMT (Kreutzer et al. 2019), version 2, as runs: config.yaml, a checkpoint, and the vocabularies."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.core.settings import Beam, Depth, Field, Length, Settings, Width, load_yaml, parse
from nmtkit.data.tokenizer import WORD_START
from nmtkit.interchange.importing import Imported
from nmtkit.interchange.outside import ForeignWeights, named_tensors, read_foreign, unpickled
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

_EPSILON = 1e-6
"""Of its normalizations."""
_REMEDY = "save what is under model_state alone, with torch.save({'model_state': ...})"

_LAYERS = {
    "encoder": {
        "self_attention.query_keys_values": ("src_src_att.q_layer", "src_src_att.k_layer", "src_src_att.v_layer"),
        "self_attention.out": ("src_src_att.output_layer",),
        "around_self_attention.norm": ("layer_norm",),
    },
    "decoder": {
        "self_attention.query_keys_values": ("trg_trg_att.q_layer", "trg_trg_att.k_layer", "trg_trg_att.v_layer"),
        "self_attention.out": ("trg_trg_att.output_layer",),
        "around_self_attention.norm": ("x_layer_norm",),
        "cross_attention.query": ("src_trg_att.q_layer",),
        "cross_attention.keys_values": ("src_trg_att.k_layer", "src_trg_att.v_layer"),
        "cross_attention.out": ("src_trg_att.output_layer",),
        "around_cross_attention.norm": ("dec_layer_norm",),
    },
}
"""Of a layer: our module, and those of theirs among which its rows are shared out."""
_FEED_FORWARD = {
    "feed_forward.inner": ("feed_forward.pwff_layer.0",),
    "feed_forward.out": ("feed_forward.pwff_layer.3",),
    "around_feed_forward.norm": ("feed_forward.layer_norm",),
}


class _Embeddings(Settings):
    embedding_dim: Width = Field(ge=1)
    scale: bool = False


class _Stack(Settings):
    """The encoder or the decoder; what only one kind has is None unless it is given."""

    type: Literal["recurrent", "transformer"] | None = None
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
    attention: Literal["bahdanau", "luong"] = "bahdanau"
    init_hidden: Literal["bridge", "zero", "last"] = "bridge"
    input_feeding: bool = True


class _Model(Settings):
    encoder: _Stack
    decoder: _Stack
    tied_embeddings: bool = False


class _Pieces(Settings):
    model_file: str | None = None
    pretokenizer: Literal["none"] = "none"


class _Side(Settings):
    level: str
    lowercase: bool = False
    normalize: Literal[False] = False
    tokenizer_type: str | None = None
    bpe_type: str | None = None
    tokenizer_cfg: _Pieces = _Pieces()


class _Specials(Settings):
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


class _Data(Settings):
    src: _Side
    trg: _Side
    special_symbols: _Specials = _Specials()


class _Testing(Settings):
    beam_size: Beam = Field(default=1, ge=1)
    beam_alpha: float = -1.0
    min_output_length: Length = Field(default=1, ge=0)
    max_output_length: Length = -1
    no_repeat_ngram_size: int = -1
    repetition_penalty: float = -1.0
    generate_unk: bool = True

    def search(self) -> dict[str, Any]:
        """How it searches, as a recipe says it; without a limit theirs is by the longest source of a batch."""
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

    def notes(self) -> list[str]:
        """What it does beside that."""
        keys = {
            "repetition_penalty": self.repetition_penalty > 1,
            "no_repeat_ngram_size": self.no_repeat_ngram_size > 1,
        }
        found = ", ".join(key for key, there in keys.items() if there)
        what = "repetition_penalty is not read, and no_repeat_ngram_size blocks n-grams of the target alone"
        return [f"testing: {found}: {what}; Joey NMT may find other texts"] if found else []


class JoeyConfig(Settings):
    """The keys of `config.yaml` that say something here; the others are left unread."""

    model: _Model
    data: _Data
    testing: _Testing = _Testing()


def read_joey(folder: Path) -> Imported:
    """A model of Joey NMT, to be made a run.

    Args:
        folder: with config.yaml, best.ckpt or latest.ckpt, src_vocab.txt and trg_vocab.txt, and sentencepiece's model
            if there is one.

    Raises:
        NmtkitError: something is missing or damaged, or has no counterpart here; the message names it.
    """
    place = folder / "config.yaml"
    read_foreign(folder, place.name)  # says what is wrong with it, and waits for no pipe
    given, places = load_yaml(place)
    config = parse(JoeyConfig, known_keys(JoeyConfig, given), str(place), places)
    src, tgt = (_words(folder / name, config.data.special_symbols) for name in ("src_vocab.txt", "trg_vocab.txt"))
    pieces, notes = _models(folder, config.data, place, any(WORD_START in word for word in tgt.tokens))
    tokenizers, tables = foreign_tokenizers(src, tgt, pieces, config.data.src.lowercase, restrict=True)
    theirs = ForeignModel(_weights(folder), tokenizers, tables)
    kinds = (config.model.encoder.type or "recurrent", config.model.decoder.type or "transformer")
    if kinds[0] != kinds[1]:
        raise _refused(place, "model.decoder.type", f"{kinds[1]} over an encoder that is {kinds[0]}")
    model, tensors = (_transformer if kinds[0] == "transformer" else _recurrent)(theirs, config.model, place)
    sides = config.model.encoder, config.model.decoder
    shape = f"{'+'.join(str(side.num_layers) for side in sides)} layers of {sides[1].hidden_size}"
    shape, search = f"a {kinds[0]} of Joey NMT of {shape}", config.testing.search()
    notes += config.testing.notes()
    return Imported("joeynmt", f"Joey NMT {kinds[0]}", shape, model, tensors, tokenizers, search, notes=notes)


def _refused(place: Path, key: str, what: str, remedy: str = "") -> CheckpointError:
    return CheckpointError(f"{place}: {key}: {what}, which is not read{remedy and '; '}{remedy}")


# --------------------------------------------------------------------------------------------------------------- words


def _models(folder: Path, data: _Data, place: Path, cut: bool) -> tuple[tuple[Path, Path] | None, list[str]]:
    """Where the sentencepiece models lie; None where words or pieces stand between blanks, and what to say then.

    Args:
        folder: of all files.
        data: its settings.
        place: what a message calls these.
        cut: whether the words are pieces.
    """
    if data.src.lowercase != data.trg.lowercase:
        raise _refused(place, "data.trg.lowercase", "not the same on both sides")
    found: list[str | None] = []
    for name, side in (("src", data.src), ("trg", data.trg)):
        how = side.tokenizer_type or side.bpe_type or "sentencepiece"
        if side.level == "word":
            found.append(None)
        elif side.level == "bpe" and how == "sentencepiece" and side.tokenizer_cfg.model_file:
            found.append(Path(side.tokenizer_cfg.model_file).name)
        elif side.level == "bpe" and how == "subword-nmt":
            remedy = "cut the text with subword-nmt yourself, and set level to word"
            raise _refused(place, f"data.{name}.tokenizer_type", "subword-nmt", remedy)
        else:
            what = repr(side.level) if side.level != "bpe" else "bpe without tokenizer_cfg.model_file"
            raise _refused(place, f"data.{name}.level", what, "what is read: word, and bpe of sentencepiece")
    src, tgt = found
    if (src is None) != (tgt is None):
        raise _refused(place, "data.trg.level", "not the same on both sides")
    if not cut and src is None:
        return None, []
    return piece_models(folder, [src or "source.model", tgt or "target.model"])


def _words(path: Path, special: _Specials) -> ForeignWords:
    """A vocabulary, a token a line; as there, special tokens that it lacks come first."""
    try:
        lines = read_foreign(path.parent, path.name).decode("utf-8").split("\n")
    except UnicodeDecodeError as fault:
        raise CheckpointError(f"{path}: not UTF-8 at byte {fault.start}; get it again") from fault
    marks = {
        special.unk_token: special.unk_id,
        special.pad_token: special.pad_id,
        special.bos_token: special.bos_id,
        special.eos_token: special.eos_id,
    }
    tokens = [*dict.fromkeys([*marks, *(line for line in lines if line)])]
    for token, row in marks.items():
        if not 0 <= row < len(tokens) or tokens[row] != token:
            raise CheckpointError(f"{path}: {token!r} has not the id {row}, which special_symbols give it")
    unknown, padding, start, end = marks.values()
    return ForeignWords(path, tokens, unknown, padding, start, end)


# ------------------------------------------------------------------------------------------------------------- weights


def _weights(folder: Path) -> ForeignWeights:
    names = ("best.ckpt", "latest.ckpt")
    path = next((folder / name for name in names if (folder / name).exists()), None)
    if path is None:
        raise CheckpointError(f"{folder}: no weights: none of {', '.join(names)} is there; copy the whole folder")
    found = unpickled(path, remedy=_REMEDY)
    if not isinstance(found, dict) or "model_state" not in found:
        raise CheckpointError(f"{path}: holds no model_state, so it is no checkpoint of Joey NMT")
    return ForeignWeights.of(path, named_tensors(path, found["model_state"], _REMEDY))


def _embeddings(theirs: ForeignModel, width: int, hidden: int) -> dict[str, Tensor]:
    """The matrices of words."""
    return {
        "src_embedding.weight": theirs.rows("src_embed.lut.weight", width, 0),
        "tgt_embedding.weight": theirs.rows("trg_embed.lut.weight", width, 1),
        "output.weight": theirs.rows("decoder.output_layer.weight", hidden, 1),
        "output.bias": theirs.bias(None),
    }


_WORDS = {"src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"}
_POSITIONS = {"encoder.pe.pe", "decoder.pe.pe"}


def _transformer(theirs: ForeignModel, config: _Model, place: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    left, right = config.encoder, config.decoder
    for key in ("hidden_size", "ff_size", "num_heads", "layer_norm", "activation"):
        one, other = getattr(left, key), getattr(right, key)
        if one != other:
            raise _refused(place, f"model.decoder.{key}", f"{other} beside {one} in the encoder")
        if one is None and key != "activation":
            raise _refused(place, f"model.encoder.{key}", "not said", "say how it was trained")
    scale = left.embeddings.scale
    if not config.tied_embeddings and right.embeddings.scale != scale:
        raise _refused(place, "model.decoder.embeddings.scale", "not the same on both sides")
    own = _embeddings(theirs, left.hidden_size, left.hidden_size)
    activation = left.activation or "relu"
    given = {
        "hidden_size": left.hidden_size,
        "feed_forward_size": left.ff_size,
        "heads": left.num_heads,
        "encoder_layers": left.num_layers,
        "decoder_layers": right.num_layers,
        "dropout": left.dropout,
        "attention_dropout": left.dropout,
        "activation_dropout": left.dropout,
        "norm": left.layer_norm,
        "norm_epsilon": _EPSILON,
        "scale_embeddings": scale,
        "tie": theirs.tie(own["src_embedding.weight"], own["tgt_embedding.weight"], own["output.weight"]),
        "activation": {"swish": "silu"}.get(activation, activation),
    }
    model = parse(TransformerConfig, given, str(place))
    for name in sorted(_POSITIONS):
        theirs.check_sinusoids(name, left.hidden_size)
    return model, theirs.joined(model, own, _places, _WORDS | _POSITIONS)


def _places(name: str) -> list[str]:
    """Where the parts of one of our weights of the layers stand."""
    side, _, rest = name.partition(".")
    module, _, kind = rest.rpartition(".")
    if side in ("encoder_norm", "decoder_norm"):
        return [f"{side.removesuffix('_norm')}.layer_norm.{kind}"]
    number, _, module = module.partition(".")
    of_layer: Mapping[str, tuple[str, ...]] = _LAYERS[side] | _FEED_FORWARD
    return [f"{side}.layers.{number}.{theirs}.{kind}" for theirs in of_layer[module]]


# ---------------------------------------------------------------------------------------------------- recurrent models


def _recurrent(theirs: ForeignModel, config: _Model, place: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Their decoder updates, then looks, whichever attention it has: that is a Luong model."""
    left, right = config.encoder, config.decoder
    width, hidden, memory = left.embeddings.embedding_dim, right.hidden_size, 2 * left.hidden_size
    if right.embeddings.embedding_dim != width:
        raise _refused(place, "model.decoder.embeddings.embedding_dim", "not the same on both sides")
    if left.rnn_type != right.rnn_type:
        raise _refused(place, "model.decoder.rnn_type", "not that of the encoder")
    for side, stack in (("encoder", left), ("decoder", right)):
        if stack.embeddings.scale:
            raise _refused(place, f"model.{side}.embeddings.scale", "true in a recurrent model")
    if right.activation not in (None, "tanh"):
        raise _refused(place, "model.decoder.activation", f"{right.activation} in a recurrent model")
    own = _embeddings(theirs, width, hidden)
    query_first = theirs.tensor("decoder.att_vector_layer.weight", (hidden, hidden + memory))
    own["attentional.weight"] = torch.cat([query_first[:, hidden:], query_first[:, :hidden]], 1)
    read = {*_WORDS, "decoder.att_vector_layer.weight"}
    additive = right.attention == "bahdanau"
    if additive:
        energy = "decoder.attention.energy_layer.weight"
        own |= {"attention.score.energy": theirs.tensor(energy, (1, hidden))[0]}
        own |= {"attention.score.key.bias": torch.zeros(hidden)}
        read |= {energy}
    bridge, of_bridge = _bridge(theirs, right, memory, place)
    if right.init_hidden == "bridge":
        read |= {f"decoder.bridge_layer.{kind}" for kind in ("weight", "bias")}
    given = {
        "embedding_size": width,
        "hidden_size": hidden,
        "encoder_hidden_size": left.hidden_size,
        "layers": right.num_layers,
        "encoder_layers": left.num_layers,
        "cell": left.rnn_type,
        "bidirectional": True,
        "dropout": left.dropout,
        "tie": theirs.tie(own["src_embedding.weight"], own["tgt_embedding.weight"], own["output.weight"]),
        "bridge": bridge,
        "score": "additive" if additive else "general",
        "attention_size": hidden,
        "input_feeding": right.input_feeding,
        "attentional_bias": True,
    }
    model = parse(LuongConfig, given, str(place))
    return model, theirs.joined(model, own | of_bridge, _recurrent_places, read)


def _bridge(theirs: ForeignModel, side: _Stack, memory: int, place: Path) -> tuple[str, dict[str, Tensor]]:
    """What makes the decoder's first state: all its layers, and an LSTM's memory cells, begin alike there."""
    if side.init_hidden == "zero":
        return "zero", {}
    size = (side.hidden_size, memory)
    if side.init_hidden == "bridge":
        weight = theirs.tensor("decoder.bridge_layer.weight", size)
        bias = theirs.tensor("decoder.bridge_layer.bias", size[:1])
    elif memory in (side.hidden_size, 2 * side.hidden_size):
        weight, bias = torch.eye(*size), torch.zeros(size[0])
    else:
        raise _refused(place, "model.decoder.init_hidden", f"last of {memory} numbers for {side.hidden_size}")
    one = {"weight": weight.repeat(side.num_layers, 1), "bias": bias.repeat(side.num_layers)}
    parts = ("hidden", "cell") if side.rnn_type == "lstm" else ("hidden",)
    made = {f"bridge.{part}.{kind}": tensor.clone() for part in parts for kind, tensor in one.items()}
    return "tanh" if side.init_hidden == "bridge" else "linear", made


def _recurrent_places(name: str) -> list[str]:
    there = {
        "attentional.bias": "decoder.att_vector_layer.bias",
        "attention.score.key.weight": "decoder.attention.key_layer.weight",
        "attention.score.query.weight": "decoder.attention.query_layer.weight",
    }
    return [recurrent_place(name) or there[name]]
