"""Captioning: a picture, or features of its regions, and a sentence that tells what is to be seen."""

from nmtkit.core.columns import Column
from nmtkit.tasks.generation import GenerationTask
from nmtkit.tasks.task import TASKS

CAPTIONING = TASKS.register("captioning")(
    GenerationTask(
        name="captioning",
        command="caption",
        about="Caption pictures: one sentence for each.",
        columns=(Column("features", "features"), Column("tgt", required=("train", "valid"), plural="captions")),
        done="captioned",
        result="caption",
        validation_metrics=("bleu", "chrf"),
        test_metrics=("bleu1", "bleu2", "bleu3", "bleu", "chrf", "cider"),
        demo="demo-captions",
    )
)
