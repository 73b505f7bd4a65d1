import os
import resource
import signal

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import run, same_weights, settings, tiny_model

from nmtkit.core.errors import CheckpointError
from nmtkit.training.checkpoint import CheckpointManager, KeptWeights, RetentionPolicy
from nmtkit.training.weights import average_weights, get_weights, load_weights, read_weights, save_weights


def test_tied_weights_are_saved_once_and_come_back_tied(tmp_path):
    model, other = tiny_model(1), tiny_model(2)
    path = tmp_path / "w.safetensors"
    save_weights(path, get_weights(model))
    assert "output.weight" not in load_file(path)
    assert "tgt_embedding.weight" in load_file(path)
    load_weights(other, path)
    assert same_weights(model, other)
    assert other.output.weight is other.tgt_embedding.weight


def test_buffers_are_saved(tmp_path):
    model, other = tiny_model(1), tiny_model(2)
    model.register_buffer("count", torch.tensor([4]))
    other.register_buffer("count", torch.tensor([0]))
    other.register_buffer("scratch", torch.tensor([7]), persistent=False)
    save_weights(tmp_path / "w.safetensors", get_weights(model))
    load_weights(other, tmp_path / "w.safetensors")
    assert int(other.count) == 4
    assert int(other.scratch) == 7


def test_weights_are_read_from_a_full_state_too(tmp_path):
    model, _ = run(tmp_path, settings())
    other = tiny_model(2)
    load_weights(other, CheckpointManager(tmp_path).last)
    assert same_weights(model, other)


def test_a_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing\.safetensors: not found; name a checkpoint"):
        read_weights(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_a_truncated_file(tmp_path, keep):
    path = tmp_path / "w.safetensors"
    save_weights(path, get_weights(tiny_model()))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"w\.safetensors: damaged or cut short"):
        read_weights(path)


def test_a_truncated_state_cannot_be_resumed(tmp_path):
    run(tmp_path, settings())
    last = CheckpointManager(tmp_path).last
    last.write_bytes(last.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        run(tmp_path, settings(), resume=True)


def test_weights_alone_cannot_be_resumed_from(tmp_path):
    save_weights(CheckpointManager(tmp_path).last, get_weights(tiny_model()))
    with pytest.raises(CheckpointError, match="no training state"):
        run(tmp_path, settings(), resume=True)


def test_a_checkpoint_of_another_model_says_what_differs(tmp_path):
    path = tmp_path / "w.safetensors"
    weights = get_weights(tiny_model())
    weights["tgt_embedding.weight"] = torch.zeros(3, 8)
    weights["extra.weight"] = weights.pop("cell.bias_hh")
    save_weights(path, weights)
    model = tiny_model(2)
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, path)
    message = str(caught.value)
    assert "'cell.bias_hh' is missing" in message
    assert "'extra.weight' is not in the model" in message
    assert "'tgt_embedding.weight' has shape [3, 8], the model wants [12, 8]" in message
    assert same_weights(model, tiny_model(2))  # nothing was filled in


def test_average_is_the_mean_in_float64(tmp_path):
    values = [1.0, 1.0 + 2**-23, 1.0 + 2**-22, 4.0]
    paths = []
    for number, value in enumerate(values):
        paths.append(tmp_path / f"{number}.safetensors")
        save_weights(paths[-1], {"a": torch.tensor([value, number]), "n": torch.tensor([7])})
    mean = average_weights(paths)
    assert mean["a"].dtype == torch.float32
    assert mean["a"].tolist() == [float(torch.tensor(sum(values) / 4)), 1.5]
    assert mean["n"].tolist() == [7]


