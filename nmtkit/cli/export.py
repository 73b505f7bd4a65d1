"""`nmtkit export`."""

from pathlib import Path

import click

from nmtkit.cli import inference
from nmtkit.cli.options import FILE
from nmtkit.cli.reporting import tell
from nmtkit.interchange.exporting import EXPORTS, export_run
from nmtkit.runs.saved import find_run


@click.command()
@click.argument("model", metavar="RUN")
@click.argument("folder", metavar="DIR", type=FILE)
@click.option("--to", type=click.Choice([*EXPORTS]), required=True, help="The program that opens it.")
@inference.checkpoint
@click.option(
    "--license", "licence", metavar="NAME", help="For the model card, e.g. cc-by-4.0. Default: an imported model's own."
)
def command(model: str, folder: Path, to: str, weights: str, licence: str | None) -> None:
    """Write a run into a new folder for another program, with a model card (README.md).

    \b
    huggingface: AutoModelForSeq2SeqLM and AutoTokenizer open it. Transformers that do not copy, with subwords.
    ctranslate2: its Translator opens it. Transformers that do not copy; `pip install ctranslate2`.
    safetensors: nmtkit opens it. Any model: weights, tokenizers and recipe, without text and training state.

    \b
    Examples:
      nmtkit export runs/mine mine-hf --to huggingface --license cc-by-4.0
      nmtkit export runs/mine mine-ct2 --to ctranslate2
    """
    run, why = find_run(model)
    export_run(run, to, folder, weights, licence, tell)
    tell(f"exported {run.folder.path} ({why}) for {to} into {folder}; its model card is {folder / 'README.md'}")
    if licence is None:
        tell("the model card names the licence of an imported model, or unknown; name one with --license")
