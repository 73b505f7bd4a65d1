"""Intra-attention: Paulus et al. 2018, "A Deep Reinforced Model for Abstractive Summarization".

A bidirectional LSTM encodes the article as states h_i; its final states initialize the LSTM of the decoder. In each
step, the decoder reads one word and updates its state to s_t. With s_t, it attends to the article and to its own
earlier states:

    e_ti  = s_t^T W h_i                                         eq. 1, 2  energies
    e'_ti = exp(e_ti) / sum_{j<t} exp(e_ji), e'_1i = exp(e_1i)  eq. 3     positions attended to before get less weight
    a_ti  = e'_ti / sum_k e'_tk                                 eq. 4     attention weights
    c_t   = sum_i a_ti h_i                                      eq. 5     context from the article

    b_tj  = exp(s_t^T W' s_j) / sum_{k<t} exp(s_t^T W' s_k)     eq. 6, 7  weights of earlier decoder states, j < t
    d_t   = sum_{j<t} b_tj s_j, d_1 = 0                         eq. 8     context from earlier decoder states

It then generates a word of the vocabulary, or copies a word of the article according to the attention weights:

    p(y | generate) = softmax(W_out [s_t; c_t; d_t] + b)     eq. 9
    p(x_i | copy)   = a_ti                                   eq. 10
    p(copy)         = sigmoid(W_u [s_t; c_t; d_t] + b_u)     eq. 11
    p(y)            = p(copy) p(y | copy) + (1 - p(copy)) p(y | generate)     eq. 12
    W_out           = tanh(W_emb W_proj)                     eq. 13

In the paper, u = 1 means that a word is copied. Here `copy_gate` is p_gen = 1 - p(copy), as in the other models.

The decoder's states do not depend on earlier attention, so training runs the LSTM over the whole target in one call and
then attends for all steps at once. In training, each reference word is replaced by the decoder's own previous
prediction with a probability of 0.25 (the setting `own_words`; section 5 of the paper). These predictions are computed
beforehand, step by step and without gradients.

Differences from the paper:

* The paper trains the switch to copy unknown words and named entities, which a tagger finds. Here the switch is not
  supervised: the likelihood of a word is the sum over generating and copying it (eq. 12).
* In the paper, the decoder's initial state is the encoder's "h_n". Here it combines the final states of both directions
  (the backward direction ends at the first word), and includes the memory cells.
* The quotient of eq. 3 may overflow, or be zero divided by zero. Here everything is computed with logarithms: the
  *past* of a source position, log(sum_{j<t} exp(e_ji)), is subtracted from its energy.
* The paper does not specify the initialization, and uses no dropout. Here the weights are initialized as in the other
  models; dropout is applied to embeddings, to encoder states and before the output layer.

Notation: as in `models/base.py`, and:

    Q  decoder states per sentence: W of `KVCache` in search (1 in the first step, then K), T in training
    P  positions in the cache, including the current one
    R  decoder states of a sentence that may be attended to: P*K in search, T in training
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from nmtkit.core.settings import Field, Width, field_validator
from nmtkit.data.batches.batch import Batch, Rows
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


def subtract_past(energies: Tensor, past: Tensor) -> Tensor:
    """Returns `log e'_ti` of eq. 3, given energies `e_ti` and the past of the source positions, `(..., S)` each."""
    # In the first step nothing is subtracted: e'_1i = exp(e_1i).
    return energies - past.masked_fill(past == EMPTY_SUM, 0.0)


def past_before_each_step(energies: Tensor) -> Tensor:
    """Returns the past of the source positions before each step, `(B, T, S)`, given all energies, `(B, T, S)`."""
    sums = torch.logcumsumexp(energies[:, :-1], 1)  # (B, T-1, S)
    return F.pad(sums, (0, 0, 1, 0), value=EMPTY_SUM)  # (B, T, S)


class IntraDecoderAttention(nn.Module):
    """Attends to the decoder's own earlier states: eq. 6 to 8."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, states: Tensor, earlier: Tensor, visible: Tensor) -> Tensor:
        """Returns contexts `(B, Q, H)`, given states `(B, Q, H)` and `earlier` states `(B, R, H)`.

        `visible` `(B, Q, R)` or `(Q, R)` is True where an earlier state belongs to the same hypothesis. The context is
        zero if no earlier state is visible.
        """
        energies = torch.matmul(self.query(states), earlier.transpose(1, 2))  # (B, Q, R)
        weights = masked_softmax(energies, visible)  # (B, Q, R)
        return torch.matmul(weights.to(earlier.dtype), earlier)  # (B, Q, H)

    def all_steps(self, states: Tensor) -> Tensor:
        """Returns contexts `(B, T, H)` for states `(B, T, H)`, each of which attends to the states before it."""
        n_steps = states.shape[1]
        pairs = torch.ones(n_steps, n_steps, dtype=torch.bool, device=states.device)  # (T, T)
        is_earlier = pairs.tril(-1)  # (T, T)
        return self.forward(states, states, is_earlier)


