"""A Python file of the user: what it registers, faults in it, and which copies in runs are executed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nmtkit
from nmtkit.core import registry, user_module
from nmtkit.core.errors import NmtkitError
from nmtkit.core.registry import Registry
from nmtkit.core.user_module import (
    COPY,
    load_copy,
    load_user_module,
    loaded_modules,
    module_to_keep,
)

FILE = "from nmtkit.core import registry\n{name} = registry.TEST.register({name!r})({value})\n"


@pytest.fixture(autouse=True)
def test_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry[int]]:
    """A registry that files can fill; the cache is this test's own."""
    numbers: Registry[int] = Registry("number")
    modules = set(sys.modules)
    monkeypatch.setattr(registry, "TEST", numbers, raising=False)
    monkeypatch.setattr(user_module, "_loaded", [])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield numbers
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(path: Path, **values: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(FILE.format(name=name, value=value) for name, value in values.items()))
    return path


def another_process(monkeypatch: pytest.MonkeyPatch) -> Registry[int]:
    """Forgets what was executed, but not the cache."""
    numbers: Registry[int] = Registry("number")
    monkeypatch.setattr(registry, "TEST", numbers)
    monkeypatch.setattr(user_module, "_loaded", [])
    for name in [name for name in sys.modules if name.startswith("nmtkit_user_module_")]:
        del sys.modules[name]
    return numbers


def test_a_file_is_executed_once(tmp_path: Path, test_registry: Registry[int]) -> None:
    path = write(tmp_path / "mine.py", one=1)
    nmtkit.load_user_module(path)
    load_user_module(str(path))
    assert test_registry.get("one") == 1
    assert [module.path for module in loaded_modules()] == [path]
    assert module_to_keep() == loaded_modules()[0]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os\n\nx = nothing\n", "mine.py, line 3: NameError: name 'nothing' is not defined"),
        ("x = 1\ny = (\n", "mine.py, line 2: SyntaxError: '(' was never closed"),
        (
            "def f():\n    return 1 / 0\n\n\nf()\n",
            "mine.py, line 2: ZeroDivisionError: division by zero",
        ),
        (
            "import helper_beside\n",
            "mine.py, line 1: ModuleNotFoundError: No module named 'helper_beside'",
        ),
        ("raise SystemExit(3)\n", "mine.py, line 1: SystemExit: 3"),
        (2 * FILE.format(name="one", value=1), "mine.py, line 4: number 'one' is registered twice"),
    ],
)
def test_a_fault_is_reported_with_its_line(code: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(code)
    write(tmp_path / "helper_beside.py")
    with pytest.raises(NmtkitError) as fault:
        load_user_module(path)
    assert str(fault.value) == str(tmp_path / message)
    assert loaded_modules() == []


def test_a_copy_is_executed_if_the_user_has_named_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_copy(tmp_path)  # a folder without a copy
    copy = write(tmp_path / "run" / COPY, one=1)
    with pytest.raises(
        NmtkitError, match=rf"run/{COPY}: the run needs .* `--user-module .*run/{COPY}`"
    ):
        load_copy(copy.parent)
    load_user_module(write(tmp_path / "mine.py", one=1))
    numbers = another_process(monkeypatch)
    load_copy(copy.parent)
    assert numbers.get("one") == 1
    assert module_to_keep() == loaded_modules()[0]
    another_process(monkeypatch)
    write(copy, one=2)
    with pytest.raises(NmtkitError, match="needs to execute this Python file"):
        load_copy(copy.parent)


def test_a_list_of_another_user_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_user_module(write(tmp_path / "mine.py", one=1))
    another_process(monkeypatch)
    monkeypatch.setattr("os.getuid", lambda: -1)
    with pytest.raises(NmtkitError, match="needs to execute this Python file"):
        load_copy(write(tmp_path / "run" / COPY, one=1).parent)


def test_a_file_that_is_named_comes_before_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_user_module(write(tmp_path / "older.py", one=1, two=2))
    numbers = another_process(monkeypatch)
    load_user_module(write(tmp_path / "newer.py", one=10))
    load_copy(write(tmp_path / "run" / COPY, one=1, two=2).parent)
    assert (numbers.get("one"), numbers.get("two")) == (10, 2)
    with pytest.raises(
        NmtkitError,
        match=rf"newer.py and .*run/{COPY}: a run can keep a copy of only one Python file",
    ):
        module_to_keep()


def test_a_copy_that_nobody_named_is_left_where_a_file_was_named(
    tmp_path: Path, test_registry: Registry[int]
) -> None:
    load_user_module(write(tmp_path / "mine.py", one=10))
    load_copy(write(tmp_path / "run" / COPY, one=1).parent)
    assert test_registry.get("one") == 10
    assert len(loaded_modules()) == 1


def test_copies_that_register_one_name_exclude_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (1, 2):
        another_process(monkeypatch)
        load_user_module(write(tmp_path / "mine.py", one=value))
    another_process(monkeypatch)
    load_copy(write(tmp_path / "a" / COPY, one=1).parent)
    with pytest.raises(NmtkitError, match=rf"b/{COPY}, line 2: number 'one' is registered twice"):
        load_copy(write(tmp_path / "b" / COPY, one=2).parent)


def test_a_copy_of_an_imported_file_is_not_executed_again(
    tmp_path: Path, test_registry: Registry[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "imported_by_the_user.py", one=1)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__(path.stem)
    load_copy(write(tmp_path / "run" / COPY, one=1).parent)
    assert test_registry.get("one") == 1
