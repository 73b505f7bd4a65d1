"""What tests of many rooms import: what a command printed, and a tiny made-up language with a recipe for it."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORDS = [first + second for first, second in zip("bcdfghjklmnprstvwxyz", "aeiou" * 4, strict=True)]


def sentence_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Sentences of three to six words; the translation says them backwards in capitals."""
    draw = random.Random(seed)
    sources = [" ".join(draw.choices(WORDS, k=draw.randrange(3, 7))) for _ in range(count)]
    return [(source, " ".join(reversed(source.upper().split()))) for source in sources]


def backwards_links(sources: Iterable[str]) -> list[str]:
    """The gold alignments of such sentences and their translations."""
    lengths = [len(source.split()) for source in sources]
    return [" ".join(f"{i}-{n - 1 - i}" for i in range(n)) for n in lengths]


def write_pairs(folder: Path, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    for n, side in enumerate(("src", "tgt")):
        write_lines(folder / f"{name}.{side}", [pair[n] for pair in pairs])


def write_lines(path: str | Path, lines: Sequence[str]) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_text(lines), encoding="utf-8")
    return path


def as_text(lines: Iterable[str]) -> str:
    return "".join(line + "\n" for line in lines)


def lines_in(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a run but its lock, by their path in it."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "run.lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def json_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def logged(run: Path, event: str = "") -> list[dict[str, Any]]:
    """What a training logged, or only its events of one kind."""
    records = json_lines((run / "metrics.jsonl").read_text(encoding="utf-8"))
    return [record for record in records if event in ("", record["event"])]


def sets(*changes: str) -> list[str]:
    """`--set` before each change of a recipe."""
    return [word for change in changes for word in ("--set", change)]


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


@dataclass(frozen=True)
class Finished:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


Command = Callable[..., Finished]


def succeeded(done: Finished) -> Finished:
    """A command that ended well."""
    assert done.code == 0, done
    return done


def refused(done: Finished, *parts: str, after_results: bool = False) -> Finished:
    """A command that ended with exit code 2 and one error message, which has these parts; results may precede it."""
    assert (done.code, done.err.count("nmtkit: error: ")) == (2, 1), done
    assert "Traceback" not in done.err, done
    assert after_results or not done.out, done
    said = " ".join(done.err.split())
    assert [part for part in parts if part not in done.err and part not in said] == [], done
    return done


def environment(**changes: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "NMTKIT_MODEL"}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "120", **changes}


IN_LOCALE_C = """\
import locale
from nmtkit.cli import main
locale.setlocale(locale.LC_ALL, "C")
main()
"""
"""A program for `python -c` that runs a command where the locale's encoding is ASCII; set PYTHONUTF8=0.

The locale changes after Python's start, because torch cannot be imported from a path beyond ASCII in locale C.
"""


def copied_checkout(folder: Path) -> Path:
    """A copy of this checkout, without what installing, running and testing leaves in it."""
    left = shutil.ignore_patterns("__pycache__", ".*_cache", "*.egg-info")
    at_the_top = {".git", ".venv", ".work", ".hypothesis", "build", "dist", "runs", "corpora"}

    def ignored(place: str, names: list[str]) -> set[str]:
        return {*left(place, names), *(at_the_top & {*names} if Path(place) == ROOT else ())}

    return shutil.copytree(ROOT, folder, ignore=ignored)
