"""`nmtkit import`."""

from pathlib import Path

import click

from nmtkit.cli.options import FILE
from nmtkit.cli.reporting import tell
from nmtkit.errors import NmtkitError
from nmtkit.experiment.importing import import_run

_NOT_READ = {
    "ctranslate2": "its folders hold weights laid out for its own products; import what they were converted from",
    "opennmt-py": "nothing here knows its checkpoints so far; import is for Marian models",
    "joeynmt": "nothing here knows its checkpoints so far; import is for Marian models",
}


@click.command()
@click.argument("folder", type=FILE)
@click.option(
    "--from",
    "source",
    type=click.Choice(["huggingface", *_NOT_READ]),
    default="huggingface",
    show_default=True,
    help="Who wrote it.",
)
@click.option("-o", "--output", metavar="DIR", help="The run's folder. Default: runs/ and the folder's name.")
def command(folder: Path, source: str, output: str | None) -> None:
    """Make a run of a model that Hugging Face's transformers wrote: a Marian (OPUS-MT) model.

    FOLDER holds config.json, model.safetensors or pytorch_model.bin, source.spm, target.spm and vocab.json. The run
    translates, rescores, aligns, draws its attention and is exported as any other. Nothing in the folder is run, and
    what is not read is refused by name.

    \b
    Examples:
      hf download Helsinki-NLP/opus-mt-en-de --local-dir opus-mt-en-de
      nmtkit import opus-mt-en-de
      nmtkit translate -m runs/opus-mt-en-de < test.en
    """
    if source in _NOT_READ:
        raise NmtkitError(f"{folder}: models of {source} are not read: {_NOT_READ[source]}")
    if not folder.is_dir():
        raise NmtkitError(
            f"{folder}: not a folder; name one that holds config.json. One of Hugging Face's hub comes by "
            "`pip install huggingface_hub` and `hf download NAME --local-dir DIR`"
        )
    run = import_run(folder, output, tell)
    tell(f"imported into {run.path}; try: echo TEXT | nmtkit translate -m {run.path}")
