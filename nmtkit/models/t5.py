"""T5: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer".

This is a Transformer with the following changes (section 2.1):

    positions       no position vectors; instead, each self-attention head adds to the energies a learned bias that
                    depends on the distance between query and key; all layers of the encoder share one table of biases,
                    and so do all layers of the decoder
    normalization   RMSNorm before each sub-layer, without a bias
    linear layers   without biases; energies are not divided by sqrt(D), and A * D may differ from H
    output          the decoder's states are multiplied by 1 / sqrt(H) before the output layer, which is tied

`gated` is the variant of T5 v1.1, mT5 and Flan-T5: the feed-forward network is (gelu(x W) * (x V)) W_2 (Shazeer 2020,
"GLU Variants Improve Transformer"). These models have a separate output layer and do not scale its input.

Notation: as in `models/base.py` and `layers/transformer.py`.
"""

import math
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import Field, Width, model_validator
from nmtkit.data.embeddings import Side
from nmtkit.layers.elementary import Dropout
from nmtkit.layers.experts import Experts
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.transformer import LayerForm, RelativePositions
from nmtkit.models.base import MODELS, ModelConfig, VocabularySizes
from nmtkit.models.transformer import (
    StacksConfig,
    Transformer,
    TransformerConfig,
    TransformerMemory,
)


class T5Config(StacksConfig):
    """Settings of T5.

    The defaults suit small corpora; T5-small has hidden_size 512, feed_forward_size 2048, 8 heads of size 64, 6 encoder
    layers and 6 decoder layers.
    """

    kind: Literal["t5"] = "t5"
    head_size: Width = Field(default=64, ge=1)
    """Size of an attention head (d_kv)."""
    relative_buckets: int = Field(default=32, ge=4, le=4096)
    """Number of buckets for the distances between words; must be a multiple of 4."""
    relative_distance: int = Field(default=128, ge=2, le=65536)
    """All distances of this size or more share one bucket; must be greater than half of relative_buckets."""
    gated: bool = False
    """Whether the feed-forward networks are gated, as in T5 v1.1, mT5 and Flan-T5; these models use gelu_tanh as their
    activation."""
    scale_output: bool = True
    """Whether the input of the output layer is multiplied by 1 / sqrt(hidden_size), as in the original T5, but not in
    T5 v1.1, mT5 and Flan-T5."""
    norm: Literal["pre"] = "pre"
    """Where normalization is applied: before each sub-layer, as in Raffel et al. 2020, section 2.1."""
    norm_epsilon: float = Field(default=1e-6, gt=0.0, le=1e-2)
    """Constant that is added to the mean square in RMSNorm."""
    embedding_norm: ClassVar[bool] = False
    scale_embeddings: ClassVar[bool] = False
    positions: ClassVar[str] = "relative"

    @model_validator(mode="after")
    def _require_valid_distances(self) -> "T5Config":
        if self.relative_buckets % 4 or self.relative_distance <= self.relative_buckets // 2:
            raise ValueError(
                "relative_buckets must be a multiple of 4 and less than twice relative_distance"
            )
        return self

    @property
    def layer_form(self) -> LayerForm:
        """How the layers differ from those of Vaswani et al. 2017; see section 2.1."""
        return LayerForm(self.head_size, bias=False, rms_norm=True, scaled=False, gated=self.gated)


