"""`nmtkit export --to safetensors`: any model, also one that reads no text, or writes without reading."""

from pathlib import Path

import pytest
import torch

from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from nmtkit.training.checkpoints.weights import get_weights
from tests.cli.untrained_runs import CAPTIONER, make_run
from tests.support.commands import Command, refused, succeeded

SPEAKER = """\
task: language-modelling
data: {train: {tgt: [text]}, valid: {tgt: [text]}}
tokenizer: {kind: word}
model: {kind: transformer_lm, hidden_size: 8, feed_forward_size: 8, heads: 2, layers: 1}
training: {max_updates: 1, best_metric: perplexity}
"""


@pytest.mark.parametrize(
    ("text", "features", "use"), [(CAPTIONER, 36, "caption"), (SPEAKER, 0, "generate")]
)
def test_an_exported_model_has_the_same_weights(
    console: Command, tmp_path: Path, text: str, features: int, use: str
) -> None:
    run = make_run(tmp_path, "mine", text, features=features)
    succeeded(console("export", run, "out", "--to", "safetensors"))
    before, after = (
        get_weights(Run(RunFolder(path)).open_model(torch.device("cpu"))[0])
        for path in (run, tmp_path / "out")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"nmtkit {use} -m DIR FILE" in card
    assert " source" not in card
    refused(console("export", run, "hf", "--to", "huggingface"), "models; use --to safetensors")
