"""Intra-attention: Paulus et al. 2018, "A Deep Reinforced Model for Abstractive Summarization".

A bidirectional LSTM reads the article, its last states are the first of the decoder's LSTM. In each step the decoder
reads one word, then looks twice with its new state h_t:

    e_ti  = h_t^T W h_i                                 eq. 1 and 2
    a_ti ~= exp(e_ti) / sum_{j<t} exp(e_ji)             eq. 3 and 4: what was looked at before counts less now
    c_t   = sum_i a_ti h_i                              eq. 5
    d_t   = sum_{j<t} b_tj h_j,  b_tj ~= exp(h_t^T W' h_j)   eq. 6 to 8: its own earlier states; d_1 = 0

and writes a word of the vocabulary, or copies one of the article from where it looks:

    p(y | generate) = softmax(W_out [h_t; c_t; d_t] + b)     eq. 9
    p(x_i | copy)   = a_ti                                   eq. 10
    p(copy)         = sigmoid(W_u [h_t; c_t; d_t] + b_u)     eq. 11
    W_out           = tanh(W_emb W_proj)                     eq. 13

The paper's u says that a word is copied; `copy_gate` is p_gen as everywhere here, 1 - p(copy).

No state depends on where an earlier one looked: training runs the LSTM once over the whole target, and all steps look
at once. In every fourth step of training the decoder reads its own word in place of the true one (`own_words`, the
paper's section 5): such words are found first, step by step and without gradient.

Where this differs from the paper:

* The paper tells the switch in training when to copy: for unknown words and for named entities, which a tagger found.
  Here it is told nothing, and the likelihood of a word is the sum over both ways to write it (eq. 12).
* The first state of the decoder is "h_n" of the encoder. Here each direction gives the state in which it ended, the
  backward one at the first word, and the memory cell is handed on as well.
* Eq. 3 divides the exponential of an energy by the sum of the exponentials that the same place had in earlier steps,
  which may be infinite or zero over zero. Here everything stays in logarithms: the *past* of a place,
  log(sum_j exp(e_j)) over the earlier steps, is subtracted from its energy.
* The paper names no initialisation and no dropout. Weights start as in the other models; dropout is on embeddings, on
  encoder states and before the output.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.core.settings import Field, Width, field_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.attention import General
from nmtkit.layers.elementary import at_least_float32
from nmtkit.layers.kernels import masked_softmax
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.linear import Precision, UnpackedLinear
from nmtkit.layers.recurrent import Bridge, RecurrentEncoder, build_rnn, init_weights, layers_first, rnn_step, run_rnn
from nmtkit.models.abilities import ComputedOutput, Copying, matrix_and_bias
from nmtkit.models.base import MODELS, ModelOutput, Tie, VocabularySizes, extended_to_unk, rows_per_sentence
from nmtkit.models.output import project_to_vocabulary
from nmtkit.models.rnn.recurrent import AttentionMemory, RecurrentConfig, RecurrentModel, RecurrentState

EMPTY_SUM = -math.inf
"""The past of a place before the first step: the logarithm of an empty sum."""


def penalize(energies: Tensor, past: Tensor) -> Tensor:
    """`log e'_ti` of equation 3, from energies `e_ti` `(...,S)` and their accumulated past, `EMPTY_SUM` at first."""
    return energies - past.masked_fill(past == EMPTY_SUM, 0.0)


def accumulated_before(energies: Tensor) -> Tensor:
    """The past of every step of `(B,T,S)` at once."""
    sums = torch.logcumsumexp(energies[:, :-1], 1)  # (B,T-1,S)
    return F.pad(sums, (0, 0, 1, 0), value=EMPTY_SUM)


class IntraDecoderAttention(nn.Module):
    """Looks at the decoder's own earlier states: equations 6 to 8.

    `e_tt' = h_t^T W h_t'`, a softmax over all t' < t, and the weighted sum of those states; zero in the first step.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, states: Tensor, written: Tensor, visible: Tensor) -> Tensor:
        """One step: contexts `(B,K,H)` of states `(B,K,H)`, which see their own among those written so far `(B,*,H)`.

        `visible` is `(B,K,*)` or `(K,*)`, bool; a hypothesis that sees nothing gets zero.
        """
        energies = torch.matmul(self.query(states), written.transpose(1, 2))
        return torch.matmul(masked_softmax(energies, visible).to(written.dtype), written)

    def all_steps(self, states: Tensor) -> Tensor:
        """All steps at once: contexts `(B,T,H)` of states `(B,T,H)`, each of which sees those before it."""
        steps = states.shape[1]
        return self.forward(states, states, torch.ones(steps, steps, dtype=torch.bool, device=states.device).tril(-1))


