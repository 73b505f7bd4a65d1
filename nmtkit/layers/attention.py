"""Attention over a source: energies -> mask -> softmax -> context.

The *score* says how well a query matches a key, the *window* where a query may look, and the *coverage*, the sum of
earlier weights, where it has looked. A row of memory takes Q queries at once: the K hypotheses of a sentence share its
keys and values, which are never copied.

A local window (Luong et al. 2015, section 3.2) has a centre p_t, one for every query, and a half-width D. The query
looks at the real positions s with `|s - p_t| <= D`, at most 2D+1 of them, and the softmax is taken over these alone
(eq. 7). Positions count the tokens of a source from 0; its end mark is one of them.

A hard attention (Xu et al. 2015, "Show, Attend and Tell", section 4.1) looks at one place: while it is trained at one
that it draws, with its weights as probabilities; else at the one with the largest weight.

Letters: B sentences, Q queries per sentence, S source length, A attention size, Hq query size, Hm memory size, D
half-width of a window.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.registry import Registry
from nmtkit.core.settings import registry_name
from nmtkit.layers.elementary import at_least_float32
from nmtkit.layers.kernels import additive_energies, masked_softmax
from nmtkit.layers.linear import UnpackedLinear

WindowKind = Literal["global", "local_m", "local_p"]


class AttentionScore(nn.Module, ABC):
    """How well a query matches each key, as one number: its energy. Every score is built with the same four sizes.

    `attention_size` is for scores that compare in a space of their own, `max_positions`, the longest source, for scores
    that know positions by number.
    """

    costly: ClassVar[bool] = False
    """Whether each pair of query and key has work of its own; else all pairs of a sentence are one matrix product."""

    @abstractmethod
    def __init__(self, query_size: int, memory_size: int, attention_size: int, max_positions: int) -> None:
        super().__init__()

    def project(self, values: Tensor) -> Tensor:
        """The keys `(B,S,*)` of encoder states `(B,S,Hm)`: the part of the score that no query changes."""
        return values

    @abstractmethod
    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The energies `(B,Q,S)` of queries `(B,Q,Hq)` and the keys that `project` gave."""


SCORES: Registry["type[AttentionScore]"] = Registry("attention score")


@SCORES.register("additive")
class Additive(AttentionScore):
    """`e_ij = v^T tanh(W s_{i-1} + U h_j + b)`: Bahdanau et al. 2015, appendix A.1.2 (the paper leaves out biases).

    It is the `concat` score of Luong et al. 2015, section 3.1, as well: W and U are the halves of their one matrix.
    """

    costly = True

    def __init__(self, query_size: int, memory_size: int, attention_size: int, max_positions: int) -> None:
        super().__init__(query_size, memory_size, attention_size, max_positions)
        self.query = nn.Linear(query_size, attention_size, bias=False)
        self.key = nn.Linear(memory_size, attention_size)
        self.energy = nn.Parameter(torch.empty(attention_size).uniform_(-1, 1) / math.sqrt(attention_size))

    def project(self, values: Tensor) -> Tensor:
        """`2 (U h_j + b)`, `(B,S,A)`: `additive_energies` wants them doubled."""
        return self.key(values) * 2  # type: ignore[no-any-return]  # torch types a module's call as Any

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Energies `(B,Q,S)`."""
        return additive_energies(self.query(queries), keys, self.energy)


class CoveredAdditive(Additive):
    """`e_i = v^T tanh(W_s s + W_h h_i + w_c c_i + b)`: See et al. 2017, eq. 11; c_i is what position i got so far.

    Not in `SCORES`: only a model that keeps a history can give it. `w_c` starts at zero, so that a model which gets it
    in a later stage of its training goes on from what it had learned.
    """

    def __init__(self, query_size: int, memory_size: int, attention_size: int, max_positions: int) -> None:
        super().__init__(query_size, memory_size, attention_size, max_positions)
        self.coverage = nn.Parameter(torch.zeros(attention_size))

    def forward(self, queries: Tensor, keys: Tensor, coverage: Tensor | None = None) -> Tensor:
        """Energies `(B,Q,S)`; `coverage` `(B,Q,S)` is the sum of all earlier weights, None where there are none."""
        return additive_energies(self.query(queries), keys, self.energy, coverage, self.coverage)


@SCORES.register("dot")
class Dot(AttentionScore):
    """`e_ij = s_i^T h_j`: Luong et al. 2015, section 3.1. Queries and encoder states must have one size."""

    scaled: ClassVar[bool] = False

    def __init__(self, query_size: int, memory_size: int, attention_size: int, max_positions: int) -> None:
        super().__init__(query_size, memory_size, attention_size, max_positions)
        if query_size != memory_size:
            raise RecipeError(
                f"a dot score compares queries of size {query_size} with encoder states of size {memory_size}: "
                "make the sizes equal, or choose the score general or additive"
            )
        self.scale = 1.0 / math.sqrt(query_size) if self.scaled else 1.0

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Energies `(B,Q,S)`."""
        return torch.matmul(queries * self.scale, keys.transpose(1, 2))


