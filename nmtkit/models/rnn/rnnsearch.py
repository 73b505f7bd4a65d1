"""RNNsearch: the first translation model with attention (Bahdanau et al. 2015, appendix A).

A bidirectional recurrent encoder computes one state per source word. For each target word, the decoder first attends to
the source with its state, and then updates the state:

    c_i = attention(s_{i-1}, h)                                        A.1.2
    p(y_i) = softmax(W_o maxout(U_o s_{i-1} + V_o E y_{i-1} + C_o c_i))  A.2.2
    s_i = GRU([E y_{i-1}; c_i], s_{i-1})                               A.1.1

So in the appendix, a word is predicted from the state *before* the update; in eq. 4 of the main text, it is predicted
from s_i, the state after the update. The setting `readout_state` selects one of these states. Models that predict from
s_i learn faster at first; on the demo's corpus, both variants reach the same BLEU. In both cases, the query s_{i-1} has
read only the words up to y_{i-2}, so attention does not depend on the last word y_{i-1}.

In the authors' program (GroundHog), attention does depend on the last word. With `order: look_generate_update`, the
decoder first reads the last word, together with the context that predicted it. The resulting state is the query, and
predicts the next word:

    s_{i-1} = GRU([E y_{i-1}; c_{i-1}], s_{i-2}),  c_i = attention(s_{i-1}, h),  p(y_i) as above

In the program, the first query is s_0 itself, and the second one has read y_1. Here BOS is read like any other word,
with a context of zeros. As in the program, the maxout layer and the output layer have biases, which the paper omits.

The encoder may be deeper than the decoder, and `score` can be any score in `nmtkit/layers/attention.py`.

Notation:

    B  sentences          S  source length         T   target length        K   beam size        N  = B*K hypotheses
    V  target vocabulary  E  embedding size        H   hidden size          L   layers
    Hm size of an encoder state, both directions together
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from nmtkit.core.settings import Field, Width, model_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.attention import SCORES, Additive, Attention, Draws, ScoreKind
from nmtkit.layers.elementary import Maxout
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import Bridge, StackedCells, init_weights
from nmtkit.models.base import MODELS, ModelOutput, VocabularySizes, rows_per_sentence
from nmtkit.models.output import project_to_vocabulary
from nmtkit.models.rnn.recurrent import (
    AttentionMemory,
    RecurrentModel,
    RecurrentState,
    StackedConfig,
)


class RnnSearchConfig(StackedConfig):
    """Settings of RNNsearch.

    The defaults suit small corpora. The paper uses embedding size 620, hidden size 1000, attention size 1000 and maxout
    size 500.
    """

    kind: Literal["rnnsearch"] = "rnnsearch"
    attention_size: Width = Field(default=256, ge=1)
    """Number of hidden units in an additive score; other scores do not use this setting."""
    maxout_size: Width = Field(default=256, ge=1)
    """Number of maxout units between the decoder and the output layer."""
    bidirectional: bool = True
    """Whether the encoder reads the source in both directions, as in Bahdanau et al. 2015, section 3.2."""
    score: ScoreKind = "additive"
    """Score that compares a decoder state with encoder states; the paper uses additive."""
    max_positions: Width = Field(default=1024, ge=1)
    """Maximum source length for a location score, in tokens including EOS, because the score has a row of weights for
    each source position (Luong et al. 2015, eq. 8); other scores have no limit."""
    hard_attention: bool = False
    """Whether each word attends to a single position, which is sampled in training (objective hard_attention)."""
    order: Literal["appendix", "look_generate_update"] = "appendix"
    """Order of attention and update. appendix: attention does not depend on the last word. look_generate_update:
    attention depends on the last word, as in the authors' program."""
    readout_state: Literal["previous", "current"] = "previous"
    """The state that predicts a word: the state before the update (previous), as in the paper's appendix, or after the
    update (current), as in eq. 4. With `order: look_generate_update`, it is always the query of the attention."""

    @model_validator(mode="after")
    def _fits_together(self) -> "RnnSearchConfig":
        self.require_equal_where_tied("maxout_size", "embedding_size")
        self.require_score_fits(self.score)
        return self


@dataclass(frozen=True)
class RnnSearchState(RecurrentState):
    """Decoder state between two words."""

    context: Tensor | None
    """Last context `(N, Hm)`, zero at first; None if the next update does not read it."""


