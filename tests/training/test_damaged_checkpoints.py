"""Checkpoints that are damaged, or whole and wrong: refused with the file's name, never averaged or gone on with."""

import json
import math
import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.checkpoints.weights import (
    average_weights,
    get_weights,
    load_weights,
    read_weights,
    save_weights,
)
from nmtkit.training.config import TrainingConfig
from tests.support.tiny_training import run, settings, tiny_model


@pytest.fixture
def trained(tmp_path: Path) -> tuple[CheckpointManager, TrainingConfig]:
    """The checkpoints of a training with averaged weights: 4 updates, validated at each second; and longer settings."""
    given = {"ema_decay": 0.9, "validate_every": 2, "keep_best": 2}
    run(tmp_path, settings(**given, max_updates=4))
    return CheckpointManager(tmp_path), settings(**given, max_updates=6)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"nothing\.safetensors: not found; pass an existing checkpoint"
    ):
        read_weights(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("length", [0, 5, 300, -7])
def test_files_that_are_cut_short(
    trained: tuple[CheckpointManager, TrainingConfig], length: int
) -> None:
    checkpoints, config = trained
    for path, use in (
        (checkpoints.best()[0], lambda path: read_weights(path)),
        (checkpoints.last, lambda path: run(path.parent, config, resume=True)),
    ):
        path.write_bytes(path.read_bytes()[:length])
        with pytest.raises(CheckpointError, match=rf"{path.name}: damaged or truncated"):
            use(path)


def test_weights_alone_cannot_be_resumed_from(tmp_path: Path) -> None:
    save_weights(CheckpointManager(tmp_path).last, get_weights(tiny_model()))
    with pytest.raises(CheckpointError, match="no training state"):
        run(tmp_path, settings(), resume=True)


@pytest.mark.parametrize("kind", ["weights", "state"])
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path, kind: str) -> None:
    checkpoints = CheckpointManager(tmp_path)
    torch.manual_seed(1)
    tensors = {
        "weights/a": torch.randn(40, 40),
        "weights/b": torch.arange(5),
        "weights/c": torch.randn(3).half(),
    }
    if kind == "state":
        checkpoints.save_last(tensors, {"update": 5, "seconds": 1.5})
        path = checkpoints.last
    else:
        checkpoints.keep(tensors, 5, 3.5, settings())
        path = checkpoints.weights_path(5)
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    for place in (*range(0, begin, 3), *range(begin, len(whole), 101), len(whole) - 1):
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :]
        )
        with suppress(CheckpointError):
            found = checkpoints.load_last()[0] if kind == "state" else read_weights(path)
            # Only the names by which the head itself is known may change what is looked at, and that loses nothing.
            assert kind == "weights"
            assert place < begin
            assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_blocks_that_change_places_are_found(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    torch.manual_seed(1)
    save_weights(path, {"a": torch.randn(100, 1024)})
    data = bytearray(path.read_bytes())
    one, two = slice(-8192, -4096), slice(-16 * 8192, -16 * 8192 + 4096)
    data[one], data[two] = data[two], data[one]
    path.write_bytes(data)
    with pytest.raises(
        CheckpointError, match=r"w\.safetensors: damaged .*'a' has changed since it was written"
    ):
        read_weights(path)


# -- weights that are whole and wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_weights_that_are_not_finite_are_refused(
    tmp_path: Path, value: float, dtype: torch.dtype
) -> None:
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    # the sum may be infinite
    weights = {"a": torch.full((50,), 60000.0, dtype=dtype), "b": torch.ones(3, dtype=dtype)}
    save_weights(good, weights)
    assert read_weights(good).keys() == {"a", "b"}
    weights["a"][49] = value
    save_weights(bad, weights)
    for use in (lambda: read_weights(bad), lambda: average_weights([good, bad])):
        with pytest.raises(
            CheckpointError,
            match=r"bad\.safetensors: 'a' contains non-finite values.*use another checkpoint",
        ):
            use()


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_of_another_kind_of_number_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "w.safetensors"
    save_file(
        {name: tensor.clone().to(dtype) for name, tensor in get_weights(tiny_model()).items()}, path
    )
    for use in (
        lambda: load_weights(tiny_model(), path),
        lambda: average_weights([path, path]),
        lambda: average_weights([path, path], tiny_model()),
    ):
        with pytest.raises(CheckpointError, match=r"w\.safetensors: "):
            use()


