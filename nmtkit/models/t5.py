"""T5: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer".

A Transformer with these changes (section 2.1):

    positions       no vectors of positions; each head adds a learned number to an energy, by the distance of query and
                    key, in self-attention: that of the encoder's layers is shared by them, and so is the decoder's
    normalization   before each sub-layer, by the root mean square, without a bias
    linear maps     without biases; energies are not divided by sqrt(D), and A heads of size D may differ from H
    output          the decoder's states are multiplied by 1 / sqrt(H) before the output layer, which is tied

`gated` is the form of T5 v1.1, mT5 and Flan-T5: the feed-forward part is gelu(x W) * (x V) W_2 (Shazeer 2020, "GLU
Variants Improve Transformer"); these models have an output layer of their own, and do not scale what it reads.
"""

import math
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import Field, Width, model_validator
from nmtkit.data.embeddings import Side
from nmtkit.layers.elementary import Dropout
from nmtkit.layers.experts import Experts
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.transformer import LayerForm, RelativePositions
from nmtkit.models.base import MODELS, ModelConfig, VocabularySizes
from nmtkit.models.transformer import StacksConfig, Transformer, TransformerConfig, TransformerMemory


class T5Config(StacksConfig):
    """The defaults suit small corpora; T5-small is 512, 2048, 8 heads of 64, 6 + 6 layers."""

    kind: Literal["t5"] = "t5"
    """Which model."""
    head_size: Width = Field(default=64, ge=1)
    """Width of a head (d_kv)."""
    relative_buckets: int = Field(default=32, ge=4, le=4096)
    """Buckets of distances, a multiple of 4."""
    relative_distance: int = Field(default=128, ge=2, le=65536)
    """The distance from which on all are in one bucket; more than half of relative_buckets."""
    gated: bool = False
    """Gate the feed-forward part, as T5 v1.1, mT5 and Flan-T5 do; they take activation gelu_tanh."""
    scale_output: bool = True
    """Multiply what the output layer reads by 1 / sqrt(hidden_size); T5 v1.1, mT5 and Flan-T5 do not."""
    norm: Literal["pre"] = "pre"
    """Normalize before each sub-layer."""
    norm_epsilon: float = Field(default=1e-6, gt=0.0, le=1e-2)
    """What a normalization adds to the mean square."""
    embedding_norm: ClassVar[bool] = False
    scale_embeddings: ClassVar[bool] = False
    positions: ClassVar[str] = "relative"

    @model_validator(mode="after")
    def _require_valid_distances(self) -> "T5Config":
        if self.relative_buckets % 4 or self.relative_distance <= self.relative_buckets // 2:
            raise ValueError("relative_buckets must be a multiple of 4, and less than twice relative_distance")
        return self

    @property
    def layer_form(self) -> LayerForm:
        """That of section 2.1."""
        return LayerForm(self.head_size, bias=False, rms_norm=True, scaled=False, gated=self.gated)


@MODELS.register("t5")
class T5(Transformer):
    """The Transformer of T5; see the head of this file."""

    Config: ClassVar[type[ModelConfig]] = T5Config
    first_entry = 1  # before them are positions

    def __init__(self, config: T5Config, sizes: VocabularySizes) -> None:
        super().__init__(cast(TransformerConfig, config), sizes)  # as far as `Transformer` reads it
        self.encoder_norm = nn.Sequential(self.encoder_norm, Dropout(config.dropout))
        self.decoder_norm = nn.Sequential(self.decoder_norm, Dropout(config.dropout))
        self.output_scale = self.width**-0.5 if config.scale_output else 1.0
        self._initialise(config)

    @staticmethod
    def _positions(config: TransformerConfig, side: Side) -> RelativePositions:
        own = cast(T5Config, cast(StacksConfig, config))
        return RelativePositions(own.heads, own.relative_buckets, own.relative_distance, bidirectional=side == "src")

    @torch.no_grad()
    def _initialise(self, config: T5Config) -> None:
        """As the authors: energies have a variance of 1 though nothing divides them."""
        width, inner = self.width, config.heads * config.head_size
        for name, parameter in self.named_parameters():
            if name.endswith(("embedding.weight", "output.weight")):
                nn.init.normal_(parameter)
            elif name.endswith("positions.weight"):
                nn.init.normal_(parameter, std=width**-0.5)
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
                if name.endswith((".query.weight", "query_keys_values.weight")):  # energies of a copy are divided
                    parameter[:inner] *= config.head_size**-0.5
        for part in self.modules():
            if isinstance(part, Experts):
                part.initialize()

    def positions(self, most: int) -> tuple[str, Tensor]:
        """It has none."""
        raise RecipeError("a t5 has no position vectors: it learns numbers for distances")

    def _enter(self, side: Side, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        entering: Tensor = self.dropout(self._words(side, ids))
        return entering

    def _encoder_bias(self, bias: Tensor) -> Tensor:
        by_distance: Tensor = self.src_positions(_distances(bias.shape[-1], bias.device))
        return bias + by_distance

    def _decoder_bias(self, states: Tensor, cache: KVCache | None) -> Tensor:
        if cache is None:
            distances = _distances(states.shape[1], states.device)
            bias: Tensor = self.tgt_positions(distances).masked_fill(distances > 0, -math.inf)
            return bias
        own = cache.positions()  # (B,1), or (1,K) of a prompt
        cache.append(0, own.expand(*states.shape[:2]).flatten())
        bias = self.tgt_positions(cache.read(0)[:, None] - own[..., None])  # (B,A,1 or K,P*K)
        visible = cache.bias()
        return bias if visible is None else bias + visible

    def _decode(
        self, states: Tensor, memory: TransformerMemory, cache: KVCache | None, shown: slice | None
    ) -> tuple[Tensor, Tensor | None]:
        states, weights = super()._decode(states, memory, cache, shown)
        return states * self.output_scale, weights


def _distances(length: int, device: torch.device) -> Tensor:
    """From every position to every other, `(1,P,P)`."""
    positions = torch.arange(length, device=device)
    return (positions - positions[:, None])[None]
