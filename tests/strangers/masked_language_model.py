"""A masked language model from outside: a word in five is hidden, and told by those around it (Devlin et al. 2019)."""

from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from nmtkit.config.tasks.task import TASKS, Task
from nmtkit.core.columns import Column
from nmtkit.models.base import MODELS, Model, ModelConfig, ModelOutput
from nmtkit.training.losses.likelihood import Likelihood
from nmtkit.training.losses.objective import OBJECTIVES


@MODELS.register("masked-lm")
class MaskedLanguageModel(Model):
    class Config(ModelConfig):
        kind: Literal["masked-lm"] = "masked-lm"
        hidden_size: int = 32

    output_column = "src"

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        self.src_embedding = nn.Embedding(sizes["src"], config.hidden_size)
        self.around = nn.Conv1d(config.hidden_size, config.hidden_size, kernel_size=3, padding=1)
        self.output = nn.Linear(config.hidden_size, sizes["src"])

    def read(self, batch, need_attention=False):
        words = self.src_embedding(batch.inputs.ids) * batch.inputs.mask[..., None]  # (B,S,H)
        return ModelOutput(torch.relu(self.around(words.mT).mT)), None


@OBJECTIVES.register("masking")
class Masking(Likelihood):
    replaces_likelihood = True

    def corrupt(self, batch, generator, tokenizers):
        (mask,) = tokenizers["src"].vocabulary.ids(["<mask>"])
        ids, hidden = (
            batch.inputs.ids,
            torch.rand(batch.inputs.ids.shape, generator=generator) < 0.2,
        )
        hidden &= batch.inputs.mask
        inputs = replace(batch.inputs, ids=ids.masked_fill(hidden, mask))
        return replace(batch, inputs=inputs, labels=ids.masked_fill(~hidden, -1))


TASKS.register("masking")(Task(name="masking", columns=(Column("src"),)))
