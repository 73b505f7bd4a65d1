"""Text classification by mean word vectors (Joulin et al. 2017, equation 1)."""

from typing import Literal

from torch import nn

from nmtkit.config.tasks.task import TASKS, LabellingTask
from nmtkit.core.columns import Column
from nmtkit.models.base import MODELS, Model, ModelConfig, ModelOutput


@MODELS.register("bag-of-words")
class BagOfWords(Model):
    class Config(ModelConfig):
        kind: Literal["bag-of-words"] = "bag-of-words"
        hidden_size: int = 16

    output_column = "labels"

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        self.src_embedding = nn.Embedding(sizes["src"], config.hidden_size)
        self.output = nn.Linear(config.hidden_size, sizes["labels"])

    def read(self, batch, need_attention=False):
        real = batch.inputs.mask[..., None]  # (B,S,1)
        return ModelOutput((self.src_embedding(batch.inputs.ids) * real).sum(1) / real.sum(1)), None


TASKS.register("sorting")(
    LabellingTask(
        name="sorting",
        command="sort-texts",
        about="Sort texts: one label for each line.",
        columns=(Column("src"), Column("labels", "label", required=("train", "valid"))),
    )
)
