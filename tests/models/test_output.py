"""Log-probabilities of wanted words alone: they, and their gradients, are those of the whole distribution."""

import pytest
import torch

from nmtkit.data.batches.batch import collate
from nmtkit.models.abilities import log_likelihood
from nmtkit.models.base import MODELS, VocabularySizes
from nmtkit.models.output import log_probabilities, log_probabilities_of
from nmtkit.models.rnn.rnnsearch import RnnSearchConfig

BATCH = collate([[5, 6, 7], [8, 9]], [[6, 5], [7, 8, 9, 5]])
CONFIG = RnnSearchConfig(embedding_size=5, hidden_size=6, attention_size=7, dropout=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_of_a_training_are_those_of_the_whole_distribution(dtype: torch.dtype) -> None:
    """Up to rounding: twenty updates of the likelihood."""
    # products of other shapes round alike only if they are exact
    torch.set_float32_matmul_precision("highest")

    def losses(of_wanted_words: bool) -> list[float]:
        torch.manual_seed(1)
        model = MODELS.get("rnnsearch")(CONFIG, VocabularySizes({"src": 12, "tgt": 12})).to(dtype)
        optimizer, found = torch.optim.SGD(model.parameters(), lr=0.5), []
        wanted = BATCH.targets.ids[BATCH.loss_mask]
        for _ in range(20):
            if of_wanted_words:
                output, memory = model.read(BATCH)
                each, _ = log_likelihood(
                    model, output.gather(BATCH.loss_mask), memory, wanted, summed=False
                )
            else:
                each = model(BATCH, keep=BATCH.loss_mask).gather(-1, wanted[:, None])
            optimizer.zero_grad()
            (-each.mean()).backward()  # type: ignore[no-untyped-call]  # torch does not type it
            optimizer.step()
            found.append(-each.mean().item())
        return found

    quick = losses(of_wanted_words=True)
    assert quick == pytest.approx(
        losses(of_wanted_words=False), rel=1e-5 if dtype == torch.float32 else 1e-12
    )
    assert quick[-1] < 0.5 * quick[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_wanted_words_have_the_probability_and_the_gradient_of_the_softmax(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(1)
    logits = torch.randn(4, 9).to(dtype)
    logits[1, 0] = 200.0  # so that the probability of the wanted word is zero in 32 bits
    logits.requires_grad_()
    wanted, weights = torch.tensor([0, 8, 3, 3]), torch.tensor([1.0, -0.5, 0.0, 2.0])
    whole = log_probabilities(logits)
    ways = [
        log_probabilities_of(wanted, logits, summed=True),
        (whole.gather(1, wanted[:, None])[:, 0], whole.sum(1)),
    ]
    found = []
    for each, sums in ways:
        total = (each * weights).sum() + (sums * weights.square()).sum() / 9
        found.append([each, sums, *torch.autograd.grad(total, logits)])
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-6}.get(dtype, 0.01)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance / 10)
