"""Luong et al. 2015: a decoder that updates, then attends, with global or local attention and input feeding.

A stacked recurrent encoder computes one state per source word; its final states become the initial states of the
decoder, layer by layer. For each target word, the decoder first updates its state h_t, and then attends to the source
with it:

    c_t = attention(h_t, h)           section 3.1, global; section 3.2, local
    h~_t = tanh(W_c [c_t; h_t])       eq. 5, the attentional state
    p(y_t) = softmax(W_s h~_t)        eq. 6 (with a bias, which the paper leaves out)

With input feeding (section 3.3), h~_t is part of the decoder's next input. Without it, no step depends on the attention
of an earlier step, so training runs the decoder over the whole target in one call, and then attends for all steps at
once.

With `copying`, a gate computed from h~_t gives the probability of generating instead of copying, as in See et al. 2017,
eq. 8 and 9. The copy weights are the weights of c_t, or come from a second attention with the query h~_t, as in the
summarizers of OpenNMT-py.

With `reverse_source` (section 4.1), weights, positions and windows still refer to the original order of the source:
`local_m` starts at the first word of the source, as in the authors' program.

Notation: as in `models/base.py`; Hm is the size of an encoder state, both directions together.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from nmtkit.core.settings import Field, Width, model_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.attention import SCORES, Attention, Draws, ScoreKind, WindowKind, build_window
from nmtkit.layers.elementary import at_least_float32, mask_without_eos
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import (
    Bridge,
    BridgeKind,
    CellKind,
    build_rnn,
    init_weights,
    layers_first,
    rnn_step,
    rows_first,
    run_rnn,
)
from nmtkit.models.abilities import Copying, LocalWindow, OptionalSourceEnd
from nmtkit.models.base import MODELS, ModelOutput, VocabularySizes, extended_to_unk
from nmtkit.models.rnn.recurrent import (
    AttentionMemory,
    RecurrentModel,
    RecurrentState,
    StackedConfig,
)


class LuongConfig(StackedConfig):
    """Settings of Luong's model.

    The defaults suit small corpora; the paper uses 4 layers of size 1000 and reverses the source.
    """

    kind: Literal["luong"] = "luong"
    cell: CellKind = "lstm"
    """Type of the recurrent cells."""
    bridge: BridgeKind | Literal["relu"] = "copy"
    """How the decoder's initial state is computed from the encoder's final states. copy: they are copied layer by
    layer. tanh, linear, relu: they are projected with this activation (relu also projects the memory cells). zero: they
    are not used, and the initial state is zero."""
    score: ScoreKind = "general"
    """Score that compares a decoder state with encoder states; `additive` is called concat in the paper."""
    attention_size: Width = Field(default=256, ge=1)
    """Number of hidden units in an additive score; other scores do not use this setting."""
    max_positions: Width = Field(default=1024, ge=1)
    """Maximum source length for a location score, in tokens including EOS, because the score has a row of weights for
    each source position (Luong et al. 2015, eq. 8); other scores have no limit."""
    window: WindowKind = "global"
    """Source positions that a word may attend to. global: all of them. local_m: a window around the source position
    that equals the word's own position. local_p: a window around a predicted position."""
    window_size: Width = Field(default=10, ge=1)
    """Number of source tokens on each side of the centre of a local window (D)."""
    hard_attention: bool = False
    """Whether each word attends to a single position, which is sampled in training (objective hard_attention)."""
    input_feeding: bool = True
    """Whether the decoder reads its last attentional state together with the next word (section 3.3). Without
    input feeding, training is faster."""

    attentional_bias: bool = False
    """Whether eq. 5 has a bias, as in Joey NMT but not in the paper."""
    attentional_activation: Literal["tanh", "none"] = "tanh"
    """Activation function of eq. 5; OpenNMT-py's decoder with an additive score has none."""
    copying: Literal["none", "shared", "own"] = "none"
    """Whether and how the decoder can copy source words, including unknown ones. shared: with the attention that
    computes the context. own: with a second attention, whose weights the model then returns."""
    source_end: bool = True
    """Whether the encoder and the decoder attend to the source's EOS; false matches OpenNMT-py."""

    @model_validator(mode="after")
    def _fits_together(self) -> "LuongConfig":
        self.require_score_fits(self.score)
        if self.window != "global" and SCORES.get(self.score).reads_positions:
            raise ValueError(
                f"`score: {self.score}` depends on the source position, but with `window: {self.window}` it would "
                "not know which positions are in the window; set window to global, or choose another score"
            )
        if self.copying == "shared" and self.window == "local_p":
            raise ValueError(
                "`copying: shared` copies with the attention weights, which do not sum to one with `window: local_p`; "
                "set copying to own, or choose another window"
            )
        if self.hard_attention and (self.copies or self.window == "local_p"):
            raise ValueError(
                "`hard_attention` can be combined neither with copying nor with `window: local_p`, whose weights do "
                "not sum to one; set copying to none, and window to global or local_m"
            )
        if self.bridge == "copy":
            self.require_copy_fits("set bridge to tanh or linear")
        self.require_equal_where_tied("hidden_size", "embedding_size")
        return self


