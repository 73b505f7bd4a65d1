"""`nmtkit average`."""

from pathlib import Path

import click

from nmtkit.cli import options
from nmtkit.cli.options import FILE
from nmtkit.cli.reporting import tell
from nmtkit.runs.saved import average_files, find_run, weights_to_average
from nmtkit.training.schedules import DecayToZero


@click.command()
@options.model
@click.option(
    "--best", type=click.IntRange(2), metavar="N", help="Average the N best by validation. Default: all that were kept."
)
@click.option("--recent", type=click.IntRange(2), metavar="N", help="Average the N newest.")
@click.argument("files", nargs=-1, type=FILE)
@click.option("-o", "--output", type=FILE, help="Where to write it. Default: the run's average.safetensors.")
def command(
    model: str | None, best: int | None, recent: int | None, files: tuple[Path, ...], output: Path | None
) -> None:
    """Average checkpoints of a run into one, which `translate` then uses by default.

    Without FILES it averages all checkpoints that the run kept, or the best or newest of them. A run keeps its best
    checkpoint and its last five; training.keep_best and training.keep_recent change that. If training has stages, these
    are checkpoints of the newest stage. FILES with -o need no run.

    \b
    Examples:
      nmtkit average -m runs/mine
      nmtkit average -m runs/mine --best 5
      nmtkit average -m runs/mine --recent 10
      nmtkit average a.safetensors b.safetensors -o ab.safetensors
    """
    if sum(map(bool, (best, recent, files))) > 1:
        raise click.UsageError("--best, --recent and FILES each say what to average: give one of them")
    for path in files:
        if path.is_dir():
            raise click.UsageError(f"{path} is a folder, and FILES are checkpoints; a run is named with -m {path}")
    if files and output is not None and model is None:
        where, written, of, chosen = None, output, "", list(files)
    else:
        where, why = find_run(model)
        written, of = output or where.folder.average, f" of {where.folder.path} ({why})"
        chosen = list(files) or weights_to_average(where, best, recent)
    average_files(chosen, written, where)
    tell(f"averaged {len(chosen)} checkpoints{of} into {written}:")
    for path in chosen:
        tell(f"  {path}")
    if where is not None and isinstance(where.newest_stage().recipe.training.schedule, DecayToZero):
        tell(
            "the learning rate of this training comes down to its end, so earlier checkpoints may be worse: compare "
            "with --checkpoint best, or average fewer (--recent 2)"
        )
