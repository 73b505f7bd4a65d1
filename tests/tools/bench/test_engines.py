"""What is measured beside nmtkit must do nmtkit's work, or the bench compares nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmtkit.core.errors import NmtkitError
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.data.batches.store import Store
from nmtkit.data.tokenizers.vocabulary import SPECIALS, Vocabulary
from nmtkit.decoding.settings import BeamConfig
from nmtkit.models.base import Seq2Seq
from nmtkit.models.transformer import TransformerConfig
from tests.contracts.pretended_cuda import CUDA, pretended_cuda

from .engines import CTranslate2, Setting
from .floors import BareTransformer, load
from .made_text import make_captions
from .search import Network, summarize
from .training import FP32, TOY, Setup, beside_floor, build, check_same_function

CPU = torch.device("cpu")
VOCABULARY = 40
TRANSFORMER = TransformerConfig(
    hidden_size=16, feed_forward_size=24, heads=2, encoder_layers=3, decoder_layers=2, tie="all"
)
SUMMARIZER = Network(
    "pointer_generator", {"coverage": True, "embedding_size": 8, "hidden_size": 8}, 40, 30, 6
)


@pytest.fixture
def batch() -> Batch:
    return collate([[5, 6, 7, 8], [9, 10]], [[11, 12], [13, 14, 15, 16, 17]])


def randomized(model: Seq2Seq) -> Seq2Seq:
    """Every weight random, so that none can be left out or taken for another unseen."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def test_ctranslate2_counts_the_end_of_a_sentence_as_the_others_do() -> None:
    asked: dict[str, Any] = {}

    def translate(*_: Any, **given: Any) -> list[Any]:
        asked.update(given)
        return [
            SimpleNamespace(hypotheses=[["a", "b", "</s>"]]),
            SimpleNamespace(hypotheses=[["b"]]),
        ]

    engine: Any = object.__new__(CTranslate2)
    side = SimpleNamespace(vocabulary=Vocabulary([*SPECIALS, "a", "b"]))
    engine.reader = SimpleNamespace(
        config=BeamConfig(), tokenizers=SimpleNamespace(src=side, tgt=side)
    )
    engine._setting, engine._translator = (
        Setting("fp32", 2, "sentences"),
        SimpleNamespace(translate_batch=translate),
    )
    assert engine._search([], 9) == [[4, 5], [5]]
    assert asked["return_end_token"]


def test_the_floor_computes_the_models_loss_with_every_weight(batch: Batch) -> None:
    model, floor = build(TRANSFORMER, VOCABULARY), BareTransformer(TRANSFORMER, VOCABULARY, 0.1)
    assert "parameters" in check_same_function(randomized(model), floor, batch)
    floor.zero_grad()
    floor.loss(load(batch, CPU)).backward()
    assert all(parameter.grad is not None for parameter in floor.parameters())
    floor.positions.zero_()
    with pytest.raises(NmtkitError, match="another function"):
        check_same_function(model, floor, batch)


def test_the_floor_trains_on_a_gpu_and_never_waits(batch: Batch) -> None:
    floor = BareTransformer(TOY, VOCABULARY, 0.0)
    expected = float(floor.loss(load(batch, CPU)).detach())
    with pretended_cuda() as cuda:
        cuda.take(floor)
        loaded = load(batch, CUDA)
        cuda.waits.clear()
        loss = floor.loss(loaded)
        assert loss.device == CUDA
        torch.autograd.backward(loss)
        assert not cuda.waits
        assert float(cuda.bring_back(loss.detach())) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_every_block_of_every_engine_is_measured(tmp_path: Path) -> None:
    """They get the same batches, which the bench itself asserts."""
    folder = make_captions(
        tmp_path, {"kind": "transformer"}, 100, {"train": 100, "valid": 5, "test": 5}
    )
    setup = Setup(
        Store.open(folder.data, "train"),
        tmp_path,
        CPU,
        threads=1,
        blocks=2,
        updates=3,
        batch_tokens=100,
    )
    floor, *ours = beside_floor(setup, TOY, [FP32])
    assert len(floor.tokens_per_second) == 2
    assert [len(one.ratios) for one in ours] == [2, 2]
    assert floor.ratios == []


def test_batches_of_articles_give_the_text_of_one_at_a_time() -> None:
    """Of articles that are unlike in length too, and on a GPU."""
    sources = [[5, 6, 7, 8], [9], [], [10, 6, 11, 12, 13, 14]]
    model = SUMMARIZER.build()
    one_at_a_time = summarize(model, SUMMARIZER, sources, 1, CPU)
    assert summarize(model, SUMMARIZER, sources, 4, CPU) == one_at_a_time
    with pretended_cuda() as cuda:
        cuda.take(model)
        assert summarize(model, SUMMARIZER, sources, 2, CUDA) == one_at_a_time


def test_unknown_words_of_an_article_are_numbered_in_order() -> None:
    sources = SUMMARIZER.sources(3)
    for source in sources:
        unknown = [word for word in source if word >= VOCABULARY]
        assert unknown == list(range(VOCABULARY, VOCABULARY + len(unknown)))
    assert any(max(source) >= VOCABULARY for source in sources)
    batch = SUMMARIZER.batch(sources)
    assert batch.n_oov == max(map(max, sources)) - VOCABULARY + 1
    assert int(batch.inputs.ids.max()) < VOCABULARY <= int(batch.inputs.copy.extended.max())
