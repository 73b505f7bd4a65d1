"""The house rules as data: who may import whom, and which library has which door. Read from the source with `ast`."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.tools import setting_users
from tests.tools.density import SHORTEST, nodes_of, tree_of
from tests.tools.house import (
    ENTRANCES,
    FILES,
    PACKAGE,
    ROOT,
    all_functions,
    complexity,
    imports,
    name_of,
    names_defined_twice,
    room_of,
    rooms,
)
from tests.tools.machines.__main__ import LEFT_OUT, PLACES

# Room (a file or a folder of the package) -> floor. A room imports from lower floors, and from itself.
FLOORS = {
    "core": 1,
    "data": 2,
    "layers": 2,
    "plots": 2,
    "metrics": 3,
    "models": 3,
    "datacheck": 3,
    "decoding": 4,
    "training": 4,
    "config": 6,
    "runs": 7,
    "inference": 8,
    "convert": 9,
    "experiment": 9,
    "datasets": 11,
    "cli": 12,
}

# It is on no floor: nothing imports it, and it imports only what the guide's page on extending names.
ZOO = "zoo"

# What may only fall; a commit that raises a number says who needs it. `python -m tests.house` prints the numbers.
MOST = {
    "functions above 10 nodes per line": 79,
    "functions above 80 lines of code": 0,
    "settings": 424,
    "fields of foreign files": 187,
    "options": 125,
    "commands": 42,
    "overridable parts of models": 14,
    "raise statements": 828,
}

PLAIN_PACKAGES = ("decoding", "layers", "models", "training", "data", "inference")
"""Packages that people read first; the density of their functions has limits of its own."""

MOST_ENTRIES = 15
# Folders that still have more entries than that; these numbers may only fall as well.
FULL_FOLDERS = {".": 19}

# Library -> the only files that may import it.
DOORS = {
    "click": {"cli", "zoo/parsing/commands.py", "zoo/parsing/parse.py"},
    "cloup": {"cli", "zoo/parsing/commands.py"},
    "rich": {"cli", "zoo/parsing/pictures.py"},
    "sentencepiece": {"data/tokenizers/tokenizer.py", "data/tokenizers/sentencepiece_rules.py"},
    "tokenizers": {"data/tokenizers/huggingface_tokenizer.py"},
    "sacrebleu": {"metrics/bleu.py", "datasets/sacrebleu_sets.py"},
    "rouge_score": {"metrics/rouge.py"},
    "bert_score": {"metrics/neural.py"},
    "yaml": {"core/formats.py"},
    "pydantic": {"core/settings.py"},
    "matplotlib": {"plots"},
    "jinja2": {"plots/pages.py"},
    "markupsafe": {"plots/pages.py"},
    "safetensors": {"training/checkpoints/tensor_files.py"},
    "requests": {"datasets/download.py"},
    "urllib3": {"datasets/download.py"},
    "triton": {"layers/triton_kernels.py"},
    "PIL": {"data/text/features.py"},
    "py3langid": {"datacheck/language.py"},
}

# Imports that do not stand at the top of a file: lazy commands, heavy libraries in their one door, and what the
# translation of a line does without.
LAZY = {
    "cli/__init__.py",
    "cli/options.py",
    "cli/inference/translate.py",
    "inference/attention_views.py",
    "inference/result.py",
    "inference/long_texts.py",
    "inference/translator.py",
    "core/files.py",
    "plots",
    "datacheck/language.py",
    "experiment/presets/fitting.py",
    "data/text/features.py",
    "runs/folder.py",
    "runs/metrics_log.py",
    "runs/run.py",
    "layers/kernels.py",
    "data/tokenizers/huggingface_tokenizer.py",
    "training/sharding.py",
    "metrics/bleu.py",
    "metrics/neural.py",
    "metrics/rouge.py",
    "__init__.py",
}


def test_every_room_has_a_floor() -> None:
    assert rooms() == {*FLOORS, ZOO}


def test_the_top_level_is_fixed() -> None:
    """A training that was begun here is not committed with the change."""
    kept = subprocess.run(
        ["git", "ls-tree", "--name-only", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    if kept.returncode:
        pytest.skip("not a clone")
    folders = {"nmtkit", "recipes", "tests", "data"}
    pages = {
        "README.md",
        "LICENSE",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "Makefile",
        "pyproject.toml",
    }
    assert {name for name in kept.stdout.split() if not name.startswith(".")} <= folders | pages


def test_a_test_file_that_is_named_is_there() -> None:
    """Other targets of the Makefile, the continuous integration and the pages name tests by their paths."""
    pages = [
        ROOT / "Makefile",
        ROOT / "README.md",
        ROOT / "pyproject.toml",
        *(ROOT / ".ci").iterdir(),
    ]
    pages += [
        *(ROOT / "recipes").rglob("*.md"),
        *(path for path in (ROOT / "tests").rglob("*") if path.suffix in (".py", ".sh")),
    ]
    named = {
        name
        for page in pages
        for name in re.findall(r"tests/[\w/]+\.(?:py|sh)", page.read_text("utf-8"))
    }
    assert len(named) > 5
    assert [
        name for name in sorted({*named, *PLACES, *LEFT_OUT}) if not (ROOT / name).exists()
    ] == []


PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_the_page_of_the_architecture_has_the_floors() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert {room: int(floor) for floor, room in rows} == FLOORS
    assert f"| beside | `{ZOO}` |" in PAGE


def test_what_the_page_of_the_architecture_names_is_there() -> None:
    """A path is a file or a folder, a type is defined in the file beside it, every other name occurs in the code."""
    named = re.findall(r"`((?:nmtkit|tests|data|recipes)/[\w./]*)`", PAGE)
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []
    types = re.findall(r"^\| (`.*?`) \| `(nmtkit/[\w/.]+)` \|", PAGE, re.MULTILINE)
    wanted = {(name, file) for names, file in types for name in re.findall(r"`(\w+)`", names)}
    assert len(wanted) > 10
    defined = {
        (node.name, path.relative_to(ROOT).as_posix())
        for path in FILES
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef)
    }
    assert wanted - defined == set()
    code = {word for path in FILES for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    words = {name for name in re.findall(r"`([A-Za-z_]+)`", PAGE) if name not in FLOORS}
    assert sorted(words - code) == []


def test_every_package_is_built() -> None:
    """`pyproject.toml` names the packages one by one, since two of them lie elsewhere in the tree."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in FILES
        if path.name == "__init__.py"
    }
    assert len(packages) >= 7
    for package in packages:
        assert f'    "{package}",\n' in text, f"{package} is missing in pyproject.toml"


