"""Tables that several commands show."""

from nmtkit import console
from nmtkit.data.corpus import DataReport


def show_report(report: DataReport) -> None:
    """What preprocessing found in the text, on stderr."""
    rows = [list(row) for row in report.rows()]
    console.table("the data", ["split", "what", "how many", "first line", "and then"], rows, stream="stderr")
