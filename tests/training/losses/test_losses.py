"""Losses by hand and against other formulas."""

import math

import pytest
import torch
import torch.nn.functional as F

from nmtkit.data.batches.batch import collate
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.training.losses.attention import alignment_loss, coverage_loss, linked_positions
from nmtkit.training.losses.likelihood import likelihood


def random_log_probs(rows: int, words: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(3)
    return torch.log_softmax(torch.randn(rows, words, dtype=torch.float64, generator=draw), -1)


BATCH = collate([[5], [5]], [[4, 2], [1]])
WORDS = torch.tensor([4, 2, EOS, 1, EOS])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_likelihood_is_the_cross_entropy_against_the_smoothed_targets(smoothing: float) -> None:
    logits = random_log_probs(5, 6) * 3
    total, nll = likelihood(torch.log_softmax(logits, -1), BATCH, 6, smoothing)
    expected = F.cross_entropy(logits, WORDS, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        nll, F.cross_entropy(logits, WORDS, reduction="sum"), rtol=1e-12, atol=0
    )


def test_gradient_of_the_loss_is_minus_q() -> None:
    log_probs = random_log_probs(5, 6).requires_grad_()
    torch.autograd.backward(likelihood(log_probs, BATCH, 6, 0.3)[0])
    q = 0.7 * F.one_hot(WORDS, 6).double() + 0.3 / 6
    torch.testing.assert_close(log_probs.grad, -q, rtol=1e-12, atol=1e-12)


def test_a_copied_word_is_a_target_and_impossible_words_get_no_smoothing() -> None:
    batch = collate([[5]], [[1]], tgt_extended=[[6]], n_oov=2)
    log_probs = random_log_probs(2, 8)
    log_probs[:, 7] = -math.inf  # an unknown word of another sentence
    total, nll = likelihood(log_probs, batch, 6, 0.1)
    spread = float(log_probs[:, :6].sum())
    expected = -float(log_probs[0, 6] + log_probs[1, 3])
    assert math.isclose(float(total), 0.9 * expected - 0.1 / 6 * spread, rel_tol=1e-12)
    assert math.isclose(float(nll), expected, rel_tol=1e-12)


def test_a_model_that_does_not_copy_is_given_the_plain_ids() -> None:
    batch = collate([[5]], [[1]], tgt_extended=[[6]], n_oov=1)
    log_probs = random_log_probs(2, 6)
    total, _ = likelihood(log_probs, batch, 6)
    assert math.isclose(float(total), -float(log_probs[0, 1] + log_probs[1, 3]), rel_tol=1e-12)


def test_half_precision_is_added_up_in_single() -> None:
    batch = collate([[5]], [[4] * 3999])
    log_probs = torch.full((4000, 6), -1.0, dtype=torch.bfloat16)
    total, nll = likelihood(log_probs, batch, 6, 0.1)
    assert float(nll) == 4000.0
    assert math.isclose(float(total), 4000.0, rel_tol=1e-6)


# Two sentences of 3 and 2 source tokens (EOS counted), 3 and 2 target tokens; target 0 of the first has two links,
# target 1 none, target 0 of the second one.
LINKED = collate([[5, 6], [7]], [[8, 9], [8]], alignment=[[0, 0, 1, 0], [0, 0]])
LINKS = LINKED.alignment
WEIGHTS = torch.tensor(
    [
        [[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.3, 0.3, 0.4]],
        [[0.8, 0.2, 0.0], [0.6, 0.4, 0.0], [0.0, 0.0, 0.0]],
    ],
    dtype=torch.float64,
)


def test_alignment_loss_by_hand() -> None:
    # Target 0 of sentence 0: G = (1/2, 1/2, 0); of sentence 1: G = (1, 0). Nothing else has a link.
    cross_entropy = -(0.5 * math.log(0.5) + 0.5 * math.log(0.25)) - math.log(0.8)
    squared_error = (0.0**2 + 0.25**2 + 0.25**2) + (0.2**2 + 0.2**2)
    found = alignment_loss(WEIGHTS, LINKS)
    assert math.isclose(float(found), cross_entropy, rel_tol=1e-12)
    found = alignment_loss(WEIGHTS, LINKS, "squared_error")
    assert math.isclose(float(found), squared_error, rel_tol=1e-12)


@pytest.mark.parametrize("kind", ["cross_entropy", "squared_error"])
def test_padding_and_words_without_links_are_not_taught(kind: str) -> None:
    weights = WEIGHTS.clone().requires_grad_()
    torch.autograd.backward(alignment_loss(weights, LINKS, kind))
    taught = weights.grad.abs().sum(-1) > 0
    assert taught.tolist() == [[True, False, False], [True, False, False]]
    assert taught.equal(linked_positions(LINKED, "file"))


def test_gradient_of_the_cross_entropy_is_minus_gold_over_weight() -> None:
    weights = WEIGHTS.clone().requires_grad_()
    torch.autograd.backward(alignment_loss(weights, LINKS))
    torch.testing.assert_close(
        weights.grad[0, 0], torch.tensor([-1.0, -2.0, 0.0], dtype=torch.float64)
    )
    torch.testing.assert_close(
        weights.grad[1, 0], torch.tensor([-1.25, 0.0, 0.0], dtype=torch.float64)
    )


def test_a_link_to_a_weight_of_zero_stays_finite() -> None:
    weights = torch.tensor([[[0.0, 1.0]]], requires_grad=True)
    loss = alignment_loss(weights, torch.tensor([[[True, False]]]))
    torch.autograd.backward(loss)
    assert torch.isfinite(loss)
    assert bool(torch.isfinite(weights.grad).all())
    # Through a softmax even a vanishing weight is pulled at: the gradient of its energy is 1 - 0.
    energies = torch.tensor([[[0.0, 60.0]]], requires_grad=True)
    torch.autograd.backward(alignment_loss(energies.softmax(-1), torch.tensor([[[True, False]]])))
    torch.testing.assert_close(energies.grad, torch.tensor([[[-1.0, 1.0]]]))


def test_the_model_teaches_all_words_but_not_the_end() -> None:
    expected = [[True, True, False], [True, False, False]]
    assert linked_positions(LINKED, "model").tolist() == expected


def test_coverage_loss_by_hand() -> None:
    attention = torch.tensor(
        [
            [[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.9, 0.0, 0.1]],
            [[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.0, 1.0, 0.0]],
        ],
        dtype=torch.float64,
    )
    mask = torch.tensor([[True, True, True], [True, True, False]])
    # First: coverage before step 2 is (.5 .5 0): .2 + .3 + 0; before step 3 (.7 .8 .5): .7 + 0 + .1.
    # Second: before step 2 (1 0 0): .6; its third row is padding.
    assert coverage_loss(attention, mask).item() == pytest.approx(0.5 + 0.8 + 0.6, rel=1e-12)
    assert coverage_loss(attention[:, :1], mask[:, :1]).item() == 0


def test_coverage_is_at_most_one_a_token_and_wide() -> None:
    attention = torch.softmax(torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(1)), -1)
    loss = coverage_loss(attention.bfloat16(), torch.ones(3, 7, dtype=torch.bool))
    assert loss.dtype == torch.float32
    assert 0 < loss.item() <= 3 * 6 * 1.01


def test_gradient_of_coverage_is_that_of_finite_differences() -> None:
    attention = torch.rand(
        2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    ).requires_grad_()
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    assert torch.autograd.gradcheck(lambda a: coverage_loss(a, mask), attention)
