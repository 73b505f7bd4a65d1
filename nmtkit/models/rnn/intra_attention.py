"""Intra-attention: Paulus et al. 2018, "A Deep Reinforced Model for Abstractive Summarization".

A bidirectional LSTM reads the article; its final states become the first state of the decoder's LSTM. In each step the
decoder reads one word, then attends with its new state h_t to the article and to its own earlier states:

    e_ti  = h_t^T W h_i                                 eq. 1 and 2
    a_ti ~= exp(e_ti) / sum_{j<t} exp(e_ji)             eq. 3 and 4: positions with high weights before get less now
    c_t   = sum_i a_ti h_i                              eq. 5
    d_t   = sum_{j<t} b_tj h_j,  b_tj ~= exp(h_t^T W' h_j)   eq. 6 to 8: earlier states of the decoder; d_1 = 0

It generates a word of the vocabulary, or copies a word of the article with the attention weights a_t:

    p(y | generate) = softmax(W_out [h_t; c_t; d_t] + b)     eq. 9
    p(x_i | copy)   = a_ti                                   eq. 10
    p(copy)         = sigmoid(W_u [h_t; c_t; d_t] + b_u)     eq. 11
    W_out           = tanh(W_emb W_proj)                     eq. 13

The paper's u = 1 means that a word is copied. As in other models, `copy_gate` is p_gen, 1 - p(copy).

No state depends on earlier attention, so training runs the LSTM once over the whole target, and all steps attend at
once. In a quarter of the training steps the decoder reads its own prediction instead of the reference word
(`own_words`, the paper's section 5). These predictions are made first, step by step and without gradient.

Differences from the paper:

* The paper trains the switch to copy unknown words and named entities, which a tagger finds. Here the switch is not
  supervised: the likelihood of a word is the sum over generating and copying it (eq. 12).
* In the paper the decoder's first state is the encoder's "h_n". Here it combines the final states of both directions
  (the backward direction ends at the first word), and includes the memory cells.
* Eq. 3 divides the exponential of an energy by the sum of the same position's exponentials in earlier steps, which may
  overflow or give zero divided by zero. Here everything is computed with logarithms: a position's *past*,
  log(sum_j exp(e_j)) over the earlier steps, is subtracted from its energy.
* The paper gives no initialisation and no dropout. Initial weights are as in the other models; dropout is applied to
  embeddings, to encoder states and before the output layer.

Letters: as in `models/base.py`; Q is the number of decoder states per sentence: K in search, T in training.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from nmtkit.core.settings import Field, Width, field_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.attention import General
from nmtkit.layers.elementary import at_least_float32
from nmtkit.layers.kernels import masked_softmax
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.linear import Precision, UnpackedLinear
from nmtkit.layers.recurrent import (
    Bridge,
    RecurrentEncoder,
    build_rnn,
    init_weights,
    layers_first,
    rnn_step,
    run_rnn,
)
from nmtkit.models.abilities import ComputedOutput, Copying, matrix_and_bias
from nmtkit.models.base import (
    MODELS,
    ModelOutput,
    Tie,
    VocabularySizes,
    extended_to_unk,
    rows_per_sentence,
)
from nmtkit.models.output import project_to_vocabulary
from nmtkit.models.rnn.recurrent import (
    AttentionMemory,
    RecurrentConfig,
    RecurrentModel,
    RecurrentState,
)

EMPTY_SUM = -math.inf
"""A position's past before the first step: the logarithm of an empty sum."""


def penalize(energies: Tensor, past: Tensor) -> Tensor:
    """Computes `log e'_ti`, eq. 3, from energies `e_ti` and their past, `(..., S)` each; see `EMPTY_SUM`."""
    # In the first step, equation 3 divides by one.
    return energies - past.masked_fill(past == EMPTY_SUM, 0.0)


def accumulated_before(energies: Tensor) -> Tensor:
    """Computes the past before each step, `(B, T, S)`, from the energies of all steps, `(B, T, S)`."""
    sums = torch.logcumsumexp(energies[:, :-1], 1)  # (B, T-1, S)
    return F.pad(sums, (0, 0, 1, 0), value=EMPTY_SUM)  # (B, T, S)