@SCORES.register("scaled_dot")
class ScaledDot(Dot):
    """`e_ij = s_i^T h_j / sqrt(Hq)`: Vaswani et al. 2017, eq. 1."""

    scaled = True


@SCORES.register("general")
class General(AttentionScore):
    """`e_ij = s_i^T W h_j`: Luong et al. 2015, section 3.1."""

    def __init__(self, query_size: int, memory_size: int, attention_size: int, max_positions: int) -> None:
        super().__init__(query_size, memory_size, attention_size, max_positions)
        self.key = nn.Linear(memory_size, query_size, bias=False)

    def project(self, values: Tensor) -> Tensor:
        """`W h_j`, `(B,S,Hq)`."""
        return self.key(values)  # type: ignore[no-any-return]  # torch types a module's call as Any

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Energies `(B,Q,S)`."""
        return torch.matmul(queries, keys.transpose(1, 2))


@SCORES.register("location")
class Location(AttentionScore):
    """`e_i = W s_i`, one row of W per source position: Luong et al. 2015, eq. 8.

    The query alone says where to look, not the words that stand there. W has `max_positions` rows.
    """

    def __init__(self, query_size: int, memory_size: int, attention_size: int, max_positions: int) -> None:
        super().__init__(query_size, memory_size, attention_size, max_positions)
        self.positions = UnpackedLinear(query_size, max_positions, bias=False)

    def project(self, values: Tensor) -> Tensor:
        """The encoder states themselves, `(B,S,Hm)`, of which only S will count; at most `max_positions`."""
        length, known = values.shape[1], self.positions.out_features
        if length > known:
            raise DataError(
                f"a source has {length} tokens, its end included, but a location score knows only {known} positions: "
                "leave out or split longer sentences, or train with a larger max_positions or another score"
            )
        return values

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Energies `(B,Q,S)`."""
        return functional.linear(queries, self.positions.weight[: keys.shape[1]])


