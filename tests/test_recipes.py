"""Every recipe that comes with nmtkit loads, says what it is for, and builds its model."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit import config
from nmtkit.core.errors import RecipeError
from nmtkit.experiment.plan import plan
from nmtkit.experiment.presets.sizes import PRESETS
from nmtkit.models.base import MODELS, VocabularySizes
from nmtkit.training.schedules import TrainingProgress

NAMES = config.bundled()

load = cache(config.load)
"""For tests that only look at a recipe."""


def model_of(loaded: config.Recipe) -> dict[str, Any]:
    return loaded.model.model_dump()


def count_weights(loaded: config.Recipe, vocabulary: int) -> int:
    with torch.device("meta"):
        model = MODELS.get(loaded.model.kind)(
            loaded.model, VocabularySizes({"src": vocabulary, "tgt": vocabulary}, shared=True)
        )
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_builds_its_model_and_is_equal_when_written_out(name: str, tmp_path: Path) -> None:
    loaded = load(name)
    assert loaded.name == name
    assert len(loaded.description) > 20
    assert (
        dict(plan(loaded, torch.device("cpu"), need_files=False).rows)["model"] == loaded.model.kind
    )
    for one in loaded.by_stage().values():
        first = TrainingProgress(1, share=one.training.share(1, 0.0) or 0.0)
        assert one.training.schedule.rate(one.training.lr, first) > 0
    path = tmp_path / "resolved.yaml"
    path.write_text(loaded.to_yaml(), encoding="utf-8")
    assert config.load(path) == loaded


@pytest.mark.parametrize(
    "name",
    [f"preset-{task}{size}" for task in ("", "summaries-", "lm-", "classes-") for size in PRESETS],
)
def test_a_preset_is_a_recipe_but_for_its_text(name: str) -> None:
    assert name in config.bundled(presets=True)
    assert name not in NAMES
    loaded = config.load(name, config.any_text(name))
    assert len(loaded.description) > 20
    assert (
        dict(plan(loaded, torch.device("cpu"), need_files=False).rows)["model"] == loaded.model.kind
    )
    with pytest.raises(RecipeError, match=r"`data(\.train)?` is missing"):
        config.load(name)


@pytest.mark.parametrize(("size", "millions"), [("base", 65), ("big", 213)])
def test_transformers_have_the_papers_settings(size: str, millions: int) -> None:
    """Vaswani et al. 2017, table 3, section 5.3, and equation 3 at its peak, update 4,000: 512^-0.5 * 4000^-0.5."""
    loaded = load(f"wmt14-en-de-transformer-{size}")
    # "About 37000 tokens" and rounded figures: the formula gives 63.1 and 214.3 million.
    assert count_weights(loaded, 37000) == pytest.approx(millions * 1e6, rel=0.03)
    training = load("wmt14-en-de-transformer-base").training
    assert training.schedule.rate(training.lr, TrainingProgress(4000)) == pytest.approx(
        512**-0.5 * 4000**-0.5
    )
    assert (training.betas, training.eps, training.label_smoothing) == ([0.9, 0.98], 1e-9, 0.1)


@pytest.mark.parametrize("longest", [30, 50])
@pytest.mark.parametrize("kind", ["rnnsearch", "rnnencdec"])
def test_rnnsearch_and_rnnencdec_have_the_papers_sizes(kind: str, longest: int) -> None:
    """Bahdanau et al. 2015, appendix A.2.3: n 1000, m 620, l 500, n' 1000, and 30,000 words; table 1 has all four."""
    loaded = load(f"wmt14-en-fr-{kind}-{longest}")
    sizes = {"hidden_size": 1000, "embedding_size": 620, "maxout_size": 500}
    sizes |= {"attention_size": 1000} if kind == "rnnsearch" else {}
    assert model_of(loaded).items() >= sizes.items()
    assert (loaded.tokenizer.vocab_size - 4, loaded.data.max_length) == (30000, longest)
    assert loaded.batch.batch_tokens == 80 * (longest + 1)
    training = loaded.training
    assert (training.loss_unit, training.clip_norm, training.eps) == ("sentence", 1, 1e-6)