class IntraDecoderAttention(nn.Module):
    """Attends to the decoder's own earlier states: equations 6 to 8.

    The weights are a softmax of `e_tt' = h_t^T W h_t'` over all t' < t. The context in the first step is zero.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, states: Tensor, earlier: Tensor, visible: Tensor) -> Tensor:
        """Returns contexts `(B, Q, H)`, given states `(B, Q, H)` and P earlier states `(B, P, H)`.

        `visible` `(B, Q, P)` or `(Q, P)` is True for earlier states of the same hypothesis. A state without visible
        earlier states has a context of zero.
        """
        energies = torch.matmul(self.query(states), earlier.transpose(1, 2))  # (B, Q, P)
        weights = masked_softmax(energies, visible)  # (B, Q, P)
        return torch.matmul(weights.to(earlier.dtype), earlier)  # (B, Q, H)

    def all_steps(self, states: Tensor) -> Tensor:
        """Returns contexts `(B, T, H)` for states `(B, T, H)`, each of which attends to the states before it."""
        steps = states.shape[1]
        visible = torch.ones(steps, steps, dtype=torch.bool, device=states.device).tril(
            -1
        )  # (T, T)
        return self.forward(states, states, visible)


class IntraAttentionConfig(RecurrentConfig):
    """The defaults suit small corpora; the paper has embeddings of size 100 (GloVe), 400 units and no dropout.

    `hidden_size` is the decoder's size; each direction of the encoder has half as many units.
    """

    kind: Literal["intra_attention"] = "intra_attention"
    """The model."""
    embedding_size: Width = Field(default=128, ge=1)
    """Size of word vectors on both sides."""
    tie: Tie = "decoder"
    """Weights that are shared: none; both embeddings (needs one vocabulary); target embedding and output layer, whose
    matrix is then tanh(W_emb W_proj) (eq. 13); or all three, as in the paper."""
    copying: bool = True
    """Whether the decoder can copy words of the article, including unknown ones."""
    own_words: float = Field(default=0.25, ge=0, le=1)
    """Probability that the decoder reads its own last word instead of the reference word, in training."""

    @field_validator("hidden_size")
    @classmethod
    def _two_directions(cls, value: int) -> int:
        if value % 2:
            raise ValueError(
                "each direction of the encoder has half as many units: give an even number"
            )
        return value

    def encoder(self) -> RecurrentEncoder:
        """Builds a bidirectional LSTM of one layer."""
        return RecurrentEncoder("lstm", self.embedding_size, self.hidden_size // 2)


@dataclass(frozen=True)
class IntraAttentionMemory(AttentionMemory):
    """Memory of the decoder."""

    output_weight: Tensor | None
    """W_out of eq. 13, `(V, *)`, the same for all sentences; None if the output layer has a separate matrix."""

    def select(self, index: Tensor | slice) -> "IntraAttentionMemory":
        """Selects sentences, as in `Rows.select`; W_out, whose rows are words, is not changed."""
        rows = super(IntraAttentionMemory, replace(self, output_weight=None)).select(index)
        return replace(rows, output_weight=self.output_weight)

    def put(self, index: Tensor, other: "IntraAttentionMemory") -> None:
        """Overwrites sentences with those of `other`, as in `Rows.put`; W_out is not changed."""
        rows = replace(self, output_weight=None)
        other_rows = replace(other, output_weight=None)
        super(IntraAttentionMemory, rows).put(index, other_rows)


@dataclass(frozen=True)
class IntraAttentionState(RecurrentState):
    """Decoder state between two words; the decoder's earlier states are in the cache."""

    past: Tensor
    """Accumulated energies of source positions, `(N, S)`; see `penalize`."""


