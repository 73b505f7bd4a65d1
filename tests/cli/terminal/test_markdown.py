"""Pages of the guide at a terminal: code that is too long for a line can still be copied and run."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml
from rich.cells import cell_len

from nmtkit.cli.terminal.markdown import fold_code, rendered_page

ROOT = Path(__file__).resolve().parents[3]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
BLOCKS = [
    (path.stem, fence[1], fence[2])
    for path in [ROOT / "README.md", *sorted((ROOT / "nmtkit" / "guide").glob("*.md"))]
    for fence in FENCE.finditer(path.read_text(encoding="utf-8"))
]


def meaning(code: str, language: str) -> object:
    if language == "yaml":
        return list(yaml.safe_load_all(code))
    if language == "python":
        return ast.dump(ast.parse(code))
    return [word for word in shlex.split(code.replace("\\\n", " "), comments=True) if word]


@pytest.mark.parametrize("width", [56, 86])
def test_folded_code_means_the_same(width: int) -> None:
    folded = 0
    for page, language, code in BLOCKS:
        lines = []
        for line in code.splitlines():
            parts = fold_code(line, language=language, width=width)
            folded += len(parts) > 1
            lines += parts
        assert meaning("\n".join(lines), language) == meaning(code, language), page
    assert folded > 50


def test_commands_are_folded_between_words() -> None:
    line = (
        'nmtkit plot-attention -m runs/mine "The old woman sleeps." -o attention.png  # a heat-map'
    )
    assert fold_code(line, language="", width=50) == [
        "# a heat-map",
        "nmtkit plot-attention -m runs/mine \\",
        '  "The old woman sleeps." -o attention.png',
    ]


def test_a_page_fits_the_terminal() -> None:
    text = (
        "Some words about it:\n\n```\n"
        + "nmtkit train mine.yaml "
        + "--set training.lr=0.001 " * 6
        + "\n```\n"
    )
    plain = re.sub(r"\x1b\[[0-9;]*m", "", rendered_page(text, width=60))
    assert max(cell_len(line.rstrip()) for line in plain.splitlines()) <= 60
    assert plain.count("\\") == 3
