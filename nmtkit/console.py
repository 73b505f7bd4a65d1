"""The terminal: tables, heat-maps, and the display of progress. The only file that imports rich.

Results go to stdout and everything about them to stderr, so that a command's output can be piped.
"""

from __future__ import annotations

import sys
import textwrap
import time
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.style import Style
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from nmtkit.pictures import Window

Stream = Literal["stdout", "stderr"]


def _console(file: TextIO) -> Console:
    return Console(file=file, highlight=False, markup=False, emoji=False)


def _file(stream: Stream) -> TextIO:
    return sys.stdout if stream == "stdout" else sys.stderr


def _is_coloured(console: Console) -> bool:
    return console.is_terminal and not console.no_color and console.color_system in ("256", "truecolor")


def say(text: str, stderr: bool = False) -> None:
    """Writes a line of plain text as it is: nothing is wrapped, cut or read as markup."""
    file = sys.stderr if stderr else sys.stdout
    file.write(text + "\n")
    file.flush()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], stream: Stream = "stdout") -> None:
    """Prints a table; a column that holds only numbers is set to the right.

    In a terminal, long cells are folded to fit; elsewhere the table is as wide as it needs to be.
    """
    file = _file(stream)
    console = _console(file)
    cells = [[str(cell) for cell in row] for row in rows]
    grid = Table(
        title=Text(title) if title else None, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    for index, name in enumerate(columns):
        numeric = bool(cells) and all(_is_number(row[index]) for row in cells)
        grid.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        grid.add_row(*(Text(cell) for cell in row))
    if not console.is_terminal:
        console.width = max(console.width, Console(width=1_000_000).measure(grid).maximum, cell_len(title))
    with console.capture() as captured:
        console.print(grid)
    for line in captured.get().splitlines():
        file.write(line.rstrip() + "\n")
    file.flush()


def _is_number(cell: str) -> bool:
    try:
        float(cell.strip().rstrip("%").replace(",", "") or "nothing")
    except ValueError:
        return cell.strip() in ("", "-", "–")
    return True


# ---------------------------------------------------------------------------------------------------------- histograms

EIGHTHS = " ▏▎▍▌▋▊▉█"


def histogram(
    title: str,
    labels: Sequence[str],
    series: Sequence[tuple[str, Sequence[int]]],
    width: int | None = None,
    stream: Stream = "stdout",
) -> None:
    """Prints horizontal bars, a line for each label; several series stand side by side, each with its shares.

    Args:
        title: Stands above the labels.
        labels: What each bar is.
        series: Name and count of each label, for every series.
        width: The columns to fit into; the terminal's own width, at most 100, if not given.
        stream: Where to print.
    """
    file = _file(stream)
    width = width or min(_console(file).width, 100)
    margin = max(cell_len(label) for label in [*labels, ""])
    room = max(4, (width - margin) // len(series) - len("  100.0%") - 2)
    heads = "".join("  " + set_cell_size(name, room + len(" 100.0%")) for name, _ in series)
    file.write(f"{title}\n" + (f"{' ' * margin}{heads}".rstrip() + "\n" if len(series) > 1 else ""))
    for index, label in enumerate(labels):
        line = " " * (margin - cell_len(label)) + label
        for _, counts in series:
            total, most = sum(counts) or 1, max(counts) or 1
            part = f"{counts[index] / total:.1%}" if counts[index] else ""
            line += "  " + _bar(counts[index] / most, room) + part.rjust(len(" 100.0%"))
        file.write(line.rstrip() + "\n")
    file.flush()


def _bar(share: float, width: int) -> str:
    """A bar as long as the share of `width`, in eighths of a column; whatever is there can be seen."""
    eighths = max(round(share * width * 8), 1 if share else 0)
    bar = EIGHTHS[-1] * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
    return bar.ljust(width)


# ----------------------------------------------------------------------------------------------------------- heat-maps

BLOCKS = " ░▒▓█"
# Of the 256 terminal colours, from dark blue to bright yellow: brightness grows with the weight on any background.
COLOURS = (17, 18, 24, 30, 36, 72, 113, 185, 227)
TALLEST_LABEL = 16
LEAST_WEIGHT = 0.005  # what is written as 0.00 is not written
# Letters of these scripts join or change places: they cannot be written one below the other.
JOINING = ("ARABIC", "SYRIAC", "DEVANAGARI", "BENGALI", "TAMIL", "TELUGU", "THAI", "KHMER", "MYANMAR", "MONGOLIAN")


def heatmap(
    src_words: Sequence[str],
    tgt_words: Sequence[str],
    weights: NDArray[np.floating[Any]],
    title: str = "",
    width: int | None = None,
    stream: Stream = "stdout",
    windows: Sequence[Window] = (),
) -> None:
    """Prints attention weights: a row for each target word, a column for each source word.

    A colour terminal shows a background colour and the weight in hundredths in each cell, anything else a block that
    is the darker the larger the weight. The strongest colour or block stands for the largest weight, which is told
    below. Source words stand upright over their columns, or are numbered where they are long or of a joining script.
    When they do not fit beside one another, several panels follow. Where attention is local, a "+" marks the centre of
    each row's window, and what lies outside the window is dotted, or has no colour.

    Args:
        src_words: S words.
        tgt_words: T words.
        weights: (T, S), not negative.
        title: A line printed above.
        width: The columns to fit into; the terminal's own width if not given (80 where there is no terminal).
        stream: Where to print.
        windows: The windows of local attention, one for each target word.
    """
    assert weights.shape == (len(tgt_words), len(src_words)), f"{weights.shape}, {len(tgt_words)}, {len(src_words)}"
    console = _console(_file(stream))
    width = width or console.width
    coloured = _is_coloured(console)
    lines = list(Text(_clean(title), style="bold").wrap(console, width)) if title else []
    if weights.size == 0:
        lines.append(Text("(no words)"))
    else:
        lines.extend(_heatmap_lines(src_words, tgt_words, weights.tolist(), width, coloured, windows))
    for line in lines:
        console.print(line, soft_wrap=True)


def summary(
    src_words: Sequence[str],
    tgt_words: Sequence[str],
    weights: NDArray[np.floating[Any]],
    p_gen: NDArray[np.floating[Any]] | None = None,
    copied: Collection[int] = (),
    title: str = "",
    width: int | None = None,
    stream: Stream = "stdout",
) -> None:
    """Prints where a model looked while it wrote a summary: too many words for the columns of a heat-map.

    First the article, shaded by its coverage: how much each of its words was looked at in all. A colour terminal shows
    it as background colours, anything else as blocks below the words. Then a line for each word of the summary: its
    p_gen, a "*" if it was copied, and as many of the words that it looked at most as fit, with their weights.

    Args:
        src_words: S words of the article.
        tgt_words: T words of the summary.
        weights: (T, S), not negative.
        p_gen: Probability that each word of the summary was generated, (T,); None if the model cannot copy.
        copied: The numbers of the words of the summary that were copied.
        title: A line printed above.
        width: The columns to fit into; the terminal's own width if not given (80 where there is no terminal).
        stream: Where to print.
    """
    assert weights.shape == (len(tgt_words), len(src_words)), f"{weights.shape}, {len(tgt_words)}, {len(src_words)}"
    console = _console(_file(stream))
    width = width or console.width
    lines = list(Text(_clean(title), style="bold").wrap(console, width)) if title else []
    if weights.size == 0:
        lines.append(Text("(no words)"))
    else:
        src_words, tgt_words = [_clean(word) for word in src_words], [_clean(word) for word in tgt_words]
        coloured = _is_coloured(console)
        coverage = weights.sum(axis=0).tolist()
        lines.extend(_article_lines(src_words, coverage, width, coloured))
        lines.append(Text("coverage ").append_text(_scale(max(coverage), coloured)))
        lines.append(Text())
        lines.extend(_summary_lines(src_words, tgt_words, weights.tolist(), p_gen, copied, width, coloured))
    for line in lines:
        console.print(line, soft_wrap=True)


def _article_lines(words: Sequence[str], coverage: Sequence[float], width: int, coloured: bool) -> list[Text]:
    """The words as a text, each shaded by its coverage: in a colour of its own, or by blocks in a line below."""
    largest = max(coverage) or 1.0
    lines: list[Text] = []
    shades: list[Text] = []
    for word, value in zip(words, coverage, strict=True):
        level = _level(value / largest, len(COLOURS) if coloured else len(BLOCKS))
        for piece in _cut(_then_left_to_right(word), width):
            if not lines or cell_len(lines[-1].plain) + 1 + cell_len(piece) > width:
                lines.append(Text())
                shades.append(Text())
            elif lines[-1]:
                lines[-1].append(" ")
                shades[-1].append(" ")
            lines[-1].append(piece, _shade(level) if coloured and level else None)
            shades[-1].append((" " if coloured else BLOCKS[level]) * cell_len(piece))
    for shade in shades:
        shade.rstrip()
    return lines if coloured else [line for both in zip(lines, shades, strict=True) for line in both if line]


def _summary_lines(
    src_words: Sequence[str],
    tgt_words: Sequence[str],
    weights: list[list[float]],
    p_gen: NDArray[np.floating[Any]] | None,
    copied: Collection[int],
    width: int,
    coloured: bool,
) -> list[Text]:
    """A line for each word of the summary, and what its parts mean."""
    margin = min(max(cell_len(word) for word in tgt_words), max(width // 3, 8))
    largest = max(max(row) for row in weights) or 1.0
    lines = []
    for t, (word, row) in enumerate(zip(tgt_words, weights, strict=True)):
        line = Text()
        if p_gen is not None:
            line.append(f"{p_gen[t]:.2f} ")
        line.append(_fit(word, margin), "bold" if t in copied else None)
        line.append("* " if t in copied else "  ")
        for rank, s in enumerate(sorted(range(len(row)), key=lambda s: -row[s])):
            name, weight = src_words[s], f" {row[s]:.2f} "
            room = width - cell_len(line.plain) - 1 - len(weight)
            if rank == 0 and 1 < room < cell_len(name):  # the best is always there, if not all of its letters
                name = _cut(name, room - 1)[0] + "…"
            if row[s] < LEAST_WEIGHT or cell_len(name) > room:
                break
            shade = _shade(_level(row[s] / largest, len(COLOURS))) if coloured else None
            line.append(f" {_then_left_to_right(name)}{weight}", shade)
        line.rstrip()
        lines.append(line)
    facts = ["word of the summary", "words of the article with the largest weights"]
    if p_gen is not None:
        facts = ["p_gen, the probability of generating", f"{facts[0]}, * if copied", facts[1]]
    return [*lines, *(Text(line) for line in textwrap.wrap("Columns: " + "; ".join(facts), width))]


def _shade(level: int) -> Style:
    """A background colour, and ink that can be read on it."""
    ink = "color(232)" if level >= len(COLOURS) // 2 else "color(252)"
    return Style.parse(f"{ink} on color({COLOURS[level]})")


def _heatmap_lines(
    src_words: Sequence[str],
    tgt_words: Sequence[str],
    weights: list[list[float]],
    width: int,
    coloured: bool,
    windows: Sequence[Window],
) -> list[Text]:
    src_words = [_clean(word) for word in src_words]
    tgt_words = [_clean(word) for word in tgt_words]
    numbered = any(cell_len(word) > TALLEST_LABEL or not _can_stand(word) for word in src_words)
    widest = max(cell_len(word) for word in tgt_words)
    margin = min(widest, max(width // 3, 8))
    cell = max(3 if coloured else 2, len(str(len(src_words))) + 1 if numbered else 0)
    cell += bool(windows)  # for the "+"
    per_panel = max(1, (width - margin - 1) // cell)
    largest = max(max(row) for row in weights) or 1.0
    lines: list[Text] = []
    for start in range(0, len(src_words), per_panel):
        if start:
            lines.append(Text())
        shown = range(start, min(start + per_panel, len(src_words)))
        heads = [str(s + 1) for s in shown] if numbered else [src_words[s] for s in shown]
        lines.extend(_heads(heads, margin, cell, stand=not numbered))
        for t, (word, row) in enumerate(zip(tgt_words, weights, strict=True)):
            line = Text(_fit(word, margin) + " ")
            for s in shown:
                line.append_text(_cell(row[s], largest, cell, coloured, windows[t] if windows else None, s))
            lines.append(line)
    if numbered:
        lines.append(Text())
        lines.extend(_legend(src_words, width))
    lines.append(_scale(largest, coloured))
    if windows:
        lines.append(Text("+ centre of the window" if coloured else "+ centre of the window, · outside the window"))
    return lines


def _heads(heads: Sequence[str], margin: int, cell: int, stand: bool) -> list[Text]:
    """The lines above the cells: words that stand upright with their last letter lowest, or numbers."""
    indent = " " * (margin + 1)
    if not stand:
        return [Text(indent + "".join(head.rjust(cell - 1) + " " for head in heads).rstrip())]
    height = max(len(head) for head in heads)
    columns = [head.rjust(height) for head in heads]
    pad = (cell - 1) // 2
    return [
        Text((indent + "".join(set_cell_size(" " * pad + column[i], cell) for column in columns)).rstrip())
        for i in range(height)
    ]


def _cell(weight: float, largest: float, cell: int, coloured: bool, window: Window | None, column: int) -> Text:
    if window is not None and not window.left <= column <= window.right and weight == 0:
        return Text(("" if coloured else "·").ljust(cell))
    share = weight / largest
    mark = "+" if window is not None and -0.5 <= window.centre - column < 0.5 else ""
    if not coloured:
        block = BLOCKS[_level(share, len(BLOCKS))]
        return Text(block * (cell - len(mark)) + mark)
    level = _level(share, len(COLOURS))
    hundredths = f"{weight * 100:.0f}"
    number = hundredths if hundredths != "0" else ""
    width = cell - (window is not None)
    return Text(
        (number.rjust(width - 1).ljust(width)[:width] + mark).ljust(cell),
        _shade(level),
    )


def _level(share: float, levels: int) -> int:
    """The step, from 0, that is nearest to a share between 0 and 1."""
    return round(share * (levels - 1))


def _legend(words: Sequence[str], width: int) -> list[Text]:
    lines, line = [], ""
    for number, word in enumerate(words, start=1):
        entry = f"{number} {_then_left_to_right(word)}"
        if line and cell_len(line) + 2 + cell_len(entry) > width:
            lines.append(line)
            line = ""
        line = f"{line}  {entry}" if line else entry
    return [Text(piece) for line in [*lines, line] for piece in _cut(line, width)]


def _scale(largest: float, coloured: bool) -> Text:
    scale = Text()
    if coloured:
        for colour in COLOURS:
            scale.append(" ", Style.parse(f"on color({colour})"))
    else:
        scale.append(BLOCKS[1:])
    return scale.append(f" to {largest:.2f}")


def _fit(word: str, width: int) -> str:
    """The word set to the right in `width` cells; one that is too long ends in "…"."""
    if cell_len(word) > width:
        word = _cut(word, width - 1)[0] + "…"
    return " " * (width - cell_len(word)) + _then_left_to_right(word)


def _cut(text: str, width: int) -> list[str]:
    """The text in pieces that fill at most `width` cells each."""
    pieces = [""]
    for letter in text:
        if cell_len(pieces[-1] + letter) > width:
            pieces.append("")
        pieces[-1] += letter
    return pieces


def _then_left_to_right(word: str) -> str:
    """Ends a Hebrew or Arabic word with an invisible mark, lest a terminal turn round the numbers that follow it."""
    return word + "\u200e" if any(unicodedata.bidirectional(c) in ("R", "AL") for c in word) else word


def _clean(text: str) -> str:
    """Control characters would move the cursor or ring the bell: they are made visible."""
    return "".join("�" if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)


def _can_stand(word: str) -> bool:
    """Whether the word can be written from top to bottom, one letter a line."""
    return all(cell_len(c) > 0 and not unicodedata.name(c, "").startswith(JOINING) for c in word)


# ------------------------------------------------------------------------------------------------------------ progress

# A live display is redrawn at most this often, so that it costs a training step nothing.
SECONDS_PER_FRAME = 0.2


class _Display:
    """What both displays share: a live part at the foot of a terminal, and nothing live elsewhere."""

    def __init__(self, stream: TextIO | None) -> None:
        self._file = stream or sys.stderr
        self._console = _console(self._file)
        self._live: Live | None = None
        self._drawn = time.monotonic()
        self._closed = False

    @property
    def _is_terminal(self) -> bool:
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def _draw(self, content: Group | Text) -> None:
        if self._live is None:
            # What the program writes to stdout stays there unless it is the same terminal.
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=sys.stdout.isatty())
            self._live.start()
        self._live.update(content, refresh=True)
        self._drawn = time.monotonic()

    @property
    def _is_due(self) -> bool:
        return time.monotonic() - self._drawn >= SECONDS_PER_FRAME

    def message(self, text: str) -> None:
        """Writes a line that stays, above the live part."""
        if self._live is not None:
            self._console.print(Text(text), soft_wrap=True)
        else:
            self._file.write(text + "\n")
            self._file.flush()

    def _stop(self) -> None:
        self._closed = True
        if self._live is not None:
            self._live.stop()
            self._live = None


# Name in the metrics -> how it is shown. Others follow under their own name.
METRICS = {
    "tokens_per_second": "{:,.0f} tok/s",
    "loss": "loss {:.3f}",
    "perplexity": "ppl {:.2f}",
    "learning_rate": "lr {:.2e}",
    "gradient_norm": "grad {:.2f}",
}


class TrainingDisplay(_Display):
    """The progress of training, on stderr: two live lines in a terminal, else a plain line now and then.

    Use it as a context manager, or call `close` at the end, so that the cursor and the last line are right.
    """

    def __init__(self, stream: TextIO | None = None, seconds_between_lines: float = 10.0) -> None:
        """Shows nothing yet.

        Args:
            stream: Where to write; stderr if not given.
            seconds_between_lines: How often to write a line where there is no terminal.
        """
        super().__init__(stream)
        self._seconds_between_lines = seconds_between_lines
        self._first: tuple[float, float] | None = None  # the share done at the first update shown, and when
        self._update = 0
        self._share: float | None = None
        self._metrics: Mapping[str, float] = {}
        self._written = -1
        self._written_at = time.monotonic() - seconds_between_lines

    def update(self, update: int, share: float | None, metrics: Mapping[str, float]) -> None:
        """Shows that `update` optimizer steps are done, and their metrics.

        Args:
            update: Optimizer steps done since training began, earlier runs included.
            share: How much of the training, or of its stage, that is, from 0 to 1; None if its end is not known.
            metrics: `tokens_per_second`, `loss` (nats per token), `perplexity`, `learning_rate`, `gradient_norm`;
                any others are shown after them by name.
        """
        if share is not None and (self._first is None or share < (self._share or 0.0)):  # less: another stage began
            self._first = (share, time.monotonic())
        self._update, self._share, self._metrics = update, share, metrics
        if self._is_terminal:
            if self._is_due:
                self._draw(self._content())
        elif time.monotonic() - self._written_at >= self._seconds_between_lines:
            self._write()

    def _content(self) -> Group:
        line = Table.grid(padding=(0, 1))
        line.add_row(
            Text(f"update {self._update:,}", "bold"),
            ProgressBar(total=1.0, completed=self._share or 0.0, width=max(10, self._console.width - 50)),
            Text("" if self._share is None else f"{self._share:.0%}"),
            Text(f"{self._time_left()} left"),
        )
        return Group(line, Text("  ".join(self._shown()), "cyan"))

    def _write(self) -> None:
        facts = [
            f"update {self._update}" + ("" if self._share is None else f" ({self._share:.0%})"),
            *self._shown(),
            f"{self._time_left()} left",
        ]
        self._file.write("  ".join(facts) + "\n")
        self._file.flush()
        self._written, self._written_at = self._update, time.monotonic()

    def _shown(self) -> list[str]:
        known = [form.format(self._metrics[name]) for name, form in METRICS.items() if name in self._metrics]
        return known + [f"{name} {value:.4g}" for name, value in self._metrics.items() if name not in METRICS]

    def _time_left(self) -> str:
        """Reckoned from the first update shown, so that it is right for a resumed training too."""
        if self._first is None or self._share is None or self._share <= self._first[0]:
            return "?"
        first, then = self._first
        return _clock((time.monotonic() - then) / (self._share - first) * max(1 - self._share, 0.0))

    def close(self) -> None:
        """Shows the last update, if it was not shown, and ends the display."""
        if self._closed:
            return
        if self._metrics and self._is_terminal:
            self._draw(self._content())
        elif self._metrics and self._written != self._update:
            self._write()
        self._stop()

    def __enter__(self) -> TrainingDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WorkDisplay(_Display):
    """How far a long piece of work is, on stderr: a live line in a terminal, else a plain line now and then."""

    def __init__(self, stream: TextIO | None = None, seconds_between_lines: float = 10.0) -> None:
        """Shows nothing yet.

        Args:
            stream: Where to write; stderr if not given.
            seconds_between_lines: How often to write a line where there is no terminal.
        """
        super().__init__(stream)
        self._seconds_between_lines = seconds_between_lines
        self._written_at = time.monotonic()

    def update(self, text: str, share: float | None = None) -> None:
        """Shows how far it is.

        Args:
            text: In words.
            share: From 0 to 1; None if the end is not known.
        """
        if not self._is_terminal:
            if time.monotonic() - self._written_at >= self._seconds_between_lines:
                self._file.write(text + "\n")
                self._file.flush()
                self._written_at = time.monotonic()
        elif self._is_due or share == 1.0:
            line = Table.grid(padding=(0, 1))
            bar = () if share is None else (ProgressBar(total=1.0, completed=share, width=30), Text(f"{share:.0%}"))
            line.add_row(*bar, Text(text, "cyan", overflow="ellipsis", no_wrap=True))
            self._draw(Group(line))

    def __enter__(self) -> WorkDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()


class LineProgress(_Display):
    """How many lines of a stream are done, on stderr; shows nothing where stderr is not a terminal.

    It shows nothing either where stdout is a terminal too: there the results themselves tell how far the work is.
    """

    def __init__(self, unit: str = "lines", total: int | None = None, stream: TextIO | None = None) -> None:
        """Starts the clock.

        Args:
            unit: What is counted, in the plural.
            total: How many there will be, if known.
            stream: Where to show it; stderr if not given.
        """
        super().__init__(stream)
        self._unit = unit
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._is_shown = self._is_terminal and not sys.stdout.isatty()

    def advance(self, lines: int = 1) -> None:
        """Counts lines that are done."""
        self._done += lines
        if self._is_shown and self._is_due:
            self._draw(self._content())

    def _content(self) -> Text:
        elapsed = max(time.monotonic() - self._started, 1e-9)
        speed = self._done / elapsed
        total = f"/{self._total:,}" if self._total is not None else ""
        text = f"{self._done:,}{total} {self._unit}  {speed:,.1f} {self._unit}/s  {_clock(elapsed)}"
        if self._total is not None and self._done:
            text += f"  {_clock(max(self._total - self._done, 0) / speed)} left"
        return Text(text, "cyan", overflow="ellipsis", no_wrap=True)

    def close(self) -> None:
        """Shows the final count and ends the display."""
        if self._closed:
            return
        if self._is_shown and self._done:
            self._draw(self._content())
        self._stop()

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _clock(seconds: float) -> str:
    """Seconds as m:ss, or as h:mm:ss from an hour on."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
