"""A beam search in a terminal: a row for each step, a lane for each hypothesis of the beam."""

import shutil
import sys
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

from nmtkit.console.tables import plain_console
from nmtkit.pictures.fonts import printable
from nmtkit.pictures.search_trees import SearchTree, TreeNode

LEGEND = {
    "*": "best",
    "│": "from above",
    "╲": "left",
    "╱": "right",
    "■": "ended",
    "×": "pruned",
    "⊘": "blocked",
    "…": "left out",
}
"""The signs of a picture."""
MARKS = {"ended": "■", "pruned": "×", "blocked": "⊘"}
STYLES = {"kept": "", "ended": "green", "pruned": "dim", "blocked": "red"}
LONGEST_TOKEN = 12
OTHERS = 24
"""Columns that what was not kept needs beside the lanes, at least."""
FRAME = 7
"""Lines of a picture that are no steps: title, settings, heading, left out, legend, why it ended, the prompt."""


def show_search(tree: SearchTree, steps: int | None = None, size: tuple[int, int] | None = None) -> int:
    """Prints the tree of a beam search.

    A row is a step. It has a lane for each of the hypotheses that the step kept: the last token and the log-probability
    from the start. The sign before it points to the hypothesis above that it continues: the one right above (│), one to
    the left (╲) or one to the right (╱), with the lane's number where the beam is wider than 2. Then comes what ended
    (■), was pruned (×) or blocked (⊘): the number of the hypothesis that it continues, and how far its log-probability
    is from that of the last one kept. The best result's tokens have a star, and are bold in a terminal. A line below
    says what the signs mean that occur.

    Args:
        tree: what to show.
        steps: how many steps to show, the first and last ones; 0 all, None as many as fit.
        size: columns and lines to fit into; the terminal's own if not given (80 and 24 where there is none).

    Returns:
        How many steps were left out.
    """
    console = plain_console(sys.stdout)
    width, height = size or shutil.get_terminal_size()
    rows = [_Rows(tree, width).lines(step) for step in range(len(tree.steps))]
    results = [_result(rank, tree, width) for rank in range(len(tree.results))]
    shown = _that_fit(rows, height - FRAME - len(results)) if steps is None else steps or len(rows)
    first, last = -(-shown // 2), shown // 2
    out = max(0, len(rows) - shown)
    picture = _head(tree, width)
    for number, lines in enumerate(rows):
        if not out or number < first or number >= len(rows) - last:
            picture += lines
        elif number == first:
            picture.append(Text(f"     … {out} of {len(rows)} steps are not shown …", "italic"))
    signs = {sign for line in picture[3:] for sign in line.plain if sign in LEGEND}
    legend = "  ".join(f"{sign} {meaning}" for sign, meaning in LEGEND.items() if sign in signs)
    for line in [*picture, Text(legend, "italic"), Text(tree.stopped), *results]:
        console.print(line, soft_wrap=True)
    return out


def _head(tree: SearchTree, width: int) -> list[Text]:
    lanes = _Rows(tree, width)
    kept = "".join(
        lanes.padded(f"{'  ' if tree.beam_size < 3 else '   '}kept {lane + 1}") for lane in range(lanes.count)
    )
    heading = f"step {kept}{'not kept' if lanes.beside else ''}"
    return [
        Text(_cut(printable(tree.source), width), "bold"),
        Text(_cut(f"{printable(tree.name)}, {tree.settings}; log-probabilities in nats", width)),
        Text(heading.rstrip(), "underline"),
    ]


def _that_fit(rows: Sequence[Sequence[Text]], height: int) -> int:
    """How many steps fit into so many lines, of the first and the last by turns."""
    if sum(map(len, rows)) <= height + 1:  # then no line need say what is left out
        return len(rows)
    fitting = 0
    for shown in range(1, len(rows)):
        first, last = -(-shown // 2), shown // 2
        if sum(map(len, [*rows[:first], *rows[len(rows) - last :]])) <= height:
            fitting = shown
    return max(1, fitting)


def _result(rank: int, tree: SearchTree, width: int) -> Text:
    one = tree.results[rank]
    cut = "" if one.finished else "  (cut at the length limit)"
    told = f"{rank + 1:>2}{'*' if not rank else ' '} score {one.score:.6f}  log-probability {one.log_prob:.6f}  "
    return Text(_cut(f"{told}{printable(one.text)}{cut}", width), "bold" if not rank else "")


class _Rows:
    """The rows of a tree in a terminal of so many columns."""

    def __init__(self, tree: SearchTree, width: int) -> None:
        self._tree, self._width = tree, width
        self._sign = 2 if tree.beam_size < 3 else 2 + len(str(tree.beam_size))
        kept = [one for step in tree.steps for one in step if one.fate == "kept"]
        longest = max((cell_len(_named(one)) for one in kept), default=0)
        self._lane = self._sign + longest + 2
        fitting = max(1, (width - 5 - OTHERS) // self._lane)
        self.beside = tree.beam_size <= fitting
        """Whether what was not kept stands beside the lanes, and not below."""
        self.count = tree.beam_size if self.beside else max(1, min(tree.beam_size, (width - 5) // self._lane))
        """Lanes beside each other."""

    def padded(self, text: str) -> str:
        """As wide as a lane."""
        return set_cell_size(text, self._lane)

    def lines(self, step: int) -> list[Text]:
        """A step: one line, or more where it does not fit."""
        found = self._tree.steps[step]
        lanes = [self._kept(step, number) for number, one in enumerate(found) if one.fate == "kept"]
        others = [self._other(step, number) for number, one in enumerate(found) if one.fate != "kept"]
        lines = [Text().join(lanes[at : at + self.count]) for at in range(0, len(lanes), self.count)] or [Text()]
        room = self._width - 5 - (self._lane * self.count if self.beside else 0)
        below = list(_filled(others, room))
        if self.beside:
            empty = Text(" " * (self._lane * self.count))
            lines = [_wide(lines[0], empty) + line for line in below[:1]] + [
                empty + line for line in below[1:]
            ] or lines
        else:
            lines += below
        for number, line in enumerate(lines):
            line.rstrip()
            lines[number] = Text(f"{step + 1:>4} " if not number else " " * 5) + line
        return lines

    def _kept(self, step: int, number: int) -> Text:
        one, best = self._tree.steps[step][number], (step, number) in self._tree.best
        text = Text()
        text.append(
            f"{self._edge(step, number, one.parent)}{'*' if best else ' '}{_named(one)}", "bold" if best else ""
        )
        return text.append(" " * (self._lane - text.cell_len))

    def _edge(self, step: int, number: int, parent: int) -> str:
        wide = self._sign - 1
        if not step:
            return " " * wide
        sign = "│" if parent == number else "╲" if parent < number else "╱"
        return f"{parent + 1 if self._sign > 2 and parent != number else '':>{wide - 1}}{sign}"

    def _other(self, step: int, number: int) -> Text:
        one = self._tree.steps[step][number]
        best = (step, number) in self._tree.best
        start = f"{MARKS[one.fate]}{one.parent + 1 if step else ''} "
        if one.fate == "ended":
            return Text(f"{start}{'*' if best else ''}score {one.score:.3f}", "bold green" if best else STYLES["ended"])
        margin = "" if one.margin is None else f" {one.margin:+.2f}"
        return Text(f"{start}{_token(one)}{margin}{' ' if one.rule else ''}{one.rule}", STYLES[one.fate])


def _wide(line: Text, empty: Text) -> Text:
    return line + Text(" " * max(0, empty.cell_len - line.cell_len))


def _filled(parts: Sequence[Text], width: int) -> Iterator[Text]:
    """The parts one after the other, in lines of this width; a part that is longer is cut."""
    line = Text()
    for part in parts:
        if line.cell_len and line.cell_len + 2 + part.cell_len > width:
            yield line
            line = Text()
        line.append("  " if line.cell_len else "").append(part)
        line.truncate(width, overflow="ellipsis")
    if line.cell_len:
        yield line


def _token(one: TreeNode) -> str:
    return _cut(printable(one.token), LONGEST_TOKEN)


def _named(one: TreeNode) -> str:
    return f"{_token(one)} {one.log_prob:.2f}"


def _cut(text: str, width: int) -> str:
    """The text in so many columns, with an ellipsis where it was longer."""
    return text if cell_len(text) <= width else f"{chop_cells(text, max(1, width - 1))[0]}…"
