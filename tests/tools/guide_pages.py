"""The blocks of a page in Markdown; `python -m tests.tools.guide_pages tour` runs all of them, as `make tour` does.

The commands of a page of the guide are run from the first to the last, in an empty folder. One that fails ends it.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "bash")
"""Kinds of blocks whose lines are commands."""
OUTPUT = ("BLEU|nrefs",)
"""How lines of a block begin that are no commands."""
PICTURES = (".png", ".svg", ".html")
Recipe = tuple[str, str]
"""The name of a file, and what it says."""


def blocks(text: str, *kinds: str) -> list[str]:
    return [block for kind, block in FENCE.findall(text) if kind in kinds]


def commands(block: str) -> list[str]:
    """The commands of a block, without their comments; where some stand behind `$`, only those."""
    lines = re.sub(r"\s*\\\n\s*", " ", block).splitlines()
    behind_a_prompt = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    shown = [re.sub(r"\s+#\s.*", "", line).strip() for line in behind_a_prompt or lines]
    return [line for line in shown if line and not line.startswith(OUTPUT)]


def steps(text: str) -> Iterator[str | Recipe]:
    """What a reader does, in its order: a command, or a recipe to be saved.

    The name of a recipe is the last `NAME.yaml` between it and the block before.
    """
    end = 0
    for fence in FENCE.finditer(text):
        kind, block = fence.groups()
        if kind in SHELL:
            yield from commands(block)
        elif kind == "yaml" and (
            names := re.findall(r"`([\w-]+\.yaml)`", text[end : fence.start()])
        ):
            yield names[-1], block
        end = fence.end()


@click.command()
@click.argument("page")
@click.option("--folder", type=click.Path(path_type=Path), help="Where. Default: runs/PAGE.")
@click.option(
    "--begin",
    type=click.IntRange(1),
    default=1,
    help="Go on with this command, in the folder as it is.",
)
@click.option("--count", type=click.IntRange(1), help="So many commands only. Default: all.")
@click.option("--list", "only_list", is_flag=True, help="Print the commands and their numbers.")
def main(page: str, folder: Path | None, begin: int, count: int | None, only_list: bool) -> None:
    """Follow a PAGE of the guide from an empty folder, and leave there what it makes."""
    todo = list(steps((ROOT / "nmtkit" / "guide" / f"{page}.md").read_text(encoding="utf-8")))
    lines = [step for step in todo if isinstance(step, str)]
    if only_list:
        click.echo("\n".join(f"{number:3d}  {line}" for number, line in enumerate(lines, start=1)))
        return
    folder = folder or Path("runs", page)
    folder.mkdir(parents=True, exist_ok=True)
    if begin == 1 and any(folder.iterdir()):
        raise click.UsageError(f"{folder} is not empty: remove it, or go on with --begin")
    for name, recipe in (step for step in todo if not isinstance(step, str)):
        (folder / name).write_text(recipe, encoding="utf-8")
    took = []
    for number, line in list(enumerate(lines, start=1))[begin - 1 :][:count]:
        click.secho(f"\n[{number}/{len(lines)}] $ {line}", bold=True)
        started = time.monotonic()
        if code := run(line, folder):
            sys.exit(f"\ncommand {number} of the page failed with exit code {code}: {line}")
        took.append((time.monotonic() - started, line))
    click.echo(
        f"\n{len(took)} commands, {sum(seconds for seconds, _ in took) / 60:.1f} minutes; the longest:"
    )
    click.echo(
        "\n".join(f"{seconds:6.0f} s  {line}" for seconds, line in sorted(took, reverse=True)[:8])
    )
    made = sorted(path.name for path in folder.iterdir() if path.suffix in PICTURES)
    click.echo(f"pictures in {folder}: {' '.join(made)}")


def run(line: str, folder: Path) -> int:
    """A line of a shell, for which `nmtkit` and `python` are those of this interpreter; returns the exit code."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    words = ["bash", "-e", "-o", "pipefail", "-c", line]
    return subprocess.run(
        words, cwd=folder, env={**os.environ, "PATH": path}, check=False
    ).returncode


if __name__ == "__main__":
    main()
