"""nmtkit: neural machine translation and summarization in PyTorch."""

from typing import TYPE_CHECKING

from nmtkit.core.openmp import limit_spinning
from nmtkit.core.registry import lazy_names
from nmtkit.core.version import __version__

if TYPE_CHECKING:
    from nmtkit.config import Recipe as Recipe
    from nmtkit.core.user_module import load_user_module as load_user_module
    from nmtkit.experiment.execute import execute as execute
    from nmtkit.experiment.plan import plan as plan
    from nmtkit.inference import ParagraphTranslator as ParagraphTranslator
    from nmtkit.inference import Summarizer as Summarizer
    from nmtkit.inference import Translator as Translator
    from nmtkit.runs.run import Run as Run

limit_spinning()

__all__ = [
    "ParagraphTranslator",
    "Recipe",
    "Run",
    "Summarizer",
    "Translator",
    "__version__",
    "execute",
    "load_user_module",
    "plan",
]

# `nmtkit --help` needs no torch.
__getattr__ = lazy_names(
    __name__,
    {
        "ParagraphTranslator": "inference",
        "Recipe": "config",
        "Run": "runs.run",
        "Summarizer": "inference",
        "Translator": "inference",
        "execute": "experiment.execute",
        "load_user_module": "core.user_module",
        "plan": "experiment.plan",
    },
)
