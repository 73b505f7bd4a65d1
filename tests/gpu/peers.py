"""`python -m tests.bench decode` of a trained run, beside other engines that are installed, from text to text."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from nmtkit.core.errors import NmtkitError
from nmtkit.interchange import conversion

from .results import Given, given, middle


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="a trained run; its test set is translated")


def main(told: Given) -> None:
    if told.rest.run is None:
        told.results.add("a trained run", None, "none was given: tests/gpu/slot.sh --run FOLDER")
        return
    others = []
    for name in conversion.LIBRARIES:
        try:
            conversion.library(name)
            others.append(name)
        except NmtkitError as fault:
            told.results.add(f"{name} is not measured", None, str(fault))
    file = told.scratch / "figures.json"
    words = ["decode", "-m", str(told.rest.run), "--device", str(told.place), "-o", str(file)]
    words += ["--against", ",".join(others)] if others else []
    words += ["--lines", "20", "--rounds", "1", "--alone", "2"] if told.quick else []
    subprocess.run([sys.executable, "-m", "tests.bench", *words], check=True)
    figures = json.loads(file.read_text(encoding="utf-8"))
    for row in figures["rows"]:
        told.results.add(
            f"{row['engine']}, {row['way']}",
            None,
            f"{middle(row['sentences_per_second'], 'sentences/s', 1)}, {row['latency_ms_median']:.1f} ms alone "
            f"({row['latency_ms_p95']:.1f} at the 95th percentile), {row['peak_mib']:,.0f} MiB, "
            + ", ".join(f"{name} {value:.2f}" for name, value in row["scores"].items())
            + f"; {row['differing']} differ, {row['ties']} of them ties",
            **row,
        )
    cold = figures["cold_start_seconds"]
    told.results.add("cold start", None, ", ".join(f"{name} {middle(taken, 's', 2)}" for name, taken in cold.items()))


if __name__ == "__main__":
    main(given("peers", __doc__, add))
