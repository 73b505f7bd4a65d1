"""`nmtkit import`."""

from pathlib import Path

import click

from nmtkit.cli.options import FILE
from nmtkit.cli.reporting import tell
from nmtkit.core.errors import NmtkitError
from nmtkit.interchange.importing import READERS, detect_toolkit, import_run


@click.command()
@click.argument("folder", metavar="PATH", type=FILE)
@click.option(
    "--from",
    "source",
    type=click.Choice([*READERS]),
    help="Toolkit that saved the model. Default: detected.",
)
@click.option("-o", "--output", metavar="DIR", help="The run's folder. Default: runs/ and the folder's name.")
def command(folder: Path, source: str | None, output: str | None) -> None:
    """Make a run of a model of another toolkit.

    \b
    huggingface: a folder of Marian (OPUS-MT), with config.json, model.safetensors or pytorch_model.bin, source.spm,
                 target.spm and vocab.json.
    joeynmt:     a folder of Joey NMT 2, with config.yaml, best.ckpt, src_vocab.txt and trg_vocab.txt.
    opennmt-py:  a checkpoint of OpenNMT-py 3 (model_step_N.pt).
    ctranslate2: a folder of CTranslate2, with config.json, model.bin and its vocabularies; source.spm and target.spm,
                 or a vocabulary of words.

    It reads Transformers of all four toolkits, and recurrent models with attention of Joey NMT and OpenNMT-py. Put the
    sentencepiece models of these two beside their weights; without them the run takes text that is cut into tokens as
    it was in training. int8 and int16 weights of CTranslate2 become float32.

    The run translates, rescores, aligns, draws its attention and is exported as any other. Nothing that it holds is
    run, and what is not read is refused by name.

    \b
    Examples:
      hf download Helsinki-NLP/opus-mt-en-de --local-dir opus-mt-en-de
      nmtkit import opus-mt-en-de
      nmtkit translate -m runs/opus-mt-en-de < test.en
      nmtkit import model_step_100000.pt
      nmtkit import models/iwslt14 --from joeynmt -o runs/iwslt14-joey
    """
    source = source or detect_toolkit(folder)
    if not folder.is_dir() and not (source == "opennmt-py" and folder.is_file()):
        raise NmtkitError(
            f"{folder}: not a folder; name one that holds config.json. One of Hugging Face's hub comes by "
            "`pip install huggingface_hub` and `hf download NAME --local-dir DIR`"
            if source == "huggingface"
            else f"{folder}: not there; name the folder that its training saved in"
        )
    run = import_run(folder, output, tell, source)
    tell(f"imported into {run.path}; try: echo TEXT | nmtkit translate -m {run.path}")
