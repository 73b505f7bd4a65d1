"""The terminal: lines, tables, bars and the displays of progress; `shading` draws attention. The only door to rich."""

from nmtkit.cli.terminal.displays import LineProgress, ProgressDisplay, TrainingDisplay
from nmtkit.cli.terminal.tables import histogram, say, table, tee

__all__ = ["LineProgress", "ProgressDisplay", "TrainingDisplay", "histogram", "say", "table", "tee"]
