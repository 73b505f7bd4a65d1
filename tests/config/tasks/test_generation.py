"""Tasks that write text without reading any, or from features: trained, judged, and used by their commands."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nmtkit.config import Recipe
from nmtkit.config import load as load_recipe
from nmtkit.config.tasks.task import TASKS, GenerationTask
from nmtkit.core.columns import Column
from nmtkit.data.batches.batch import ABSENT, Batch
from nmtkit.experiment.evaluation import evaluate_test_set
from nmtkit.experiment.stages import train_stages
from nmtkit.inference import inputs
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.base import (
    MODELS,
    Decoder,
    DecoderState,
    Memory,
    ModelConfig,
    ModelOutput,
    Seq2Seq,
    VocabularySizes,
)
from nmtkit.runs.run import Run
from nmtkit.training.events import Evaluated
from tests.support.begun_runs import begin_run
from tests.support.commands import Command, lines_in, refused, succeeded, write_lines
from tests.support.registries import keep_members

CPU = torch.device("cpu")


class BigramConfig(ModelConfig):
    kind: Literal["bigram"] = "bigram"


class Bigram(Decoder):
    """The next word depends on the last one."""

    Config = BigramConfig

    def __init__(self, config: BigramConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.tgt_embedding, self.output = (
            nn.Embedding(sizes["tgt"], 16),
            nn.Linear(16, sizes["tgt"]),
        )

    def advance(
        self,
        tokens: Tensor,
        state: DecoderState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, DecoderState]:
        return ModelOutput(self.tgt_embedding(tokens)), state


@dataclass(frozen=True)
class Seen(Memory):
    vector: Tensor


@dataclass(frozen=True)
class Looking(DecoderState):
    vector: Tensor


class DescriberConfig(ModelConfig):
    kind: Literal["describer"] = "describer"


class Describer(Seq2Seq[Seen, Looking]):
    """The next word depends on the last one and on the mean of the features."""

    Config = DescriberConfig
    has_attention = False

    def __init__(self, config: DescriberConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.tgt_embedding, self.output = (
            nn.Embedding(sizes["tgt"], 16),
            nn.Linear(16, sizes["tgt"]),
        )
        self.look = nn.Linear(2, 16)

    def encode(self, batch: Batch) -> Seen:
        real = batch.inputs.mask.unsqueeze(-1)
        return Seen(
            batch.inputs.mask,
            ABSENT,
            self.look((batch.inputs.features * real).sum(1) / real.sum(1)),
        )

    def start(self, memory: Seen) -> Looking:
        return Looking(memory.vector)

    def advance(
        self,
        tokens: Tensor,
        state: Looking,
        memory: Seen,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, Looking]:
        return ModelOutput(torch.tanh(self.tgt_embedding(tokens) + state.vector)), state


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_members(monkeypatch, TASKS, MODELS)
    MODELS.register("bigram")(Bigram)
    MODELS.register("describer")(Describer)
    TASKS.register("writing")(
        GenerationTask(
            name="writing", command="write", about="Go on.", columns=(Column("tgt"),), references=""
        )
    )
    columns = (Column("features", "features"), Column("tgt", required=("train", "valid")))
    metrics = {"validation_metrics": ("bleu",), "test_metrics": ("bleu",)}
    TASKS.register("describing")(
        GenerationTask(
            name="describing", command="describe", about="Describe.", columns=columns, **metrics
        )
    )


def loaded(folder: Path, task: str, model: str, columns: list[str], *training: str) -> Recipe:
    ends = {"features": "npy"}
    splits = [
        f"{split}: {{{', '.join(f'{name}: {split}.{ends.get(name, name)}' for name in columns)}}}"
        for split in ("train", "valid", "test")
    ]
    (folder / "mine.yaml").write_text(
        f"task: {task}\n"
        f"data: {{folder: {folder}, {', '.join(splits)}}}\n"
        "tokenizer: {kind: whitespace, vocab_size: 50}\n"
        f"model: {{kind: {model}}}\n"
        "batch: {batch_tokens: 128}\n"
        "search: {beam_size: 2, max_length: 6}\n"
        f"training: {{lr: 0.02, max_updates: 200, validate_every: 100, {', '.join(training)}}}\n"
    )
    return load_recipe(folder / "mine.yaml")


def trained(given: Recipe, folder: Path) -> tuple[Run, dict[str, float]]:
    """The run, and what the validation found that chose its weights."""
    run = begin_run(given, str(folder / "run"))
    *_, best = (
        event for event in train_stages(run, CPU) if isinstance(event, Evaluated) and event.best
    )
    run.close()
    return run, best.metrics


CYCLE = ["ba be bi bo", "be bi bo", "bi bo", "bo"]


def test_a_language_model_is_judged_by_its_fit_and_goes_on_with_prompts(
    tmp_path: Path, console: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split, count in (("train", 60), ("valid", 8), ("test", 8)):
        write_lines(tmp_path / f"{split}.tgt", [CYCLE[number % 4] for number in range(count)])
    fit = ("best_metric: perplexity",)
    run, metrics = trained(loaded(tmp_path, "writing", "bigram", ["tgt"], *fit), tmp_path)
    # Only the first word is open: four equally likely ones, and 14 predictions of which 4 are such.
    assert metrics["perplexity"] == pytest.approx(4 ** (4 / 14), rel=0.05)
    result = evaluate_test_set(run, CPU)
    assert result is not None
    assert [(score.name, score.value) for score in result.scores][1] == (
        "perplexity",
        pytest.approx(metrics["perplexity"]),
    )
    monkeypatch.setitem(inputs.WINDOW, "cpu", 2)
    prompts = write_lines(tmp_path / "prompts", ["bi", "ba be", "", "be"])
    done = succeeded(console("write", "-m", tmp_path / "run", "--device", "cpu", prompts))
    one, two, free, three = done.out.splitlines()
    assert [one, two, three] == ["bi bo", "ba be bi bo", "be bi bo"]
    assert free in CYCLE
    refused(
        console("evaluate", tmp_path / "run", "--source", prompts, "--ref", prompts),
        "the task writing does not have",
    )


def test_features_are_described_by_the_command(
    tmp_path: Path, console: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"rain": [1.0, 0.0], "sun": [0.0, 1.0], "fog": [-1.0, -1.0]}
    draw = np.random.default_rng(1)
    for split, count in (("train", 90), ("valid", 12), ("test", 12)):
        words = [[*kinds][number % 3] for number in range(count)]
        write_lines(tmp_path / f"{split}.tgt", [f"the {word} is here" for word in words])
        noise = draw.normal(0, 0.1, (count, 4, 2))
        rows = np.array([kinds[word] for word in words])[:, None, :] + noise
        np.save(tmp_path / f"{split}.npy", rows.astype(np.float16))
    given = loaded(tmp_path, "describing", "describer", ["features", "tgt"], "best_metric: bleu")
    run, metrics = trained(given, tmp_path)
    assert metrics.keys() == {"bleu", "loss", "perplexity", "seconds"}
    result = evaluate_test_set(run, CPU)
    assert result is not None
    assert result.scores[0].value > 60
    assert result.answers.n_tokens > 12
    monkeypatch.setitem(inputs.WINDOW, "cpu", 5)
    how = ["describe", "-m", tmp_path / "run", "--device", "cpu"]
    done = succeeded(console(*how, tmp_path / "test.npy", tmp_path / "valid.npy"))
    assert done.out.splitlines()[:12] == result.answers.texts == lines_in(run.folder.test_output)
    assert len(done.out.splitlines()) == 24
    refused(
        console(*how, stdin="some text\n"),
        "features cannot be read from standard input; pass an .npy, .npz or .txt FILE",
    )
    refused(console(*how, write_lines(tmp_path / "words", ["a"])), "cannot be read as .npy or .npz")
