"""Scores, local windows and coverage against numbers worked out one by one from the papers' formulas."""

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.layers import kernels
from nmtkit.layers.attention import (
    SCORES,
    Additive,
    Attention,
    CoveredAdditive,
    Gathering,
    LocalM,
    LocalP,
    ScoreKind,
    WindowKind,
    build_window,
)
from nmtkit.layers.kernels import masked_softmax

SOURCE = 9
LENGTHS = torch.tensor([7, 3, 1])  # two columns are padding even in the longest row


def attention_of(score: ScoreKind, window: WindowKind, half_width: int) -> Attention:
    """Queries have 4 numbers; values 3, or 4 where a score needs as many. No parameter is zero.

    A location score knows more positions than it needs.
    """
    torch.manual_seed(1)
    attention = Attention(
        SCORES.get(score)(4, value_size(score), 5, SOURCE + 2), build_window(window, 4, half_width)
    ).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return attention


def value_size(score: ScoreKind) -> int:
    return 4 if score in ("dot", "scaled_dot") else 3


def energy_of(
    score: ScoreKind, weights: dict[str, Tensor], query: Tensor, values: Tensor
) -> Tensor:
    """The energy of one query `(Hq,)` for each position of one sentence `(S,Hm)`."""
    match score:
        case "dot" | "scaled_dot":  # Luong et al. 2015; Vaswani et al. 2017, eq. 1
            return (values @ query) / (math.sqrt(len(query)) if score == "scaled_dot" else 1.0)
        case "general":  # Luong et al. 2015
            return values @ weights["key.weight"].T @ query
        case "additive":  # Bahdanau et al. 2015, A.1.2
            own = weights["query.weight"] @ query
            return (
                torch.tanh(values @ weights["key.weight"].T + weights["key.bias"] + own)
                @ weights["energy"]
            )
        case "location":  # Luong et al. 2015, eq. 8
            return weights["positions.weight"][: len(values)] @ query
        case "cosine":  # Graves et al. 2014, eqs. 5 and 6
            wanted = weights["query.weight"] @ query
            sharpness = torch.log1p(
                torch.exp(weights["sharpness.weight"] @ query + weights["base"])
            )
            return sharpness * (values @ wanted) / wanted.norm() / values.norm(dim=1)
    raise AssertionError(f"no formula is written down for the score {score}")


def by_hand(
    energies: list[float], length: int, centre: float, half_width: int, gaussian: bool
) -> list[float]:
    """Weights of one query: softmax over the real positions inside the window, then the Gaussian."""
    inside = [s for s in range(length) if abs(s - centre) <= half_width]
    highest = max(energies[s] for s in inside)
    total = sum(math.exp(energies[s] - highest) for s in inside)
    weights = [0.0] * len(energies)
    for s in inside:
        weights[s] = math.exp(energies[s] - highest) / total
        if gaussian:
            weights[s] *= math.exp(-((s - centre) ** 2) / (2 * (half_width / 2) ** 2))
    return weights


