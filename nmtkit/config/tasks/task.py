"""The contract of a task: all that differs between those that a recipe can name.

A task is a description. `nmtkit.inference.answering` finds the answers of a model for it and scores them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nmtkit.core.columns import Column, label_type
from nmtkit.core.registry import Registry

TASKS: Registry["Task"] = Registry(
    "task",
    {
        "translation": "nmtkit.config.tasks.builtin",
        "captioning": "nmtkit.zoo.captioning.task",
        "classification": "nmtkit.config.tasks.builtin",
        "language-modelling": "nmtkit.config.tasks.builtin",
        "parsing": "nmtkit.zoo.parsing.task",
        "summarization": "nmtkit.config.tasks.builtin",
    },
)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task: its words, the columns of its examples, and its metrics; its models answer nothing."""

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
    predict: Callable[[Any, Sequence[Any]], Iterable[str]] | None = None
    """Answers examples in another way than the class of the task does.

    It is called with an opened model (`nmtkit.inference.inputs.TextModel`) and examples (`Example`)."""

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

    def comparable(self, texts: Sequence[str]) -> list[str]:
        """Answers or references as metrics read them: a label of several words is one word."""
        is_label = self.references == "labels" and label_type(self.columns) == "label"
        return ["_".join(text.split()) for text in texts] if is_label else list(texts)


@dataclass(frozen=True, kw_only=True)
class GenerationTask(Task):
    """A task whose model writes the `tgt` of an example, as a search finds it.

    A model that reads nothing goes on with the beginning of a text.
    """

    references: str = "tgt"


@dataclass(frozen=True, kw_only=True)
class LabellingTask(Task):
    """A task whose model predicts the `labels` of an example: one for the example, or one for each of its tokens."""

    references: str = "labels"
    validation_metrics: tuple[str, ...] = ("accuracy",)
    test_metrics: tuple[str, ...] = ("accuracy",)


def with_settings_of_task(given: Any) -> Any:
    """A recipe as it was written, with the settings of `search` that its task has where it has none."""
    task, search = (
        (given.get("task"), given.get("search", {})) if isinstance(given, dict) else (None, None)
    )
    own = TASKS.get(task).search if isinstance(task, str) and task in TASKS.names() else {}
    return {**given, "search": {**own, **search}} if own and isinstance(search, dict) else given
