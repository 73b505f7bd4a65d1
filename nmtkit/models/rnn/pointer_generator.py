"""The pointer-generator network for summaries (See et al. 2017), with coverage and without, and its plain baseline.

A bidirectional LSTM reads the article. For each word of the summary the decoder's LSTM first reads the word before,
together with what it looked at last; then it looks, and writes:

    x_t = W_x [E y_{t-1}; h*_{t-1}] + b_x                        the decoder's input; h*_0 = 0
    s_t = LSTM(x_t, s_{t-1})
    e_i = v^T tanh(W_h h_i + W_s s_t + w_c c_i + b_attn)         eq. 1, with coverage eq. 11
    a   = softmax(e);  h*_t = sum_i a_i h_i                      eq. 2, 3
    P_vocab = softmax(V' (V [s_t; h*_t] + b) + b')               eq. 4
    p_gen = sigmoid(w_h* h*_t + w_s s_t + w_x x_t + b_ptr)       eq. 8
    P(w) = p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_i   eq. 9
    c <- c + a                                                   eq. 10

Where the paper leaves a choice, this is what its authors' program does, and what the paper's numbers of parameters
follow from: the state s_t is the pair of memory cell and hidden state in the attention and in the gate, the hidden
state alone in V; both embeddings are one matrix; x_t is the input after W_x.

Four things differ. Sources end in EOS here, which can be looked at, and copied, like a word. The decoder's first look
back is at nothing in a search too, where the authors' program looks with the first state of the decoder. In training
every word of a batch weighs the same, where the paper takes the mean over the words of each summary first. And a
summary that is cut (`data.max_tgt_length`) ends in EOS like any other.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nmtkit.core.settings import Field, Width
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.attention import Additive, Attention, CoveredAdditive
from nmtkit.layers.elementary import at_least_float32
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import Bridge, CellKind, StackedCells, init_weights
from nmtkit.models.abilities import Copying
from nmtkit.models.base import MODELS, ModelOutput, Tie, VocabularySizes, extended_to_unk, rows_per_sentence
from nmtkit.models.output import project_to_vocabulary
from nmtkit.models.rnn.recurrent import AttentionMemory, RecurrentModel, RecurrentState, StackedConfig


class PointerGeneratorConfig(StackedConfig):
    """The defaults are the paper's, but for the initialisation, which suits Adam."""

    kind: Literal["pointer_generator"] = "pointer_generator"
    """Which model."""
    embedding_size: Width = Field(default=128, ge=1)
    """Numbers per word, on either side."""
    cell: CellKind = "lstm"
    """The recurrent cell."""
    bidirectional: bool = True
    """The encoder reads the source in both directions."""
    attention_size: Width | None = Field(default=None, ge=1)
    """Units in which decoder and encoder states are compared; default: the size of an encoder state."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability, on embeddings, between layers, on encoder states and before the output words; the paper has none."""
    tie: Tie = "embeddings"
    """What shares one matrix: nothing; both embeddings, as in the paper (needs one vocabulary); target embedding and
    output; or all three."""
    copying: bool = True
    """The decoder can copy source words, unknown ones too. false: the plain attention baseline."""
    coverage: bool = False
    """The attention reads how much each source word was looked at before (see training.objectives.coverage_weight)."""


@dataclass(frozen=True)
class PointerGeneratorState(RecurrentState):
    """The decoder between two words."""

    context: Tensor
    """h* of the last look, `(N,M)`; zero at first."""
    coverage: Tensor | None
    """The attention reads how much each source word was looked at before (see training.objectives.coverage_weight)."""


