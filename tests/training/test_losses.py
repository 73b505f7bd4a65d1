import math

import torch
import torch.nn.functional as F

from nmtkit.data.batch import Batch
from nmtkit.models.base import Output
from nmtkit.training.losses import likelihood


def batch_of(targets: list[list[int]], extended: list[list[int]] | None = None, n_oov: int = 0) -> Batch:
    width = max(map(len, targets))
    mask = torch.tensor([[column < len(row) for column in range(width)] for row in targets])

    def ids(rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor([row + [0] * (width - len(row)) for row in rows])

    out = ids(targets)
    extended_ids = out if extended is None else ids(extended)
    return Batch(out, mask, mask.sum(1), out, out, out, extended_ids, mask, n_oov)


def random_log_probs(rows: int, words: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(3)
    return torch.log_softmax(torch.randn(rows, words, dtype=torch.float64, generator=draw), -1)


def test_likelihood_is_the_cross_entropy_against_the_smoothed_targets():
    batch = batch_of([[4, 2, 3], [1, 3]])
    kept = [4, 2, 3, 1, 3]
    log_probs = random_log_probs(5, 6)
    expected = nll = 0.0
    for row, word in enumerate(kept):
        for x in range(6):
            q = 0.8 * (x == word) + 0.2 / 6
            expected -= q * float(log_probs[row, x])
        nll -= float(log_probs[row, word])
    loss = likelihood(Output(log_probs), batch, 6, 0.2)
    assert math.isclose(float(loss.total), expected, rel_tol=1e-12)
    assert math.isclose(float(loss.nll), nll, rel_tol=1e-12)
    assert loss.tokens == 5


def test_likelihood_equals_torch_cross_entropy():
    batch = batch_of([[4, 2, 3], [1, 3]])
    logits = random_log_probs(5, 6) * 3
    for smoothing in (0.0, 0.1, 0.5):
        loss = likelihood(Output(torch.log_softmax(logits, -1)), batch, 6, smoothing)
        other = F.cross_entropy(logits, torch.tensor([4, 2, 3, 1, 3]), label_smoothing=smoothing, reduction="sum")
        torch.testing.assert_close(loss.total, other, rtol=1e-12, atol=0)


def test_gradient_of_the_loss_is_minus_q():
    batch = batch_of([[4, 2, 3], [1, 3]])
    log_probs = random_log_probs(5, 6).requires_grad_()
    torch.autograd.backward(likelihood(Output(log_probs), batch, 6, 0.3).total)
    q = 0.7 * F.one_hot(torch.tensor([4, 2, 3, 1, 3]), 6).double() + 0.3 / 6
    torch.testing.assert_close(log_probs.grad, -q, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda logits: likelihood(Output(torch.log_softmax(logits, -1)), batch, 6, 0.3).total,
        random_log_probs(5, 6).requires_grad_(),
    )


def test_a_copied_word_is_a_target_and_impossible_words_get_no_smoothing():
    batch = batch_of([[1, 3]], extended=[[6, 3]], n_oov=2)
    log_probs = random_log_probs(2, 8)
    log_probs[:, 7] = -math.inf  # an unknown word of another sentence
    loss = likelihood(Output(log_probs), batch, 6, 0.1)
    spread = float(log_probs[:, :6].sum())
    nll = -float(log_probs[0, 6] + log_probs[1, 3])
    assert math.isclose(float(loss.total), 0.9 * nll - 0.1 / 6 * spread, rel_tol=1e-12)
    assert math.isclose(float(loss.nll), nll, rel_tol=1e-12)


def test_a_model_that_does_not_copy_is_given_the_plain_ids():
    batch = batch_of([[1, 3]], extended=[[6, 3]], n_oov=1)
    log_probs = random_log_probs(2, 6)
    loss = likelihood(Output(log_probs), batch, 6)
    assert math.isclose(float(loss.total), -float(log_probs[0, 1] + log_probs[1, 3]), rel_tol=1e-12)


def test_half_precision_is_added_up_in_single():
    targets = [[4] * 4000]
    log_probs = torch.full((4000, 6), -1.0, dtype=torch.bfloat16)
    loss = likelihood(Output(log_probs), batch_of(targets), 6, 0.1)
    assert float(loss.nll) == 4000.0
    assert math.isclose(float(loss.total), 4000.0, rel_tol=1e-6)
