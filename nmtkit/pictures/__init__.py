"""Pictures: heat-maps, explorers and curves, through matplotlib or as HTML that needs nothing but a browser."""

from nmtkit.pictures.attended import AttentionPicture, LayeredPicture, SourceWindow
from nmtkit.pictures.files import FORMATS, PictureWarning, picture_format
from nmtkit.pictures.heatmaps import save
from nmtkit.pictures.merging import merge_gates, merge_subwords, merge_windows

__all__ = [
    "FORMATS",
    "AttentionPicture",
    "LayeredPicture",
    "PictureWarning",
    "SourceWindow",
    "merge_gates",
    "merge_subwords",
    "merge_windows",
    "picture_format",
    "save",
]
