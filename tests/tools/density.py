"""How densely code is written: nodes of the syntax tree per line of code.

A line of code is neither blank, nor a comment, nor part of a docstring. Docstrings, operators and the contexts Load and
Store are not counted as nodes. The median function of Joey NMT has 5.4 nodes per line, that of Sockeye 5.6.
"""

import ast
import io
import tokenize
from dataclasses import dataclass
from functools import cache
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


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file, which every measure of it shares."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the tree of a file."""
    return tuple(ast.walk(tree_of(path)))


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


@cache
def code_lines(path: Path) -> frozenset[int]:
    """The numbers of the lines that hold code."""
    lines: set[int] = set()
    text = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in UNCOUNTED_TOKENS:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in nodes_of(path):
        if is_docstring(node):
            assert isinstance(node, ast.Expr)
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return frozenset(lines)


def count_nodes(tree: ast.AST) -> int:
    """The counted nodes of a tree, its root included."""
    if is_docstring(tree):
        return 0
    below = sum(count_nodes(child) for child in ast.iter_child_nodes(tree))
    return below + (not isinstance(tree, UNCOUNTED_NODES))


@cache
def functions(path: Path) -> tuple[Function, ...]:
    """Every function and method of a file; a function within another counts for both."""
    lines, found = code_lines(path), []
    for node in nodes_of(path):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            length = len(lines.intersection(range(node.lineno, node.end_lineno + 1)))
            found.append(Function(node.name, node.lineno, length, count_nodes(node)))
    return tuple(found)
