"""The pointer-generator network for summaries (See et al. 2017), with or without coverage, and its baseline.

A bidirectional LSTM reads the article. For each word of the summary, the LSTM of the decoder first reads the previous
word and the previous context. The decoder then attends to the article and generates or copies a word:

    x_t = W_x [E y_{t-1}; h*_{t-1}] + b_x                        input of the decoder; h*_0 = 0
    s_t = LSTM(x_t, s_{t-1})
    e_i = v^T tanh(W_h h_i + W_s s_t + w_c c_i + b_attn)         eq. 1, with coverage eq. 11
    a   = softmax(e);  h*_t = sum_i a_i h_i                      eq. 2, 3
    P_vocab = softmax(V' (V [s_t; h*_t] + b) + b')               eq. 4
    p_gen = sigmoid(w_h* h*_t + w_s s_t + w_x x_t + b_ptr)       eq. 8
    P(w) = p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_i   eq. 9
    c <- c + a                                                   eq. 10

Where the paper is not specific, this model follows the authors' program and the numbers of parameters in the paper: for
the attention and the gate, s_t consists of the hidden state and the memory cell, but V reads only the hidden state;
both embeddings share one matrix; and x_t is the input after W_x.

Differences from the paper and the program:

* Sources end with EOS, which can be attended to and copied like a word.
* The context before the first word is zero in search, too. The authors' program instead computes it by attending with
  the decoder's initial state.
* In training, all words of a batch have the same weight, whereas the paper first computes the mean loss of each
  summary.
* Even a truncated summary (`data.max_tgt_length`) ends with EOS.

Notation: as in `models/base.py`; Hm is the size of an encoder state, both directions together.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from nmtkit.core.settings import Field, Width
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.attention import Additive, Attention, CoveredAdditive
from nmtkit.layers.elementary import at_least_float32
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import Bridge, CellKind, StackedCells, init_weights
from nmtkit.models.abilities import Copying
from nmtkit.models.base import (
    MODELS,
    ModelOutput,
    Tie,
    VocabularySizes,
    extended_to_unk,
    rows_per_sentence,
)
from nmtkit.models.output import project_to_vocabulary
from nmtkit.models.rnn.recurrent import (
    AttentionMemory,
    RecurrentModel,
    RecurrentState,
    StackedConfig,
)


class PointerGeneratorConfig(StackedConfig):
    """Settings of the pointer-generator network.

    The defaults match the paper, except for the initialization, which suits Adam.
    """

    kind: Literal["pointer_generator"] = "pointer_generator"
    embedding_size: Width = Field(default=128, ge=1)
    """Size of word vectors on both sides."""
    cell: CellKind = "lstm"
    """Type of the recurrent cells; lstm, as in See et al. 2017, section 2.1."""
    bidirectional: bool = True
    """Whether the encoder reads the source in both directions, as in See et al. 2017, section 2.1."""
    attention_size: Width | None = Field(default=None, ge=1)
    """Number of hidden units of the attention score. Default: the size of an encoder state."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout rate on embeddings, between layers, on encoder states and before the output layer; 0 in the paper."""
    tie: Tie = "embeddings"
    """Layers that share a weight matrix. none: no layers. embeddings: both embeddings, as in See et al. 2017 (needs a
    joint vocabulary). decoder: the target embedding and the output layer. all: all three."""
    copying: bool = True
    """Whether the decoder can copy source words, including unknown ones; false gives the paper's attention baseline."""
    coverage: bool = False
    """Whether the attention score reads the sum of earlier attention weights; see
    training.objectives.coverage_weight."""


@dataclass(frozen=True)
class PointerGeneratorState(RecurrentState):
    """Decoder state between two words."""

    context: Tensor
    """Last context h*, `(N, Hm)`; zero at first."""
    coverage: Tensor | None
    """Sum of all earlier attention weights (c), `(N, S)`; None without coverage."""