def random_inputs(
    queries: int, columns: int = SOURCE, size: int = 4
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, values and their mask."""
    torch.manual_seed(2)
    mask = torch.arange(columns) < LENGTHS[:, None]
    return torch.randn(3, queries, 4).double(), torch.randn(3, columns, size).double(), mask


def test_a_monotonic_centre_is_the_position_until_the_source_ends() -> None:
    positions = torch.arange(9).expand(3, -1)
    centres = LocalM(2)(torch.zeros(3, 9, 4), positions, LENGTHS)
    assert centres.tolist() == [
        [0, 1, 2, 3, 4, 5, 6, 6, 6],
        [0, 1, 2, 2, 2, 2, 2, 2, 2],
        [0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert centres.dtype == torch.float32


@torch.no_grad()
def test_a_predicted_centre_is_equation_9() -> None:
    window = attention_of("dot", "local_p", 2).window
    queries = torch.tensor([[[0.4, -0.9, 0.2, 1.0]]] * 3).double()
    energy = window.centre @ torch.tanh(window.hidden.weight @ queries[0, 0])
    centres = window(queries, torch.zeros(3, 1, dtype=torch.long), LENGTHS)
    torch.testing.assert_close(
        centres[:, 0], LENGTHS / (1 + torch.exp(-energy)), rtol=0, atol=1e-12
    )


SCORE_BY_WINDOW = [
    (score, window, half_width)
    for score in SCORES.names()
    for window in get_args(WindowKind)
    for half_width in ((SOURCE,) if window == "global" else (1, 2, 4))
    if window == "global" or not SCORES.get(score).reads_positions  # models refuse the others
]


@torch.no_grad()
@pytest.mark.parametrize(("score", "window", "half_width"), SCORE_BY_WINDOW)
def test_weights_are_equations_7_and_10(
    score: ScoreKind, window: WindowKind, half_width: int
) -> None:
    """At the first word, in the middle, past the end; in a sentence shorter than the window; of a single token."""
    assert len(SCORE_BY_WINDOW) >= 6 + 5 * 2 * 3
    attention = attention_of(score, window, half_width)
    queries, values, mask = random_inputs(5, size=value_size(score))
    keys = attention.score.project(values)
    positions = torch.tensor([0, 1, 3, 6, 8]).expand(3, -1)
    centres = attention.centres(queries, positions, LENGTHS)
    assert (centres is None) == (window == "global")
    contexts, weights = attention(queries, keys, values, mask, centres)
    parameters = attention.score.state_dict()
    for row, length in enumerate(LENGTHS.tolist()):
        for query in range(5):
            centre = 0.0 if centres is None else centres[row, query].item()
            energies = energy_of(score, parameters, queries[row, query], values[row]).tolist()
            expected = by_hand(energies, length, centre, half_width, window == "local_p")
            assert weights[row, query].tolist() == pytest.approx(expected, abs=1e-12)
            assert not weights[row, query, length:].any()
            summed = torch.tensor(expected, dtype=torch.float64) @ values[row]
            torch.testing.assert_close(contexts[row, query], summed, rtol=0, atol=1e-12)


@pytest.mark.parametrize("centre", [-3.0, 0.0, 0.49, 2.0, 5.5, 6.0, 7.0])
def test_the_window_at_the_ends_of_a_sentence(centre: float) -> None:
    """Both ends of the window belong to it; before the first and after the last token there is nothing."""
    attention = attention_of("dot", "local_p", 2)
    queries, values, mask = random_inputs(1)
    centres = torch.full((3, 1), centre, dtype=torch.float64)
    _, weights = attention(queries, values, values, mask, centres)
    looked = {s for s in range(SOURCE) if weights[0, 0, s] > 0}
    assert looked == {s for s in range(7) if centre - 2 <= s <= centre + 2}


@pytest.mark.parametrize("queries", [1, 4, 20])
@pytest.mark.parametrize("score", ["general", "additive"])
def test_gathering_a_window_changes_nothing(
    score: ScoreKind, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, contexts and gradients, in a source long enough for both ways, whichever would be taken."""
    columns, lengths = 23, torch.tensor([20, 2, 11])
    mask = torch.arange(columns) < lengths[:, None]
    attention = attention_of(score, "local_p", 2)
    torch.manual_seed(3)
    shapes = (3, queries, 4), (3, columns, value_size(score)), (3, queries)
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    results = []
    for choice in Gathering:
        monkeypatch.setattr(
            attention.window, "gathering", lambda queries, length, costly, choice=choice: choice
        )
        looker, values, places = leaves
        centres = torch.sigmoid(places) * lengths[:, None]
        contexts, weights = attention(
            looker, attention.score.project(values), values, mask, centres
        )
        gradients = torch.autograd.grad(contexts.square().sum() + weights.square().sum(), leaves)
        results.append((contexts, weights, *gradients))
    assert results[0][1].count_nonzero() > 3 * queries
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=0, atol=1e-12)


def test_when_windows_are_gathered() -> None:
    """A window of 21: additive energies are gathered from a source of 42 on, products from 84 on if queries are few."""
    assert [SCORES.get(score).costly for score in ("dot", "additive")] == [False, True]
    gathering = LocalM(10).gathering
    assert [gathering(1, length, False) for length in (41, 42, 83, 84)] == [
        Gathering.NONE,
        Gathering.NONE,
        Gathering.NONE,
        Gathering.KEYS_AND_VALUES,
    ]
    assert [gathering(queries, 200, False) for queries in (16, 17)] == [
        Gathering.KEYS_AND_VALUES,
        Gathering.NONE,
    ]
    assert [gathering(17, length, True) for length in (41, 42, 200)] == [
        Gathering.NONE,
        Gathering.KEYS,
        Gathering.KEYS,
    ]
    assert gathering(5, 84, True) is Gathering.KEYS_AND_VALUES