class IntraAttentionConfig(RecurrentConfig):
    """Settings of the intra-attention model.

    The defaults suit small corpora; the paper uses embeddings of size 100 (GloVe), 400 units and no dropout.
    `hidden_size` is the size of the decoder; each direction of the encoder has half as many units.
    """

    copying: ClassVar[bool] = True
    """The decoder can copy words of the article, including unknown ones; see `ModelConfig.copies`."""

    kind: Literal["intra_attention"] = "intra_attention"
    embedding_size: Width = Field(default=128, ge=1)
    """Size of word vectors on both sides."""
    tie: Tie = "decoder"
    """Layers that share weights. none: no layers. embeddings: both embeddings (needs a joint vocabulary). decoder: the
    target embedding and the output layer, whose matrix is then tanh(W_emb W_proj) (eq. 13). all: all three, as in the
    paper."""
    own_words: float = Field(default=0.25, ge=0, le=1)
    """Probability that, during training, the decoder reads its own previous prediction instead of the reference word
    (similar to scheduled sampling, but with a constant probability)."""

    @field_validator("hidden_size")
    @classmethod
    def _two_directions(cls, value: int) -> int:
        if value % 2:
            raise ValueError(
                "must be an even number, because each direction of the encoder has half as many units"
            )
        return value

    def encoder(self) -> RecurrentEncoder:
        """Builds a bidirectional LSTM of one layer."""
        return RecurrentEncoder("lstm", self.embedding_size, self.hidden_size // 2)


@dataclass(frozen=True)
class SharedMatrix(Rows):
    """A matrix that all sentences of a memory share, so selecting or replacing sentences does not change it.

    `Rows.tensors` includes the matrix, because training may cut the graph at the memory's tensors, and then passes
    gradients back through them. The matrix is valid only as long as the weights do not change: `put` keeps the old one.
    """

    weight: Tensor
    """`(V, *)`; the rows are words, not sentences."""

    @override
    def select(self, index: Tensor | slice) -> "SharedMatrix":
        return self

    @override
    def put(self, index: Tensor, other: "SharedMatrix") -> None:
        pass


@dataclass(frozen=True)
class IntraAttentionMemory(AttentionMemory):
    """Encoder states and keys, the decoder's initial state, and the output layer's matrix if `encode` computes it."""

    output_matrix: SharedMatrix | None
    """W_out of eq. 13, `(V, 3H)`; None if the matrix is the weight of the module `output`."""


@dataclass(frozen=True)
class IntraAttentionState(RecurrentState):
    """Decoder state between two words; the decoder's earlier states are in the cache."""

    past: Tensor
    """Log of the sum of exp(energy) over earlier steps for each source position, `(N, S)`; `EMPTY_SUM` at first."""


@MODELS.register("intra_attention")
class IntraAttention(
    Copying[IntraAttentionMemory, IntraAttentionState],
    ComputedOutput[IntraAttentionMemory, IntraAttentionState],
    RecurrentModel[IntraAttentionMemory, IntraAttentionState],
):
    """Intra-temporal and intra-decoder attention with a pointer; see the module docstring.

    The matrix of the output layer, W_out `(V, 3H)`, is obtained in one of three ways:

        `tie` is none or embeddings       it is the weight of the module `output`
        `tie` is decoder or all           `encode` computes it by eq. 13 and stores it in the memory
        after `finalize` with 16 bits     it is the weight of the module `output`, which is then an ordinary linear
                                          layer with a bias (`_is_converted`)
    """

    Config = IntraAttentionConfig

    def __init__(self, config: IntraAttentionConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        embedding_size = config.embedding_size
        hidden_size = config.hidden_size
        self.own_prediction_rate = config.own_words
        self.bridge = Bridge(
            kind="copy", cell="lstm", input_size=hidden_size, hidden_size=hidden_size, layers=1
        )
        self.decoder = build_rnn("lstm", embedding_size, hidden_size)
        self.score = General(
            query_size=hidden_size,
            memory_size=hidden_size,
            attention_size=0,  # not used by this score
            max_positions=0,  # not used by this score
        )
        self.intra_decoder = IntraDecoderAttention(hidden_size)
        features_size = 3 * hidden_size
        self.switch = nn.Linear(features_size, 1)
        self.projection: nn.Linear | None = None
        self.output: nn.Linear | None = None
        if config.tie in ("decoder", "all"):
            self.projection = nn.Linear(embedding_size, features_size, bias=False)
        else:
            # Unpacked, because `logits` reads its weight.
            self.output = UnpackedLinear(features_size, sizes["tgt"], bias=False)
        # Not part of `output`, so that `logits` and the names in checkpoints are the same for both kinds of layers.
        self.output_bias = nn.Parameter(torch.zeros(sizes["tgt"]))  # (V,)
        self._is_final = False
        """Whether the weights no longer change; see `finalize`."""
        self._is_converted = False
        """Whether `output` is an ordinary linear layer, including the bias; see `finalize`."""
        init_weights(self, "xavier")
        # The rows of W_out have a length of about 3, as in Luong's model (with eq. 13, before the tanh, because the
        # embeddings have a length of about 1). With shorter rows, the first updates make less progress.
        std = 3 / math.sqrt(features_size)
        for module in (self.projection, self.output):
            if module is not None:
                nn.init.normal_(module.weight, std=std)

    @override
    def encode(self, batch: Batch) -> IntraAttentionMemory:
        """Runs the encoder, projects the keys, and computes the output matrix of eq. 13, each once per batch.

        After `finalize`, the output matrix is computed only for the first batch.
        """
        memory = self.attention_memory(batch, self.score.project, self.bridge)
        output_matrix = None
        if self.output is None:
            weight = self._final_output_weight if self._is_final else self._tied_output_weight()
            output_matrix = SharedMatrix(weight)  # (V, 3H)
        # All fields of an `AttentionMemory`, and the matrix.
        return IntraAttentionMemory(**vars(memory), output_matrix=output_matrix)

    @torch.no_grad()
    def finalize(self, precision: Precision) -> None:
        """Prepares for inference; the weights must not change afterwards.

        With fp32, W_out of eq. 13 remains a matrix in the memory, which is computed only once. With 16 bits, W_out
        becomes the weight of an ordinary output layer, which is then converted like all other layers.
        """
        self._is_final = True
        if precision == "fp32":
            # The matrix must not be computed before the first call to `encode`, because the model may still be cast to
            # 16 bits: `prepare_for_inference` also passes fp32 if a shortlist needs the matrix.
            return
        weight = self._tied_output_weight() if self.output is None else self.output.weight
        vocabulary_size, features_size = weight.shape
        # Both parameters are replaced, so the layer is built on the meta device, which allocates no memory.
        output = nn.Linear(features_size, vocabulary_size, device="meta")
        output.weight = nn.Parameter(weight)  # (V, 3H)
        output.bias = self.output_bias  # (V,)
        self.output = output
        self._is_converted = True

    def _tied_output_weight(self) -> Tensor:
        """Computes W_out `(V, 3H)` by eq. 13."""
        assert self.projection is not None, "eq. 13 is only for tied output layers"
        product: Tensor = self.projection(self.tgt_embedding.weight)  # (V, 3H)
        return torch.tanh(product)

    @cached_property
    def _final_output_weight(self) -> Tensor:
        """W_out `(V, 3H)` by eq. 13, only for weights that no longer change.

        It is computed when it is first read, and keeps the device and the dtype that the model has at that time.
        """
        return self._tied_output_weight()

    @override
    def start(self, memory: IntraAttentionMemory) -> IntraAttentionState:
        dtype = at_least_float32(memory.hidden)
        past = torch.full_like(memory.mask, EMPTY_SUM, dtype=dtype)  # (B, S)
        return IntraAttentionState(hidden=memory.hidden, cell=memory.cell, past=past)

    @override
    def advance(
        self,
        tokens: Tensor,
        state: IntraAttentionState,
        memory: IntraAttentionMemory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, IntraAttentionState]:
        n_hypotheses = tokens.shape[0]
        beam_size = rows_per_sentence(n_hypotheses, memory)
        embedded = self._embed(tokens)  # (N, E)
        hidden, cell = rnn_step(
            self.decoder, embedded, hidden=state.hidden, cell=state.cell
        )  # (N, 1, H), (N, 1, H)
        decoder_states = hidden.view(-1, beam_size, hidden.shape[2])  # (B, W, H), s_t
        energies = self._energies(decoder_states, memory)  # (B, W, S)
        past = state.past.view(energies.shape)  # (B, W, S)
        contexts, weights = self._attend(energies, past, memory)  # (B, W, H), (B, W, S)
        cache.append(0, hidden.squeeze(1))
        # The current states are in the cache, but `visible_before` excludes them.
        earlier_states = cache.read(0)  # (B, P*K, H)
        visible = cache.visible_before()  # (B, W, P*K)
        intra_contexts = self.intra_decoder(decoder_states, earlier_states, visible)  # (B, W, H)
        features = torch.cat([decoder_states, contexts, intra_contexts], -1)  # (B, W, 3H)
        output = self._join(features.flatten(0, 1), weights.flatten(0, 1))  # (N, *)
        new_past = torch.logaddexp(past, energies).flatten(0, 1)  # (N, S)
        return output, IntraAttentionState(hidden=hidden, cell=cell, past=new_past)

    @override
    def unroll(
        self, batch: Batch, memory: IntraAttentionMemory, need_attention: bool = False
    ) -> ModelOutput:
        """Runs all steps at once. In training, some words are first replaced with the model's own predictions."""
        words = batch.targets.shifted  # (B, T)
        if self.training and self.own_prediction_rate:
            words = self._with_own_predictions(words, memory)  # (B, T)
        embedded = self._embed(words)  # (B, T, E)
        first_state = layers_first(memory.hidden, memory.cell)
        decoder_states, _ = run_rnn(self.decoder, embedded, first_state)  # (B, T, H), s_t
        energies = self._energies(decoder_states, memory)  # (B, T, S)
        past = past_before_each_step(energies)  # (B, T, S)
        contexts, weights = self._attend(energies, past, memory)  # (B, T, H), (B, T, S)
        intra_contexts = self.intra_decoder.all_steps(decoder_states)  # (B, T, H)
        features = torch.cat([decoder_states, contexts, intra_contexts], -1)  # (B, T, 3H)
        return self._join(features, weights)

    @override
    def logits(self, output: ModelOutput, memory: IntraAttentionMemory) -> Tensor:
        """Returns logits `(..., V)`, before the softmax of eq. 9. Eq. 12 is computed by `nmtkit.layers.copying`."""
        if self._is_converted:
            # `Decoder.logits`, which applies the module `output`.
            return super().logits(output, memory)
        weight, bias = self.output_layer(memory)  # (V, 3H), (V,)
        output_layer = partial(F.linear, weight=weight, bias=bias)
        return project_to_vocabulary(output_layer, output.features, memory.shortlist)

    @override
    def output_layer(self, memory: IntraAttentionMemory) -> tuple[Tensor, Tensor]:
        if self._is_converted:
            return matrix_and_bias(self)
        if memory.output_matrix is not None:
            return memory.output_matrix.weight, self.output_bias
        assert self.output is not None, "an output layer that is not tied has a matrix of its own"
        return self.output.weight, self.output_bias

    def _embed(self, tokens: Tensor) -> Tensor:
        """Embeds tokens `(...)`; an unknown word that was copied is embedded as UNK."""
        ids = extended_to_unk(tokens, self.sizes)  # (...)
        embedded: Tensor = self.dropout(self.tgt_embedding(ids))  # (..., E)
        return embedded

    def _energies(self, decoder_states: Tensor, memory: IntraAttentionMemory) -> Tensor:
        """Computes the energies `(B, Q, S)` of eq. 2 for decoder states `(B, Q, H)`."""
        energies: Tensor = self.score(decoder_states, memory.keys)  # (B, Q, S)
        # 16 bits are not precise enough for sums over all steps.
        return energies.to(at_least_float32(energies))

    def _attend(
        self, energies: Tensor, past: Tensor, memory: IntraAttentionMemory
    ) -> tuple[Tensor, Tensor]:
        """Computes contexts `(B, Q, H)` and weights `(B, Q, S)` by eq. 3 to 5; energies and past are `(B, Q, S)`."""
        penalized = subtract_past(energies, past)  # (B, Q, S)
        weights = masked_softmax(penalized, memory.mask.unsqueeze(1))  # (B, Q, S)
        contexts = torch.matmul(weights.to(memory.values.dtype), memory.values)  # (B, Q, H)
        return contexts, weights

    def _join(self, features: Tensor, weights: Tensor) -> ModelOutput:
        """Builds the output from features `[s; c; d]` `(..., 3H)` and weights `(..., S)`, with the gate of eq. 11.

        The weights are always part of the output, since computing them costs nothing extra.
        """
        features = self.dropout(features)  # (..., 3H)
        # The paper's switch is p(copy), so p_gen is the sigmoid of the negative logit.
        copy_logits = self.switch(features)  # (..., 1)
        copy_logits = copy_logits.to(at_least_float32(copy_logits))  # (..., 1)
        copy_gate = torch.sigmoid(-copy_logits)  # (..., 1)
        return ModelOutput(features=features, attention=weights, copy_gate=copy_gate)

    @torch.no_grad()
    def _with_own_predictions(self, reference: Tensor, memory: IntraAttentionMemory) -> Tensor:
        """Replaces some reference words `(B, T)`, but not BOS, with the decoder's own predictions.

        A prediction depends on the words read before it, including replaced ones, so this runs step by step, with
        dropout. The same positions are replaced in all sentences of a batch, so that the other steps need no output
        layer.
        """
        words = reference.clone()  # (B, T)
        n_sentences, n_steps = words.shape
        # Sampled on the CPU, because the loop below needs the values there.
        is_replaced = torch.rand(n_steps - 1) < self.own_prediction_rate  # (T-1,)
        cache = KVCache(n_sentences, 1, words.device)
        state = self.start(memory)
        for step, replaces_next in enumerate(is_replaced.tolist()):
            tokens = words[:, step]  # (B,)
            output, state = self.advance(tokens, state, memory, cache=cache)  # (B, *)
            cache.next_step()
            if replaces_next:
                log_probs = self.predict(output, memory)  # (B, X)
                # Training uses no shortlist, so the columns are extended ids.
                words[:, step + 1] = log_probs.argmax(-1)
        # Under autocast, older versions of torch keep the 16-bit copies of weights that were made here without
        # gradients, and would reuse them in the forward pass (pytorch issue 112583).
        torch.clear_autocast_cache()
        return words
