"""The LSTMN as encoder and decoder: Cheng, Dong and Lapata 2016, section 4, shallow attention fusion.

The encoder and the decoder are LSTMs whose layers attend to all their previous states (intra-attention); `layers.py`
has the equations. For each target word x_t, the decoder first attends to the source with its current state
(inter-attention), as in Bahdanau et al. 2015; g_j is the encoder's top-layer output for source word j:

    p = softmax_j(u^T tanh(W_g g_j + W_h h_{t-1} + b))      g~_t = sum_j p_j g_j
    h_t = LSTMN([x_t; g~_t])                                p(y_t) = softmax(W h_t + b)

The paper does not specify the decoder's initial state; here its tapes are empty, and h_0 is zero.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from nmtkit.core.settings import Depth, Field, model_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.attention import Additive, Attention
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import build_rnn, init_weights
from nmtkit.models.base import MODELS, ModelOutput, VocabularySizes
from nmtkit.models.rnn.recurrent import (
    AttentionMemory,
    RecurrentConfig,
    RecurrentModel,
    RecurrentState,
)
from nmtkit.zoo.lstmn.layers import LookBack, look_back_step


class LstmnSeq2SeqConfig(RecurrentConfig):
    """Settings of the LSTMN encoder-decoder. The defaults suit small corpora; the paper does not cover translation."""

    kind: Literal["lstmn_seq2seq"] = "lstmn_seq2seq"
    layers: Depth = Field(default=1, ge=1)
    """Number of layers in the encoder and in the decoder, stacked as in Cheng et al. 2016, section 3.3."""

    @model_validator(mode="after")
    def _fits_together(self) -> "LstmnSeq2SeqConfig":
        self.require_equal_where_tied("hidden_size", "embedding_size")
        return self

    def encoder(self) -> Any:
        """Returns a new encoder without attention weights."""
        return build_rnn("lstm", self.embedding_size, self.hidden_size, self.layers)


@MODELS.register("lstmn_seq2seq")
class LstmnSeq2Seq(RecurrentModel[AttentionMemory, RecurrentState]):
    """Attends to the source, then to itself.

    In its state, `hidden` is the top h, and `cell` is the `[h~; c~]` of all layers.
    """

    Config = LstmnSeq2SeqConfig
    encoder: Any

    def __init__(self, config: LstmnSeq2SeqConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        embedding, hidden, layers = config.embedding_size, config.hidden_size, config.layers
        self.attention = Attention(Additive(hidden, hidden, hidden, 0))
        self.decoder: Any = build_rnn("lstm", embedding + hidden, hidden, layers, config.dropout)
        self.encoder_looks: Any = nn.ModuleList(map(LookBack, self.encoder.all_weights))
        self.decoder_looks = nn.ModuleList(map(LookBack, self.decoder.all_weights))
        self.output = nn.Linear(hidden, sizes["tgt"])
        init_weights(self, "xavier")
        self.tie_output()

    def encode(self, batch: Batch) -> AttentionMemory:
        """Runs the encoder and projects the keys once. Padding is on the right, so no real word attends to it."""
        states = self.src_embedding(batch.inputs.ids)
        for look, weights in zip(self.encoder_looks, self.encoder.all_weights, strict=True):
            states, _ = look.run(self.dropout(states), weights)
        values = self.dropout(states)  # (B,S,H)
        start = torch.zeros_like(values[:, :1])  # (B,1,H)
        found, keys = (
            start.repeat(1, len(self.decoder_looks), 2),
            self.attention.score.project(values),
        )
        return AttentionMemory(batch.inputs.mask, batch.inputs.copy, start, found, values, keys)

    def advance(
        self,
        tokens: Tensor,
        state: RecurrentState,
        memory: AttentionMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, RecurrentState]:
        """Runs one decoding step for every hypothesis."""
        query = state.hidden.view(len(memory.mask), -1, state.hidden.shape[2])  # (B,K,H)
        looked = self.attention(query, memory.keys, memory.values, memory.mask)
        context, weights = (part.flatten(0, 1) for part in looked)  # (N,H), (N,S)
        read = torch.cat([self.dropout(self.tgt_embedding(tokens)), context], 1)
        top, found = look_back_step(self.decoder, self.decoder_looks, read, state.cell, cache)
        return ModelOutput(self.dropout(top), weights), RecurrentState(top[:, None], found)
