"""nmtkit: neural machine translation and summarization in PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nmtkit.version import __version__

if TYPE_CHECKING:
    from nmtkit.experiment.run import Run as Run
    from nmtkit.recipe import Recipe as Recipe
    from nmtkit.translation.translator import Translator as Translator

__all__ = ["Recipe", "Run", "Translator", "__version__"]


def __getattr__(name: str) -> Any:
    """Imports `Recipe`, `Run` and `Translator` on use, so that `nmtkit --help` needs no torch."""
    rooms = {"Recipe": "recipe", "Run": "experiment.run", "Translator": "experiment.opening"}
    if name not in rooms:
        raise AttributeError(f"module 'nmtkit' has no attribute {name!r}")
    return getattr(import_module(f"nmtkit.{rooms[name]}"), name)