# -- the list of what was kept --------------------------------------------------------------------------------------


DEEP = "[" * 100_000
ODD = ["", "null", "[]", "{}", "5", DEEP, "another value", "no checksum", "link", "folder", "pipe"]


@pytest.mark.parametrize("text", ODD, ids=lambda text: text[:20])
def test_an_odd_list_is_refused(
    trained: tuple[CheckpointManager, TrainingConfig], text: str
) -> None:
    checkpoints, _ = trained
    listed = checkpoints.folder / "kept.json"
    content = json.loads(listed.read_text())
    listed.unlink()
    if text == "link":
        listed.symlink_to("kept.json")
    elif text == "folder":
        listed.mkdir()
    elif text == "pipe":
        os.mkfifo(listed)
    else:
        changed = {
            "another value": {**content, "metric": "loss"},
            "no checksum": {"kept": content["kept"]},
        }
        listed.write_text(json.dumps(changed[text]) if text in changed else text)
    for use in (checkpoints.best, checkpoints.entries, checkpoints.recent):
        with pytest.raises(CheckpointError, match=r"kept\.json: cannot be read .*delete it"):
            use()


# -- states ---------------------------------------------------------------------------------------------------------


def refuses_to_go_on(checkpoints: CheckpointManager, config: TrainingConfig) -> None:
    with pytest.raises(CheckpointError) as caught:
        run(checkpoints.folder, config, resume=True)
    message = str(caught.value)
    assert message.startswith(f"{checkpoints.last}: ")
    assert message.count(str(checkpoints.last)) == 1
    assert "use other weights from its folder (--checkpoint FILE)" in message


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("weights/decoder.bias_hh_l0", None),
        ("weights/decoder.bias_hh_l0", torch.full((24,), math.nan)),
        ("ema/decoder.bias_hh_l0", None),
        ("ema/decoder.bias_hh_l0", torch.ones(1)),
        ("optimizer/exp_avg/decoder.bias_hh_l0", None),
        ("optimizer/exp_avg/decoder.bias_hh_l0", torch.ones(())),
        ("optimizer/exp_avg/decoder.bias_hh_l0", torch.full((24,), math.nan)),
        ("optimizer/exp_avg/decoder.unknown", torch.ones(24)),
        ("optimizer/step/decoder.bias_hh_l0", torch.ones(2)),
    ],
    ids=str,
)
def test_a_state_of_another_model_is_refused(
    trained: tuple[CheckpointManager, TrainingConfig], name: str, tensor: Tensor | None
) -> None:
    checkpoints, config = trained
    tensors, facts = checkpoints.load_last()
    tensors = {key: kept for key, kept in {**tensors, name: tensor}.items() if kept is not None}
    checkpoints.save_last(tensors, facts)
    refuses_to_go_on(checkpoints, config)


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", "{}", DEEP, "update", "sum", "tensors"], ids=lambda text: text[:20]
)
def test_a_state_without_facts_or_with_others_is_refused(
    trained: tuple[CheckpointManager, TrainingConfig], text: str
) -> None:
    checkpoints, config = trained
    with safe_open(checkpoints.last, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        facts = json.loads(file.metadata()["facts"])
    if text in facts:  # one of them is gone
        text = json.dumps({key: value for key, value in facts.items() if key != text})
    save_file(tensors, checkpoints.last, {"facts": text})
    refuses_to_go_on(checkpoints, config)
