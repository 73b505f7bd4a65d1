"""BERT: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding".

A Transformer encoder (section 3) reads the normalized sums of word, segment and position embeddings (figure 2). Two
heads read its final states h (section 3.1; h_1 is the state at BOS, which serves as [CLS]; EOS serves as [SEP]):

    P(w_i)     = softmax(E LayerNorm(gelu(W h_i + b)) + c)      E: the word embeddings
    P(is next) = softmax(V tanh(U h_1 + d) + e)                  class 0: is next; class 1: is not

The weights of the encoder have the same names as in `nmtkit.models.transformer`, so that they can initialize that
model.

Notation: as in `models/base.py`.
"""

from collections import OrderedDict
from typing import Literal

import torch
from torch import Tensor, nn

from nmtkit.core.settings import Depth, Field, Width, model_validator
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import Dropout, run_by_length
from nmtkit.layers.transformer import Activation, EncoderLayer, LayerStack, LearnedPositions
from nmtkit.models.abilities import AdaptedParts, AuxiliaryHead, Pretrained
from nmtkit.models.base import MODELS, ModelOutput, VocabularySizes
from nmtkit.models.transformer import LayersConfig

INITIAL_STD = 0.02
"""Standard deviation of the initial embeddings. The published model also uses this value for its layers, but it suits
only wide layers."""


class StackConfig(LayersConfig):
    """Settings of a single stack of layers, as in BERT and later models."""

    layers: Depth = Field(default=4, ge=1)
    """Number of layers."""
    norm: Literal["pre", "post"] = "post"
    """Where layer normalization is applied: after each sub-layer (post), as in the paper, or before it (pre), which
    needs no long warm-up (Xiong et al. 2020)."""
    activation: Activation = "gelu"
    """Activation function of the feed-forward networks."""


class EncoderConfig(StackConfig):
    """Settings shared by BERT and ELECTRA."""

    embedding_size: Width | None = Field(default=None, ge=1)
    """Size of the embeddings, which a linear layer maps to hidden_size (Lan et al. 2020; 128 in ELECTRA-small).
    Default: hidden_size, without a linear layer."""
    max_positions: Width = Field(default=512, ge=1)
    """Number of learned position embeddings, which limits the text length in tokens, including BOS and EOS."""
    segments: int = Field(default=2, ge=1, le=1000)
    """Maximum number of segments in a text."""


class BertConfig(EncoderConfig):
    """Settings of BERT.

    The defaults suit small corpora; BERT-base has hidden_size 768, feed_forward_size 3072, 12 heads, 12 layers, and
    norm_epsilon 1e-12.
    """

    kind: Literal["bert"] = "bert"
    next_sentence: bool = False
    """Whether the model has a head for the objective next_sentence, which uses texts with two segments."""

    @model_validator(mode="after")
    def _has_both_segments(self) -> "BertConfig":
        if self.next_sentence and self.segments < 2:
            raise ValueError(
                "next_sentence needs texts with two segments; set segments to 2 or more, or next_sentence to false"
            )
        return self


