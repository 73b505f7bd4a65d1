"""The size and complexity of the source in numbers, read with `ast`.   Print them:  python -m tests.house

A room is a top folder of the package.
"""

import ast
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click

from nmtkit.cli import cli
from tests.tools.density import SHORTEST, Function, code_lines, functions, nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "nmtkit"
FILES = sorted(PACKAGE.rglob("*.py"))
ENTRANCES = {"__init__.py", "__main__.py"}


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(name: str) -> str:
    return name.split("/")[0].removesuffix(".py")


@cache
def length_of(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def code_of(path: Path) -> int:
    """Lines of code: neither blank, nor a comment, nor within a docstring."""
    return len(code_lines(path))


@cache
def imports(path: Path, nested: bool) -> list[str]:
    """Absolute dotted names imported by a file; `nested` includes those inside functions."""
    found = []
    for node in nodes_of(path) if nested else tree_of(path).body:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # `from nmtkit.core import files` may name a module, `from nmtkit.core.files import X` a thing in one.
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def rooms() -> set[str]:
    return {room_of(name_of(path)) for path in FILES if name_of(path) not in ENTRANCES}


def names_defined_twice() -> dict[str, list[str]]:
    """Public classes and functions that several modules of one folder define; every command is called `command`."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for path in FILES:
        folder = path.parent.relative_to(PACKAGE).as_posix()
        for node in tree_of(path).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
                found[folder, node.name].append(name_of(path))
    return {
        f"{folder}.{name}": where
        for (folder, name), where in sorted(found.items())
        if where[1:] and name != "command"
    }


def sizes_of_rooms() -> dict[str, tuple[int, int, int]]:
    """Files (those that say what a folder is left out), lines and lines of code of each room."""
    of_room: defaultdict[str, list[Path]] = defaultdict(list)
    for path in FILES:
        of_room[room_of(name_of(path))].append(path)
    return {
        room: (
            sum(path.name != "__init__.py" for path in paths),
            sum(map(length_of, paths)),
            sum(map(code_of, paths)),
        )
        for room, paths in of_room.items()
        if room in rooms()
    }


def all_functions() -> list[tuple[str, Function]]:
    """The functions of all files, each with its file."""
    return [(name_of(path), function) for path in FILES for function in functions(path)]


@cache
def classes_of(path: Path) -> dict[ast.ClassDef, set[str]]:
    """The classes of a file, each with the names of the classes that it inherits from."""
    classes = [node for node in nodes_of(path) if isinstance(node, ast.ClassDef)]
    return {node: {ast.unparse(base).split("[")[0] for base in node.bases} for node in classes}


def subclasses_of(root: str) -> list[ast.ClassDef]:
    """The classes of the package that inherit from a class of this name, also through others."""
    classes = [found for path in FILES for found in classes_of(path).items()]
    names = {root}
    while True:
        found = [node for node, bases in classes if names & bases]
        if names.issuperset(node.name for node in found):
            return found
        names.update(node.name for node in found)


def count_fields(classes: Iterable[ast.ClassDef]) -> int:
    """Fields of classes of settings; a field that is inherited counts once."""
    fields = [
        part for settings in classes for part in settings.body if isinstance(part, ast.AnnAssign)
    ]
    return sum("ClassVar" not in ast.unparse(field.annotation) for field in fields)


def count_settings() -> tuple[int, int]:
    """Settings of nmtkit, and fields of the files of other toolkits, which no user of nmtkit sets."""
    foreign = subclasses_of("ExternalSettings")
    own = [settings for settings in subclasses_of("Settings") if settings not in foreign]
    return count_fields(own), count_fields(foreign)


def commands_and_options() -> tuple[int, int]:
    """The number of commands, and of different options."""
    commands = 0
    options: set[str] = set()

    def visit(command: click.Command, context: click.Context) -> None:
        nonlocal commands
        options.update(
            max(part.opts, key=len) for part in command.params if isinstance(part, click.Option)
        )
        if not isinstance(command, click.Group):
            commands += 1
            return
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            visit(below, below.context_class(below, info_name=name, parent=context))

    visit(cli, click.Context(cli, info_name="nmtkit"))
    return commands, len(options)


BASE_CLASSES = ("Model", "Decoder", "Seq2Seq")


def overridable() -> set[str]:
    """The methods and attributes of the base classes of models that a subclass may override."""
    classes = [
        node
        for node in tree_of(PACKAGE / "models" / "base.py").body
        if isinstance(node, ast.ClassDef)
    ]
    parts = [part for node in classes if node.name in BASE_CLASSES for part in node.body]
    names = set()
    for part in parts:
        if isinstance(part, ast.FunctionDef) and not any(
            "final" in ast.unparse(mark) for mark in part.decorator_list
        ):
            names.add(part.name)
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            names.add(part.target.id)
    return {name for name in names if not name.startswith("_")}


def complexity() -> dict[str, int]:
    """The numbers that may only fall; `tests/test_architecture.py` has their limits."""
    sizes = [function for _, function in all_functions()]
    commands, options = commands_and_options()
    settings, foreign_fields = count_settings()
    return {
        "functions above 10 nodes per line": sum(
            size.code_lines >= SHORTEST and size.density > 10 for size in sizes
        ),
        "functions above 80 lines of code": sum(size.code_lines > 80 for size in sizes),
        "settings": settings,
        "fields of foreign files": foreign_fields,
        "options": options,
        "commands": commands,
        "overridable parts of models": len(overridable()),
        "raise statements": sum(
            isinstance(node, ast.Raise) for path in FILES for node in nodes_of(path)
        ),
    }


COUNTING = """
import atexit, json, os, sys, threading
opened, entered = {}, set()
def note_open(event, arguments):
    if event == "open" and not isinstance(arguments[0], int):
        name = os.path.basename(os.fsdecode(arguments[0]))
        opened[name] = opened.get(name, 0) + 1
def note_call(frame, event, argument):
    code = frame.f_code
    if code.co_flags & 3 == 3 and os.sep + "nmtkit" + os.sep in code.co_filename:  # a function
        entered.add(code.co_filename)
def report():
    sys.settrace(None)  # what ends with the process is not entered by the command
    print(json.dumps([opened, [*sys.modules], [*entered]]), file=sys.stderr)
atexit.register(report)
sys.addaudithook(note_open)
threading.settrace(note_call)  # of the lines in what is called nothing is noted: note_call returns None
sys.settrace(note_call)
from nmtkit.cli import cli
cli(sys.argv[1:])
"""


class Trace(NamedTuple):
    """What a command did in a process of its own."""

    opened: Counter[str]
    """How often it opened the files of each name."""
    imported: set[str]
    """The modules that it imported."""
    entered: set[str]
    """The files of the package in which it called a function."""


def traced(*arguments: str, text: str = "") -> Trace:
    """Runs a command."""
    command = [sys.executable, "-c", COUNTING, *arguments]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    opened, imported, entered = json.loads(done.stderr.splitlines()[-1])
    return Trace(
        Counter(opened),
        set(imported),
        {name for name in entered if Path(name).is_relative_to(PACKAGE)},
    )


def reads() -> dict[str, object]:
    """What `preprocess` and the translation of one line read and enter."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder, "run"))
        quick = ("training.max_updates=1", "evaluation.max_sentences=1", "data.test=null")
        text = traced("preprocess", "demo", "--run", run).opened
        traced(
            "train",
            "demo",
            "--run",
            run,
            "--device",
            "cpu",
            *(word for one in quick for word in ("--set", one)),
        )
        line = traced("translate", "-m", run, "--device", "cpu", text="a b\n")
    return {
        "preprocess reads the text": max(text["train.en.gz"], text["train.fr.gz"]),
        "translate reads its recipe": line.opened["recipe.yaml"],
        "translate imports, enters": f"{sum(name.split('.')[0] == 'nmtkit' for name in line.imported)} modules, "
        f"{len(line.entered)} files",
    }


def main() -> None:
    lengths = sorted(((length_of(path), name_of(path)) for path in FILES), reverse=True)
    measured = all_functions()
    longest = sorted(measured, key=lambda function: -function[1].code_lines)
    densest = sorted(
        (one for one in measured if one[1].code_lines >= SHORTEST), key=lambda one: -one[1].density
    )
    rows = {
        "files, lines": f"{len(lengths)}, {sum(length for length, _ in lengths):,}",
        **complexity(),
        "nodes per line, median function": f"{densest[len(densest) // 2][1].density:.1f}",
        "names defined twice in a folder": f"{len(names_defined_twice())} {names_defined_twice() or ''}",
        **reads(),
        "longest files": ", ".join(f"{name} {length}" for length, name in lengths[:10]),
        "longest functions": ", ".join(
            f"{name}: {size.name} {size.code_lines}" for name, size in longest[:10]
        ),
        "densest functions": ", ".join(
            f"{name}: {size.name} {size.density:.1f}" for name, size in densest[:10]
        ),
        "rooms (files, lines, of code)": "; ".join(
            f"{room} {files}, {lines:,}, {code:,}"
            for room, (files, lines, code) in sorted(sizes_of_rooms().items())
        ),
    }
    for name, value in rows.items():
        print(f"{name:36}{value}")


if __name__ == "__main__":
    main()
