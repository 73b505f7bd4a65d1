"""Figures: heat maps, explorers and curves, drawn with matplotlib or written as self-contained HTML."""

from nmtkit.plots.attention import AttentionPicture, HeadsPicture, SourceWindow
from nmtkit.plots.drawing import FigureStyle
from nmtkit.plots.heatmaps import save
from nmtkit.plots.pages import picture_format

__all__ = [
    "AttentionPicture",
    "FigureStyle",
    "HeadsPicture",
    "SourceWindow",
    "picture_format",
    "save",
]
