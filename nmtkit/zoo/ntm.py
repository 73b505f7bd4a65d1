"""The neural Turing machine: Graves, Wayne and Danihelka 2014, "Neural Turing machines", as a language model.

A controller reads the word x_t and the vector r_{t-1}, which was read from the memory matrix M at the previous word.
The controller's state h_t moves heads over the rows of M, which are called slots; w_t(i) is the weight of slot i for a
head. First the write heads erase e_t and add a_t, then the read heads return r_t (sections 3.1 and 3.2):

    M~_t(i) = M_{t-1}(i) * (1 - w_t(i) e_t)             M_t(i) = M~_t(i) + w_t(i) a_t           equations 3, 4
    r_t = sum_i w_t(i) M_t(i)                                                                   equation 2

A head moves to slots that resemble a key k, or stays where it was; from there it shifts to neighbours (section 3.3):

    w^c = softmax_i(beta K[k, M(i)])                    K[u, v] = u . v / (|u| |v|)             equations 5, 6
    w^g = g w^c + (1 - g) w_{t-1}                       w~(i) = sum_j w^g(j) s(i - j)           equations 7, 8
    w_t(i) = w~(i)^gamma / sum_j w~(j)^gamma            i - j is modulo the number of slots         equation 9

k, beta, g, s, gamma, e and a are linear maps of h_t. All except k pass through a function that limits their range:
softplus for beta, 1 + softplus for gamma, sigmoid for g and e, softmax for s, tanh for a. M(i) in equation 5 is
M_{t-1}(i) for write heads and M_t(i) for read heads.

The paper does not specify the initial state. Here all heads start on the first slot, r is zero, and M is a small
constant (Collier and Beel 2018, "Implementing neural Turing machines"). 2 is subtracted from the input of g's sigmoid,
so untrained heads stay almost where they were. The output layer reads a linear map of [h_t; r_t].
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
"""Initial value of the memory; lower bound on w~ before its logarithm is taken; and offset that keeps g nearly closed
at first."""


class NtmConfig(ModelConfig):
    """Settings of the neural Turing machine.

    The paper's machines have 100 units, a memory of 128 x 20, and one or more heads of each kind.
    """

    kind: Literal["ntm"] = "ntm"
    embedding_size: Width = Field(default=256, ge=1)
    """Size of the embeddings."""
    controller: Literal["lstm", "feedforward"] = "lstm"
    """Controller of the heads: an LSTM layer, or a feed-forward tanh layer, which has no memory of its own; both are in
    Graves et al. 2014, section 3.4."""
    hidden_size: Width = Field(default=256, ge=1)
    """Number of units in the controller."""
    memory_slots: Width = Field(default=128, ge=1)
    """Number of rows in the memory (N)."""
    memory_width: Width = Field(default=64, ge=1)
    """Size of a memory row (M)."""
    heads: int = Field(default=1, ge=1, le=64)
    """Number of read heads; there are as many write heads. Graves et al. 2014, tables 1 and 2, use 1 to 8."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout rate for embeddings and the input of the output layer."""
    tie: ClassVar[str] = "decoder"  # the embedding and the output layer share one matrix


@dataclass(frozen=True)
class NtmState(DecoderState):
    """The machine's state after a word, with S slots of size W and R heads of each kind."""

    hidden: Tensor  # controller state, (N,L,H); L is 0 for a feed-forward controller
    cell: Tensor | None  # (N,L,H)
    heads: Tensor  # w, (N,2R,S); write heads come first
    read: Tensor  # r, (N,R*W)
    slots: Tensor  # M, (N,S,W)


@MODELS.register("ntm")
class Ntm(Decoder[Memory, NtmState]):
    """A controller with a memory that it reads and writes; see the module docstring."""

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
        """Reads one word."""
        words, hidden, cell = self.dropout(self.tgt_embedding(tokens)), state.hidden, state.cell
        with torch.autocast(tokens.device.type, enabled=False):  # rounding errors would accumulate
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

    `moves` `(N,R,W+3+2D+1)` are the inputs of k, beta, g, gamma and s; s shifts by up to D slots in either direction.
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
    """Returns M_t from M_{t-1} `(N,S,W)`, w_t `(N,R,S)` and inputs of e and a `(N,R,W)`; all heads erase, then add."""
    for head, rates in zip(heads.unbind(1), torch.sigmoid(erase).unbind(1), strict=True):
        slots = slots * (1 - head[:, :, None] * rates[:, None])  # equation 3
    return slots + heads.mT @ torch.tanh(add)  # equation 4