@pytest.mark.parametrize("longest", [15, 30])
def test_the_small_rows_of_the_table_are_trained_alike(longest: int) -> None:
    search, encdec = load(f"demo-rnnsearch-{longest}"), load(f"demo-rnnencdec-{longest}")
    assert (search.training, search.batch, search.tokenizer) == (
        encdec.training,
        encdec.batch,
        encdec.tokenizer,
    )
    assert search.data.max_length == encdec.data.max_length == longest


def test_sutskever_has_the_papers_settings() -> None:
    """Sutskever et al. 2014, section 3.4: 384 million weights, of which 64 million are recurrent."""
    loaded = load("wmt14-en-fr-sutskever")
    with torch.device("meta"):
        model = MODELS.get("rnn_encdec")(
            loaded.model, VocabularySizes({"src": 160000, "tgt": 80000}, shared=False)
        )
    recurrent = sum(
        one.numel() for part in (model.encoder, model.decoder) for one in part.parameters()
    )
    assert recurrent == pytest.approx(64e6, rel=0.01)
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(384e6, rel=0.01)
    training = loaded.training
    rates = [
        training.schedule.rate(training.lr, TrainingProgress(int(93_750 * epoch) + 1))
        for epoch in (0, 4.9, 5, 5.6)
    ]
    assert rates == [0.7, 0.7, 0.35, 0.175]
    assert (training.loss_unit, training.clip_norm, loaded.batch.batch_size) == ("sentence", 5, 128)


def test_luong_has_the_papers_settings() -> None:
    """Luong et al. 2015, section 4.1."""
    loaded = load("wmt14-en-de-luong-local-p")
    settings = {"layers": 4, "hidden_size": 1000, "embedding_size": 1000, "reverse_source": True}
    settings |= {"window_size": 10, "window": "local_p", "score": "general"}
    assert model_of(loaded).items() >= settings.items()
    assert (loaded.tokenizer.vocab_size - 4, loaded.batch.batch_size) == (50000, 128)
    training = loaded.training
    assert (training.loss_unit, training.clip_norm) == ("sentence", 5)
    rates = [training.schedule.rate(training.lr, TrainingProgress(1, epoch)) for epoch in range(12)]
    assert rates == [1.0] * 8 + [0.5, 0.25, 0.125, 0.0625]
    assert (
        model_of(load("wmt14-en-de-luong-global")).items()
        >= {"window": "global", "score": "dot", "layers": 4}.items()
    )


def test_gnmt_has_the_papers_settings() -> None:
    """Wu et al. 2016, sections 3, 5 and 8. Of 2,000,000 updates 60,000 are Adam's; the rate falls after 1,200,000."""
    loaded = load("wmt14-en-de-gnmt")
    sizes = {"layers": 8, "hidden_size": 1024, "embedding_size": 1024, "initialisation": "paper"}
    assert model_of(loaded).items() >= sizes.items()
    assert (loaded.tokenizer.vocab_size, loaded.batch.batch_size) == (32000, 128)
    adam, sgd, reinforced = (one.training for one in loaded.by_stage().values())
    assert (adam.optimizer, adam.lr, adam.max_updates, adam.clip_norm) == (
        "adam",
        0.0002,
        60_000,
        5,
    )
    rates = [
        sgd.schedule.rate(sgd.lr, TrainingProgress(update - 60_000))
        for update in (60_001, 1_200_000, 1_200_001)
    ]
    assert (sgd.optimizer, rates) == ("sgd", [0.5, 0.5, 0.25])
    reinforce = reinforced.objectives["reinforce"]
    assert (reinforce.reward, reinforce.samples) == ("gleu", 15)
    assert (1 - reinforce.gamma) / reinforce.gamma == pytest.approx(0.017, rel=1e-3)
    assert (loaded.search.alpha, loaded.search.coverage_penalty) == (0.2, 0.2)


