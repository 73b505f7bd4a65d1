"""The interface of a `transformers` model family: reads its folders and returns weights under public names."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.convert.external_files import ExternalWeights
from nmtkit.convert.imported_model import ImportedModel
from nmtkit.convert.weight_names import SUPPRESSED_BIAS, WeightNames
from nmtkit.core.errors import NmtkitError
from nmtkit.core.registry import Registry
from nmtkit.data.tokenizers.huggingface_tokenizer import HuggingFaceTokenizer
from nmtkit.models.base import Model
from nmtkit.training.checkpoints.weights import get_weights

ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
"""Our names for the activations of `transformers`."""

_OUTPUT_BIAS = "output.bias"
_WORDS = ("src_embedding.weight", "tgt_embedding.weight", "output.weight")


class PublicWeights:
    """The weights of an imported model, with methods to restore the public model's names and row order."""

    def __init__(self, model: Model, tokenizer: HuggingFaceTokenizer, size: int) -> None:
        self.weights = get_weights(model)
        self.size = size
        self._rows = torch.from_numpy(tokenizer.rows)  # (V,)
        self._shared_rows = tokenizer.shared_rows()

    def tensors(self, names: WeightNames) -> dict[str, Tensor]:
        """Returns all weights by their public names; omits an output bias that is not in `names`."""
        public: dict[str, Tensor] = {}
        for name, weight in self.weights.items():
            if name in _WORDS:
                public[name] = self._words(name, weight)
            elif name != _OUTPUT_BIAS:
                public[name] = weight
            elif name in names:
                public[name] = self._output_bias(weight)
        return names.rename(public)

    def _words(self, name: str, matrix: Tensor) -> Tensor:
        """Returns a matrix `(V,H)` in the public model's row order."""
        for ids in self._shared_rows:
            if not bool((matrix[ids] == matrix[ids[0]]).all()):
                raise NmtkitError(
                    f"{name}: tokens that share a vector in the public model have different vectors "
                    "in this model, for example after training with training.shard or with an older "
                    "version of nmtkit; use --to safetensors"
                )
        public = matrix.new_zeros(self.size, matrix.shape[1])
        has_row = self._rows < self.size
        public[self._rows[has_row]] = matrix[has_row]
        return public

    def _output_bias(self, bias: Tensor) -> Tensor:
        """Returns the output bias `(V,)` in the public model's row order."""
        public = bias.new_zeros(self.size)
        is_written = (bias > SUPPRESSED_BIAS) & (self._rows < self.size)
        public[self._rows[is_written]] = bias[is_written]
        return public


class Family(ABC):
    """The models of one `model_type`."""

    model_type: str

    @abstractmethod
    def read(self, folder: Path) -> ImportedModel:
        """Converts a folder that contains `config.json`, weights and tokenizers."""

    def tensors(self, public: PublicWeights, config: Mapping[str, Any]) -> dict[str, Tensor]:
        """Returns an imported model's tensors by their names in `transformers`; `config` is its `config.json`."""
        raise NmtkitError(
            f"models of type {self.model_type} cannot be exported to huggingface; use --to "
            "safetensors"
        )


FAMILIES: Registry[type[Family]] = Registry(
    "model type",
    {
        "bart": "nmtkit.convert.huggingface.bart",
        "bert": "nmtkit.convert.huggingface.bert",
        "gpt2": "nmtkit.convert.huggingface.gpt2",
        "m2m_100": "nmtkit.convert.huggingface.m2m100",
        "marian": "nmtkit.convert.huggingface.marian",
        "mbart": "nmtkit.convert.huggingface.bart",
        "mt5": "nmtkit.convert.huggingface.t5",
        "pegasus": "nmtkit.convert.huggingface.bart",
        "t5": "nmtkit.convert.huggingface.t5",
    },
)
"""The families by `model_type` in `config.json`."""


def renamed(weights: ExternalWeights, names: Mapping[str, str]) -> ExternalWeights:
    """Renames the weights; `names` maps new names to names in the file."""
    return ExternalWeights(
        path=weights.path,
        shapes={name: weights.shapes[stored_name] for name, stored_name in names.items()},
        read=lambda name: weights.read(names[name]),
    )
