"""Language modelling: running text, of which a model predicts the next word, or words that were hidden."""

from nmtkit.core.columns import Column
from nmtkit.tasks.generation import GenerationTask
from nmtkit.tasks.task import TASKS

LANGUAGE_MODELLING = TASKS.register("language-modelling")(
    GenerationTask(
        name="language-modelling",
        command="generate",
        about="Continue texts: each line is a beginning; an empty one begins from nothing.",
        columns=(Column("tgt", required=("train", "valid"), plural="texts"),),
        references="",
        done="continued",
        result="text",
        presets="preset-lm-",
    )
)
