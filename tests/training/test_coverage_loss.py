"""The coverage loss: by hand, and its gradient through the attention that the output layer reads too."""

from pathlib import Path

import pytest
import torch
from gradients import assert_same_gradients, backward, gradients
from tiny_training import tiny_model

from nmtkit.checkpoints.weights import assign_matching_weights, get_weights
from nmtkit.data.batch import collate
from nmtkit.models.base import Output, VocabularySizes
from nmtkit.models.pointer_generator import PointerGenerator, PointerGeneratorConfig
from nmtkit.training.objectives.attention import coverage_loss
from nmtkit.training.objectives.likelihood import likelihood
from nmtkit.training.optimizers import OptimizerConfig, build_optimizer, read_state, restore_state

# V is 9; the sources have unknown words of their own, 9 and 10, which the targets copy.
BATCH = collate([[4, 1, 5, 1], [6, 1]], [[1, 4, 1], [1, 6]], [[4, 9, 5, 10], [6, 9]], [[9, 4, 10], [9, 6]], n_oov=2)


def model(**given: bool) -> PointerGenerator:
    torch.manual_seed(4)
    config = PointerGeneratorConfig(embedding_size=5, hidden_size=4, attention_size=3, coverage=True)
    return PointerGenerator(config.changed(given), VocabularySizes(9, 9, shared=True)).double()


def test_by_hand() -> None:
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


def test_it_is_at_most_one_a_token_and_wide() -> None:
    attention = torch.softmax(torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(1)), -1)
    loss = coverage_loss(attention.bfloat16(), torch.ones(3, 7, dtype=torch.bool))
    assert loss.dtype == torch.float32
    assert 0 < loss.item() <= 3 * 6 * 1.01


def test_its_gradient_is_that_of_finite_differences() -> None:
    attention = torch.rand(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    assert torch.autograd.gradcheck(lambda a: coverage_loss(a, mask), attention)


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_both_losses_go_back_through_one_attention(rows: int) -> None:
    """The mixture reads the attention in parts, the coverage loss whole: together the gradient of one formula."""
    assert BATCH.tgt_mask is not None
    whole = model()
    output = whole(BATCH, keep=BATCH.tgt_mask, need_attention=True)
    text = likelihood(Output(output.log_probs), BATCH, 9, 0.1)
    covered = coverage_loss(output.attention, BATCH.tgt_mask)
    torch.autograd.backward((text.total + 0.7 * covered) / 7)

    parted = model()
    size = rows * 4 * 11
    sums = backward(parted, BATCH, 7, size, label_smoothing=0.1, coverage_weight=0.7)
    expected = {"coverage_loss": covered.item(), "loss": text.total.item(), "nll": text.nll.item()}
    assert {name: total.item() for name, total in sums.items()} == pytest.approx(expected, rel=1e-12)
    found = gradients(parted)
    assert found.keys() == dict(parted.named_parameters()).keys()
    assert_same_gradients(found, gradients(whole))


def test_a_model_takes_over_what_it_knows() -> None:
    plain, covering = model(coverage=False), model()
    before = {name: tensor.clone() for name, tensor in get_weights(covering).items()}
    new, gone = assign_matching_weights(covering, get_weights(plain), Path("weights"))
    assert (new, gone) == (["attention.score.coverage"], [])
    assert torch.equal(get_weights(covering)["attention.score.coverage"], before["attention.score.coverage"])
    for name, tensor in get_weights(plain).items():
        assert torch.equal(get_weights(covering)[name], tensor)
    assert assign_matching_weights(plain, get_weights(covering), Path("weights")) == ([], new)


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_an_optimizer_goes_on_for_the_weights_it_knows(optimizer: str) -> None:
    config = OptimizerConfig.model_validate({"optimizer": optimizer, "lr": 0.1, "initial_accumulator": 0.1})
    tiny = tiny_model()
    parameters = dict(tiny.named_parameters())
    first = build_optimizer(config, parameters)
    for parameter in parameters.values():
        parameter.grad = torch.full_like(parameter, 2.0)
    first.step()
    state = {name: tensor for name, tensor in read_state(first, parameters).items() if "cell" not in name}
    second = build_optimizer(config, parameters)
    restore_state(second, parameters, state)
    second.step()  # weights without a past are no obstacle
    known, fresh = second.state[parameters["src_embedding.weight"]], second.state[parameters["cell.weight_ih"]]
    assert (float(known["step"]), float(fresh["step"])) == (2, 1)
    if optimizer == "adagrad":  # 0.1, and 4 for each gradient of 2
        assert known["sum"].flatten()[0].item() == pytest.approx(8.1)
        assert fresh["sum"].flatten()[0].item() == pytest.approx(4.1)
