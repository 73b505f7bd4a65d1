"""Attention over a source: energies -> mask -> softmax -> context.

Three axes make a mechanism. The *score* says how well a query matches a key; scores live in `SCORES`, one class each.
The *window* says where a query may look; here it is global, all of the source. The *history* says what earlier steps
have seen; here there is none. `Attention` is the place where the axes meet: a window narrows the mask before the
softmax, a history changes the energies before it.

A query belongs to one row of memory, and a row of memory takes Q queries at once: the K hypotheses of a sentence share
its keys and values, which are never copied. Keys are projected once per sentence.

Letters: B sentences, Q queries per sentence, S source length, A attention size, Hq query size, Hm memory size.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from nmtkit.errors import RecipeError
from nmtkit.registry import Registry


class Score(nn.Module, ABC):
    """How well a query matches each key, as one number: its energy.

    Args:
        query_size: Hq.
        memory_size: Hm, the size of the encoder's states.
        attention_size: A, for scores that compare in a space of their own; the others ignore it.
    """

    @abstractmethod
    def __init__(self, query_size: int, memory_size: int, attention_size: int) -> None:
        super().__init__()

    @abstractmethod
    def project(self, values: Tensor) -> Tensor:
        """The keys `(B,S,*)` of encoder states `(B,S,Hm)`: the part of the score that no query changes."""

    @abstractmethod
    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The energies `(B,Q,S)` of queries `(B,Q,Hq)` and the keys that `project` gave."""


SCORES: Registry["type[Score]"] = Registry("attention score")


@SCORES.register("additive")
class Additive(Score):
    """`e_ij = v^T tanh(W s_{i-1} + U h_j + b)`: Bahdanau et al. 2015, appendix A.1.2 (the paper leaves out biases).

    It is the `concat` score of Luong et al. 2015, eq. 8, as well: W and U are the two halves of their one matrix.
    """

    def __init__(self, query_size: int, memory_size: int, attention_size: int) -> None:
        super().__init__(query_size, memory_size, attention_size)
        self.query = nn.Linear(query_size, attention_size, bias=False)
        self.key = nn.Linear(memory_size, attention_size)
        self.energy = nn.Parameter(torch.empty(attention_size).uniform_(-1, 1) / math.sqrt(attention_size))

    def project(self, values: Tensor) -> Tensor:
        """`U h_j + b`, `(B,S,A)`."""
        return self.key(values)  # type: ignore[no-any-return]  # torch types a module's call as Any

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Energies `(B,Q,S)`."""
        # tanh overwrites the sum: `(B,Q,S,A)` is by far the largest tensor of a step, and one copy of it is enough.
        hidden = (self.query(queries).unsqueeze(2) + keys.unsqueeze(1)).tanh_()  # (B,Q,S,A)
        return torch.matmul(hidden, self.energy.to(hidden.dtype))


@SCORES.register("dot")
class Dot(Score):
    """`e_ij = s_i^T h_j`: Luong et al. 2015, eq. 8. Queries and encoder states must have one size."""

    def __init__(self, query_size: int, memory_size: int, attention_size: int) -> None:
        super().__init__(query_size, memory_size, attention_size)
        if query_size != memory_size:
            raise RecipeError(
                f"a dot score compares queries of size {query_size} with encoder states of size {memory_size}: "
                "make the sizes equal, or choose the score general or additive"
            )
        self.scale = 1.0

    def project(self, values: Tensor) -> Tensor:
        """The encoder states themselves, `(B,S,Hm)`."""
        return values

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Energies `(B,Q,S)`."""
        return torch.matmul(queries * self.scale, keys.transpose(1, 2))


@SCORES.register("scaled_dot")
class ScaledDot(Dot):
    """`e_ij = s_i^T h_j / sqrt(Hq)`: Vaswani et al. 2017, eq. 1."""

    def __init__(self, query_size: int, memory_size: int, attention_size: int) -> None:
        super().__init__(query_size, memory_size, attention_size)
        self.scale = 1.0 / math.sqrt(query_size)


@SCORES.register("general")
class General(Score):
    """`e_ij = s_i^T W h_j`: Luong et al. 2015, eq. 8."""

    def __init__(self, query_size: int, memory_size: int, attention_size: int) -> None:
        super().__init__(query_size, memory_size, attention_size)
        self.key = nn.Linear(memory_size, query_size, bias=False)

    def project(self, values: Tensor) -> Tensor:
        """`W h_j`, `(B,S,Hq)`."""
        return self.key(values)  # type: ignore[no-any-return]  # torch types a module's call as Any

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Energies `(B,Q,S)`."""
        return torch.matmul(queries, keys.transpose(1, 2))


def masked_softmax(energies: Tensor, mask: Tensor) -> Tensor:
    """Weights that sum to one over the positions where `mask` is True and are exactly zero elsewhere.

    A row without any True position gets weights of zero, and a gradient of zero. The softmax of 16-bit energies is
    taken, and returned, in float32.

    Args:
        energies: `(...,S)`.
        mask: bool, broadcastable to `energies`.
    """
    if energies.dtype in (torch.float16, torch.bfloat16):
        energies = energies.float()
    hidden = ~mask
    # The lowest finite number, not minus infinity: a row that is all hidden stays finite, forward and backward.
    weights = energies.masked_fill(hidden, torch.finfo(energies.dtype).min).softmax(-1)
    return weights.masked_fill(hidden, 0.0)


class Attention(nn.Module):
    """Weighs the encoder's states by how well they match a query, and sums them up.

    Args:
        score: one of `SCORES`.
    """

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def project(self, values: Tensor) -> Tensor:
        """The keys of encoder states `(B,S,Hm)`; called once per sentence."""
        return self.score.project(values)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Looks at the source once for every query.

        Args:
            queries: `(B,Q,Hq)`.
            keys: what `project` made of the values.
            values: encoder states `(B,S,Hm)`.
            mask: `(B,S)`, True where a source token is real.

        Returns:
            The contexts `(B,Q,Hm)` and the weights `(B,Q,S)`; both are zero for a sentence without a real token.
        """
        weights = masked_softmax(self.score(queries, keys), mask.unsqueeze(1))  # (B,Q,S)
        return torch.matmul(weights.to(values.dtype), values), weights
