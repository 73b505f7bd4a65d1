"""What is made outside of nmtkit, after it was loaded, takes part by its name: a model and a task of this file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from nmtkit import recipe
from nmtkit.data.batch import Batch
from nmtkit.errors import RecipeError
from nmtkit.experiment.run import Run
from nmtkit.layers.past import Past
from nmtkit.models.base import MODELS, DecoderState, Memory, ModelConfig, Readout, Seq2Seq, VocabularySizes
from nmtkit.registry import Registry
from nmtkit.settings import Field, Width
from nmtkit.task import TASKS, TRANSLATION
from nmtkit.training.events import Evaluated, Step

CPU = torch.device("cpu")


@dataclass(frozen=True)
class BagMemory(Memory):
    mean: Tensor
    """`(B,H)`"""


@dataclass(frozen=True)
class BagState(DecoderState):
    mean: Tensor
    """`(N,H)`: the source, seen less with every word."""


class Bag(Seq2Seq):
    """The mean of the source's words and the word before: what a stranger may try first."""

    has_attention = False

    class Config(ModelConfig):
        kind: Literal["bag"] = "bag"
        hidden_size: Width = Field(default=16, ge=1)
        """Numbers a word."""

    def __init__(self, config: "Bag.Config", sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.src_embedding = nn.Embedding(sizes.src, config.hidden_size)
        self.tgt_embedding = nn.Embedding(sizes.tgt, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, sizes.tgt)

    def encode(self, batch: Batch) -> BagMemory:
        real = batch.src_mask.unsqueeze(-1)
        mean = (self.src_embedding(batch.src) * real).sum(1) / real.sum(1)
        return BagMemory(batch.src_mask, batch.src_extended, batch.n_oov, mean)

    def start(self, memory: Memory) -> BagState:
        assert isinstance(memory, BagMemory)
        return BagState(memory.mean)

    def advance(
        self, tokens: Tensor, state: DecoderState, memory: Memory, past: Past, need_attention: bool = False
    ) -> tuple[Readout, DecoderState]:
        assert isinstance(state, BagState)
        return Readout(torch.tanh(self.tgt_embedding(tokens) + state.mean)), BagState(0.9 * state.mean)

    def logits(self, readout: Readout, memory: Memory) -> Tensor:
        return self.output(readout.features)


@contextmanager
def registered(registry: Registry[Any], name: str, member: Any) -> Iterator[None]:
    """For as long as this lasts; other tests go through all members of a registry."""
    registry.register(name)(member)
    try:
        yield
    finally:
        del registry._members[name]


def carried_out(corpus: Path, folder: Path, *changes: str) -> tuple[Run, list[Any]]:
    """Two updates, and what they yielded."""
    quick = ["training.max_updates=2", "training.validate_every=2", "training.log_every=1", "search.max_length=8"]
    run = Run.begin(recipe.load(corpus / "tiny.yaml", [*quick, *changes]), str(folder))
    return run, list(run.train(CPU))


def test_a_model_that_came_later_is_named_trained_and_translates(corpus: Path, tmp_path: Path) -> None:
    bag = ["model={kind: bag, hidden_size: 8}"]
    with pytest.raises(RecipeError, match=r"`model.kind`: unknown name 'bag'"):
        recipe.load(corpus / "tiny.yaml", bag)
    with registered(MODELS, "bag", Bag):
        with pytest.raises(RecipeError, match=r"unknown key `model.hiden_size`: did you mean 'hidden_size'\?"):
            recipe.load(corpus / "tiny.yaml", ["model={kind: bag, hiden_size: 8}"])
        assert "bag" in recipe.recipe_schema()["properties"]["model"]["discriminator"]["mapping"]
        run, events = carried_out(corpus, tmp_path / "run", *bag)
        assert [event.update for event in events if isinstance(event, Step)] == [1, 2]
        result = Run.open(str(tmp_path / "run")).test(CPU)
        assert result is not None
        assert len(result.translations) == 40
        assert {score.name for score in result.scores} == {"BLEU", "chrF2"}
        model, _, opened = run.open_model(CPU)
        assert isinstance(model, Bag)
        assert opened.model == Bag.Config(hidden_size=8)
    with pytest.raises(RecipeError, match="unknown name 'bag'"):
        recipe.load(tmp_path / "run" / "recipe.yaml")


def test_a_task_that_came_later_is_trained_validated_and_tested(corpus: Path, tmp_path: Path) -> None:
    turning = ["task=turning", "training.best_metric=chrf", "model={kind: rnnsearch, hidden_size: 8}"]
    with pytest.raises(RecipeError, match="there is no task 'turning'"):
        recipe.load(corpus / "tiny.yaml", turning)
    metrics = {"validated": ("chrf",), "tested": ("chrf", "ter")}
    task = replace(TRANSLATION, name="turning", command="turn", done="turned", result="turned line", **metrics)
    with registered(TASKS, "turning", task):
        run, events = carried_out(corpus, tmp_path / "run", *turning)
        (evaluated,) = (event for event in events if isinstance(event, Evaluated))
        assert evaluated.metrics.keys() == {"chrf", "loss", "perplexity", "seconds"}
        result = run.test(CPU)
        assert result is not None
        assert [score.name for score in result.scores] == ["chrF2", "TER"]
        assert "turning" in recipe.recipe_schema()["properties"]["task"]["enum"]
