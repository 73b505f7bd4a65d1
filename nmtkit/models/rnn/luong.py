"""Luong et al. 2015: update, then look; global and local attention, input feeding.

A stacked recurrent encoder gives one state per source word; its last state, layer by layer, is the decoder's first. For
each target word the decoder first updates its state h_t, then looks at the source with it:

    c_t = attention(h_t, h)           section 3.1, global; section 3.2, local
    h~_t = tanh(W_c [c_t; h_t])       eq. 5, the attentional state
    p(y_t) = softmax(W_s h~_t)        eq. 6 (with a bias, which the paper leaves out)

With input feeding (section 3.3) h~_t is part of the decoder's next input. Without, no step depends on where an earlier
one looked: training runs the decoder as one call over the whole target, and all its states look at once.

With `copying`, a gate of h~_t decides whether a word is copied from the source, as in See et al. 2017, eq. 8 and 9. It
is copied by the weights of c_t, or by those of a second attention, whose query is h~_t. OpenNMT-py's summarizers do so.

With `reverse_source` (section 4.1) weights, positions and windows are those of the source's own order all the same:
`local_m` starts at its first word, as in the authors' own program.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from nmtkit.core.settings import Field, Width, model_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.layers import recurrent
from nmtkit.layers.attention import SCORES, Attention, Draws, ScoreKind, WindowKind, build_window
from nmtkit.layers.elementary import at_least_float32, mask_without_eos
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import layers_first, rnn_step, rows_first, run_rnn
from nmtkit.models.abilities import Copying, LocalWindow, OptionalSourceEnd
from nmtkit.models.base import MODELS, ModelOutput, VocabularySizes, extended_to_unk
from nmtkit.models.rnn.recurrent import AttentionMemory, RecurrentModel, RecurrentState, StackedConfig


class LuongConfig(StackedConfig):
    """The defaults suit small corpora; the paper has 4 layers of 1000 and reads the source backwards."""

    kind: Literal["luong"] = "luong"
    """Which model."""
    cell: recurrent.CellKind = "lstm"
    """The recurrent cell."""
    bridge: recurrent.BridgeKind | Literal["relu"] = "copy"
    """How the encoder's last states become the decoder's first: as they are, mapped (tanh, linear; relu maps memory
    cells too), or not (zero)."""
    score: ScoreKind = "general"
    """How well a decoder state matches an encoder state; `additive` is the paper's concat."""
    attention_size: Width = Field(default=256, ge=1)
    """Units in which an additive score compares; the other scores have none."""
    max_positions: Width = Field(default=1024, ge=1)
    """The longest source, in tokens with its end mark, that a location score can take; the others take any."""
    window: WindowKind = "global"
    """Where a word may look: everywhere; about its own position (local_m); or about a predicted one (local_p)."""
    window_size: Width = Field(default=10, ge=1)
    """D: how many source tokens a local window reaches to either side of its centre; a global one has none."""
    hard_attention: bool = False
    """A word looks at one place, which is drawn while the objective hard_attention trains it, in place of at all."""
    input_feeding: bool = True
    """The decoder reads its last attentional state with the next word (section 3.3). false trains faster."""

    attentional_bias: bool = False
    """Eq. 5 has a bias, as in Joey NMT; the paper's has none."""
    attentional_activation: Literal["tanh", "none"] = "tanh"
    """What eq. 5 ends in; none, as in OpenNMT-py with an additive score."""
    copying: Literal["none", "shared", "own"] = "none"
    """Whether the decoder can copy source words, unknown ones too: by its attention, or by a second one of its own,
    which is then the one shown."""
    source_end: bool = True
    """The encoder reads </s> behind the source. false, as in OpenNMT-py: nothing looks at it."""

    @model_validator(mode="after")
    def _fits_together(self) -> "LuongConfig":
        self.require_score_fits(self.score)
        if self.score == "location" and self.window != "global":
            raise ValueError(
                f"score: location chooses places without regard to the words there, and so does window: {self.window}: "
                "with both nothing reads the source to choose; set window to global, or score to another"
            )
        if self.copying == "shared" and self.window == "local_p":
            raise ValueError(
                "copying: shared copies by the attention, whose weights with window: local_p do not sum to one; "
                "set copying to own, or window to another"
            )
        if self.hard_attention and (self.copies or self.window == "local_p"):
            why = "places are drawn from weights that sum to one, and words are not copied by them"
            raise ValueError(f"hard_attention: {why}: set copying to none, and window to global or local_m")
        self.require_bridge_fits(self.bridge)
        self.require_equal_where_tied("hidden_size", "embedding_size")
        return self