class IntraAttentionConfig(RecurrentConfig):
    """The defaults suit small corpora; the paper has embeddings of 100 (GloVe), 400 units and no dropout.

    `hidden_size` is that of the decoder; each direction of the encoder has half as many units.
    """

    kind: Literal["intra_attention"] = "intra_attention"
    """Which model."""
    embedding_size: Width = Field(default=128, ge=1)
    """Numbers per word, on either side."""
    tie: Tie = "decoder"
    """What shares one matrix: nothing; both embeddings (needs one vocabulary); target embedding and output, whose
    matrix is then tanh(W_emb W_proj) (eq. 13); or all three, as in the paper."""
    copying: bool = True
    """The decoder can copy words of the article, unknown ones too."""
    own_words: float = Field(default=0.25, ge=0, le=1)
    """Probability, in training, that the decoder reads its own last word instead of the reference's."""

    @field_validator("hidden_size")
    @classmethod
    def _two_directions(cls, value: int) -> int:
        if value % 2:
            raise ValueError("each direction of the encoder has half as many units: give an even number")
        return value

    def encoder(self) -> RecurrentEncoder:
        """A new LSTM of one layer in both directions."""
        return RecurrentEncoder("lstm", self.embedding_size, self.hidden_size // 2)


@dataclass(frozen=True)
class IntraAttentionMemory(AttentionMemory):
    """The article as the decoder sees it."""

    output_weight: Tensor | None
    """W_out `(V,*)` of eq. 13, the same for all sentences; None where the output layer has a matrix of its own."""

    def select(self, index: Tensor | slice) -> "IntraAttentionMemory":
        """Picks sentences by number, as `Rows.select` does; W_out stays whole."""
        picked = super(IntraAttentionMemory, replace(self, output_weight=None)).select(index)
        return replace(picked, output_weight=self.output_weight)

    def put(self, index: Tensor, other: "IntraAttentionMemory") -> None:
        """Writes other sentences into these, as `Rows.put` does."""
        whole = replace(self, output_weight=None)
        super(IntraAttentionMemory, whole).put(index, replace(other, output_weight=None))


@dataclass(frozen=True)
class IntraAttentionState(RecurrentState):
    """The decoder between two words; its earlier states are in the cache."""

    past: Tensor
    """Accumulated energies of the source positions `(N,S)`, see `penalize`."""


@MODELS.register("intra_attention")
class IntraAttention(
    Copying[IntraAttentionMemory, IntraAttentionState],
    ComputedOutput[IntraAttentionMemory, IntraAttentionState],
    RecurrentModel[IntraAttentionMemory, IntraAttentionState],
):
    """Intra-temporal and intra-decoder attention with a pointer; see the head of this file."""

    Config = IntraAttentionConfig

    def __init__(self, config: IntraAttentionConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        output_tied = config.tie in ("decoder", "all")
        embedding, hidden = config.embedding_size, config.hidden_size
        self.own_words = config.own_words
        self.bridge = Bridge("copy", "lstm", hidden, hidden, 1)
        self.decoder = build_rnn("lstm", embedding, hidden)
        self.score = General(hidden, hidden, 0, 0)
        self.intra_decoder = IntraDecoderAttention(hidden)
        features = 3 * hidden
        self.switch = nn.Linear(features, 1) if config.copying else None
        self.projection = nn.Linear(embedding, features, bias=False) if output_tied else None
        self.output: Any = None if output_tied else UnpackedLinear(features, sizes["tgt"], bias=False)
        self._made: Tensor | None = None  # W_out, where `_keeps_made`
        self._keeps_made = False
        self.output_bias = nn.Parameter(torch.zeros(sizes["tgt"]))
        init_weights(self, "xavier")
        # Rows of W_out with a length of about 3, as in Luong's model: shorter ones tell words apart later.
        for module in (self.projection, self.output):
            if module is not None:
                nn.init.normal_(module.weight, std=3 / math.sqrt(features))

    def encode(self, batch: Batch) -> IntraAttentionMemory:
        """Runs the encoder, projects the keys, and makes the output layer of eq. 13, each once."""
        memory = self.attention_memory(batch, self.score.project, self.bridge)
        weight = self._output_weight() if self.output is None else None
        return IntraAttentionMemory(**vars(memory), output_weight=weight)

    @torch.no_grad()
    def finalize(self, precision: Precision) -> None:
        """W_out is made once from now on; below float32 it becomes an output layer, which is converted as any other."""
        self._keeps_made = precision == "fp32"
        if not self._keeps_made:
            weight = self._output_weight()
            self.output = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
            self.output.weight, self.output.bias = nn.Parameter(weight), self.output_bias

    def _output_weight(self) -> Tensor:
        """W_out `(V,*)`, learned or made."""
        if self.projection is None:
            return self.output.weight  # type: ignore[no-any-return]  # of any module
        weight = torch.tanh(self.projection(self.tgt_embedding.weight)) if self._made is None else self._made
        self._made = weight if self._keeps_made else None
        return weight

    def start(self, memory: IntraAttentionMemory) -> IntraAttentionState:
        """The encoder's last states; nothing has been looked at or written yet."""
        past = torch.full_like(memory.mask, EMPTY_SUM, dtype=at_least_float32(memory.hidden))
        return IntraAttentionState(memory.hidden, memory.cell, past)

    def advance(
        self,
        tokens: Tensor,
        state: IntraAttentionState,
        memory: IntraAttentionMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, IntraAttentionState]:
        """Updates, then looks at the article and at the earlier states."""
        beam = rows_per_sentence(tokens.shape[0], memory)
        hidden, cell = rnn_step(self.decoder, self._embedded(tokens), state.hidden, state.cell)  # (N,1,H)
        states = hidden.view(-1, beam, hidden.shape[2])  # (B,K,H)
        energies = self._energies(states, memory)  # (B,K,S)
        past = state.past.view(energies.shape)
        contexts, weights = self._look(energies, past, memory)
        cache.append(0, hidden.squeeze(1))
        earlier = self.intra_decoder(states, cache.read(0), cache.visible_before())  # (B,K,H)
        past = torch.logaddexp(past, energies).flatten(0, 1)  # (N,S)
        features = torch.cat([states, contexts, earlier], -1).flatten(0, 1)  # (N,3H)
        readout = self._readout(features, weights.flatten(0, 1))
        return readout, IntraAttentionState(hidden, cell, past)

    def unroll(self, batch: Batch, memory: IntraAttentionMemory, need_attention: bool = False) -> ModelOutput:
        """All steps at once; in training, first finds the words of its own that it reads."""
        read = batch.targets.shifted
        if self.training and self.own_words:
            read = self._with_own_words(read, memory)
        states, _ = run_rnn(self.decoder, self._embedded(read), layers_first(memory.hidden, memory.cell))
        energies = self._energies(states, memory)  # (B,T,S)
        contexts, weights = self._look(energies, accumulated_before(energies), memory)
        features = torch.cat([states, contexts, self.intra_decoder.all_steps(states)], -1)  # (B,T,3H)
        return self._readout(features, weights)

    def logits(self, readout: ModelOutput, memory: IntraAttentionMemory) -> Tensor:
        """`(...,V)`, before the softmax of eq. 9; eq. 12 is `predict`'s."""
        if self._is_converted:
            return super().logits(readout, memory)
        weight, bias = self.output_layer(memory)
        return project_to_vocabulary(partial(F.linear, weight=weight, bias=bias), readout.features, memory.shortlist)

    def output_layer(self, memory: IntraAttentionMemory) -> tuple[Tensor, Tensor]:
        """Returns W_out, made or learned, and its bias."""
        if self._is_converted:
            return matrix_and_bias(self)
        weight = memory.output_weight if self.output is None else self.output.weight
        assert weight is not None
        return weight, self.output_bias

    @property
    def _is_converted(self) -> bool:
        return self.output is not None and self.output.bias is not None

    def _embedded(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.tgt_embedding(extended_to_unk(tokens, self.sizes)))
        return embedded

    def _energies(self, states: Tensor, memory: IntraAttentionMemory) -> Tensor:
        """`(B,Q,S)` of decoder states `(B,Q,H)`: eq. 2; in float32 or wider, since their history is a long sum."""
        energies: Tensor = self.score(states, memory.keys)
        return energies.to(at_least_float32(energies))

    def _look(self, energies: Tensor, past: Tensor, memory: IntraAttentionMemory) -> tuple[Tensor, Tensor]:
        """Contexts `(B,Q,H)` and weights `(B,Q,S)`: eq. 3 to 5."""
        weights = masked_softmax(penalize(energies, past), memory.mask.unsqueeze(1))
        return torch.matmul(weights.to(memory.values.dtype), memory.values), weights

    def _readout(self, features: Tensor, weights: Tensor) -> ModelOutput:
        """What `predict` needs of `[h; c; d]`, eq. 11 included."""
        features = self.dropout(features)
        # The paper's switch is the probability of copying; the sigmoid of the negative is that of generating.
        u = None if self.switch is None else self.switch(features)
        gate = None if u is None else torch.sigmoid(-u.to(at_least_float32(u)))
        return ModelOutput(features, weights, gate)

    @torch.no_grad()
    def _with_own_words(self, tgt_in: Tensor, memory: IntraAttentionMemory) -> Tensor:
        """The true words `(B,T)`, those of some steps replaced by what the decoder finds most probable there.

        What it finds depends on the words that it has read, its own among them: so this goes step by step. All
        sentences of a batch share what was drawn for a step: so only every fourth step needs the output layer.
        """
        read = tgt_in.clone()
        # Drawn on the CPU, so that nobody waits for the device.
        own = (torch.rand(tgt_in.shape[1] - 1) < self.own_words).tolist()
        state, cache = self.start(memory), KVCache(len(memory.mask), 1, memory.mask.device)
        for step, is_own in enumerate(own):
            readout, state = self.advance(read[:, step], state, memory, cache)
            cache.next_step()
            if is_own:
                read[:, step + 1] = self.predict(readout, memory).argmax(-1)
        # Under autocast older torch keeps weights as they were cast here, without gradient, for later (issue 112583).
        torch.clear_autocast_cache()
        return read
