"""BERT: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding".

The encoder of a Transformer (section 3) over the sum of word, segment and position vectors (figure 2), normalized. Two
heads read its last states h (section 3.1; h_1 is at BOS, which stands for [CLS]; EOS stands for [SEP]):

    P(w_i)     = softmax(E LayerNorm(gelu(W h_i + b)) + c)      E: the word vectors
    P(is next) = softmax(V tanh(U h_1 + d) + e)                  class 0: it is; class 1: it is not

The encoder has the names of the one in `models/transformer.py`, which can go on with its weights.
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
"""Of vectors; the published model begins its layers so too, which suits wide ones only."""


class StackConfig(LayersConfig):
    """One stack of layers, as in the papers after BERT."""

    layers: Depth = Field(default=4, ge=1)
    """Layers."""
    norm: Literal["pre", "post"] = "post"
    """Normalize after each sub-layer as in the paper, or before it, which trains without a long warm-up."""
    activation: Activation = "gelu"
    """Between the two products of the feed-forward part."""


class EncoderConfig(StackConfig):
    """What BERT and ELECTRA have in common."""

    embedding_size: Width | None = Field(default=None, ge=1)
    """Size of the embeddings, which a linear map brings to hidden_size. Default: hidden_size, without such a map."""
    max_positions: Width = Field(default=512, ge=1)
    """How many positions are learned: the most tokens of a text, with BOS and EOS."""
    segments: int = Field(default=2, ge=1, le=1000)
    """How many segments a text can have."""


class BertConfig(EncoderConfig):
    """The defaults suit small corpora; BERT-base is 768, 3072, 12 heads, 12 layers, norm_epsilon 1e-12."""

    kind: Literal["bert"] = "bert"
    """Which model."""
    next_sentence: bool = False
    """Whether there is a head for `training.next_sentence`; its texts have two segments."""

    @model_validator(mode="after")
    def _has_both_segments(self) -> "BertConfig":
        if self.next_sentence and self.segments < 2:
            raise ValueError("next_sentence: its texts have two segments: set segments to 2, or next_sentence to false")
        return self


class PretrainedEncoder(AdaptedParts, Pretrained):
    """Embeddings and encoder, which BERT and ELECTRA have in common."""

    output_column = "tgt"
    pretrained_by = ("masked_words",)

    def __init__(self, config: EncoderConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        width, size = config.hidden_size, config.embedding_size or config.hidden_size
        self.src_embedding = nn.Embedding(sizes["tgt"], size)
        self.src_positions = LearnedPositions(size, config.max_positions)
        self.segment_embedding = nn.Embedding(config.segments, size)
        for table in self.parameters():
            nn.init.normal_(table, std=INITIAL_STD)
        self.src_embedding_norm = nn.LayerNorm(size, config.norm_epsilon)
        self.dropout = Dropout(config.dropout)
        self.widen = nn.Linear(size, width) if size != width else nn.Identity()
        self.encoder = LayerStack(EncoderLayer(config) for _ in range(config.layers))
        self.encoder_norm = nn.LayerNorm(width, config.norm_epsilon) if config.norm == "pre" else nn.Identity()

    def encode(self, batch: Batch) -> Tensor:
        """The last states `(B,S,H)`."""
        read = batch.inputs
        segments = torch.zeros_like(read.ids) if read.segments is None else read.segments
        bias = torch.where(read.mask, 0.0, -torch.inf).to(self.src_embedding.weight.dtype)[:, None, None]  # (B,1,1,S)
        return run_by_length(self._encoded, read.lengths, read.ids, segments, bias)[0]

    def _encoded(self, ids: Tensor, segments: Tensor, bias: Tensor) -> list[Tensor]:
        entering = self.src_embedding(ids) + self.src_positions(ids.shape[1]) + self.segment_embedding(segments)
        states = self.widen(self.dropout(self.src_embedding_norm(entering)))
        for layer in self.encoder:
            states = layer(states, bias)
        return [self.encoder_norm(states)]

    def adapt_part(self, name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """In a model without segments all words are in the first, whose vector is added to those of positions."""
        if name == "encoder":
            weights["src_positions.table"] = self.src_positions.table + self.segment_embedding.weight[0]
        return weights


@MODELS.register("bert")
class Bert(AuxiliaryHead, PretrainedEncoder):
    """An encoder and its heads; see the head of this file."""

    Config = BertConfig

    def __init__(self, config: BertConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        words, size = self.src_embedding.weight.shape
        dense, norm = nn.Linear(config.hidden_size, size), nn.LayerNorm(size, config.norm_epsilon)
        layers = {"dense": dense, "gelu": nn.GELU(), "norm": norm, "words": nn.Linear(size, words)}
        self.output = nn.Sequential(OrderedDict(layers))  # the first equation at the head of this file
        self.output.words.weight = self.src_embedding.weight
        nn.init.zeros_(self.output.words.bias)
        if config.next_sentence:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
            self.next_sentence = nn.Linear(config.hidden_size, 2)

    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, None]:
        """The states of all positions; there is no memory."""
        return ModelOutput(self.encode(batch)), None

    @classmethod
    def auxiliary_objective(cls, config: BertConfig) -> str:
        """Returns that for the next sentence, if there is a head for it."""
        return "next_sentence" if config.next_sentence else ""

    def auxiliary_logits(self, batch: Batch, output: ModelOutput) -> Tensor:
        """Whether the second segment follows the first, `(B,2)`."""
        logits: Tensor = self.next_sentence(torch.tanh(self.pooler(output.features[:, 0])))
        return logits
