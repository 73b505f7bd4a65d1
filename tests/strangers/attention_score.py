"""An attention score: the negative Euclidean distance between query and key."""

import torch
from torch import Tensor, nn

from nmtkit.layers.attention import SCORES, AttentionScore


@SCORES.register("euclid")
class Euclid(AttentionScore):
    """`e_ij = -|W s_i + b - h_j|`: the negative distance of key j from the projected query i."""

    def __init__(
        self, query_size: int, memory_size: int, attention_size: int, max_positions: int
    ) -> None:
        super().__init__(query_size, memory_size, attention_size, max_positions)
        self.query = nn.Linear(query_size, memory_size)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return -torch.cdist(self.query(queries), keys)  # (B,Q,S)
