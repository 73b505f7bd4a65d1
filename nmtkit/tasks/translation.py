"""Translation: a text in one language, and the same in another."""

from nmtkit.core.columns import Column
from nmtkit.tasks.task import TASKS, Task

TRANSLATION = TASKS.register("translation")(
    Task(
        name="translation",
        command="translate",
        columns=(Column("src"), Column("tgt", required=("train", "valid"))),
        sides=("sources", "targets"),
        done="translated",
        result="translation",
        fields=("src", "tgt"),
        validation_metrics=("bleu",),
        test_metrics=("bleu", "chrf"),
        demo="demo",
        presets="preset-",
    )
)
