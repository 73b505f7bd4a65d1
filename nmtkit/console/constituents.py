"""A constituency tree in a terminal: a line for each word, the root on the left."""

from rich.cells import cell_len

from nmtkit.core.trees import PLACEHOLDER, Tree


def tree_lines(tree: Tree) -> list[str]:
    """The lines of a tree; the placeholder of a part of speech is not shown."""
    if tree.word is not None:
        return [tree.word if tree.label in (PLACEHOLDER, tree.word) else f"{tree.label} {tree.word}"]
    lines: list[str] = []
    indent, last = " " * cell_len(tree.label), len(tree.children) - 1
    for number, child in enumerate(tree.children):
        first, *others = tree_lines(child)
        joint = "─" if not last else "┬" if not number else "├" if number < last else "└"
        lines.append(f"{indent if number else tree.label} {joint} {first}")
        lines += [f"{indent} {'│' if number < last else ' '} {line}" for line in others]
    return lines
