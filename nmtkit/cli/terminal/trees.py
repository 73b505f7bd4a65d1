"""The tree of a beam search in a terminal, with a row for each step and a lane for each hypothesis."""

import re
import shutil
import sys
from collections.abc import Sequence
from itertools import chain

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from nmtkit.cli.terminal.tables import cut, flow, plain_console
from nmtkit.plots.fonts import printable
from nmtkit.plots.trees import SearchTree, TreeNode

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
MARKS = {"ended": "■", "pruned": "×", "blocked": "⊘"}
STYLES = {"kept": "", "ended": "green", "pruned": "dim", "blocked": "red"}
GAP = re.compile(r" \([\d.]+ (?:below|above)\)")
"""Matches the distance to the last hypothesis kept, which follows the log-probability of a token that was not kept."""
MAX_TOKEN_WIDTH = 12
MIN_OTHERS_WIDTH = 24
"""Minimum width of the tokens that were not kept, if they are shown next to the lanes."""
FRAME_LINES = 8
"""Number of lines that are not steps: title, settings, heading, note about steps left out, two lines of legend, reason
why the search stopped, and prompt."""


SEE_ALL = "--steps 0 or -o page.html shows all"
"""Hint on how to make `nmtkit explain` show all steps."""


def show_search(tree: SearchTree, steps: int | None = None, see_all: str = SEE_ALL) -> int:
    """Prints the tree of a beam search, as described in the help of `nmtkit explain`, with a legend of the signs.

    A sign before a token points to the hypothesis that it continues: directly above, or to the left or right. If the
    beam is wider than 2, the lane number of a hypothesis to the left or right precedes the sign.

    Args:
        tree: the tree of the search.
        steps: number of steps to show, half of them from the beginning and half from the end; 0 shows all, and None
            as many as fit into the terminal (or into 24 lines).
        see_all: hint on how to see all steps, shown in place of the steps left out.

    Returns:
        the number of steps that were left out.
    """
    console = plain_console(sys.stdout)
    width, height = shutil.get_terminal_size()
    layout = _Layout(tree, width)
    rows = [layout.lines(step) for step in range(len(tree.steps))]
    results = [_result(rank, tree, width) for rank in range(len(tree.results))]
    shown = (
        _fitting(rows, height - FRAME_LINES - len(results)) if steps is None else steps or len(rows)
    )
    left_out = max(0, len(rows) - shown)
    first, last = _ends(rows, shown)
    lines = [*first]
    if left_out:
        sentence = f"     … {left_out} of {len(rows)} steps are not shown: {see_all} …"
        lines.append(Text(cut(sentence, width), "italic"))
    lines += last
    legend = [Text(line, "italic") for line in _legend(lines)]
    for line in [*layout.heading(), *lines, *legend, Text(tree.stopped), *results]:
        console.print(line, soft_wrap=True)
    return left_out


def _legend(lines: Sequence[Text]) -> list[str]:
    """Returns the legend of the signs and distances that occur in the lines."""
    signs = {sign for line in lines for sign in line.plain}
    meanings = [f"{sign} {meaning}" for sign, meaning in LEGEND.items() if sign in signs]
    legend = ["  ".join(meanings)]
    if any(GAP.search(line.plain) for line in lines):
        legend.append("(0.1 below): 0.1 nats below the last hypothesis kept")
    return legend


