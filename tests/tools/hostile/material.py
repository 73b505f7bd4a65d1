"""Text of a made-up language, recipes for it, and small runs: what the cases attack copies of."""

import json
import shutil
from pathlib import Path

from tests.support.commands import backwards_links, sentence_pairs, write_lines, write_pairs

from .runner import Runner

RECIPE = """\
name: tiny
data:
  train: {src: train.src, tgt: train.tgt}
  valid: {src: valid.src, tgt: valid.tgt}
  test: {src: test.src, tgt: test.tgt}
tokenizer: {kind: word, vocab_size: 100, joint: true}
model: {kind: rnnsearch, embedding_size: 8, hidden_size: 12, attention_size: 8, maxout_size: 8, dropout: 0.1}
batch: {batch_tokens: 128}
training:
  precision: fp32
  matmul_precision: highest
  lr: 0.005
  max_updates: 12
  validate_every: 6
  save_every: 4
  log_every: 1
  keep_best: 2
search: {beam_size: 2}
seed: 7
"""
STAGES = """\
stages:
  - name: first
  - name: second
    training: {lr: 0.002, label_smoothing: 0.1}
"""
SUMMARIES = """\
name: sum
task: summarization
data:
  train: {jsonl: train.jsonl, src_field: article, tgt_field: summary}
  valid: {jsonl: valid.jsonl, src_field: article, tgt_field: summary}
  max_length: 40
  over_long: truncate
tokenizer: {kind: word, vocab_size: 15, joint: true}
model: {kind: pointer_generator, embedding_size: 8, hidden_size: 8, attention_size: 8}
batch: {batch_tokens: 256}
training: {lr: 0.01, max_updates: 4, validate_every: 4, best_metric: rougeL, precision: fp32, matmul_precision: highest}
search: {beam_size: 2, max_length: 12}
"""


def write_corpus(folder: Path, train: int = 300) -> None:
    """Train, valid and test, as line pairs and as JSON lines, with word alignments of train and three recipes."""
    for name, count, seed in (("train", train, 1), ("valid", 12, 2), ("test", 12, 3)):
        pairs = sentence_pairs(count, seed)
        write_pairs(folder, name, pairs)
        records = [{"article": f"{source} . {source} .", "summary": source} for source, _ in pairs]
        write_lines(folder / f"{name}.jsonl", [json.dumps(record) for record in records])
        write_lines(folder / f"{name}.align", backwards_links(source for source, _ in pairs))
    for name, text in (("tiny", RECIPE), ("staged", RECIPE + STAGES), ("sum", SUMMARIES)):
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def make_material(folder: Path, runner: Runner) -> None:
    """Writes the corpus into a folder, and trains `runs/tiny` and `runs/sum` there."""
    write_corpus(folder)
    for name in ("tiny", "sum"):
        done = runner.run("train", f"{name}.yaml", cwd=folder)
        assert done.code == 0, done


def copy_material(folder: Path, to: Path, *runs: str) -> None:
    """The corpus and some of the runs, as they were."""
    for path in folder.iterdir():
        if path.is_file():
            shutil.copy2(path, to)  # with its time: preprocessed text is known by it
    for run in runs:
        shutil.copytree(folder / "runs" / run, to / "runs" / run)
