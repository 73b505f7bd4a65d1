"""GNMT: Wu et al. 2016, "Google's Neural Machine Translation System", section 3: deep residual LSTMs with attention.

The encoder's bottom layer reads the source in both directions, the others in one; x_t is the top layer's answer to
source word t. For each target word w_i the decoder first looks at the source, with what its bottom layer gave for the
word before, y_{i-1}. All L layers read what it found, the context a_i:

    s_t = v^T tanh(W y_{i-1} + U x_t + b),  p_t = exp s_t / sum_t exp s_t,  a_i = sum_t p_t x_t    eq. 4
    y_i = x^1 = LSTM_1([E w_{i-1}; a_i]),   x^2 = LSTM_2([x^1; a_i])                               eq. 5
    x^l = LSTM_l([x^{l-1}; a_i]) + x^{l-1},   l = 3 ... L                                          eq. 6
    p(w_i) = softmax(W_s x^L)

Only the bottom layer waits for the attention (section 3.3): in training each of the others reads the whole target in
one call. The paper does not say how the decoder begins; here its state is zero, y_0 too.
"""

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from nmtkit.core.settings import Depth, Field, model_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.layers import recurrent
from nmtkit.layers.attention import Additive, Attention
from nmtkit.models.base import MODELS, ModelOutput, VocabularySizes
from nmtkit.models.rnn.recurrent import AttentionMemory, RecurrentConfig, RecurrentModel, RecurrentState


class GnmtConfig(RecurrentConfig):
    """The defaults suit small corpora; the paper has 8 layers, and 1024 units everywhere."""

    kind: Literal["gnmt"] = "gnmt"
    """Which model."""
    layers: Depth = Field(default=4, ge=2)
    """LSTM layers of the encoder, the bottom one in both directions, and of the decoder."""
    initialisation: recurrent.Initialisation = "xavier"
    """How weights start: xavier, or as in the paper (uniform between -0.04 and 0.04)."""

    @model_validator(mode="after")
    def _fits_together(self) -> "GnmtConfig":
        self.require_equal_where_tied("hidden_size", "embedding_size")
        return self

    def encoder(self) -> recurrent.RecurrentEncoder:
        """A new encoder: section 3.2."""
        sizes = self.embedding_size, self.hidden_size, self.layers
        return recurrent.RecurrentEncoder("lstm", *sizes, "bottom", residual=True, dropout=self.dropout)


@MODELS.register("gnmt")
class Gnmt(RecurrentModel[AttentionMemory, RecurrentState]):
    """Looks, then runs all layers; see the head of this file."""

    Config = GnmtConfig

    def __init__(self, config: GnmtConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        hidden, inputs = config.hidden_size, [config.embedding_size] + [config.hidden_size] * (config.layers - 1)
        self.bridge = recurrent.Bridge("zero", "lstm", hidden, hidden, config.layers)
        self.attention = Attention(Additive(hidden, hidden, hidden, 0))
        self.decoder: Any = nn.ModuleList(recurrent.build_rnn("lstm", size + hidden, hidden) for size in inputs)
        self.output = nn.Linear(hidden, sizes["tgt"])
        recurrent.init_weights(self, "xavier")
        self.tie_output()
        for parameter in self.parameters() if config.initialisation == "paper" else ():
            nn.init.uniform_(parameter, -0.04, 0.04)

    def encode(self, batch: Batch) -> AttentionMemory:
        """Runs the encoder and projects the keys once."""
        return self.attention_memory(batch, self.attention.score.project, self.bridge)

    def advance(
        self, tokens: Tensor, state: RecurrentState, memory: AttentionMemory, cache: Any, need_attention: bool = False
    ) -> tuple[ModelOutput, RecurrentState]:
        """One word of every hypothesis."""
        output, state = self._read(tokens.unsqueeze(1), state, memory)
        return output.mapped(lambda whole: whole.squeeze(1)), state

    def unroll(self, batch: Batch, memory: AttentionMemory, need_attention: bool = False) -> ModelOutput:
        """The whole target."""
        return self._read(batch.targets.shifted, self.start(memory), memory)[0]

    def _read(self, ids: Tensor, state: RecurrentState, memory: AttentionMemory) -> tuple[ModelOutput, RecurrentState]:
        """The output `(N,T,*)` of words `(N,T)`, and the state after them, of each layer `(N,1,H)`: eqs. 4 to 6."""
        both = (torch.split(part, 1, 1) for part in (state.hidden, cast(Tensor, state.cell)))
        own, steps = list[Any](zip(*both, strict=True)), []
        for word in self.dropout(self.tgt_embedding(ids)).unbind(1):
            last = own[0][0].reshape(len(memory.mask), -1, own[0][0].shape[2])  # y_{i-1}, `(B,K,H)`
            looked = self.attention(last, memory.keys, memory.values, memory.mask)
            context, weights = (part.flatten(0, 1) for part in looked)  # `(N,H)`, `(N,S)`
            own[0] = recurrent.rnn_step(self.decoder[0], torch.cat([word, context], -1), *own[0])
            steps.append((own[0][0][:, 0], context, weights))
        states, contexts, looks = (torch.stack(parts, 1) for parts in zip(*steps, strict=True))  # `(N,T,*)`
        for number, layer in enumerate(self.decoder[1:], start=1):
            inputs = torch.cat([self.dropout(states), contexts], -1)
            if ids.shape[1] == 1:
                own[number] = recurrent.rnn_step(layer, inputs[:, 0], *own[number])
                answer = own[number][0]
            else:
                answer, after = recurrent.run_rnn(layer, inputs, recurrent.layers_first(*own[number]))
                own[number] = recurrent.rows_first(after)
            states = answer if number == 1 else answer + states
        states = self.dropout(states)
        return ModelOutput(states, looks), RecurrentState(*(torch.cat(parts, 1) for parts in zip(*own, strict=True)))
