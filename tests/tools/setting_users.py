"""Who needs each setting: `python -m tests.tools.setting_users [--without]`.

A setting has a user if a recipe sets it, the guide or the README explains it, a command or a preset of nmtkit sets it,
an imported model needs it, or a paper has it: the setting, its class or its file cites one.
"""

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tools import house

ROOT = Path(__file__).resolve().parents[2]
CITATION = re.compile(
    r"et al\.|\([A-Z][\w\s,]*(?:19|20)\d\d|[A-Z]\w+ (?:and [A-Z]\w+ )?(?:19|20)\d\d"
)
PLACES = {
    "recipe": ["recipes/*.yaml"],
    "guide": ["README.md", "nmtkit/guide/*.md", "recipes/README.md", "recipes/results/*.md"],
    "command": ["nmtkit/cli/**/*.py"],
    "preset": ["nmtkit/experiment/presets/*.py", "nmtkit/datasets/*.py"],
    "import": ["nmtkit/convert/**/*.py"],
}
"""Where users are looked for, in the order in which they are named."""
READ_FROM_FILES = ("nmtkit/runs/", "nmtkit/data/tokenizers/", "nmtkit/data/batches/")
"""Classes here also hold what nmtkit itself writes into a run, and reads again."""


@dataclass(frozen=True)
class Setting:
    """A field of a class of settings."""

    file: str
    owner: str
    name: str
    paper: str
    """The first line that cites a paper, of its own text, its class or its file; empty without one."""


def settings() -> Iterator[Setting]:
    """Yields all settings of nmtkit, without the fields of foreign files."""
    foreign = {owner.name for owner in house.subclasses_of("ExternalSettings")}
    names = {owner.name for owner in house.subclasses_of("Settings")} - foreign
    for path in house.FILES:
        tree = house.tree_of(path)
        for owner in house.classes_of(path):
            if owner.name in names:
                yield from _fields(path, tree, owner)


def _fields(path: Path, tree: ast.Module, owner: ast.ClassDef) -> Iterator[Setting]:
    for number, field in enumerate(owner.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if "ClassVar" in ast.unparse(field.annotation):
            continue
        following = owner.body[number + 1] if number + 1 < len(owner.body) else None
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = str(following.value.value)
        texts = [text, ast.get_docstring(owner) or "", ast.get_docstring(tree) or ""]
        lines = [line.strip() for part in texts for line in part.splitlines()]
        paper = next((line for line in lines if CITATION.search(line)), "")
        yield Setting(str(path.relative_to(ROOT)), owner.name, field.target.id, paper)


def texts_of(kind: str) -> dict[str, str]:
    """Returns the texts of one kind of places, by file."""
    files = sorted({path for pattern in PLACES[kind] for path in ROOT.glob(pattern)})
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}


def user_of(setting: Setting, texts: dict[str, dict[str, str]]) -> str:
    """Returns who needs a setting, the first that is found; empty if nobody does."""
    name = re.escape(setting.name)
    in_yaml = re.compile(rf"(?:^|[\s{{,.]){name}[:=]", re.MULTILINE)
    in_text = re.compile(rf"`[^`\n]*\b{name}\b[^`\n]*`|(?:^|[\s{{,.]){name}[:=]", re.MULTILINE)
    in_code = re.compile(rf"[\"'.]{name}\b|\b{name}=")
    patterns = {
        "recipe": in_yaml,
        "guide": in_text,
        "command": in_code,
        "preset": in_code,
        "import": in_code,
    }
    for kind, pattern in patterns.items():
        for file, text in texts[kind].items():
            if setting.name in text and pattern.search(text):
                return f"{kind}: {file}"
    if setting.paper:
        return f"paper: {setting.paper}"
    if setting.file.startswith(READ_FROM_FILES):
        return "nmtkit writes it into a run"
    return ""


def users() -> dict[Setting, str]:
    """Returns the user of each setting."""
    texts = {kind: texts_of(kind) for kind in PLACES}
    return {setting: user_of(setting, texts) for setting in settings()}


def main() -> None:
    """Prints a line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", action="store_true", help="only settings without a user")
    without = parser.parse_args().without
    for setting, user in users().items():
        if not (without and user):
            print(f"{setting.file}  {setting.owner}.{setting.name}  {user or 'NOBODY'}")


if __name__ == "__main__":
    main()
