"""Summarization: an article, and its summary in the same language."""

from nmtkit.core.columns import Column
from nmtkit.tasks.generation import GenerationTask
from nmtkit.tasks.task import TASKS

_ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")

SUMMARIZATION = TASKS.register("summarization")(
    GenerationTask(
        name="summarization",
        command="summarize",
        columns=(Column("src", plural="articles"), Column("tgt", required=("train", "valid"), plural="summaries")),
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
