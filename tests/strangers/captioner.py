"""A captioner from outside: a GRU that begins with the mean of the regions' features (Vinyals et al. 2015)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from nmtkit.config.tasks.task import TASKS, GenerationTask
from nmtkit.core.columns import Column
from nmtkit.models.base import MODELS, DecoderState, Memory, ModelConfig, ModelOutput, Seq2Seq


@dataclass(frozen=True)
class Seen(Memory):
    mean: Tensor


@dataclass(frozen=True)
class Hidden(DecoderState):
    state: Tensor


@MODELS.register("captioner")
class Captioner(Seq2Seq):
    class Config(ModelConfig):
        kind: Literal["captioner"] = "captioner"
        hidden_size: int = 32

    has_attention = False

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        self.region = nn.Linear(sizes["features"], config.hidden_size)
        self.tgt_embedding = nn.Embedding(sizes["tgt"], config.hidden_size)
        self.cell = nn.GRUCell(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, sizes["tgt"])

    def encode(self, batch):
        return Seen(
            batch.inputs.mask, batch.inputs.copy, self.region(batch.inputs.features).mean(1)
        )

    def start(self, memory):
        return Hidden(memory.mean)

    def advance(self, tokens, state, memory, cache, need_attention=False):
        hidden = self.cell(self.tgt_embedding(tokens), state.state)
        return ModelOutput(hidden), Hidden(hidden)


columns = (Column("features", "features"), Column("tgt", required=("train", "valid")))
TASKS.register("picturing")(
    GenerationTask(
        name="picturing", command="picture", columns=columns, validation_metrics=("chrf",)
    )
)
