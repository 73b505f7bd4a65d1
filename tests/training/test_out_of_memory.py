"""Updates that do not fit into memory are made in parts, and give what they would have given whole."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.core.errors import TrainingError
from nmtkit.data.batches.batch import Batch
from nmtkit.models.base import Seq2Seq, VocabularySizes
from nmtkit.models.transformer import Transformer, TransformerConfig
from nmtkit.training.events import Event
from nmtkit.training.parallel import processes
from tests.support.cases import daily
from tests.support.tiny_training import TinyStream, ended, run, settings, start, steps, tiny_model

UPDATES = 12


class Crowded:
    """Lets a model read at most so many examples at a time: always, or in every second pass or so."""

    def __init__(self, model: Seq2Seq, room: int, share: float = 1.0) -> None:
        self.read, self.room, self.share, self.refused = model.read, room, share, 0
        self.draw = random.Random(3)
        model.read = self

    def __call__(self, batch: Batch, need_attention: bool) -> Any:
        if batch.size > self.room and self.draw.random() < self.share:
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.read(batch, need_attention)


def trained(
    folder: Path, room: int | None = None, share: float = 1.0, **given: Any
) -> tuple[Any, list[Event], Any]:
    model = tiny_model(dtype=torch.float64)
    crowded = Crowded(model, 1000 if room is None else room, share)
    _, events = run(folder, settings(max_updates=UPDATES, **given), model, TinyStream(size=5))
    return model, events, crowded


TOGETHER = {"accumulate": 2, "clip_norm": 0.1, "label_smoothing": 0.1, "loss_unit": "sentence"}


@pytest.mark.parametrize(
    ("room", "share", "given"),
    daily(
        [
            (3, 1.0, {}),
            (2, 0.5, TOGETHER),
            (1, 1.0, {}),
            (3, 1.0, TOGETHER),
            (1, 1.0, TOGETHER),
            (2, 0.5, {}),
        ],
        3,
    ),
)
def test_weights_are_those_of_an_undisturbed_training(
    tmp_path: Path, room: int, share: float, given: dict[str, Any]
) -> None:
    whole, undisturbed, _ = trained(tmp_path / "whole", **given)
    model, events, crowded = trained(tmp_path / "parts", room, share, **given)
    assert crowded.refused > 3
    for one, other in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert [step.loss for step in steps(events)] == pytest.approx(
        [step.loss for step in steps(undisturbed)]
    )
    assert 0 < sum(step.oom_splits for step in steps(events)) <= UPDATES
    assert not any(step.oom_splits for step in steps(undisturbed))


def test_what_another_process_has_no_memory_for_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 0 alone speaks."""
    monkeypatch.setattr(
        processes, "max_over_ranks", lambda own: [2.0] if len(own) == 1 else [*map(float, own)]
    )
    assert {step.oom_splits for step in steps(trained(tmp_path)[1])} == {2}


def test_all_gradients_of_the_update_are_made_anew(tmp_path: Path) -> None:
    """Of two batches the first has gone well when the second does not fit."""

    class OnlyTheFirst(Crowded):
        def __call__(self, batch: Batch, need_attention: bool) -> Any:
            self.room = 1000 if self.room == 1 else 1
            return super().__call__(batch, need_attention)

    whole, _, _ = trained(tmp_path / "whole", accumulate=2)
    model = tiny_model(dtype=torch.float64)
    crowded = OnlyTheFirst(model, 1)
    _, events = run(
        tmp_path / "parts", settings(max_updates=UPDATES, accumulate=2), model, TinyStream(size=5)
    )
    assert crowded.refused >= UPDATES
    for one, other in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert ended(events) == ("max_updates", UPDATES)


def test_one_example_that_does_not_fit_is_a_fault_with_its_size(tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match=r"update 1: even one example .*has \d+ positions in all.*max_length"
    ):
        trained(tmp_path, 0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_whose_memory_is_full_makes_the_same_updates(tmp_path: Path) -> None:
    """The limit is half of what the updates take beyond the weights, so that the allocator really gives up."""
    place = torch.device("cuda", torch.cuda.current_device())
    sizes = VocabularySizes({"src": 12, "tgt": 12}, shared=True)
    network = TransformerConfig(
        hidden_size=64, feed_forward_size=256, heads=4, encoder_layers=2, decoder_layers=2
    )
    found, oom_splits, peak = [], [], 0
    for limited in (False, True):
        torch.manual_seed(1)
        model = Transformer(network.changed({"dropout": 0.0}), sizes).to(place)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(place)
        held = torch.cuda.memory_allocated(place)
        if limited:
            total = torch.cuda.get_device_properties(place).total_memory
            torch.cuda.set_per_process_memory_fraction((held + (peak - held) // 2) / total, place)
        try:
            # Adam makes much of how small gradients are rounded
            config = settings(optimizer="sgd", lr=0.1)
            events = list(
                start(tmp_path / str(limited), config, model, TinyStream(size=20_000), device=place)
            )
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, place)
        peak = torch.cuda.max_memory_allocated(place)
        oom_splits.append(sum(step.oom_splits for step in steps(events)))
        found.append([parameter.detach().cpu() for parameter in model.parameters()])
        del model
    assert oom_splits[0] == 0 < oom_splits[1]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
