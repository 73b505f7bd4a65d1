"""Converts a checkpoint from another toolkit into the weights of an nmtkit model."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

from nmtkit.convert.external_files import ExternalWeights
from nmtkit.convert.vocabulary import Maps
from nmtkit.convert.weight_names import SUPPRESSED_BIAS, WeightNames
from nmtkit.core.errors import CheckpointError, shorten
from nmtkit.core.settings import parse
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.layers.transformer import SinusoidKind, sinusoids
from nmtkit.models.base import MODELS, ModelConfig
from nmtkit.runs.run import sizes_of
from nmtkit.training.checkpoints.weights import get_weights

C = TypeVar("C", bound=ModelConfig)

_POSITION_TABLES = ("src_positions.table", "tgt_positions.table")
_SINUSOID_TOLERANCE = 4e-3
"""Absolute tolerance for comparing position embeddings; the relative precision of bfloat16."""


@dataclass(frozen=True)
class CheckpointConverter:
    """A checkpoint, the table of its weight names, and the tokenizers of its model.

    Checks the shape of each tensor before reading it.
    """

    place: Path
    """Location of the model's settings, for error messages."""
    weights: ExternalWeights
    names: WeightNames
    tokenizers: Tokenizers
    vocabularies: Maps
    used: set[str] = field(default_factory=set)
    """Names of tensors that were read or that duplicate another tensor."""

    def fault(self, reason: str) -> CheckpointError:
        """Returns the error for weights that do not match the settings."""
        return CheckpointError(
            f"{self.weights.path}: {reason}; the file is damaged, or its settings belong to "
            "a different model"
        )

    def present(self, names: Sequence[str]) -> str:
        """Returns the first of a tied matrix's possible names that the file contains."""
        for name in names:
            if name in self.weights.shapes:
                return name
        raise self.fault(f"the embeddings are missing (looked for {' and '.join(names)})")

    def tensor(self, name: str, shape: tuple[int, ...], optional: bool = False) -> Tensor:
        """Returns a tensor from the file, or zeros if it is `optional` and missing."""
        stored_shape = self.weights.shapes.get(name)
        self.used.add(name)
        if stored_shape is None and optional:
            return torch.zeros(shape)
        if stored_shape != shape:
            if stored_shape is None:
                fault = f"is missing (expected shape {list(shape)})"
            else:
                fault = f"has shape {list(stored_shape)}, but should have {list(shape)}"
            raise self.fault(f"{shorten(repr(name))} {fault}")
        return self.weights.tensor(name)

    def weight(
        self,
        name: str,
        shape: tuple[int, ...],
        optional: Callable[[str], bool] = lambda name: False,
    ) -> Tensor:
        """Returns one of our weights, read according to the table; missing `optional` tensors are zero."""
        stored = self.names.stored(name)
        part_shape = stored.part_shape(shape)
        parts = [self.tensor(part, part_shape, optional(part)) for part in stored.names]
        weight = stored.join(parts)
        if weight.shape != shape:
            raise self.fault(
                f"the parts of {name} have the combined shape {list(weight.shape)}, but should have "
                f"{list(shape)}"
            )
        return weight

    # ------------------------------------------------------------------------------------------------------ words

    def word_weights(
        self,
        width: int,
        hidden: int,
        bias: Tensor | None = None,
        stored_as: Mapping[str, str] | None = None,
    ) -> dict[str, Tensor]:
        """Returns the embeddings `(V,width)`, the output layer `(V,hidden)` and its bias, with our names and row order.

        `stored_as` overrides the table: it maps our names to names in the file.
        """
        src = self._stored_words("src_embedding.weight", stored_as)
        tgt = self._stored_words("tgt_embedding.weight", stored_as)
        output = self._stored_words("output.weight", stored_as)
        src_embedding = self.words(src, width, side=0)
        is_shared = src == tgt and self.vocabularies[0] is self.vocabularies[1]
        tgt_embedding = src_embedding if is_shared else self.words(tgt, width)
        return {
            "src_embedding.weight": src_embedding,
            "tgt_embedding.weight": tgt_embedding,
            "output.weight": tgt_embedding if output == tgt else self.words(output, hidden),
            "output.bias": self.output_bias(bias),
        }

    def words(self, name: str, columns: int, side: int = 1) -> Tensor:
        """Returns a matrix with one row per token, in our row order."""
        vocabulary = self.vocabularies[side]
        matrix = self.tensor(name, (vocabulary.size, columns))
        ordered = matrix[vocabulary.rows.clamp(max=vocabulary.size - 1)]
        ordered[vocabulary.rows == vocabulary.size] = 0.0
        return ordered

    def output_bias(self, bias: Tensor | None = None) -> Tensor:
        """Returns the output bias in our row order: zero by default, and very low for suppressed tokens."""
        vocabulary = self.vocabularies[1]
        bias = torch.zeros(vocabulary.size) if bias is None else bias
        ordered = torch.cat([bias, torch.tensor([SUPPRESSED_BIAS])])[vocabulary.rows]
        ordered[vocabulary.suppressed] = SUPPRESSED_BIAS
        return ordered

    def _stored_words(self, name: str, stored_as: Mapping[str, str] | None) -> str:
        """Returns the file's name for one of our token matrices."""
        if stored_as is not None and name in stored_as:
            return stored_as[name]
        return self.names.theirs(name)

    def _tie(self, weights: Mapping[str, Tensor]) -> str:
        """Returns the `tie` setting of a model with these token matrices."""
        embedding = weights["tgt_embedding.weight"]
        shares_embeddings = self.tokenizers.shared and torch.equal(
            weights["src_embedding.weight"], embedding
        )
        if torch.equal(embedding, weights["output.weight"]):
            return "all" if shares_embeddings else "decoder"
        return "embeddings" if shares_embeddings else "none"

    # -------------------------------------------------------------------------------------------------- positions

    def positions(self, width: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns the settings of the file's position embeddings, and the tables `(P,H)` under our names.

        Both are empty if the file has no position embeddings.
        """
        tables: dict[str, Tensor] = {}
        for name in _POSITION_TABLES:
            table = self._position_table(name, width)
            if table is not None:
                tables[name] = table
        if not tables:
            return {}, {}
        kinds = {_position_kind(table) for table in tables.values()}
        if len(kinds) == 1 and kinds != {"learned"}:
            return {"positions": kinds.pop()}, tables
        if len(tables) < len(_POSITION_TABLES):
            raise self.fault("only one side has learned position embeddings")
        sizes = {len(table) for table in tables.values()}
        return {"positions": "learned", "max_positions": max(sizes)}, tables

    def learned_positions(self, width: int) -> dict[str, Tensor]:
        """Returns the tables of learned position embeddings `(P,width)` by our names; the file determines P."""
        tables = {}
        for name in _POSITION_TABLES:
            stored = self.names.stored(name)
            rows, *_ = self.weights.shapes.get(stored.names[0], (0,))
            tables[name] = self.weight(name, (rows - stored.unread_rows, width))
        return tables

    def require_sinusoids(self, width: int) -> None:
        """Rejects position embeddings that are not sinusoidal."""
        for name in _POSITION_TABLES:
            table = self._position_table(name, width)
            if table is not None and _position_kind(table) != "sinusoidal":
                stored_name = self.names.theirs(name)
                raise self.fault(f"the position embeddings {stored_name!r} are not sinusoidal")

    def _position_table(self, name: str, width: int) -> Tensor | None:
        stored_name = self.names.theirs(name)
        shape = self.weights.shapes.get(stored_name)
        if shape is None:
            return None
        if shape[-1:] != (width,):
            raise self.fault(
                f"{stored_name!r} has shape {list(shape)}, but should have {width} values per position"
            )
        return self.tensor(stored_name, shape).reshape(-1, width)

    # ------------------------------------------------------------------------------------------- the whole model

    def convert(
        self,
        kind: type[C],
        settings: Mapping[str, Any],
        converted: Mapping[str, Tensor],
        unread: Collection[str] = (),
        optional: Callable[[str], bool] = lambda name: False,
    ) -> tuple[C, dict[str, Tensor]]:
        """Returns the settings and all weights of our model.

        Args:
            kind: the class of our model's settings.
            settings: all settings except `tie`, which follows from the token matrices.
            converted: weights that are not stored according to the table, by our names; the model
                may lack some of them.
            unread: tensors of the file that are ignored.
            optional: whether the tensor with this name may be missing from the file; it is then zero.
        """
        tie = {"tie": self._tie(converted)} if "tie" in kind.model_fields else {}
        model = parse(kind, {**settings, **tie}, str(self.place))
        with torch.device("meta"):
            network = MODELS.get(model.kind)(model, sizes_of(self.tokenizers))
        weights = {}
        for name, weight in get_weights(network).items():
            shape = tuple(weight.shape)
            weights[name] = (
                converted[name] if name in converted else self.weight(name, shape, optional)
            )
            if weights[name].shape != shape:
                raise self.fault(
                    f"{name} has shape {list(weights[name].shape)}, but should have {list(shape)}"
                )
        left = self.weights.shapes.keys() - self.used - {*unread}
        if left:
            raise self.fault(f"this kind of model has no weight {shorten(repr(min(left)))}")
        return model, weights


def _position_kind(table: Tensor) -> str:
    for kind in get_args(SinusoidKind):
        expected = sinusoids(len(table), table.shape[1], kind)
        if torch.allclose(table, expected, rtol=0.0, atol=_SINUSOID_TOLERANCE):
            return str(kind)
    return "learned"
