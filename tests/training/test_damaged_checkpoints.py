"""Checkpoints that are damaged, or whole and wrong: refused with the file's name, never averaged or gone on with."""

import json
import math
import os
import shutil
import stat
from contextlib import suppress

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tiny_training import TinyStream, run, same_weights, settings, tiny_model

from nmtkit.core.errors import CheckpointError, NmtkitError
from nmtkit.training.checkpoint import CheckpointManager, KeptWeights, RetentionPolicy
from nmtkit.training.weights import (
    average_weights,
    get_weights,
    load_weights,
    read_vocabulary_checksum,
    read_weights,
    save_weights,
)

DECIDING = RetentionPolicy("bleu", best=9)


def content(path):
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in list(file.keys())}, file.metadata()


def as_before(path, tensors=None, **facts):
    """Writes a file without checksums, with some tensors or facts changed; `...` takes one away."""
    found, head = content(path)
    known = {**json.loads(head["facts"]), **facts}
    for key in ("sum", "tensors", "kind", "vocabulary", *(key for key, value in facts.items() if value is ...)):
        known.pop(key, None)
    found = {name: tensor for name, tensor in {**found, **(tensors or {})}.items() if tensor is not None}
    save_file(found, path, {"facts": json.dumps(known)})


GIVEN = {"ema_decay": 0.9, "validate_every": 4, "keep_best": 2, "max_updates": 12}


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    run(folder, settings(**GIVEN))
    return folder


@pytest.fixture
def trained(trained_once, tmp_path):
    """The folder of a training with averaged weights: 12 updates, validated and saved at each fourth."""
    shutil.copytree(trained_once, tmp_path, dirs_exist_ok=True)
    return tmp_path, settings(**{**GIVEN, "max_updates": 14})


# -- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["weights", "state"])
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path, kind):
    checkpoints = CheckpointManager(tmp_path)
    torch.manual_seed(1)
    tensors = {"weights/a": torch.randn(40, 40), "weights/b": torch.arange(5), "weights/c": torch.randn(3).half()}
    if kind == "state":
        checkpoints.save_last(tensors, {"update": 5, "seconds": 1.5})
        path = checkpoints.last
    else:
        path = checkpoints.keep(tensors, 5, 3.5, DECIDING)
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    for place in (*range(0, begin, 3), *range(begin, len(whole), 101), len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        with suppress(CheckpointError):
            found = checkpoints.load_last()[0] if kind == "state" else read_weights(path)
            # Only the names by which the head itself is known may change what is looked at, and that loses nothing.
            assert kind == "weights"
            assert place < begin
            assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_numbers_that_change_places_are_found(tmp_path):
    path = tmp_path / "w.safetensors"
    torch.manual_seed(1)
    save_weights(path, {"a": torch.randn(100, 1024)})
    data = bytearray(path.read_bytes())
    one, two = len(data) - 8192, len(data) - 16 * 8192
    data[one : one + 4096], data[two : two + 4096] = data[two : two + 4096], data[one : one + 4096]
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"w\.safetensors: damaged .*'a' is not as it was written"):
        read_weights(path)


def test_equal_weights_give_equal_files(tmp_path):
    written = set()
    for number in range(8):  # the order of several facts would be another one half of the time
        path = CheckpointManager(tmp_path / str(number)).keep({"a": torch.ones(3)}, 1, 2.0, DECIDING)
        written.add(path.read_bytes())
    assert len(written) == 1


