"""The neural Turing machine: Graves, Wayne and Danihelka 2014, "Neural Turing machines", as a language model.

A controller reads word x_t and r_{t-1}, what was found in a memory M, a matrix, at the word before. With its state h_t
it moves heads over the rows of M, its slots; w_t(i) says how much of a head is on slot i. A head that writes erases e_t
and adds a_t, then one that reads finds r_t (sections 3.1 and 3.2):

    M~_t(i) = M_{t-1}(i) * (1 - w_t(i) e_t)             M_t(i) = M~_t(i) + w_t(i) a_t           equations 3, 4
    r_t = sum_i w_t(i) M_t(i)                                                                   equation 2

A head goes to slots that resemble a key k, or stays where it was; from there it shifts to neighbours (section 3.3):

    w^c = softmax_i(beta K[k, M(i)])                    K[u, v] = u . v / (|u| |v|)             equations 5, 6
    w^g = g w^c + (1 - g) w_{t-1}                       w~(i) = sum_j w^g(j) s(i - j)           equations 7, 8
    w_t(i) = w~(i)^gamma / sum_j w~(j)^gamma            i - j is counted round the ring         equation 9

All of this is linear in h_t and then kept in its range: beta by softplus, gamma by 1 + softplus, g and e by sigmoids, s
by a softmax, a by tanh. M(i) in equation 5 is M_{t-1}(i) for a head that writes, M_t(i) for one that reads.

The paper leaves open how a text and training begin. Here all heads begin on the first slot, r is zero, and M a small
constant (Collier and Beel 2018, "Implementing neural Turing machines"). g is the sigmoid of a number less 2: a head
that has learned nothing stays about where it was. The output layer reads a linear map of [h_t; r_t].
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.core.settings import Field, Width
from nmtkit.layers.elementary import Dropout, at_least_float32
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import build_rnn, init_weights, rnn_step
from nmtkit.models.base import (
    MODELS,
    Decoder,
    DecoderState,
    Memory,
    ModelConfig,
    ModelOutput,
    VocabularySizes,
)

SHIFT = 1
"""Maximum shift of a head per step in either direction, in slots."""
EMPTY, LEAST, STAY = 1e-6, 1e-20, 2.0
"""Initial memory value; minimum w~ for its logarithm; initial bias that closes g."""


class NtmConfig(ModelConfig):
    """The paper's machines have 100 units, a memory of 128 x 20, and one head of each kind, or several."""

    kind: Literal["ntm"] = "ntm"
    """Which model."""
    embedding_size: Width = Field(default=256, ge=1)
    """Size of the embeddings."""
    controller: Literal["lstm", "feedforward"] = "lstm"
    """Controller of the heads: an LSTM layer, or a tanh layer without its own memory."""
    hidden_size: Width = Field(default=256, ge=1)
    """Units of the controller."""
    memory_slots: Width = Field(default=128, ge=1)
    """Rows of the memory (N)."""
    memory_width: Width = Field(default=64, ge=1)
    """Size of a memory row (M)."""
    heads: int = Field(default=1, ge=1, le=64)
    """Number of read heads, and of write heads."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on embeddings and on the input of the output layer."""
    tie: ClassVar[str] = "decoder"  # embedding and output layer share one matrix


@dataclass(frozen=True)
class NtmState(DecoderState):
    """The machine's state after a word, with S slots of size W and R heads of each kind."""

    hidden: Tensor  # of the controller, (N,L,H); L is 0 for a feed-forward one
    cell: Tensor | None  # (N,L,H)
    heads: Tensor  # w, (N,2R,S), of those that write first
    read: Tensor  # r, (N,R*W)
    slots: Tensor  # M, (N,S,W)


