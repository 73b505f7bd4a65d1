from functools import partial

import pytest
import small_models
import torch
from small_models import batch_of
from walk import Walk

from nmtkit.data.batch import Batch
from nmtkit.data.vocabulary import BOS, EOS
from nmtkit.layers.attention import SCORES

build = partial(small_models.build, "rnnsearch")
SENTENCE = batch_of([[4, 5, 6]])


@torch.no_grad()
@pytest.mark.parametrize("readout_state", ["previous", "current"])
def test_the_step_is_that_of_the_appendix(readout_state: str) -> None:
    """Look with s_{i-1}; read out s_{i-1}, or s_i, with the last word and the context; update with both."""
    model = build(readout_state=readout_state)
    walk = Walk(model, model.encode(SENTENCE))

    ahead, _ = model.encoder.forward_layers[0](model.src_embedding(SENTENCE.src))
    back, _ = model.encoder.backward_layers[0](model.src_embedding(SENTENCE.src.flip(1)))
    annotations = torch.cat([ahead, back.flip(1)], -1)[0]  # (S,2H)
    before = torch.tanh(model.bridge.hidden(back[0, -1]))
    torch.testing.assert_close(walk.state.hidden[0, 0], before)

    for token in (BOS, 5):
        log_probs, readout = walk.step(torch.tensor([token]))
        score = model.attention.score
        inner = [torch.tanh(score.query.weight @ before + score.key(annotation)) for annotation in annotations]
        weights = torch.stack([score.energy @ one for one in inner]).softmax(0)
        context = sum(weight * annotation for weight, annotation in zip(weights, annotations, strict=True))
        word = model.tgt_embedding.weight[token]
        after = model.decoder.cells[0](torch.cat([word, context])[None], before[None])[0]
        read = before if readout_state == "previous" else after
        pieces = model.readout.pieces.weight @ torch.cat([read, word, context]) + model.readout.pieces.bias
        maxima = torch.maximum(pieces[:3], pieces[3:])
        expected = (model.output.weight @ maxima + model.output.bias).log_softmax(0)
        torch.testing.assert_close(readout.attention, weights[None])
        torch.testing.assert_close(log_probs[0], expected)
        torch.testing.assert_close(walk.state.hidden[0, 0], after)
        before = after


FITTING: dict[str, dict[str, object]] = {
    "additive": {},
    "cosine": {},
    "dot": {"encoder_hidden_size": 2},
    "general": {"encoder_hidden_size": 7},
    "location": {"max_positions": 4},
    "scaled_dot": {"bidirectional": False},
}


@torch.no_grad()
@pytest.mark.parametrize("score", FITTING)
def test_every_score_weighs_the_encoders_states(score: str) -> None:
    assert set(FITTING) == set(SCORES.names())
    model = build(score=score, **FITTING[score])
    memory = model.encode(SENTENCE)
    _, readout = Walk(model, memory).step(torch.tensor([BOS]))
    energies = model.attention.score(model.start(memory).hidden, model.attention.score.project(memory.values))
    torch.testing.assert_close(readout.attention, energies[0].softmax(-1))
    context = readout.features[0, -memory.values.shape[2] :]
    torch.testing.assert_close(context, readout.attention[0] @ memory.values[0])


@torch.no_grad()
@pytest.mark.parametrize("reverse", [False, True])
def test_states_stand_in_the_order_of_the_words_whichever_way_they_are_read(reverse: bool) -> None:
    """A state depends on the words that were read before it, which shows the direction of reading."""
    model = build(bidirectional=False, reverse_source=reverse)
    src = torch.tensor([[4, 5, 6, EOS, 0], [6, EOS, 0, 0, 0]])
    batch = Batch(src, src != 0, torch.tensor([4, 2]), src)
    values = model.encode(batch).values
    for column in range(4):
        other = src.clone()
        other[0, column] = 2
        changed = model.encode(Batch(other, batch.src_mask, batch.src_lengths, other)).values != values
        places = range(column + 1) if reverse else range(column, 4)
        assert changed.any(-1).nonzero().tolist() == [[0, place] for place in places]


@torch.no_grad()
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_bridge_reads_the_direction_that_ends_at_the_first_word(bidirectional: bool) -> None:
    """With both directions that is the backward one, as in the paper; with one it is the only one there is."""
    model = build(bidirectional=bidirectional, encoder_layers=2, residual=True, bridge="linear", layers=3)
    words = model.src_embedding(SENTENCE.src)
    for number, ahead in enumerate(model.encoder.forward_layers):
        answer, _ = ahead(words)
        final = answer[:, -1]
        if bidirectional:
            back, _ = model.encoder.backward_layers[number](words.flip(1))
            final = back[:, -1]
            answer = torch.cat([answer, back.flip(1)], -1)
        words = words + answer if number else answer
    memory = model.encode(SENTENCE)
    torch.testing.assert_close(memory.values, words)
    torch.testing.assert_close(model.start(memory).hidden, model.bridge.hidden(final).view(1, 3, 4))


@torch.no_grad()
def test_a_copied_state_is_the_encoders() -> None:
    model = build(cell="lstm", bidirectional=False, layers=2, bridge="copy")
    state = model.start(model.encode(SENTENCE))
    words = model.src_embedding(SENTENCE.src)
    for number, layer in enumerate(model.encoder.forward_layers):
        words, (hidden, cell) = layer(words)
        torch.testing.assert_close(state.hidden[:, number], hidden[0])
        torch.testing.assert_close(state.cell[:, number], cell[0])


def test_the_initialisation_of_the_paper() -> None:
    score = build(initialisation="paper", attention_size=64).attention.score
    assert score.energy.abs().sum().item() == 0.0
    assert score.query.weight.std().item() == pytest.approx(0.001, rel=0.2)
    assert score.key.weight.std().item() == pytest.approx(0.001, rel=0.2)
