"""The LSTMN as a language model: Cheng, Dong and Lapata 2016, sections 3.2 and 3.3.

The model is an `rnn_lm` whose layers attend to all their previous states; `layers.py` has the equations. Dropout is as
in `rnn_lm`; `recurrent_dropout` applies to the h~ that the gates read.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import dropout
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import init_weights
from nmtkit.models.abilities import LooksBack
from nmtkit.models.base import MODELS, Memory, ModelOutput, VocabularySizes
from nmtkit.models.language.rnn_lm import RecurrentLMConfig, RnnLM, RnnLMState
from nmtkit.zoo.lstmn.layers import LookBack, look_back_step


class LstmnConfig(RecurrentLMConfig):
    """Settings of the LSTMN language model; the paper's models have 300 units and 1 or 3 layers."""

    kind: Literal["lstmn"] = "lstmn"


@MODELS.register("lstmn")
class Lstmn(LooksBack[Memory, RnnLMState], RnnLM):
    """An LSTM that attends to all its states; in `RnnLMState`, `hidden` and `cell` are h~ and c~ of the last word."""

    Config = LstmnConfig

    def __init__(self, config: LstmnConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.decoder_looks: Any = nn.ModuleList(map(LookBack, self.decoder.all_weights))
        init_weights(self.decoder_looks, "xavier")

    def advance(
        self,
        tokens: Tensor,
        state: RnnLMState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, RnnLMState]:
        """Reads one word, without dropout, which applies only to whole texts."""
        words, found = self.tgt_embedding(tokens), torch.cat([state.hidden, state.cell], 2)
        hidden, found = look_back_step(self.decoder, self.decoder_looks, words, found, cache)
        return ModelOutput(hidden), RnnLMState(*found.chunk(2, 2))

    def unroll(self, batch: Batch, memory: Memory, need_attention: bool = False) -> ModelOutput:
        """Runs layer by layer, word by word. Padding is on the right, so no real word attends to it."""
        return ModelOutput(self._run(batch)[0])

    @torch.no_grad()
    def history_weights(self, batch: Batch) -> Tensor:
        """Returns the weights s of every layer, `(B,L,T,T)`: row t is the attention of input t."""
        looks = self._run(batch)[1]
        return torch.stack(
            [
                torch.stack([F.pad(one, (0, len(of) - one.shape[1])) for one in of], 1)
                for of in looks
            ],
            1,
        )

    def _run(self, batch: Batch) -> tuple[Tensor, list[list[Tensor]]]:
        """Returns the top layer's h `(B,T,H)`, and s of each layer and word over earlier words, L x T x `(B,t)`."""
        states, looks = self.embed(batch.targets.shifted), []
        for look, (of_inputs, of_hidden, *biases) in zip(
            self.decoder_looks, self.decoder.all_weights, strict=True
        ):
            kept = dropout(
                torch.ones_like(of_hidden[:1]), self.rates.recurrent_dropout, self.training
            )
            states, shares = look.run(states, [of_inputs, of_hidden * kept, *biases])
            states = self.drop(states)
            looks.append(shares)
        return states, looks
