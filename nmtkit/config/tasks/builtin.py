"""The tasks that come with nmtkit: their names, the columns of their examples, and their metrics."""

from nmtkit.config.tasks.task import TASKS, GenerationTask, LabellingTask
from nmtkit.core.columns import Column

TRANSLATION = TASKS.register("translation")(
    GenerationTask(
        name="translation",
        command="translate",
        columns=(
            Column("src", plural="sources"),
            Column("tgt", required=("train", "valid"), plural="targets"),
        ),
        done="translated",
        result="translation",
        validation_metrics=("bleu",),
        test_metrics=("bleu", "chrf"),
        demo="demo",
        presets="preset-",
    )
)


CLASSIFICATION = TASKS.register("classification")(
    LabellingTask(
        name="classification",
        command="classify",
        about="Classify texts: one label for each line.",
        columns=(
            Column("src", plural="texts"),
            Column("labels", "label", required=("train", "valid")),
        ),
        done="classified",
        result="label",
        test_metrics=("accuracy", "f1"),
        presets="preset-classes-",
    )
)


LANGUAGE_MODELLING = TASKS.register("language-modelling")(
    GenerationTask(
        name="language-modelling",
        command="generate",
        about="Continue texts: each line is the beginning of a text, which may be empty.",
        columns=(Column("tgt", required=("train", "valid"), plural="texts"),),
        references="",
        done="continued",
        result="text",
        presets="preset-lm-",
    )
)


_ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")

SUMMARIZATION = TASKS.register("summarization")(
    GenerationTask(
        name="summarization",
        command="summarize",
        columns=(
            Column("src", plural="articles"),
            Column("tgt", required=("train", "valid"), plural="summaries"),
        ),
        done="summarized",
        result="summary",
        fields=("article", "summary"),
        validation_metrics=_ROUGE,
        best_metric="rougeL",
        test_metrics=_ROUGE,
        monolingual=True,
        truncates_sources=True,
        demo="demo-news-pointer-generator",
        presets="preset-summaries-",
    )
)
