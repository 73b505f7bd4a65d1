"""The contract of a task: all that differs between those that a recipe can name."""

from dataclasses import dataclass

from nmtkit.core.columns import Column
from nmtkit.core.registry import Registry

TASKS: Registry["Task"] = Registry("task")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task."""

    name: str
    command: str
    """The command that does the task with a trained model."""
    columns: tuple[Column, ...]
    """What an example consists of."""
    sides: tuple[str, str]
    """The texts of the two sides, in the plural."""
    done: str
    result: str
    """What was done with a line ("translated"), and what it became ("translation")."""
    fields: tuple[str, str]
    """The keys of the two sides in JSON lines."""
    validation_metrics: tuple[str, ...]
    """The metrics of validation beside `loss` and `perplexity`; a recipe may name others."""
    test_metrics: tuple[str, ...]
    """The metrics of the test set."""
    monolingual: bool = False
    """Whether both sides are in one language: then the target is short, and an empty one is a fault."""
    truncates_sources: bool = False
    """Whether a model that was trained on the beginnings of sources reads the beginnings; else it reads all."""
    demo: str = ""
    """The recipe that shows it; empty where there is none."""
    presets: str = ""
    """How the names of its presets begin, before the size; empty where it has none."""