class PretrainedEncoder(AdaptedParts, Pretrained):
    """Embeddings and encoder of BERT and ELECTRA."""

    output_column = "tgt"
    pretrained_by = ("masked_words",)

    def __init__(self, config: EncoderConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        width = config.hidden_size
        embedding_size = config.embedding_size or width
        epsilon = config.norm_epsilon
        self.src_embedding = nn.Embedding(sizes["tgt"], embedding_size)
        self.src_positions = LearnedPositions(embedding_size, config.max_positions)
        self.segment_embedding = nn.Embedding(config.segments, embedding_size)
        # At this point, the three embedding tables are the only parameters.
        for table in self.parameters():
            nn.init.normal_(table, std=INITIAL_STD)
        self.src_embedding_norm = nn.LayerNorm(embedding_size, epsilon)
        self.dropout = Dropout(config.dropout)
        self.widen = nn.Identity() if embedding_size == width else nn.Linear(embedding_size, width)
        layers = [EncoderLayer(config) for _ in range(config.layers)]
        self.encoder = LayerStack(layers)
        self.encoder_norm = nn.LayerNorm(width, epsilon) if config.norm == "pre" else nn.Identity()

    def encode(self, batch: Batch) -> Tensor:
        """Returns the states of the last layer, `(B, S, H)`."""
        inputs = batch.inputs
        ids = inputs.ids  # (B, S)
        segments = inputs.segments  # (B, S)
        if segments is None:
            segments = torch.zeros_like(ids)  # (B, S)
        dtype = self.src_embedding.weight.dtype
        bias = torch.where(inputs.mask, 0.0, -torch.inf).to(dtype)  # (B, S)
        bias = bias[:, None, None]  # (B, 1, 1, S)
        (states,) = run_by_length(
            self._encode_group, inputs.lengths, [ids, segments, bias]
        )  # (B, S, H)
        return states

    def _encode_group(self, ids: Tensor, segments: Tensor, bias: Tensor) -> list[Tensor]:
        """Returns the states `(b, s, H)` of a group of texts `(b, s)` from a batch, as a list of one tensor."""
        length = ids.shape[1]
        # Figure 2: the sum of word, position and segment embeddings.
        words = self.src_embedding(ids)  # (b, s, E)
        positions = self.src_positions(length)  # (s, E)
        embedded = words + positions + self.segment_embedding(segments)  # (b, s, E)
        embedded = self.src_embedding_norm(embedded)  # (b, s, E)
        embedded = self.dropout(embedded)  # (b, s, E)
        states = self.widen(embedded)  # (b, s, H)
        for layer in self.encoder:
            states = layer(states, bias)  # (b, s, H)
        return [self.encoder_norm(states)]

    def adapt_part(self, name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Adds the embedding of the first segment to the position embeddings, for models without segments."""
        if name == "encoder":
            weights["src_positions.table"] = (
                self.src_positions.table + self.segment_embedding.weight[0]
            )
        return weights


@MODELS.register("bert")
class Bert(AuxiliaryHead, PretrainedEncoder):
    """The encoder with its heads; see the module docstring."""

    Config = BertConfig

    def __init__(self, config: BertConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        vocabulary_size, embedding_size = self.src_embedding.weight.shape
        # The layers that compute P(w_i); see the module docstring.
        width = config.hidden_size
        layers = OrderedDict[str, nn.Module]()
        layers["dense"] = nn.Linear(width, embedding_size)
        layers["gelu"] = nn.GELU()
        layers["norm"] = nn.LayerNorm(embedding_size, config.norm_epsilon)
        layers["words"] = nn.Linear(embedding_size, vocabulary_size)
        self.output = nn.Sequential(layers)
        self.output.words.weight = self.src_embedding.weight
        nn.init.zeros_(self.output.words.bias)
        if config.next_sentence:
            self.pooler = nn.Linear(width, width)
            self.next_sentence = nn.Linear(width, 2)

    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, None]:
        """Returns the states at all positions, `(B, S, H)`. There is no memory."""
        return ModelOutput(self.encode(batch)), None

    @classmethod
    def auxiliary_objective(cls, config: BertConfig) -> str:
        """Returns `next_sentence` if the model has a head for this objective, else an empty string."""
        return "next_sentence" if config.next_sentence else ""

    def auxiliary_logits(self, batch: Batch, output: ModelOutput) -> Tensor:
        """Returns the logits of P(is next), `(B, 2)`: whether the second segment follows the first one."""
        first_state = output.features[:, 0]  # (B, H), at BOS
        pooled = self.pooler(first_state)  # (B, H)
        pooled = torch.tanh(pooled)  # (B, H)
        logits: Tensor = self.next_sentence(pooled)  # (B, 2)
        return logits
