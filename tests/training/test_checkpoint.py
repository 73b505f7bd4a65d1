"""Weights and states on the disk: what is saved comes back, the best stay, and a crash leaves what was there."""

import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nmtkit.core.errors import CheckpointError, NmtkitError
from nmtkit.core.files import with_checksum
from nmtkit.training.checkpoints.manager import CheckpointManager, KeptCheckpoint
from nmtkit.training.checkpoints.weights import (
    assign_matching_weights,
    average_weights,
    count_parameters,
    get_weights,
    load_weights,
    read_vocabulary_checksum,
    read_weights,
    save_weights,
)
from nmtkit.training.optimizers import OptimizerConfig, build_optimizer, read_state, restore_state
from tests.support.tiny_training import run, same_weights, settings, tiny_model


def test_tied_weights_are_saved_once_and_come_back_tied_and_buffers_too(tmp_path: Path) -> None:
    model, other, path = tiny_model(1), tiny_model(2), tmp_path / "w.safetensors"
    model.register_buffer("count", torch.tensor([4]))
    other.register_buffer("count", torch.tensor([0]))
    other.register_buffer("scratch", torch.tensor([7]), persistent=False)
    save_weights(path, get_weights(model))
    assert load_file(path).keys() >= {"tgt_embedding.weight", "count"}
    assert "output.weight" not in load_file(path)
    assert count_parameters(model) == sum(map(torch.numel, load_file(path).values()))
    load_weights(other, path)
    assert same_weights(model, other)
    assert other.output.weight is other.tgt_embedding.weight
    assert int(other.scratch) == 7


def test_weights_are_read_from_a_full_state_and_from_files_of_other_programs(
    tmp_path: Path,
) -> None:
    model, _ = run(tmp_path, settings())
    last = CheckpointManager(tmp_path).last
    save_file(read_weights(last), tmp_path / "bare.safetensors", {"update": "4"})
    for path in (last, tmp_path / "bare.safetensors"):
        other = tiny_model(2)
        load_weights(other, path)
        assert same_weights(model, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_precision_are_taken(tmp_path: Path, dtype: torch.dtype) -> None:
    save_weights(
        tmp_path / "w.safetensors",
        {name: t.to(dtype) for name, t in get_weights(tiny_model(1)).items()},
    )
    model = tiny_model(2)
    load_weights(model, tmp_path / "w.safetensors")
    assert torch.equal(
        model.decoder.weight_hh_l0, tiny_model(1).decoder.weight_hh_l0.to(dtype).float()
    )


def test_a_checkpoint_of_another_model_says_what_differs(tmp_path: Path) -> None:
    path, model, weights = tmp_path / "w.safetensors", tiny_model(2), get_weights(tiny_model())
    weights["tgt_embedding.weight"] = torch.zeros(3, 8)
    weights["extra.weight"] = weights.pop("decoder.bias_hh_l0")
    save_weights(path, weights)
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, path)
    for part in (
        "'decoder.bias_hh_l0' is missing in the file, but float [24] in the model",
        "'extra.weight' is float [24] in the file, but missing in the model",
        "'tgt_embedding.weight' is float [3, 8] in the file, but float [12, 8] in the model",
    ):
        assert part in str(caught.value)
    assert same_weights(model, tiny_model(2))  # nothing was filled in


def test_weights_know_their_vocabulary(tmp_path: Path) -> None:
    checkpoints = CheckpointManager(tmp_path, "one")
    checkpoints.keep({"a": torch.ones(3)}, 1, 2.0, settings())
    path = checkpoints.weights_path(1)
    checkpoints.save_last({"weights/a": torch.ones(3)}, {"update": 1})
    assert read_vocabulary_checksum(path) == read_vocabulary_checksum(checkpoints.last) == "one"
    assert checkpoints.load_last()[1] == {"update": 1}
    assert read_weights(path, "one").keys() == read_weights(path).keys() == {"a"}
    for use in (lambda: read_weights(path, "two"), CheckpointManager(tmp_path, "two").load_last):
        with pytest.raises(
            CheckpointError, match=r"\.safetensors: trained with a different vocabulary"
        ):
            use()
    save_weights(tmp_path / "unknown.safetensors", {"a": torch.ones(3)})
    assert read_vocabulary_checksum(tmp_path / "unknown.safetensors") == ""
    assert read_weights(tmp_path / "unknown.safetensors", "two").keys() == {"a"}


