"""`python -m tests.tools.bench decode`, from text to text, beside other engines that are installed.

It decodes the test set of the trained run that `--run` names; without one random weights write 30 tokens a sentence.
"""

import json
import subprocess
import sys

from nmtkit.convert import engines
from nmtkit.core.errors import NmtkitError
from tests.tools.bench.timing import summary

from .material import untrained_run
from .results import Part

LENGTH = "min_length=29 max_length=30 max_length_ratio=0"


def main(part: Part) -> None:
    others = []
    for name in engines.LIBRARIES:
        try:
            engines.library(name)
            others.append(name)
        except NmtkitError as fault:
            part.add(f"{name} is not measured", None, str(fault))
    file, run = part.scratch / "figures.json", part.run
    words = [
        "decode",
        "-m",
        str(run or untrained_run(part).path),
        "--device",
        str(part.place),
        "-o",
        str(file),
    ]
    words += ["--against", ",".join(others)] if others else []
    words += [] if run else [word for setting in LENGTH.split() for word in ("--search", setting)]
    words += ["--lines", "20", "--rounds", "1", "--alone", "2"] if part.quick else []
    subprocess.run([sys.executable, "-m", "tests.tools.bench", *words], check=True)
    figures = json.loads(file.read_text(encoding="utf-8"))
    for row in figures["rows"]:
        part.add(
            f"{row['engine']}, {row['way']}",
            None,
            f"{summary(row['sentences_per_second'], 'sentences/s', 1)}, {row['latency_ms_median']:.1f} ms alone "
            f"({row['latency_ms_p95']:.1f} at the 95th percentile), {row['peak_mib']:,.0f} MiB, "
            + ", ".join(f"{name} {value:.2f}" for name, value in row["scores"].items())
            + f"; {row['differing']} differ, {row['ties']} of them ties",
            **row,
        )
