"""Pictures: heat-maps, explorers and curves, through matplotlib or as HTML that needs nothing but a browser."""

from nmtkit.pictures.attention import AttentionPicture, HeadsPicture, SourceWindow
from nmtkit.pictures.drawing import FigureStyle
from nmtkit.pictures.fonts import PictureWarning
from nmtkit.pictures.heatmaps import save
from nmtkit.pictures.pages import FORMATS, picture_format

__all__ = [
    "FORMATS",
    "AttentionPicture",
    "FigureStyle",
    "HeadsPicture",
    "PictureWarning",
    "SourceWindow",
    "picture_format",
    "save",
]
