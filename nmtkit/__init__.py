"""nmtkit: neural machine translation and summarization in PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nmtkit.core.openmp import limit_spinning
from nmtkit.core.version import __version__

if TYPE_CHECKING:
    from nmtkit.config import Recipe as Recipe
    from nmtkit.experiment.run import Run as Run
    from nmtkit.inference.long_texts import ParagraphTranslator as ParagraphTranslator
    from nmtkit.inference.long_texts import Summarizer as Summarizer
    from nmtkit.inference.translator import Translator as Translator

limit_spinning()

__all__ = ["ParagraphTranslator", "Recipe", "Run", "Summarizer", "Translator", "__version__"]

_ROOMS = {
    "ParagraphTranslator": "inference.long_texts",
    "Recipe": "config",
    "Run": "experiment.run",
    "Summarizer": "inference.long_texts",
    "Translator": "experiment.loading",
}


def __getattr__(name: str) -> Any:
    """Imports what is in `__all__` on use, so that `nmtkit --help` needs no torch."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'nmtkit' has no attribute {name!r}")
    return getattr(import_module(f"nmtkit.{_ROOMS[name]}"), name)
