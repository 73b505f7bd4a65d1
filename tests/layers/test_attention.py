import math

import pytest
import torch

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.layers import kernels
from nmtkit.layers.attention import SCORES, Additive, Attention, Cosine, CoveredAdditive, General, Location
from nmtkit.layers.kernels import masked_softmax

QUERIES = [[0.5, -1.0], [0.2, 0.3]]  # (Q,Hq) of one sentence
VALUES = [[1.0, 0.0, -0.5], [0.3, 0.8, 0.1], [-1.0, 0.4, 2.0]]  # (S,Hm)


def as_batch(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([rows], dtype=torch.float64)


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def product(matrix: list[list[float]], vector: list[float]) -> list[float]:
    return [dot(row, vector) for row in matrix]


def check(attention: Attention, energies: list[list[float]], queries: list[list[float]]) -> None:
    """Softmax and weighted sum by hand over the first two of three positions; the third is masked."""
    keys = attention.project(as_batch(VALUES))
    torch.testing.assert_close(attention.score(as_batch(queries), keys), as_batch(energies), rtol=0, atol=1e-12)
    mask = torch.tensor([[True, True, False]])
    context, weights = attention(as_batch(queries), keys, as_batch(VALUES), mask)
    for row, (first, second, _) in enumerate(energies):
        total = math.exp(first) + math.exp(second)
        expected = [math.exp(first) / total, math.exp(second) / total, 0.0]
        assert weights[0, row].tolist() == pytest.approx(expected, abs=1e-12)
        summed = [sum(w * value[d] for w, value in zip(expected, VALUES, strict=True)) for d in range(3)]
        assert context[0, row].tolist() == pytest.approx(summed, abs=1e-12)


def test_additive_is_the_formula_of_the_paper() -> None:
    w = [[0.1, -0.2], [0.4, 0.3]]
    u = [[0.2, 0.5, -0.1], [-0.3, 0.1, 0.6]]
    b = [0.05, -0.15]
    v = [0.7, -1.1]
    score = Additive(2, 3, 2, 0).double()
    with torch.no_grad():
        for parameter, exact in (
            (score.query.weight, w),
            (score.key.weight, u),
            (score.key.bias, b),
            (score.energy, v),
        ):
            parameter.copy_(torch.tensor(exact, dtype=torch.float64))
    energies = []
    for query in QUERIES:
        row = []
        for value in VALUES:
            ws, uh = product(w, query), product(u, value)
            row.append(sum(v[k] * math.tanh(ws[k] + uh[k] + b[k]) for k in range(2)))
        energies.append(row)
    check(Attention(score), energies, QUERIES)


def test_general_is_a_bilinear_form() -> None:
    w = [[0.1, -0.2, 0.3], [0.4, 0.3, -0.6]]
    score = General(2, 3, 99, 0).double()
    with torch.no_grad():
        score.key.weight.copy_(torch.tensor(w, dtype=torch.float64))
    check(Attention(score), [[dot(query, product(w, value)) for value in VALUES] for query in QUERIES], QUERIES)


@pytest.mark.parametrize(("name", "scale"), [("dot", 1.0), ("scaled_dot", 1 / math.sqrt(3))])
def test_dot_scores(name: str, scale: float) -> None:
    queries = [[0.5, -1.0, 0.2], [2.0, 0.1, -0.4]]
    attention = Attention(SCORES.get(name)(3, 3, 99, 0))
    check(attention, [[scale * dot(query, value) for value in VALUES] for query in queries], queries)


def test_location_reads_the_query_alone() -> None:
    """Equation 8 of Luong et al. 2015; W has rows for more positions than this source has."""
    w = [[0.1, -0.2], [0.4, 0.3], [-0.6, 0.2], [5.0, 5.0]]
    score = Location(2, 3, 99, 4).double()
    with torch.no_grad():
        score.positions.weight.copy_(torch.tensor(w, dtype=torch.float64))
    check(Attention(score), [[dot(row, query) for row in w[:3]] for query in QUERIES], QUERIES)


def test_location_refuses_a_source_that_is_too_long() -> None:
    attention = Attention(SCORES.get("location")(2, 3, 99, 4))
    attention.project(torch.zeros(1, 4, 3))
    with pytest.raises(DataError, match=r"5 tokens, its end included, .* only 4 positions: leave out or split"):
        attention.project(torch.zeros(1, 5, 3))


def test_cosine_is_content_addressing() -> None:
    """Graves et al. 2014, eqs. 5 and 6: beta times the cosine of a key made from the query, whatever the lengths."""
    w, sharpness, base = [[0.1, -0.2], [0.4, 0.3], [-0.6, 0.2]], [0.3, -0.9], 0.25
    score = Cosine(2, 3, 99, 0).double()
    with torch.no_grad():
        for parameter, exact in ((score.query.weight, w), (score.sharpness.weight, [sharpness]), (score.base, [base])):
            parameter.copy_(torch.tensor(exact, dtype=torch.float64))
    energies = []
    for query in QUERIES:
        key = product(w, query)
        beta = math.log(1 + math.exp(dot(sharpness, query) + base))
        energies.append([beta * dot(key, v) / math.sqrt(dot(key, key)) / math.sqrt(dot(v, v)) for v in VALUES])
    check(Attention(score), energies, QUERIES)


def test_cosine_starts_as_sharp_as_a_scaled_dot() -> None:
    """Energies of random vectors have a variance near one; a length of zero is not divided by."""
    torch.manual_seed(1)
    score = SCORES.get("cosine")(256, 256, 99, 0)
    with torch.no_grad():
        energies = score(torch.randn(8, 20, 256), score.project(torch.randn(8, 50, 256)))
        assert energies.var().item() == pytest.approx(1.0, abs=0.1)
        assert bool((score(torch.randn(1, 1, 256), score.project(torch.zeros(1, 1, 256))) == 0).all())


@pytest.mark.parametrize("name", ["dot", "scaled_dot"])
def test_dot_scores_refuse_different_sizes(name: str) -> None:
    with pytest.raises(RecipeError, match=r"size 2 .* size 3: make the sizes equal"):
        SCORES.get(name)(2, 3, 4, 0)


def test_every_score_takes_many_queries_as_it_takes_each_alone() -> None:
    names = SCORES.names()
    assert len(names) == 6
    for name in names:
        torch.manual_seed(1)
        attention = Attention(SCORES.get(name)(4, 4, 5, 8)).double()
        queries, values = torch.randn(2, 3, 4).double(), torch.randn(2, 6, 4).double()
        mask = torch.arange(6) < torch.tensor([[6], [2]])
        keys = attention.project(values)
        context, weights = attention(queries, keys, values, mask)
        assert context.shape == (2, 3, 4)
        for sentence in range(2):
            for query in range(3):
                one, look = attention(
                    queries[sentence : sentence + 1, query : query + 1],
                    keys[sentence : sentence + 1],
                    values[sentence : sentence + 1],
                    mask[sentence : sentence + 1],
                )
                torch.testing.assert_close(one[0, 0], context[sentence, query], rtol=0, atol=1e-12)
                torch.testing.assert_close(look[0, 0], weights[sentence, query], rtol=0, atol=1e-12)


def test_a_sentence_without_words_gives_zeros_and_finite_gradients() -> None:
    attention = Attention(Additive(4, 4, 5, 0)).double()
    values = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False, False, False], [True, False, True]])
    context, weights = attention(torch.randn(2, 1, 4).double(), attention.project(values), values, mask)
    assert bool((weights[0] == 0).all())
    assert bool((context[0] == 0).all())
    assert weights[1].sum().item() == pytest.approx(1.0)
    assert weights[1, 0, 1].item() == 0.0
    context.square().sum().backward()
    assert values.grad is not None
    assert bool((values.grad[0] == 0).all())
    assert bool(values.grad.isfinite().all())


