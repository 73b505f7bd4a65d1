"""A model without weights for the tests of search: its log-probabilities stand in a table."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.data.vocabulary import EOS
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.base import DecoderOutput, DecoderState, Memory, ModelConfig, Seq2Seq, VocabularySizes

START = 4
"""The first id of a real word."""


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

    Attention, where asked for, tells the path: row n holds (depth, last token, path), which no two prefixes share.

    Args:
        tables: `(sentences,D,X,X)`, log-probabilities.
    """

    class Config(ModelConfig):
        kind: Literal["table"] = "table"

    def __init__(self, tables: Tensor, has_attention: bool = True) -> None:
        size = tables.shape[-1]
        super().__init__(self.Config(), VocabularySizes(size, size, True))
        self.tables = tables
        self.has_attention = has_attention
        self.rows_seen: list[int] = []
        self.eval()

    def encode(self, batch: Batch) -> Memory:
        table = self.tables.index_select(0, batch.src[:, 0] - START)
        return TableMemory(mask=batch.src_mask, src_extended=batch.src_extended, n_oov=0, table=table)

    def start(self, memory: Memory) -> DecoderState:
        zeros = torch.zeros(memory.mask.shape[0], dtype=torch.long, device=memory.mask.device)
        return TableState(depth=zeros, path=zeros)

    def advance(
        self, tokens: Tensor, state: DecoderState, memory: Memory, cache: KVCache, need_attention: bool = False
    ) -> tuple[DecoderOutput, DecoderState]:
        assert isinstance(state, TableState)
        assert isinstance(memory, TableMemory)
        self.rows_seen.append(len(tokens))
        per_sentence = len(tokens) // memory.mask.shape[0]
        sentence = torch.arange(memory.mask.shape[0], device=tokens.device).repeat_interleave(per_sentence)
        path = (state.path * 31 + tokens) % 1_000_003
        features = memory.table[sentence, state.depth.clamp(max=memory.table.shape[1] - 1), tokens]
        attention = torch.stack([state.depth, tokens, path], 1).to(features.dtype) if need_attention else None
        return DecoderOutput(features, attention), TableState(state.depth + 1, path)

    def logits(self, readout: DecoderOutput, memory: Memory) -> Tensor:
        return readout.features

    def predict(self, readout: DecoderOutput, memory: Memory) -> Tensor:
        return readout.features.clone()


def random_tables(sentences: int, depths: int, size: int, seed: int = 0, spread: float = 1.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    energies = torch.randn(sentences, depths, size, size, generator=generator, dtype=torch.float64) * spread
    return energies.log_softmax(-1)


def sources(*lengths: int) -> Batch:
    """One source for each length, EOS counted; sentence b begins with START + b."""
    src = torch.zeros(len(lengths), max(*lengths, 3), dtype=torch.long)
    for row, length in enumerate(lengths):
        src[row, : length - 1] = START
        src[row, length - 1] = EOS
        src[row, 0] = START + row
    return Batch(src=src, src_mask=src != 0, src_lengths=torch.tensor(lengths), src_extended=src)
