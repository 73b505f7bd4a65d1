from functools import partial

import pytest
import torch

from nmtkit.data.tokenizers.vocabulary import BOS, EOS
from tests.support import small_models
from tests.support.small_models import batch_of
from tests.support.step_by_step import Walk

build = partial(small_models.build, "rnn_encdec")
SUTSKEVER = {
    "cell": "lstm",
    "layers": 2,
    "maxout_size": None,
    "feed_context": False,
    "reverse_source": True,
}


@torch.no_grad()
def test_cho_feeds_the_summary_to_every_step_and_to_the_readout() -> None:
    model, batch = build(), batch_of([[4, 5]])
    walk = Walk(model, model.encode(batch))
    _, last = model.encoder.forward_layers[0](model.src_embedding(batch.inputs.ids))
    summary = torch.tanh(model.summary(last[0]))
    hidden = torch.tanh(model.bridge.hidden(summary))
    torch.testing.assert_close(walk.state.hidden[:, 0], hidden)
    for token in (BOS, 5):
        log_probs, _ = walk.step(torch.tensor([token]))
        word = model.tgt_embedding.weight[[token]]
        _, after = model.decoder(torch.cat([word, summary], -1)[:, None], hidden[None])
        hidden = after[0]
        pieces = model.readout.pieces(torch.cat([hidden, word, summary], -1))
        expected = model.output(torch.maximum(pieces[:, :3], pieces[:, 3:])).log_softmax(-1)
        torch.testing.assert_close(log_probs, expected)


@torch.no_grad()
def test_sutskever_hands_over_the_last_state_of_the_reversed_source() -> None:
    model = build(**SUTSKEVER)
    state = model.start(model.encode(batch_of([[4, 5, 6], [6]])))
    for row, words in enumerate(([EOS, 6, 5, 4], [EOS, 6])):
        states = model.src_embedding(torch.tensor([words]))
        for number, layer in enumerate(model.encoder.forward_layers):
            states, (hidden, cell) = layer(states)
            torch.testing.assert_close(state.hidden[row, number], hidden[0, 0])
            torch.testing.assert_close(state.cell[row, number], cell[0, 0])
    assert model.readout is None
    assert not list(model.bridge.parameters())


@torch.no_grad()
def test_an_encoder_of_both_directions_is_summed_up_in_one_vector() -> None:
    model, batch = build(bidirectional=True, encoder_hidden_size=2), batch_of([[4, 5]])
    memory = model.encode(batch)
    words = model.src_embedding(batch.inputs.ids)
    ahead, _ = model.encoder.forward_layers[0](words)
    back, _ = model.encoder.backward_layers[0](words.flip(1))
    final = torch.cat([ahead[:, -1], back[:, -1]], -1)
    torch.testing.assert_close(memory.summary, torch.tanh(model.summary(final)))
    first = torch.tanh(model.bridge.hidden(memory.summary))
    torch.testing.assert_close(memory.hidden, first[:, None])


def test_the_initialisation_of_sutskever_is_uniform() -> None:
    """Sutskever et al. 2014, section 3.4: all weights between -0.08 and 0.08; that of Bahdanau et al. is not."""
    model = build(
        initialisation="paper",
        feed_context=False,
        maxout_size=None,
        hidden_size=32,
        embedding_size=32,
    )
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    assert 0.079 < float(weights.abs().max()) < 0.0801
    assert float(weights.std()) == pytest.approx(0.16 / 12**0.5, rel=0.02)
    assert (build(initialisation="paper").output.bias == 0).all()
