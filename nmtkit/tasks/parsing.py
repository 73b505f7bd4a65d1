"""Constituency parsing as translation: a sentence, and its tree in linear form."""

from nmtkit.core.columns import Column
from nmtkit.tasks.generation import GenerationTask
from nmtkit.tasks.task import TASKS

_BRACKETS = ("bracket-f1", "bracket-exact")

PARSING = TASKS.register("parsing")(
    GenerationTask(
        name="parsing",
        command="parse",
        columns=(Column("src", plural="sentences"), Column("tgt", required=("train", "valid"), plural="trees")),
        done="parsed",
        result="tree",
        validation_metrics=_BRACKETS,
        test_metrics=("bracket-f1", "bracket-precision", "bracket-recall", "bracket-exact"),
        search={"brackets": True, "max_length_ratio": 6.0},
        demo="demo-parsing",
    )
)