def test_the_centre_learns_by_the_gaussian_alone() -> None:
    """d w(s) / d p = w(s) (s - p) / sigma^2, worked out from eq. 10; a monotonic centre learns nothing."""
    attention = attention_of("general", "local_p", 3)
    queries, values, mask = random_inputs(1, size=3)
    centres = torch.tensor([[2.3], [1.1], [0.4]], dtype=torch.float64, requires_grad=True)
    _, weights = attention(queries, attention.score.project(values), values, mask, centres)
    for s in range(7):
        (slope,) = torch.autograd.grad(weights[0, 0, s], centres, retain_graph=True)
        assert slope[0].item() == pytest.approx(
            weights[0, 0, s].item() * (s - 2.3) / 1.5**2, abs=1e-12
        )
    monotonic = attention_of("general", "local_m", 3)
    _, weights = monotonic(queries, monotonic.score.project(values), values, mask, centres)
    assert weights.requires_grad
    (slope,) = torch.autograd.grad(weights.square().sum(), centres, allow_unused=True)
    assert slope is None


@pytest.mark.parametrize(
    ("score", "window"),
    [
        *((score, "global") for score in SCORES.names()),
        *((s, "local_p") for s in SCORES.names() if not SCORES.get(s).reads_positions),
    ],
)
def test_gradients_are_those_of_the_formula(score: ScoreKind, window: WindowKind) -> None:
    """Also where a score computes in place."""
    attention = attention_of(score, window, 2)
    queries, values, mask = random_inputs(2, columns=7, size=value_size(score))

    def contexts(queries: Tensor, values: Tensor) -> Tensor:
        centres = attention.centres(queries, torch.zeros(3, 2, dtype=torch.long), LENGTHS)
        return attention(queries, attention.score.project(values), values, mask, centres)[0]

    assert torch.autograd.gradcheck(contexts, (queries.requires_grad_(), values.requires_grad_()))


def test_autocast_keeps_the_centre_exact() -> None:
    """Between 128 and 256 bfloat16 has only whole numbers: too few for a centre in a source of 200 words."""
    torch.manual_seed(1)
    window = LocalP(10, 64)
    queries, lengths = torch.randn(1, 50, 64), torch.tensor([200])
    positions = torch.zeros(1, 50, dtype=torch.long)
    exact = window(queries, positions, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        near = window(queries, positions, lengths)
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, exact, rtol=0, atol=0.3)


def test_location_refuses_a_source_that_is_too_long() -> None:
    attention = Attention(SCORES.get("location")(2, 3, 99, 4))
    attention.score.project(torch.zeros(1, 4, 3))
    with pytest.raises(
        DataError, match=r"5 tokens, including EOS, .* only 4 positions; leave out or split"
    ):
        attention.score.project(torch.zeros(1, 5, 3))


def test_cosine_starts_as_sharp_as_a_scaled_dot() -> None:
    """Energies of random vectors have a variance near one; a length of zero is not divided by."""
    torch.manual_seed(1)
    score = SCORES.get("cosine")(256, 256, 99, 0)
    with torch.no_grad():
        energies = score(torch.randn(8, 20, 256), score.project(torch.randn(8, 50, 256)))
        assert energies.var().item() == pytest.approx(1.0, abs=0.1)
        assert bool(
            (score(torch.randn(1, 1, 256), score.project(torch.zeros(1, 1, 256))) == 0).all()
        )


@pytest.mark.parametrize("name", ["dot", "scaled_dot"])
def test_dot_scores_refuse_different_sizes(name: str) -> None:
    with pytest.raises(RecipeError, match=r"size 2 .* size 3; make the sizes equal"):
        SCORES.get(name)(2, 3, 4, 0)