def test_imports_go_downward() -> None:
    upward, seen = [], 0
    for path in FILES:
        name = name_of(path)
        room = room_of(name)
        if name in ENTRANCES or room == ZOO:
            continue
        for module in imports(path, nested=True):
            parts = module.split(".")
            if parts[0] == "nmtkit" and len(parts) > 1 and parts[1] in FLOORS and parts[1] != room:
                seen += 1
                if FLOORS[parts[1]] >= FLOORS[room]:
                    upward.append(
                        f"{name} (floor {FLOORS[room]}) imports {module} (floor {FLOORS[parts[1]]})"
                    )
    assert upward == []
    assert seen > 500


def test_only_the_table_of_engines_names_a_module_above_it() -> None:
    """Registries import modules that they name as strings; the zoo stands beside the floors."""
    upward = set()
    for path in FILES:
        name = name_of(path)
        room = room_of(name)
        if name in ENTRANCES or room == ZOO:
            continue
        for node in ast.walk(tree_of(path)):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            named = re.fullmatch(r"nmtkit\.(\w+)[\w.]*", node.value)
            if named and named[1] in FLOORS and FLOORS[named[1]] > FLOORS[room]:
                upward.add((name, node.value))
    assert upward == {("inference/loading/engines.py", "nmtkit.convert.ctranslate2_search")}


def test_nothing_imports_the_zoo() -> None:
    """Registries name its modules as strings."""
    paths = [path for path in FILES if room_of(name_of(path)) != ZOO]
    imported = {name for path in paths for name in imports(path, nested=True)}
    assert [name for name in sorted(imported) if name.startswith("nmtkit.zoo")] == []


def test_the_zoo_imports_what_the_page_on_extending_names() -> None:
    page = (PACKAGE / "guide" / "extending.md").read_text(encoding="utf-8")
    public = set(re.findall(r"^\| `(nmtkit[\w.]*)` \|", page, re.MULTILINE))
    assert len(public) > 5
    known = modules()
    assert public <= known.keys()
    used = set()
    for path in FILES:
        if room_of(name_of(path)) != ZOO:
            continue
        for name in imports(path, nested=True):
            module = name if name in known else name.rpartition(".")[0]
            if module.startswith("nmtkit."):
                used.add(module)
                is_own = module.startswith("nmtkit.zoo")
                assert is_own or module in public, (
                    f"{name_of(path)} imports {module}, which the page does not name"
                )
                assert is_own or not name.rpartition(".")[2].startswith("_"), (
                    f"{name_of(path)} imports {name}"
                )
    assert len(used & public) > 5


