"""`nmtkit average`."""

from pathlib import Path

import click

from nmtkit import console, folder, run
from nmtkit.cli import options


@click.command()
@options.model
@click.option(
    "--best", type=click.IntRange(2), metavar="N", help="The N best by validation. Default: all that were kept."
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: the run's average.safetensors.")
def command(model: str | None, best: int | None, files: tuple[Path, ...], output: Path | None) -> None:
    """Average checkpoints of a run into one; `translate` then uses the average unless told otherwise.

    Without FILES the run's best checkpoints are taken (keep more of them with training.keep_best).

    \b
    Examples:
      nmtkit average -m runs/mine
      nmtkit average -m runs/mine --best 5
      nmtkit average a.safetensors b.safetensors -o ab.safetensors
    """
    where, why = folder.find(model)
    chosen, written = run.average(where, best, list(files), output)
    console.say(f"averaged {len(chosen)} checkpoints of {where.path} ({why}) into {written}:", stderr=True)
    for path in chosen:
        console.say(f"  {path}", stderr=True)
