"""The recurrent encoder-decoder of Cho et al. 2014 and Sutskever et al. 2014: no attention, the source is one vector.

With `feed_context`, and a `maxout_size`, it is the RNN encoder-decoder of Cho et al. 2014 (appendix A.1; also the
RNNencdec of Bahdanau et al. 2015): the summary `c = tanh(V h)` of the source sets the decoder's first state and is read
again in every step and by the output layer. Without, and with several LSTM layers and `reverse_source`, it is Sutskever
et al. 2014: the encoder's last state becomes the decoder's first, layer by layer, and the source is read backwards;
`initialisation: paper` is then theirs, uniform between -0.08 and 0.08, else that of Bahdanau et al. An encoder of both
directions has a last state in each, side by side.

In Cho's decoder the gate that resets the state resets the summary's part too, `r * (U h + C c)`. Here, as in the
program of Bahdanau et al., the summary is an input, which is not reset. The output layers have biases, as there.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nmtkit.core.settings import Field, Width, model_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import Maxout
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import Bridge, BridgeKind, build_rnn, init_weights, layers_first, rnn_step, run_rnn
from nmtkit.models.base import MODELS, ModelOutput, VocabularySizes, rows_per_sentence
from nmtkit.models.output import project_to_vocabulary
from nmtkit.models.rnn.recurrent import RecurrentMemory, RecurrentModel, RecurrentState, StackedConfig


class RnnEncDecConfig(StackedConfig):
    """The defaults are Cho et al. 2014 at a small size; the head of the file says which settings make which paper."""

    kind: Literal["rnn_encdec"] = "rnn_encdec"
    """Which model."""
    maxout_size: Width | None = Field(default=256, ge=1)
    """Maxout units between decoder and output words; with none, the output layer reads the decoder's top state."""
    feed_context: bool = True
    """Every step and the output layer read the summary of the source. false: only the first decoder state does."""
    bridge: BridgeKind | None = None
    """The decoder's first state: a map of the summary, with a tanh or linear; a copy of the encoder's last state; or
    zero. Unless given, tanh where `feed_context` is on, and copy where it is off."""

    @model_validator(mode="after")
    def _fits_together(self) -> "RnnEncDecConfig":
        self.require_equal_where_tied("embedding_size", "hidden_size" if self.maxout_size is None else "maxout_size")
        if self.bridge == "zero" and not self.feed_context:
            raise ValueError("bridge: zero hides the source from the decoder; set feed_context, or another bridge")
        self.require_bridge_fits(self.bridge_kind)
        return self

    @property
    def bridge_kind(self) -> BridgeKind:
        """The bridge, given or not."""
        return self.bridge or ("tanh" if self.feed_context else "copy")


@dataclass(frozen=True)
class RnnEncDecMemory(RecurrentMemory):
    """The source as the decoder sees it."""

    summary: Tensor | None
    """What `feed_context` feeds, `(B,H)`."""


@MODELS.register("rnn_encdec")
class RnnEncDec(RecurrentModel[RnnEncDecMemory, RecurrentState]):
    """Encoder, one summary vector, decoder; see the head of this file."""

    Config = RnnEncDecConfig
    has_attention = False

    def __init__(self, config: RnnEncDecConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes, config.reverse_source)
        embedding, hidden, layers, final = config.embedding_size, config.hidden_size, config.layers, config.memory_size
        context = hidden if config.feed_context else 0
        self.summary = nn.Linear(final, hidden) if config.feed_context else None
        self.bridge = Bridge(config.bridge_kind, config.cell, hidden if config.feed_context else final, hidden, layers)
        self.decoder = build_rnn(config.cell, embedding + context, hidden, layers, config.dropout)
        self.readout = None if config.maxout_size is None else Maxout(hidden + embedding + context, config.maxout_size)
        self.output = nn.Linear(config.maxout_size or hidden, sizes["tgt"])
        init_weights(self, config.initialisation)
        for parameter in self.parameters() if config.initialisation == "paper" and not config.feed_context else ():
            nn.init.uniform_(parameter, -0.08, 0.08)
        self.tie_output()

    def encode(self, batch: Batch) -> RnnEncDecMemory:
        """Runs the encoder and makes the decoder's first state of its last."""
        encoded = self.encode_source(batch, self.bridge.reads_cell)
        finals, summary = encoded.hidden, None  # (B,L,D)
        if self.summary is not None:
            summary = torch.tanh(self.summary(finals[:, -1]))
            if self.bridge.kind != "copy":
                finals = summary.unsqueeze(1)
        hidden, cell = self.bridge(finals, encoded.cell)
        return RnnEncDecMemory(batch.inputs.mask, batch.inputs.copy, hidden, cell, summary)

    def advance(
        self,
        tokens: Tensor,
        state: RecurrentState,
        memory: RnnEncDecMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, RecurrentState]:
        """One word of every hypothesis."""
        inputs = self._inputs(tokens.unsqueeze(1), memory).squeeze(1)  # (N,E) or (N,E+H)
        state = RecurrentState(*rnn_step(self.decoder, inputs, state.hidden, state.cell))
        return ModelOutput(self._features(state.hidden[:, -1], inputs)), state

    def unroll(self, batch: Batch, memory: RnnEncDecMemory, need_attention: bool = False) -> ModelOutput:
        """The whole target in one call. Padding stands on the right, so that no real position reads it."""
        inputs = self._inputs(batch.targets.shifted, memory)
        states, _ = run_rnn(self.decoder, inputs, layers_first(memory.hidden, memory.cell))
        return ModelOutput(self._features(states, inputs))

    def logits(self, readout: ModelOutput, memory: RnnEncDecMemory) -> Tensor:
        """`(...,V)`; Cho et al. 2014, appendix A.1.2, where there is a maxout layer."""
        features = readout.features if self.readout is None else self.readout(readout.features)
        return project_to_vocabulary(self.output, self.dropout(features), memory.shortlist)

    def _inputs(self, tokens: Tensor, memory: RnnEncDecMemory) -> Tensor:
        """What the decoder reads of words `(N,T)`: their vectors, and the summary of the source; `(N,T,*)`."""
        words: Tensor = self.dropout(self.tgt_embedding(tokens))  # (N,T,E)
        if memory.summary is None:
            return words
        beam = rows_per_sentence(tokens.shape[0], memory)
        summary = memory.summary.repeat_interleave(beam, 0).unsqueeze(1).expand(-1, tokens.shape[1], -1)
        return torch.cat([words, summary], -1)  # (N,T,E+H)

    def _features(self, states: Tensor, inputs: Tensor) -> Tensor:
        """What `logits` reads of states `(...,H)` and what they have read."""
        return states if self.readout is None else torch.cat([states, inputs], -1)
