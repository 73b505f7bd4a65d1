"""Converts the weights of another toolkit to those of a model here, by a table of the names of its tensors."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

from nmtkit.convert.external_files import ExternalWeights
from nmtkit.convert.vocabulary import Maps
from nmtkit.core.errors import CheckpointError, shorten
from nmtkit.core.settings import parse
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.layers.transformer import SinusoidKind, sinusoids
from nmtkit.models.base import MODELS, ModelConfig
from nmtkit.runs.saved import sizes_of
from nmtkit.tasks.builtin import TRANSLATION
from nmtkit.training.checkpoints.weights import get_weights

C = TypeVar("C", bound=ModelConfig)

SUPPRESSED_BIAS = -1000.0
"""Output bias of a token that must never be written; finite, as all weights are."""

SourceNames = Callable[[str], Sequence[str]]
"""From the name of one of our weights to the toolkit's names of its parts, row upon row."""


@dataclass(frozen=True)
class TaskVariant:
    """The settings of one of the tasks that a model was trained for."""

    task: str
    """Name of the task in nmtkit."""
    search: Mapping[str, Any]
    """As in `ImportedModel`."""
    notes: Sequence[str]
    source_prefix: str
    """Text before every source, by which the model knows the task."""


@dataclass(frozen=True)
class ImportedModel:
    """A model of another toolkit, converted."""

    toolkit: str
    architecture: str
    """What the toolkit calls it."""
    model: ModelConfig
    tensors: Mapping[str, Tensor]
    """By our names."""
    tokenizers: Tokenizers
    search: Mapping[str, Any]
    """The toolkit's search, as `search` settings of a recipe."""
    notes: Sequence[str]
    task: str = TRANSLATION.name
    licence: str | None = None
    variants: Mapping[str, TaskVariant] = field(default_factory=dict)
    """By the model's own name of a task, such as translation_en_to_de."""
    search_source: str = ""
    """The origin of the search settings, for a message such as "as config.json says"; by default the toolkit."""


