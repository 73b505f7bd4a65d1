"""Every recipe that comes with nmtkit loads, says what it is for, and builds its model."""

from pathlib import Path

import pytest
import torch

from nmtkit import recipe, run
from nmtkit.models.base import MODELS, VocabularySizes
from nmtkit.training.schedules import Progress

NAMES = recipe.shipped()
ASKED_FOR = {
    "demo",
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


def test_none_is_missing() -> None:
    assert set(NAMES) >= ASKED_FOR


@pytest.mark.parametrize("name", NAMES)
def test_dry_run(name: str) -> None:
    loaded = recipe.load(name)
    assert loaded.name == name
    assert len(loaded.description) > 20
    rows = dict(run.dry_run(loaded))
    assert rows["model"] == loaded.model.kind
    assert loaded.training.schedule.rate(loaded.training.lr, Progress(1)) > 0


@pytest.mark.parametrize("name", NAMES)
def test_resolved_recipe_is_equal(name: str, tmp_path: Path) -> None:
    loaded = recipe.load(name)
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
    loaded = recipe.load(name)
    with torch.device("meta"):
        model = MODELS.get(loaded.model.kind)(loaded.model, VocabularySizes(37000, 37000, shared=True))
    # "About 37000 tokens" and rounded figures: the formula gives 63.1 and 214.3 million.
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(millions * 1e6, rel=0.03)


def test_rates_are_the_papers() -> None:
    """Equation 3 at its peak, update 4,000: 512^-0.5 * 4000^-0.5."""
    training = recipe.load("wmt14-en-de-transformer-base").training
    assert training.schedule.rate(training.lr, Progress(4000)) == pytest.approx(512**-0.5 * 4000**-0.5)
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
    rates = [training.schedule.rate(training.lr, Progress(1, epoch)) / 25 for epoch in range(12)]
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
