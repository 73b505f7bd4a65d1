"""A language model trained on blocks of running text by a recipe: whole documents, validation in blocks, resuming."""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from nmtkit.config import load as load_recipe
from nmtkit.config.tasks.task import TASKS, Task
from nmtkit.core.columns import Column
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.store import Store
from nmtkit.data.tokenizers.vocabulary import BOS, EOS
from nmtkit.experiment.stages import train_stages
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.base import (
    MODELS,
    Decoder,
    DecoderState,
    Memory,
    ModelConfig,
    ModelOutput,
    VocabularySizes,
)
from nmtkit.runs.run import Run
from nmtkit.training.events import Evaluated, Step
from tests.support.begun_runs import begin_run
from tests.support.commands import logged
from tests.support.compare_runs import differences

CPU = torch.device("cpu")
RECIPE = """\
task: storytelling
data:
  train: {tgt: [one, two], weights: [1, 0.5]}
  valid: {tgt: valid}
  max_length: 5
tokenizer: {kind: word, vocab_size: 30}
model: {kind: bigrams, size: 6}
batch: {batch_tokens: 80, block_tokens: 8}
training: {lr: 0.01, max_updates: 40, validate_every: 20, save_every: 7, log_every: 1, best_metric: loss}
"""


class Bigrams(Decoder[Memory, DecoderState]):
    """The next word from the last one alone."""

    class Config(ModelConfig):
        kind: Literal["bigrams"] = "bigrams"
        size: int = 8

    def __init__(self, config: Config, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.tgt_embedding = nn.Embedding(sizes["tgt"], config.size)
        self.dropout = nn.Dropout(0.2)
        self.output = nn.Linear(config.size, sizes["tgt"])

    def advance(
        self,
        tokens: Tensor,
        state: DecoderState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, DecoderState]:
        return ModelOutput(self.dropout(self.tgt_embedding(tokens))), state


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    MODELS.register("bigrams")(Bigrams)
    TASKS.register("storytelling")(
        Task(name="storytelling", columns=(Column("tgt", required=("train", "valid")),))
    )
    yield
    del MODELS._members["bigrams"], TASKS._members["storytelling"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of up to sixty words, each the follower of the one before; most are longer than `data.max_length`."""
    folder = tmp_path_factory.mktemp("stories")
    draw = random.Random(5)
    for name, count in (("one", 30), ("two", 20), ("valid", 9)):
        stories = (
            [(start + step) % 20 for step in range(draw.randrange(1, 60))] for start in range(count)
        )
        text = "".join(" ".join(f"w{word}" for word in story) + "\n" for story in stories)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "stories.yaml").write_text(RECIPE, encoding="utf-8")
    return folder


def begin(corpus: Path, folder: Path, *changes: str, resume: bool = False) -> Run:
    return begin_run(load_recipe(corpus / "stories.yaml", changes), str(folder), resume=resume)


@pytest.fixture(scope="module")
def straight(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = begin(corpus, tmp_path_factory.mktemp("straight") / "run")
    losses = [
        event.metrics["loss"] for event in train_stages(run, CPU) if isinstance(event, Evaluated)
    ]
    run.close()
    assert losses[-1] < losses[0]
    return run.folder.path


def documents(store: Store) -> list[list[int]]:
    return [store.ids("tgt", number).tolist() for number in range(len(store))]


def test_documents_are_stored_whole_in_two_bytes_a_token(straight: Path, corpus: Path) -> None:
    store = Store.open(straight / "data", "train")
    lines = [
        line
        for name in ("one", "two")
        for line in (corpus / name).read_text(encoding="utf-8").splitlines()
    ]
    assert [len(one) for one in documents(store)] == [len(line.split()) for line in lines]
    assert max(map(len, documents(store))) > 50
    assert store.ids("tgt", 0).dtype == "uint16"


@torch.no_grad()
def check_loss(evaluated: Evaluated, run: Run) -> None:
    """Against the mean over every token of every document, one by one."""
    model, total, count = Run(run.folder).open_model(CPU)[0], 0.0, 0
    for ids in documents(Store.open(run.folder.data, "valid")):
        log_probs = model.output(model.embedding("tgt")(torch.tensor([BOS, *ids]))).log_softmax(-1)
        total -= float(log_probs.gather(1, torch.tensor([*ids, EOS])[:, None]).sum())
        count += len(ids) + 1
    assert evaluated.metrics["loss"] == pytest.approx(total / count, rel=1e-5)
    assert evaluated.metrics["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)


@pytest.mark.parametrize("across", [True, False])
def test_validation_is_the_mean_over_every_token_of_whole_documents(
    corpus: Path, tmp_path: Path, across: bool
) -> None:
    run = begin(
        corpus,
        tmp_path / "run",
        "training.max_updates=4",
        f"batch.across_documents={str(across).lower()}",
    )
    (evaluated,) = (event for event in train_stages(run, CPU) if isinstance(event, Evaluated))
    run.close()
    check_loss(evaluated, run)


@pytest.mark.parametrize("updates", [9, 25])
def test_stopped_and_resumed_the_training_is_the_same_bit_for_bit(
    corpus: Path, straight: Path, tmp_path: Path, updates: int
) -> None:
    run = begin(corpus, tmp_path / "run")
    events = train_stages(run, CPU)
    while not isinstance(event := next(events), Step) or event.update < updates:
        pass
    events.close()  # as if the process had been killed: nothing is saved
    run.close()
    assert not (tmp_path / "run/result.json").exists()
    resumed = begin(corpus, tmp_path / "run", resume=True)
    assert [*train_stages(resumed, CPU, resume=True)]
    resumed.close()
    assert differences(tmp_path / "run", straight) == []
    assert max(record["epoch"] for record in logged(straight) if record["event"] == "step") >= 2


def test_a_recipe_that_cannot_have_blocks_is_refused(corpus: Path) -> None:
    for change in (
        "data.over_long=truncate",
        "tokenizer={kind: bpe, vocab_size: 60, sampling: 0.1}",
    ):
        with pytest.raises(
            RecipeError, match=r"`batch.block_tokens`: .* set `data.over_long` to drop"
        ):
            load_recipe(corpus / "stories.yaml", [change])
    changes = ["task=translation", "data.train.src=[a, b]", "data.valid.src=c"]
    with pytest.raises(
        RecipeError,
        match="require a task whose only column is tgt, but translation has src and tgt; remove the key",
    ):
        load_recipe(corpus / "stories.yaml", changes)
    stages = "stages=[{name: short, batch: {block_tokens: 4}}, {name: long}]"
    assert [
        one.batch.block_tokens
        for one in load_recipe(corpus / "stories.yaml", [stages]).by_stage().values()
    ] == [4, 8]
    apart = load_recipe(
        corpus / "stories.yaml",
        ["stages=[{name: words, batch: {block_tokens: null}}, {name: text}]"],
    )
    assert [[one.name for one in text.stages] for text in apart.texts().values()] == [
        ["text"],
        ["words"],
    ]
