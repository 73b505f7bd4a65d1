"""Writes the list of recipe keys that completion reads:   python -m tests.tools.recipe_keys"""

from pathlib import Path

from nmtkit import config
from nmtkit.core.settings import key_paths

FILE = (
    Path(__file__).resolve().parents[2]
    / "nmtkit"
    / "cli"
    / "commands"
    / "options"
    / "recipe_keys.py"
)
HEAD = '''"""Recipe keys for shell completion, for which importing the settings would take too long.

`python -m tests.tools.recipe_keys` generates this file.
"""

KEYS = (
'''


def written() -> str:
    """The text of the file."""
    paths = key_paths(config.Recipe)
    keys = dict.fromkeys(".".join(map(str, path)) for path in paths if path[0] != "stages")
    lines = "".join(f'    "{key}",\n' for key in keys)
    return f"{HEAD}{lines})\n"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