def test_a_file_without_facts_opens(trained):
    folder, _ = trained
    checkpoints = CheckpointManager(folder)
    model, straight = tiny_model(2), tiny_model(3)
    load_weights(straight, checkpoints.best()[0])
    tensors, _ = content(checkpoints.best()[0])
    save_file(tensors, checkpoints.best()[0], {"update": "4", "score": "1.0"})
    load_weights(model, checkpoints.best()[0])
    assert same_weights(model, straight)


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_the_umask_says_who_may_read(tmp_path, umask):
    before = os.umask(umask)
    try:
        path = CheckpointManager(tmp_path).keep({"a": torch.ones(3)}, 1, 2.0, DECIDING)
    finally:
        os.umask(before)
    for file in (path, tmp_path / "kept.json"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask


# -- weights that are whole and wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_weights_that_are_not_finite_are_refused(tmp_path, value, dtype):
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    weights = {"a": torch.full((50,), 60000.0, dtype=dtype), "b": torch.ones(3, dtype=dtype)}  # the sum may be infinite
    save_weights(good, weights)
    assert read_weights(good).keys() == {"a", "b"}
    weights["a"][49] = value
    save_weights(bad, weights)
    for use in (lambda: read_weights(bad), lambda: average_weights([good, bad])):
        with pytest.raises(CheckpointError, match=r"bad\.safetensors: 'a' holds .*not finite.*\(there are: good\."):
            use()


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_of_another_kind_of_number_are_refused(tmp_path, dtype):
    path = tmp_path / "w.safetensors"
    save_file({name: tensor.clone().to(dtype) for name, tensor in get_weights(tiny_model()).items()}, path)
    with pytest.raises(CheckpointError, match=r"w\.safetensors: .* numbers of type"):
        load_weights(tiny_model(), path)
    with pytest.raises(CheckpointError, match=r"w\.safetensors: "):
        average_weights([path, path])
    with pytest.raises(CheckpointError, match=r"w\.safetensors: "):
        average_weights([path, path], tiny_model())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_precision_are_taken(tmp_path, dtype):
    save_weights(tmp_path / "w.safetensors", {name: t.to(dtype) for name, t in get_weights(tiny_model(1)).items()})
    model = tiny_model(2)
    load_weights(model, tmp_path / "w.safetensors")
    assert torch.equal(model.cell.weight_hh, tiny_model(1).cell.weight_hh.to(dtype).float())


def test_an_average_fits_the_model(tmp_path):
    paths = [tmp_path / f"{number}.safetensors" for number in range(2)]
    changes = [
        lambda weights: weights.pop("cell.bias_hh"),
        lambda weights: weights.update(extra=torch.ones(2)),
        lambda weights: weights.update({"cell.bias_hh": weights["cell.bias_hh"][:-1].clone()}),
        lambda weights: weights.clear(),
    ]
    for change in (lambda weights: None, *changes):
        weights = dict(get_weights(tiny_model()))
        change(weights)
        for path in paths:
            save_weights(path, weights)
        if change in changes:
            with pytest.raises(CheckpointError, match=r"0\.safetensors: "):
                average_weights(paths, tiny_model())
        else:
            assert average_weights(paths, tiny_model()).keys() == weights.keys()


def test_weights_know_their_vocabulary(tmp_path):
    checkpoints = CheckpointManager(tmp_path, "one")
    path = checkpoints.keep({"a": torch.ones(3)}, 1, 2.0, DECIDING)
    checkpoints.save_last({"weights/a": torch.ones(3)}, {"update": 1})
    assert read_vocabulary_checksum(path) == read_vocabulary_checksum(checkpoints.last) == "one"
    assert checkpoints.load_last()[1] == {"update": 1}
    assert read_weights(path, "one").keys() == read_weights(path).keys() == {"a"}
    for use in (lambda: read_weights(path, "two"), CheckpointManager(tmp_path, "two").load_last):
        with pytest.raises(CheckpointError, match=r"\.safetensors: trained with another vocabulary"):
            use()
    save_weights(tmp_path / "unknown.safetensors", {"a": torch.ones(3)})
    assert read_vocabulary_checksum(tmp_path / "unknown.safetensors") == ""
    assert read_weights(tmp_path / "unknown.safetensors", "two").keys() == {"a"}


def test_a_folder_is_not_written_over(tmp_path):
    with pytest.raises(NmtkitError, match="a folder; name a file"):
        save_weights(tmp_path, {"a": torch.ones(3)})


# -- the list of what was kept --------------------------------------------------------------------------------------


DEEP = "[" * 100_000
ODD = ["", "null", "[]", "{}", "5", '{"kept": 5}', '{"kept": [5]}', DEEP]
ODD += ['{"metric": "bleu", "higher_is_better": true, "kept": [{"update": "x", "value": null}]}']


@pytest.mark.parametrize("text", [*ODD, "link", "folder", "pipe", "another value"], ids=lambda text: text[:20])
def test_an_odd_list_is_refused(tmp_path, text):
    checkpoints, listed = CheckpointManager(tmp_path), tmp_path / "kept.json"
    for update in (1, 2):
        checkpoints.keep({"a": torch.ones(3)}, update, 2.0 * update, DECIDING)
    before = listed.read_text()
    listed.unlink()
    if text == "link":
        listed.symlink_to("kept.json")
    elif text == "folder":
        listed.mkdir()
    elif text == "pipe":
        os.mkfifo(listed)
    else:
        listed.write_text(before.replace("2.0", "9.0") if text == "another value" else text)
    for use in (checkpoints.best, checkpoints.kept, checkpoints.recent):
        with pytest.raises(CheckpointError, match=r"kept\.json: cannot read it .*delete it"):
            use()


def test_a_lost_list_is_made_anew(tmp_path):
    checkpoints = CheckpointManager(tmp_path)
    for update, value in enumerate([3.0, 5.0, 1.0], start=1):
        checkpoints.keep({"a": torch.ones(3)}, update, value, DECIDING)
    (tmp_path / "kept.json").unlink()
    assert checkpoints.kept() == [KeptWeights(1, 3.0), KeptWeights(2, 5.0), KeptWeights(3, 1.0)]
    assert checkpoints.best()[0] == checkpoints.weights_path(2)
    checkpoints.keep({"a": torch.ones(3)}, 4, 2.0, DECIDING)
    assert [entry.update for entry in checkpoints.kept()] == [1, 2, 3, 4]


# -- states ---------------------------------------------------------------------------------------------------------


RANDOM = {"python": [3, [1, 2], None], "numpy": [[1], 0], "numpy_gauss": [0, 0.0], "torch": "zz"}
CHANGES = {
    "no optimizer": lambda found, facts: ({name: None for name in found if name.startswith("optimizer/")}, {}),
    "a part of the optimizer": lambda found, facts: ({"optimizer/exp_avg/cell.bias_hh": None}, {}),
    "optimizer's shape": lambda found, facts: ({"optimizer/exp_avg/cell.bias_hh": torch.ones(())}, {}),
    "optimizer's steps": lambda found, facts: ({"optimizer/step/cell.bias_hh": torch.ones(2)}, {}),
    "optimizer NaN": lambda found, facts: ({"optimizer/exp_avg/cell.bias_hh": torch.full((24,), math.nan)}, {}),
    "optimizer of integers": lambda found, facts: ({"optimizer/exp_avg/cell.bias_hh": torch.ones(24).int()}, {}),
    "no weights": lambda found, facts: ({name: None for name in found if name.startswith("weights/")}, {}),
    "weights NaN": lambda found, facts: ({"weights/cell.bias_hh": torch.full((24,), math.nan)}, {}),
    "an average less": lambda found, facts: ({"ema/cell.bias_hh": None}, {}),
    "an average's shape": lambda found, facts: ({"ema/cell.bias_hh": torch.ones(1)}, {}),
    **{
        f"{key} {value!r:.30}": lambda found, facts, key=key, value=value: ({}, {key: value})
        for key, value in [
            *(
                (key, ...)
                for key in ("update", "seconds", "optimizer", "best_metric", "validations", "stream", "random")
            ),
            *(("update", value) for value in ("x", -5, 10**9, 10**30, None, 1.5, True)),
            *(("seconds", value) for value in ("x", -1.0, math.nan, math.inf)),
            *(("validations", value) for value in (None, [1], [[1]], [["x", 1.0]], [[1, math.nan]])),
            *(("stream", value) for value in ({}, {"epoch": -1, "examples": 0}, {"epoch": 10**9, "examples": 0}, "x")),
            *(("random", value) for value in (None, [], ["x"], [{}], [RANDOM])),
            *(("lr", value) for value in ([1.0], "x")),
        ]
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_state_that_does_not_fit_is_refused(trained, name):
    folder, config = trained
    last = CheckpointManager(folder).last
    tensors, facts = CHANGES[name](*content(last))
    as_before(last, tensors, **facts)
    with pytest.raises(CheckpointError) as caught:
        run(folder, config, resume=True)
    message = str(caught.value)
    assert message.startswith(f"{last}: ")
    assert message.count(str(last)) == 1
    assert "weights-00000008.safetensors" in message  # what is left


@pytest.mark.parametrize("text", ["{", "[]", "null", "5", "{}", DEEP], ids=lambda text: text[:20])
def test_a_state_without_facts_is_refused(trained, text):
    folder, config = trained
    tensors, _ = content(CheckpointManager(folder).last)
    save_file(tensors, CheckpointManager(folder).last, {"facts": text})
    with pytest.raises(CheckpointError, match=r"last\.safetensors: "):
        run(folder, config, resume=True)


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.9), ("adagrad", 0.0), ("adadelta", 0.0), ("adamw", 0.0)])
def test_every_optimizer_that_knows_something_must_have_saved_it(tmp_path, optimizer, momentum):
    config = settings(optimizer=optimizer, momentum=momentum, max_updates=12)
    run(tmp_path, config)
    last = CheckpointManager(tmp_path).last
    as_before(last, {name: None for name in content(last)[0] if name.startswith("optimizer/")})
    with pytest.raises(CheckpointError, match=r"last\.safetensors: `update` is 12, but the optimizer has made 0 steps"):
        run(tmp_path, config, resume=True)


def test_a_state_from_before_the_first_update_has_no_optimizer(tmp_path):
    straight, _ = run(tmp_path / "straight", settings(max_updates=3))
    run(tmp_path / "stopped", settings(max_updates=3), stop=lambda: True)
    last = CheckpointManager(tmp_path / "stopped").last
    assert not [name for name in content(last)[0] if name.startswith("optimizer/")]
    resumed, _ = run(tmp_path / "stopped", settings(max_updates=3), stream=TinyStream(), resume=True)
    assert same_weights(straight, resumed)
