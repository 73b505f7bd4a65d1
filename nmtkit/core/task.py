"""Tasks: all that differs between those that a recipe can name, in one table."""

from dataclasses import dataclass

from nmtkit.core.registry import Registry

TASKS: Registry["Task"] = Registry("task")


@dataclass(frozen=True)
class Task:
    """One task."""

    name: str
    command: str
    """The command that does the task with a trained model."""
    sides: tuple[str, str]
    """The texts of the two sides, in the plural."""
    done: str
    result: str
    """What was done with a line ("translated"), and what it became ("translation")."""
    fields: tuple[str, str]
    """The keys of the two sides in JSON lines."""
    validation_metrics: tuple[str, ...]
    """The metrics of validation beside `loss` and `perplexity`; a recipe may name others."""
    test_metrics: tuple[str, ...]
    """The metrics of the test set."""
    monolingual: bool
    """Whether both sides are in one language: then the target is short, and an empty one is a fault."""
    truncates_sources: bool
    """Whether a model that was trained on the beginnings of sources reads the beginnings; else it reads all."""
    demo: str
    """The recipe that shows it."""
    presets: str = ""
    """How the names of its presets begin, before the size; empty where it has none."""


TRANSLATION = TASKS.register("translation")(
    Task(
        name="translation",
        command="translate",
        sides=("sources", "targets"),
        done="translated",
        result="translation",
        fields=("src", "tgt"),
        validation_metrics=("bleu",),
        test_metrics=("bleu", "chrf"),
        monolingual=False,
        truncates_sources=False,
        demo="demo",
        presets="preset-",
    )
)

_ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")

SUMMARIZATION = TASKS.register("summarization")(
    Task(
        name="summarization",
        command="summarize",
        sides=("articles", "summaries"),
        done="summarized",
        result="summary",
        fields=("article", "summary"),
        validation_metrics=_ROUGE,
        test_metrics=_ROUGE,
        monolingual=True,
        truncates_sources=True,
        demo="demo-news-pointer-generator",
        presets="preset-summaries-",
    )
)
