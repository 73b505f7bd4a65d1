"""The output layer in parts gives the gradient of the whole."""

import pytest
import torch

from nmtkit.data.batch import collate
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes
from nmtkit.settings import parse
from nmtkit.training.losses import add_gradients, likelihood

SMALL = {
    "rnnsearch": {"embedding_size": 6, "hidden_size": 5, "attention_size": 4, "maxout_size": 6, "tie": "decoder"},
    "rnn_encdec": {"embedding_size": 6, "hidden_size": 5, "maxout_size": 4},
    "transformer": {"hidden_size": 8, "feed_forward_size": 12, "heads": 2, "tie": "all"},
}
BATCH = collate([[5, 6, 7], [8, 9], [4]], [[7, 6], [5], [9, 9, 8, 4]])  # 10 target tokens, EOS counted


def build(name: str) -> Seq2Seq:
    torch.manual_seed(3)
    kind = MODELS.get(name)
    config = parse(kind.Config, {"kind": name, "dropout": 0.0, **SMALL[name]}, "test")
    return kind(config, VocabularySizes(10, 10, shared=True)).double()


def gradients(model: Seq2Seq) -> dict[str, torch.Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("rows", [1, 3, 10, 1000])
@pytest.mark.parametrize("name", sorted(SMALL))
def test_gradient_in_parts_is_that_of_the_whole(name: str, rows: int) -> None:
    whole = build(name)
    loss = likelihood(whole(BATCH, keep=BATCH.tgt_mask), BATCH, 10, 0.1)
    torch.autograd.backward(loss.total / 10)

    parted = build(name)
    sums = add_gradients(parted, BATCH, 1 / 10, 0.1, torch.device("cpu"), part_bytes=rows * 4 * 10)
    assert sums[0].item() == pytest.approx(loss.total.item(), rel=1e-12)
    assert sums[1].item() == pytest.approx(loss.nll.item(), rel=1e-12)
    expected, found = gradients(whole), gradients(parted)
    assert expected.keys() == found.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-9, atol=1e-12)


def test_every_model_was_asked() -> None:
    assert set(SMALL) == set(MODELS.names())