@MODELS.register("ntm")
class Ntm(Decoder[Memory, NtmState]):
    """A controller with a memory that it writes and reads; see the module docstring."""

    Config = NtmConfig

    def __init__(self, config: NtmConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.size, width, hidden = config, config.embedding_size, config.hidden_size
        reads = config.heads * config.memory_width
        self.tgt_embedding = nn.Embedding(sizes["tgt"], width)
        self.decoder: nn.Module = nn.Linear(width + reads, hidden)
        if config.controller == "lstm":
            self.decoder = build_rnn("lstm", width + reads, hidden)
        moves = reads + config.heads * (3 + 2 * SHIFT + 1)
        self.decoder_heads = nn.ModuleList(
            [nn.Linear(hidden, 2 * reads + moves), nn.Linear(hidden, moves)]
        )
        self.decoder_last = nn.Linear(hidden + reads, width)
        self.output = nn.Linear(width, sizes["tgt"])
        init_weights(self, "xavier")
        self.tie_output()
        self.dropout = Dropout(config.dropout)

    def start(self, memory: Memory) -> NtmState:
        """Returns the initial state: an unwritten memory with all heads on the first slot."""
        size, weight, count = self.size, self.tgt_embedding.weight, len(memory.mask)
        zeros = weight.new_zeros(count, int(size.controller == "lstm"), size.hidden_size)
        slots = weight.new_full(
            (count, size.memory_slots, size.memory_width), EMPTY, dtype=at_least_float32(weight)
        )
        heads = F.pad(slots.new_ones(count, 2 * size.heads, 1), (0, size.memory_slots - 1))
        return NtmState(
            zeros, zeros, heads, slots.new_zeros(count, size.heads * size.memory_width), slots
        )

    def advance(
        self,
        tokens: Tensor,
        state: NtmState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, NtmState]:
        """One word."""
        words, hidden, cell = self.dropout(self.tgt_embedding(tokens)), state.hidden, state.cell
        with torch.autocast(tokens.device.type, enabled=False):  # what rounding loses would add up
            inputs = torch.cat([words, state.read.to(words.dtype)], 1)
            if isinstance(self.decoder, nn.RNNBase):
                hidden, cell = rnn_step(self.decoder, inputs, hidden, cell)
            top = (
                hidden[:, -1]
                if isinstance(self.decoder, nn.RNNBase)
                else torch.tanh(self.decoder(inputs))
            )
            (writing, reading), width = state.heads.chunk(2, 1), self.size.memory_width
            told = (of_kind(top).to(state.slots.dtype) for of_kind in self.decoder_heads)
            to_write, to_read = (
                numbers.unflatten(1, (self.size.heads, -1)) for numbers in told
            )  # (N,R,*)
            writing = move(writing, to_write[:, :, 2 * width :], state.slots)
            slots = write(state.slots, writing, *to_write[:, :, : 2 * width].chunk(2, 2))
            reading = move(reading, to_read, slots)
            read = (reading @ slots).flatten(1)  # equation 2
            found = self.decoder_last(torch.cat([top, read.to(top.dtype)], 1))
        return ModelOutput(self.dropout(found)), NtmState(
            hidden, cell, torch.cat([writing, reading], 1), read, slots
        )


def move(heads: Tensor, moves: Tensor, slots: Tensor) -> Tensor:
    """Returns w_t of R heads, `(N,R,S)`, from w_{t-1} and M `(N,S,W)`.

    `moves` `(N,R,W+3+2D+1)` become k, beta, g, gamma and the s of D slots back to D slots on.
    """
    key, beta, g, gamma, shifts = torch.split(
        moves, [slots.shape[2], 1, 1, 1, moves.shape[2] - slots.shape[2] - 3], 2
    )
    likeness = F.normalize(key, dim=2) @ F.normalize(slots, dim=2).mT  # equation 6
    by_content = torch.softmax(F.softplus(beta) * likeness, 2)  # equation 5
    gated = torch.lerp(heads, by_content, torch.sigmoid(g - STAY))  # equation 7
    steps = [gated.roll(step - shifts.shape[2] // 2, 2) for step in range(shifts.shape[2])]
    shifted = (torch.stack(steps, 3) * torch.softmax(shifts, 2)[:, :, None]).sum(3)  # equation 8
    return torch.softmax((1 + F.softplus(gamma)) * shifted.clamp(min=LEAST).log(), 2)  # equation 9


def write(slots: Tensor, heads: Tensor, erase: Tensor, add: Tensor) -> Tensor:
    """M_t from M_{t-1} `(N,S,W)`, w_t `(N,R,S)`, and what becomes e and a `(N,R,W)`; all heads erase, then all add."""
    for head, rates in zip(heads.unbind(1), torch.sigmoid(erase).unbind(1), strict=True):
        slots = slots * (1 - head[:, :, None] * rates[:, None])  # equation 3
    return slots + heads.mT @ torch.tanh(add)  # equation 4