def test_sixteen_bit_energies_are_weighed_in_float32() -> None:
    """Two energies 1/1024 apart at 2: bfloat16 and float16 can hold neither weight exactly, float32 can."""
    energies = torch.tensor([[2.0, 2.0 + 2**-9, -60000.0]], dtype=torch.float16)
    weights = masked_softmax(energies, torch.tensor([[True, True, False]]))
    assert weights.dtype == torch.float32
    assert weights[0, 1].item() == pytest.approx(1 / (1 + math.exp(-(2**-9))), abs=1e-6)
    assert weights[0, 2].item() == 0.0


def test_autocast_stays_near_float32() -> None:
    torch.manual_seed(1)
    attention = Attention(Additive(16, 16, 16, 0))
    queries, values = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
    mask = torch.arange(5) < torch.tensor([[5], [2]])
    exact, exact_weights = attention(queries, attention.project(values), values, mask)
    with torch.autocast("cpu", torch.bfloat16):
        near, weights = attention(queries, attention.project(values), values, mask)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))
    torch.testing.assert_close(weights, exact_weights, rtol=0, atol=0.03)
    torch.testing.assert_close(near.float(), exact, rtol=0, atol=0.05)


def test_additive_writes_over_nothing_that_is_needed() -> None:
    """Its tanh works in place; the gradients must still be those of the formula."""
    attention = Attention(Additive(2, 3, 4, 0)).double()
    queries = torch.randn(2, 2, 2, dtype=torch.float64, requires_grad=True)
    values = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, True, False]])

    def contexts(queries: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return attention(queries, attention.project(values), values, mask)[0]

    assert torch.autograd.gradcheck(contexts, (queries, values))


def test_coverage_is_in_the_score() -> None:
    """See et al. 2017, eq. 11: `w_c c_i` beside the two products; each query has a coverage of its own."""
    attention = Attention(CoveredAdditive(2, 3, 4, 0)).double()
    score = attention.score
    queries, values = as_batch(QUERIES), as_batch(VALUES)
    keys, coverage = attention.project(values), as_batch([[0.0, 0.7, 1.3], [2.0, 0.1, 0.0]])
    plain = score(queries, keys)
    torch.testing.assert_close(score(queries, keys, coverage), plain, rtol=0, atol=0)  # w_c starts at zero
    w_c = torch.tensor([0.3, -0.5, 1.0, 0.2], dtype=torch.float64)
    with torch.no_grad():
        score.get_parameter("coverage").copy_(w_c)
    hidden = score.get_submodule("query")(queries)[:, :, None] + score.get_submodule("key")(values)[:, None]
    energies = (hidden + coverage[..., None] * w_c).tanh() @ score.get_parameter("energy")
    torch.testing.assert_close(score(queries, keys, coverage), energies, rtol=0, atol=1e-12)
    mask = torch.tensor([[True, True, True]])
    torch.testing.assert_close(
        attention(queries, keys, values, mask, coverage=coverage)[1], energies.softmax(-1), rtol=0, atol=1e-12
    )


def test_gradients_reach_coverage() -> None:
    score = CoveredAdditive(2, 3, 4, 0).double()
    torch.nn.init.normal_(score.coverage)
    inputs = [torch.randn(2, 2, 2), torch.randn(2, 3, 3), torch.rand(2, 2, 3)]

    def energies(queries: torch.Tensor, values: torch.Tensor, coverage: torch.Tensor) -> torch.Tensor:
        return score(queries, score.project(values), coverage)

    assert torch.autograd.gradcheck(energies, [part.double().requires_grad_() for part in inputs])
    energies(*(part.double() for part in inputs)).sum().backward()  # type: ignore[no-untyped-call]  # torch does not
    assert score.coverage.grad is not None
    assert bool((score.coverage.grad != 0).all())


@pytest.mark.parametrize("at_once", [2 * 3, 1, 2], ids=["two sentences", "one place", "two places"])
@pytest.mark.parametrize("covered", [False, True], ids=["plain", "coverage"])
def test_a_search_in_parts_gives_the_same_energies(
    covered: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = (CoveredAdditive if covered else Additive)(2, 3, 4, 0).double()
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter)
    queries, values, coverage = (torch.randn(*shape).double() for shape in ((5, 2, 2), (5, 3, 3), (5, 2, 3)))
    keys = score.project(values)
    given = (queries, keys, coverage) if covered else (queries, keys)
    whole = score(*given)
    monkeypatch.setattr(kernels, "_CACHED", at_once * 2 * 4)
    monkeypatch.delattr(kernels, "_plain_energies")
    with torch.no_grad():
        torch.testing.assert_close(score(*given), whole, rtol=0, atol=1e-12)
