"""RNNsearch: the first translation model with attention (Bahdanau et al. 2015, appendix A).

A bidirectional recurrent encoder gives one state per source word. For each target word the decoder first looks, with
the state it has, then updates that state:

    c_i = attention(s_{i-1}, h)                                        A.1.2
    p(y_i) = softmax(W_o maxout(U_o s_{i-1} + V_o E y_{i-1} + C_o c_i))  A.2.2
    s_i = GRU([E y_{i-1}; c_i], s_{i-1})                               A.1.1

So the appendix reads the word out from the state *before* the update; eq. 4 of the main text reads it from s_i, after
the update. `readout_state` chooses. Reading s_i learns faster at first; on the demo's corpus both end at the same BLEU.
Either way s_{i-1}, which looks, has read y_{i-2}: where the model looks does not depend on the last word.

In the authors' program (GroundHog) it does. With `order: look_generate_update` the state that looks, and is read, has
read the last word and what was seen when that was written:

    s_{i-1} = GRU([E y_{i-1}; c_{i-1}], s_{i-2}),  c_i = attention(s_{i-1}, h),  p(y_i) as above

The program looks first with s_0 itself, and then with the state that has read y_1. Here BOS is a word like any other,
which is read with a context of zeros. Maxout and output layer have biases, as in the program; the
paper leaves them out.

The encoder may be deeper than the decoder; the score may be
any of those in nmtkit/layers/attention.py.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from nmtkit.core.settings import Field, Width, model_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.attention import SCORES, Additive, Attention, Draws, ScoreKind
from nmtkit.layers.elementary import Maxout
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import Bridge, BridgeKind, StackedCells, init_weights
from nmtkit.models.base import MODELS, ModelOutput, VocabularySizes, rows_per_sentence
from nmtkit.models.output import project_to_vocabulary
from nmtkit.models.rnn.recurrent import AttentionMemory, RecurrentModel, RecurrentState, StackedConfig


class RnnSearchConfig(StackedConfig):
    """The defaults suit small corpora; the paper's RNNsearch has 620, 1000, 1000 and 500 for the first four sizes."""

    kind: Literal["rnnsearch"] = "rnnsearch"
    """Which model."""
    attention_size: Width = Field(default=256, ge=1)
    """Units in which an additive score compares; the other scores have none."""
    maxout_size: Width = Field(default=256, ge=1)
    """Maxout units between decoder and output words."""
    bidirectional: bool = True
    """Whether the encoder reads the source in both directions, or in one."""
    score: ScoreKind = "additive"
    """How well a decoder state matches an encoder state; additive is the paper's."""
    max_positions: Width = Field(default=1024, ge=1)
    """The longest source, in tokens with its end mark, that a location score can take; the others take any."""
    hard_attention: bool = False
    """A word looks at one place, which is drawn while the objective hard_attention trains it, in place of at all."""
    bridge: BridgeKind = "tanh"
    """The decoder's first state: a map of the encoder's last, with a tanh (the paper's) or linear; a copy; or zero."""
    order: Literal["appendix", "look_generate_update"] = "appendix"
    """Whether a look knows the last word: not in the paper's appendix; look_generate_update is the authors' program."""
    readout_state: Literal["previous", "current"] = "previous"
    """The state that words are read from: before the update (the paper's appendix) or after it (its eq. 4). In the
    order look_generate_update it is the one that looked, either way."""

    @model_validator(mode="after")
    def _fits_together(self) -> "RnnSearchConfig":
        self.require_equal_where_tied("maxout_size", "embedding_size")
        self.require_score_fits(self.score)
        self.require_bridge_fits(self.bridge)
        return self


@dataclass(frozen=True)
class RnnSearchState(RecurrentState):
    """The decoder between two words."""

    context: Tensor | None
    """What the last look saw, `(N,M)`, zero at first, where the next update reads it; else None."""