@MODELS.register("rnnsearch")
class RnnSearch(RecurrentModel[AttentionMemory, RnnSearchState]):
    """A recurrent encoder and a decoder with attention; see the module docstring."""

    Config = RnnSearchConfig

    def __init__(self, config: RnnSearchConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes, config.reverse_source)
        hidden_size = config.hidden_size
        memory_size = config.memory_size
        self.updates_first = config.order == "look_generate_update"
        self.predicts_before_update = config.readout_state == "previous"
        # Scores can be registered by users, so their four sizes are passed by position.
        build_score = SCORES.get(config.score)
        score = build_score(hidden_size, memory_size, config.attention_size, config.max_positions)
        self.attention = Attention(score, hard=config.hard_attention)
        # The bridge reads only the backward direction: h_1 in A.2.2.
        self.bridge = Bridge(
            kind="tanh",
            cell=config.cell,
            input_size=config.width,
            hidden_size=hidden_size,
            layers=config.layers,
        )
        inputs_size = config.embedding_size + memory_size
        self.decoder = StackedCells(
            config.cell,
            inputs_size,
            hidden_size=hidden_size,
            layers=config.layers,
            dropout=config.dropout,
        )
        self.readout = Maxout(hidden_size + inputs_size, config.maxout_size)
        self.output = nn.Linear(config.maxout_size, sizes["tgt"])
        init_weights(self, config.initialisation)
        if config.initialisation == "paper" and isinstance(score, Additive):
            nn.init.normal_(score.query.weight, std=0.001)
            nn.init.normal_(score.key.weight, std=0.001)
            nn.init.zeros_(score.energy)
        self.tie_output()

    def encode(self, batch: Batch) -> AttentionMemory:
        """Runs the encoder and projects the keys. The initial state is `s_0 = tanh(W_s h_1)`, A.2.2."""
        return self.attention_memory(batch, self.attention.score.project, self.bridge)

    @override
    def start(self, memory: AttentionMemory) -> RnnSearchState:
        context = torch.zeros_like(memory.values[:, 0]) if self.updates_first else None  # (B, Hm)
        return RnnSearchState(memory.hidden, memory.cell, context)

    @override
    def advance(
        self,
        tokens: Tensor,
        state: RnnSearchState,
        memory: AttentionMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, RnnSearchState]:
        embedded = self.dropout(self.tgt_embedding(tokens))  # (N, E)
        readout_states, context, weights, state = self._step(
            embedded, state, memory
        )  # (N, H), (N, Hm), (N, S)
        features = torch.cat([readout_states, embedded, context], -1)  # (N, H+E+Hm)
        return ModelOutput(features, weights), state

    @override
    def unroll(
        self, batch: Batch, memory: AttentionMemory, need_attention: bool = False
    ) -> ModelOutput:
        ids = batch.targets.shifted  # (B, T)
        embedded = self.dropout(self.tgt_embedding(ids))  # (B, T, E)
        draws = self.attention.draws(batch.soft)
        state = self.start(memory)
        step_states = []
        step_contexts = []
        step_weights = []
        for word_vectors in embedded.unbind(1):  # (B, E)
            readout_states, context, weights, state = self._step(
                word_vectors, state, memory, draws=draws
            )  # (B, H), (B, Hm), (B, S)
            step_states.append(readout_states)
            step_contexts.append(context)
            step_weights.append(weights)
        states = torch.stack(step_states, 1)  # (B, T, H)
        contexts = torch.stack(step_contexts, 1)  # (B, T, Hm)
        features = torch.cat([states, embedded, contexts], -1)  # (B, T, H+E+Hm)
        attention = None
        if need_attention or draws is not None:
            attention = torch.stack(step_weights, 1)  # (B, T, S)
        path = None
        if draws is not None:
            path = draws.path()  # (B, T)
        return ModelOutput(features, attention, path=path)

    def logits(self, output: ModelOutput, memory: AttentionMemory) -> Tensor:
        """Returns the logits of A.2.2, `(..., V)`, by applying maxout and the output layer to `[s; E y_{i-1}; c_i]`."""
        maxout = self.readout(output.features)  # (..., maxout_size)
        return project_to_vocabulary(self.output, self.dropout(maxout), memory.shortlist)

    def _step(
        self,
        embedded: Tensor,
        state: RnnSearchState,
        memory: AttentionMemory,
        draws: Draws | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, RnnSearchState]:
        """Runs one step, given the word vectors of y_{i-1}, `(N, E)`.

        Returns the states that predict y_i, `(N, H)`, the contexts c_i `(N, Hm)`, the weights `(N, S)`, and the state
        of the decoder for the next step.
        """
        hypotheses = embedded.shape[0]
        beam_size = rows_per_sentence(hypotheses, memory)
        if self.updates_first:
            # look_generate_update: update with y_{i-1} and c_{i-1}, then attend. The new state s_{i-1} is the query,
            # and it predicts y_i.
            assert state.context is not None, "`start` must set the context"
            state = self._update(embedded, state.context, state)
        query = state.hidden[:, -1]  # (N, H), s_{i-1}
        hidden_size = query.shape[1]
        queries = query.reshape(-1, beam_size, hidden_size)  # (B, K, H)
        contexts, weights = self.attention(
            queries, memory.keys, memory.values, mask=memory.mask
        )  # (B, K, Hm), (B, K, S)
        if draws is not None:
            contexts = draws.sample_contexts(weights, memory.values)  # (B, K, Hm)
        context = contexts.flatten(0, 1)  # (N, Hm), c_i
        weights = weights.flatten(0, 1)  # (N, S)
        if self.updates_first:
            state = replace(state, context=context)
            return query, context, weights, state
        state = self._update(embedded, context, state)
        if self.predicts_before_update:
            # Appendix: attend with s_{i-1}, then update to s_i with y_{i-1} and c_i. The query s_{i-1} predicts y_i.
            return query, context, weights, state
        # Eq. 4: attend and update as in the appendix. The new state, s_i, predicts y_i.
        readout_states = state.hidden[:, -1]  # (N, H), s_i
        return readout_states, context, weights, state

    def _update(self, embedded: Tensor, context: Tensor, state: RnnSearchState) -> RnnSearchState:
        inputs = torch.cat([embedded, context], -1)  # (N, E+Hm)
        hidden, cell = self.decoder(inputs, state.hidden, state.cell)  # (N, L, H), (N, L, H)
        return replace(state, hidden=hidden, cell=cell)
