"""GNMT: Wu et al. 2016, "Google's Neural Machine Translation System", section 3: deep residual LSTMs with attention.

The bottom layer of the encoder reads the source in both directions, and all other layers in one direction; x_t is the
output of the top layer at source word t. For each target word w_i, the decoder first attends to the source with
y_{i-1}, the state of its bottom layer after the previous word. All L layers read the context a_i:

    s_t = v^T tanh(W y_{i-1} + U x_t + b),  p_t = exp s_t / sum_t exp s_t,  a_i = sum_t p_t x_t    eq. 4
    y_i = x^1 = LSTM_1([E w_{i-1}; a_i]),   x^2 = LSTM_2([x^1; a_i])                               eq. 5
    x^l = LSTM_l([x^{l-1}; a_i]) + x^{l-1},   l = 3 ... L                                          eq. 6
    p(w_i) = softmax(W_s x^L)

Only the bottom layer has to run word by word, because the attention depends on its state (section 3.3). In training,
each of the other layers reads the whole target in one call. The paper does not define the initial state of the decoder;
here it is zero in all layers, so y_0 is zero, too.

Notation: as in `models/base.py`.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from nmtkit.core.settings import Depth, Field, model_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.attention import Additive, Attention
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import (
    Bridge,
    Initialisation,
    RecurrentEncoder,
    build_rnn,
    init_weights,
    layers_first,
    rnn_step,
    rows_first,
    run_rnn,
)
from nmtkit.models.base import MODELS, ModelOutput, VocabularySizes
from nmtkit.models.rnn.recurrent import (
    AttentionMemory,
    RecurrentConfig,
    RecurrentModel,
    RecurrentState,
)


class GnmtConfig(RecurrentConfig):
    """Settings of GNMT. The defaults suit small corpora; the paper uses 8 layers, and a size of 1024 throughout."""

    kind: Literal["gnmt"] = "gnmt"
    # At least two, since a single layer would be bidirectional, with states of size 2H for the attention.
    layers: Depth = Field(default=4, ge=2)
    """Number of LSTM layers in the encoder and in the decoder; only the bottom encoder layer is bidirectional."""
    initialisation: Initialisation = "xavier"
    """Initial weights. xavier: Xavier initialization. paper: as in the paper, uniform between -0.04 and 0.04."""

    @model_validator(mode="after")
    def _fits_together(self) -> "GnmtConfig":
        self.require_equal_where_tied("hidden_size", "embedding_size")
        return self

    @override
    def encoder(self) -> RecurrentEncoder:
        return RecurrentEncoder(
            cell="lstm",
            input_size=self.embedding_size,
            hidden_size=self.hidden_size,
            layers=self.layers,
            bidirectional="bottom",
            residual=True,
            dropout=self.dropout,
        )


@MODELS.register("gnmt")
class Gnmt(RecurrentModel[AttentionMemory, RecurrentState]):
    """A decoder that attends, then runs all its layers; see the module docstring."""

    Config = GnmtConfig

    def __init__(self, config: GnmtConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        hidden_size = config.hidden_size
        self.bridge = Bridge(
            kind="zero",
            cell="lstm",
            input_size=hidden_size,
            hidden_size=hidden_size,
            layers=config.layers,
        )
        score = Additive(
            query_size=hidden_size,
            memory_size=hidden_size,
            attention_size=hidden_size,
            max_positions=0,  # not used by this score
        )
        self.attention = Attention(score)
        self.decoder: Any = nn.ModuleList()  # Any, since torch types its elements only as modules
        for layer in range(config.layers):
            states_size = config.embedding_size if layer == 0 else hidden_size
            self.decoder.append(build_rnn("lstm", states_size + hidden_size, hidden_size))
        self.output = nn.Linear(hidden_size, sizes["tgt"])
        # Not `config.initialisation`, because in `init_weights`, "paper" is the initialization of a different paper.
        init_weights(self, "xavier")
        self.tie_output()
        if config.initialisation == "paper":
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -0.04, 0.04)

    @override
    def encode(self, batch: Batch) -> AttentionMemory:
        return self.attention_memory(batch, self.attention.score.project, self.bridge)

    @override
    def advance(
        self,
        tokens: Tensor,
        state: RecurrentState,
        memory: AttentionMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, RecurrentState]:
        ids = tokens.unsqueeze(1)  # (N, 1)
        output, state = self._decode(ids, state, memory)  # (N, 1, *)
        output = output.mapped(lambda tensor: tensor.squeeze(1))  # (N, *)
        return output, state

    @override
    def unroll(
        self, batch: Batch, memory: AttentionMemory, need_attention: bool = False
    ) -> ModelOutput:
        output, _ = self._decode(batch.targets.shifted, self.start(memory), memory)
        return output

    def _decode(
        self, ids: Tensor, state: RecurrentState, memory: AttentionMemory
    ) -> tuple[ModelOutput, RecurrentState]:
        """Computes equations 4 to 6 for words `(N, T)`; returns outputs `(N, T, *)` and the state after all words.

        The attention weights are always part of the output, since computing them costs nothing extra.
        """
        assert state.cell is not None, "an LSTM has memory cells"
        initial_hidden = torch.split(state.hidden, 1, 1)  # L x (N, 1, H)
        initial_cell = torch.split(state.cell, 1, 1)  # L x (N, 1, H)
        # Any, because the type of a cell includes None, which occurs only with a GRU.
        final_hidden: list[Any] = []
        final_cell: list[Any] = []

        # Equations 4 and 5: the bottom layer runs word by word, because the attention for word i depends on y_{i-1}.
        n_sentences = len(memory.mask)
        hidden = initial_hidden[0]  # (N, 1, H)
        cell: Tensor | None = initial_cell[0]  # (N, 1, H)
        bottom_states = []
        step_contexts = []
        step_weights = []
        words = self.dropout(self.tgt_embedding(ids))  # (N, T, E)
        for word in words.unbind(1):  # (N, E)
            query = hidden.reshape(n_sentences, -1, hidden.shape[2])  # (B, K, H), y_{i-1}
            context, weights = self.attention(
                query, memory.keys, memory.values, mask=memory.mask
            )  # (B, K, H), (B, K, S)
            context = context.flatten(0, 1)  # (N, H), a_i
            inputs = torch.cat([word, context], -1)  # (N, E+H)
            hidden, cell = rnn_step(
                self.decoder[0], inputs, hidden=hidden, cell=cell
            )  # (N, 1, H), (N, 1, H)
            bottom_states.append(hidden[:, 0])
            step_contexts.append(context)
            step_weights.append(weights.flatten(0, 1))
        final_hidden.append(hidden)
        final_cell.append(cell)
        states = torch.stack(bottom_states, 1)  # (N, T, H), x^1
        contexts = torch.stack(step_contexts, 1)  # (N, T, H)

        # Equations 5 and 6: each of the other layers runs over all words at once.
        for index, layer in enumerate(self.decoder[1:], start=1):  # computes x^l with l = index + 1
            inputs = torch.cat([self.dropout(states), contexts], -1)  # (N, T, 2H)
            hidden = initial_hidden[index]  # (N, 1, H)
            cell = initial_cell[index]  # (N, 1, H)
            if ids.shape[1] == 1:
                # For a single word, `rnn_step` has less overhead than calling the layer.
                hidden, cell = rnn_step(
                    layer, inputs[:, 0], hidden=hidden, cell=cell
                )  # (N, 1, H), (N, 1, H)
                layer_states = hidden
            else:
                layer_states, final_state = run_rnn(
                    layer, inputs, layers_first(hidden, cell)
                )  # (N, T, H)
                hidden, cell = rows_first(final_state)  # (N, 1, H), (N, 1, H)
            final_hidden.append(hidden)
            final_cell.append(cell)
            # Residual connections begin with x^3. They bypass the dropout, as in `RecurrentEncoder`.
            has_residual = index >= 2
            states = layer_states + states if has_residual else layer_states  # (N, T, H), x^l
        attention = torch.stack(step_weights, 1)  # (N, T, S)
        output = ModelOutput(self.dropout(states), attention)
        return output, RecurrentState(torch.cat(final_hidden, 1), torch.cat(final_cell, 1))
