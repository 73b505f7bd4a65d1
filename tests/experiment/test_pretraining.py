"""Recipes that pretrain by corrupted texts: trained, stopped and resumed; and those that do not fit together."""

import random
from pathlib import Path

import pytest
import torch

from nmtkit import config
from nmtkit.core.errors import DataError, RecipeError
from nmtkit.experiment.stages import train_stages
from nmtkit.training.events import Evaluated, Step
from tests.support.begun_runs import begin_run
from tests.support.compare_runs import differences

CPU = torch.device("cpu")
RECIPE = """\
task: language-modelling
data: {train: {tgt: train}, valid: {tgt: valid}}
tokenizer: {kind: word, vocab_size: 60, specials: [<mask>], sentinels: 10}
model: {kind: transformer, hidden_size: 16, feed_forward_size: 16, heads: 2, layers: 1}
batch: {batch_tokens: 200, block_tokens: 16}
training: {lr: 0.01, max_updates: 20, validate_every: 10, save_every: 7, log_every: 1, best_metric: loss,
  threads: 1}
"""
XLNET = "model={kind: xlnet, hidden_size: 16, feed_forward_size: 16, heads: 2, layers: 1}"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of up to thirty words, each the follower of the one before."""
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(5)
    for name, count in (("train", 60), ("valid", 9)):
        texts = (
            [(start + step) % 20 for step in range(draw.randrange(1, 30))] for start in range(count)
        )
        lines = "".join(" ".join(f"w{word}" for word in text) + " .\n" for text in texts)
        (folder / name).write_text(lines, encoding="utf-8")
    (folder / "texts.yaml").write_text(RECIPE, encoding="utf-8")
    return folder


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "changes",
    [
        ["training.objectives.span_corruption={}"],
        pytest.param(["training.objectives.denoising={}"], marks=SLOW),
        pytest.param([XLNET, "training.objectives.permutation={}"], marks=SLOW),
        pytest.param(
            ["model={kind: elmo, hidden_size: 16}", "training.objectives.both_directions={}"],
            marks=SLOW,
        ),
    ],
)
def test_stopped_and_resumed_the_training_is_the_same_bit_for_bit(
    corpus: Path, tmp_path: Path, changes: list[str]
) -> None:
    settings = config.load(corpus / "texts.yaml", changes)
    straight = begin_run(settings, str(tmp_path / "straight"))
    losses = [
        event.metrics["loss"]
        for event in train_stages(straight, CPU)
        if isinstance(event, Evaluated)
    ]
    straight.close()
    assert losses[-1] < losses[0]
    run = begin_run(settings, str(tmp_path / "run"))
    events = train_stages(run, CPU)
    while not isinstance(event := next(events), Step) or event.update < 9:
        pass
    events.close()  # as if the process had been killed: nothing is saved
    run.close()
    resumed = begin_run(settings, str(tmp_path / "run"), resume=True)
    assert [*train_stages(resumed, CPU, resume=True)]
    resumed.close()
    assert differences(tmp_path / "run", tmp_path / "straight") == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            [],
            "training transformer on text requires an objective (span_corruption or denoising); set",
        ),
        (
            [XLNET],
            "training xlnet on text requires an objective (permutation); set `training.objectives.permutation`",
        ),
        (
            [XLNET, "training.objectives.span_corruption={}"],
            "training xlnet on text requires an objective (permutation)",
        ),
        (
            ["training.objectives.span_corruption={}", "tokenizer.sentinels=0"],
            "(for <extra_id_N>, set `tokenizer.sentinels: 100`)",
        ),
        (
            ["training.objectives.denoising={}", "tokenizer.specials=[]"],
            "add ['<mask>'] to `tokenizer.specials`",
        ),
        (
            ["training.objectives.denoising={}", "training.objectives.span_corruption={}"],
            "so it cannot be combined with denoising",
        ),
        (
            ["training.objectives.denoising={}", "training.label_smoothing=0.1"],
            "so it cannot be combined with label_smoothing",
        ),
        (["training.objectives.denoising={rate: 2}"], "training.objectives.denoising.rate"),
        (
            ["tokenizer.sentinels=60"],
            "specials: vocab_size must be larger than the number of special tokens, 65, and",
        ),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_begun(
    corpus: Path, changes: list[str], fault: str
) -> None:
    with pytest.raises(RecipeError) as told:
        config.load(corpus / "texts.yaml", changes)
    assert fault in str(told.value)


def test_a_text_that_needs_more_sentinels_than_there_are_is_told(
    corpus: Path, tmp_path: Path
) -> None:
    changes = ["training.objectives.span_corruption={rate: 0.5}", "tokenizer.sentinels=2"]
    run = begin_run(config.load(corpus / "texts.yaml", changes), str(tmp_path / "run"))
    with pytest.raises(DataError, match=r"but the tokenizer has 2; raise tokenizer.sentinels"):
        [*train_stages(run, CPU)]
    run.close()
