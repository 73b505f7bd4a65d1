"""`nmtkit average`, `nmtkit import` and `nmtkit export`: averaging weights, and exchanging them with other toolkits."""

from typing import Any

import click

from nmtkit.cli import options
from nmtkit.cli.commands.options import search_options
from nmtkit.cli.options import FILE

TOOLKITS = ("huggingface", "joeynmt", "opennmt-py")
"""Toolkits whose models can be imported."""
EXPORTS = ("huggingface", "ctranslate2", "safetensors")
"""Formats of `export`."""


@click.command("average")
@options.model
@click.option(
    "--best",
    type=click.IntRange(2),
    metavar="N",
    help="Average the N checkpoints with the best validation scores. Default: all that were kept.",
)
@click.option(
    "--recent", type=click.IntRange(2), metavar="N", help="Average the N newest checkpoints."
)
@click.argument("files", nargs=-1, type=FILE)
@click.option(
    "-o", "--output", type=FILE, help="Output file. Default: the run's average.safetensors."
)
def average_command(**values: Any) -> None:
    """Average checkpoints of a run into one, which `translate` then uses by default.

    Without FILES, the command averages all checkpoints that the run kept, or the best or newest of them. A run keeps
    its best checkpoint and its last five, or, with training.keep_best=N, its N best; training.keep_recent=N also keeps
    the last N. If training has stages, only checkpoints of the newest stage are averaged. With FILES and -o, no run
    is needed.

    \b
    Examples:
      nmtkit average -m runs/mine
      nmtkit average -m runs/mine --best 5
      nmtkit average a.safetensors b.safetensors -o ab.safetensors
    """
    from nmtkit.cli.training.weights import run_average

    run_average(**values)


@click.command("import")
@click.argument("folder", metavar="PATH", type=FILE)
@click.option(
    "--from",
    "toolkit",
    type=click.Choice(TOOLKITS),
    help="Toolkit that saved the model. Default: detected automatically.",
)
@click.option(
    "-o", "--output", metavar="DIR", help="Run folder. Default: runs/ plus the name of PATH."
)
@click.option(
    "--task",
    metavar="NAME",
    help="Task of the model: translation, summarization, or a task in `task_specific_params` of config.json, such as "
    "translation_en_to_de; the run then gets the prefix and search settings of that task. Default: the only task in "
    "config.json, else the usual task of such a model.",
)
@click.option(
    "--source-prefix",
    metavar="TEXT",
    help="Text to put before every source in decoding and fine-tuning, such as 'summarize: ' for T5.",
)
def import_command(**values: Any) -> None:
    """Convert a model from another toolkit into a run.

    \b
    huggingface: a folder written by save_pretrained, with config.json, the tokenizer, and model.safetensors (or its
                 parts and index) or pytorch_model.bin. The model must be Marian (OPUS-MT), BART, Pegasus, mBART,
                 M2M100, NLLB, T5, Flan-T5, mT5, GPT-2 or BERT. All but Marian need
                 `pip install 'nmtkit[huggingface]'`.
    joeynmt:     a model folder of Joey NMT 2, with config.yaml, best.ckpt, src_vocab.txt and trg_vocab.txt.
    opennmt-py:  a checkpoint of OpenNMT-py 3 (model_step_N.pt), or a folder with one.

    The command imports Transformers from all three toolkits, and recurrent models with attention from Joey NMT and
    OpenNMT-py, including OpenNMT-py summarizers that copy. For Joey NMT and OpenNMT-py, put the sentencepiece models
    next to the weights; without them, the run's input must be tokenized as in training.

    The run can be used like any other. nmtkit executes no code from the model's files. If a model is not supported, the
    error gives the reason.

    \b
    Examples:
      hf download Helsinki-NLP/opus-mt-en-de --local-dir opus-mt-en-de
      nmtkit import opus-mt-en-de
      nmtkit translate -m runs/opus-mt-en-de < test.en
      hf download facebook/nllb-200-distilled-600M --local-dir nllb
      nmtkit import nllb
      nmtkit translate -m runs/nllb --from eng_Latn --to deu_Latn < test.en
      nmtkit import flan-t5-base --task summarization
      nmtkit summarize -m runs/flan-t5-base < articles.txt
      nmtkit import model_step_100000.pt
      nmtkit import models/iwslt14 --from joeynmt -o runs/iwslt14-joey
    """
    from nmtkit.cli.training.weights import run_import

    run_import(**values)


@click.command("export")
@click.argument("model", metavar="RUN")
@click.argument("folder", metavar="DIR", type=FILE)
@click.option("--to", "program", type=click.Choice(EXPORTS), required=True, help="Format to write.")
@search_options.checkpoint
@click.option(
    "--license",
    "licence",
    metavar="NAME",
    help="Licence for the model card, e.g. cc-by-4.0. Default: the licence of an imported model.",
)
def export_command(**values: Any) -> None:
    """Export a run into a new folder for another program, with a model card (README.md).

    \b
    huggingface: for AutoModelForSeq2SeqLM and AutoTokenizer. Supports only subword Transformers without a copy
                 mechanism, and imported models with their tokenizers: BART, Pegasus, mBART, M2M100, NLLB, T5, mT5 and
                 GPT-2.
    ctranslate2: for its Translator. Supports only Transformers and T5 without a copy mechanism, and needs
                 `pip install 'nmtkit[fast]'`. Imported models with a Hugging Face tokenizer also need `transformers`.
    safetensors: for nmtkit. Supports any model; saves weights, tokenizers and recipe, without text and training state.

    \b
    Examples:
      nmtkit export runs/mine mine-hf --to huggingface --license cc-by-4.0
      nmtkit export runs/mine mine-ct2 --to ctranslate2
    """
    from nmtkit.cli.training.weights import run_export

    run_export(**values)
