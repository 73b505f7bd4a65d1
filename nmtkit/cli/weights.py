"""`nmtkit average`, `nmtkit import` and `nmtkit export`: the weights of a run, averaged or exchanged."""

from pathlib import Path

import click

import nmtkit.huggingface  # noqa: F401  # importing it registers its reader
from nmtkit.cli import inference, options, results
from nmtkit.cli.options import FILE
from nmtkit.cli.reporting import tell
from nmtkit.core.errors import NmtkitError
from nmtkit.interchange.exporting import EXPORTS, export_run
from nmtkit.interchange.importing import READERS, detect_toolkit, import_run
from nmtkit.runs.saved import average_files, find_run, weights_to_average
from nmtkit.training.schedules import DecayToZero


@click.command("average")
@options.model
@click.option(
    "--best", type=click.IntRange(2), metavar="N", help="Average the N best on validation. Default: all that were kept."
)
@click.option("--recent", type=click.IntRange(2), metavar="N", help="Average the N newest.")
@click.argument("files", nargs=-1, type=FILE)
@click.option("-o", "--output", type=FILE, help="Where to write it. Default: the run's average.safetensors.")
def average_command(
    model: str | None, best: int | None, recent: int | None, files: tuple[Path, ...], output: Path | None
) -> None:
    """Average checkpoints of a run into one, which `translate` then uses by default.

    Without FILES it averages all checkpoints that the run kept, or the best or newest of them. A run keeps its best
    checkpoint and its last five, or with training.keep_best=N its N best; training.keep_recent=N keeps the last N as
    well. If training has stages, these are checkpoints of the newest stage. FILES with -o need no run.

    \b
    Examples:
      nmtkit average -m runs/mine
      nmtkit average -m runs/mine --best 5
      nmtkit average a.safetensors b.safetensors -o ab.safetensors
    """
    if sum(map(bool, (best, recent, files))) > 1:
        raise click.UsageError("--best, --recent and FILES each say what to average: give one of them")
    for path in files:
        if path.is_dir():
            raise click.UsageError(f"{path} is a folder, and FILES are checkpoints; a run is named with -m {path}")
    if files and output is not None and model is None:
        run, written, of_run, chosen = None, output, "", list(files)
    else:
        run, why = find_run(model)
        written, of_run = output or run.folder.average, f" of {run.folder.path} ({why})"
        chosen = list(files) or weights_to_average(run, best, recent)
        if output is None and run.folder.imported.is_file():
            raise click.UsageError(f"{written} has the only weights of an imported run: name another file with -o FILE")
    results.require_other(output, chosen)
    average_files(chosen, written, run)
    tell("\n  ".join([f"averaged {len(chosen)} checkpoints{of_run} into {written}:", *map(str, chosen)]))
    if run is not None and isinstance(run.newest_stage().recipe.training.schedule, DecayToZero):
        tell(
            "the learning rate of this training falls until its end, so earlier checkpoints may be worse: compare "
            "with --checkpoint best, or average fewer (--recent 2)"
        )


@click.command("import")
@click.argument("folder", metavar="PATH", type=FILE)
@click.option("--from", "toolkit", type=click.Choice([*READERS]), help="Toolkit that saved it. Default: detected.")
@click.option("-o", "--output", metavar="DIR", help="The run's folder. Default: runs/ and the folder's name.")
def import_command(folder: Path, toolkit: str | None, output: str | None) -> None:
    """Convert a model of another toolkit to a run.

    \b
    huggingface: a folder that save_pretrained wrote, with config.json, its tokenizer, and model.safetensors (or its
                 parts and index) or pytorch_model.bin, of Marian (OPUS-MT), BART, Pegasus, mBART, M2M100, NLLB,
                 T5, Flan-T5, mT5, GPT-2 or BERT. All but Marian need `pip install 'nmtkit[huggingface]'`.
    joeynmt:     a folder of Joey NMT 2, with config.yaml, best.ckpt, src_vocab.txt and trg_vocab.txt.
    opennmt-py:  a checkpoint of OpenNMT-py 3 (model_step_N.pt), or a folder with one.
    ctranslate2: a folder of CTranslate2, with config.json, model.bin and its vocabularies; source.spm and target.spm,
                 or a vocabulary of words.

    It reads Transformers of all four toolkits, and recurrent models with attention of Joey NMT and OpenNMT-py, whose
    summarizers copy. For these two, put the sentencepiece models beside the weights; without them the run needs text
    that is already tokenized as in training. int8 and int16 weights of CTranslate2 become float32.

    The run can be used like any other. No code in the model's files is executed, and what nmtkit cannot read is refused
    with a message that names it.

    \b
    Examples:
      hf download Helsinki-NLP/opus-mt-en-de --local-dir opus-mt-en-de
      nmtkit import opus-mt-en-de
      nmtkit translate -m runs/opus-mt-en-de < test.en
      hf download facebook/nllb-200-distilled-600M --local-dir nllb
      nmtkit import nllb
      nmtkit translate -m runs/nllb --from eng_Latn --to deu_Latn < test.en
      nmtkit import model_step_100000.pt
      nmtkit import models/iwslt14 --from joeynmt -o runs/iwslt14-joey
    """
    toolkit = toolkit or detect_toolkit(folder)
    if not folder.is_dir() and not (toolkit == "opennmt-py" and folder.is_file()):
        raise NmtkitError(
            f"{folder}: not a folder; name the one that its training saved in, or that `hf download NAME --local-dir "
            "DIR` makes of a model of Hugging Face's hub (pip install huggingface_hub)"
        )
    run = import_run(folder, output, tell, toolkit)
    tell(f"imported into {run.path}")


@click.command("export")
@click.argument("model", metavar="RUN")
@click.argument("folder", metavar="DIR", type=FILE)
@click.option("--to", "program", type=click.Choice([*EXPORTS]), required=True, help="The format to write.")
@inference.checkpoint
@click.option(
    "--license", "licence", metavar="NAME", help="For the model card, e.g. cc-by-4.0. Default: an imported model's own."
)
def export_command(model: str, folder: Path, program: str, weights: str, licence: str | None) -> None:
    """Write a run into a new folder for another program, with a model card (README.md).

    \b
    huggingface: for AutoModelForSeq2SeqLM and AutoTokenizer. Only subword Transformers without a copy mechanism.
    ctranslate2: for its Translator. Only Transformers without a copy mechanism; `pip install ctranslate2`.
    safetensors: for nmtkit. Any model: weights, tokenizers and recipe, without text and training state.

    \b
    Examples:
      nmtkit export runs/mine mine-hf --to huggingface --license cc-by-4.0
      nmtkit export runs/mine mine-ct2 --to ctranslate2
    """
    run, why = find_run(model)
    export_run(run, program, folder, weights, licence, tell)
    tell(f"exported {run.folder.path} ({why}) for {program} into {folder}; its model card is {folder / 'README.md'}")
    if licence is None:
        tell("the model card names the licence of an imported model, or unknown; name one with --license")
