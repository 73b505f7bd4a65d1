"""Every recipe that comes with nmtkit loads, says what it is for, and builds its model."""

from functools import cache
from pathlib import Path

import pytest
import torch

from nmtkit import recipe
from nmtkit.core.errors import RecipeError
from nmtkit.experiment import checks
from nmtkit.models.base import MODELS, VocabularySizes
from nmtkit.presets.fitting import PRESETS
from nmtkit.training.schedules import TrainingProgress

NAMES = recipe.bundled()
ASKED_FOR = {
    "cnndm-intra-attention",
    "cnndm-pointer-generator",
    "demo",
    "demo-news-attention",
    "demo-news-pointer-generator",
    "inshorts-attention",
    "inshorts-intra-attention",
    "inshorts-pointer-generator",
    "iwslt15-en-vi-luong-global",
    "iwslt15-en-vi-luong-local-m",
    "iwslt15-en-vi-luong-local-p",
    "multi30k-en-de-luong-global",
    "multi30k-en-de-luong-local-m",
    "multi30k-en-de-luong-local-p",
    "multi30k-en-de-rnn-encdec",
    "multi30k-en-de-rnnsearch",
    "multi30k-en-de-transformer",
    "multi30k-en-de-transformer-tiny",
    "wmt14-en-de-luong-global",
    "wmt14-en-de-luong-local-p",
    "wmt14-en-de-transformer-base",
    "wmt14-en-de-transformer-big",
    "wmt14-en-fr-rnnsearch-50",
}


loaded_once = cache(recipe.load)
"""For tests that only look at a recipe."""


def test_none_is_missing() -> None:
    assert set(NAMES) >= ASKED_FOR


@pytest.mark.parametrize("name", NAMES)
def test_dry_run(name: str) -> None:
    loaded = loaded_once(name)
    assert loaded.name == name
    assert len(loaded.description) > 20
    rows = dict(checks.dry_run(loaded))
    assert rows["model"] == loaded.model.kind
    for one in loaded.by_stage().values():
        first = TrainingProgress(1, share=one.training.share(1, 0.0) or 0.0)
        assert one.training.schedule.rate(one.training.lr, first) > 0


@pytest.mark.parametrize("name", recipe.bundled(presets=True))
def test_a_preset_is_a_recipe_but_for_its_text(name: str) -> None:
    assert name not in NAMES
    loaded = recipe.load(name, recipe.ANY_TEXT)
    assert len(loaded.description) > 20
    assert dict(checks.dry_run(loaded))["model"] == loaded.model.kind
    with pytest.raises(RecipeError, match=r"`data(\.train)?` is missing"):
        recipe.load(name)


def test_there_are_presets_of_each_size_for_each_task() -> None:
    names = [f"preset-{task}{size}" for task in ("", "summaries-") for size in PRESETS]
    assert recipe.bundled(presets=True) == sorted(names)


@pytest.mark.parametrize("name", NAMES)
def test_resolved_recipe_is_equal(name: str, tmp_path: Path) -> None:
    loaded = loaded_once(name)
    path = tmp_path / "resolved.yaml"
    path.write_text(loaded.to_yaml(), encoding="utf-8")
    assert recipe.load(path) == loaded


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        # Vaswani et al. 2017, table 3.
        ("wmt14-en-de-transformer-base", 65),
        ("wmt14-en-de-transformer-big", 213),
    ],
)
def test_sizes_are_the_papers(name: str, millions: int) -> None:
    loaded = loaded_once(name)
    with torch.device("meta"):
        model = MODELS.get(loaded.model.kind)(loaded.model, VocabularySizes(37000, 37000, shared=True))
    # "About 37000 tokens" and rounded figures: the formula gives 63.1 and 214.3 million.
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(millions * 1e6, rel=0.03)


def test_rates_are_the_papers() -> None:
    """Equation 3 at its peak, update 4,000: 512^-0.5 * 4000^-0.5."""
    training = recipe.load("wmt14-en-de-transformer-base").training
    assert training.schedule.rate(training.lr, TrainingProgress(4000)) == pytest.approx(512**-0.5 * 4000**-0.5)
    assert training.betas == [0.9, 0.98]
    assert training.eps == 1e-9
    assert training.label_smoothing == 0.1


def test_rnnsearch_has_the_papers_sizes() -> None:
    """Bahdanau et al. 2015, appendix A.2.3: n 1000, m 620, l 500, n' 1000, and 30,000 words."""
    loaded = recipe.load("wmt14-en-fr-rnnsearch-50")
    sizes = loaded.model.model_dump()
    named = (sizes["hidden_size"], sizes["embedding_size"], sizes["maxout_size"], sizes["attention_size"])
    assert named == (1000, 620, 500, 1000)
    assert loaded.tokenizer.vocab_size - 4 == 30000


