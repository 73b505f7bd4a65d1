"""Attention over a source: energies -> mask -> softmax -> context.

The *score* measures how well a query matches a key. The *window* limits the positions that a query may attend to. The
*coverage* of a position is the sum of its attention weights in earlier steps. All Q queries of a sentence, such as the
K hypotheses of a beam, share one row of keys and values, which are never copied.

A local window (Luong et al. 2015, section 3.2) has a centre p_t for each query, and a half-width D. The query attends
to the real positions s with `|s - p_t| <= D`, at most 2D+1 of them, and the softmax is taken over these alone (eq. 7).
Source positions are counted from 0 and include EOS.

Hard attention (Xu et al. 2015, "Show, Attend and Tell", section 4.1) attends to a single position. In training, this
position is sampled from the weights; at inference, it is the position with the largest weight.

Notation: B sentences, Q queries per sentence, S source length, A attention size, Hq size of a query, Hm size of an
encoder state, Hk size of a key, D half-width of a window, W = 2D+1 positions of a window, T target length.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum, auto
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
    """Computes how well a query matches each key. The result for a query-key pair is called its energy.

    Every score takes the same four sizes. `attention_size` is for scores that project queries and keys into a
    separate space; `max_positions`, the maximum source length, is for scores with parameters for each position.
    """

    costly: ClassVar[bool] = False
    """Whether each energy is computed separately, rather than by one matrix product for all query-key pairs."""
    reads_positions: ClassVar[bool] = False
    """Whether an energy depends on the position of its key. If so, the score cannot be combined with a local window,
    for which `forward` may receive only the keys inside the window."""

    @abstractmethod
    def __init__(
        self, query_size: int, memory_size: int, attention_size: int, max_positions: int
    ) -> None:
        super().__init__()

    def project(self, values: Tensor) -> Tensor:
        """Returns the keys `(B, S, Hk)` for encoder states `(B, S, Hm)`: the part of the score that needs no query.

        Only `forward` of the same score can use these keys, because a score may scale them for its own computation.
        """
        return values

    @abstractmethod
    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Returns energies `(B, Q, S)`, given queries `(B, Q, Hq)` and the keys from `project`."""


SCORES: Registry["type[AttentionScore]"] = Registry("attention score")


@SCORES.register("additive")
class Additive(AttentionScore):
    """`e_ij = v^T tanh(W s_{i-1} + U h_j + b)`: Bahdanau et al. 2015, appendix A.1.2 (the paper leaves out biases).

    This is also the `concat` score of Luong et al. 2015, section 3.1: W and U are the two halves of their matrix.
    """

    costly = True

    def __init__(
        self, query_size: int, memory_size: int, attention_size: int, max_positions: int
    ) -> None:
        super().__init__(
            query_size, memory_size, attention_size=attention_size, max_positions=max_positions
        )
        self.query = nn.Linear(query_size, attention_size, bias=False)
        self.key = nn.Linear(memory_size, attention_size)
        energy = torch.empty(attention_size)  # (A,)
        energy.uniform_(-1, 1)
        self.energy = nn.Parameter(energy / math.sqrt(attention_size))  # (A,)

    def project(self, values: Tensor) -> Tensor:
        """Returns the doubled keys `2 (U h_j + b)`, `(B, S, A)`.

        `additive_energies` computes tanh x from 2x. The keys are doubled here, once per sentence, rather than in every
        step.
        """
        keys = self.key(values)  # (B, S, A)
        return keys * 2  # type: ignore[no-any-return]  # torch types a module's call as Any

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Returns energies `(B, Q, S)`."""
        return additive_energies(self.query(queries), keys, self.energy)


class CoveredAdditive(Additive):
    """`e_i = v^T tanh(W_s s + W_h h_i + w_c c_i + b)`: See et al. 2017, eq. 11; c_i is the coverage of position i.

    It is not in `SCORES`, since only a model that maintains the coverage can use it. `w_c` is initialized to zero, so
    that a model to which coverage is added in a later stage of training initially behaves as before.
    """

    def __init__(
        self, query_size: int, memory_size: int, attention_size: int, max_positions: int
    ) -> None:
        super().__init__(
            query_size, memory_size, attention_size=attention_size, max_positions=max_positions
        )
        self.coverage = nn.Parameter(torch.zeros(attention_size))  # (A,)

    def forward(self, queries: Tensor, keys: Tensor, coverage: Tensor | None = None) -> Tensor:
        """Returns energies `(B, Q, S)`.

        `coverage` `(B, Q, S)` is the sum of all earlier weights; None means zeros.
        """
        return additive_energies(
            self.query(queries), keys, self.energy, coverage=coverage, coverage_weight=self.coverage
        )


@SCORES.register("dot")
class Dot(AttentionScore):
    """`e_ij = s_i^T h_j`: Luong et al. 2015, section 3.1. Queries and encoder states must have the same size."""

    scaled: ClassVar[bool] = False

    def __init__(
        self, query_size: int, memory_size: int, attention_size: int, max_positions: int
    ) -> None:
        super().__init__(
            query_size, memory_size, attention_size=attention_size, max_positions=max_positions
        )
        if query_size != memory_size:
            raise RecipeError(
                f"a dot score requires queries and encoder states of equal size, but queries have size {query_size} "
                f"and encoder states have size {memory_size}; make the sizes equal, or use the score general or "
                "additive"
            )
        self.scale = 1.0 / math.sqrt(query_size) if self.scaled else 1.0

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Returns energies `(B, Q, S)`."""
        return torch.matmul(queries * self.scale, keys.transpose(1, 2))