@SCORES.register("cosine")
class Cosine(AttentionScore):
    """`e_ij = beta_i cos(k_i, h_j)`: content addressing, Graves et al. 2014 (Neural Turing Machines), eqs. 5 and 6.

    Key and sharpness are read from the query: `k_i = W s_i` and `beta_i = softplus(w^T s_i + b)`. It starts at about
    sqrt(Hm): then the energies of random vectors have a variance of one, as those of a scaled dot do.
    """

    def __init__(self, query_size: int, memory_size: int, attention_size: int, max_positions: int) -> None:
        super().__init__(query_size, memory_size, attention_size, max_positions)
        self.query = nn.Linear(query_size, memory_size, bias=False)
        self.sharpness = nn.Linear(query_size, 1, bias=False)
        self.base = nn.Parameter(torch.tensor([math.log(math.expm1(math.sqrt(memory_size)))]))

    def project(self, values: Tensor) -> Tensor:
        """`h_j / |h_j|`, `(B,S,Hm)`."""
        return _normalized(values)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Energies `(B,Q,S)`."""
        beta = functional.softplus(self.sharpness(queries) + self.base)  # (B,Q,1)
        return beta * torch.matmul(_normalized(self.query(queries)), keys.transpose(1, 2))


def _normalized(vectors: Tensor) -> Tensor:
    # Zeros, as padding is, stay zeros also where 1e-12 is rounded to zero.
    return functional.normalize(vectors, dim=-1, eps=max(1e-12, torch.finfo(vectors.dtype).tiny))


if TYPE_CHECKING:
    ScoreKind = str
else:
    ScoreKind = registry_name(SCORES)
"""The name of a score."""


class LocalWindow(nn.Module, ABC):
    """A local window of `half_width` D >= 1 tokens to either side."""

    def __init__(self, half_width: int) -> None:
        super().__init__()
        self.half_width, self.width = half_width, 2 * half_width + 1

    @abstractmethod
    def forward(self, queries: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """The centres p_t `(B,Q)` of queries `(B,Q,Hq)`, in source positions; float32 or wider.

        Positions `(B,Q)` are t, how many target words stand before the one that the query is for; lengths `(B,)` are
        the real tokens of each source.
        """

    def factor(self, distances: Tensor) -> Tensor | None:
        """What weights are multiplied with after the softmax, for distances `s - p_t`; None, as here, for nothing."""
        return None

    def weights(self, energies: Tensor, mask: Tensor, distances: Tensor) -> Tensor:
        """Softmax over the positions inside the window, then its factor: eqs. 7 and 10."""
        weights = masked_softmax(energies, mask & (distances.detach().abs() <= self.half_width))
        factor = self.factor(distances)
        return weights if factor is None else weights * factor

    def positions(self, centres: Tensor, length: int) -> Tensor:
        """W positions `(B,Q,W)` in a row that cover the windows about `(B,Q,1)`, all of them between 0 and S-1."""
        first = (centres.detach() - self.half_width).ceil().long().clamp(0, length - self.width)
        return first + torch.arange(self.width, device=centres.device)

    def picks(self, queries: int, length: int, costly: bool) -> tuple[bool, bool]:
        """Whether to pick out the keys of a window, and whether the values, which is cheaper than passing over all.

        All queries of a sentence share one product over all positions, while each picks vectors of its own: products
        gain by picking only where the source is long and the queries are few, additive energies gain with any number.
        """
        pick_values = queries <= 16 and length >= 4 * self.width
        return pick_values or (costly and length >= 2 * self.width), pick_values


class LocalM(LocalWindow):
    """Monotonic: `p_t = t`, source and target words stand in the same order. No factor: the paper's `local-m`.

    Once the target is longer than the source, the window stays at the source's last token: `p_t = min(t, S-1)`.
    """

    def forward(self, queries: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """The centres `(B,Q)`; the queries have no say."""
        last = (lengths - 1).clamp(min=0).unsqueeze(1)  # (B,1)
        return torch.minimum(positions, last).to(at_least_float32(queries))


class LocalP(LocalWindow):
    """Predictive: `p_t = S sigmoid(v^T tanh(W h_t))`, eq. 9, with a Gaussian about it, eq. 10: the paper's `local-p`.

    Weights are multiplied with `exp(-(s - p_t)^2 / (2 sigma^2))`, sigma = D/2, after the softmax; they sum to less
    than one. v and W learn through this factor alone: which positions are inside the window has no gradient.
    """

    def __init__(self, half_width: int, query_size: int) -> None:
        super().__init__(half_width)
        self.hidden = nn.Linear(query_size, query_size, bias=False)
        self.centre = nn.Parameter(torch.empty(query_size).uniform_(-1, 1) / math.sqrt(query_size))

    def forward(self, queries: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """The centres `(B,Q)`; the positions have no say."""
        # Not a matrix product, which would have 16 bits under autocast: too few to tell words of a long source apart.
        hidden = torch.tanh(self.hidden(queries)).to(at_least_float32(queries))  # (B,Q,Hq)
        return lengths.unsqueeze(1) * torch.sigmoid((hidden * self.centre).sum(-1))

    def factor(self, distances: Tensor) -> Tensor:
        """The Gaussian of eq. 10."""
        sigma = self.half_width / 2
        return torch.exp(distances.square() * (-0.5 / sigma**2))


def build_window(kind: WindowKind, query_size: int, half_width: int) -> LocalWindow | None:
    """A window by its name; None for a global attention. Only `local_p` uses the size of queries Hq."""
    if kind == "global":
        return None
    return LocalM(half_width) if kind == "local_m" else LocalP(half_width, query_size)


@dataclass
class Draws:
    """The places s_t that a hard attention draws in one pass over a target: Xu et al. 2015, eqs. 8 and 9."""

    soft: Tensor | None
    """The sentences of which no place is drawn: their contexts are the expected ones; `(B,)`, bool. None: of all."""
    log_probs: list[Tensor] = field(default_factory=list)
    """log p(s_t) of each look, `(B,Q)`; 0 in a soft sentence."""

    def contexts(self, weights: Tensor, values: Tensor) -> Tensor:
        """`(B,Q,Hm)`: for every query the value at a place that is drawn from its weights `(B,Q,S)`."""
        places = self.places(weights.detach())
        picks, log_probs = _picks(places, weights), weights.gather(-1, places).squeeze(-1).log()
        if self.soft is not None:
            picks = torch.where(self.soft[:, None, None], weights, picks)
            log_probs = log_probs.masked_fill(self.soft[:, None], 0.0)
        self.log_probs.append(log_probs)
        return torch.matmul(picks.to(values.dtype), values)

    def places(self, weights: Tensor) -> Tensor:
        """The places `(B,Q,1)`: the largest of p / Exp(1) is a draw from p."""
        noise = torch.empty_like(weights).exponential_().clamp_(min=torch.finfo(weights.dtype).tiny)
        return (weights / noise).argmax(-1, keepdim=True)

    def path(self) -> Tensor:
        """`log p(s_1 ... s_t | x)`, `(B,T)`."""
        return torch.cat(self.log_probs, 1).cumsum(1)


class Attention(nn.Module):
    """Weighs the encoder's states by how well they match a query, and sums them up; if `hard`, it takes one of them."""

    def __init__(self, score: AttentionScore, window: LocalWindow | None = None, hard: bool = False) -> None:
        super().__init__()
        self.score = score
        self.window = window
        self.hard = hard
        if hard:  # kept with the weights, so that a resumed training goes on with it
            self.register_buffer("baseline", torch.zeros(()))  # b: the moving average of log p(y_t)

    def draws(self, soft: Tensor | None) -> Draws | None:
        """Of one pass; None where no places are drawn. `soft` is `Draws.soft`."""
        return Draws(soft) if self.hard and self.training else None

    def centres(self, queries: Tensor, positions: Tensor, lengths: Tensor) -> Tensor | None:
        """The centres `(B,Q)` of a local window, None for a global attention; see `LocalWindow.forward`."""
        return None if self.window is None else self.window(queries, positions, lengths)

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        centres: Tensor | None = None,
        coverage: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Looks at the source once for every query `(B,Q,Hq)`: contexts `(B,Q,Hm)` and weights `(B,Q,S)`.

        Values are encoder states `(B,S,Hm)`, keys what the score's `project` made of them; `mask` `(B,S)` is True where
        a source token is real. A score may read `coverage`, the sum of the weights of all earlier looks `(B,Q,S)`;
        there is no window then. A sentence without a real token gets zeros. The weights of a hard attention are
        those of all places too.
        """
        if self.window is not None:
            assert centres is not None, "a local window needs the centres"
            assert coverage is None, "coverage is of the whole source"
            contexts, weights = self._look_locally(self.window, queries, keys, values, mask.unsqueeze(1), centres)
            if not self.hard:
                return contexts, weights
        else:
            energies = self.score(queries, keys) if coverage is None else self.score(queries, keys, coverage)
            weights = masked_softmax(energies, mask.unsqueeze(1))  # (B,Q,S)
        picks = _picks(weights.argmax(-1, keepdim=True), weights) if self.hard else weights
        return torch.matmul(picks.to(values.dtype), values), weights

    def _look_locally(
        self, window: LocalWindow, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, centres: Tensor
    ) -> tuple[Tensor, Tensor]:
        centres = centres.unsqueeze(2)  # (B,Q,1)
        length = values.shape[1]
        pick_keys, pick_values = window.picks(queries.shape[1], length, self.score.costly)
        if not pick_keys:
            distances = torch.arange(length, device=values.device) - centres  # (B,Q,S)
            weights = window.weights(self.score(queries, keys), mask, distances)  # (B,Q,S)
            return torch.matmul(weights.to(values.dtype), values), weights
        positions = window.positions(centres, length)  # (B,Q,W)
        real = mask.expand(-1, positions.shape[1], -1).gather(2, positions)  # (B,Q,W)
        energies = self.score(queries.flatten(0, 1).unsqueeze(1), gather_window(keys, positions)).view(positions.shape)
        narrow = window.weights(energies, real, positions - centres)  # (B,Q,W)
        weights = narrow.new_zeros(*positions.shape[:2], length).scatter(2, positions, narrow)  # (B,Q,S)
        if not pick_values:
            return torch.matmul(weights.to(values.dtype), values), weights
        contexts = torch.matmul(narrow.to(values.dtype).flatten(0, 1).unsqueeze(1), gather_window(values, positions))
        return contexts.view(*positions.shape[:2], -1), weights


def _picks(places: Tensor, weights: Tensor) -> Tensor:
    """1 at places `(B,Q,1)`, else 0, `(B,Q,S)`; 0 where the weight is, as without a real token."""
    return torch.zeros_like(weights).scatter(-1, places, 1.0) * (weights > 0)


def gather_window(sequence: Tensor, positions: Tensor) -> Tensor:
    """The vectors of `sequence` `(B,S,H)` at `positions` `(B,Q,W)`, as `(B*Q,W,H)`."""
    sentences, length, size = sequence.shape
    starts = torch.arange(0, sentences * length, length, device=sequence.device)
    rows = positions + starts[:, None, None]
    return sequence.reshape(-1, size).index_select(0, rows.flatten()).view(-1, positions.shape[2], size)
