"""Opening a trained run: what is asked comes in at the door."""

import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nmtkit import Translator
from nmtkit.core.errors import RecipeError
from nmtkit.inference.loading.opening import load_from_options
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.loading.speed import fits_fp16
from nmtkit.layers.linear import Precision, supported_precisions
from nmtkit.models.base import MODELS, ModelConfig, VocabularySizes
from nmtkit.models.convs2s import ConvS2SConfig
from nmtkit.models.rnn.luong import LuongConfig
from nmtkit.models.transformer import TransformerConfig
from nmtkit.runs.run import find_run
from tests.support.prompted_decoders import Captioner


def test_the_beam_is_as_wide_as_results_are_wanted(trained: Path) -> None:
    """The recipe's is 3 wide; a width that is asked for stays."""
    for n_best, settings, expected in ((2, {}, 3), (5, {}, 5), (5, {"beam_size": 4}, 4)):
        said: list[str] = []
        how = DecodingOptions(str(trained), device="cpu", n_best=n_best, search_settings=settings)
        assert load_from_options(how, "translation", said.append).config.n_hypotheses == expected
        assert ("using beam size 5 instead of 3 because of --n-best 5" in said) == (expected == 5)
        assert str(trained) in said[-1]


def test_one_attention_has_no_heads_to_choose_from(trained: Path) -> None:
    with pytest.raises(RecipeError, match="rnnsearch does not have several attention layers"):
        load_from_options(DecodingOptions(str(trained), device="cpu", head=1))


def test_a_translator_stays_as_it_is(trained: Path) -> None:
    translator = Translator.load(str(trained), "cpu")
    with pytest.raises(FrozenInstanceError):
        translator.max_source_tokens = 1  # type: ignore[misc]  # what is asked
    short = replace(translator, max_source_tokens=1)
    assert [one.search(["ba ce"])[0][0].src_left_out for one in (translator, short)] == [0, 1]


LINES = ["ba ce", "du", "", "ce ba du ba", "du du ba ce ba", "ba"] * 4


@pytest.mark.parametrize("precision", supported_precisions(torch.device("cpu")))
def test_a_precision_gives_the_same_texts_in_batches_of_every_size(
    trained: Path, precision: Precision
) -> None:
    how = DecodingOptions(str(trained), device="cpu", precision=precision)
    translator = load_from_options(how)
    assert translator.speed_config.precision == precision
    weights = load_file(find_run(str(trained))[0].weights())
    assert translator.parameters == sum(map(torch.numel, weights.values())), (
        "packed ones are no parameters of torch's"
    )
    together = [best[0] for best in translator.search(LINES)]
    alone = [best[0] for best in load_from_options(replace(how, batch_tokens=1)).search(LINES)]
    assert [one.text for one in together] == [one.text for one in alone]
    near = 1e-4 if precision == "fp32" else 0.05
    assert [one.score for one in together] == pytest.approx([one.score for one in alone], abs=near)


@pytest.mark.parametrize(
    ("precision", "fault"),
    [
        ("fp16", "precision fp16 is not supported on this cpu device; use fp32"),
        (
            "int8",
            "precision int8: nmtkit's own engine supports only fp32, fp16 and bf16; use one of these",
        ),
    ],
)
def test_a_precision_that_a_search_lacks_is_refused(
    trained: Path, precision: Any, fault: str
) -> None:
    with pytest.raises(RecipeError, match=f"^{re.escape(fault)}"):
        load_from_options(
            DecodingOptions(str(trained), device="cpu", engine="nmtkit", precision=precision)
        )


def test_numbers_that_fp16_cannot_hold_are_noticed(trained: Path) -> None:
    model, _, _ = find_run(str(trained))[0].open_model(torch.device("cpu"), "auto")
    model.src_embedding.weight.data.mul_(1e-3)
    assert fits_fp16(model)
    model.src_embedding.weight.data.fill_(1e6)
    assert not fits_fp16(model)


@pytest.mark.parametrize(
    "config",
    [
        TransformerConfig(hidden_size=4, heads=1, layers=1, positions="learned", max_positions=20),
        ConvS2SConfig(embedding_size=4, hidden_size=4, layers=1, max_positions=1),
        LuongConfig(embedding_size=4, hidden_size=4, score="location", max_positions=40),
    ],
    ids=lambda config: config.kind,
)
def test_a_model_of_few_positions_is_asked_for_no_more(config: ModelConfig) -> None:
    assert fits_fp16(
        MODELS.get(config.kind)(config, VocabularySizes({"src": 90, "tgt": 80})).eval()
    )


def test_what_a_reader_of_other_than_text_makes_is_not_known() -> None:
    assert not fits_fp16(Captioner())
