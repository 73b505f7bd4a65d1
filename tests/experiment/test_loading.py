"""Opening a trained run: what is asked comes in at the door."""

import shutil
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
import torch
from daily import daily
from safetensors.torch import load_file

from nmtkit import Translator
from nmtkit.checkpoints.weights import get_weights, save_weights
from nmtkit.core.errors import RecipeError
from nmtkit.core.formats import dump_yaml, load_yaml
from nmtkit.experiment import loading
from nmtkit.experiment.loading import DecodingOptions, fits_fp16, load_from_options
from nmtkit.layers.inference import InferenceCell, InferenceLinear, Precision, supported_precisions
from nmtkit.models.base import MODELS
from nmtkit.runs.saved import build_model, find_run


def test_the_beam_is_as_wide_as_results_are_wanted(trained: Path) -> None:
    """The recipe's is 3 wide; a width that is asked for stays."""
    for n_best, settings, expected in ((2, {}, 3), (5, {}, 5), (5, {"beam_size": 4}, 4)):
        said: list[str] = []
        how = DecodingOptions(str(trained), "cpu", n_best=n_best, search_settings=settings)
        assert load_from_options(how, "translation", said.append).config.beam_size == expected
        assert ("beam size 5 instead of 3, for --n-best 5" in said) == (expected == 5)
        assert str(trained) in said[-1]


def test_one_attention_has_no_heads_to_choose_from(trained: Path) -> None:
    with pytest.raises(RecipeError, match="rnnsearch has one attention"):
        load_from_options(DecodingOptions(str(trained), "cpu", head=1))


def test_a_translator_stays_as_it_is(trained: Path) -> None:
    translator = Translator.load(str(trained), "cpu")
    with pytest.raises(FrozenInstanceError):
        translator.max_source_tokens = 1  # type: ignore[misc]  # what is asked
    short = replace(translator, max_source_tokens=1)
    assert [one.search(["ba ce"])[0][0].src_left_out for one in (translator, short)] == [0, 1]


LINES = ["ba ce", "du", "", "ce ba du ba", "du du ba ce ba", "ba"] * 4


@pytest.mark.parametrize("precision", supported_precisions(torch.device("cpu")))
def test_a_precision_gives_the_same_texts_in_batches_of_every_size(trained: Path, precision: Precision) -> None:
    how = DecodingOptions(str(trained), "cpu", precision=precision)
    translator = load_from_options(how)
    assert translator.speed_config.precision == precision
    assert any(isinstance(part, InferenceLinear | InferenceCell) for part in translator.model.modules())
    together = [best[0] for best in translator.search(LINES)]
    alone = [best[0] for best in load_from_options(replace(how, batch_tokens=1)).search(LINES)]
    assert [one.text for one in together] == [one.text for one in alone]
    near = 1e-4 if precision == "fp32" else 0.05
    assert [one.score for one in together] == pytest.approx([one.score for one in alone], abs=near)


def test_a_slow_precision_is_taken_only_where_it_is_named(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = supported_precisions(torch.device("cpu"))[-1]
    monkeypatch.setattr(loading, "is_slow", lambda precision: precision == slow)
    said: list[str] = []
    for precision, taken in ((slow, slow), ("auto", "fp32")):
        how = DecodingOptions(str(trained), "cpu", precision=precision)
        assert load_from_options(how, "translation", said.append).speed_config.precision == taken
    assert said.count(f"precision {slow}: its products are slow on this processor; take fp32, or auto") == 1


def test_a_precision_that_the_device_lacks_is_refused(trained: Path) -> None:
    with pytest.raises(RecipeError, match=r"^precision fp16: not supported here on cpu; take fp32"):
        load_from_options(DecodingOptions(str(trained), "cpu", precision="fp16"))


def test_numbers_that_fp16_cannot_hold_are_noticed(trained: Path) -> None:
    model, _, _ = find_run(str(trained))[0].open_model(torch.device("cpu"), "auto")
    model.src_embedding.weight.data.mul_(1e-3)
    assert fits_fp16(model)
    model.src_embedding.weight.data.fill_(1e6)
    assert not fits_fp16(model)


TIED = [{"kind": kind, "tie": tie} for kind, tie in (("transformer", "all"), ("transformer", "decoder"))]


@pytest.mark.parametrize("model", daily([*TIED, *({"kind": kind} for kind in MODELS)], 3), ids=str)
def test_a_translator_tells_as_many_parameters_as_its_weights_file_has(
    model: dict[str, str], trained: Path, tmp_path: Path
) -> None:
    """Whatever its products are: packed matrices are no parameters of torch's any more."""
    folder, weights = tmp_path / "run", tmp_path / "weights.safetensors"
    shutil.copytree(trained, folder)
    recipe = load_yaml(folder / "recipe.yaml")[0]
    (folder / "recipe.yaml").write_text(dump_yaml({**recipe, "model": model}))
    run = find_run(str(folder))[0]
    save_weights(weights, get_weights(build_model(run.recipe, run.load_tokenizers())))
    there = sum(map(torch.numel, load_file(weights).values()))
    of_precision = {
        precision: load_from_options(DecodingOptions(str(folder), "cpu", weights=str(weights), precision=precision))
        for precision in supported_precisions(torch.device("cpu"))
    }
    for translator in of_precision.values():
        assert translator.parameters == replace(translator, name="again").parameters == there
        assert any(isinstance(part, InferenceLinear | InferenceCell) for part in translator.model.modules())
    together = load_from_options(DecodingOptions([str(folder)] * 2, device="cpu", weights=str(weights)))
    assert together.parameters == 2 * there