@MODELS.register("pointer_generator")
class PointerGenerator(
    Copying[AttentionMemory, PointerGeneratorState],
    RecurrentModel[AttentionMemory, PointerGeneratorState],
):
    """A decoder that reads, attends, and then generates or copies; see the module docstring."""

    Config = PointerGeneratorConfig

    def __init__(self, config: PointerGeneratorConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes, config.reverse_source)
        embedding_size = config.embedding_size
        hidden_size = config.hidden_size
        memory_size = config.memory_size
        # The size of s_t, including the memory cell.
        state_size = 2 * hidden_size if config.cell == "lstm" else hidden_size
        output_tied = config.tie in ("decoder", "all")
        self.reduce = Bridge(
            kind="relu",
            cell=config.cell,
            input_size=memory_size,
            hidden_size=hidden_size,
            layers=config.layers,
        )
        # The two parts of W_x. The part for words can be applied to the whole target at once.
        self.word_input = nn.Linear(embedding_size, embedding_size)
        self.context_input = nn.Linear(memory_size, embedding_size, bias=False)
        self.decoder = StackedCells(
            config.cell,
            embedding_size,
            hidden_size=hidden_size,
            layers=config.layers,
            dropout=config.dropout,
        )
        build_score = CoveredAdditive if config.coverage else Additive
        score = build_score(
            query_size=state_size,
            memory_size=memory_size,
            attention_size=config.attention_size or memory_size,
            max_positions=0,
        )
        self.attention = Attention(score)
        self.gate = (
            nn.Linear(memory_size + state_size + embedding_size, 1) if config.copying else None
        )
        self.readout = nn.Linear(
            hidden_size + memory_size, embedding_size if output_tied else hidden_size
        )
        self.output = nn.Linear(self.readout.out_features, sizes["tgt"])
        init_weights(self, "xavier")
        if config.initialisation == "paper":
            self._initialise_as_published()
        if output_tied:
            self.output.weight = self.tgt_embedding.weight

    @torch.no_grad()
    def _initialise_as_published(self) -> None:
        """Initializes weights as in the authors' program; weights that it does not specify stay as in `xavier`."""
        for layers in (self.encoder, self.decoder):
            for name, parameter in layers.named_parameters():
                if "weight" in name:
                    nn.init.uniform_(parameter, -0.02, 0.02)
        truncated_normal = [
            self.src_embedding.weight,
            self.tgt_embedding.weight,
            *self.reduce.parameters(),
            *self.output.parameters(),
        ]
        for parameter in truncated_normal:
            nn.init.trunc_normal_(parameter, std=1e-4, a=-2e-4, b=2e-4)
        score = self.attention.score
        assert isinstance(score, Additive)
        size = score.energy.numel()
        energy_bound = (3 / size) ** 0.5
        nn.init.uniform_(score.energy, -energy_bound, energy_bound)
        if isinstance(score, CoveredAdditive):
            coverage_bound = (6 / (size + 1)) ** 0.5
            nn.init.uniform_(score.coverage, -coverage_bound, coverage_bound)

    @override
    def encode(self, batch: Batch) -> AttentionMemory:
        return self.attention_memory(batch, self.attention.score.project, self.reduce)

    @override
    def start(self, memory: AttentionMemory) -> PointerGeneratorState:
        context = torch.zeros_like(memory.values[:, 0])  # (B, Hm)
        coverage = None
        if isinstance(self.attention.score, CoveredAdditive):
            # Has the dtype of the attention weights, which will be added to it.
            dtype = at_least_float32(memory.hidden)
            coverage = torch.zeros_like(memory.mask, dtype=dtype)  # (B, S)
        return PointerGeneratorState(
            hidden=memory.hidden, cell=memory.cell, context=context, coverage=coverage
        )

    @override
    def advance(
        self,
        tokens: Tensor,
        state: PointerGeneratorState,
        memory: AttentionMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, PointerGeneratorState]:
        word_inputs = self._word_inputs(tokens)  # (N, E)
        inputs, weights, state = self._step(word_inputs, state, memory)  # (N, E), (N, S)
        cell = None if state.cell is None else state.cell[:, -1]  # (N, H)
        output = self._join(
            inputs=inputs,
            hidden=state.hidden[:, -1],
            cell=cell,
            context=state.context,
            weights=weights,
        )
        return output, state

    def unroll(
        self, batch: Batch, memory: AttentionMemory, need_attention: bool = False
    ) -> ModelOutput:
        """Runs all steps. Words are embedded before the loop; features and gates are computed after it."""
        state = self.start(memory)
        step_inputs = []
        step_hidden = []
        step_cells = []
        step_contexts = []
        step_weights = []
        for word_inputs in self._word_inputs(batch.targets.shifted).unbind(1):  # (B, E)
            inputs, weights, state = self._step(word_inputs, state, memory)  # (B, E), (B, S)
            step_inputs.append(inputs)
            step_hidden.append(state.hidden[:, -1])
            if state.cell is not None:
                step_cells.append(state.cell[:, -1])
            step_contexts.append(state.context)
            step_weights.append(weights)
        needs_weights = need_attention or self.gate is not None
        return self._join(
            inputs=torch.stack(step_inputs, 1),  # (B, T, E)
            hidden=torch.stack(step_hidden, 1),  # (B, T, H)
            cell=torch.stack(step_cells, 1) if step_cells else None,  # (B, T, H)
            context=torch.stack(step_contexts, 1),  # (B, T, Hm)
            weights=torch.stack(step_weights, 1) if needs_weights else None,  # (B, T, S)
        )

    def logits(self, output: ModelOutput, memory: AttentionMemory) -> Tensor:
        """Returns the logits of eq. 4, `(..., V)`, for features `[s_t; h*_t]`; `Copying.predict` computes eq. 9."""
        readout = self.dropout(self.readout(output.features))  # (..., *)
        return project_to_vocabulary(self.output, readout, memory.shortlist)

    def _word_inputs(self, ids: Tensor) -> Tensor:
        """Computes the part of x_t that depends on the words `(...)`: `(..., E)`."""
        embedded = self.dropout(self.tgt_embedding(extended_to_unk(ids, self.sizes)))  # (..., E)
        word_inputs: Tensor = self.word_input(embedded)  # (..., E)
        return word_inputs

    def _step(
        self, word_inputs: Tensor, state: PointerGeneratorState, memory: AttentionMemory
    ) -> tuple[Tensor, Tensor, PointerGeneratorState]:
        """Runs one step, given word inputs `(N, E)`; returns x_t `(N, E)`, weights `(N, S)` and the new state."""
        hypotheses = word_inputs.shape[0]
        beam_size = rows_per_sentence(hypotheses, memory)
        inputs = word_inputs + self.context_input(state.context)  # (N, E), x_t
        hidden, cell = self.decoder(inputs, state.hidden, state.cell)  # (N, L, H), (N, L, H)
        query = hidden[:, -1]  # (N, H)
        if cell is not None:
            query = torch.cat([query, cell[:, -1]], -1)  # (N, 2H), s_t
        queries = query.view(-1, beam_size, query.shape[1])  # (B, K, 2H)
        coverage = None
        if state.coverage is not None:
            source_length = state.coverage.shape[1]
            coverage = state.coverage.view(-1, beam_size, source_length)  # (B, K, S), c of eq. 11
        contexts, weights = self.attention(
            queries, memory.keys, memory.values, mask=memory.mask, coverage=coverage
        )  # (B, K, Hm), (B, K, S)
        context = contexts.flatten(0, 1)  # (N, Hm), h*_t
        weights = weights.flatten(0, 1)  # (N, S), a
        new_coverage = None
        if state.coverage is not None:
            new_coverage = state.coverage + weights  # (N, S), eq. 10
        new_state = PointerGeneratorState(
            hidden=hidden, cell=cell, context=context, coverage=new_coverage
        )
        return inputs, weights, new_state

    def _join(
        self,
        inputs: Tensor,
        hidden: Tensor,
        cell: Tensor | None,
        context: Tensor,
        weights: Tensor | None,
    ) -> ModelOutput:
        """Builds the output of one or all steps: features `[s_t; h*_t]`, weights, and the gate of eq. 8.

        The shapes are: inputs x_t `(..., E)`, hidden and cell `(..., H)`, context `(..., Hm)`, weights `(..., S)`.
        """
        features = torch.cat([hidden, context], -1)  # (..., H+Hm)
        if self.gate is None:
            return ModelOutput(features, weights)
        parts = [features, inputs] if cell is None else [features, cell, inputs]
        gate_inputs = torch.cat(parts, -1)  # (..., *)
        gate_logits = self.gate(gate_inputs)  # (..., 1)
        gate_logits = gate_logits.to(at_least_float32(gate_logits))  # (..., 1)
        return ModelOutput(features, weights, copy_gate=torch.sigmoid(gate_logits))
