"""`nmtkit average`, `nmtkit import` and `nmtkit export`: averaging weights, and exchanging them with other toolkits."""

from pathlib import Path

import click

from nmtkit.cli.terminal.reporting import tell
from nmtkit.cli.text_io import results
from nmtkit.convert.exporting import export_run
from nmtkit.convert.importing import detect_toolkit, import_run
from nmtkit.core.errors import NmtkitError
from nmtkit.runs.run import average_files, find_run, weights_to_average
from nmtkit.training.schedules import DecayToZero


def run_average(
    model: str | None,
    best: int | None,
    recent: int | None,
    files: tuple[Path, ...],
    output: Path | None,
) -> None:
    """Carries out `nmtkit average`."""
    if sum(map(bool, (best, recent, files))) > 1:
        raise click.UsageError(
            "--best, --recent and FILES are mutually exclusive; use only one of them"
        )
    for path in files:
        if path.is_dir():
            raise click.UsageError(
                f"{path} is a folder, but FILES must be checkpoints; to average a run's checkpoints, use -m {path}"
            )
    if files and output is not None and model is None:
        run, written, of_run, chosen = None, output, "", list(files)
    else:
        run, why = find_run(model)
        written, of_run = output or run.folder.average, f" of {run.folder.path} ({why})"
        chosen = list(files) or weights_to_average(run, best, recent)
        if output is None and run.folder.imported.is_file():
            raise click.UsageError(
                f"{written} contains the only weights of an imported run; give another file with -o FILE"
            )
    results.require_other(output, chosen)
    average_files(chosen, written, run)
    tell(
        "\n  ".join(
            [f"averaged {len(chosen)} checkpoints{of_run} into {written}:", *map(str, chosen)]
        )
    )
    if run is not None and isinstance(run.newest_stage().recipe.training.schedule, DecayToZero):
        tell(
            "the learning rate of this run decreases until the end of training, so earlier checkpoints may be worse; "
            "compare the average with --checkpoint best, or average fewer checkpoints (--recent 2)"
        )


def run_import(
    folder: Path,
    toolkit: str | None,
    output: str | None,
    task: str | None,
    source_prefix: str | None,
) -> None:
    """Carries out `nmtkit import`."""
    toolkit = toolkit or detect_toolkit(folder)
    if not folder.is_dir() and not (toolkit == "opennmt-py" and folder.is_file()):
        raise NmtkitError(
            f"{folder}: this is not a folder; give the folder that the other toolkit saved, or download a model from "
            "the Hugging Face Hub with `hf download NAME --local-dir DIR` (pip install huggingface_hub)"
        )
    run = import_run(folder, output, tell, toolkit=toolkit, task=task, source_prefix=source_prefix)
    tell(f"imported into {run.path}")


def run_export(model: str, folder: Path, program: str, weights: str, licence: str | None) -> None:
    """Carries out `nmtkit export`."""
    run, why = find_run(model)
    export_run(run, program, folder, weights, licence, tell)
    tell(
        f"exported {run.folder.path} ({why}) for {program} into {folder}; the model card is {folder / 'README.md'}"
    )
    if licence is None:
        tell(
            'the licence in the model card is that of the imported model, or "unknown" if there is none; to set it, '
            "use --license"
        )
