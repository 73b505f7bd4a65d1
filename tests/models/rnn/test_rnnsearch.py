from functools import partial

import pytest
import torch
from torch import Tensor

from nmtkit.data.tokenizers.vocabulary import BOS
from tests.support import small_models
from tests.support.small_models import batch_of
from tests.support.step_by_step import Walk, told

build = partial(small_models.build, "rnnsearch")
SENTENCE = batch_of([[4, 5, 6]])


@torch.no_grad()
@pytest.mark.parametrize(
    ("order", "readout_state"),
    [("appendix", "previous"), ("appendix", "current"), ("look_generate_update", "previous")],
)
def test_the_step_is_that_of_the_appendix_or_of_the_program(order: str, readout_state: str) -> None:
    """Look with s_{i-1}; read out s_{i-1}, or s_i, with the last word and the context; update with both.

    In the program the update comes first, with the context of the look before.
    """
    model = build(order=order, readout_state=readout_state)
    walk = Walk(model, model.encode(SENTENCE))

    ahead, _ = model.encoder.forward_layers[0](model.src_embedding(SENTENCE.inputs.ids))
    back, _ = model.encoder.backward_layers[0](model.src_embedding(SENTENCE.inputs.ids.flip(1)))
    annotations = torch.cat([ahead, back.flip(1)], -1)[0]  # (S,2H)
    before = torch.tanh(model.bridge.hidden(back[0, -1]))
    torch.testing.assert_close(walk.state.hidden[0, 0], before)

    def updated(word: Tensor, context: Tensor, hidden: Tensor) -> Tensor:
        """Torch's GRU by hand: reset, update and new, each with both biases."""
        cell = model.decoder.cells[0]
        ins = (cell.weight_ih @ torch.cat([word, context]) + cell.bias_ih).chunk(3)
        outs = (cell.weight_hh @ hidden + cell.bias_hh).chunk(3)
        reset, keep = (
            1 / (1 + torch.exp(-one - other)) for one, other in zip(ins[:2], outs[:2], strict=True)
        )
        return (1 - keep) * torch.tanh(ins[2] + reset * outs[2]) + keep * hidden

    context = torch.zeros(8, dtype=torch.float64)
    for token in (BOS, 5, 7):
        log_probs, readout = walk.step(torch.tensor([token]))
        word = model.tgt_embedding.weight[token]
        if order == "look_generate_update":
            before = updated(word, context, before)
        score = model.attention.score
        inner = [
            torch.tanh(score.query.weight @ before + score.key(annotation))
            for annotation in annotations
        ]
        weights = torch.stack([score.energy @ one for one in inner]).softmax(0)
        context = sum(
            weight * annotation for weight, annotation in zip(weights, annotations, strict=True)
        )
        after = before if order == "look_generate_update" else updated(word, context, before)
        read = before if readout_state == "previous" else after
        pieces = (
            model.readout.pieces.weight @ torch.cat([read, word, context])
            + model.readout.pieces.bias
        )
        maxima = torch.maximum(pieces[:3], pieces[3:])
        expected = (model.output.weight @ maxima + model.output.bias).log_softmax(0)
        torch.testing.assert_close(readout.attention, weights[None])
        torch.testing.assert_close(log_probs[0], expected)
        torch.testing.assert_close(walk.state.hidden[0, 0], after)
        before = after


@torch.no_grad()
@pytest.mark.parametrize(
    ("settings", "knows"),
    [({}, False), ({"readout_state": "current"}, False), ({"order": "look_generate_update"}, True)],
)
def test_only_in_the_order_of_the_program_a_look_knows_the_last_word(
    settings: dict[str, str], knows: bool
) -> None:
    """Row i of the attention, where only y_{i-1} is another."""
    model = build(noise=0.3, **settings)
    rows = [told(model, batch_of([[4, 5, 6]], [[7, last, 9]])).attention[0] for last in (8, 10)]
    torch.testing.assert_close(rows[0][:2], rows[1][:2], rtol=0, atol=0)
    assert (float((rows[0][2] - rows[1][2]).abs().max()) > 1e-3) == knows
    assert float((rows[0][3] - rows[1][3]).abs().max()) > 1e-4  # the word after it knows in either


@torch.no_grad()
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_bridge_reads_the_direction_that_ends_at_the_first_word(bidirectional: bool) -> None:
    """With both directions that is the backward one, as in the paper; with one it is the only one there is."""
    model = build(bidirectional=bidirectional, encoder_layers=2, layers=3)
    words = model.src_embedding(SENTENCE.inputs.ids)
    for number, ahead in enumerate(model.encoder.forward_layers):
        answer, _ = ahead(words)
        final = answer[:, -1]
        if bidirectional:
            back, _ = model.encoder.backward_layers[number](words.flip(1))
            final = back[:, -1]
            answer = torch.cat([answer, back.flip(1)], -1)
        words = answer
    memory = model.encode(SENTENCE)
    torch.testing.assert_close(memory.values, words)
    first = torch.tanh(model.bridge.hidden(final)).view(1, 3, 4)
    torch.testing.assert_close(model.start(memory).hidden, first)


def test_the_initialisation_of_the_paper() -> None:
    score = build(initialisation="paper", attention_size=64).attention.score
    assert score.energy.abs().sum().item() == 0.0
    assert score.query.weight.std().item() == pytest.approx(0.001, rel=0.2)
    assert score.key.weight.std().item() == pytest.approx(0.001, rel=0.2)