@pytest.mark.parametrize("name", ["luong-global", "luong-local-m", "luong-local-p"])
def test_luong_on_captions_is_as_large_as_rnnsearch_and_trained_alike(name: str) -> None:
    search, loaded = load("multi30k-en-de-rnnsearch"), load(f"multi30k-en-de-{name}")
    assert (loaded.training, loaded.batch) == (search.training, search.batch)
    assert count_weights(loaded, 8000) == pytest.approx(count_weights(search, 8000), rel=0.15)


def test_the_pointer_generator_has_the_papers_settings() -> None:
    """See et al. 2017, section 5; the parameters of the paper, and the second biases of torch's LSTMs."""
    loaded = load("cnndm-pointer-generator")
    *first, last = loaded.by_stage().values()
    second_biases = 3 * 4 * 256
    assert count_weights(last, 50000) - second_biases == 21_499_600 + 1153 + 512
    assert loaded.tokenizer.vocab_size - 4 == 50000
    assert (loaded.batch.batch_size, loaded.search.beam_size) == (16, 4)
    assert (loaded.search.min_length, loaded.search.max_length) == (35, 120)
    training = loaded.training
    assert (training.optimizer, training.lr, training.initial_accumulator) == ("adagrad", 0.15, 0.1)
    assert training.clip_norm == 2
    assert sum(one.training.max_updates or 0 for one in first) == 230_000
    limits = [one.data.limits for one in (*first, last)]
    assert limits == sorted(limits)
    assert limits[-2:] == [(400, 100)] * 2
    assert (last.training.objectives, last.training.max_updates) == ({"coverage_weight": 1}, 3000)
    assert [one.training.objectives for one in first] == [{}] * 5


def test_intra_attention_has_the_papers_settings() -> None:
    """Paulus et al. 2018, section 6.1 and appendix: sizes, rates, gamma, words, beam."""
    loaded = load("cnndm-intra-attention")
    assert (
        model_of(loaded).items()
        >= {"hidden_size": 400, "embedding_size": 100, "own_words": 0.25}.items()
    )
    assert (loaded.data.limits, loaded.batch.batch_size) == ((800, 100), 50)
    assert (loaded.tokenizer.vocab_size - 4, (loaded.tokenizer.tgt_vocab_size or 0) - 4) == (
        150_000,
        50_000,
    )
    assert (loaded.search.beam_size, loaded.search.no_repeat_ngram) == (5, 3)
    likelihood, reinforced = (one.training for one in loaded.by_stage().values())
    assert (likelihood.optimizer, likelihood.lr, likelihood.objectives) == ("adam", 0.001, {})
    assert reinforced.lr == 0.0001
    assert reinforced.objectives["reinforce"].gamma == 0.9984


@pytest.mark.parametrize(
    ("name", "larger", "parameters"),
    [
        ("gpt", {}, 116_534_784),
        ("gpt2", {}, 124_439_808),
        (
            "gpt2",
            {"hidden_size": 1600, "feed_forward_size": 6400, "heads": 25, "layers": 48},
            1_557_611_200,
        ),
    ],
)
def test_gpt_and_gpt2_have_the_published_sizes(
    name: str, larger: dict[str, int], parameters: int
) -> None:
    loaded = load(name)
    loaded = loaded.changed({"model": {**model_of(loaded), **larger}}) if larger else loaded
    assert count_weights(loaded, loaded.tokenizer.vocab_size) == parameters
    assert loaded.batch.block_tokens == model_of(loaded)["max_positions"]


@pytest.mark.parametrize("corpus", ["demo-news", "inshorts"])
def test_the_baseline_differs_by_what_it_lacks_only(corpus: str) -> None:
    """Pointer and coverage; in all it makes as many updates."""
    ours, plain = load(f"{corpus}-pointer-generator"), load(f"{corpus}-attention")
    stages = [list(one.by_stage().values()) for one in (ours, plain)]
    first, second = (sum(one.training.max_updates or 0 for one in group) for group in stages)
    assert first == second
    assert (ours.model.copies, plain.model.copies) == (True, False)
    assert model_of(stages[0][-1])["coverage"] is True
    assert plain.model == ours.model.changed({"copying": False})
    for part in ("data", "tokenizer", "batch", "search", "evaluation"):
        assert getattr(ours, part) == getattr(plain, part)
