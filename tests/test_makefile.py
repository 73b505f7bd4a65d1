"""Every target of the Makefile does what it is for: its own command lines are run, with small arguments."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nmtkit.convert.engines import LIBRARIES
from tests.support.cases import daily
from tests.support.commands import ROOT, Finished, copied_checkout, environment

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE)
PAGES = [
    "README.md",
    "recipes/README.md",
    *(str(path.relative_to(ROOT)) for path in ROOT.glob("recipes/results/*.md")),
    *(f"nmtkit/guide/{path.name}" for path in ROOT.glob("nmtkit/guide/*.md")),
]
QUICKLY = "--set training.max_updates=2 --set evaluation.max_sentences=2 --set search.max_length=4"
SHORT_BENCH = (
    "--shape toy --batch-tokens 100 --blocks 1 --updates 1 --rounds 1 --articles 2 --alone 1"
)


@dataclass(frozen=True)
class Smoke:
    """How a target is tried."""

    arguments: str = ""
    """What `ARGS` is."""
    added: dict[str, str] = field(default_factory=dict)
    """What is added to a command line that has these words."""
    in_a_copy: bool = False
    """Whether it changes the tree, and is tried in a copy of it."""
    slow: bool = True


SMOKE = {
    "demo": Smoke(added={"train demo": QUICKLY}),
    "compare": Smoke(added={"compare": QUICKLY}),
    "tour": Smoke("--begin 3 --count 3", in_a_copy=True),
    "test-machines": Smoke("--variant as-it-is -- tests/cli/terminal/test_tables.py"),
    "test-hostile": Smoke("--cases 12 --jobs 1 --seed 1"),
    "test-kills": Smoke("--kills 2 --jobs 1"),
    "test-memory": Smoke("--lines 2000 translate align"),
    "check": Smoke(in_a_copy=True),
    "format": Smoke(in_a_copy=True),
    "bench": Smoke(f"--threads 1 {SHORT_BENCH}"),
    "bench-peers": Smoke("-m RUN --lines 4 --rounds 1 --alone 1 --device cpu"),
    "data": Smoke(added={"generate.py": "--train 40 --valid 10 --test 10"}, in_a_copy=True),
    "clean": Smoke(in_a_copy=True, slow=False),
}
"""Targets that do more than give pytest its arguments."""
INSTALLED = ("mypy", "nmtkit", "ruff")


def command_lines(target: str, arguments: str = "") -> list[list[str]]:
    """What `make TARGET` would run once `.venv` is there, with this interpreter; installing apart."""
    ready = ["TORCH=any", "-o", ".venv/.ready-any"]
    words = ["make", "-n", *ready, f"ARGS={arguments}", target]
    plain = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    printed = subprocess.run(
        words, cwd=ROOT, env=plain, capture_output=True, encoding="utf-8", check=True
    )
    lines = [shlex.split(line) for line in printed.stdout.replace("\\\n", " ").splitlines()]
    return [with_this_python(words) for words in lines if "pip" not in words]


def with_this_python(words: Sequence[str]) -> list[str]:
    run = {
        ".venv/bin/python": [sys.executable],
        **{f".venv/bin/{name}": [sys.executable, "-m", name] for name in INSTALLED},
    }
    return [part for word in words for part in run.get(word, [word])]


def run(words: Sequence[str], folder: Path) -> Finished:
    """Runs a command line, with variables before it, in a folder; `tests` is found there or in the checkout."""
    variables = dict(
        word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word) and "--" not in word
    )
    given = environment(**variables, PYTHONPATH=os.pathsep.join([str(folder), str(ROOT)]))
    plain = list(words[len(variables) :])
    done = subprocess.run(
        plain, cwd=folder, env=given, capture_output=True, encoding="utf-8", check=False
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, for what changes it."""
    return copied_checkout(tmp_path_factory.mktemp("copy") / "tree")


pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def test_every_target_is_tried() -> None:
    phony = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert sorted(" ".join(phony).split()) == sorted(TARGETS)
    unknown = [
        target
        for target in TARGETS
        if target not in SMOKE and not all("pytest" in words for words in command_lines(target))
    ]
    assert not unknown, "say in SMOKE with which small arguments they are tried"
    assert set(SMOKE) <= set(TARGETS)


@pytest.mark.parametrize("target", daily((target for target in TARGETS if target not in SMOKE), 0))
def test_a_target_gives_pytest_what_it_knows(target: str, tmp_path: Path) -> None:
    lines = command_lines(target)
    assert lines
    for words in lines:
        one = (
            []
            if any(word.startswith("tests/") for word in words)
            else ["tests/cli/terminal/test_tables.py"]
        )
        done = run([*words, "-n", "0", "-p", "no:cacheprovider", "--collect-only", *one], ROOT)
        assert done.code in (0, 5), done  # 5: none of that file is asked for


def tried(target: str) -> object:
    return pytest.param(target, marks=[pytest.mark.slow] if SMOKE[target].slow else [])


@pytest.mark.parametrize("target", [tried(target) for target in SMOKE if target in TARGETS])
def test_a_target_with_small_arguments(
    target: str, copy: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    smoke, arguments = SMOKE[target], SMOKE[target].arguments
    if target == "bench-peers":
        missing = [
            library for library in LIBRARIES.values() if importlib.util.find_spec(library) is None
        ]
        if missing:
            pytest.skip(f"{' and '.join(missing)} not installed (pip install 'nmtkit[peers]')")
        corpus = request.getfixturevalue("corpus")
        sizes = "{kind: transformer, hidden_size: 16, heads: 2, feed_forward_size: 16}"
        given = ["--set", f"model={sizes}", "--set", "training.max_updates=2", "--run", "run"]
        done = run(
            [sys.executable, "-m", "nmtkit", "train", str(corpus / "tiny.yaml"), *given], tmp_path
        )
        assert done.code == 0, done
        arguments = arguments.replace("RUN", "run")
    if target == "clean":
        (copy / ".venv").mkdir()
    place = copy if smoke.in_a_copy else ROOT if "tests/" in arguments else tmp_path
    for words in command_lines(target, arguments):
        more = next((added for part, added in smoke.added.items() if part in " ".join(words)), "")
        done = run([*words, *more.split()], place)
        assert done.code == 0, (words, done)
        assert "Traceback" not in done.err, (words, done)
    if target == "demo":
        assert {path.suffix for path in (tmp_path / "runs/demo").glob("attention.*")} == {
            ".png",
            ".html",
        }
    if target == "data":
        assert "40 train, 10 valid, 10 test" in done.out
    if target == "clean":
        assert not (copy / ".venv").exists()
        assert not list(copy.rglob("__pycache__"))
        assert (copy / "nmtkit" / "__init__.py").exists()


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_name_targets(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"(?:`|^)make\s([^`#\n]+)", text, re.MULTILINE)
    assert {command.split()[-1] for command in named} <= set(TARGETS)
    assert named or page != "README.md"
