"""The recipe that fine-tunes a run: what of its training stays, and how often the new text is read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nmtkit import config
from nmtkit.config import Recipe
from nmtkit.data.text.statistics import CorpusCounter
from nmtkit.experiment.presets.fine_tuning import FineTuningRecipe
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run

FILES = {split: {"src": "a", "tgt": "b"} for split in ("train", "valid")}
PAIRS = 500


@pytest.fixture
def tuned(tmp_path: Path) -> Callable[..., Recipe]:
    """The recipe that fine-tunes a run of a bundled recipe with these changes, on short pairs."""

    def of(name: str, *changes: str) -> Recipe:
        (tmp_path / "recipe.yaml").write_text(config.load(name, changes).to_yaml())
        counter = CorpusCounter()
        for number in range(PAIRS):
            counter.add(f"w{number} a b", "x y")
        (tmp_path / "tuned.yaml").write_text(
            FineTuningRecipe(Run(RunFolder(tmp_path)), counter.statistics()).text("tuned", FILES)
        )
        return config.load(tmp_path / "tuned.yaml")

    return of


def test_rate_and_norm_are_of_the_loss_that_they_were_found_for(
    tuned: Callable[..., Recipe],
) -> None:
    training = tuned(
        "compare-luong-global", "training.loss_unit=sentence", "training.clip_norm=5"
    ).training
    assert (training.loss_unit, training.clip_norm) == ("sentence", 5)


def test_losses_that_belong_to_the_model_stay(tuned: Callable[..., Recipe]) -> None:
    hard = [
        "model={kind: luong, hard_attention: true}",
        "training.objectives.hard_attention.reward_weight=0.5",
    ]
    kept = tuned("compare-luong-global", *hard).training.objectives
    assert kept["hard_attention"].reward_weight == 0.5
    experts = ["model.experts.count=4", "training.objectives.expert_balance=0.1"]
    assert tuned("compare-transformer", *experts).training.objectives == {"expert_balance": 0.1}


def test_updates_are_counted_in_batches_of_so_many_sentences_too(
    tuned: Callable[..., Recipe],
) -> None:
    """The text is read twenty times, as it is where only tokens limit a batch."""
    updates = tuned("compare-luong-global", "batch.batch_size=16").training.max_updates
    assert updates == 20 * -(-PAIRS // 16)


def test_only_what_is_read_of_long_texts_counts(tuned: Callable[..., Recipe]) -> None:
    """Of each pair one token and the end: about 1,100 in all, which are two batches of 1,024, read twenty times."""
    limits = ["data.over_long=truncate", "data.max_length=1", "data.max_tgt_length=1"]
    whole, cut = tuned("compare-luong-global"), tuned("compare-luong-global", *limits)
    assert cut.batch.batch_tokens == 1_024
    assert (whole.training.max_updates, cut.training.max_updates) == (60, 50)  # 50 are the least
