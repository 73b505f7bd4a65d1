"""The density of functions that were counted by hand."""

from pathlib import Path

import pytest

from tests.tools.density import functions

SOURCE = '''
"""A docstring of the file."""


def area(width, height):
    """Returns the area."""

    # A comment, and a blank line above it.
    product = width * height
    return product


class Shape:
    def longer(self, other):
        if other is None:
            return self
        return other
'''


def test_nodes_and_lines_of_code_were_counted_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "shapes.py"
    path.write_text(SOURCE)
    area, longer = functions(path)
    # FunctionDef, arguments, 2 arg; Assign, Name, BinOp, 2 Name; Return, Name
    assert (area.name, area.line, area.code_lines, area.nodes) == ("area", 5, 3, 11)
    # FunctionDef, arguments, 2 arg; If, Compare, Name, Constant; Return, Name; Return, Name
    assert (longer.name, longer.line, longer.code_lines, longer.nodes) == ("longer", 14, 4, 12)
    assert area.density == pytest.approx(11 / 3)
