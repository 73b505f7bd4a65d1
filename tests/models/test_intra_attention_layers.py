"""Intra-attention against the formulas of Paulus et al. 2018 worked out term by term in float64."""

import math

import pytest
import torch
from torch import Tensor

from nmtkit.layers.kernels import masked_softmax
from nmtkit.models.intra_attention import EMPTY_SUM, IntraDecoderAttention, accumulate, accumulated_before, penalize

# Exponentials of the energies are small whole numbers: (T=3, S=2).
EXPONENTIALS = [[1.0, 3.0], [2.0, 6.0], [9.0, 3.0]]
# Equation 3: the first as they are; 2/1, 6/3; 9/(1+2), 3/(3+6). Equation 4: each row divided by its sum.
WEIGHTS = [[1 / 4, 3 / 4], [1 / 2, 1 / 2], [3 / (3 + 1 / 3), (1 / 3) / (3 + 1 / 3)]]


def energies() -> Tensor:
    return torch.tensor([EXPONENTIALS], dtype=torch.float64).log()


def everywhere(scores: Tensor) -> Tensor:
    return masked_softmax(scores, torch.ones_like(scores, dtype=torch.bool))


def test_the_past_divides_by_all_earlier_exponentials() -> None:
    found = everywhere(penalize(energies(), accumulated_before(energies())))
    torch.testing.assert_close(found, torch.tensor([WEIGHTS], dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [1.0, 100.0, 10_000.0])
def test_stays_finite_where_exponentials_do_not(size: float) -> None:
    scores = size * torch.tensor([[[1.0, -1.0, 0.5], [1.0, -1.0, -0.5], [-1.0, 1.0, 0.0]]])
    scores.requires_grad_()
    naive = scores.exp()
    earlier = naive.cumsum(1) - naive
    divided = torch.cat([naive[:, :1], naive[:, 1:] / earlier[:, 1:]], 1)
    naive_weights = divided / divided.sum(-1, keepdim=True)
    weights = everywhere(penalize(scores, accumulated_before(scores)))
    if size == 1.0:
        torch.testing.assert_close(weights, naive_weights, rtol=1e-5, atol=1e-6)
    else:
        assert not bool(naive_weights.isfinite().all())
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 3))
    (weights * torch.tensor([1.0, 2.0, 5.0])).sum().backward()
    assert bool(scores.grad.isfinite().all())


def test_an_earlier_look_counts_once_however_large() -> None:
    """Place 0 had e^10000 and has it again: its share is 1, as that of place 1, which had and has e^0."""
    scores = torch.tensor([[[10_000.0, 0.0], [10_000.0, 0.0]]])
    weights = everywhere(penalize(scores, accumulated_before(scores)))
    torch.testing.assert_close(weights, torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))


def test_one_step_and_one_place() -> None:
    one = torch.tensor([[[3.0]]])
    assert accumulated_before(one).tolist() == [[[EMPTY_SUM]]]
    assert penalize(one, accumulated_before(one)).tolist() == [[[3.0]]]


def test_gradient_of_the_past() -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda e: everywhere(penalize(e, accumulated_before(e))), (scores,))

    def walked(e: Tensor) -> Tensor:
        past, looks = torch.full_like(e[:, 0], EMPTY_SUM), []
        for step in e.unbind(1):
            looks.append(everywhere(penalize(step, past)))
            past = accumulate(step, past)
        return torch.stack(looks, 1)

    assert torch.autograd.gradcheck(walked, (scores,))


def intra_decoder() -> IntraDecoderAttention:
    """`W = [[0, 1], [2, 0]]`: `h_t^T W h = h_t[0] h[1] + 2 h_t[1] h[0]`."""
    attention = IntraDecoderAttention(2).double()
    with torch.no_grad():
        attention.query.weight.copy_(torch.tensor([[0.0, 2.0], [1.0, 0.0]]))
    return attention


def test_earlier_states_by_hand() -> None:
    """Equations 6 to 8 with states whose exponentials of energies are whole numbers."""
    log2, log3 = math.log(2), math.log(3)
    states = torch.tensor([[[1.0, 0.0], [0.0, log2], [log3, 0.5]]], dtype=torch.float64)
    # t = 2 sees h_1 alone. t = 3: e_31 = log3 * 0 + 2 * 0.5 * 1 = 1, e_32 = log3 * log2 + 2 * 0.5 * 0.
    first, second = math.exp(1.0), math.exp(log3 * log2)
    expected = [[0.0, 0.0], [1.0, 0.0], [first / (first + second), log2 * second / (first + second)]]
    found = intra_decoder().all_steps(states)
    torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float64), rtol=0, atol=1e-14)
