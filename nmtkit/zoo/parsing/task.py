"""The parsing task: converting a sentence to its constituency tree in linear form."""

from nmtkit.config.tasks.task import TASKS, GenerationTask
from nmtkit.core.columns import Column

PARSING = TASKS.register("parsing")(
    GenerationTask(
        name="parsing",
        command="parse",
        columns=(
            Column("src", plural="sentences"),
            Column("tgt", required=("train", "valid"), plural="trees"),
        ),
        done="parsed",
        result="tree",
        validation_metrics=("bracket-f1", "bracket-exact"),
        test_metrics=("bracket-f1", "bracket-precision", "bracket-recall", "bracket-exact"),
        search={"rules": ["brackets"], "max_length_ratio": 6.0},
        demo="demo-parsing",
    )
)
