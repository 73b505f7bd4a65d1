"""One name of a tied matrix in the files is enough, whatever the family and the kind of file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_model

from nmtkit.convert.importing import import_run
from nmtkit.training.checkpoints.tensor_files import write_bare_tensors
from tests.convert.huggingface.random_models import bert, gpt2, made
from tests.support.random_runs import copied, import_refused, marian, raw

transformers = pytest.importorskip("transformers")

T5_NAMES = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.weight",
)
BART_NAMES = tuple(name if name == "lm_head.weight" else f"model.{name}" for name in T5_NAMES)
UNTIED_NAMES = T5_NAMES[:3]
FAMILIES: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "t5": (lambda folder: made("t5", folder)[1], T5_NAMES),
    "t5 v1.1": (lambda folder: made("t5 v1.1", folder)[1], UNTIED_NAMES),
    "bart": (lambda folder: made("bart", folder)[1], BART_NAMES),
    "mbart": (lambda folder: made("mbart", folder)[1], BART_NAMES),
    "nllb": (lambda folder: made("nllb", folder)[1], BART_NAMES),
    "m2m100": (lambda folder: made("m2m100", folder)[1], BART_NAMES),
    "pegasus": (lambda folder: made("pegasus", folder)[1], BART_NAMES),
    "marian": (lambda folder: marian(folder, {}), BART_NAMES),
    "gpt2": (lambda folder: gpt2(folder)[1], ("transformer.wte.weight", "lm_head.weight")),
    "bert": (
        lambda folder: bert(folder, "BertForPreTraining")[1],
        ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    ),
}


def weights_of(folder: Path, run: Path) -> dict[str, torch.Tensor]:
    import_run(folder, str(run))
    return raw(run).state_dict()


def require_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("family", FAMILIES)
def test_each_name_alone_is_enough(family: str, tmp_path: Path) -> None:
    make, names = FAMILIES[family]
    model = make(tmp_path / "theirs")
    expected = weights_of(tmp_path / "theirs", tmp_path / "expected")
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    matrix = tensors[names[0]]
    for number, name in enumerate(names):
        others = {other: tensor for other, tensor in tensors.items() if other not in names}
        write_bare_tensors(path, {**others, name: matrix})
        require_equal(weights_of(tmp_path / "theirs", tmp_path / f"run{number}"), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_of_save_model_is_read(family: str, tmp_path: Path) -> None:
    make, _ = FAMILIES[family]
    model = make(tmp_path / "theirs")
    expected = weights_of(tmp_path / "theirs", tmp_path / "expected")
    save_model(model, str(tmp_path / "theirs" / "model.safetensors"))
    require_equal(weights_of(tmp_path / "theirs", tmp_path / "run"), expected)


@pytest.mark.parametrize("family", ["t5", "bart", "gpt2", "bert"])
def test_none_of_the_names_is_refused(family: str, tmp_path: Path) -> None:
    make, names = FAMILIES[family]
    make(tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(path)
    write_bare_tensors(
        path, {name: tensor for name, tensor in tensors.items() if name not in names}
    )
    import_refused(tmp_path / "theirs", r"embeddings are missing \(looked for", tmp_path)


@pytest.mark.parametrize("family", ["t5", "bart", "mbart", "nllb", "pegasus"])
def test_a_folder_of_the_model_without_its_output_layer_is_read(
    family: str, tmp_path: Path
) -> None:
    """As facebook/bart-base is published."""
    model = FAMILIES[family][0](tmp_path / "theirs")
    expected = weights_of(tmp_path / "theirs", tmp_path / "expected")
    base = (
        model.model
        if hasattr(model, "model")
        else transformers.T5Model.from_pretrained(tmp_path / "theirs")
    )
    generation = (tmp_path / "theirs" / "generation_config.json").read_bytes()
    base.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "generation_config.json").write_bytes(generation)
    names = load_file(tmp_path / "theirs" / "model.safetensors")
    assert not any(name.startswith(("model.", "lm_head")) for name in names)
    found = weights_of(tmp_path / "theirs", tmp_path / "run")
    found.pop("output.bias")  # of which there is none in such a folder
    expected.pop("output.bias")
    require_equal(found, expected)


def test_one_of_two_names_of_the_output_bias_is_enough(tmp_path: Path) -> None:
    bert(tmp_path / "theirs", "BertForMaskedLM")
    expected = weights_of(tmp_path / "theirs", tmp_path / "expected")
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(path)
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    write_bare_tensors(path, tensors)
    require_equal(weights_of(tmp_path / "theirs", tmp_path / "run"), expected)


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_one_name_in_one_of_several_files_is_enough(kind: str, tmp_path: Path) -> None:
    _, model = made("t5", tmp_path / "theirs")
    expected = weights_of(tmp_path / "theirs", tmp_path / "expected")
    copy = copied(tmp_path / "theirs", tmp_path)
    (copy / "model.safetensors").unlink()
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        tensors.pop(name)
    stem, suffix = kind.split(".")
    places = {
        name: f"{stem}-0000{1 + number % 2}-of-00002.{suffix}"
        for number, name in enumerate(sorted(tensors))
    }
    for file in {*places.values()}:
        part = {name: tensor for name, tensor in tensors.items() if places[name] == file}
        if suffix == "bin":
            torch.save(part, copy / file)
        else:
            write_bare_tensors(copy / file, part)
    (copy / f"{kind}.index.json").write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    require_equal(weights_of(copy, tmp_path / "parts"), expected)
    if suffix == "bin":
        (copy / min(places.values())).unlink()
        import_refused(copy, "00001-of-00002.bin", tmp_path)
