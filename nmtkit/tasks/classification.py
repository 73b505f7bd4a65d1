"""Classification: a text, and the one of several labels that it has."""

from nmtkit.core.columns import Column
from nmtkit.tasks.labelling import LabellingTask
from nmtkit.tasks.task import TASKS

CLASSIFICATION = TASKS.register("classification")(
    LabellingTask(
        name="classification",
        command="classify",
        about="Classify texts: one label for each line.",
        columns=(Column("src", plural="texts"), Column("labels", "label", required=("train", "valid"))),
        done="classified",
        result="label",
        test_metrics=("accuracy", "f1"),
        presets="preset-classes-",
    )
)
