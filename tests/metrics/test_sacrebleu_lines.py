"""What `sacrebleu` prints for five systems and what `nmtkit score` prints, character by character."""

import gzip
import json
import random
import shlex
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tests.support.commands import Command, succeeded, write_lines

SACREBLEU = """
import os, shlex, sys
from sacrebleu.sacrebleu import main
os.environ["NO_COLOR"] = "1"
for number, line in enumerate(sys.stdin):
    if not os.fork():  # so that it is loaded once; each call reopens its output
        os.dup2(os.open(f"{number}.out", os.O_WRONLY | os.O_CREAT), 1)
        sys.argv = shlex.split(line)
        main()
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0
"""
CORPUS = Path(__file__).parents[2] / "data" / "demo-en-fr" / "test.fr.gz"
# Metrics, what sacrebleu is asked beside them, and what `nmtkit score` is. TER takes sacrebleu long.
SINGLE = (
    ("bleu chrf ter", "", "-w 1"),
    ("bleu chrf", "-w 2", "-w 2"),
    ("bleu chrf", "-w 2 -lc --chrf-lowercase", "-w 2 -lc"),
    ("bleu", "-w 3 -tok intl", "-w 3 -tok intl"),
    ("bleu chrf", "-w 2 --confidence --confidence-n 50", "-w 2 --paired-bs --n-samples 50"),
)
SEVERAL = (
    ("bleu chrf", "--paired-bs --paired-bs-n 50", "--n-samples 50"),
    ("bleu chrf ter", "--paired-ar --paired-ar-n 200", "--paired-ar --n-samples 200"),
)
COMPARED = 5 * sum(len(metrics.split()) for metrics, _, _ in (*SINGLE, *SEVERAL))


def sacrebleu(calls: Sequence[Sequence[str]]) -> list[str]:
    """What the command prints, call by call."""
    lines = "".join(shlex.join(["sacrebleu", *call]) + "\n" for call in calls)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SACREBLEU], input=lines, text=True, check=True
    )
    return [Path(f"{number}.out").read_text("utf-8") for number in range(len(calls))]


def five_systems() -> tuple[list[str], list[str]]:
    """Names of five files, each the reference with more words changed, left out and moved; the reference's lines."""
    with gzip.open(CORPUS, "rt", encoding="utf-8") as stream:
        refs = [line.rstrip("\n") for line in islice(stream, 20)]
    chance = random.Random(7)
    names = [f"system{number}" for number in range(5)]
    for number, name in enumerate(names):
        lines = []
        for ref in refs:
            words = [word for word in ref.split() if chance.random() > 0.06 * number]
            words = [word.swapcase() if chance.random() < 0.1 else word for word in words]
            if chance.random() < 0.1 * number:
                words = words[1:] + words[:1]
            lines.append(" ".join(words))
        write_lines(name, lines)
    return names, refs


def compare(console: Command, names: Sequence[str], ref: str) -> int:
    """Compares all that both print; returns how many lines and cells there were."""
    singles = [(name, *words) for words in SINGLE for name in names]
    calls = [
        [ref, "-i", name, "-f", "text", "-m", *metrics.split(), *theirs.split()]
        for name, metrics, theirs, _ in singles
    ]
    calls += [
        [ref, "-i", *names, "-f", "latex", "-w", "4", "-m", *metrics.split(), *theirs.split()]
        for metrics, theirs, _ in SEVERAL
    ]
    printed = sacrebleu(calls)
    compared = 0
    for (name, metrics, _, ours), theirs in zip(singles, printed, strict=False):
        done = succeeded(
            console("score", name, "--ref", ref, "-m", *metrics.split(), *ours.split())
        )
        found = [line for line in done.out.splitlines() if "|nrefs:" in line]
        # sacrebleu moves lines below each other's "="
        assert found == [line.lstrip() for line in theirs.splitlines()]
        compared += len(found)
    for (metrics, _, ours), theirs in zip(SEVERAL, printed[len(singles) :], strict=True):
        done = succeeded(
            console("score", *names, "--ref", ref, "--json", "-m", *metrics.split(), *ours.split())
        )
        systems = json.loads(done.out)["systems"]
        rows = [
            [cell.strip(" \\") for cell in line.split("&")[1:]]
            for line in theirs.splitlines()
            if " & " in line
        ]
        assert [[as_theirs(score) for score in system["scores"]] for system in systems] == rows[1:]
        for score in systems[0]["scores"]:
            assert f" - {score['name']:<10} {score['signature']}\n" in theirs
        compared += sum(map(len, rows[1:]))
    return compared


def as_theirs(score: dict[str, Any]) -> str:
    """A score in the form of a cell of sacrebleu's table."""
    drawn = f" ({score['mean']:.4f} ± {score['interval']:.4f})" if "mean" in score else ""
    p_value = score.get("p_value")
    test_metrics = "" if p_value is None else f" (p = {p_value:.4f}){'' if p_value > 0.05 else '*'}"
    return f"{score['value']:.4f}{drawn}{test_metrics}"


def test_the_lines_are_those_of_sacrebleu(console: Command) -> None:
    names, refs = five_systems()
    write_lines("ref", refs)
    assert compare(console, names, "ref") == COMPARED
