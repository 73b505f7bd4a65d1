"""Pictures: heat-maps, explorers and curves, through matplotlib or as HTML that needs nothing but a browser."""

from nmtkit.pictures.attention import AttentionPicture, HeadsPicture, SourceWindow
from nmtkit.pictures.drawing import FigureStyle
from nmtkit.pictures.heatmaps import save
from nmtkit.pictures.pages import picture_format

__all__ = ["AttentionPicture", "FigureStyle", "HeadsPicture", "SourceWindow", "picture_format", "save"]
