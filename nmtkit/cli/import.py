"""`nmtkit import`."""

from pathlib import Path

import click

from nmtkit.cli.options import FILE
from nmtkit.cli.reporting import tell
from nmtkit.errors import NmtkitError
from nmtkit.experiment.ctranslate2_model import read_ctranslate2
from nmtkit.experiment.importing import import_run, read_hugging_face

_READ = {"huggingface": read_hugging_face, "ctranslate2": read_ctranslate2}
_NOT_READ = {
    "opennmt-py": "nothing here knows its checkpoints so far; import is for Marian models and CTranslate2",
    "joeynmt": "nothing here knows its checkpoints so far; import is for Marian models and CTranslate2",
}


@click.command()
@click.argument("folder", type=FILE)
@click.option(
    "--from",
    "source",
    type=click.Choice([*_READ, *_NOT_READ]),
    default="huggingface",
    show_default=True,
    help="Who wrote it.",
)
@click.option("-o", "--output", metavar="DIR", help="The run's folder. Default: runs/ and the folder's name.")
def command(folder: Path, source: str, output: str | None) -> None:
    """Make a run of a model of others: a Marian (OPUS-MT) model of Hugging Face, or a Transformer of CTranslate2.

    The run translates, rescores, aligns, draws its attention and is exported as any other. Nothing in FOLDER is run,
    and what is not read is refused by name.

    \b
    FOLDER holds
      huggingface  config.json, model.safetensors or pytorch_model.bin, source.spm, target.spm, vocab.json
      ctranslate2  config.json, model.bin, vocabularies; source.spm and target.spm, or a vocabulary of words

    CTranslate2's int8 and int16 weights become float32.

    \b
    Examples:
      hf download Helsinki-NLP/opus-mt-en-de --local-dir opus-mt-en-de
      nmtkit import opus-mt-en-de
      nmtkit translate -m runs/opus-mt-en-de < test.en
      nmtkit import mine-ct2 --from ctranslate2
    """
    if source in _NOT_READ:
        raise NmtkitError(f"{folder}: models of {source} are not read: {_NOT_READ[source]}")
    if not folder.is_dir():
        raise NmtkitError(
            f"{folder}: not a folder; name one that holds config.json. One of Hugging Face's hub comes by "
            "`pip install huggingface_hub` and `hf download NAME --local-dir DIR`"
        )
    run = import_run(folder, output, tell, _READ[source])
    tell(f"imported into {run.path}; try: echo TEXT | nmtkit translate -m {run.path}")
