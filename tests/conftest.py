"""What many tests share: a tiny made-up language, recipes for it, and a run trained on it in a few seconds."""

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

# What was found on this machine must not decide what a test sees, nor a test what is found.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="nmtkit-tests-")
THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
MATMUL_PRECISION = os.environ.get("NMTKIT_TEST_MATMUL", "highest")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Every test begins with the same threads and products, whatever the one before has set (see tests/machines)."""
    torch.set_num_threads(THREADS)
    torch.set_float32_matmul_precision(MATMUL_PRECISION)


WORDS = [first + second for first, second in zip("bcdfghjklmnprstvwxyz", "aeiou" * 4, strict=True)]


def sentence_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Sentences of three to six words; the translation says them backwards in capitals."""
    draw = random.Random(seed)
    sources = [" ".join(draw.choices(WORDS, k=draw.randrange(3, 7))) for _ in range(count)]
    return [(source, " ".join(reversed(source.upper().split()))) for source in sources]


def write_pairs(folder: Path, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    (folder / f"{name}.src").write_text("".join(source + "\n" for source, _ in pairs), encoding="utf-8")
    (folder / f"{name}.tgt").write_text("".join(target + "\n" for _, target in pairs), encoding="utf-8")


RECIPE = """\
data:
  train: {src: train.src, tgt: train.tgt}
  valid: {src: valid.src, tgt: valid.tgt}
  test: {src: test.src, tgt: test.tgt}
tokenizer: {kind: word, vocab_size: 100, joint: true}
model: {kind: rnnsearch, embedding_size: 32, hidden_size: 48, attention_size: 32, maxout_size: 32, dropout: 0.1}
batch: {batch_tokens: 512}
training:
  lr: 0.005
  max_updates: 60
  validate_every: 20
  log_every: 10
  keep_best: 3
search: {beam_size: 3}
"""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train, valid and test of the made-up language, and `tiny.yaml` for them."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, count, seed in (("train", 1500, 1), ("valid", 30, 2), ("test", 40, 3)):
        write_pairs(folder, name, sentence_pairs(count, seed))
    (folder / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    return folder


class Finished:
    """What a command printed, and its exit code."""

    def __init__(self, done: "subprocess.CompletedProcess[bytes]") -> None:
        self.code = done.returncode
        self.out = done.stdout.decode("utf-8")
        self.err = done.stderr.decode("utf-8")

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


Command = Callable[..., Finished]


def environment(**changes: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "NMTKIT_MODEL"}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "120", **changes}


@pytest.fixture(scope="session")
def nmtkit() -> Command:
    """Runs the command line in a process of its own, as a user does."""

    def run(*arguments: object, stdin: str | bytes = b"", cwd: Path | None = None, **changes: str) -> Finished:
        given = stdin.encode("utf-8") if isinstance(stdin, str) else stdin
        words = [sys.executable, "-m", "nmtkit", *map(str, arguments)]
        done = subprocess.run(
            words, input=given, capture_output=True, cwd=cwd, env=environment(**changes), check=False, timeout=300
        )
        return Finished(done)

    return run


@pytest.fixture(scope="session")
def trained(corpus: Path, nmtkit: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; it has learned the language somewhat, which is all that the commands need."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    done = nmtkit("train", corpus / "tiny.yaml", "--run", folder)
    assert done.code == 0, done
    return folder
