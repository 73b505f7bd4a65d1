"""The suite's numerically sensitive part as other machines would run it: `make test-machines`.

A variant is an environment: variables of torch and its libraries that make them compute as they would on a processor
with fewer instructions, with two threads, or with less exact products. What is asked are whole folders, not single
tests with a marker: in these everything computes with tensors, and a new test there is asked on every machine.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOMS = "contracts experiment convert layers models models/rnn runs decoding training inference"
PLACES = [
    *(f"tests/{name}" for name in ROOMS.split()),
    "tests/strangers/test_strangers_in_python.py",
]
LEFT_OUT = ["tests/contracts/test_cuda.py"]
"""What asks on which device a tensor is, and nothing of its numbers."""

VARIANTS: dict[str, dict[str, str]] = {
    "as-it-is": {},
    "aten-default": {"ATEN_CPU_CAPABILITY": "default"},
    "aten-avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "aten-avx512": {"ATEN_CPU_CAPABILITY": "avx512"},
    "onednn-sse41": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "onednn-avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "onednn-avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "mkl-avx2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "mkl-compatible": {"MKL_CBWR": "COMPATIBLE"},
    "old-processor": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
    },
    # Threads that spin while something else has the cores would take ten times as long.
    "two-threads": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
    "matmul-high": {"NMTKIT_TEST_MATMUL": "high"},
    "matmul-medium": {"NMTKIT_TEST_MATMUL": "medium"},
}
"""What differs from one thread, `highest` products (tests/conftest.py sets them) and the processor as it is."""

NEEDS = {
    "aten-avx2": "AVX2",
    "aten-avx512": "AVX512",
    "onednn-sse41": "AVX2",
    "onednn-avx2": "AVX2",
    "onednn-avx512": "AVX512",
    "mkl-avx2": "AVX2",
    "mkl-compatible": "AVX2",
    "old-processor": "AVX2",
}
"""What a processor must have for a variant to be more than a name."""


@dataclass(frozen=True)
class Outcome:
    """What one process found.

    Args:
        tests: how many were run, those skipped left out.
        failed: their names, as pytest takes them.
        figures: what tests recorded of themselves (`record_property`): test, what it is and its limit, value.
    """

    variant: str
    seed: int
    tests: int
    failed: list[str]
    seconds: float
    figures: list[tuple[str, str, float]]
    broken: str = ""
    """What pytest said, where it did not get as far as a report."""


def capability() -> str:
    """What ATen would use here if nobody asked for less: AVX512, AVX2, or another word."""
    environment = {key: value for key, value in os.environ.items() if key != "ATEN_CPU_CAPABILITY"}
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def can_pretend(variant: str, here: str) -> bool:
    needed = NEEDS.get(variant)
    return needed is None or here in {"AVX2": ("AVX2", "AVX512"), "AVX512": ("AVX512",)}[needed]


def variables(variant: str, seed: int) -> dict[str, str]:
    moved = {"NMTKIT_TEST_SEED": str(seed)} if seed else {}
    return {"OMP_NUM_THREADS": "1", **VARIANTS[variant], **moved}


def command(variant: str, seed: int, test: str) -> str:
    """For a person who wants to see one test fail again."""
    settings = " ".join(f"{key}={value}" for key, value in variables(variant, seed).items())
    return f"{settings} {os.path.relpath(sys.executable)} -m pytest '{test}'"


def ask(
    variant: str, seed: int, arguments: list[str], limit: float | None = None, processes: int = 1
) -> Outcome:
    """Runs pytest in processes of its own; nothing that the caller's environment pretends is passed on."""
    pretended = {key for settings in VARIANTS.values() for key in settings} | {"NMTKIT_TEST_SEED"}
    environment = {key: value for key, value in os.environ.items() if key not in pretended}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-o",
            "junit_family=xunit1",
        ]
        words += ["--tb=no", f"--junitxml={report}", "-m", "not slow", *arguments]
        words += ["-n", str(processes), "--dist", "worksteal"] if processes > 1 else []
        given = {**environment, **variables(variant, seed)}
        try:
            done = subprocess.run(
                words, env=given, capture_output=True, text=True, check=False, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return Outcome(
                variant,
                seed,
                0,
                [],
                limit or 0,
                [],
                broken=f"It was stopped after {limit} seconds.\n",
            )
        seconds = time.monotonic() - started
        if done.returncode not in (0, 1) or not report.exists():
            return Outcome(variant, seed, 0, [], seconds, [], broken=done.stdout + done.stderr)
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed, figures, count = [], [], 0
    for case in cases:
        name = f"{case.get('file')}::{case.get('name')}"
        count += case.find("skipped") is None
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        for one in case.iter("property"):
            figures.append((name, one.get("name", ""), float(one.get("value", "nan"))))
    return Outcome(variant, seed, count, failed, seconds, figures)


def show(outcomes: Iterable[Outcome]) -> bool:
    """Prints a row for each as it comes, then every failure with the command that repeats it. True if all passed."""
    print(f"{'variant':16}{'seed':>5}{'tests':>7}{'failures':>10}{'seconds':>9}", flush=True)
    bad = []
    for one in outcomes:
        failures = "broken" if one.broken else str(len(one.failed))
        print(
            f"{one.variant:16}{one.seed:5}{one.tests:7}{failures:>10}{one.seconds:9.0f}", flush=True
        )
        if one.broken or one.failed:
            bad.append(one)
    for one in bad:
        print(f"\n{one.variant}, seed {one.seed}:")
        for test in one.failed:
            print(f"  {command(one.variant, one.seed, test)}")
        print(one.broken, end="")
    return not bad


def show_figures(outcomes: Iterable[Outcome]) -> None:
    """From the smallest to the largest value of every figure, over all variants and seeds; its name says the limit."""
    found: dict[tuple[str, str], list[float]] = {}
    for one in outcomes:
        for test, what, value in one.figures:
            found.setdefault((test, what), []).append(value)
    print()
    for (test, what), values in sorted(found.items()):
        print(f"{test}: {what}: {min(values):.3g} to {max(values):.3g} in {len(values)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.machines", description=__doc__)
    parser.add_argument(
        "--variant",
        nargs="+",
        choices=[*VARIANTS, "all"],
        default=["all"],
        help="which (default: all)",
    )
    parser.add_argument(
        "--turn",
        type=int,
        metavar="NUMBER",
        help="one variant: the first of turn 0, the next of turn 1, and so round",
    )
    parser.add_argument(
        "--seed", nargs="+", type=int, default=[0], help="of the tests that train (default: 0)"
    )
    parser.add_argument(
        "--limit", type=int, metavar="SECONDS", help="a variant that takes longer has failed"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: 2)")
    parser.add_argument(
        "--figures", action="store_true", help="print what the tests recorded of themselves as well"
    )
    usual = [*PLACES, *(f"--ignore={name}" for name in LEFT_OUT)]
    parser.add_argument("pytest", nargs="*", default=usual, help="what to ask instead (behind --)")
    given = parser.parse_args()
    here = capability()
    able = [name for name in VARIANTS if can_pretend(name, here)]
    names = able if "all" in given.variant else given.variant
    if given.turn is not None:
        names = [able[given.turn % len(able)]]
    unable = [name for name in (VARIANTS if "all" in given.variant else names) if name not in able]
    if unable:
        print(
            f"This processor ({here}) cannot pretend, and nothing is said of: {', '.join(unable)}"
        )
    asked = [(name, seed) for seed in given.seed for name in names if name in able]
    each_has = max(1, given.jobs // max(1, len(asked)))  # one variant alone gets them all
    with ThreadPoolExecutor(given.jobs) as pool:
        outcomes: list[Outcome] = []

        def each() -> Iterable[Outcome]:
            for outcome in pool.map(
                lambda pair: ask(*pair, given.pytest, given.limit, each_has), asked
            ):
                outcomes.append(outcome)
                yield outcome

        passed = show(each())
    if given.figures:
        show_figures(outcomes)
    return 0 if passed and asked else 1


if __name__ == "__main__":
    sys.exit(main())