def test_a_model_takes_over_what_it_knows() -> None:
    plain, larger = tiny_model(1), tiny_model(2)
    larger.added = torch.nn.Parameter(torch.ones(3))
    assert assign_matching_weights(larger, get_weights(plain), Path("weights")) == (["added"], [])
    assert larger.added.tolist() == [1, 1, 1]
    assert all(
        torch.equal(get_weights(larger)[name], tensor)
        for name, tensor in get_weights(plain).items()
    )
    assert assign_matching_weights(plain, get_weights(larger), Path("weights")) == ([], ["added"])


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_an_optimizer_goes_on_for_the_weights_it_knows(optimizer: str) -> None:
    config = OptimizerConfig.model_validate(
        {"optimizer": optimizer, "lr": 0.1, "initial_accumulator": 0.1}
    )
    tiny = tiny_model()
    parameters = dict(tiny.named_parameters())
    first = build_optimizer(config, parameters)
    for parameter in parameters.values():
        parameter.grad = torch.full_like(parameter, 2.0)
    first.step()
    state = {
        name: tensor
        for name, tensor in read_state(first, parameters).items()
        if "decoder" not in name
    }
    second = build_optimizer(config, parameters)
    restore_state(second, parameters, state)
    second.step()  # weights without a past are no obstacle
    known, fresh = (
        second.state[parameters["src_embedding.weight"]],
        second.state[parameters["decoder.weight_ih_l0"]],
    )
    assert (float(known["step"]), float(fresh["step"])) == (2, 1)
    if optimizer == "adagrad":  # 0.1, and 4 for each gradient of 2
        assert known["sum"].flatten()[0].item() == pytest.approx(8.1)
        assert fresh["sum"].flatten()[0].item() == pytest.approx(4.1)


# -- averages -------------------------------------------------------------------------------------------------------


def test_average_is_the_mean_in_float64(tmp_path: Path) -> None:
    values = [1.0, 1.0 + 2**-23, 1.0 + 2**-22, 4.0]
    paths = [tmp_path / f"{number}.safetensors" for number in range(4)]
    for number, (path, value) in enumerate(zip(paths, values, strict=True)):
        save_weights(path, {"a": torch.tensor([value, number]), "n": torch.tensor([7])})
    mean = average_weights(paths)
    assert mean["a"].dtype == torch.float32
    assert mean["a"].tolist() == [float(torch.tensor(sum(values) / 4)), 1.5]
    assert mean["n"].tolist() == [7]