@SCORES.register("scaled_dot")
class ScaledDot(Dot):
    """`e_ij = s_i^T h_j / sqrt(Hq)`: Vaswani et al. 2017, eq. 1."""

    scaled = True


@SCORES.register("general")
class General(AttentionScore):
    """`e_ij = s_i^T W h_j`: Luong et al. 2015, section 3.1."""

    def __init__(
        self, query_size: int, memory_size: int, attention_size: int, max_positions: int
    ) -> None:
        super().__init__(
            query_size, memory_size, attention_size=attention_size, max_positions=max_positions
        )
        self.key = nn.Linear(memory_size, query_size, bias=False)

    def project(self, values: Tensor) -> Tensor:
        """Returns `W h_j`, `(B, S, Hq)`."""
        return self.key(values)  # type: ignore[no-any-return]  # torch types a module's call as Any

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Returns energies `(B, Q, S)`."""
        return torch.matmul(queries, keys.transpose(1, 2))


@SCORES.register("location")
class Location(AttentionScore):
    """`e_i = w_i^T s`, with a learned vector w_i for each source position i: Luong et al. 2015, eq. 8.

    The energy depends on the query and on the position, but not on the word at that position. There are
    `max_positions` vectors.
    """

    reads_positions = True

    def __init__(
        self, query_size: int, memory_size: int, attention_size: int, max_positions: int
    ) -> None:
        super().__init__(
            query_size, memory_size, attention_size=attention_size, max_positions=max_positions
        )
        self.positions = UnpackedLinear(query_size, max_positions, bias=False)

    def project(self, values: Tensor) -> Tensor:
        """Returns the encoder states unchanged, `(B, S, Hm)`; `forward` needs only their number.

        Raises:
            DataError: a source has more than `max_positions` tokens.
        """
        length = values.shape[1]
        max_positions = self.positions.out_features
        if length > max_positions:
            raise DataError(
                f"a source has {length} tokens, including EOS, but the location score has only {max_positions} "
                "positions; leave out or split longer sentences, or train with a larger max_positions or a different "
                "score"
            )
        return values

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Returns energies `(B, Q, S)`."""
        source_length = keys.shape[1]
        return functional.linear(queries, self.positions.weight[:source_length])


