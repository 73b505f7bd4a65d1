"""The encoder-decoders of Cho et al. 2014 and Sutskever et al. 2014, which encode the source as a single vector.

With `feed_context` and a `maxout_size`, this is the RNN encoder-decoder of Cho et al. 2014 (appendix A.1; also
RNNencdec in Bahdanau et al. 2015):

    c   = tanh(V h)                                  h: the encoder's final state; c: a summary of the source
    s_0 = tanh(V' c)                                 the bridge
    s_t = GRU([E y_{t-1}; c], s_{t-1})
    p(y_t) = softmax(W_o maxout(O [s_t; E y_{t-1}; c]))

Without `feed_context`, with several LSTM layers and `reverse_source`, this is the model of Sutskever et al. 2014: the
final state of the encoder becomes the initial state of the decoder, layer by layer, and the source is read backwards.
With `initialisation: paper`, weights are uniform between -0.08 and 0.08 without `feed_context`, as in Sutskever et al.,
and otherwise initialized as in Bahdanau et al. The final states of both directions of a bidirectional encoder are
concatenated.

In Cho's decoder, the reset gate is also applied to the summary, `r * (U h + C c)`. Here, as in the program of Bahdanau
et al., the summary is an ordinary input, to which the gate is not applied. As in that program, the output layers have
biases.

Notation: as in `models/base.py`; D is the size of the encoder's final state.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from nmtkit.core.settings import Field, Width, model_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import Maxout
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import (
    Bridge,
    BridgeKind,
    build_rnn,
    init_weights,
    layers_first,
    rnn_step,
    run_rnn,
)
from nmtkit.models.base import MODELS, ModelOutput, VocabularySizes, rows_per_sentence
from nmtkit.models.output import project_to_vocabulary
from nmtkit.models.rnn.recurrent import (
    RecurrentMemory,
    RecurrentModel,
    RecurrentState,
    StackedConfig,
)


class RnnEncDecConfig(StackedConfig):
    """Settings of models without attention. The defaults give a small version of the model of Cho et al. 2014."""

    kind: Literal["rnn_encdec"] = "rnn_encdec"
    maxout_size: Width | None = Field(default=256, ge=1)
    """Number of maxout units before the output layer; null: the output layer reads the decoder's top state."""
    feed_context: bool = True
    """Whether each step and the output layer read a summary of the source, and the decoder's initial state is a
    projection of it, as in Cho et al. 2014; otherwise only the initial state depends on the source: it is the encoder's
    final state, as in Sutskever et al. 2014."""

    @model_validator(mode="after")
    def _fits_together(self) -> "RnnEncDecConfig":
        output_size = "hidden_size" if self.maxout_size is None else "maxout_size"
        self.require_equal_where_tied("embedding_size", output_size)
        if self.bridge_kind == "copy":
            self.require_copy_fits("set feed_context to true")
        return self

    @property
    def bridge_kind(self) -> BridgeKind:
        """The initial state of the decoder: a projection of the source summary, or the encoder's final state."""
        return "tanh" if self.feed_context else "copy"


@dataclass(frozen=True)
class RnnEncDecMemory(RecurrentMemory):
    """Initial state of the decoder, and the summary of the source."""

    summary: Tensor | None
    """Summary of the source (c), `(B, H)`; None without `feed_context`."""


