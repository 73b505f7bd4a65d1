"""Pictures: heat-maps, explorers and curves, through matplotlib or as HTML that needs nothing but a browser."""

from nmtkit.pictures.attended import AttentionPicture, LayeredPicture, SourceWindow
from nmtkit.pictures.files import FORMATS, PictureWarning, picture_format
from nmtkit.pictures.heatmaps import save

__all__ = [
    "FORMATS",
    "AttentionPicture",
    "LayeredPicture",
    "PictureWarning",
    "SourceWindow",
    "picture_format",
    "save",
]