@SCORES.register("cosine")
class Cosine(AttentionScore):
    """`e_ij = beta_i cos(k_i, h_j)`: content addressing, Graves et al. 2014 (Neural Turing Machines), eqs. 5 and 6.

    The key k_i and the sharpness beta_i are computed from the query: `k_i = W s_i`, `beta_i = softplus(w^T s_i + b)`.
    The sharpness is initially about sqrt(Hm), so that the energies of random vectors have a variance of 1, as with a
    scaled dot product.
    """

    def __init__(
        self, query_size: int, memory_size: int, attention_size: int, max_positions: int
    ) -> None:
        super().__init__(
            query_size, memory_size, attention_size=attention_size, max_positions=max_positions
        )
        self.query = nn.Linear(query_size, memory_size, bias=False)
        self.sharpness = nn.Linear(query_size, 1, bias=False)
        initial_sharpness = math.sqrt(memory_size)
        # The inverse of softplus, so that softplus(base) is the initial sharpness.
        base = math.log(math.expm1(initial_sharpness))
        self.base = nn.Parameter(torch.tensor([base]))  # (1,)

    def project(self, values: Tensor) -> Tensor:
        """Returns `h_j / |h_j|`, `(B, S, Hm)`."""
        return _normalized(values)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Returns energies `(B, Q, S)`."""
        beta = functional.softplus(self.sharpness(queries) + self.base)  # (B, Q, 1)
        query_keys = _normalized(self.query(queries))  # (B, Q, Hm)
        return beta * torch.matmul(query_keys, keys.transpose(1, 2))


def _normalized(vectors: Tensor) -> Tensor:
    # A zero vector, as at padding, must remain zero, so the divisor must not be zero. In float16, torch's default eps
    # of 1e-12 would be rounded to zero.
    eps = max(1e-12, torch.finfo(vectors.dtype).tiny)
    return functional.normalize(vectors, dim=-1, eps=eps)


if TYPE_CHECKING:
    ScoreKind = str
else:
    ScoreKind = registry_name(SCORES)
"""Name of an attention score in `SCORES`."""


class Gathering(Enum):
    """Which vectors are gathered from the local windows before attention is computed.

    Without gathering, all queries of a sentence share one matrix product over all positions. With gathering, the
    vectors in the window of each query are copied, and only these are used.
    """

    NONE = auto()
    KEYS = auto()
    KEYS_AND_VALUES = auto()


class LocalWindow(nn.Module, ABC):
    """A local window, which contains `half_width` (D >= 1) tokens on either side of its centre."""

    def __init__(self, half_width: int) -> None:
        super().__init__()
        self.half_width = half_width
        self.width = 2 * half_width + 1  # W

    @abstractmethod
    def forward(self, queries: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """Returns the centres p_t, as source positions: `(B, Q)`, float32 or wider.

        Args:
            queries: `(B, Q, Hq)`.
            positions: t, the number of target words before each query's word, `(B, Q)`.
            lengths: number of real tokens of each source, `(B,)`.
        """

    def factor(self, distances: Tensor) -> Tensor | None:
        """Returns the factor by which the softmax is multiplied, given distances `s - p_t`; None means no factor."""
        return None

    def weights(self, energies: Tensor, mask: Tensor, distances: Tensor) -> Tensor:
        """Returns the softmax over the positions inside the window, times `factor`: eqs. 7 and 10.

        Energies, mask and distances `s - p_t` are `(B, Q, S)`, or `(B, Q, W)` for the positions of a window.
        """
        # The choice of positions has no gradient; the centre is learned through `factor` below.
        inside = distances.detach().abs() <= self.half_width  # (B, Q, S or W)
        weights = masked_softmax(energies, mask & inside)  # (B, Q, S or W)
        factor = self.factor(distances)  # (B, Q, S or W), or None
        return weights if factor is None else weights * factor

    def positions(self, centres: Tensor, length: int) -> Tensor:
        """Returns W consecutive positions `(B, Q, W)` that cover the window around each centre `(B, Q, 1)`.

        All positions are between 0 and S-1: a window that would extend beyond the source is shifted.
        """
        first = (centres.detach() - self.half_width).ceil().long()  # (B, Q, 1)
        first = first.clamp(0, length - self.width)  # (B, Q, 1)
        offsets = torch.arange(self.width, device=centres.device)  # (W,)
        return first + offsets

    def gathering(self, queries: int, length: int, costly: bool) -> Gathering:
        """Chooses the fastest way to attend to the windows of Q queries in a source of S tokens.

        For matrix products, gathering pays off only if the source is long and there are few queries. For costly
        energies (see `AttentionScore.costly`), it pays off with any number of queries.
        """
        if queries <= 16 and length >= 4 * self.width:
            return Gathering.KEYS_AND_VALUES
        if costly and length >= 2 * self.width:
            return Gathering.KEYS
        return Gathering.NONE


class LocalM(LocalWindow):
    """Monotonic window, `local-m` in the paper: `p_t = t`, as if source and target had the same word order.

    If the target becomes longer than the source, the window remains at the last source token: `p_t = min(t, S-1)`.
    """

    def forward(self, queries: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """Returns centres `(B, Q)`, which do not depend on the queries."""
        last = (lengths - 1).clamp(min=0).unsqueeze(1)  # (B, 1)
        return torch.minimum(positions, last).to(at_least_float32(queries))


class LocalP(LocalWindow):
    """Predictive window, `local-p` in the paper: a Gaussian (eq. 10) around `p_t = S sigmoid(v^T tanh(W h_t))` (eq. 9).

    The softmax is multiplied by `exp(-(s - p_t)^2 / (2 sigma^2))` with sigma = D/2, so the weights sum to less than
    one. v and W get gradients only through this factor, since the choice of the window's positions has no gradient.
    """

    def __init__(self, half_width: int, query_size: int) -> None:
        super().__init__(half_width)
        self.hidden = nn.Linear(query_size, query_size, bias=False)
        centre = torch.empty(query_size)  # (Hq,)
        centre.uniform_(-1, 1)
        self.centre = nn.Parameter(centre / math.sqrt(query_size))  # (Hq,)

    def forward(self, queries: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """Returns centres `(B, Q)`, which do not depend on the positions."""
        hidden = torch.tanh(self.hidden(queries)).to(at_least_float32(queries))  # (B, Q, Hq)
        # Not a matrix product, which autocast would compute in 16 bits: too coarse for the positions of a long source.
        energies = (hidden * self.centre).sum(-1)  # (B, Q)
        return lengths.unsqueeze(1) * torch.sigmoid(energies)

    def factor(self, distances: Tensor) -> Tensor:
        """Returns the Gaussian of eq. 10."""
        sigma = self.half_width / 2
        return torch.exp(distances.square() * (-0.5 / sigma**2))


def build_window(kind: WindowKind, query_size: int, half_width: int) -> LocalWindow | None:
    """Builds the window with the given name; returns None for global attention. Only `local_p` uses `query_size`."""
    if kind == "global":
        return None
    if kind == "local_m":
        return LocalM(half_width)
    return LocalP(half_width, query_size)


@dataclass
class Draws:
    """Samples the positions s_t of hard attention during one pass over the targets: Xu et al. 2015, eqs. 8 and 9."""

    soft: Tensor | None
    """True for sentences that get the expected context instead of a sampled one: `(B,)`. None means that positions are
    sampled for all sentences."""
    log_probs: list[Tensor] = field(default_factory=list)
    """log p(s_t) of each step, `(B, Q)`; 0 for soft sentences."""

    def sample_contexts(self, weights: Tensor, values: Tensor) -> Tensor:
        """Samples a position for each query, and returns the values at these positions, `(B, Q, Hm)`.

        Weights are `(B, Q, S)`, values `(B, S, Hm)`. Appends the log-probabilities of the positions to `log_probs`.
        """
        positions = self.sample(weights.detach())  # (B, Q, 1)
        chosen = _one_hot(positions, weights)  # (B, Q, S)
        log_probs = weights.gather(-1, positions).squeeze(-1).log()  # (B, Q)
        if self.soft is not None:
            is_soft = self.soft[:, None]  # (B, 1)
            chosen = torch.where(is_soft[:, :, None], weights, chosen)  # (B, Q, S)
            log_probs = log_probs.masked_fill(is_soft, 0.0)  # (B, Q)
        self.log_probs.append(log_probs)
        return torch.matmul(chosen.to(values.dtype), values)

    def sample(self, weights: Tensor) -> Tensor:
        """Samples a position for each query, `(B, Q, 1)`, from weights `(B, Q, S)`, which need not be normalized."""
        # If each E_s is drawn from Exp(1), the argmax of p_s / E_s is s with probability p_s (exponential races).
        noise = torch.empty_like(weights).exponential_()  # (B, Q, S)
        noise.clamp_(min=torch.finfo(weights.dtype).tiny)  # 0 / 0 would be NaN
        return (weights / noise).argmax(-1, keepdim=True)

    def path(self) -> Tensor:
        """Returns `log p(s_1 ... s_t | x)`, `(B, T)`."""
        return torch.cat(self.log_probs, 1).cumsum(1)


class Attention(nn.Module):
    """Computes the attention-weighted sum of encoder states; if `hard`, selects the state with the largest weight."""

    def __init__(
        self, score: AttentionScore, window: LocalWindow | None = None, hard: bool = False
    ) -> None:
        super().__init__()
        self.score = score
        self.window = window
        self.hard = hard
        if hard:
            # The moving average b of log p(y_t) is saved with the weights, so that resumed training continues with it.
            self.register_buffer("baseline", torch.zeros(()))

    def draws(self, soft: Tensor | None) -> Draws | None:
        """Returns a sampler for one pass, or None if nothing is sampled; for `soft` see `Draws`."""
        return Draws(soft) if self.hard and self.training else None

    def centres(self, queries: Tensor, positions: Tensor, lengths: Tensor) -> Tensor | None:
        """Returns the window's centres `(B, Q)`, or None for global attention; see `LocalWindow.forward`."""
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
        """Attends to the source with each query; returns contexts `(B, Q, Hm)` and weights `(B, Q, S)`.

        For a sentence without real tokens, contexts and weights are zero. With hard attention, the weights are still
        the soft ones from which the position was chosen.

        Args:
            queries: `(B, Q, Hq)`.
            keys: `(B, S, Hk)`, from the score's `project` method.
            values: encoder states `(B, S, Hm)`.
            mask: True at real source tokens, `(B, S)`.
            centres: centres of the local window, `(B, Q)`.
            coverage: sum of all earlier weights, `(B, Q, S)`, for a score that uses it; not allowed with a window.
        """
        if self.window is not None:
            assert centres is not None, "a local window needs the centres"
            assert coverage is None, "coverage cannot be combined with a local window"
            contexts, weights = self._attend_locally(
                self.window,
                queries=queries,
                keys=keys,
                values=values,
                mask=mask.unsqueeze(1),
                centres=centres,
            )  # (B, Q, Hm), (B, Q, S)
            if not self.hard:
                return contexts, weights
            # Hard attention needs only the weights; below, it computes different contexts from them.
        else:
            if coverage is None:
                energies = self.score(queries, keys)  # (B, Q, S)
            else:
                energies = self.score(queries, keys, coverage)  # (B, Q, S)
            weights = masked_softmax(energies, mask.unsqueeze(1))  # (B, Q, S)
        chosen = weights
        if self.hard:
            best = weights.argmax(-1, keepdim=True)  # (B, Q, 1)
            chosen = _one_hot(best, weights)  # (B, Q, S)
        contexts = torch.matmul(chosen.to(values.dtype), values)  # (B, Q, Hm)
        return contexts, weights

    def _attend_locally(
        self,
        window: LocalWindow,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        centres: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Attends to a window; returns contexts `(B, Q, Hm)` and weights `(B, Q, S)`. `mask` is `(B, 1, S)`."""
        centres = centres.unsqueeze(2)  # (B, Q, 1)
        n_queries = queries.shape[1]
        length = values.shape[1]
        gathering = window.gathering(n_queries, length, self.score.costly)
        if gathering is Gathering.NONE:
            distances = torch.arange(length, device=values.device) - centres  # (B, Q, S)
            energies = self.score(queries, keys)  # (B, Q, S)
            weights = window.weights(energies, mask, distances)  # (B, Q, S)
            contexts = torch.matmul(weights.to(values.dtype), values)  # (B, Q, Hm)
            return contexts, weights

        positions = window.positions(centres, length)  # (B, Q, W)
        window_mask = mask.expand(-1, n_queries, -1).gather(2, positions)  # (B, Q, W)
        # To the score, each query with its window is a separate sentence: B * Q sentences with one query and W keys.
        single_queries = queries.flatten(0, 1).unsqueeze(1)  # (B * Q, 1, Hq)
        window_keys = gather_window(keys, positions)  # (B * Q, W, Hk)
        energies = self.score(single_queries, window_keys)  # (B * Q, 1, W)
        energies = energies.view(positions.shape)  # (B, Q, W)
        window_weights = window.weights(energies, window_mask, positions - centres)  # (B, Q, W)
        zeros = window_weights.new_zeros(*positions.shape[:2], length)  # (B, Q, S)
        weights = zeros.scatter(2, positions, window_weights)  # (B, Q, S)
        if gathering is Gathering.KEYS:
            contexts = torch.matmul(weights.to(values.dtype), values)  # (B, Q, Hm)
            return contexts, weights

        single_weights = window_weights.to(values.dtype).flatten(0, 1).unsqueeze(1)  # (B * Q, 1, W)
        window_values = gather_window(values, positions)  # (B * Q, W, Hm)
        contexts = torch.matmul(single_weights, window_values)  # (B * Q, 1, Hm)
        return contexts.view(*positions.shape[:2], -1), weights


def _one_hot(positions: Tensor, weights: Tensor) -> Tensor:
    """Returns `(B, Q, S)` with 1 at positions `(B, Q, 1)` and 0 elsewhere.

    If the weight at the position is 0, as in a sentence without real tokens, the value there is 0, too.
    """
    one_hot = torch.zeros_like(weights).scatter(-1, positions, 1.0)  # (B, Q, S)
    return one_hot * (weights > 0)


def gather_window(sequence: Tensor, positions: Tensor) -> Tensor:
    """Returns the vectors of `sequence` `(B, S, H)` at `positions` `(B, Q, W)`, as `(B * Q, W, H)`."""
    sentences, length, size = sequence.shape
    vectors = sequence.reshape(-1, size)  # (B * S, H)
    first_rows = torch.arange(0, sentences * length, length, device=sequence.device)  # (B,)
    rows = positions + first_rows[:, None, None]  # (B, Q, W), row indices in `vectors`
    gathered = vectors.index_select(0, rows.flatten())  # (B * Q * W, H)
    return gathered.view(-1, positions.shape[2], size)
