"""Text to text with any model: translations, summaries, and their attention."""

from typing import TYPE_CHECKING

from nmtkit.core.registry import lazy_names

if TYPE_CHECKING:
    from nmtkit.inference.long_texts import ParagraphTranslator as ParagraphTranslator
    from nmtkit.inference.long_texts import Summarizer as Summarizer
    from nmtkit.inference.translator import Translator as Translator

# Translating a line does not import what long texts need.
__getattr__ = lazy_names(
    __name__,
    {"ParagraphTranslator": "long_texts", "Summarizer": "long_texts", "Translator": "translator"},
)
