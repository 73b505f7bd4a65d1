"""The pointer sentinel LSTM: Merity et al. 2017, "Pointer sentinel mixture models".

An LSTM language model that can also repeat one of the last L words. A query computed from its state h attends to
these words (section 2.2): z_i is the energy of word i, whose state is h_i. The sentinel s, a trained vector, also has
an energy (section 2.3):

    q = tanh(W h + b)        z_i = q . h_i        a = softmax([z; q . s])        g = a_{L+1}
    p(w) = g p_vocab(w) + (1 - g) p_ptr(w)        (1 - g) p_ptr(w) = sum of a_i over the positions i of w

The current word is one of the L words. The pointer never selects BOS, which does not occur in text. Training minimizes
-log p(w) of the mixture. The paper's section 2.5 adds a pointer loss, -log(g + sum of a_i over the positions of w). It
is omitted here, because the sentinel alone satisfies it, whatever probability p_vocab gives the word.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nmtkit.core.settings import Field
from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import BOS, PAD
from nmtkit.layers.copying import MIN_PROBABILITY
from nmtkit.layers.elementary import at_least_float32
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.abilities import Copying
from nmtkit.models.base import MODELS, Memory, ModelOutput, VocabularySizes
from nmtkit.models.language.rnn_lm import RecurrentLMConfig, RnnLM, RnnLMState


class PointerSentinelConfig(RecurrentLMConfig):
    """Settings of the pointer sentinel model; the paper's models have 650 units, 2 layers and dropout 0.5."""

    kind: Literal["pointer_sentinel"] = "pointer_sentinel"
    window: int = Field(default=100, ge=1)
    """Number of most recent words that can be copied (L); 100 in Merity et al. 2017."""


@dataclass(frozen=True)
class PointerSentinelState(RnnLMState):
    """The recurrent state and the window."""

    states: Tensor
    """States of the last L words `(N,L,H)`, the current one last."""
    words: Tensor
    """The last L words `(N,L)`; PAD where the text has fewer."""


@dataclass(frozen=True)
class PointerOutput(ModelOutput):
    """The decoder output: the state, g as `copy_gate`, and the pointer weights."""

    _: KW_ONLY
    weights: Tensor
    """a_i / (1 - g) of the last words, `(N,L)`, `(B,T,L)` or `(M,L)`."""
    words: Tensor
    """The last L words, shaped like `weights`."""


@MODELS.register("pointer_sentinel")
class PointerSentinel(Copying[Memory, RnnLMState], RnnLM):
    """An LSTM that points to earlier words, or with its sentinel to the vocabulary; see the module docstring."""

    Config = PointerSentinelConfig

    def __init__(self, config: PointerSentinelConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.window, width = config.window, config.hidden_size
        self.query = nn.Linear(width, width)
        self.sentinel = nn.Parameter(torch.empty(width).uniform_(-(width**-0.5), width**-0.5))

    def start(self, memory: Memory) -> PointerSentinelState:
        """Returns zero states and an empty window."""
        state = super().start(memory)
        states = state.hidden.new_zeros(len(state.hidden), self.window, state.hidden.shape[2])
        words = torch.full(states.shape[:2], PAD, device=states.device)
        return PointerSentinelState(state.hidden, state.cell, states, words)

    def advance(
        self,
        tokens: Tensor,
        state: RnnLMState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[PointerOutput, PointerSentinelState]:
        """Reads one word, which replaces the oldest word in the window."""
        assert isinstance(state, PointerSentinelState)
        output, after = super().advance(tokens, state, memory, cache)
        states = torch.cat([state.states[:, 1:], output.features[:, None]], 1)
        words = torch.cat([state.words[:, 1:], tokens[:, None]], 1)
        energies = (states @ self._query(output.features)[:, :, None]).squeeze(2)
        pointing = self._pointing(output.features, energies, words)
        return pointing, PointerSentinelState(after.hidden, after.cell, states, words)

    def unroll(self, batch: Batch, memory: Memory, need_attention: bool = False) -> PointerOutput:
        """Reads all words at once; each word selects its window from all energies `(B,T,T)`."""
        states = super().unroll(batch, memory).features  # (B,T,H)
        length = states.shape[1]
        places = torch.arange(length, device=states.device)[:, None]
        places = places + torch.arange(
            1 - min(self.window, length), 1, device=states.device
        )  # (T,L)
        within = places.clamp(min=0)
        energies = (self._query(states) @ states.mT).gather(2, within.expand(len(states), -1, -1))
        words = batch.targets.shifted[:, within].masked_fill(places < 0, PAD)  # (B,T,L)
        return self._pointing(states, energies, words)

    def copyable(self, output: ModelOutput, memory: Memory) -> tuple[Tensor, Tensor]:
        """Returns the weights and the words of the window."""
        assert isinstance(output, PointerOutput)
        return output.weights, memory.columns_of(output.words).flatten(0, -2)

    def _query(self, states: Tensor) -> Tensor:
        query: Tensor = self.query(states)
        return query.tanh()

    def _pointing(self, states: Tensor, energies: Tensor, words: Tensor) -> PointerOutput:
        """Computes g and the pointer weights in float32 or wider; states are `(...,H)`, z and words `(...,L)`."""
        energies = energies.masked_fill((words == PAD) | (words == BOS), -torch.inf)
        whole = torch.cat([energies, (self._query(states) @ self.sentinel)[..., None]], -1)
        shares = torch.softmax(whole, -1, dtype=at_least_float32(whole))
        weights, gate = shares[..., :-1], shares[..., -1:]
        # 1 - g without rounding errors
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=MIN_PROBABILITY)
        return PointerOutput(states, None, gate, weights=weights, words=words)
