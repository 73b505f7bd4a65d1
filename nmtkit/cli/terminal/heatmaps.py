"""Attention in a terminal: the heat map of a translation, or an article shaded by its coverage."""

import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.style import Style
from rich.text import Text

from nmtkit.cli.terminal.tables import cut, flow, plain_console
from nmtkit.plots.attention import AttentionPicture, SentencePicture
from nmtkit.plots.documents import DocumentPicture
from nmtkit.plots.fonts import printable

BLOCKS = " ░▒▓█"
# Indices into the 256 terminal colours, from dark blue to bright yellow. Brightness increases with the weight.
COLOURS = (17, 18, 24, 30, 36, 72, 113, 185, 227)
MAX_LABEL_HEIGHT = 16
MIN_WEIGHT = 0.005  # smaller weights would be shown as 0.00


def show_attention(picture: AttentionPicture) -> None:
    """Prints attention weights, as wide as the terminal, or in 80 columns if the output is not a terminal.

    A translation is shown as a heat map: in a colour terminal, with coloured cells that contain the weights in
    hundredths; elsewhere, with blocks of different densities. Columns that do not fit follow in further panels. An
    article to summarize has too many words for columns, so it is printed as text shaded by coverage, followed by a line
    for each word of the summary.
    """

    def lines(width: int, coloured: bool) -> list[Text]:
        if picture.weights.size == 0:
            return [Text("(no words)")]
        return (_Summary if picture.is_summary else _HeatMap)(picture, width, coloured).lines()

    _print(picture, lines)


def show_document(picture: DocumentPicture) -> None:
    """Prints a classified text: each sentence is preceded by its weight, and each word is shaded by its weight."""

    def lines(width: int, coloured: bool) -> Iterator[Text]:
        for words, shades, weight in zip(
            picture.sentences, picture.shades, picture.of_sentences.tolist(), strict=True
        ):
            shown = _shaded_words(list(map(printable, words)), shades.tolist(), width - 5, coloured)
            for number, line in enumerate(shown):
                yield Text(" " * 5 if number else f"{weight:.2f} ").append_text(line)

    _print(picture, lines)


def _print(picture: SentencePicture, lines: Callable[[int, bool], Iterable[Text]]) -> None:
    """Prints the heading of a figure, followed by `lines(width, coloured)`."""
    console = plain_console(sys.stdout)
    width, heading = console.width, printable(picture.heading)
    coloured = (
        console.is_terminal
        and not console.no_color
        and console.color_system in ("256", "truecolor")
    )
    above = Text(heading, style="bold").wrap(console, width) if heading else ()
    for line in (*above, *lines(width, coloured)):
        console.print(line, soft_wrap=True)


def _level(share: float, coloured: bool) -> int:
    """Returns the index of the colour or block that is closest to a share between 0 and 1."""
    return round(share * (len(COLOURS if coloured else BLOCKS) - 1))


def _shaded_words(
    words: Sequence[str], shares: Sequence[float], width: int, coloured: bool
) -> list[Text]:
    """Returns lines of words, each shaded by its share, either with a colour or with blocks in the line below."""
    pieces: list[Text] = []
    blocks: list[str] = []
    for word, share in zip(words, shares, strict=True):
        level = _level(share, coloured)
        for piece in chop_cells(_left_to_right_after(word), width):
            pieces.append(Text(piece, _style(level) if coloured and level else ""))
            blocks.append("" if coloured else BLOCKS[level] * cell_len(piece))
    lines, rest = [], iter(blocks)
    for parts in flow(pieces, width, 1):
        shades = " ".join(next(rest) for _ in parts).rstrip()
        lines += [Text(" ").join(parts), *([Text(shades)] if shades else [])]
    return lines


