"""The interface of tasks, which describes everything that differs between the tasks of recipes.

Tasks contain no computations; `nmtkit.inference.answering` computes and scores the answers of a model.
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
    """A task: its names, the columns of its examples, and its metrics. This base class produces no answers."""

    name: str
    command: str = ""
    """The command that runs a trained model for this task; empty if the task has no answers."""
    about: str = ""
    """One sentence about the command, for `--help`; empty if nmtkit defines the command elsewhere."""
    columns: tuple[Column, ...]
    """The columns of an example. The command reads the first one."""
    references: str = ""
    """The column that answers are compared with; empty if only loss and perplexity are measured."""
    done: str = "answered"
    result: str = "answer"
    """The participle ("translated") and the noun ("translation") that messages use for an answer."""
    fields: tuple[str, ...] = ()
    """The JSON keys of the columns, if fetched corpora are JSON lines; otherwise each column is a text file."""
    validation_metrics: tuple[str, ...] = ()
    """The validation metrics in addition to `loss` and `perplexity`; a recipe may set others."""
    best_metric: str = ""
    """The validation metric that selects the best checkpoint. Default: the first of `validation_metrics`, or perplexity
    if there are none."""
    test_metrics: tuple[str, ...] = ()
    """The metrics of the test set."""
    search: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `search` if the recipe sets none."""
    monolingual: bool = False
    """Whether source and target are in the same language; if so, targets are short, and empty ones are errors."""
    truncates_sources: bool = False
    """Whether a model that was trained on truncated sources also reads truncated sources at inference."""
    demo: str = ""
    """The demo recipe of the task; empty if there is none."""
    presets: str = ""
    """Prefix of the names of the task's presets, before the size; empty if there are none."""
    predict: Callable[[Any, Sequence[Any]], Iterable[str]] | None = None
    """Optional function that answers examples, instead of the default for this class.

    It is called with an opened model (`nmtkit.inference.inputs.TextModel`) and examples (`Example`)."""

    @property
    def searches(self) -> bool:
        """Whether models of this task generate text by search, i.e. whether examples have a `tgt`."""
        return any(column.name == "tgt" for column in self.columns)

    def choose_best_metric(self, measured: Sequence[str] = ()) -> str:
        """Returns the metric that selects the best checkpoint if the recipe does not set it.

        `measured` lists the validation metrics that the recipe sets; by default, the metrics of the task are used.
        """
        measured = measured or self.validation_metrics
        if not measured:
            return "perplexity"
        preferred = (self.best_metric, *self.validation_metrics[:1])
        return next((name for name in preferred if name in measured), measured[0])

    def comparable(self, texts: Sequence[str]) -> list[str]:
        """Prepares answers or references for metrics: a label of several words becomes one word."""
        is_label = self.references == "labels" and label_type(self.columns) == "label"
        return ["_".join(text.split()) for text in texts] if is_label else list(texts)


@dataclass(frozen=True, kw_only=True)
class GenerationTask(Task):
    """A task whose model generates the `tgt` of an example by search.

    If the task has no source, the model continues the beginning of a text.
    """

    references: str = "tgt"


@dataclass(frozen=True, kw_only=True)
class LabellingTask(Task):
    """A task whose model predicts the `labels` of an example: one for the whole example, or one for each token."""

    references: str = "labels"
    validation_metrics: tuple[str, ...] = ("accuracy",)
    test_metrics: tuple[str, ...] = ("accuracy",)


def with_settings_of_task(given: Any) -> Any:
    """Returns the values of a recipe, with its task's `search` settings as defaults."""
    task, search = (
        (given.get("task"), given.get("search", {})) if isinstance(given, dict) else (None, None)
    )
    own = TASKS.get(task).search if isinstance(task, str) and task in TASKS.names() else {}
    return {**given, "search": {**own, **search}} if own and isinstance(search, dict) else given
