"""The layers of an LSTMN: Cheng, Dong and Lapata 2016, "Long short-term memory-networks for machine reading".

An LSTMN is an LSTM that keeps the hidden states and memory cells of all words, not only of the last one, on two tapes.
Before it reads word x_t, it attends to the tapes (section 3.2):

    a_i = v^T tanh(W_h h_i + W_x x_t + W_h~ h~_{t-1})      s = softmax(a), i = 1 ... t-1
    h~_t = sum_i s_i h_i                                   c~_t = sum_i s_i c_i

and continues like an LSTM with the result instead of h_{t-1} and c_{t-1}:

    [i; f; o; c^] = [sigmoid; sigmoid; sigmoid; tanh](W [h~_t; x_t] + b)
    c_t = f * c~_t + i * c^                                h_t = o * tanh(c_t)

If s_{t-1} is 1, this is an ordinary LSTM. At the first word, h~ and c~ are zero. Layers are stacked, each with its own
tapes; x_t of an upper layer is h_t of the layer below (section 3.3, without its skip connections).

Because a_i depends on h~_{t-1}, words are read sequentially even in training.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nmtkit.layers.attention import Additive
from nmtkit.layers.elementary import dropout
from nmtkit.layers.kernels import masked_softmax
from nmtkit.layers.kv_cache import KVCache


class LookBack(Additive):
    """Attention over the tape of an LSTM layer, whose entries are `[h; c; key]`, `(3H,)`."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        hidden_size = weights[1].shape[1]
        super().__init__(weights[0].shape[1] + hidden_size, hidden_size, hidden_size, 0)

    def look(
        self, inputs: Tensor, before: Tensor, tape: Tensor, visible: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns `[h~; c~]` `(N,2H)` and s `(B,K,*)`.

        Input: x `(N,I)`, `[h~; c~]` of the previous word, the tapes of B sentences `(B,*,3H)`, and
        the visibility mask `(B,K,*)`.
        """
        size = before.shape[1] // 2
        # `split` has a single gradient; slices would have one each
        kept, keys = torch.split(tape, [2 * size, size], 2)
        query = torch.cat([inputs, before[:, :size].to(inputs.dtype)], 1)
        shares = masked_softmax(self(query.view(len(tape), -1, query.shape[1]), keys), visible)
        return (shares.to(tape.dtype) @ kept).flatten(0, 1), shares

    def entry(self, hidden: Tensor, cell: Tensor) -> Tensor:
        """Returns the tape entry for h and c `(N,H)`."""
        return torch.cat([hidden, cell, self.project(hidden).to(hidden.dtype)], 1)

    def run(self, states: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Runs a layer on texts `(B,T,I)`: returns h `(B,T,H)` and s over earlier words, T x `(B,t)`."""
        width, looks, states = weights[1].shape[1], [], states.to(weights[0].dtype)
        # starts with an invisible entry, so that the tape is never empty
        tape = states.new_zeros(len(states), 1, 3 * width)
        visible = torch.arange(1 + states.shape[1], device=states.device)[None, None] > 0
        found = tape[:, 0, : 2 * width]
        with torch.autocast(states.device.type, enabled=False):  # see `run_rnn`
            for place, inputs in enumerate(states.unbind(1), start=1):
                found, shares = self.look(inputs, found, tape, visible[:, :, :place])
                entry = self.entry(*torch.lstm_cell(inputs, found.chunk(2, 1), *weights))
                tape = torch.cat([tape, entry[:, None]], 1)
                looks.append(shares.squeeze(1)[:, 1:])
        return tape[:, 1:, :width], looks


def look_back_step(
    rnn: nn.RNNBase, looks: Any, inputs: Tensor, found: Any, cache: KVCache
) -> tuple[Tensor, Tensor]:
    """Runs all layers on the next word `(N,I)` with cached tapes: returns the top h `(N,H)` and `found`.

    `found` is `[h~; c~]` of each layer `(N,L,2H)`; the argument belongs to the previous word.
    """
    # see `rnn_step`
    cells, after = getattr(rnn, "cells", None) or [torch.lstm_cell] * rnn.num_layers, []
    with torch.autocast(inputs.device.type, enabled=False):  # see `run_rnn`
        for number, weights in enumerate(rnn.all_weights):
            inputs = dropout(inputs, rnn.dropout if number else 0.0, rnn.training).to(
                weights[0].dtype
            )
            # reserves the entry of this word, which is not visible yet
            cache.append(number, inputs.new_zeros(len(inputs), 3 * rnn.hidden_size))
            back, _ = looks[number].look(
                inputs, found[:, number], cache.read(number), cache.visible_before()
            )
            inputs, cell = cells[number](inputs, back.chunk(2, 1), *weights)
            cache.append(number, looks[number].entry(inputs, cell))
            after.append(back)
    return inputs, torch.stack(after, 1)