class _Shaded:
    def __init__(self, picture: AttentionPicture, width: int, coloured: bool) -> None:
        self.picture = picture
        self.width = width
        self.coloured = coloured
        self.src_words = [printable(word) for word in picture.src_words]
        self.tgt_words = [printable(word) for word in picture.tgt_words]
        self.weights: list[list[float]] = picture.weights.tolist()
        self.margin = min(max(cell_len(word) for word in self.tgt_words), max(width // 3, 8))

    def scale(self, largest: float) -> Text:
        """Returns the scale: all colours or blocks, and the largest weight."""
        scale = Text() if self.coloured else Text(BLOCKS[1:])
        for colour in COLOURS if self.coloured else ():
            scale.append(" ", Style.parse(f"on color({colour})"))
        return scale.append(f" to {largest:.2f}")


class _HeatMap(_Shaded):
    """A row for each target word and a column for each source word, in as many panels as the width requires."""

    def __init__(self, picture: AttentionPicture, width: int, coloured: bool) -> None:
        super().__init__(picture, width, coloured)
        self.numbered = any(
            cell_len(word) > MAX_LABEL_HEIGHT or not _can_stand(word) for word in self.src_words
        )
        cell = max(3 if coloured else 2, len(str(len(self.src_words))) + 1 if self.numbered else 0)
        self.cell = cell + bool(picture.windows)  # one more column for "+"

    def lines(self) -> list[Text]:
        columns = len(self.src_words)
        per_panel = max(1, (self.width - self.margin - 1) // self.cell)
        lines: list[Text] = []
        for start in range(0, columns, per_panel):
            if start:
                lines.append(Text())
            shown = range(start, min(start + per_panel, columns))
            lines += self._heads(shown)
            for row, word in enumerate(self.tgt_words):
                cells = (self._cell(row, column) for column in shown)
                lines.append(Text().join([Text(_fit(word, self.margin) + " "), *cells]))
        if self.numbered:
            lines += [Text(), *self._legend()]
        lines.append(self.scale(self.picture.max_weight))
        if self.picture.windows:
            outside = "" if self.coloured else ", · outside the window"
            lines.append(Text(f"+ centre of the window{outside}"))
        return lines

    def _heads(self, shown: Sequence[int]) -> list[Text]:
        """Returns the lines above the cells: words written vertically, from top to bottom, or numbers."""
        indent = " " * (self.margin + 1)
        if self.numbered:
            return [
                Text(
                    indent + "".join(str(s + 1).rjust(self.cell - 1) + " " for s in shown).rstrip()
                )
            ]
        height = max(len(self.src_words[s]) for s in shown)
        pad = " " * ((self.cell - 1) // 2)
        rows = zip(*(self.src_words[s].rjust(height) for s in shown), strict=True)
        lines = ("".join(set_cell_size(pad + letter, self.cell) for letter in row) for row in rows)
        return [Text((indent + line).rstrip()) for line in lines]

    def _cell(self, row: int, column: int) -> Text:
        weight, windows = self.weights[row][column], self.picture.windows
        if self.picture.is_outside_window(row, column):
            return Text(("" if self.coloured else "·").ljust(self.cell))
        mark = "+" if windows and -0.5 <= windows[row].centre - column < 0.5 else ""
        level = _level(weight / self.picture.max_weight, self.coloured)
        if not self.coloured:
            return Text(BLOCKS[level] * (self.cell - len(mark)) + mark)
        hundredths = f"{weight * 100:.0f}"
        number = hundredths if hundredths != "0" else ""
        width = self.cell - bool(windows)
        return Text(
            (number.rjust(width - 1).ljust(width)[:width] + mark).ljust(self.cell), _style(level)
        )

    def _legend(self) -> list[Text]:
        entries = [
            Text(f"{number} {_left_to_right_after(word)}")
            for number, word in enumerate(self.src_words, start=1)
        ]
        lines = (Text("  ").join(parts).plain for parts in flow(entries, self.width, 2))
        return [Text(piece) for line in lines for piece in chop_cells(line, self.width)]


class _Summary(_Shaded):
    """The article as shaded text, then a line for each word of the summary."""

    def lines(self) -> list[Text]:
        coverage = self.picture.coverage
        shares = (coverage / (coverage.max() or 1.0)).tolist()
        article = _shaded_words(self.src_words, shares, self.width, self.coloured)
        rows = [self._row(row) for row in range(len(self.tgt_words))]
        facts = ["word of the summary", "words of the article with the largest weights"]
        if self.picture.p_gen is not None:
            facts = [
                "p_gen, the probability of generating the word",
                f"{facts[0]}, * if copied",
                facts[1],
            ]
        about = textwrap.wrap("Columns: " + "; ".join(facts), self.width)
        scale = Text("coverage ").append_text(self.scale(float(coverage.max())))
        return [*article, scale, Text(), *rows, *map(Text, about)]

    def _row(self, row: int) -> Text:
        picture, weights = self.picture, self.weights[row]
        copied = row in picture.copied
        line = Text("" if picture.p_gen is None else f"{picture.p_gen[row]:.2f} ")
        line.append(_fit(self.tgt_words[row], self.margin), "bold" if copied else None)
        line.append("* " if copied else "  ")
        for rank, column in enumerate(
            sorted(range(len(weights)), key=lambda column: -weights[column])
        ):
            name, weight = self.src_words[column], f" {weights[column]:.2f} "
            free = self.width - cell_len(line.plain) - 1 - len(weight)
            if rank == 0 and free > 1:  # the best word is always shown, truncated if necessary
                name = cut(name, free)
            if weights[column] < MIN_WEIGHT or cell_len(name) > free:
                break
            style = (
                _style(_level(weights[column] / picture.max_weight, True))
                if self.coloured
                else None
            )
            line.append(f" {_left_to_right_after(name)}{weight}", style)
        line.rstrip()
        return line


def _style(level: int) -> Style:
    ink = "color(232)" if level >= len(COLOURS) // 2 else "color(252)"
    return Style.parse(f"{ink} on color({COLOURS[level]})")


def _fit(word: str, width: int) -> str:
    """Returns the word right-aligned in `width` columns, truncated if it is longer."""
    word = cut(word, width)
    return " " * (width - cell_len(word)) + _left_to_right_after(word)


def _left_to_right_after(word: str) -> str:
    """Appends an invisible mark to a Hebrew or Arabic word, so that terminals do not reverse the numbers after it."""
    return (
        word + "\u200e" if any(unicodedata.bidirectional(c) in ("R", "AL") for c in word) else word
    )


def _can_stand(word: str) -> bool:
    """Returns whether a word can be written vertically: it has no letters that join, and no combining marks."""
    return all(
        cell_len(c) and unicodedata.bidirectional(c) != "AL" and unicodedata.category(c) != "Mc"
        for c in word
    )