@dataclass(frozen=True)
class LuongMemory(AttentionMemory):
    """The source as the decoder sees it."""

    lengths: Tensor
    """How many tokens of each source are real, `(B,)`."""
    copy_keys: Tensor | None = None
    """The values, projected for a second attention, `(B,S,*)`."""


@dataclass(frozen=True)
class LuongState(RecurrentState):
    """The decoder between two words."""

    fed: Tensor | None
    """The last attentional state `(N,H)`, zero at first; None without input feeding."""
    position: Tensor
    """t: how many words have been read, BOS counted, `(N,)`; the next one written is word t."""


@MODELS.register("luong")
class Luong(
    Copying[LuongMemory, LuongState],
    LocalWindow[LuongMemory, LuongState],
    OptionalSourceEnd[LuongMemory, LuongState],
    RecurrentModel[LuongMemory, LuongState],
):
    """Stacked encoder, update then look, local windows; see the head of this file."""

    Config = LuongConfig

    def __init__(self, config: LuongConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes, config.reverse_source)
        embedding, hidden, memory = config.embedding_size, config.hidden_size, config.memory_size
        self.input_feeding, self.source_end = config.input_feeding, config.source_end
        shows_all = config.window == "global" or config.copying == "own"
        self.window_half_width = None if shows_all else config.window_size
        self.bridge = recurrent.Bridge(config.bridge, config.cell, memory, hidden, config.layers)
        fed = hidden if config.input_feeding else 0
        self.decoder = recurrent.build_rnn(config.cell, embedding + fed, hidden, config.layers, config.dropout)
        self.attention = Attention(
            SCORES.get(config.score)(hidden, memory, config.attention_size, config.max_positions),
            build_window(config.window, hidden, config.window_size),
            config.hard_attention,
        )
        self.attentional = nn.Linear(memory + hidden, hidden, bias=config.attentional_bias)
        self.ends_in_tanh = config.attentional_activation == "tanh"
        self.copy_gate = nn.Linear(hidden, 1) if config.copies else None
        self.copy_attention = None
        if config.copying == "own":
            self.copy_attention = Attention(
                SCORES.get(config.score)(hidden, memory, config.attention_size, config.max_positions)
            )
        self.output = nn.Linear(hidden, sizes["tgt"])
        recurrent.init_weights(self, config.initialisation)
        self.tie_output()
        if config.initialisation == "paper":
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -0.1, 0.1)
        else:
            # The numbers of an attentional state start small and never exceed one: it takes longer output rows than
            # Glorot's to tell words apart; with shorter ones the first updates gain less.
            nn.init.normal_(self.output.weight, std=3 / math.sqrt(hidden))

    def encode(self, batch: Batch) -> LuongMemory:
        """Runs the encoder, puts its states into the order of the source, and projects the keys once."""
        if not self.source_end:
            lengths = (batch.inputs.lengths - 1).clamp(min=1)
            inputs = replace(batch.inputs, mask=mask_without_eos(batch.inputs.mask), lengths=lengths)
            batch = replace(batch, inputs=inputs)
        memory = self.attention_memory(batch, self.attention.score.project, self.bridge)
        copies = self.copy_attention
        copy_keys = None if copies is None else copies.score.project(memory.values)
        return LuongMemory(**vars(memory), lengths=batch.inputs.mask.sum(1), copy_keys=copy_keys)

    def start(self, memory: LuongMemory) -> LuongState:
        """The encoder's last state; nothing has been looked at yet."""
        fed = torch.zeros_like(memory.hidden[:, -1]) if self.input_feeding else None
        return LuongState(memory.hidden, memory.cell, fed, torch.zeros_like(memory.lengths))

    def advance(
        self, tokens: Tensor, state: LuongState, memory: LuongMemory, cache: KVCache, need_attention: bool = False
    ) -> tuple[ModelOutput, LuongState]:
        """Updates, then looks."""
        embedded = self._words(tokens)  # (N,E)
        inputs = embedded if state.fed is None else torch.cat([embedded, state.fed], -1)
        hidden, cell = rnn_step(self.decoder, inputs, state.hidden, state.cell)
        looked = self._look(hidden[:, -1:], state.position, memory)
        attentional, weights, centres = (None if part is None else part.squeeze(1) for part in looked)
        assert attentional is not None
        fed = None if state.fed is None else attentional
        readout = ModelOutput(attentional, weights, self._gate(attentional), centres=centres)
        return readout, LuongState(hidden, cell, fed, state.position + 1)

    def unroll(self, batch: Batch, memory: LuongMemory, need_attention: bool = False) -> ModelOutput:
        """All steps: the whole target at once, or word by word where each word is fed what came of the one before."""
        embedded = self._words(batch.targets.shifted)  # (B,T,E)
        state, draws = self.start(memory), self.attention.draws(batch.soft)
        features, looks, centres = [], [], []
        for words in torch.split(embedded, 1 if self.input_feeding else embedded.shape[1], 1):
            inputs = words if state.fed is None else torch.cat([words, state.fed.unsqueeze(1)], -1)
            states, last = run_rnn(self.decoder, inputs, layers_first(state.hidden, state.cell))  # (B,1 or T,H)
            hidden, cell = rows_first(last)
            part, weights, places = self._look(states, state.position, memory, draws)
            fed = None if state.fed is None else part[:, -1]
            state = LuongState(hidden, cell, fed, state.position + words.shape[1])
            features.append(part)
            looks.append(weights)
            centres += [] if places is None else [places]
        states = torch.cat(features, 1)
        attention = torch.cat(looks, 1) if need_attention or self.copy_gate is not None or draws else None
        places = torch.cat(centres, 1) if centres and need_attention else None
        return ModelOutput(states, attention, self._gate(states), centres=places, path=draws.path() if draws else None)

    def _words(self, ids: Tensor) -> Tensor:
        """The word vectors `(...,E)`."""
        if self.copy_gate is not None:
            ids = extended_to_unk(ids, self.sizes)
        words: Tensor = self.dropout(self.tgt_embedding(ids))
        return words

    def _gate(self, attentional: Tensor) -> Tensor | None:
        """p_gen `(...,1)` of attentional states, in a model that copies."""
        if self.copy_gate is None:
            return None
        gate = self.copy_gate(attentional)
        return torch.sigmoid(gate.to(at_least_float32(gate)))

    def _look(
        self, states: Tensor, position: Tensor, memory: LuongMemory, draws: Draws | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """From T states `(N,T,H)`, the first at a position `(N,)`: the states of eq. 5, weights `(N,T,S)`, centres."""
        rows, steps, _ = states.shape
        sentences = memory.mask.shape[0]
        queries = states.reshape(sentences, -1, states.shape[2])  # (B,Q,H), Q = K*T
        positions = position.unsqueeze(1) + torch.arange(steps, device=states.device)  # (N,T)
        centres = self.attention.centres(queries, positions.view(sentences, -1), memory.lengths)  # (B,Q)
        contexts, weights = self.attention(queries, memory.keys, memory.values, memory.mask, centres)
        contexts = draws.contexts(weights, memory.values) if draws else contexts
        attentional = self.attentional(torch.cat([contexts, queries], -1))  # (B,Q,H)
        attentional = self.dropout(torch.tanh(attentional) if self.ends_in_tanh else attentional)
        if self.copy_attention is not None:
            assert memory.copy_keys is not None, "the second attention has its keys"
            _, weights = self.copy_attention(attentional, memory.copy_keys, memory.values, memory.mask)
            centres = None
        attentional = attentional.view(rows, steps, -1)  # (N,T,H)
        return attentional, weights.view(rows, steps, -1), None if centres is None else centres.view(rows, steps)