@MODELS.register("intra_attention")
class IntraAttention(
    Copying[IntraAttentionMemory, IntraAttentionState],
    ComputedOutput[IntraAttentionMemory, IntraAttentionState],
    RecurrentModel[IntraAttentionMemory, IntraAttentionState],
):
    """Intra-temporal and intra-decoder attention with a pointer; see the module docstring."""

    Config = IntraAttentionConfig

    def __init__(self, config: IntraAttentionConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        embedding_size = config.embedding_size
        hidden_size = config.hidden_size
        output_tied = config.tie in ("decoder", "all")
        self.own_words = config.own_words
        self.bridge = Bridge(
            kind="copy", cell="lstm", input_size=hidden_size, hidden_size=hidden_size, layers=1
        )
        self.decoder = build_rnn("lstm", embedding_size, hidden_size)
        self.score = General(
            query_size=hidden_size, memory_size=hidden_size, attention_size=0, max_positions=0
        )
        self.intra_decoder = IntraDecoderAttention(hidden_size)
        features_size = 3 * hidden_size
        self.switch = nn.Linear(features_size, 1) if config.copying else None
        self.projection: nn.Linear | None = None
        self.output: Any = None
        if output_tied:
            self.projection = nn.Linear(embedding_size, features_size, bias=False)
        else:
            self.output = UnpackedLinear(features_size, sizes["tgt"], bias=False)
        # W_out of eq. 13, cached for inference; see `finalize`
        self._cached_weight: Tensor | None = None
        self._caches_weight = False
        self.output_bias = nn.Parameter(torch.zeros(sizes["tgt"]))
        init_weights(self, "xavier")
        # W_out has rows of length about 3, as in Luong's model. With shorter rows, the first updates make less
        # progress.
        std = 3 / math.sqrt(features_size)
        for module in (self.projection, self.output):
            if module is not None:
                nn.init.normal_(module.weight, std=std)

    def encode(self, batch: Batch) -> IntraAttentionMemory:
        """Runs the encoder, projects the keys, and computes the output layer of eq. 13, each once."""
        memory = self.attention_memory(batch, self.score.project, self.bridge)
        output_weight = self._output_weight() if self.output is None else None  # (V, 3H)
        return IntraAttentionMemory(**vars(memory), output_weight=output_weight)

    @torch.no_grad()
    def finalize(self, precision: Precision) -> None:
        """Prepares for inference, in which W_out of eq. 13 does not change.

        In float32, W_out is computed once and cached. In lower precision it becomes an ordinary output layer, which is
        then converted like all other layers.
        """
        self._caches_weight = precision == "fp32"
        if self._caches_weight:
            return
        weight = self._output_weight()  # (V, 3H)
        vocabulary_size, features_size = weight.shape
        # On the meta device, which allocates no memory: the parameters are replaced.
        output = nn.Linear(features_size, vocabulary_size, device="meta")
        output.weight = nn.Parameter(weight)
        output.bias = self.output_bias
        self.output = output

    def _output_weight(self) -> Tensor:
        """Returns W_out `(V, 3H)`: a parameter, or eq. 13."""
        if self.projection is None:
            return self.output.weight  # type: ignore[no-any-return]  # `output` is typed as Any
        if self._cached_weight is not None:
            weight = self._cached_weight
        else:
            weight = torch.tanh(self.projection(self.tgt_embedding.weight))  # (V, 3H), eq. 13
        self._cached_weight = weight if self._caches_weight else None
        return weight

    @override
    def start(self, memory: IntraAttentionMemory) -> IntraAttentionState:
        past = torch.full_like(
            memory.mask, EMPTY_SUM, dtype=at_least_float32(memory.hidden)
        )  # (B, S)
        return IntraAttentionState(memory.hidden, memory.cell, past)

    @override
    def advance(
        self,
        tokens: Tensor,
        state: IntraAttentionState,
        memory: IntraAttentionMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, IntraAttentionState]:
        hypotheses = tokens.shape[0]
        beam_size = rows_per_sentence(hypotheses, memory)
        embedded = self._embed(tokens)  # (N, E)
        hidden, cell = rnn_step(
            self.decoder, embedded, hidden=state.hidden, cell=state.cell
        )  # (N, 1, H), (N, 1, H)
        states = hidden.view(-1, beam_size, hidden.shape[2])  # (B, K, H), h_t
        energies = self._energies(states, memory)  # (B, K, S)
        past = state.past.view(energies.shape)  # (B, K, S)
        contexts, weights = self._attend(energies, past, memory)  # (B, K, H), (B, K, S)
        cache.append(0, hidden.squeeze(1))
        intra_contexts = self.intra_decoder(
            states, cache.read(0), cache.visible_before()
        )  # (B, K, H), d_t
        features = torch.cat([states, contexts, intra_contexts], -1).flatten(0, 1)  # (N, 3H)
        output = self._join(features, weights.flatten(0, 1))
        new_past = torch.logaddexp(past, energies).flatten(0, 1)  # (N, S)
        return output, IntraAttentionState(hidden, cell, new_past)

    def unroll(
        self, batch: Batch, memory: IntraAttentionMemory, need_attention: bool = False
    ) -> ModelOutput:
        """Runs all steps at once. In training, some words are first replaced by the model's own predictions."""
        words = batch.targets.shifted  # (B, T)
        if self.training and self.own_words:
            words = self._with_own_words(words, memory)
        embedded = self._embed(words)  # (B, T, E)
        first_state = layers_first(memory.hidden, memory.cell)
        states, _ = run_rnn(self.decoder, embedded, first_state)  # (B, T, H)
        energies = self._energies(states, memory)  # (B, T, S)
        past = accumulated_before(energies)  # (B, T, S)
        contexts, weights = self._attend(energies, past, memory)  # (B, T, H), (B, T, S)
        intra_contexts = self.intra_decoder.all_steps(states)  # (B, T, H)
        features = torch.cat([states, contexts, intra_contexts], -1)  # (B, T, 3H)
        return self._join(features, weights)

    def logits(self, output: ModelOutput, memory: IntraAttentionMemory) -> Tensor:
        """Returns logits `(..., V)`, before the softmax of eq. 9. Eq. 12 is in `predict`."""
        if self._is_converted:
            return super().logits(output, memory)
        weight, bias = self.output_layer(memory)
        output_layer = partial(F.linear, weight=weight, bias=bias)
        return project_to_vocabulary(output_layer, output.features, memory.shortlist)

    @override
    def output_layer(self, memory: IntraAttentionMemory) -> tuple[Tensor, Tensor]:
        if self._is_converted:
            return matrix_and_bias(self)
        weight = memory.output_weight if self.output is None else self.output.weight  # (V, 3H)
        assert weight is not None
        return weight, self.output_bias

    @property
    def _is_converted(self) -> bool:
        """Returns whether `finalize` has made W_out an ordinary output layer, which has a bias."""
        return self.output is not None and self.output.bias is not None

    def _embed(self, tokens: Tensor) -> Tensor:
        words: Tensor = self.dropout(
            self.tgt_embedding(extended_to_unk(tokens, self.sizes))
        )  # (..., E)
        return words

    def _energies(self, states: Tensor, memory: IntraAttentionMemory) -> Tensor:
        """Computes the energies `(B, Q, S)` of eq. 2 for decoder states `(B, Q, H)`."""
        energies: Tensor = self.score(states, memory.keys)  # (B, Q, S)
        # 16 bits are not precise enough for sums over all steps.
        return energies.to(at_least_float32(energies))

    def _attend(
        self, energies: Tensor, past: Tensor, memory: IntraAttentionMemory
    ) -> tuple[Tensor, Tensor]:
        """Computes contexts `(B, Q, H)` and weights `(B, Q, S)`, eq. 3 to 5, from energies and past `(B, Q, S)`."""
        weights = masked_softmax(penalize(energies, past), memory.mask.unsqueeze(1))  # (B, Q, S)
        contexts = torch.matmul(weights.to(memory.values.dtype), memory.values)  # (B, Q, H)
        return contexts, weights

    def _join(self, features: Tensor, weights: Tensor) -> ModelOutput:
        """Builds the output from features `[h; c; d]` `(..., 3H)` and weights `(..., S)`, with the gate of eq. 11."""
        features = self.dropout(features)
        copy_gate = None
        if self.switch is not None:
            # The paper's switch is p(copy), so p_gen is the sigmoid of the negative logit.
            copy_logits = self.switch(features)  # (..., 1)
            copy_logits = copy_logits.to(at_least_float32(copy_logits))
            copy_gate = torch.sigmoid(-copy_logits)  # (..., 1)
        return ModelOutput(features, weights, copy_gate)

    @torch.no_grad()
    def _with_own_words(self, reference: Tensor, memory: IntraAttentionMemory) -> Tensor:
        """Replaces some reference words `(B, T)` by the decoder's own predictions.

        A prediction depends on the words read before it, including replaced ones, so this runs step by step. The same
        steps are replaced in all sentences of a batch, so that the other steps need no output layer.
        """
        words = reference.clone()  # (B, T)
        sentences, steps = words.shape
        # Sampled on the CPU, so that it does not have to wait for the device.
        is_replaced = torch.rand(steps - 1) < self.own_words  # (T-1,)
        cache = KVCache(sentences, 1, words.device)
        state = self.start(memory)
        for step, replaces_next in enumerate(is_replaced.tolist()):
            tokens = words[:, step]  # (B,)
            output, state = self.advance(tokens, state, memory, cache)
            cache.next_step()
            if replaces_next:
                log_probs = self.predict(output, memory)  # (B, X)
                words[:, step + 1] = log_probs.argmax(-1)
        # Under autocast, older versions of torch would reuse in the forward pass the weights that were cast here
        # without gradient (pytorch issue 112583).
        torch.clear_autocast_cache()
        return words
