"""The LSTMN: Cheng, Dong and Lapata 2016, "Long short-term memory-networks for machine reading".

An LSTM that keeps the hidden state and the memory cell of every word, on two tapes, in place of the last ones alone.
Before it reads word x_t it looks back at the tapes (section 3.2):

    a_i = v^T tanh(W_h h_i + W_x x_t + W_h~ h~_{t-1})      s = softmax(a), i = 1 ... t-1
    h~_t = sum_i s_i h_i                                   c~_t = sum_i s_i c_i

and goes on as an LSTM does, from what it found there instead of from h_{t-1} and c_{t-1}:

    [i; f; o; c^] = [sigmoid; sigmoid; sigmoid; tanh](W [h~_t; x_t] + b)
    c_t = f * c~_t + i * c^                                h_t = o * tanh(c_t)

So it is an LSTM where s_{t-1} is 1. At the first word h~ and c~ are zero. Layers are stacked, each with tapes of its
own; x_t of an upper one is h_t of the one below (section 3.3, whose skip connections are not done here). Dropout is
that of `rnn_lm`; `recurrent_dropout` is of h~ where the gates read it.

h~_{t-1} stands in a_i: the words are read one after the other in training, too.
"""

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.data.batch import Batch
from nmtkit.language_models.rnn_lm import RecurrentLMConfig, RnnLM, RnnLMState
from nmtkit.layers.attention import Additive
from nmtkit.layers.elementary import dropout
from nmtkit.layers.kernels import masked_softmax
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import init_weights
from nmtkit.models.base import MODELS, Memory, ModelOutput, VocabularySizes


class LstmnConfig(RecurrentLMConfig):
    """The paper's language model has 300 units, and 1 layer or 3."""

    kind: Literal["lstmn"] = "lstmn"
    """Which model."""


@MODELS.register("lstmn")
class Lstmn(RnnLM):
    """An LSTM that looks back at all its states; see the head of this file.

    Of its state, `hidden` and `cell` are h~ and c~ of the last word. The tapes are in the cache: an entry is
    `[h; c; key]`, `(3H,)`.
    """

    Config = LstmnConfig
    looks_back = True

    def __init__(self, config: LstmnConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        width = config.hidden_size
        self.looks = nn.ModuleList(Additive(2 * width, width, width, 0) for _ in range(config.layers))
        init_weights(self.looks, "xavier")

    def advance(
        self, tokens: Tensor, state: RnnLMState, memory: Memory, cache: KVCache, need_attention: bool = False
    ) -> tuple[ModelOutput, RnnLMState]:
        """One word; without dropout, which is for whole texts."""
        inputs, found = self.tgt_embedding(tokens), []
        with torch.autocast(tokens.device.type, enabled=False):  # see `run_rnn`
            for number, weights in enumerate(self.decoder.all_weights):
                inputs = inputs.to(weights[0].dtype)
                cache.append(number, inputs.repeat(1, 3))  # takes the place of this word, which it does not look at
                tape, visible = cache.read(number), cache.visible_before()
                entries, back, _ = self._step(number, inputs, state.hidden[:, number], tape, visible, weights)
                cache.append(number, entries)
                inputs = entries[:, : inputs.shape[1]]
                found.append(back.chunk(2, 1))
        return ModelOutput(inputs), RnnLMState(*(torch.stack(part, 1) for part in zip(*found, strict=True)))

    def unroll(self, batch: Batch, memory: Memory, need_attention: bool = False) -> ModelOutput:
        """Layer by layer, word by word. Padding stands on the right, so that no real word looks at it."""
        states = self._entered(batch.targets.shifted)
        for number in range(self.decoder.num_layers):
            states = self._dropped(self._layer_with_looks(number, states)[0])
        return ModelOutput(states)

    @torch.no_grad()
    def attentions(self, batch: Batch) -> Tensor:
        """The weights s of every layer over the inputs, BOS first, `(B,L,T,T)`: row t is where input t looks back.

        Row 0 is zero; every other one sums to one over the columns before t.
        """
        states, looks = self._entered(batch.targets.shifted), []
        for number in range(self.decoder.num_layers):
            states, weights = self._layer_with_looks(number, states)
            looks.append(torch.stack([F.pad(one, (0, len(weights) - one.shape[1])) for one in weights], 1))
        return torch.stack(looks, 1)

    def _layer_with_looks(self, number: int, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        """A layer over `(B,T,H)`: h `(B,T,H)`, and s of each word over the words before it, T x `(B,t)`."""
        of_inputs, of_hidden, *biases = self.decoder.all_weights[number]
        kept = dropout(torch.ones_like(of_hidden[:1]), self.rates.recurrent_dropout, self.training)
        weights: Sequence[Tensor] = [of_inputs, of_hidden * kept, *biases]
        states, width, looks = states.to(of_hidden.dtype), states.shape[2], []
        # What nobody looks at begins the tape, so that it is never empty.
        tape = states.new_zeros(len(states), 1, 3 * width)
        visible = torch.arange(1 + states.shape[1], device=states.device)[None, None] > 0
        before = states.new_zeros(len(states), width)
        with torch.autocast(states.device.type, enabled=False):  # see `run_rnn`
            for place, inputs in enumerate(states.unbind(1), start=1):
                entries, back, look = self._step(number, inputs, before, tape, visible[:, :, :place], weights)
                before = back[:, :width]
                tape = torch.cat([tape, entries[:, None]], 1)
                looks.append(look.squeeze(1)[:, 1:])
        return tape[:, 1:, :width], looks

    def _step(
        self, number: int, inputs: Tensor, before: Tensor, tape: Tensor, visible: Tensor, weights: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step of a layer, of `weights`: its entries `(N,3H)`, `[h~; c~]` `(N,2H)`, and s `(B,K,*)`.

        From inputs and the h~ before `(N,H)`, and of B sentences the tape `(B,*,3H)` and what is seen of it `(B,K,*)`.
        """
        score, width = cast(Additive, self.looks[number]), inputs.shape[1]
        query = torch.cat([inputs, before.to(inputs.dtype)], 1).view(len(tape), -1, 2 * width)  # (B,K,2H)
        look = masked_softmax(score(query, tape[:, :, 2 * width :]), visible)
        back = (look.to(tape.dtype) @ tape[:, :, : 2 * width]).flatten(0, 1)  # (N,2H)
        # Cells of lower precision are those of `nmtkit.layers.inference.quantize_for_inference`.
        steps: Any = getattr(self.decoder, "cells", None) or [torch.lstm_cell] * self.decoder.num_layers
        hidden, cell = steps[number](inputs, back.chunk(2, 1), *weights)
        return torch.cat([hidden, cell, score.project(hidden).to(hidden.dtype)], 1), back, look
