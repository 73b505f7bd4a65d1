"""Terminal output: lines, tables, bars, heat maps and progress displays. Only this package imports rich."""

from nmtkit.cli.terminal.displays import LineProgress, ProgressDisplay, TrainingDisplay
from nmtkit.cli.terminal.tables import histogram, say, table, tee

__all__ = ["LineProgress", "ProgressDisplay", "TrainingDisplay", "histogram", "say", "table", "tee"]
