"""A converted model, as returned by the readers for other toolkits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from nmtkit.config.tasks.builtin import TRANSLATION
from nmtkit.core.registry import Registry
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.models.base import ModelConfig


@dataclass(frozen=True)
class TaskVariant:
    """Settings for one of the tasks that a model was trained for."""

    task: str
    """Name of the task in nmtkit."""
    search: Mapping[str, Any]
    """Search settings that override `ImportedModel.search`."""
    notes: Sequence[str]
    """Notes for the user; see `ImportedModel.notes`."""
    source_prefix: str
    """Text put before every source to select the task."""


@dataclass(frozen=True)
class ImportedModel:
    """A converted model from another toolkit."""

    toolkit: str
    architecture: str
    """The toolkit's name for the architecture."""
    model: ModelConfig
    tensors: Mapping[str, Tensor]
    """Weights under our names."""
    tokenizers: Tokenizers
    search: Mapping[str, Any]
    """The toolkit's search settings, converted to `search` settings of a recipe."""
    notes: Sequence[str]
    """Notes for the user about what was not imported."""
    task: str = TRANSLATION.name
    licence: str | None = None
    variants: Mapping[str, TaskVariant] = field(default_factory=dict)
    """Tasks by the names that the model uses, such as translation_en_to_de."""
    search_source: str = ""
    """Origin of the search settings, for messages; empty means the toolkit."""


READERS: Registry[Callable[[Path], ImportedModel]] = Registry(
    "toolkit",
    {
        "huggingface": "nmtkit.convert.huggingface.importing",
        "joeynmt": "nmtkit.convert.joey",
        "opennmt-py": "nmtkit.convert.opennmt",
    },
)
"""Readers of folders or checkpoints, by toolkit."""
