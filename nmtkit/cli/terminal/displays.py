"""Progress of long operations on stderr: live lines at the bottom of a terminal, plain lines elsewhere."""

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Self, TextIO

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn
from rich.table import Column
from rich.text import Text
from typing_extensions import override

from nmtkit.cli.terminal.tables import copy, plain_console, wrapped, write_line

SECONDS_PER_FRAME, SECONDS_BETWEEN_LINES = 0.2, 10.0
"""Minimum number of seconds between two redraws of a live display, and between two plain lines."""
FORMATS = {
    "tokens_per_second": "{:,.0f} tok/s",
    "loss": "loss {:.3f}",
    "ppl": "ppl {:.2f}",
    "learning_rate": "lr {:.2e}",
    "gradient_norm": "grad {:.2f}",
}
"""Formats of metrics by name; other metrics are shown after these, with their names."""


class _Frame(Progress):
    """A line of columns and, below it, the line of metrics if the display has one."""

    @override
    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            yield self.make_tasks_table([task])
            if task.fields["facts"]:
                yield Text(task.fields["facts"], "cyan")


def _fact(name: str, style: str = "none") -> TextColumn:
    """Returns a column for a field of the task; text that does not fit is truncated with "…"."""
    column = Column(no_wrap=True, overflow="ellipsis")
    return TextColumn(f"{{task.fields[{name}]}}", style=style, markup=False, table_column=column)


