"""Show, Attend and Tell: an LSTM that attends to image regions before each word (Xu et al. 2015).

    c_0 = f_init,c(mean a),  h_0 = f_init,h(mean a)                   section 3.1.2
    e_ti = f_att(a_i, h_{t-1}),  alpha_t = softmax(e_t)               eqs. 4 and 5
    z_t = beta_t sum_i alpha_ti a_i,  beta_t = sigmoid(f_b(h_{t-1}))  eq. 13 and section 4.2.1
    h_t = LSTM(E y_{t-1}, h_{t-1}, z_t)                               eqs. 1 to 3
    p(y_t) = softmax(L_o (E y_{t-1} + L_h h_t + L_z z_t))             eq. 7

This is soft attention; hard attention (`hard_attention`, section 4.1) instead samples a single a_i. The objective
`doubly_stochastic` is eq. 14. Notation as in show_and_tell.py.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from nmtkit.core.settings import Field, Width
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.attention import Additive, Attention, Draws
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import Bridge, StackedCells, init_weights
from nmtkit.models.base import MODELS, ModelOutput, VocabularySizes, rows_per_sentence
from nmtkit.models.output import project_to_vocabulary
from nmtkit.models.rnn.recurrent import AttentionMemory, RecurrentState
from nmtkit.zoo.captioning.show_and_tell import Captioner, CaptionerConfig


class ShowAttendTellConfig(CaptionerConfig):
    """Settings of Show, Attend and Tell; the defaults suit small corpora."""

    kind: Literal["show_attend_tell"] = "show_attend_tell"
    attention_size: Width = Field(default=256, ge=1)
    """Size of the attention layer that compares regions with the decoder state."""
    hard_attention: bool = False
    """Whether each word attends to a single region, which the objective hard_attention samples during training."""


@MODELS.register("show_attend_tell")
class ShowAttendTell(Captioner[AttentionMemory]):
    """Attends, then updates the state; see the module docstring."""

    Config = ShowAttendTellConfig

    def __init__(self, config: ShowAttendTellConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        embedding, hidden, region = config.embedding_size, config.hidden_size, self.region_size
        self.attention = Attention(
            Additive(hidden, region, config.attention_size, 0), hard=config.hard_attention
        )
        self.gate = nn.Linear(hidden, 1)
        self.bridge = Bridge("tanh", "lstm", region, hidden, 1)
        self.decoder = StackedCells("lstm", embedding + region, hidden)
        self.readout = nn.Linear(hidden + region, embedding)
        self.output = nn.Linear(embedding, sizes["tgt"])
        init_weights(self, "xavier")

    def encode(self, batch: Batch) -> AttentionMemory:
        """Returns the regions, their keys, and the initial state."""
        regions, mask, mean = self.regions(batch)
        (hidden, cell), values = self.bridge(mean.unsqueeze(1), None), self.dropout(regions)
        return AttentionMemory(
            mask, batch.inputs.copy, hidden, cell, values, self.attention.score.project(values)
        )

    def advance(
        self,
        tokens: Tensor,
        state: RecurrentState,
        memory: Any,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, RecurrentState]:
        """Attends with the current state, then updates it."""
        embedded = self.dropout(self.tgt_embedding(tokens))  # (N,E)
        context, weights, new = self._look_then_update(embedded, state, memory)
        return ModelOutput(torch.cat([embedded, new.hidden[:, -1], context], -1), weights), new

    def unroll(
        self, batch: Batch, memory: AttentionMemory, need_attention: bool = False
    ) -> ModelOutput:
        """Runs all steps; words are embedded before the loop and features joined after it, in one call each."""
        embedded = self.dropout(self.tgt_embedding(batch.targets.shifted))  # (B,T,E)
        state, draws, steps = self.start(memory), self.attention.draws(batch.soft), []
        for word in embedded.unbind(1):
            context, weights, state = self._look_then_update(word, state, memory, draws)
            steps.append((state.hidden[:, -1], context, weights))
        hidden, contexts, looks = (torch.stack(parts, 1) for parts in zip(*steps, strict=True))
        return ModelOutput(
            torch.cat([embedded, hidden, contexts], -1), looks, path=draws.path() if draws else None
        )

    def _look_then_update(
        self,
        embedded: Tensor,
        state: RecurrentState,
        memory: AttentionMemory,
        draws: Draws | None = None,
    ) -> tuple[Tensor, Tensor, RecurrentState]:
        """Returns contexts `(N,D)`, weights `(N,R)` and the next state for words `(N,E)`."""
        queries = state.hidden.reshape(
            -1, rows_per_sentence(len(embedded), memory), state.hidden.shape[2]
        )  # (B,K,H)
        contexts, weights = self.attention(queries, memory.keys, memory.values, memory.mask)
        contexts = draws.sample_contexts(weights, memory.values) if draws else contexts
        context = (torch.sigmoid(self.gate(queries)) * contexts).flatten(0, 1)  # (N,D)
        new = self.decoder(torch.cat([embedded, context], -1), state.hidden, state.cell)
        return context, weights.flatten(0, 1), RecurrentState(*new)

    def logits(self, output: ModelOutput, memory: AttentionMemory) -> Tensor:
        """Returns the logits `(...,V)`: eq. 7 before the softmax, with L_h and L_z joined in one matrix."""
        size = self.output.in_features
        features = output.features[..., :size] + self.readout(output.features[..., size:])
        return project_to_vocabulary(self.output, self.dropout(features), memory.shortlist)