def test_luong_has_the_papers_settings() -> None:
    """Luong et al. 2015, section 4.1. Rate and norm are for a mean over words, of which a sentence has about 25."""
    loaded = recipe.load("wmt14-en-de-luong-local-p")
    sizes = loaded.model.model_dump()
    assert (sizes["layers"], sizes["hidden_size"], sizes["embedding_size"], sizes["window_size"]) == (4, 1000, 1000, 10)
    assert (sizes["window"], sizes["score"], sizes["reverse_source"]) == ("local_p", "general", True)
    assert loaded.tokenizer.vocab_size - 4 == 50000
    assert loaded.batch.batch_size == 128
    training = loaded.training
    assert training.lr / 25 == 1.0
    assert training.clip_norm == pytest.approx(5 / 25)
    rates = [training.schedule.rate(training.lr, TrainingProgress(1, epoch)) / 25 for epoch in range(12)]
    assert rates == [1.0] * 8 + [0.5, 0.25, 0.125, 0.0625]
    dot = recipe.load("wmt14-en-de-luong-global").model.model_dump()
    assert (dot["window"], dot["score"], dot["layers"]) == ("global", "dot", 4)


def test_luong_on_captions_is_as_large_as_rnnsearch_and_trained_alike() -> None:
    search = recipe.load("multi30k-en-de-rnnsearch")
    weights = {}
    for name in ("rnnsearch", "luong-global", "luong-local-m", "luong-local-p"):
        loaded = recipe.load(f"multi30k-en-de-{name}")
        assert loaded.training == search.training
        assert loaded.batch == search.batch
        with torch.device("meta"):
            model = MODELS.get(loaded.model.kind)(loaded.model, VocabularySizes(8000, 8000, shared=True))
        weights[name] = sum(weight.numel() for weight in model.parameters())
    assert len(weights) == 4
    assert all(count == pytest.approx(weights["rnnsearch"], rel=0.15) for count in weights.values()), weights


def test_the_pointer_generator_has_the_papers_settings() -> None:
    """See et al. 2017, section 5; the parameters of the paper, and the second biases of torch's LSTMs."""
    loaded = recipe.load("cnndm-pointer-generator")
    with torch.device("meta"):
        last = list(loaded.by_stage().values())[-1]
        model = MODELS.get(last.model.kind)(last.model, VocabularySizes(50000, 50000, shared=True))
    second_biases = 3 * 4 * 256
    assert sum(weight.numel() for weight in model.parameters()) - second_biases == 21_499_600 + 1153 + 512
    assert loaded.tokenizer.vocab_size - 4 == 50000
    assert (loaded.batch.batch_size, loaded.search.beam_size) == (16, 4)
    assert (loaded.search.min_length, loaded.search.max_length) == (35, 120)
    training = loaded.training
    assert (training.optimizer, training.lr, training.initial_accumulator) == ("adagrad", 0.15, 0.1)
    assert training.clip_norm == 2
    stages = list(loaded.by_stage().values())
    assert sum(one.training.max_updates or 0 for one in stages[:-1]) == 230_000
    limits = [one.data.limits for one in stages]
    assert limits == sorted(limits)
    assert limits[-2:] == [(400, 100)] * 2
    assert (last.training.coverage_weight, last.training.max_updates) == (1, 3000)
    assert [one.training.coverage_weight for one in stages[:-1]] == [0] * 5


def test_intra_attention_has_the_papers_settings() -> None:
    """Paulus et al. 2018, section 6.1 and appendix: sizes, rates, gamma, words, beam."""
    loaded = recipe.load("cnndm-intra-attention")
    sizes = loaded.model.model_dump()
    assert (sizes["hidden_size"], sizes["embedding_size"], sizes["own_words"]) == (400, 100, 0.25)
    assert loaded.data.limits == (800, 100)
    assert (loaded.tokenizer.vocab_size - 4, (loaded.tokenizer.tgt_vocab_size or 0) - 4) == (150_000, 50_000)
    assert loaded.batch.batch_size == 50
    assert (loaded.search.beam_size, loaded.search.no_repeat_ngram) == (5, 3)
    likelihood, reinforced = (one.training for one in loaded.by_stage().values())
    assert (likelihood.optimizer, likelihood.lr, likelihood.reinforce) == ("adam", 0.001, None)
    assert reinforced.lr == 0.0001
    assert reinforced.reinforce is not None
    assert reinforced.reinforce.gamma == 0.9984


@pytest.mark.parametrize("corpus", ["demo-news", "inshorts"])
def test_the_baseline_differs_by_what_it_lacks_only(corpus: str) -> None:
    """Pointer and coverage; in all it makes as many updates."""
    ours, plain = recipe.load(f"{corpus}-pointer-generator"), recipe.load(f"{corpus}-attention")
    stages = [list(one.by_stage().values()) for one in (ours, plain)]
    first, second = (sum(one.training.max_updates or 0 for one in group) for group in stages)
    assert first == second
    assert ours.model.copies
    assert not plain.model.copies
    assert stages[0][-1].model.model_dump()["coverage"] is True
    assert plain.model == ours.model.changed({"copying": False})
    for part in ("data", "tokenizer", "batch", "search", "evaluation"):
        assert getattr(ours, part) == getattr(plain, part)
