"""A model without weights for the tests of search: its log-probabilities stand in a table; and searches with it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch, collate
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig, SearchConfig, change_search
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.base import (
    DecoderState,
    Memory,
    ModelConfig,
    ModelOutput,
    Seq2Seq,
    VocabularySizes,
)

START = 4
"""The first id of a real word."""
A, B, C, D = 4, 5, 6, 7
"""The words of tables that are written by hand."""
Attend = Callable[[Tensor, Tensor], Tensor]
"""Makes attention `(N,S)` of log-probabilities `(N,X)` and last tokens `(N,)`."""


@dataclass(frozen=True)
class TableMemory(Memory):
    table: Tensor
    """`(B,D,X,X)`: log-probabilities of the next token by depth (the last one for all deeper) and last token."""


@dataclass(frozen=True)
class TableState(DecoderState):
    depth: Tensor
    """`(N,)`."""
    path: Tensor
    """`(N,)`: a number that depends on all tokens so far; a wrong parent gives a wrong one."""


class TableModel(Seq2Seq):
    """Log-probabilities by sentence, depth and last token; sentence b is the one whose first source id is START + b.

    Args:
        tables: `(sentences,D,X,X)`, log-probabilities.
        attend: without it attention tells the path: row n holds (depth, last token, path), which no two prefixes share.
    """

    class Config(ModelConfig):
        kind: Literal["table"] = "table"

    def __init__(
        self, tables: Tensor, attend: Attend | None = None, has_attention: bool = True
    ) -> None:
        size = tables.shape[-1]
        super().__init__(self.Config(), VocabularySizes({"src": size, "tgt": size}, shared=True))
        self.tables, self.attend = tables, attend
        self.has_attention = has_attention
        self.rows_seen: list[int] = []
        self.eval()

    def encode(self, batch: Batch) -> Memory:
        table = self.tables.index_select(0, batch.inputs.ids[:, 0] - START)
        return TableMemory(mask=batch.inputs.mask, copy=batch.inputs.copy, table=table)

    def start(self, memory: Memory) -> DecoderState:
        zeros = torch.zeros(memory.mask.shape[0], dtype=torch.long, device=memory.mask.device)
        return TableState(depth=zeros, path=zeros)

    def advance(
        self,
        tokens: Tensor,
        state: DecoderState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, DecoderState]:
        self.rows_seen.append(len(tokens))
        per_sentence = len(tokens) // memory.mask.shape[0]
        sentence = torch.arange(memory.mask.shape[0], device=tokens.device).repeat_interleave(
            per_sentence
        )
        path = (state.path * 31 + tokens) % 1_000_003
        features = memory.table[sentence, state.depth.clamp(max=memory.table.shape[1] - 1), tokens]
        attention = None
        if need_attention:
            path_so_far = torch.stack([state.depth, tokens, path], 1).to(features.dtype)
            attention = path_so_far if self.attend is None else self.attend(features, tokens)
        return ModelOutput(features, attention), TableState(state.depth + 1, path)

    def logits(self, readout: ModelOutput, memory: Memory) -> Tensor:
        return readout.features

    def predict(self, readout: ModelOutput, memory: Memory) -> Tensor:
        return readout.features.clone()


def random_tables(
    sentences: int, depths: int, size: int, seed: int = 0, spread: float = 1.5
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    energies = (
        torch.randn(sentences, depths, size, size, generator=generator, dtype=torch.float64)
        * spread
    )
    return energies.log_softmax(-1)


def sources(*lengths: int) -> Batch:
    """One source for each length, EOS counted; sentence b begins with START + b."""
    rows = [[START + row, *[START] * (length - 2)] for row, length in enumerate(lengths)]
    return collate(rows, width=max(*lengths, 3))


def by_hand(
    rows: dict[int, dict[int, float]], end_at: int | None = None, attend: Attend | None = None
) -> TableModel:
    """A model of one sentence, from probabilities of the next token by last token.

    They are the same at every depth; from `end_at` on only the end follows.
    """
    table = torch.full(
        (1, 1 if end_at is None else end_at + 1, 8, 8), -math.inf, dtype=torch.float64
    )
    for last, following in rows.items():
        for token, probability in following.items():
            table[0, :end_at, last, token] = math.log(probability)
    if end_at is not None:
        table[0, end_at, :, EOS] = 0.0
    return TableModel(table, attend)


def many() -> tuple[TableModel, Batch]:
    """Twenty sentences that end after 1 to 12 tokens."""
    tables = random_tables(20, 6, 40, spread=1.5)
    tables[..., EOS] += torch.linspace(-1.0, 4.0, 20, dtype=torch.float64)[:, None, None]
    return TableModel(tables.log_softmax(-1)), sources(*(3 + number % 4 for number in range(20)))


def unlimited(**settings: object) -> SearchConfig:
    """No limit by the source, so that `max_length` alone counts."""
    return change_search(BeamConfig(), {"max_length": 12, "max_length_offset": 100, **settings})


def search(model: TableModel, n_best: int = 1, **settings: object) -> list[Hypothesis]:
    """The best hypotheses for the one sentence of a model; its source has two words."""
    (hypotheses,) = search_batch(model, sources(3), change_search(BeamConfig(), settings), n_best)
    return hypotheses
