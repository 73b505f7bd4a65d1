"""A converted model, as the readers of other toolkits return it."""

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
    """Sentences for the user about what was not imported."""
    task: str = TRANSLATION.name
    licence: str | None = None
    variants: Mapping[str, TaskVariant] = field(default_factory=dict)
    """By the model's own name of a task, such as translation_en_to_de."""
    search_source: str = ""
    """The origin of the search settings, for a message such as "as config.json says"; by default the toolkit."""


READERS: Registry[Callable[[Path], ImportedModel]] = Registry(
    "toolkit",
    {
        "huggingface": "nmtkit.convert.huggingface.importing",
        "joeynmt": "nmtkit.convert.joey",
        "opennmt-py": "nmtkit.convert.opennmt",
    },
)
"""The reader of a folder or checkpoint, by toolkit."""
