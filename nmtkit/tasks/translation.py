"""Translation: a text in one language, and the same in another."""

from nmtkit.core.columns import Column
from nmtkit.tasks.generation import GenerationTask
from nmtkit.tasks.task import TASKS

TRANSLATION = TASKS.register("translation")(
    GenerationTask(
        name="translation",
        command="translate",
        columns=(Column("src", plural="sources"), Column("tgt", required=("train", "valid"), plural="targets")),
        done="translated",
        result="translation",
        validation_metrics=("bleu",),
        test_metrics=("bleu", "chrf"),
        demo="demo",
        presets="preset-",
    )
)
