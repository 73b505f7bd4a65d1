"""`batch.batch_tokens: auto`: the largest batch that fits is found, told and kept."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit import config
from nmtkit.core.errors import RecipeError, TrainingError
from nmtkit.data.batches.batch import Batch
from nmtkit.experiment import largest_batch as finding
from nmtkit.experiment.execute import resolve_auto
from nmtkit.models.transformer import Transformer
from tests.support.begun_runs import begin_run

pytestmark = pytest.mark.usefixtures("cache_home")

CPU = torch.device("cpu")
RECIPE = """\
data:
  train: {src: train.src, tgt: train.src}
  valid: {src: valid.src, tgt: valid.src}
tokenizer: {kind: whitespace, joint: true}
model: {kind: transformer, layers: 1, hidden_size: 8, feed_forward_size: 8, heads: 2}
batch: {batch_tokens: auto}
training: {max_updates: 1, precision: fp32, matmul_precision: highest, threads: 1}
"""


@pytest.mark.parametrize(
    ("limit", "most", "found", "tried"),
    [
        (10_000, 60_000, 8192, [512, 1024, 2048, 4096, 8192]),  # 12,288 tokens would need 12,388
        (13_000, 60_000, 12_288, [512, 1024, 2048, 4096, 8192, 12_288]),
        (math.inf, 3000, 2048, [512, 1024, 2048]),
        (math.inf, 100, 512, [512]),
        (700, 60_000, 512, [512]),
        (500, 60_000, 0, [512]),
    ],
)
def test_trials_grow_until_the_next_would_not_fit(
    limit: float, most: int, found: int, tried: list[int]
) -> None:
    trials: list[int] = []

    def needed(tokens: int) -> float:
        trials.append(tokens)
        return 100 + tokens

    assert finding.largest_batch(needed, limit, 512, most) == found
    assert trials == tried


def test_what_does_not_fit_after_all_is_not_taken() -> None:
    """Memory that grows faster than the trials before it told."""
    assert (
        finding.largest_batch(lambda tokens: math.inf if tokens > 1500 else 1.0, 1e9, 512, 60_000)
        == 1024
    )
    assert (
        finding.largest_batch(lambda tokens: math.inf if tokens > 1600 else 1.0, 1e9, 512, 60_000)
        == 1536
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources of 1 to 15 words, 16 tokens with the end; an epoch has room for batches of 2,000 tokens."""
    monkeypatch.setattr(finding, "UPDATES_AN_EPOCH", 1)
    lines = [
        " ".join("abcdefgh"[number % 8] for _ in range(1 + number % 15)) for number in range(300)
    ]
    (tmp_path / "train.src").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "valid.src").write_text("a b\n", encoding="utf-8")
    (tmp_path / "auto.yaml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def test_it_is_found_with_the_longest_told_and_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []

    def read(self: Transformer, batch: Batch, need_attention: bool = False) -> object:
        seen.append(tuple(batch.inputs.ids.shape))
        if batch.size > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, batch, need_attention)

    real = Transformer.read
    monkeypatch.setattr(Transformer, "read", read)
    told: list[str] = []
    loaded = config.load(folder / "auto.yaml")
    run = begin_run(loaded, str(folder / "run"))
    torch.manual_seed(3)
    resolve_auto(run, CPU, told.append)
    assert torch.rand(1).item() == pytest.approx(torch.manual_seed(3) and torch.rand(1).item())
    assert seen == [(32, 16), (64, 16), (128, 16), (96, 16)]
    assert len(told) == 1
    assert "1,536 padded tokens" in told[0]
    assert run.recipe.batch.batch_tokens == 1536
    run.close()
    again = begin_run(loaded, str(folder / "run"), resume=True)
    resolve_auto(again, CPU, told.append)
    assert (again.recipe.batch.batch_tokens, len(told), len(seen)) == (1536, 1, 4)
    again.close()


def test_the_longest_are_those_of_the_first_stage(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()

    def longest(*given: Any) -> Batch:
        batch = longest_examples(*given)
        seen.add(batch.targets.ids.shape[1])
        return batch

    longest_examples = finding.longest_examples
    monkeypatch.setattr(finding, "longest_examples", longest)
    (folder / "long.src").write_text("a b c d e " * 6 + "\n", encoding="utf-8")
    text = f"data: {{train: {{tgt: {folder}/long.src}}, valid: {{tgt: {folder}/valid.src}}}}"
    training = "training: {objectives: {denoising: {rate: 0}}, best_metric: loss}"
    stages = f"[{{name: pretrain, task: language-modelling, {text}, {training}}}, {{name: tune}}]"
    loaded = config.load(folder / "auto.yaml", [f"stages={stages}", "tokenizer.specials=[<mask>]"])
    run = begin_run(loaded, str(folder / "run"))
    finding.find_batch_tokens(run, CPU)
    assert seen == {31}
    run.close()


def test_of_several_processes_the_smallest_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin_run(config.load(folder / "auto.yaml"), str(folder / "run"))
    monkeypatch.setattr(finding.processes, "max_over_ranks", lambda numbers: [max(-700, *numbers)])
    assert finding.find_batch_tokens(run, CPU)[0] == 700
    monkeypatch.setattr(finding, "free_memory", lambda: -(10**12))
    monkeypatch.setattr(finding.processes, "max_over_ranks", lambda numbers: numbers)
    with pytest.raises(TrainingError, match="even 512 padded tokens do not fit"):
        finding.find_batch_tokens(run, CPU)
    run.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch: {batch_tokens: auto, batch_size: 3}", "auto cannot be combined with batch_size"),
        ("batch: {batch_tokens: most}", "must be auto or a positive whole number"),
        ("batch: {batch_tokens: 0}", "must be auto or a positive whole number"),
        (
            "stages: [{name: a, batch: {batch_tokens: auto}}]",
            "`batch_tokens: auto` is not available for a single stage",
        ),
        (
            "stages: [{name: b, training: {precision: auto}}]",
            "`precision: auto` is not available for a single stage; remove it from stage b",
        ),
    ],
)
def test_what_it_cannot_be_is_said(folder: Path, text: str, message: str) -> None:
    (folder / "auto.yaml").write_text(
        RECIPE.replace("batch: {batch_tokens: auto}", text), encoding="utf-8"
    )
    with pytest.raises(RecipeError, match=message):
        config.load(folder / "auto.yaml")