@MODELS.register("pointer_generator")
class PointerGenerator(
    Copying[AttentionMemory, PointerGeneratorState], RecurrentModel[AttentionMemory, PointerGeneratorState]
):
    """Looks back, reads, looks, and writes or copies; see the head of this file."""

    Config = PointerGeneratorConfig

    def __init__(self, config: PointerGeneratorConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes, config.reverse_source)
        embedding, hidden, memory = config.embedding_size, config.hidden_size, config.memory_size
        whole_state = 2 * hidden if config.cell == "lstm" else hidden
        output_tied = config.tie in ("decoder", "all")
        self.reduce = Bridge("relu", config.cell, memory, hidden, config.layers)
        # Two halves of one W_x: that of the words is taken for the whole target at once.
        self.word_input = nn.Linear(embedding, embedding)
        self.context_input = nn.Linear(memory, embedding, bias=False)
        self.decoder = StackedCells(config.cell, embedding, hidden, config.layers, config.dropout)
        score = CoveredAdditive if config.coverage else Additive
        self.attention = Attention(score(whole_state, memory, config.attention_size or memory, 0))
        self.gate = nn.Linear(memory + whole_state + embedding, 1) if config.copying else None
        self.readout = nn.Linear(hidden + memory, embedding if output_tied else hidden)
        self.output = nn.Linear(self.readout.out_features, sizes["tgt"])
        init_weights(self, "xavier")
        if config.initialisation == "paper":
            self._initialise_as_published()
        if output_tied:
            self.output.weight = self.tgt_embedding.weight

    @torch.no_grad()
    def _initialise_as_published(self) -> None:
        """The initialisers of the authors' program; what it does not name starts as Glorot & Bengio 2010 say."""
        for name, parameter in [*self.encoder.named_parameters(), *self.decoder.named_parameters()]:
            if "weight" in name:
                nn.init.uniform_(parameter, -0.02, 0.02)
        words = self.src_embedding.weight, self.tgt_embedding.weight
        for parameter in (*words, *self.reduce.parameters(), *self.output.parameters()):
            nn.init.trunc_normal_(parameter, std=1e-4, a=-2e-4, b=2e-4)
        score = self.attention.score
        assert isinstance(score, Additive)
        size = score.energy.numel()
        nn.init.uniform_(score.energy, -((3 / size) ** 0.5), (3 / size) ** 0.5)
        if isinstance(score, CoveredAdditive):
            nn.init.uniform_(score.coverage, -((6 / (size + 1)) ** 0.5), (6 / (size + 1)) ** 0.5)

    def encode(self, batch: Batch) -> AttentionMemory:
        """Runs the encoder, projects the keys once, and reduces the last states."""
        return self.attention_memory(batch, self.attention.score.project, self.reduce)

    def start(self, memory: AttentionMemory) -> PointerGeneratorState:
        """The reduced state; nothing has been looked at yet."""
        coverage = None
        if isinstance(self.attention.score, CoveredAdditive):
            coverage = torch.zeros_like(memory.mask, dtype=at_least_float32(memory.hidden))  # as the weights
        return PointerGeneratorState(memory.hidden, memory.cell, torch.zeros_like(memory.values[:, 0]), coverage)

    def advance(
        self,
        tokens: Tensor,
        state: PointerGeneratorState,
        memory: AttentionMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, PointerGeneratorState]:
        """Reads a word, then looks."""
        inputs, weights, state = self._read_then_look(self._words(tokens), state, memory)
        cell = None if state.cell is None else state.cell[:, -1]
        return self._joined(inputs, state.hidden[:, -1], cell, state.context, weights), state

    def unroll(self, batch: Batch, memory: AttentionMemory, need_attention: bool = False) -> ModelOutput:
        """All steps: what no look takes part in is computed before the loop, what no later step needs after it."""
        state = self.start(memory)
        read, hiddens, cells, contexts, looks = [], [], [], [], []
        for word in self._words(batch.targets.shifted).unbind(1):
            inputs, weights, state = self._read_then_look(word, state, memory)
            read.append(inputs)
            hiddens.append(state.hidden[:, -1])
            cells += [] if state.cell is None else [state.cell[:, -1]]
            contexts.append(state.context)
            looks.append(weights)
        return self._joined(
            torch.stack(read, 1),
            torch.stack(hiddens, 1),
            torch.stack(cells, 1) if cells else None,
            torch.stack(contexts, 1),
            torch.stack(looks, 1) if need_attention or self.gate is not None else None,
        )

    def logits(self, readout: ModelOutput, memory: AttentionMemory) -> Tensor:
        """`(...,V)` of `[s_t; h*_t]`, before the softmax of eq. 4; eq. 9 is `predict`'s."""
        return project_to_vocabulary(self.output, self.dropout(self.readout(readout.features)), memory.shortlist)

    def _words(self, ids: Tensor) -> Tensor:
        """The words' part of x_t, `(...,E)`."""
        words: Tensor = self.word_input(self.dropout(self.tgt_embedding(extended_to_unk(ids, self.sizes))))
        return words

    def _read_then_look(
        self, words: Tensor, state: PointerGeneratorState, memory: AttentionMemory
    ) -> tuple[Tensor, Tensor, PointerGeneratorState]:
        """From the words' part of the inputs `(N,E)` to the whole x_t `(N,E)`, weights `(N,S)` and the next state."""
        beam = rows_per_sentence(words.shape[0], memory)
        inputs = words + self.context_input(state.context)
        hidden, cell = self.decoder(inputs, state.hidden, state.cell)
        whole = hidden[:, -1] if cell is None else torch.cat([hidden[:, -1], cell[:, -1]], -1)  # (N,2H)
        before = None if state.coverage is None else state.coverage.view(-1, beam, state.coverage.shape[1])  # (B,K,S)
        queries = whole.view(-1, beam, whole.shape[1])  # (B,K,2H)
        contexts, looks = self.attention(queries, memory.keys, memory.values, memory.mask, coverage=before)
        weights = looks.flatten(0, 1)  # (N,S)
        coverage = None if state.coverage is None else state.coverage + weights
        return inputs, weights, PointerGeneratorState(hidden, cell, contexts.flatten(0, 1), coverage)

    def _joined(
        self, inputs: Tensor, hidden: Tensor, cell: Tensor | None, context: Tensor, weights: Tensor | None
    ) -> ModelOutput:
        """What `predict` reads, from one or all steps `(...,*)`: `[s_t; h*_t]`, the weights and the gate of eq. 8."""
        features = torch.cat([hidden, context], -1)
        if self.gate is None:
            return ModelOutput(features, weights)
        whole = [features, inputs] if cell is None else [features, cell, inputs]
        gate = self.gate(torch.cat(whole, -1))
        return ModelOutput(features, weights, torch.sigmoid(gate.to(at_least_float32(gate))))
