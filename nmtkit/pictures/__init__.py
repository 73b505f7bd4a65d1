"""Pictures: heat-maps, explorers and curves, through matplotlib or as HTML that needs nothing but a browser."""

from nmtkit.pictures.attention import AttentionPicture, LayeredPicture, Window
from nmtkit.pictures.files import FORMATS, PictureWarning, check_path
from nmtkit.pictures.heatmaps import save
from nmtkit.pictures.words import merge_gates, merge_subwords, merge_windows

__all__ = [
    "FORMATS",
    "AttentionPicture",
    "LayeredPicture",
    "PictureWarning",
    "Window",
    "check_path",
    "merge_gates",
    "merge_subwords",
    "merge_windows",
    "save",
]