@MODELS.register("rnn_encdec")
class RnnEncDec(RecurrentModel[RnnEncDecMemory, RecurrentState]):
    """An encoder that turns the source into one vector, and a decoder; see the module docstring."""

    Config = RnnEncDecConfig
    has_attention = False

    def __init__(self, config: RnnEncDecConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes, config.reverse_source)
        hidden_size = config.hidden_size
        self.summary = nn.Linear(config.memory_size, hidden_size) if config.feed_context else None
        self.bridge = Bridge(
            kind=config.bridge_kind,
            cell=config.cell,
            input_size=hidden_size if config.feed_context else config.memory_size,
            hidden_size=hidden_size,
            layers=config.layers,
        )
        inputs_size = config.embedding_size
        if config.feed_context:
            inputs_size += hidden_size
        self.decoder = build_rnn(
            config.cell,
            inputs_size,
            hidden_size=hidden_size,
            layers=config.layers,
            dropout=config.dropout,
        )
        self.readout = (
            None
            if config.maxout_size is None
            else Maxout(hidden_size + inputs_size, config.maxout_size)
        )
        self.output = nn.Linear(config.maxout_size or hidden_size, sizes["tgt"])
        init_weights(self, config.initialisation)
        if config.initialisation == "paper" and not config.feed_context:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -0.08, 0.08)
        self.tie_output()

    @override
    def encode(self, batch: Batch) -> RnnEncDecMemory:
        encoded = self.encode_source(batch, self.bridge.reads_cell)
        final_states = encoded.hidden  # (B, L, D)
        summary = None
        if self.summary is not None:
            top_state = final_states[:, -1]  # (B, D), h
            summary = torch.tanh(self.summary(top_state))  # (B, H), c
            final_states = summary.unsqueeze(1)  # (B, 1, H)
        hidden, cell = self.bridge(final_states, encoded.cell)  # (B, L, H), (B, L, H)
        return RnnEncDecMemory(
            mask=batch.inputs.mask,
            copy=batch.inputs.copy,
            hidden=hidden,
            cell=cell,
            summary=summary,
        )

    @override
    def advance(
        self,
        tokens: Tensor,
        state: RecurrentState,
        memory: RnnEncDecMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, RecurrentState]:
        inputs = self._inputs(tokens.unsqueeze(1), memory).squeeze(1)  # (N, E) or (N, E+H)
        hidden, cell = rnn_step(
            self.decoder, inputs, hidden=state.hidden, cell=state.cell
        )  # (N, L, H), (N, L, H)
        features = self._features(hidden[:, -1], inputs)  # (N, *)
        return ModelOutput(features), RecurrentState(hidden, cell)

    def unroll(
        self, batch: Batch, memory: RnnEncDecMemory, need_attention: bool = False
    ) -> ModelOutput:
        """Runs all positions at once. Padding is on the right, so no real position reads it."""
        inputs = self._inputs(batch.targets.shifted, memory)  # (B, T, E) or (B, T, E+H)
        states, _ = run_rnn(
            self.decoder, inputs, layers_first(memory.hidden, memory.cell)
        )  # (B, T, H)
        return ModelOutput(self._features(states, inputs))

    def logits(self, output: ModelOutput, memory: RnnEncDecMemory) -> Tensor:
        """Returns logits `(..., V)`, with an optional maxout layer as in Cho et al. 2014, appendix A.1.2."""
        features = output.features  # (..., *)
        if self.readout is not None:
            features = self.readout(features)  # (..., maxout_size)
        features = self.dropout(features)  # (..., *)
        return project_to_vocabulary(self.output, features, memory.shortlist)

    def _inputs(self, tokens: Tensor, memory: RnnEncDecMemory) -> Tensor:
        """Returns the inputs of the decoder for words `(N, T)`: word vectors and, if used, the summary."""
        words: Tensor = self.tgt_embedding(tokens)  # (N, T, E)
        words = self.dropout(words)  # (N, T, E)
        if memory.summary is None:
            return words
        hypotheses, steps = tokens.shape
        beam_size = rows_per_sentence(hypotheses, memory)
        summary = memory.summary.repeat_interleave(beam_size, 0)  # (N, H)
        summary = summary.unsqueeze(1)  # (N, 1, H)
        summary = summary.expand(-1, steps, -1)  # (N, T, H)
        return torch.cat([words, summary], -1)  # (N, T, E+H)

    def _features(self, states: Tensor, inputs: Tensor) -> Tensor:
        """Returns the features for `logits`, given decoder states `(..., H)` and the decoder's inputs `(..., *)`."""
        if self.readout is None:
            return states
        return torch.cat([states, inputs], -1)
