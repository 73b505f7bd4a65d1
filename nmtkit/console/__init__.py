"""The terminal: lines, tables, bars and the displays of progress; `shading` draws attention. The only door to rich."""

from nmtkit.console.displays import LineProgress, TrainingDisplay, WorkDisplay
from nmtkit.console.tables import Stream, copying, histogram, say, table

__all__ = ["LineProgress", "Stream", "TrainingDisplay", "WorkDisplay", "copying", "histogram", "say", "table"]