@MODELS.register("rnnsearch")
class RnnSearch(RecurrentModel[AttentionMemory, RnnSearchState]):
    """Recurrent encoder, attention, look then update; see the head of this file."""

    Config = RnnSearchConfig

    def __init__(self, config: RnnSearchConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes, config.reverse_source)
        embedding, hidden, memory = config.embedding_size, config.hidden_size, config.memory_size
        self.update_before_look = config.order == "look_generate_update"
        self.read_before_update = config.readout_state == "previous"
        score = SCORES.get(config.score)(hidden, memory, config.attention_size, config.max_positions)
        self.attention = Attention(score, hard=config.hard_attention)
        self.bridge = Bridge(config.bridge, config.cell, config.width, hidden, config.layers)
        self.decoder = StackedCells(config.cell, embedding + memory, hidden, config.layers, config.dropout)
        self.readout = Maxout(hidden + embedding + memory, config.maxout_size)
        self.output = nn.Linear(config.maxout_size, sizes["tgt"])
        init_weights(self, config.initialisation)
        if config.initialisation == "paper" and isinstance(score, Additive):
            nn.init.normal_(score.query.weight, std=0.001)
            nn.init.normal_(score.key.weight, std=0.001)
            nn.init.zeros_(score.energy)
        self.tie_output()

    def encode(self, batch: Batch) -> AttentionMemory:
        """Runs the encoder and projects the keys once; the first state is `s_0 = tanh(W_s h_1)`, A.2.2."""
        return self.attention_memory(batch, self.attention.score.project, self.bridge)

    def start(self, memory: AttentionMemory) -> RnnSearchState:
        """The state that `encode` has made; nothing has been looked at yet."""
        context = torch.zeros_like(memory.values[:, 0]) if self.update_before_look else None
        return RnnSearchState(memory.hidden, memory.cell, context)

    def advance(
        self,
        tokens: Tensor,
        state: RnnSearchState,
        memory: AttentionMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, RnnSearchState]:
        """Looks, then updates, or the other way round."""
        embedded = self.dropout(self.tgt_embedding(tokens))  # (N,E)
        read, context, weights, state = self._step(embedded, state, memory)
        return ModelOutput(torch.cat([read, embedded, context], -1), weights), state

    def unroll(self, batch: Batch, memory: AttentionMemory, need_attention: bool = False) -> ModelOutput:
        """All steps: words are embedded before the loop and features joined after it, each in one go."""
        embedded = self.dropout(self.tgt_embedding(batch.targets.shifted))  # (B,T,E)
        state, draws = self.start(memory), self.attention.draws(batch.soft)
        states, contexts, looks = [], [], []
        for word in embedded.unbind(1):
            read, context, weights, state = self._step(word, state, memory, draws)
            states.append(read)
            contexts.append(context)
            looks.append(weights)
        features = torch.cat([torch.stack(states, 1), embedded, torch.stack(contexts, 1)], -1)  # (B,T,H+E+M)
        attention = torch.stack(looks, 1) if need_attention or draws else None
        return ModelOutput(features, attention, path=draws.path() if draws else None)

    def logits(self, readout: ModelOutput, memory: AttentionMemory) -> Tensor:
        """`(...,V)` of `[s; E y_{i-1}; c_i]` through maxout: A.2.2."""
        return project_to_vocabulary(self.output, self.dropout(self.readout(readout.features)), memory.shortlist)

    def _step(
        self, embedded: Tensor, state: RnnSearchState, memory: AttentionMemory, draws: Draws | None = None
    ) -> tuple[Tensor, Tensor, Tensor, RnnSearchState]:
        """From words `(N,E)` to states to read `(N,H)`, contexts `(N,M)`, weights `(N,S)` and the next state."""
        beam = rows_per_sentence(embedded.shape[0], memory)
        if state.context is not None:
            state = self._updated(embedded, state.context, state)
        before = state.hidden[:, -1]
        queries = before.reshape(-1, beam, before.shape[1])  # (B,K,H)
        contexts, weights = self.attention(queries, memory.keys, memory.values, memory.mask)
        contexts = draws.contexts(weights, memory.values) if draws else contexts
        context, weights = contexts.flatten(0, 1), weights.flatten(0, 1)
        if self.update_before_look:
            return before, context, weights, replace(state, context=context)
        state = self._updated(embedded, context, state)
        return before if self.read_before_update else state.hidden[:, -1], context, weights, state

    def _updated(self, embedded: Tensor, context: Tensor, state: RnnSearchState) -> RnnSearchState:
        inputs = torch.cat([embedded, context], -1)  # (N,E+M)
        hidden, cell = self.decoder(inputs, state.hidden, state.cell)
        return replace(state, hidden=hidden, cell=cell)
