"""The captioning task: describing an image, given as pixels or as features of its regions, in one sentence."""

from nmtkit.config.tasks.task import TASKS, GenerationTask
from nmtkit.core.columns import Column

TASKS.register("captioning")(
    GenerationTask(
        name="captioning",
        command="caption",
        about="Describe each image in one sentence.",
        columns=(
            Column("features", "features"),
            Column("tgt", required=("train", "valid"), plural="captions"),
        ),
        done="captioned",
        result="caption",
        validation_metrics=("bleu", "chrf"),
        test_metrics=("bleu1", "bleu2", "bleu3", "bleu", "chrf", "cider"),
        demo="demo-captions",
    )
)