def modules() -> dict[str, Path]:
    """The modules of the package by their dotted names."""
    named = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    paths = modules()
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        names = imports(path, nested=False)
        imported = {name if name in paths else name.rpartition(".")[0] for name in names}
        graph[module] = {name for name in imported if name in paths and name != module}
    assert len(graph) > 300
    assert sum(map(len, graph.values())) > 1000
    tuple(TopologicalSorter(graph).static_order())  # CycleError names the circle


IMPORTED_ALONE = """
import os, sys
import numpy  # once for all processes, since it takes longer than everything else
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            __import__(name)
        except BaseException as fault:
            print(f"{name}: {fault!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{name} cannot be imported by itself")
"""


def test_each_package_can_be_imported_alone() -> None:
    packages = [
        name for name, path in modules().items() if path.name == "__init__.py" and name != "nmtkit"
    ]
    assert len(packages) > 20
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED_ALONE, *packages],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_complexity_does_not_grow() -> None:
    measured = complexity()
    assert measured.keys() == MOST.keys()
    assert {name: number for name, number in measured.items() if number > MOST[name]} == {}
    lower = {name: number for name, number in measured.items() if number < MOST[name]}
    assert lower == {}, "write these numbers into MOST, so that they do not grow again"


def test_the_heart_is_written_plainly() -> None:
    functions = [
        function
        for name, function in all_functions()
        if name.partition("/")[0] in PLAIN_PACKAGES and function.code_lines >= SHORTEST
    ]
    densities = sorted(function.density for function in functions)
    assert len(densities) > 1000
    assert densities[len(densities) // 2] <= 6.5
    assert densities[len(densities) * 9 // 10] <= 9
    assert densities[-1] <= 12
    assert sum(density > 10 for density in densities) <= 8
    assert [function.name for function in functions if function.code_lines > 80] == []


def entries_of(folder: Path) -> int:
    """Files and folders in a folder, without what Python itself writes, also in folders that have been moved away."""
    left_out = ENTRANCES | {"__pycache__"}
    visible = [
        path
        for path in folder.iterdir()
        if path.name not in left_out and not path.name.startswith(".")
    ]
    return sum(
        path.is_file() or any(child.name != "__pycache__" for child in path.iterdir())
        for path in visible
    )


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    folders = {path.parent for path in FILES}
    entries = {folder.relative_to(PACKAGE).as_posix(): entries_of(folder) for folder in folders}
    full = {
        name: count
        for name, count in entries.items()
        if count > FULL_FOLDERS.get(name, MOST_ENTRIES)
    }
    assert full == {}
    emptied = {name for name in FULL_FOLDERS if entries[name] <= MOST_ENTRIES}
    assert emptied == set(), "take these out of FULL_FOLDERS"


def test_one_door_per_library() -> None:
    beside, entered = [], set()
    for path in FILES:
        name = name_of(path)
        for module in imports(path, nested=True):
            doors = DOORS.get(library := module.split(".")[0], {name})
            found = doors & {name, room_of(name)}
            entered |= {(library, door) for door in found if library in DOORS}
            if not found:
                beside.append(f"{name} imports {library}")
    assert beside == []
    assert entered == {(library, door) for library, doors in DOORS.items() for door in doors}, (
        "a door nobody uses"
    )


def test_processes_that_encode_text_import_no_torch() -> None:
    """It takes seconds and 200 MiB in each worker of `preprocess`."""
    paths = modules()
    reached, new = set[str](), {"nmtkit.data.batches.encoding", "nmtkit.data.tokenizers.tokenizers"}
    while new:
        reached |= new
        names = {name for module in new for name in imports(paths[module], nested=False)}
        assert [name for name in names if name.split(".")[0] == "torch"] == [], new
        found = {name if name in paths else name.rpartition(".")[0] for name in names}
        new = {name for name in found if name in paths} - reached
    assert len(reached) > 20


COMMANDS = ("cli/commands/", "zoo/parsing/commands.py")
"""Names, options and help of the commands, without the work: their files import that in functions, and nothing else."""


def test_commands_import_their_work_when_they_run() -> None:
    declared = [path for path in FILES if name_of(path).startswith(COMMANDS)]
    assert len(declared) > 20
    for path in declared:
        at_top = Counter(imports(path, nested=False))
        inside = [*(Counter(imports(path, nested=True)) - at_top)]
        assert [
            module for module in inside if not module.startswith(("nmtkit.cli.", "nmtkit.zoo."))
        ] == [], path


def test_imports_stand_at_the_top() -> None:
    below = {}
    for path in FILES:
        if not LAZY & {name_of(path), room_of(name_of(path))} and not name_of(path).startswith(
            COMMANDS
        ):
            typing = type_checking_imports(path)
            anywhere = Counter(
                module for module in imports(path, nested=True) if module not in typing
            )
            at_top = Counter(imports(path, nested=False))
            if found := (anywhere - at_top) + (at_top - anywhere):
                below[name_of(path)] = [*found]
    assert below == {}


def type_checking_imports(path: Path) -> set[str]:
    """Names imported under `if TYPE_CHECKING:` only."""
    found = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for inner in node.body:
                if isinstance(inner, ast.ImportFrom):
                    found |= {f"{inner.module}.{alias.name}" for alias in inner.names}
                elif isinstance(inner, ast.Import):
                    found |= {alias.name for alias in inner.names}
    return found


INTERFACES = ("nmtkit.models.base", "nmtkit.models.abilities")


def test_decoding_and_training_know_no_concrete_model() -> None:
    for path in [*(PACKAGE / "decoding").rglob("*.py"), *(PACKAGE / "training").rglob("*.py")]:
        for module in imports(path, nested=True):
            concrete = module.startswith("nmtkit.models")
            assert not concrete or module.startswith(INTERFACES), (path, module)


def test_no_isinstance_on_a_model_or_a_layer_outside_its_room() -> None:
    homes = ("models", "layers")
    rooms = {path: room_of(name_of(path)) in homes for path in FILES}
    nodes = [node for path in FILES if rooms[path] for node in tree_of(path).body]
    made = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    assert {"Seq2Seq", "MultiHeadModel", "Transformer", "LearnedPositions"} <= made
    for path in FILES:
        for node in [] if rooms[path] else nodes_of(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                assert not asked & made, f"{name_of(path)}: {ast.unparse(node)}"


def test_no_kwargs_in_the_core() -> None:
    checked = 0
    for room in ("models", "decoding", "training"):
        for path in (PACKAGE / room).rglob("*.py"):
            checked += 1
            for node in nodes_of(path):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    assert node.args.kwarg is None, (
                        f"{path.name}: {node.name} takes **{node.args.kwarg.arg}"
                    )
    assert checked >= 10


HEAVY = {
    "torch",
    "numpy",
    "pydantic",
    "rich",
    "matplotlib",
    "sacrebleu",
    "sentencepiece",
    "yaml",
    "requests",
}
"""Libraries that `--help` and completion do without; tests/cli/test_light_help.py looks at completion."""

ALL_HELP = """
import json, sys
import click
from nmtkit.cli import cli

def visit(command, context):
    seen = {}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            seen |= visit(below, below.context_class(below, info_name=name, parent=context))
    command.get_help(context)
    seen[context.command_path] = sorted({name.split(".")[0] for name in sys.modules})
    return seen

print(json.dumps(visit(cli, click.Context(cli, info_name="nmtkit"))))
"""


def test_help_of_every_command_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALL_HELP], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    imported = json.loads(done.stdout)
    assert len(imported) > 45
    heavy = {command: sorted(HEAVY & set(modules)) for command, modules in imported.items()}
    assert {command: modules for command, modules in heavy.items() if modules} == {}


def test_names_mean_one_thing() -> None:
    assert names_defined_twice() == {}


def skips_itself(path: Path) -> bool:
    """Whether a test module is skipped as a whole where a library is missing."""
    if "importorskip" not in path.read_text(encoding="utf-8"):
        return False  # without parsing it
    calls = [node.value for node in tree_of(path).body if isinstance(node, ast.Assign | ast.Expr)]
    return any(
        isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.importorskip"
        for call in calls
    )


def test_no_module_imports_tests_that_skip_themselves() -> None:
    """pytest keeps a skipped module half imported, so that an import of its functions fails. Share them elsewhere."""
    skipped = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "tests").rglob("test_*.py")
        if skips_itself(path)
    }
    assert len(skipped) > 5
    found = [
        (str(path.relative_to(ROOT)), node.module)
        for path in (ROOT / "tests").rglob("*.py")
        if skipped & {*re.findall(r"[\w.]+", path.read_text(encoding="utf-8"))}  # else not parsed
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.module in skipped
    ]
    assert found == []


def test_nothing_lies_beside_the_rooms() -> None:
    assert [
        name_of(path)
        for path in FILES
        if "/" not in name_of(path) and name_of(path) not in ENTRANCES
    ] == []


def test_every_setting_has_a_user() -> None:
    """A recipe, a page, a command, a preset, an imported model or a paper needs it; else it is to be removed."""
    without = [
        f"{setting.owner}.{setting.name}"
        for setting, user in setting_users.users().items()
        if not user
    ]
    assert without == []