class _Display(ABC):
    """Base class of displays: context managers that show the final state and restore the cursor on exit."""

    _shows_first_and_last = False  # for output that is not a terminal

    def __init__(
        self, stream: TextIO | None = None, seconds_between_lines: float = SECONDS_BETWEEN_LINES
    ) -> None:
        """Creates the display without showing it; `stream` defaults to stderr."""
        self._file = stream or sys.stderr
        console = plain_console(self._file)
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._seconds = SECONDS_PER_FRAME if self._is_live else seconds_between_lines
        self._shown_at = -math.inf if self._shows_first_and_last else time.monotonic()
        self._copied_at = -math.inf
        self._is_news = False
        self._said: set[str] = set()
        self._share: float | None = None
        # Output to stdout is redirected through the live display only if stdout is a terminal, too.
        redirect = sys.stdout.isatty()
        self._frame = _Frame(
            *self._columns(), console=console, auto_refresh=False, redirect_stdout=redirect
        )
        self._frame.add_task("", text="", facts="")

    @abstractmethod
    def _columns(self) -> Sequence[ProgressColumn]:
        """Returns the columns of the live line."""

    @abstractmethod
    def _line(self) -> str:
        """Returns the current state as a plain line."""

    def _fields(self) -> dict[str, str]:
        """Returns the values of the live line's columns, and the line of metrics below it."""
        return {"text": self._line()}

    def _notify(self, share: float | None) -> None:
        """Marks the state as changed, and shows it if the last redraw was long enough ago."""
        self._share, self._is_news = share, True
        if time.monotonic() - self._shown_at >= self._seconds:
            self._show()

    def _show(self) -> None:
        if self._is_live:
            (task,) = self._frame.tasks
            task.total, task.completed = None if self._share is None else 1.0, self._share or 0.0
            task.fields.update(self._fields())
            self._frame.start()
            self._frame.refresh()
            if time.monotonic() - self._copied_at >= SECONDS_BETWEEN_LINES:
                copy(self._line())
                self._copied_at = time.monotonic()
        else:
            write_line(self._line(), self._file)
        self._shown_at, self._is_news = time.monotonic(), False

    def message(self, text: str, once: bool = False) -> None:
        """Writes a permanent line above the live part; with `once`, only if it has not been written before."""
        if once and text in self._said:
            return
        self._said.add(text)
        shown = wrapped(text, self._frame.console.width) if self._is_live else text
        if self._frame.live.is_started:
            self._frame.print(Text(shown), soft_wrap=True)
            copy(text)
        else:
            write_line(shown, self._file, copied=text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Shows the final state, if it has not been shown, and ends the display."""
        if self._is_news and (self._is_live or self._shows_first_and_last):
            self._show()
        if self._frame.live.is_started:
            self._frame.stop()


class TrainingDisplay(_Display):
    """The progress of training: two live lines in a terminal, otherwise an occasional plain line."""

    _shows_first_and_last = True

    def update(
        self, update: int, share: float | None, metrics: Mapping[str, float], seconds: float = 0.0
    ) -> None:
        """Shows the number of updates so far, including those before a resume, and the current metrics.

        `share` is the completed part of training, or of its stage, from 0 to 1, or None if the end is unknown.
        `seconds` is the time that this part took, from which the remaining time is estimated.
        """
        self._update, self._metrics, self._seconds_taken = update, metrics, seconds
        self._notify(share)

    def _columns(self) -> Sequence[ProgressColumn]:
        return _fact("text", "bold"), BarColumn(None), TaskProgressColumn(), _fact("left")

    def _line(self) -> str:
        share = "" if self._share is None else f" ({self._share:.0%})"
        return "  ".join([f"update {self._update}{share}", *self._facts(), self._time_left()])

    def _fields(self) -> dict[str, str]:
        return {
            "text": f"update {self._update:,}",
            "left": self._time_left(),
            "facts": "  ".join(self._facts()),
        }

    def _facts(self) -> list[str]:
        known = [
            form.format(self._metrics[name])
            for name, form in FORMATS.items()
            if name in self._metrics
        ]
        return known + [
            f"{name} {value:.4g}" for name, value in self._metrics.items() if name not in FORMATS
        ]

    def _time_left(self) -> str:
        if not self._share or not self._seconds_taken:
            return "? left"
        return f"{_clock(self._seconds_taken / self._share * max(1 - self._share, 0.0))} left"


class ProgressDisplay(_Display):
    """The progress of a long operation: a live line in a terminal, otherwise an occasional plain line."""

    _text = ""

    def update(self, text: str, share: float | None = None) -> None:
        """Shows the progress as text, and as a share from 0 to 1 if the end is known."""
        self._text = text
        self._notify(share)

    def _columns(self) -> Sequence[ProgressColumn]:
        return BarColumn(30), TaskProgressColumn(), _fact("text", "cyan")

    def _line(self) -> str:
        return self._text


class LineProgress(_Display):
    """The number of finished lines.

    It is shown only if stderr is a terminal and stdout is not, so that it is not mixed with results. If `total` is set,
    the display also shows the total and the time left.
    """

    total: int | None = None

    def __init__(self, unit: str = "lines", stream: TextIO | None = None, size: int = 1) -> None:
        """Starts the clock; `unit` is a plural noun, and one unit consists of `size` lines."""
        super().__init__(stream, seconds_between_lines=math.inf)
        self._unit, self._size = unit, size
        self._done = 0
        self._started = time.monotonic()
        if sys.stdout.isatty():
            self._is_live, self._seconds = False, math.inf

    @property
    def is_shown(self) -> bool:
        """Whether the display is visible."""
        return self._is_live

    def advance(self, lines: int = 1) -> None:
        """Adds finished lines to the count."""
        self._done += lines
        self._notify(None)

    def _columns(self) -> Sequence[ProgressColumn]:
        return [_fact("text", "cyan")]

    def _line(self) -> str:
        elapsed = max(time.monotonic() - self._started, 1e-9)
        done = self._done // self._size
        speed = done / elapsed
        counted = f"{done:,}"
        left = ""
        if self.total is not None:
            counted += f" of {self.total:,}"
            left = f", {_clock((self.total - done) / speed)} left" if 0 < done <= self.total else ""
        return f"{counted} {self._unit}  {speed:,.1f} {self._unit}/s  {_clock(elapsed)}{left}"


def _clock(seconds: float) -> timedelta:
    """Rounds to whole seconds; formatted as text, the result is h:mm:ss."""
    return timedelta(seconds=round(seconds))
