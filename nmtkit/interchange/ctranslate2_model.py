"""Models of CTranslate2 as runs: Transformers with encoder and decoder, whose parts have counterparts here.

Their words get other ids where PAD, UNK, BOS and EOS do not come first. BOS is what the decoder begins with: the row of
`decoder_start_token`, or zeros, as Marian begins. A row more of zeros stands for those zeros, and is never written.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError, DataError
from nmtkit.core.settings import Settings, parse, parse_json
from nmtkit.core.wording import shortened
from nmtkit.data.tokenizer import WORD_START, TokenizerConfig, TokenizerPair, WordTokenizer
from nmtkit.data.vocabulary import BOS, PAD, SPECIALS, UNK
from nmtkit.interchange.conversion import CTRANSLATE2, NEVER
from nmtkit.interchange.ctranslate2_file import CTranslate2File, ctranslate2_file
from nmtkit.interchange.importing import Imported, cutter_of, license_of, table_of, task_of
from nmtkit.interchange.marian import Table
from nmtkit.interchange.outside import read_foreign, read_foreign_json
from nmtkit.layers.transformer import sinusoids
from nmtkit.models.base import VocabularySizes
from nmtkit.models.transformer import Transformer, TransformerConfig
from nmtkit.runs.saved import sizes_of
from nmtkit.training.weights import weights_of

_ACTIVATIONS = {0: "relu", 2: "silu", 3: "gelu"}
_FREE = {"encoder/embeddings_merge", "decoder/alibi_use_positive_positions", "decoder/scale_alibi"}
"""Numbers that say nothing where there is one embedding and no alibi."""
_SHOWN = ("decoder/alignment_layer", "decoder/alignment_heads")
_ALIKE = ("num_heads", "pre_norm", "activation")
"""What encoder and decoder must have alike."""
_ZERO = {"encoder/multi_query_attention", "decoder/alibi"}
_SIDES = ("source", "target")
_START = "decoder/start_from_zero_embedding"
_SOURCES, _TARGETS, _OUTPUT = "encoder/embeddings_0/weight", "decoder/embeddings/weight", "decoder/projection"
_POSITIONS = {side: f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")}
_EPSILON = 1e-5
"""Of a normalization here, and there where the file says nothing."""


class CTranslate2Config(Settings):
    """The keys of `config.json` that say something here; the others are left unread."""

    unk_token: str = SPECIALS[UNK]
    eos_token: str = "</s>"
    decoder_start_token: str | None = None
    add_source_bos: bool = False
    add_source_eos: bool = False
    layer_norm_epsilon: float | None = None


def read_ctranslate2(folder: Path) -> Imported:
    """A model that CTranslate2's converters or `export` wrote.

    Args:
        folder: with config.json, model.bin, vocabularies, and source.spm and target.spm; without these two a model of
            words.

    Raises:
        CheckpointError: it is of a kind that is not read, or damaged.
    """
    given = read_foreign_json(folder, "config.json")
    known = {key: given[key] for key in CTranslate2Config.model_fields if given.get(key) is not None}
    config = parse(CTranslate2Config, known, str(folder / "config.json"))
    with ctranslate2_file(folder / "model.bin") as file:
        _require_readable(folder / "config.json", config)
        from_zeros = bool(file.scalars.get(_START, 0))
        # Sources of Marian always end so: there the tokenizer is to add it.
        weights = _Weights(file, config.add_source_eos or from_zeros, config.layer_norm_epsilon or _EPSILON)
        weights.require_known()
        tables = _tables(folder, config, weights.sizes(), from_zeros)
        tokenizers, notes = _tokenizers(folder, given, tables)
        model, tensors = weights.done(tokenizers, tables)
    if file.quantized:
        notes.append(
            f"its {file.quantized} weights became float32; what CTranslate2 computes in {file.quantized} may differ a "
            "little"
        )
    search = {
        "beam_size": 2,
        "at_limit": "compete",
        "min_length": 1,
        "max_length": min(256, model.max_positions) if model.positions == "learned" else 256,
        "max_length_ratio": 0.0,
    }
    shape = f"a CTranslate2 model of {model.encoder_layers}+{model.decoder_layers} layers of {model.hidden_size}"
    return Imported(
        "ctranslate2",
        "CTranslate2",
        shape,
        model,
        tensors,
        tokenizers,
        search,
        task_of(given),
        license_of(folder),
        notes,
    )


def _require_readable(place: Path, config: CTranslate2Config) -> None:
    """Refuses what a search here does not do with the beginnings of sentences, by the key."""
    faults = {
        "add_source_bos true": config.add_source_bos,
        "decoder_start_token null": config.decoder_start_token is None,
        f"unk_token {shortened(repr(config.unk_token))}": config.unk_token != SPECIALS[UNK],
    }
    for fault, there in faults.items():
        if there:
            raise CheckpointError(
                f"{place}: {fault} is not read: here sources begin with no token of their own, targets begin with one "
                f"and the same, and {SPECIALS[UNK]} is the unknown token"
            )


# -------------------------------------------------------------------------------------------------------------- words


def _tables(folder: Path, config: CTranslate2Config, sizes: VocabularySizes, from_zeros: bool) -> tuple[Table, Table]:
    """For each side its words, and which rows they have; the row behind the last is that of zeros."""
    shared = _vocabulary(folder, "shared_vocabulary")
    found = []
    for side, rows in (("source", sizes.src), ("target", sizes.tgt)):
        words = _vocabulary(folder, f"{side}_vocabulary") if shared is None else shared
        if words is None:
            raise CheckpointError(
                f"{folder}: no {side}_vocabulary.json, and no shared_vocabulary.json; name the whole folder"
            )
        if len(words) != rows:
            raise CheckpointError(f"{folder}: {len(words):,} {side} tokens, and model.bin has {rows:,}")
        by_name = {word: row for row, word in reversed([*enumerate(words)])}
        end, unknown = (by_name.get(word) for word in (config.eos_token, config.unk_token))
        decodes = shared is not None or side == "target"
        begin = by_name.get(config.decoder_start_token or "") if decodes else by_name.get(SPECIALS[BOS], end)
        if end is None or begin is None or unknown is None:
            names = (config.eos_token, config.decoder_start_token, config.unk_token)
            raise CheckpointError(f"{folder}: one of {shortened(repr(names))} is no {side} token, which is not read")
        if from_zeros and decodes:
            begin = rows
        ids = (by_name.get(SPECIALS[PAD], unknown), begin, end)
        found.append(table_of(folder, dict(enumerate(words)), ids, range(rows)))
    return (found[1], found[1]) if shared is not None else (found[0], found[1])


def _vocabulary(folder: Path, name: str) -> list[str] | None:
    """The tokens by their ids, of a JSON list or of lines; None: there is no such file."""
    path = folder / f"{name}.json"
    if path.exists():
        try:
            found = parse_json(read_foreign(folder, path.name), str(path))
        except DataError as fault:
            raise CheckpointError(str(fault)) from fault
        if not isinstance(found, list) or not all(type(word) is str for word in found):
            raise CheckpointError(f"{path}: not a list of tokens")
        return found
    if not (folder / f"{name}.txt").exists():
        return None
    try:
        lines = read_foreign(folder, f"{name}.txt").decode("utf-8").split("\n")
    except UnicodeDecodeError as fault:
        raise CheckpointError(f"{folder / name}.txt: not UTF-8 text (byte {fault.start})") from fault
    return lines[:-1] if not lines[-1] else lines


def _tokenizers(folder: Path, given: Mapping[str, Any], tables: tuple[Table, Table]) -> tuple[TokenizerPair, list[str]]:
    """Those of SentencePiece models that lie there, or of words; and what the user is to know."""
    src, tgt = tables
    shared, own = src is tgt, given.get("nmtkit")
    told = own.get("tokenizer") if isinstance(own, dict) else None
    told = told if isinstance(told, dict) else {}
    pieces = any((folder / f"{side}.spm").exists() for side in _SIDES)
    settings = {key: told[key] for key in ("lowercase", "normalization") if key in told} | {
        "kind": "marian" if pieces else "word",
        "vocab_size": len(src.vocabulary),
        "tgt_vocab_size": None if shared else len(tgt.vocabulary),
        "joint": shared,
    }
    how = parse(TokenizerConfig, settings, str(folder / "config.json"))
    if pieces:
        one, other = (cutter_of(folder, f"{_SIDES[at]}.spm", how, tables[at]) for at in (0, 1))
        return TokenizerPair(one, other), []
    cutters = [WordTokenizer(how, table.vocabulary) for table in tables]
    pair = TokenizerPair(cutters[0], cutters[0] if shared else cutters[1])
    if told.get("kind") == "word":
        return pair, []
    if told or not all(map(_is_of_words, cutters)):
        raise CheckpointError(
            f"{folder}: source.spm and target.spm are missing, and its tokens are no words as nmtkit cuts them; put "
            "the SentencePiece models that the model was trained with into the folder, under these names"
        )
    return pair, ["no source.spm lies there, and its tokens look like words: text is cut into words"]


def _is_of_words(cutter: WordTokenizer) -> bool:
    """Whether its vocabulary looks like one of words: each is cut as a whole, and few stand within another."""
    words = [word for word in cutter.vocabulary.tokens[len(SPECIALS) :] if not word.startswith("<")]
    letters = [word for word in words if word.removeprefix(WORD_START).isalpha()]
    whole = sum(
        cutter.tokens(word.removeprefix(WORD_START)) == [WORD_START + word.removeprefix(WORD_START)] for word in words
    )
    return whole == len(words) and 4 * sum(word.startswith(WORD_START) for word in letters) > 3 * len(letters)


# ------------------------------------------------------------------------------------------------------------ weights


@dataclass(frozen=True)
class _Weights:
    """Their weights as ours; every shape is compared before a tensor is made."""

    file: CTranslate2File
    source_end: bool
    norm_epsilon: float

    def fault(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.file.weights.path}: {what}")

    def sizes(self) -> VocabularySizes:
        return VocabularySizes(self._shape(_SOURCES, 2)[0], self._shape(_TARGETS, 2)[0], False)

    def require_known(self) -> None:
        """Refuses what a Transformer here has not, by the name that it has there."""
        scalars = self.file.scalars
        both = {f"{side}/{name}" for side in ("encoder", "decoder") for name in (*_ALIKE, "scale_embeddings")}
        for name, value in scalars.items():
            if name not in both | _FREE | _ZERO | {_START, *_SHOWN} or (name in _ZERO and value):
                raise self.fault(f"{shortened(repr(name))} is {value}, and no Transformer here has such a thing")
        for name in _ALIKE:
            one, other = (scalars.get(f"{side}/{name}") for side in ("encoder", "decoder"))
            if one is None or one != other:
                raise self.fault(f"'{name}' of encoder and decoder differ or are missing ({one} and {other})")
        model = self._model("none", {})
        with torch.device("meta"):
            network = Transformer(model, self.sizes())
        places = {_place(name) for name in weights_of(network)}
        if left := self.file.weights.shapes.keys() - places - {*_POSITIONS.values()}:
            raise self.fault(f"{shortened(repr(min(left)))} is there, and no Transformer here has such a thing")
        for name in _POSITIONS.values():
            if name not in self.file.weights.shapes:
                raise self.fault(f"'{name}' is missing: what CTranslate2 takes then has other wavelengths")

    def done(
        self, tokenizers: TokenizerPair, tables: tuple[Table, Table]
    ) -> tuple[TransformerConfig, dict[str, Tensor]]:
        """The settings, and the weights by our names."""
        found = self._words(tables)
        one = tokenizers.shared and torch.equal(found["src_embedding.weight"], found["tgt_embedding.weight"])
        tied = torch.equal(found["tgt_embedding.weight"], found["output.weight"])
        ties = {(True, True): "all", (True, False): "embeddings", (False, True): "decoder", (False, False): "none"}
        width = found["output.weight"].shape[1]
        lengths = {side: self._shape(name, 2)[0] for side, name in _POSITIONS.items()}
        positions = {side: self._tensor(_POSITIONS[side], (length, width)) for side, length in lengths.items()}
        model = self._model(ties[one, tied], positions)
        found |= {"src_positions.table": positions["encoder"], "tgt_positions.table": positions["decoder"]}
        with torch.device("meta"):
            network = Transformer(model, sizes_of(tokenizers))
        own = {}
        for name, tensor in weights_of(network).items():
            own[name] = found[name] if name in found else self._tensor(_place(name), tuple(tensor.shape))
            if own[name].shape != tensor.shape:
                raise self.fault(f"{name} has {list(own[name].shape)} numbers, not {list(tensor.shape)}")
        return model, own

    def _shape(self, name: str, rank: int) -> tuple[int, ...]:
        shape = self.file.weights.shapes.get(name, ())
        if len(shape) != rank:
            raise self.fault(f"'{name}' is missing, or has not {rank} dimensions")
        return shape

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        given = self.file.weights.shapes.get(name)
        if given is None and name.endswith("/bias"):
            return torch.zeros(shape)
        if given != shape:
            has = f"has shape {list(given)}" if given is not None else "is missing"
            raise self.fault(f"{shortened(repr(name))} {has}, and should have {list(shape)}")
        return self.file.weights.tensor(name)

    def _words(self, tables: tuple[Table, Table]) -> dict[str, Tensor]:
        """The matrices of words and the bias of the output, with our rows."""
        sizes, width = self.sizes(), self._shape(_SOURCES, 2)[1]
        src, tgt = tables
        wanted = {
            "src_embedding.weight": (_SOURCES, sizes.src, src.rows),
            "tgt_embedding.weight": (_TARGETS, sizes.tgt, tgt.rows),
            "output.weight": (f"{_OUTPUT}/weight", sizes.tgt, tgt.rows),
        }
        found = {
            name: torch.cat([self._tensor(place, (count, width)), torch.zeros(1, width)])[rows]
            for name, (place, count, rows) in wanted.items()
        }
        bias = torch.cat([self._tensor(f"{_OUTPUT}/bias", (sizes.tgt,)), torch.tensor([NEVER])])[tgt.rows]
        bias[tgt.never] = NEVER
        return found | {"output.bias": bias}

    def _model(self, tie: str, positions: Mapping[str, Tensor]) -> TransformerConfig:
        scalars, shapes = self.file.scalars, self.file.weights.shapes
        activation = scalars["encoder/activation"]
        if activation not in _ACTIVATIONS:
            raise self.fault(f"'encoder/activation' is {activation}; relu (0), swish (2) and gelu (3) are read")
        found: dict[str, Any] = {
            "hidden_size": self._shape(_SOURCES, 2)[1],
            "feed_forward_size": self._shape("encoder/layer_0/ffn/linear_0/weight", 2)[0],
            "heads": scalars["encoder/num_heads"],
            "norm": "pre" if scalars["encoder/pre_norm"] else "post",
            "norm_epsilon": self.norm_epsilon,
            "source_end": self.source_end,
            "scale_embeddings": self._scaled(),
            "tie": tie,
            "activation": _ACTIVATIONS[int(activation)],
        }
        for side in ("encoder", "decoder"):
            numbers = (re.match(rf"{side}/layer_(\d+)/", name) for name in shapes)
            found[f"{side}_layers"] = 1 + max((int(one[1][:9]) for one in numbers if one), default=-1)
        kinds = {_kind_of_positions(table) for table in positions.values()}
        if len(kinds) == 1:
            found["positions"] = kinds.pop()
        if kinds or found.get("positions") == "learned":
            found |= {"positions": "learned", "max_positions": len(positions["encoder"])}
        return parse(TransformerConfig, found | self._alignment(), str(self.file.weights.path))

    def _scaled(self) -> bool:
        """Whether embeddings are scaled: by a flag, which is true if it is missing, or by the number itself."""
        root, found = math.sqrt(self._shape(_SOURCES, 2)[1]), set()
        for side in ("encoder", "decoder"):
            scale = self.file.scalars.get(f"{side}/scale_embeddings", 1)
            scale = (root if scale else 1.0) if isinstance(scale, int) else scale
            if scale != 1.0 and not math.isclose(scale, root, rel_tol=1e-3):
                raise self.fault(f"'{side}/scale_embeddings' is {scale}; 1 and the root of the width are read")
            found.add(scale != 1.0)
        if len(found) > 1:
            raise self.fault("'scale_embeddings' of encoder and decoder differ, which is not read")
        return found.pop()

    def _alignment(self) -> dict[str, Any]:
        """The layer and the heads that are shown, if the model was trained to align by them."""
        layer, heads = (self.file.scalars.get(name, default) for name, default in zip(_SHOWN, (-1, 1), strict=True))
        if (layer, heads) == (-1, 1) or layer < 0:
            return {}
        return {"alignment_layer": int(layer) + 1, "alignment_heads": 1 if heads == 1 else "mean"}


def _kind_of_positions(table: Tensor) -> str:
    for kind, halves in (("sinusoidal", False), ("sinusoidal_halves", True)):
        # As exact as bfloat16 is.
        if torch.allclose(table, sinusoids(len(table), table.shape[1], halves), rtol=0.0, atol=4e-3):
            return kind
    return "learned"


def _place(name: str) -> str:
    """Where one of our weights stands there."""
    module, _, kind = name.rpartition(".")
    side, _, rest = module.partition(".")
    words = {"src_embedding": _SOURCES, "tgt_embedding": _TARGETS, "output": f"{_OUTPUT}/{kind}"}
    if module in words:
        return words[module]
    number, _, part = rest.partition(".")
    place = f"layer_{number}/{CTRANSLATE2[part]}" if part else "layer_norm"
    if "norm" in place.rpartition(".")[2]:
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    place = re.sub(r"[.](\d+)", r"_\1", place).replace(".", "/")
    return f"{side.removesuffix('_norm')}/{place}/{kind}"
