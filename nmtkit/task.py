"""What a model is for: the words for it, how its output is judged, and how its files are laid out.

A recipe names its task (`task: summarization`). What differs from task to task is asked of this table, nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nmtkit.registry import Registry

TASKS: Registry["Task"] = Registry("task")


@dataclass(frozen=True)
class Task:
    """One task."""

    name: str
    """What recipes call it."""
    command: str
    """The command that does it with a trained model."""
    sides: tuple[str, str]
    """What the texts of the two sides are called, in the plural."""
    done: str
    """What was done with a line: "translated"."""
    result: str
    """What it became: "translation"."""
    fields: tuple[str, str]
    """The keys of the two sides in JSON lines."""
    validated: Mapping[str, bool]
    """What validation measures beside `loss` and `perplexity`, and whether higher is better; names of metrics."""
    tested: tuple[str, ...]
    """The metrics of the test set."""
    in_one_language: bool
    """Whether both sides are in one language: then the target is short, and an empty one is a fault."""
    reads_beginnings: bool
    """Whether a model that was trained on the beginnings of sources reads the beginnings; else it reads all."""
    demo: str
    """The recipe that shows it."""

    def best_metrics(self) -> dict[str, bool]:
        """What may decide which weights are best, and whether higher is better."""
        return {**self.validated, "loss": False, "perplexity": False}


TRANSLATION = TASKS.register("translation")(
    Task(
        name="translation",
        command="translate",
        sides=("sources", "targets"),
        done="translated",
        result="translation",
        fields=("src", "tgt"),
        validated={"bleu": True},
        tested=("bleu", "chrf"),
        in_one_language=False,
        reads_beginnings=False,
        demo="demo",
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
        validated=dict.fromkeys(_ROUGE, True),
        tested=_ROUGE,
        in_one_language=True,
        reads_beginnings=True,
        demo="demo-news-pointer-generator",
    )
)