def test_average_refuses_different_models(tmp_path: Path) -> None:
    save_weights(tmp_path / "a.safetensors", {"a": torch.zeros(2)})
    save_weights(tmp_path / "b.safetensors", {"a": torch.zeros(3)})
    with pytest.raises(CheckpointError, match=r"b\.safetensors: belongs to a different model from"):
        average_weights([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    with pytest.raises(CheckpointError, match=r"a\.safetensors: belongs to a different model"):
        average_weights([tmp_path / "a.safetensors"] * 2, tiny_model())


# -- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "values", "kept", "best"),
    [
        ({}, [8, 7, 6, 5, 4, 3, 2, 1], [0, 3, 4, 5, 6, 7], 0),
        ({"keep_best": 2}, [3, 1, 5, 3, 4], [2, 4], 2),
        ({"keep_recent": 0}, [8, 7, 6], [0], 0),
        ({"keep_best": 2, "keep_recent": 1}, [8, 7, 6, 5], [0, 1, 3], 0),
        ({"keep_best": 2, "best_metric": "loss"}, [3, 2, 2, 2], [2, 3], 3),
        ({"keep_recent": 10}, [8, 7, 6], [0, 1, 2], 0),
    ],
    ids=[
        "defaults",
        "the best",
        "the best alone",
        "best and newest",
        "the lowest, of equals the newer",
        "too few yet",
    ],
)
def test_the_best_and_the_newest_stay(
    tmp_path: Path, given: dict[str, Any], values: list[int], kept: list[int], best: int
) -> None:
    checkpoints = CheckpointManager(tmp_path)
    for update, value in enumerate(values):
        checkpoints.keep(
            {"a": torch.tensor([float(update)])}, update, float(value), settings(**given)
        )
        is_kept = update in [entry.update for entry in checkpoints.entries()]
        assert checkpoints.weights_path(update).exists() == is_kept
    files = [checkpoints.weights_path(update) for update in kept]
    assert sorted(tmp_path.glob("weights-*")) == files
    assert checkpoints.entries() == [KeptCheckpoint(update, values[update]) for update in kept]
    assert checkpoints.recent() == files[::-1]
    assert checkpoints.best()[0] == checkpoints.weights_path(best)
    assert read_weights(checkpoints.best()[0])["a"].tolist() == [best]


@pytest.mark.parametrize(
    ("losses", "best"),
    [([5.0, 2.0, 3.0], 2), ([2.0, 2.0, 3.0], 2), ([None, None, None], 3), ([None, 9.0, None], 2)],
    ids=["lowest loss", "equal losses", "no losses", "an unknown loss is the worst"],
)
@pytest.mark.parametrize("has_list", [True, False], ids=["kept.json", "headers of the files"])
def test_of_equal_scores_the_lower_loss_is_better_and_then_the_newer_update(
    tmp_path: Path, losses: list[None] | list[float | None] | list[float], best: int, has_list: bool
) -> None:
    checkpoints = CheckpointManager(tmp_path)
    for update, loss in enumerate(losses, start=1):
        weights = {"a": torch.tensor([float(update)])}
        checkpoints.keep(weights, update, 0.0, settings(keep_recent=5), loss)
    if not has_list:
        (tmp_path / "kept.json").unlink()
    assert CheckpointManager(tmp_path).best()[0] == checkpoints.weights_path(best)


def test_a_list_of_an_earlier_version_has_no_losses(tmp_path: Path) -> None:
    checkpoints = CheckpointManager(tmp_path)
    for update in (1, 2):
        checkpoints.keep({"a": torch.ones(1)}, update, 0.0, settings())
    content = json.loads((tmp_path / "kept.json").read_text())
    content = {"metric": content["metric"], "higher_is_better": True, "kept": content["kept"]}
    for entry in content["kept"]:
        del entry["loss"]
    (tmp_path / "kept.json").write_text(json.dumps(with_checksum(content)))
    assert checkpoints.best()[0] == checkpoints.weights_path(2)


def test_repeating_an_update_replaces_it_and_what_came_after_and_another_metric_starts_anew(
    tmp_path: Path,
) -> None:
    checkpoints, weights = CheckpointManager(tmp_path), {"a": torch.zeros(1)}
    for update, value in [(1, 1.0), (2, 9.0), (3, 8.0), (2, 2.0)]:
        checkpoints.keep(weights, update, value, settings(keep_best=3))
    assert checkpoints.entries() == [KeptCheckpoint(1, 1.0), KeptCheckpoint(2, 2.0)]
    assert [path.name for path in tmp_path.glob("*3.safetensors")] == []
    checkpoints.keep(weights, 4, 2.0, settings(best_metric="loss"))
    assert checkpoints.entries() == [KeptCheckpoint(4, 2.0)]


def test_a_lost_list_is_made_anew(tmp_path: Path) -> None:
    checkpoints = CheckpointManager(tmp_path)
    for update, value in enumerate([3.0, 5.0, 1.0], start=1):
        checkpoints.keep({"a": torch.ones(3)}, update, value, settings(keep_best=9))
    (tmp_path / "kept.json").unlink()
    assert checkpoints.entries() == [
        KeptCheckpoint(1, 3.0),
        KeptCheckpoint(2, 5.0),
        KeptCheckpoint(3, 1.0),
    ]
    assert checkpoints.best()[0] == checkpoints.weights_path(2)
    checkpoints.keep({"a": torch.ones(3)}, 4, 2.0, settings(keep_best=9))
    assert [entry.update for entry in checkpoints.entries()] == [1, 2, 3, 4]


# -- writing --------------------------------------------------------------------------------------------------------


@contextmanager
def a_crash_while_moving_into_place() -> Iterator[None]:
    def crash(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", crash)
        yield


@contextmanager
def a_full_disk() -> Iterator[None]:
    """A limit on the size of files makes the write itself fail."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN, (
        "Python ends no program for a file that is too large"
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


@pytest.mark.parametrize("fault", [a_crash_while_moving_into_place, a_full_disk])
def test_a_write_that_fails_leaves_the_old_state(
    tmp_path: Path, fault: Callable[..., object]
) -> None:
    checkpoints = CheckpointManager(tmp_path)
    checkpoints.save_last({"weights/a": torch.ones(2)}, {"update": 1})
    with (
        fault(),
        pytest.raises(
            CheckpointError, match=r"last\.safetensors: cannot be written .*free some space"
        ),
    ):
        checkpoints.save_last({"weights/a": torch.zeros(100_000)}, {"update": 2})
    tensors, facts = checkpoints.load_last()
    assert tensors["weights/a"].tolist() == [1.0, 1.0]
    assert facts == {"update": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["last.safetensors"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        CheckpointError, match=r"last\.safetensors: cannot be written .*use another folder"
    ):
        run(tmp_path / "file" / "checkpoints", settings())
    with pytest.raises(NmtkitError, match="a folder; use a file name"):
        save_weights(tmp_path, {"a": torch.ones(3)})
