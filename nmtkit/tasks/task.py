"""The contract of a task: all that differs between those that a recipe can name."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nmtkit.core.columns import Column, label_type
from nmtkit.core.registry import Registry

if TYPE_CHECKING:
    from nmtkit.data.text.blocks import Example
    from nmtkit.inference.inputs import TextModel
    from nmtkit.metrics import Options, Score

TASKS: Registry["Task"] = Registry("task")


@dataclass(frozen=True)
class TestResult:
    """A test set, what the model answered to it, and the scores."""

    examples: Sequence["Example"]
    outputs: list[str]
    """The answer to each example; none if the task has no answers."""
    scores: list["Score"]
    """Empty if an example lacks its reference."""
    seconds: float
    """Time that the answers took, without opening the model."""
    cut: int = 0
    """The number of examples of which only the beginning was read, as in training."""
    tokens: int = 0
    """Tokens that a search has written, EOS included."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task: its words, and what it does to examples and scores; alone it answers nothing."""

    name: str
    command: str = ""
    """The command that does the task with a trained model; empty where nothing is answered."""
    about: str = ""
    """What the command does, in a sentence for `--help`; empty where it is a command of nmtkit itself."""
    columns: tuple[Column, ...]
    """What an example consists of. The command reads the first one."""
    references: str = ""
    """The column that answers are compared with; empty where loss and perplexity alone judge."""
    done: str = "answered"
    result: str = "answer"
    """What was done with an example ("translated"), and what it became ("translation")."""
    fields: tuple[str, ...] = ()
    """The keys of its columns, if fetched corpora are JSON lines; else each column is a file of text."""
    validation_metrics: tuple[str, ...] = ()
    """The metrics of validation beside `loss` and `perplexity`; a recipe may name others."""
    best_metric: str = ""
    """The metric of validation that chooses the best checkpoint. Default: the first of `validation_metrics`, or the
    perplexity if it has none."""
    test_metrics: tuple[str, ...] = ()
    """The metrics of the test set."""
    search: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `search` where a recipe has none."""
    monolingual: bool = False
    """Whether source and target are in one language: then the target is short, and an empty one is a fault."""
    truncates_sources: bool = False
    """Whether a model that was trained on the beginnings of sources reads the beginnings; else it reads all."""
    demo: str = ""
    """The recipe that shows it; empty where there is none."""
    presets: str = ""
    """How the names of its presets begin, before the size; empty where it has none."""

    @property
    def searches(self) -> bool:
        """Whether its models write text, which a search finds: whether an example has a `tgt`."""
        return any(column.name == "tgt" for column in self.columns)

    def choose_best_metric(self, measured: Sequence[str] = ()) -> str:
        """The metric that chooses the best checkpoint if the recipe does not name it.

        `measured` are the validation metrics that the recipe names; by default they are the metrics of the task.
        """
        measured = measured or self.validation_metrics
        if not measured:
            return "perplexity"
        preferred = (self.best_metric, *self.validation_metrics[:1])
        return next((name for name in preferred if name in measured), measured[0])

    def read(self, examples: Sequence["Example"]) -> list[Any]:
        """Returns what the model reads of each example: its first column, with its tags and languages if it has any."""
        from nmtkit.inference.requests import Request

        read = []
        for example in examples:
            text = getattr(example, self.columns[0].name)
            if example.tags or any(example.languages):
                text = Request(text, tags=example.tags, languages=example.languages)
            read.append(text)
        return read

    def predict(self, system: "TextModel", examples: Sequence["Example"]) -> Iterator[str]:
        """The answer to each example, in order; here there are none.

        Of an example nothing but the first column need be given. All examples are in memory: commands give them in
        windows.
        """
        return iter(())

    def judge(
        self, system: "TextModel", examples: Sequence["Example"], names: Sequence[str], options: "Options"
    ) -> TestResult:
        """The answers and their scores by some metrics, in validation and test; empty where nothing is answered.

        Loss and perplexity are computed for every task beside it.
        """
        begun = time.monotonic()
        outputs = list(self.predict(system, examples)) if names else []
        seconds = time.monotonic() - begun
        return TestResult(examples, outputs, self.score(outputs, examples, names, options), seconds)

    def score(
        self, outputs: Sequence[str], examples: Sequence["Example"], names: Sequence[str], options: "Options"
    ) -> list["Score"]:
        """The scores of answers by some metrics, in their order; none if an example lacks its reference."""
        from nmtkit.metrics import score_all

        references = [getattr(example, self.references) for example in examples] if names else []
        if not names or None in references:
            return []
        sources = [example.src for example in examples] if "src" in [column.name for column in self.columns] else None
        return score_all(self.comparable(outputs), [self.comparable(references)], names, options, sources)

    def comparable(self, texts: Sequence[str]) -> list[str]:
        """Answers or references as metrics read them: a label of several words is one word."""
        is_label = self.references == "labels" and label_type(self.columns) == "label"
        return ["_".join(text.split()) for text in texts] if is_label else list(texts)


def with_settings_of_task(given: Any) -> Any:
    """A recipe as it was written, with the settings of `search` that its task has where it has none."""
    task, search = (given.get("task"), given.get("search", {})) if isinstance(given, dict) else (None, None)
    own = TASKS.get(task).search if isinstance(task, str) and task in TASKS.names() else {}
    return {**given, "search": {**own, **search}} if own and isinstance(search, dict) else given