@dataclass(frozen=True)
class CheckpointConverter:
    """Weights of another toolkit with the tokenizers of their model; each shape is checked before a tensor is read."""

    place: Path
    """Where the model's settings are, for messages."""
    weights: ExternalWeights
    tokenizers: Tokenizers
    vocabularies: Maps
    used: set[str] = field(default_factory=set)

    def fault(self, reason: str) -> CheckpointError:
        """For weights that do not match the settings."""
        return CheckpointError(f"{self.weights.path}: {reason}; it is damaged, or of another model than its settings")

    def present(self, names: Sequence[str]) -> str:
        """Returns the first of these names of one tied matrix that the file has: any one of them is enough."""
        for name in names:
            if name in self.weights.shapes:
                return name
        raise self.fault(f"the embeddings are missing (looked for {' and '.join(names)})")

    def tensor(self, name: str, shape: tuple[int, ...], optional: bool = False) -> Tensor:
        """A tensor of this shape; zeros where an `optional` one is missing."""
        given = self.weights.shapes.get(name)
        self.used.add(name)
        if given is None and optional:
            return torch.zeros(shape)
        if given != shape:
            fault = f"has shape {list(given)}, and" if given is not None else "is missing, and"
            raise self.fault(f"{shorten(repr(name))} {fault} should have {list(shape)}")
        return self.weights.tensor(name)

    def word_weights(
        self, src: str, tgt: str, output: str, width: int, hidden: int, bias: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Both embeddings and the output layer, with our rows and names; what is never written has a low bias."""
        of_src = self.words(src, width, 0)
        shared = src == tgt and self.vocabularies[0] is self.vocabularies[1]
        of_tgt = of_src if shared else self.words(tgt, width)  # what is shared is read once
        return {
            "src_embedding.weight": of_src,
            "tgt_embedding.weight": of_tgt,
            "output.weight": of_tgt if output == tgt else self.words(output, hidden),
            "output.bias": self.output_bias(bias),
        }

    def words(self, name: str, columns: int, side: int = 1) -> Tensor:
        """A matrix of words, one in a row, with our rows."""
        vocabulary = self.vocabularies[side]
        matrix = self.tensor(name, (vocabulary.size, columns))
        ordered = matrix[vocabulary.rows.clamp(max=vocabulary.size - 1)]
        ordered[vocabulary.rows == vocabulary.size] = 0.0
        return ordered

    def output_bias(self, bias: Tensor | None = None) -> Tensor:
        """The bias of the output layer, by default zero, with our rows; low where a token is never written."""
        vocabulary = self.vocabularies[1]
        bias = torch.zeros(vocabulary.size) if bias is None else bias
        ordered = torch.cat([bias, torch.tensor([SUPPRESSED_BIAS])])[vocabulary.rows]
        ordered[vocabulary.suppressed] = SUPPRESSED_BIAS
        return ordered

    def _tie(self, matrices: Mapping[str, Tensor]) -> str:
        tgt, output = (matrices[f"{name}.weight"] for name in ("tgt_embedding", "output"))
        embeddings = self.tokenizers.shared and torch.equal(matrices["src_embedding.weight"], tgt)
        if torch.equal(tgt, output):
            return "all" if embeddings else "decoder"
        return "embeddings" if embeddings else "none"

    def positions(self, tables: Mapping[str, str], width: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The model settings of the position embeddings, and their tables `(P,H)` under our names.

        `tables` has the toolkit's names by ours. Without tables the settings are empty.
        """
        shapes = {ours: self.weights.shapes[name] for ours, name in tables.items() if name in self.weights.shapes}
        converted: dict[str, Tensor] = {}
        for ours, shape in shapes.items():
            if shape[-1:] != (width,):
                raise self.fault(f"{tables[ours]!r} has shape {list(shape)}, not {width} numbers a position")
            converted[ours] = self.tensor(tables[ours], shape).reshape(-1, width)
        kinds = {_position_kind(table) for table in converted.values()}
        if len(kinds) == 1 and kinds != {"learned"}:
            return {"positions": kinds.pop()}, converted
        if kinds and len(shapes) < len(tables):
            raise self.fault("one side has learned positions, and the other has none")
        sizes = {len(table) for table in converted.values()}
        return ({"positions": "learned", "max_positions": max(sizes)} if sizes else {}), converted

    def require_sinusoids(self, tables: Sequence[str], width: int) -> None:
        """Refuses other position tables than sinusoids."""
        for name in tables:
            settings, _ = self.positions({name: name}, width)
            if settings and settings["positions"] != "sinusoidal":
                raise self.fault(f"{name!r} holds other positions than sinusoids, which is not supported")

    def convert(
        self,
        kind: type[C],
        settings: Mapping[str, Any],
        own: Mapping[str, Tensor],
        source_names: SourceNames,
        ignored: Collection[str] = (),
        optional: Callable[[str], bool] = lambda _: False,
    ) -> tuple[C, dict[str, Tensor]]:
        """The settings of our model, and all its weights.

        Args:
            kind: of our model.
            settings: all but `tie`, which the weights of words tell.
            own: weights that are made already, by our names; the model need not have all of them.
            source_names: the parts of the others.
            ignored: the toolkit's tensors that may be left over.
            optional: whether one of its tensors may be missing, and is zero then.
        """
        tie = {"tie": self._tie(own)} if "tie" in kind.model_fields else {}
        model = parse(kind, {**settings, **tie}, str(self.place))
        with torch.device("meta"):
            network = MODELS.get(model.kind)(model, sizes_of(self.tokenizers))
        converted = {}
        for name, weight in get_weights(network).items():
            shape = tuple(weight.shape)
            if name in own:
                converted[name] = own[name]
            else:
                parts = source_names(name)
                part_shape = (shape[0] // len(parts), *shape[1:])
                converted[name] = torch.cat([self.tensor(part, part_shape, optional(part)) for part in parts])
            if converted[name].shape != shape:
                raise self.fault(f"{name}: its parts have {list(converted[name].shape)} numbers, not {list(shape)}")
        if left := self.weights.shapes.keys() - self.used - {*ignored}:
            raise self.fault(f"{shorten(repr(min(left)))} is not part of such a model")
        return model, converted


def _position_kind(table: Tensor) -> str:
    for kind in get_args(SinusoidKind):
        # As exact as bfloat16 is.
        if torch.allclose(table, sinusoids(len(table), table.shape[1], kind), rtol=0.0, atol=4e-3):
            return str(kind)
    return "learned"


def transformer_names(encoder: str, decoder: str, modules: Mapping[str, Sequence[str]]) -> SourceNames:
    """Names of the weights of Transformer layers.

    `encoder` and `decoder` are the toolkit's lists of layers; the last normalization is `layer_norm` beside each.
    `modules` has, by our module of a layer, those among which its rows are divided; a name for one side begins with it.
    """
    stacks = {"encoder": encoder, "decoder": decoder}

    def source_names(name: str) -> list[str]:
        module, _, kind = name.rpartition(".")
        side, _, module = module.partition(".")
        if not module:  # encoder_norm or decoder_norm
            return [f"{stacks[side.removesuffix('_norm')].rpartition('.')[0]}.layer_norm.{kind}".removeprefix(".")]
        number, _, module = module.partition(".")
        parts = modules[f"{side}.{module}" if f"{side}.{module}" in modules else module]
        return [f"{stacks[side]}.{number}.{part}.{kind}" for part in parts]

    return source_names


def recurrent_names(others: Mapping[str, str], decoder: str = "decoder.rnn.{kind}_l{layer}") -> SourceNames:
    """Names of the weights of a recurrent model whose encoder is a module `rnn` of torch.

    `others` has the toolkit's names of weights that are of no recurrent layer, by ours.
    """

    def source_names(name: str) -> list[str]:
        if match := re.fullmatch(r"encoder\.(forward|backward)_layers\.(\d+)\.(\w+)_l0", name):
            direction, layer, kind = match.groups()
            return [f"encoder.rnn.{kind}_l{layer}{'_reverse' if direction == 'backward' else ''}"]
        if match := re.fullmatch(r"decoder\.(\w+)_l(\d+)", name):
            return [decoder.format(kind=match[1], layer=match[2])]
        return [others[name]]

    return source_names
