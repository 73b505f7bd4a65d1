"""Labels of examples and of their words: trained, judged by accuracy, and given by the command of the task."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from nmtkit.config import Recipe
from nmtkit.config import load as load_recipe
from nmtkit.config.tasks.task import TASKS, LabellingTask
from nmtkit.core.columns import Column
from nmtkit.core.settings import Field, Width
from nmtkit.data.batches.batch import Batch
from nmtkit.data.text.reading import read_pairs
from nmtkit.experiment.evaluation import evaluate_test_set
from nmtkit.experiment.stages import train_stages
from nmtkit.inference import inputs
from nmtkit.inference.answering import answer
from nmtkit.inference.loading.opening import load_from_options
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.models.base import MODELS, Model, ModelConfig, ModelOutput, VocabularySizes
from nmtkit.runs.run import Run
from nmtkit.training.events import Evaluated
from tests.support.begun_runs import begin_run
from tests.support.commands import Command, lines_in, refused, succeeded, write_lines
from tests.support.registries import keep_members

CPU = torch.device("cpu")


class LabellerConfig(ModelConfig):
    kind: Literal["labeller"] = "labeller"
    hidden_size: Width = Field(default=16, ge=1)
    one: bool = True


class Labeller(Model):
    """Labels each word by its vector, or the text by the mean of them."""

    Config = LabellerConfig
    output_column = "labels"

    def __init__(self, config: LabellerConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.one = config.one
        self.src_embedding = nn.Embedding(sizes["src"], config.hidden_size)
        self.output = nn.Linear(config.hidden_size, sizes["labels"])

    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, None]:
        real = batch.inputs.mask.unsqueeze(-1)
        vectors = self.src_embedding(batch.inputs.ids) * real
        return ModelOutput(vectors.sum(1) / real.sum(1) if self.one else vectors), None

    def logits(self, output: ModelOutput, memory: None) -> Tensor:
        return self.output(output.features)


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_members(monkeypatch, TASKS, MODELS)
    MODELS.register("labeller")(Labeller)
    for name, command, kind in (("sorting", "sort-texts", "label"), ("tagging", "tag", "labels")):
        columns = (Column("src"), Column("labels", kind, required=("train", "valid")))
        TASKS.register(name)(
            LabellingTask(name=name, command=command, about=f"{command} texts.", columns=columns)
        )


NAMES = {"k": "New York", "m": "Rome", "s": "Oslo"}


def class_of(words: list[str]) -> str:
    """The place that a text names by its only word with a consonant of `NAMES`."""
    return next(NAMES[word[0]] for word in words if word[0] in NAMES)


def tags_of(words: list[str]) -> str:
    return " ".join("NAME" if word[0] in NAMES else word[-1].upper() for word in words)


def texts(count: int, seed: int) -> list[list[str]]:
    draw = torch.Generator().manual_seed(seed)

    def pick(some: str) -> str:
        return some[int(torch.randint(len(some), (), generator=draw))]

    lines = []
    for _ in range(count):
        words = [
            pick("bdf") + pick("aeo") for _ in range(int(torch.randint(1, 7, (), generator=draw)))
        ]
        words.insert(int(torch.randint(len(words), (), generator=draw)), pick("kms") + pick("aeo"))
        lines.append(words)
    return lines


def labelled(folder: Path, task: str, label: Callable[[list[str]], str]) -> Recipe:
    """A recipe for texts and their labels in a folder."""
    for split, count in (("train", 300), ("valid", 40), ("test", 60)):
        lines = texts(count, count)
        write_lines(folder / f"{split}.src", [" ".join(words) for words in lines])
        write_lines(folder / f"{split}.labels", [label(words) for words in lines])
    splits = ", ".join(
        f"{split}: {{src: {split}.src, labels: {split}.labels}}"
        for split in ("train", "valid", "test")
    )
    (folder / "mine.yaml").write_text(
        f"task: {task}\n"
        f"data: {{folder: {folder}, {splits}}}\n"
        "tokenizer: {kind: whitespace, vocab_size: 100}\n"
        f"model: {{kind: labeller, one: {str(task == 'sorting').lower()}}}\n"
        "batch: {batch_tokens: 256}\n"
        "training: {lr: 0.02, max_updates: 150, validate_every: 75, best_metric: accuracy}\n"
    )
    return load_recipe(folder / "mine.yaml")


def trained_run(
    folder: Path, task: str, label: Callable[[list[str]], str]
) -> tuple[Run, list[Evaluated]]:
    run = begin_run(labelled(folder, task, label), str(folder / "run"))
    events = [event for event in train_stages(run, CPU) if isinstance(event, Evaluated)]
    run.close()
    return run, events


@pytest.mark.parametrize(
    ("task", "command", "label"),
    [("sorting", "sort-texts", class_of), ("tagging", "tag", tags_of)],
    ids=["classifier", "tagger"],
)
def test_labels_are_learned_judged_and_given(
    task: str,
    command: str,
    label: Callable[[list[str]], str],
    tmp_path: Path,
    console: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, validations = trained_run(tmp_path, task, label)
    assert [one.metrics.keys() for one in validations] == [
        {"accuracy", "loss", "perplexity", "seconds"}
    ] * 2
    assert validations[-1].metrics["accuracy"] > 95
    result = evaluate_test_set(run, CPU)
    assert result is not None
    (score,) = result.scores
    wanted = lines_in(tmp_path / "test.labels")
    pairs = [
        (one, other)
        for given, right in zip(result.answers.texts, wanted, strict=True)
        for one, other in (
            zip(given.split(), right.split(), strict=True)
            if task == "tagging"
            else [(given, right)]
        )
    ]
    assert score.name == "Accuracy"
    assert score.value == pytest.approx(
        100 * sum(one == other for one, other in pairs) / len(pairs)
    )
    assert score.value > 95
    assert lines_in(run.folder.test_output) == result.answers.texts

    options = DecodingOptions(tmp_path / "run", device="cpu", max_source_tokens=3)
    examples = list(read_pairs(run.recipe.data.splits()["test"]))
    n_long = sum(len(example.src.split()) > 3 for example in examples)
    answers = answer(TASKS.get(task), load_from_options(options, task), examples)
    assert 0 < answers.n_truncated == n_long < len(examples)

    monkeypatch.setitem(inputs.WINDOW, "cpu", 7)  # so that the text is several windows
    how = ["-m", tmp_path / "run", "--device", "cpu"]
    done = succeeded(console(command, *how, tmp_path / "test.src", "--batch-tokens", "9"))
    assert done.out.splitlines() == result.answers.texts, "the batches make no difference"
    assert "--beam-size" not in succeeded(console(command, "--help")).out
    refused(console("translate", *how), f"was trained for {task}; use `nmtkit {command}`")
    files = ["--source", tmp_path / "test.src", "--ref", tmp_path / "test.labels"]
    record = json.loads(succeeded(console("evaluate", tmp_path / "run", *files, "--json")).out)
    assert record["scores"][0]["value"] == pytest.approx(score.value)
    refused(
        console("evaluate", tmp_path / "run", *files, "--beam-size", "2"),
        "labeller does not generate text",
    )


def test_an_empty_line_has_no_words_to_be_tagged(tmp_path: Path, console: Command) -> None:
    trained_run(tmp_path, "tagging", tags_of)
    text = write_lines(tmp_path / "text", ["", "ba ka", ""])
    assert (
        succeeded(console("tag", "-m", tmp_path / "run", "--device", "cpu", text)).out
        == "\nA NAME\n\n"
    )
