"""How densely code is written: nodes of the syntax tree per line of code.

A line of code is neither blank, nor a comment, nor part of a docstring. Docstrings, operators and the contexts Load and
Store are not counted as nodes. The median function of Joey NMT has 5.4 nodes per line, that of Sockeye 5.6.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNCOUNTED_NODES = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
UNCOUNTED_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
SHORTEST = 5
"""Functions with fewer lines of code are not judged."""


@dataclass(frozen=True)
class Function:
    """The size of one function."""

    name: str
    line: int
    code_lines: int
    nodes: int

    @property
    def density(self) -> float:
        """Nodes per line of code."""
        return self.nodes / self.code_lines


def is_docstring(node: ast.AST) -> bool:
    """Whether a statement is a string by itself."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def code_lines(text: str) -> set[int]:
    """The numbers of the lines that hold code."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in UNCOUNTED_TOKENS:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if is_docstring(node):
            assert isinstance(node, ast.Expr)
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def count_nodes(tree: ast.AST) -> int:
    """The counted nodes of a tree, its root included."""
    if is_docstring(tree):
        return 0
    below = sum(count_nodes(child) for child in ast.iter_child_nodes(tree))
    return below + (not isinstance(tree, UNCOUNTED_NODES))


def functions(path: Path) -> Iterator[Function]:
    """Every function and method of a file; a function within another counts for both."""
    text = path.read_text(encoding="utf-8")
    lines = code_lines(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            length = len(lines.intersection(range(node.lineno, node.end_lineno + 1)))
            yield Function(node.name, node.lineno, length, count_nodes(node))
