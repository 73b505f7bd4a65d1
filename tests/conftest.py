"""What many tests share: a tiny made-up language, recipes for it, and a run trained on it in a few seconds."""

import functools
import gc
import os
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmtkit.cli import main
from tests.support.commands import (
    RECIPE,
    Command,
    Finished,
    environment,
    sentence_pairs,
    write_pairs,
)
from tests.support.processes import Server

# What was measured on this machine must not decide what a test sees, nor a test what is measured.
CACHE = tempfile.TemporaryDirectory(prefix="nmtkit-tests-", ignore_cleanup_errors=True)
os.environ["XDG_CACHE_HOME"] = CACHE.name
THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
MATMUL_PRECISION = os.environ.get("NMTKIT_TEST_MATMUL", "highest")


def pytest_unconfigure() -> None:
    """Without this a worker of xdist, which ends without its exit handlers, would leave the folder."""
    CACHE.cleanup()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", metavar="I/N", help="only part I of N; I may be any whole number, counted round"
    )
    parser.addoption(
        "--quick", action="store_true", help="what one runs while writing: see `is_quick`"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what `--part` and `--quick` do not ask for; which part a test is in depends on its name alone."""
    kept = [item for item in items if is_quick(item)] if config.getoption("quick") else items[:]
    if part := config.getoption("part"):
        number, parts = map(int, part.split("/"))
        kept = [item for item in kept if zlib.crc32(item.nodeid.encode()) % parts == number % parts]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
        items[:] = kept


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What has been imported and collected stays: Python need not look through it again for what may go."""
    gc.collect()
    gc.freeze()


COMMANDS_AND_TRAININGS = {"trained", "nmtkit", "console", "corpus", "small_corpus"}


def is_quick(item: pytest.Item) -> bool:
    """Whether `make quick` runs a test: no slow one, no commands or trainings, contracts of one model of each kind."""
    if item.get_closest_marker("slow") or COMMANDS_AND_TRAININGS & set(item.fixturenames):
        return False
    if item.path.parent.name == "contracts":
        one_of_each = sys.modules["tests.contracts.variants"].ONE_OF_EACH  # it has been collected
        return any(f"[{name}]" in item.name for name in one_of_each)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Every test begins with the same threads and products, whatever the one before has set."""
    import torch  # here, since the process that only hands tests to others needs none

    torch.set_num_threads(THREADS)
    torch.set_float32_matmul_precision(MATMUL_PRECISION)


@pytest.fixture(scope="session", autouse=True)
def _one_identifier_of_languages() -> Iterator[None]:
    """Every preprocessing loads this model and frees its 100 MiB again, which takes longer than a tiny training."""
    from nmtkit.datacheck import language

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language, "_load_identifier", functools.cache(language._load_identifier))
        yield


def written_corpus(folder: Path, train: int, valid: int) -> Path:
    """Train, valid and test of the made-up language, and `tiny.yaml` for them."""
    for seed, (name, count) in enumerate(
        {"train": train, "valid": valid, "test": 40}.items(), start=1
    ):
        write_pairs(folder, name, sentence_pairs(count, seed))
    (folder / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus from which a model learns something."""
    return written_corpus(tmp_path_factory.mktemp("corpus"), train=1500, valid=30)


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fifth of the text, for tests that need no model that has learned something."""
    return written_corpus(tmp_path_factory.mktemp("small-corpus"), train=300, valid=10)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """What begins commands in processes of their own; `nmtkit` below waits for their end."""
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def nmtkit(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Runs the command line in a process of its own, as a user does, but without waiting for torch each time.

    With a variable for libraries it is a program of its own: they read theirs while they are loaded.
    """
    files = [tmp_path_factory.mktemp("streams") / name for name in ("stdin", "stdout", "stderr")]

    def run(
        *arguments: object,
        stdin: str | bytes = b"",
        cwd: Path | None = None,
        first: str = "",
        **changes: str,
    ) -> Finished:
        given = stdin.encode("utf-8") if isinstance(stdin, str) else stdin
        if not all(name.startswith("NMTKIT_") for name in changes):
            alone = [sys.executable, "-m", "nmtkit", *map(str, arguments)]
            env = environment(**changes)
            done = subprocess.run(
                alone, input=given, capture_output=True, cwd=cwd, env=env, check=False, timeout=300
            )
            return Finished(
                done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
            )
        for file, content in zip(files, (given, b"", b""), strict=True):
            file.write_bytes(content)
        streams = [os.open(file, os.O_RDWR) for file in files]
        pid = server.start(arguments, cwd or Path.cwd(), environment(**changes), streams, first)
        for stream in streams:
            os.close(stream)
        code = server.ask(wait=pid, how=0)
        assert code is not None
        out, err = (file.read_bytes().decode("utf-8") for file in files[1:])
        return Finished(code, out, err)

    return run


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing was measured before, and nothing is left to others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs the command line inside the test's own process, in the test's own folder: what is patched here holds there.

    It costs less than a start of Python with torch.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NMTKIT_MODEL", raising=False)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # pytest's own comes back

    def run(*arguments: object, stdin: str | bytes = b"") -> Finished:
        monkeypatch.setattr(sys, "argv", ["nmtkit", *map(str, arguments)])
        before, threads = os.dup(0), set(threading.enumerate())
        with tempfile.TemporaryFile() as given:
            given.write(stdin.encode("utf-8") if isinstance(stdin, str) else stdin)
            given.seek(0)
            os.dup2(given.fileno(), 0)  # commands read the file descriptor itself
        try:
            with pytest.raises(SystemExit) as stopped:
                main()
        finally:
            os.dup2(before, 0)
            os.close(before)
            # A command that was refused may leave one that reads on: it must not take the next one's input.
            for thread in set(threading.enumerate()) - threads:
                thread.join(timeout=1)
        captured = capsys.readouterr()
        assert isinstance(stopped.value.code, int)
        return Finished(stopped.value.code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def trained(corpus: Path, nmtkit: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; it has learned the language somewhat, which is all that the commands need."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    done = nmtkit("train", corpus / "tiny.yaml", "--run", folder)
    assert done.code == 0, done
    return folder