@pytest.mark.parametrize("window", ["global", "local_m", "local_p"])
def test_a_sentence_without_words_gives_zeros_and_finite_gradients(window: WindowKind) -> None:
    """Its context has no gradient; the words that a mask hides within a sentence have a weight of zero."""
    attention = attention_of("additive", window, 2)
    queries, values = (
        torch.randn(3, 2, 4).double().requires_grad_(),
        torch.randn(3, 9, 3).double().requires_grad_(),
    )
    lengths = torch.tensor([0, 4, 9])
    mask = torch.arange(9) < lengths[:, None]
    centres = attention.centres(queries, torch.tensor([[0, 5]] * 3), lengths)
    contexts, weights = attention(queries, attention.score.project(values), values, mask, centres)
    assert bool((weights[~mask[:, None].expand_as(weights)] == 0).all())
    assert bool((contexts[0] == 0).all())
    contexts.square().sum().backward()
    for inputs in (queries, values):
        assert bool(inputs.grad.isfinite().all())
        assert bool((inputs.grad[0] == 0).all())


def test_sixteen_bit_energies_are_weighed_in_float32() -> None:
    """Two energies 1/1024 apart at 2: bfloat16 and float16 can hold neither weight exactly, float32 can."""
    energies = torch.tensor([[2.0, 2.0 + 2**-9, -60000.0]], dtype=torch.float16)
    weights = masked_softmax(energies, torch.tensor([[True, True, False]]))
    assert weights.dtype == torch.float32
    assert weights[0, 1].item() == pytest.approx(1 / (1 + math.exp(-(2**-9))), abs=1e-6)
    assert weights[0, 2].item() == 0.0


# Coverage: See et al. 2017, eq. 11.


def covered_inputs() -> list[Tensor]:
    """Queries, values and coverage of five sentences."""
    torch.manual_seed(1)
    return [torch.randn(shape).double() for shape in ((5, 2, 2), (5, 3, 3), (5, 2, 3))]


def test_coverage_is_in_the_score() -> None:
    """`w_c c_i` beside the two products; each query has a coverage of its own."""
    attention = Attention(CoveredAdditive(2, 3, 4, 0)).double()
    score = attention.score
    queries, values, coverage = covered_inputs()
    keys = attention.score.project(values)
    # w_c is zero yet
    torch.testing.assert_close(score(queries, keys, coverage), score(queries, keys), rtol=0, atol=0)
    w_c = torch.nn.init.normal_(score.coverage).detach()
    hidden = score.query(queries)[:, :, None] + score.key(values)[:, None]
    energies = (hidden + coverage[..., None] * w_c).tanh() @ score.energy
    torch.testing.assert_close(score(queries, keys, coverage), energies, rtol=0, atol=1e-12)
    _, weights = attention(
        queries, keys, values, torch.ones(5, 3, dtype=torch.bool), coverage=coverage
    )
    torch.testing.assert_close(weights, energies.softmax(-1), rtol=0, atol=1e-12)


def test_gradients_reach_coverage() -> None:
    score = CoveredAdditive(2, 3, 4, 0).double()
    torch.nn.init.normal_(score.coverage)

    def energies(queries: Tensor, values: Tensor, coverage: Tensor) -> Tensor:
        return score(queries, score.project(values), coverage)

    assert torch.autograd.gradcheck(energies, [part.requires_grad_() for part in covered_inputs()])
    energies(*covered_inputs()).sum().backward()
    assert bool((score.coverage.grad != 0).all())


@pytest.mark.parametrize("at_once", [2 * 3, 1, 2], ids=["two sentences", "one place", "two places"])
@pytest.mark.parametrize("covered", [False, True], ids=["plain", "coverage"])
def test_a_search_in_parts_gives_the_same_energies(
    covered: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = (CoveredAdditive if covered else Additive)(2, 3, 4, 0).double()
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter)
    queries, values, coverage = covered_inputs()
    keys = score.project(values)
    given = (queries, keys, coverage) if covered else (queries, keys)
    whole = score(*given)
    monkeypatch.setattr(kernels, "_CACHED", at_once * 2 * 4)
    monkeypatch.delattr(kernels, "_plain_energies")
    with torch.no_grad():
        torch.testing.assert_close(score(*given), whole, rtol=0, atol=1e-12)