@MODELS.register("t5")
class T5(Transformer):
    """The T5 variant of the Transformer; see the module docstring."""

    Config: ClassVar[type[ModelConfig]] = T5Config
    first_entry = 1  # layer 0 of the cache stores positions

    def __init__(self, config: T5Config, sizes: VocabularySizes) -> None:
        # A T5Config has all settings that `Transformer` reads, but does not inherit from TransformerConfig.
        super().__init__(cast(TransformerConfig, config), sizes)
        dropout = config.dropout
        self.encoder_norm = nn.Sequential(self.encoder_norm, Dropout(dropout))
        self.decoder_norm = nn.Sequential(self.decoder_norm, Dropout(dropout))
        self.output_scale = 1.0
        if config.scale_output:
            self.output_scale = self.width**-0.5
        self._initialise(config)

    @override
    @staticmethod
    def _positions(config: TransformerConfig, side: Side) -> RelativePositions:
        t5_config = cast(T5Config, cast(StacksConfig, config))
        return RelativePositions(
            heads=t5_config.heads,
            buckets=t5_config.relative_buckets,
            max_distance=t5_config.relative_distance,
            bidirectional=side == "src",
        )

    @torch.no_grad()
    def _initialise(self, config: T5Config) -> None:
        """Initializes weights as the authors do, so that energies have variance 1 without a division by sqrt(D)."""
        queries_size = config.heads * config.head_size
        width = self.width
        for name, parameter in self.named_parameters():
            if name.endswith(("embedding.weight", "output.weight")):
                nn.init.normal_(parameter)
            elif name.endswith("positions.weight"):
                nn.init.normal_(parameter, std=width**-0.5)
            elif parameter.dim() > 1:
                input_size = parameter.shape[1]
                nn.init.normal_(parameter, std=input_size**-0.5)
                # The first rows of `query_keys_values` compute the queries. `copy_query` is not scaled, because the
                # copy attention divides its energies by sqrt(H).
                if name.endswith((".query.weight", "query_keys_values.weight")):
                    query_rows = parameter[:queries_size]  # (A * D, *), a view, scaled in place
                    query_rows *= config.head_size**-0.5
        for module in self.modules():
            if isinstance(module, Experts):
                module.initialize()

    @override
    def positions(self, most: int) -> tuple[str, Tensor]:
        raise RecipeError(
            "a t5 model has no position embeddings to show, because it learns relative position biases instead"
        )

    @override
    def _embed(self, side: Side, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        embedded: Tensor = self.dropout(
            self._word_vectors(side, ids)
        )  # (B, T, H), or (B, K, H) with a cache
        return embedded

    @override
    def _encoder_bias(self, bias: Tensor) -> Tensor:
        distances = _distances(bias.shape[-1], bias.device)  # (1, S, S)
        distance_bias: Tensor = self.src_positions(distances)  # (1, A, S, S)
        return bias + distance_bias  # (B, A, S, S)

    @override
    def _decoder_bias(self, states: Tensor, cache: KVCache | None) -> Tensor:
        if cache is None:
            length = states.shape[1]
            distances = _distances(length, states.device)  # (1, T, T)
            bias: Tensor = self.tgt_positions(distances)  # (1, A, T, T)
            is_later = distances > 0  # (1, T, T)
            return bias.masked_fill(is_later, -math.inf)
        # If prompts differ in length, the same slot holds different positions in different sentences. The cache
        # therefore stores the position of each slot, just as it stores keys.
        query_positions = cache.positions()  # (B, 1), or (1, K) for a prompt
        sentences, beam_size, _ = states.shape
        new_positions = query_positions.expand(sentences, beam_size)  # (B, K)
        cache.append(0, new_positions.flatten())
        key_positions = cache.read(0)[:, None]  # (B, 1, P*K)
        distances = key_positions - query_positions[..., None]  # (B, 1 or K, P*K)
        distance_bias: Tensor = self.tgt_positions(distances)  # (B, A, 1 or K, P*K)
        ancestor_bias = cache.bias()  # (B, 1, K, P*K)
        if ancestor_bias is None:
            return distance_bias
        return distance_bias + ancestor_bias

    @override
    def _decode(
        self, states: Tensor, memory: TransformerMemory, cache: KVCache | None, shown: slice | None
    ) -> tuple[Tensor, Tensor | None]:
        states, weights = super()._decode(
            states, memory, cache=cache, shown=shown
        )  # (B, T or K, H), (B, a, T or K, S) or None
        return states * self.output_scale, weights


def _distances(length: int, device: torch.device) -> Tensor:
    """Returns the distances between all query positions and all key positions, `(1, P, P)`."""
    positions = torch.arange(length, device=device)  # (P,)
    distances = positions - positions[:, None]  # (P, P)
    return distances[None]