def test_average_refuses_different_models(tmp_path):
    save_weights(tmp_path / "a.safetensors", {"a": torch.zeros(2)})
    save_weights(tmp_path / "b.safetensors", {"a": torch.zeros(3)})
    with pytest.raises(CheckpointError, match=r"b\.safetensors: of another model than"):
        average_weights([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    with pytest.raises(CheckpointError, match="no checkpoints to average"):
        average_weights([])


def keep(checkpoints, update, value, best=2, recent=0, higher=True):
    weights = {"a": torch.tensor([float(update)])}
    return checkpoints.keep(weights, update, value, RetentionPolicy("bleu", higher, best, recent))


def on_disk(checkpoints):
    return sorted(int(path.stem.split("-")[1]) for path in checkpoints.folder.glob("weights-*.safetensors"))


def test_the_best_stay(tmp_path):
    checkpoints = CheckpointManager(tmp_path)
    for update, value in enumerate([3.0, 1.0, 5.0, 3.0, 4.0]):
        keep(checkpoints, update, value)
    assert on_disk(checkpoints) == [2, 4]
    assert checkpoints.best() == [checkpoints.weights_path(2), checkpoints.weights_path(4)]
    assert checkpoints.recent() == [checkpoints.weights_path(4), checkpoints.weights_path(2)]
    assert checkpoints.kept() == [KeptWeights(2, 5.0), KeptWeights(4, 4.0)]
    assert keep(checkpoints, 5, 0.0) is None
    assert read_weights(checkpoints.best()[1])["a"].tolist() == [4.0]


def test_the_lowest_are_the_best_of_a_loss_and_of_equals_the_older(tmp_path):
    checkpoints = CheckpointManager(tmp_path)
    for update, value in enumerate([3.0, 2.0, 2.0, 2.0]):
        keep(checkpoints, update, value, higher=False)
    assert checkpoints.best() == [checkpoints.weights_path(1), checkpoints.weights_path(2)]


def test_the_newest_stay_as_well(tmp_path):
    checkpoints = CheckpointManager(tmp_path)
    for update, value in enumerate([9.0, 5.0, 4.0, 3.0, 2.0]):
        keep(checkpoints, update, value, best=1, recent=2)
    assert on_disk(checkpoints) == [0, 3, 4]
    assert checkpoints.best()[0] == checkpoints.weights_path(0)


def test_repeating_an_update_replaces_it_and_what_came_after(tmp_path):
    checkpoints = CheckpointManager(tmp_path)
    for update, value in [(1, 1.0), (2, 9.0), (3, 8.0), (2, 2.0)]:
        keep(checkpoints, update, value, best=3)
    assert checkpoints.kept() == [KeptWeights(1, 1.0), KeptWeights(2, 2.0)]
    assert on_disk(checkpoints) == [1, 2]


def test_another_metric_starts_a_new_list(tmp_path):
    checkpoints = CheckpointManager(tmp_path)
    keep(checkpoints, 1, 30.0)
    checkpoints.keep({"a": torch.zeros(1)}, 2, 2.0, RetentionPolicy("loss", False, 2))
    assert checkpoints.kept() == [KeptWeights(2, 2.0)]


def test_a_damaged_list_is_named(tmp_path):
    (tmp_path / "kept.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"kept\.json: cannot read it .* delete it"):
        CheckpointManager(tmp_path).best()


def test_a_crash_while_moving_into_place_leaves_the_old_state(tmp_path, monkeypatch):
    checkpoints = CheckpointManager(tmp_path)
    checkpoints.save_last({"weights/a": torch.ones(2)}, {"update": 1})

    def crash(source, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(CheckpointError, match="No space left on device"):
            checkpoints.save_last({"weights/a": torch.zeros(2)}, {"update": 2})
    tensors, facts = checkpoints.load_last()
    assert tensors["weights/a"].tolist() == [1.0, 1.0]
    assert facts == {"update": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["last.safetensors"]


def test_a_full_disk_leaves_the_old_state(tmp_path):
    """A limit on the size of files makes the write itself fail."""
    checkpoints = CheckpointManager(tmp_path)
    checkpoints.save_last({"weights/a": torch.ones(2)}, {"update": 1})
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN, "Python ends no program for a file that is too large"
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, most))
    try:
        with pytest.raises(CheckpointError, match=r"last\.safetensors: cannot write it .*free some space"):
            checkpoints.save_last({"weights/a": torch.zeros(100_000)}, {"update": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    tensors, facts = checkpoints.load_last()
    assert facts == {"update": 1}
    assert tensors["weights/a"].tolist() == [1.0, 1.0]
    assert [path.name for path in tmp_path.iterdir()] == ["last.safetensors"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"last\.safetensors: cannot write it .*name another folder"):
        run(tmp_path / "file" / "checkpoints", settings())


def test_the_newest_stay_while_there_are_fewer_than_asked_for(tmp_path):
    """Ten are to stay, and they come one by one: none may go before the eleventh."""
    checkpoints = CheckpointManager(tmp_path)
    weights = {"w": torch.zeros(1)}
    for update in range(1, 13):
        value = float(-update)  # each worse than the one before: only being new keeps it
        checkpoints.keep(weights, update, value, RetentionPolicy("bleu", best=1, recent=10))
        expected = [n for n in range(1, update + 1) if n == 1 or n > update - 10]
        assert [entry.update for entry in checkpoints.kept()] == expected