@dataclass(frozen=True)
class LuongMemory(AttentionMemory):
    """Memory of the decoder, with the lengths that windows need and the keys of both attentions."""

    lengths: Tensor
    """Number of real tokens in each source, `(B,)`."""
    copy_keys: Tensor | None = None
    """Keys of the second attention, `(B, S, *)`; None if there is no second attention."""


@dataclass(frozen=True)
class LuongState(RecurrentState):
    """Decoder state between two words."""

    fed: Tensor | None
    """Last attentional state `(N, H)`, zero at first; None without input feeding."""
    position: Tensor
    """Number of words read so far, including BOS, `(N,)`: the position t of the next word."""


@MODELS.register("luong")
class Luong(
    Copying[LuongMemory, LuongState],
    LocalWindow[LuongMemory, LuongState],
    OptionalSourceEnd[LuongMemory, LuongState],
    RecurrentModel[LuongMemory, LuongState],
):
    """A stacked encoder, and a decoder that updates, then attends; see the module docstring."""

    Config = LuongConfig

    def __init__(self, config: LuongConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes, config.reverse_source)
        hidden_size = config.hidden_size
        memory_size = config.memory_size
        self.input_feeding = config.input_feeding
        self.source_end = config.source_end
        # The attention in the output covers the whole source if there is no window, or if it comes from the second
        # attention.
        shows_all = config.window == "global" or config.copying == "own"
        self.window_half_width = None if shows_all else config.window_size
        self.bridge = Bridge(
            kind=config.bridge,
            cell=config.cell,
            input_size=memory_size,
            hidden_size=hidden_size,
            layers=config.layers,
        )
        inputs_size = config.embedding_size
        if config.input_feeding:
            inputs_size += hidden_size
        self.decoder = build_rnn(
            config.cell,
            inputs_size,
            hidden_size=hidden_size,
            layers=config.layers,
            dropout=config.dropout,
        )
        # Users can register their own classes, whose parameter names may differ, so the sizes are passed by position.
        build_score = SCORES.get(config.score)
        score_sizes = (hidden_size, memory_size, config.attention_size, config.max_positions)
        score = build_score(*score_sizes)
        window = build_window(config.window, hidden_size, config.window_size)
        self.attention = Attention(score, window, config.hard_attention)
        self.attentional = nn.Linear(
            memory_size + hidden_size, hidden_size, bias=config.attentional_bias
        )
        self.has_tanh = config.attentional_activation == "tanh"
        self.copy_gate = nn.Linear(hidden_size, 1) if config.copies else None
        self.copy_attention = None
        if config.copying == "own":
            copy_score = build_score(*score_sizes)
            self.copy_attention = Attention(copy_score)
        self.output = nn.Linear(hidden_size, sizes["tgt"])
        init_weights(self, config.initialisation)
        self.tie_output()
        if config.initialisation == "paper":
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -0.1, 0.1)
        else:
            # Attentional states are small at first and never exceed one in magnitude. With Xavier initialization, all
            # words would have almost the same logits, and the first updates would make less progress.
            nn.init.normal_(self.output.weight, std=3 / math.sqrt(hidden_size))

    def encode(self, batch: Batch) -> LuongMemory:
        """Runs the encoder and projects the keys of both attentions."""
        inputs = batch.inputs
        if not self.source_end:
            mask = mask_without_eos(inputs.mask)  # (B, S)
            lengths = inputs.lengths - 1  # (B,), on the CPU
            lengths = lengths.clamp(min=1)  # (B,)
            inputs = replace(inputs, mask=mask, lengths=lengths)
            batch = replace(batch, inputs=inputs)
        score = self.attention.score
        memory = self.attention_memory(batch, score.project, self.bridge)
        copy_keys = None
        if self.copy_attention is not None:
            copy_score = self.copy_attention.score
            copy_keys = copy_score.project(memory.values)  # (B, S, *)
        device_lengths = inputs.mask.sum(1)  # (B,)
        return LuongMemory(**vars(memory), lengths=device_lengths, copy_keys=copy_keys)

    @override
    def start(self, memory: LuongMemory) -> LuongState:
        fed = torch.zeros_like(memory.hidden[:, -1]) if self.input_feeding else None  # (B, H)
        position = torch.zeros_like(memory.lengths)  # (B,)
        return LuongState(hidden=memory.hidden, cell=memory.cell, fed=fed, position=position)

    @override
    def advance(
        self,
        tokens: Tensor,
        state: LuongState,
        memory: LuongMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, LuongState]:
        inputs = self._embed(tokens)  # (N, E)
        if state.fed is not None:
            inputs = torch.cat([inputs, state.fed], -1)  # (N, E+H)
        hidden, cell = rnn_step(
            self.decoder, inputs, hidden=state.hidden, cell=state.cell
        )  # (N, L, H), (N, L, H)
        top_states = hidden[:, -1:]  # (N, 1, H), h_t
        attentional, weights, centres = self._attend(
            top_states, state.position, memory
        )  # (N, 1, *)
        attentional = attentional.squeeze(1)  # (N, H), h~_t
        if centres is not None:
            centres = centres.squeeze(1)  # (N,)
        output = ModelOutput(
            features=attentional,
            attention=weights.squeeze(1),
            copy_gate=self._gate(attentional),
            centres=centres,
        )
        fed = None if state.fed is None else attentional
        position = state.position + 1  # (N,)
        return output, LuongState(hidden=hidden, cell=cell, fed=fed, position=position)

    def unroll(
        self, batch: Batch, memory: LuongMemory, need_attention: bool = False
    ) -> ModelOutput:
        """Runs all steps: word by word with input feeding, otherwise the whole target in one call."""
        embedded = self._embed(batch.targets.shifted)  # (B, T, E)
        draws = self.attention.draws(batch.soft)
        state = self.start(memory)
        chunk_length = 1 if self.input_feeding else embedded.shape[1]
        chunks = []
        chunk_weights = []
        chunk_centres = []
        for inputs in torch.split(embedded, chunk_length, 1):  # (B, t, E)
            if state.fed is not None:
                inputs = torch.cat([inputs, state.fed.unsqueeze(1)], -1)  # (B, 1, E+H)
            first_state = layers_first(state.hidden, state.cell)
            states, final_state = run_rnn(self.decoder, inputs, first_state)  # (B, t, H)
            hidden, cell = rows_first(final_state)  # (B, L, H), (B, L, H)
            attentional, weights, centres = self._attend(
                states, state.position, memory, draws=draws
            )  # (B, t, *)
            fed = None if state.fed is None else attentional[:, -1]  # (B, H)
            position = state.position + chunk_length  # (B,)
            state = LuongState(hidden=hidden, cell=cell, fed=fed, position=position)
            chunks.append(attentional)
            chunk_weights.append(weights)
            if centres is not None:
                chunk_centres.append(centres)
        features = torch.cat(chunks, 1)  # (B, T, H)
        attention = None
        if need_attention or self.copy_gate is not None or draws is not None:
            attention = torch.cat(chunk_weights, 1)  # (B, T, S)
        centres = None
        if need_attention and chunk_centres:
            centres = torch.cat(chunk_centres, 1)  # (B, T)
        return ModelOutput(
            features=features,
            attention=attention,
            copy_gate=self._gate(features),
            centres=centres,
            path=None if draws is None else draws.path(),  # (B, T)
        )

    def _embed(self, ids: Tensor) -> Tensor:
        if self.copy_gate is not None:
            ids = extended_to_unk(ids, self.sizes)  # (...)
        words: Tensor = self.dropout(self.tgt_embedding(ids))  # (..., E)
        return words

    def _gate(self, attentional: Tensor) -> Tensor | None:
        """Computes p_gen `(..., 1)` from attentional states `(..., H)`; returns None if the model does not copy."""
        if self.copy_gate is None:
            return None
        logits = self.copy_gate(attentional)  # (..., 1)
        return torch.sigmoid(logits.to(at_least_float32(logits)))

    def _attend(
        self, states: Tensor, position: Tensor, memory: LuongMemory, draws: Draws | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Attends to the source with T decoder states `(N, T, H)`, the first of which is at `position` `(N,)`.

        Returns the attentional states of eq. 5, `(N, T, H)`, the weights `(N, T, S)`, and the centres `(N, T)` or None.
        """
        rows, steps, hidden_size = states.shape
        mask = memory.mask
        sentences = mask.shape[0]
        queries = states.reshape(sentences, -1, hidden_size)  # (B, Q, H), Q = K*T
        offsets = torch.arange(steps, device=states.device)  # (T,)
        positions = position.unsqueeze(1) + offsets  # (N, T)
        positions = positions.view(sentences, -1)  # (B, Q)
        centres = self.attention.centres(queries, positions, memory.lengths)  # (B, Q)
        contexts, weights = self.attention(
            queries, memory.keys, memory.values, mask=mask, centres=centres
        )  # (B, Q, Hm), (B, Q, S)
        if draws is not None:
            contexts = draws.sample_contexts(weights, memory.values)  # (B, Q, Hm)
        contexts_and_states = torch.cat([contexts, queries], -1)  # (B, Q, Hm+H)
        attentional = self.attentional(contexts_and_states)  # (B, Q, H), eq. 5
        if self.has_tanh:
            attentional = torch.tanh(attentional)  # (B, Q, H)
        attentional = self.dropout(attentional)  # (B, Q, H)
        if self.copy_attention is not None:
            assert memory.copy_keys is not None, (
                "`encode` must project keys for the second attention"
            )
            _, weights = self.copy_attention(
                attentional, memory.copy_keys, memory.values, mask=mask
            )  # (B, Q, S)
            # The second attention has no window.
            centres = None
        if centres is not None:
            centres = centres.view(rows, steps)  # (N, T)
        attentional = attentional.view(rows, steps, -1)  # (N, T, H)
        weights = weights.view(rows, steps, -1)  # (N, T, S)
        return attentional, weights, centres
