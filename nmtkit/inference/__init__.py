"""Translates and summarizes text with trained models, and shows their attention."""

from typing import TYPE_CHECKING

from nmtkit.core.registry import lazy_names

if TYPE_CHECKING:
    from nmtkit.inference.long_texts import ParagraphTranslator as ParagraphTranslator
    from nmtkit.inference.long_texts import Summarizer as Summarizer
    from nmtkit.inference.translator import Translator as Translator

# Imported lazily, so that translating a line does not load the modules for long texts.
__getattr__ = lazy_names(
    __name__,
    {"ParagraphTranslator": "long_texts", "Summarizer": "long_texts", "Translator": "translator"},
)