def _ends(rows: Sequence[Sequence[Text]], shown: int) -> tuple[list[Text], list[Text]]:
    """Returns the lines of the first steps and those of the last steps, `shown` steps in total."""
    first = min(-(-shown // 2), len(rows))
    last = max(first, len(rows) - shown // 2)
    return list(chain(*rows[:first])), list(chain(*rows[last:]))


def _fitting(rows: Sequence[Sequence[Text]], height: int) -> int:
    """Returns the number of steps that fit into `height` lines, at least 1."""
    # one line more, because no line about steps left out is needed
    if sum(map(len, rows)) <= height + 1:
        return len(rows)
    return max(
        (shown for shown in range(1, len(rows)) if sum(map(len, _ends(rows, shown))) <= height),
        default=1,
    )


def _result(rank: int, tree: SearchTree, width: int) -> Text:
    one = tree.results[rank]
    scores = f"{rank + 1:>2}{'*' if not rank else ' '} score {one.score:.6f}  log-probability {one.log_prob:.6f}"
    limit = "" if one.finished else "  (cut at the length limit)"
    return Text(cut(f"{scores}  {printable(one.text)}{limit}", width), "bold" if not rank else "")


class _Layout:
    def __init__(self, tree: SearchTree, width: int) -> None:
        self._tree, self._width = tree, width
        self._sign = 2 if tree.beam_size < 3 else 2 + len(str(tree.beam_size))
        kept = [one for step in tree.steps for one in step if one.fate == "kept"]
        self._lane = self._sign + max((cell_len(_label(one)) for one in kept), default=0) + 2
        fitting = max(1, (width - 5 - MIN_OTHERS_WIDTH) // self._lane)
        # whether tokens that were not kept are shown next to the lanes instead of below them
        self._beside = tree.beam_size <= fitting
        self._count = (
            tree.beam_size
            if self._beside
            else max(1, min(tree.beam_size, (width - 5) // self._lane))
        )

    def heading(self) -> list[Text]:
        tree = self._tree
        indent = " " * (2 if tree.beam_size < 3 else 3)
        lanes = "".join(
            set_cell_size(f"{indent}kept {lane + 1}", self._lane) for lane in range(self._count)
        )
        return [
            Text(cut(printable(tree.source), self._width), "bold"),
            Text(
                cut(
                    f"{printable(tree.name)}, {tree.settings}; log-probabilities in nats",
                    self._width,
                )
            ),
            Text(f"step {lanes}{'not kept' if self._beside else ''}".rstrip(), "underline"),
        ]

    def lines(self, step: int) -> list[Text]:
        """Returns the lines of a step: one, or more if it does not fit into one."""
        tokens = list(enumerate(self._tree.steps[step]))
        lanes = [self._kept(step, number) for number, one in tokens if one.fate == "kept"]
        lines = [
            Text().join(lanes[at : at + self._count]) for at in range(0, len(lanes), self._count)
        ] or [Text()]
        indent = self._lane * self._count if self._beside else 0
        width = self._width - 5 - indent
        others = [self._other(step, number) for number, one in tokens if one.fate != "kept"]
        below = [Text("  ").join(parts) for parts in flow(others, width, 2)]
        for line in below:
            line.truncate(width, overflow="ellipsis")
        if self._beside and below:
            lines[0].pad_right(max(0, indent - lines[0].cell_len))
            lines[0].append(below.pop(0))
        lines += [Text(" " * indent) + line for line in below]
        for line in lines:
            line.rstrip()
        return [
            Text(f"{step + 1:>4} " if not number else " " * 5) + line
            for number, line in enumerate(lines)
        ]

    def _kept(self, step: int, number: int) -> Text:
        one, best = self._tree.steps[step][number], (step, number) in self._tree.best
        text = f"{self._edge(step, number, one.parent)}{'*' if best else ' '}{_label(one)}"
        return (
            Text().append(text, "bold" if best else "").append(" " * (self._lane - cell_len(text)))
        )

    def _edge(self, step: int, number: int, parent: int) -> str:
        if not step:
            return " " * (self._sign - 1)
        sign = "│" if parent == number else "╲" if parent < number else "╱"
        return (
            f"{parent + 1 if self._sign > 2 and parent != number else '':>{self._sign - 2}}{sign}"
        )

    def _other(self, step: int, number: int) -> Text:
        one = self._tree.steps[step][number]
        best = (step, number) in self._tree.best
        start = f"{MARKS[one.fate]}{one.parent + 1 if step else ''} "
        if one.fate == "ended":
            return Text(
                f"{start}{'*' if best else ''}score {one.score:.3f}",
                "bold green" if best else STYLES["ended"],
            )
        if one.fate == "blocked":
            remark = f" {one.rule}"
        elif one.margin is not None:
            remark = f" ({one.gap(digits=2)})"
        else:
            remark = ""
        return Text(f"{start}{_label(one)}{remark}", STYLES[one.fate])


def _token(one: TreeNode) -> str:
    return cut(printable(one.token), MAX_TOKEN_WIDTH)


def _label(one: TreeNode) -> str:
    return f"{_token(one)} {one.log_prob:.2f}"
