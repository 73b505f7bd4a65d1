"""Runs with random weights, for tests of commands that need no trained model."""

from collections.abc import Sequence
from pathlib import Path

import torch

from nmtkit.config import load
from nmtkit.config.tasks.task import TASKS
from nmtkit.core.files import atomic_write_text, write_json
from nmtkit.data.text.blocks import Example
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.origin import find_origin, origin_tokenizers
from nmtkit.runs.run import build_model
from nmtkit.training.checkpoints.weights import get_weights, save_weights
from tests.support.learned_tokenizers import learn_tokenizers

LINES = [
    "The old man sees the dog. It sleeps.",
    "The dog sees the man, who is old. The man sleeps in the old house.",
]
ARTICLES = [
    "Zyx sees the old dog. The dog sees Abc.",
    "",
    "The man sleeps.",
    "Abc and Def see the old house. Ghi sleeps.",
]
SUMMARIZATION = """\
task: summarization
data: {train: {src: [a], tgt: [b]}, max_length: 8, over_long: truncate}
tokenizer: {kind: word, min_frequency: 2}
model: {kind: pointer_generator, embedding_size: 8, hidden_size: 8, coverage: true}
training: {best_metric: rougeL, max_updates: 1}
search: {beam_size: 2, max_length: 12, min_length: 3}
"""
TRANSLATION = """\
data: {train: {src: [a], tgt: [b]}}
tokenizer: {kind: word}
model: {kind: rnnsearch, embedding_size: 8, hidden_size: 8}
training: {max_updates: 1}
search: {beam_size: 2, max_length: 8}
"""
PARSER = """\
task: parsing
data: {train: {src: [a], tgt: [b]}}
tokenizer: {kind: whitespace, joint: false}
model: {kind: rnnsearch, embedding_size: 8, hidden_size: 8}
training: {max_updates: 1, best_metric: bracket-f1}
"""
CAPTIONER = """\
task: captioning
data: {train: {features: [a], tgt: [b]}}
tokenizer: {kind: whitespace}
model: {kind: show_attend_tell, embedding_size: 8, hidden_size: 8, cnn: [4, 4, 4]}
training: {max_updates: 1}
"""
HEADS = "kind: transformer, hidden_size: 32, feed_forward_size: 64, heads: 4, encoder_layers: 3, decoder_layers: 2"
TRANSFORMER = TRANSLATION.replace("kind: rnnsearch, embedding_size: 8, hidden_size: 8", HEADS)

LANGUAGE_MODEL = """\
task: language-modelling
data: {train: {tgt: [text]}, valid: {tgt: [text]}}
init_from: {tokenizer: runs/mine}
model: {kind: transformer_lm, hidden_size: 8, feed_forward_size: 8, heads: 2, layers: 1}
training: {max_updates: 1, best_metric: perplexity}
"""


def make_run(
    folder: Path, name: str, recipe_text: str, text: Sequence[str] = LINES, features: int = 0
) -> Path:
    """A finished run as `train` leaves it, but for what it learned; its vocabularies are of the text or of a run.

    A row of its features, if it has any, has so many numbers.
    """
    (folder / f"{name}.yaml").write_text(recipe_text)
    recipe = load(folder / f"{name}.yaml")
    run = RunFolder(folder / "runs" / name)
    atomic_write_text(run.recipe, recipe.to_yaml())
    if (origin := find_origin(recipe)) is not None:
        tokenizers = origin_tokenizers(origin, recipe)
    else:
        examples = [Example(line, line, number) for number, line in enumerate(text, start=1)]
        tokenizers = learn_tokenizers(
            recipe.tokenizer, examples, columns=TASKS.get(recipe.task).columns
        )
    tokenizers.features = features
    tokenizers.save(run.vocabulary)
    torch.manual_seed(5)
    save_weights(run.average, get_weights(build_model(recipe, tokenizers)))
    write_json(run.result, {})
    return run.path
