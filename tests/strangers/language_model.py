"""A language model from outside: one causal self-attention over the words so far (Vaswani et al. 2017, eq. 1)."""

from typing import Literal

import torch.nn.functional as F
from torch import nn

from nmtkit.config.tasks.task import TASKS, GenerationTask
from nmtkit.core.columns import Column
from nmtkit.layers.transformer import SelfAttention, SinusoidalPositions
from nmtkit.models.abilities import ParallelPrefill
from nmtkit.models.base import MODELS, ModelConfig, ModelOutput


@MODELS.register("tiny-lm")
class TinyLanguageModel(ParallelPrefill):
    class Config(ModelConfig):
        kind: Literal["tiny-lm"] = "tiny-lm"
        hidden_size: int = 32
        heads: int = 2
        attention_dropout: float = 0.0

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        self.tgt_embedding = nn.Embedding(sizes["tgt"], config.hidden_size)
        self.positions, self.attention = (
            SinusoidalPositions(config.hidden_size),
            SelfAttention(config),
        )
        self.output = nn.Linear(config.hidden_size, sizes["tgt"])

    def advance(self, tokens, state, memory, cache, need_attention=False):
        words = self.tgt_embedding(tokens).view(
            len(memory.mask), -1, self.config.hidden_size
        )  # (B,K,H)
        words = words + F.embedding(cache.positions(), self.positions(cache.reach))
        return ModelOutput((words + self.attention.step(words, cache, 0)).flatten(0, 1)), state


TASKS.register("language modelling")(
    GenerationTask(
        name="language modelling", command="continue", columns=(Column("tgt"),), references=""
    )
)
