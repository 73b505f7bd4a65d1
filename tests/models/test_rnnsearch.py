import pytest
import torch
from walk import Walk

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.batch import Batch
from nmtkit.data.vocabulary import BOS, EOS
from nmtkit.layers.attention import SCORES
from nmtkit.models.base import VocabularySizes
from nmtkit.models.rnnsearch import RnnSearch, RnnSearchConfig

SIZES = VocabularySizes(7, 9, shared=False)


def small(**settings: object) -> RnnSearch:
    torch.manual_seed(1)
    sizes = {"embedding_size": 3, "hidden_size": 4, "attention_size": 5, "maxout_size": 3}
    return RnnSearch(RnnSearchConfig.model_validate({**sizes, **settings}), SIZES).double().eval()


def one_sentence() -> Batch:
    src = torch.tensor([[4, 5, 6, EOS]])
    return Batch(src, torch.ones_like(src, dtype=torch.bool), torch.tensor([4]), src)


@torch.no_grad()
@pytest.mark.parametrize("readout_state", ["previous", "current"])
def test_the_step_is_that_of_the_appendix(readout_state: str) -> None:
    """Look with s_{i-1}; read out s_{i-1}, or s_i, with the last word and the context; update with both."""
    model = small(readout_state=readout_state)
    memory = model.encode(one_sentence())
    walk = Walk(model, memory)

    ahead, _ = model.encoder.forward_layers[0](model.src_embedding(one_sentence().src))
    back, _ = model.encoder.backward_layers[0](model.src_embedding(one_sentence().src.flip(1)))
    annotations = torch.cat([ahead, back.flip(1)], -1)[0]  # (S,2H)
    before = torch.tanh(model.bridge.hidden(back[0, -1]))
    torch.testing.assert_close(walk.state.hidden[0, 0], before)

    for token in (BOS, 5):
        log_probs, readout = walk.step(torch.tensor([token]))
        score = model.attention.score
        energies = torch.stack(
            [
                score.energy @ torch.tanh(score.query.weight @ before + score.key(annotation))
                for annotation in annotations
            ]
        )
        weights = energies.softmax(0)
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
    model = small(score=score, **FITTING[score])
    memory = model.encode(one_sentence())
    _, readout = Walk(model, memory).step(torch.tensor([BOS]))
    energies = model.attention.score(model.start(memory).hidden, model.attention.score.project(memory.values))
    assert readout.attention is not None
    torch.testing.assert_close(readout.attention, energies[0].softmax(-1))
    context = readout.features[0, -memory.values.shape[2] :]
    torch.testing.assert_close(context, readout.attention[0] @ memory.values[0])


def test_a_location_score_knows_only_so_many_positions() -> None:
    with pytest.raises(DataError, match="a source has 4 tokens"):
        small(score="location", max_positions=3).encode(one_sentence())


@torch.no_grad()
@pytest.mark.parametrize("reverse", [False, True])
def test_states_stand_in_the_order_of_the_words_whichever_way_they_are_read(reverse: bool) -> None:
    """A state knows the words that were read before it; so it is seen which way that was."""
    model = small(bidirectional=False, reverse_source=reverse)
    src = torch.tensor([[4, 5, 6, EOS, 0], [6, EOS, 0, 0, 0]])
    batch = Batch(src, src != 0, torch.tensor([4, 2]), src)
    values = model.encode(batch).values
    for column in range(4):
        other = src.clone()
        other[0, column] = 2
        changed = model.encode(Batch(other, batch.src_mask, batch.src_lengths, other)).values != values
        told = range(column + 1) if reverse else range(column, 4)
        assert changed.any(-1).nonzero().tolist() == [[0, place] for place in told]


@torch.no_grad()
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_bridge_reads_the_direction_that_ends_at_the_first_word(bidirectional: bool) -> None:
    """With both directions that is the backward one, as in the paper; with one it is the only one there is."""
    model = small(bidirectional=bidirectional, encoder_layers=2, residual=True, bridge="linear", layers=3)
    words = model.src_embedding(one_sentence().src)
    for number, ahead in enumerate(model.encoder.forward_layers):
        answer, _ = ahead(words)
        final = answer[:, -1]
        if bidirectional:
            back, _ = model.encoder.backward_layers[number](words.flip(1))
            final = back[:, -1]
            answer = torch.cat([answer, back.flip(1)], -1)
        words = words + answer if number else answer
    memory = model.encode(one_sentence())
    torch.testing.assert_close(memory.values, words)
    assert model.bridge.hidden is not None
    torch.testing.assert_close(model.start(memory).hidden, model.bridge.hidden(final).view(1, 3, 4))


@torch.no_grad()
def test_a_copied_state_is_the_encoders() -> None:
    model = small(cell="lstm", bidirectional=False, layers=2, bridge="copy")
    state = model.start(model.encode(one_sentence()))
    words = model.src_embedding(one_sentence().src)
    for number, layer in enumerate(model.encoder.forward_layers):
        words, (hidden, cell) = layer(words)
        torch.testing.assert_close(state.hidden[:, number], hidden[0])
        assert state.cell is not None
        torch.testing.assert_close(state.cell[:, number], cell[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"score": "dot"}, "256 numbers with encoder states of 512: set encoder_hidden_size to 128, or set score to"),
        ({"score": "dot", "hidden_size": 5}, "5 numbers with encoder states of 10: set score to general, additive or"),
        (
            {"score": "scaled_dot", "bidirectional": False, "encoder_hidden_size": 8},
            "with encoder states of 8: set encoder_hidden_size to 256, or set score to",
        ),
        ({"bridge": "copy"}, "1 x 512 numbers.*where the decoder has 1 x 256"),
        (
            {"bridge": "copy", "bidirectional": False, "encoder_layers": 2},
            "2 x 256 numbers.*the decoder has 1 x 256",
        ),
        ({"residual": True}, "residual: an encoder of one layer has none to connect"),
        ({"reverse_source": True}, "reverse_source: a bidirectional encoder reads the source both ways"),
        ({"score": "dots"}, "did you mean 'dot'"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse(RnnSearchConfig, settings, "recipe.yaml")


def test_attention_is_stacked_only_where_asked_for() -> None:
    model = small()
    batch = one_sentence()
    batch = Batch(batch.src, batch.src_mask, batch.src_lengths, batch.src, torch.tensor([[BOS, 4]]))
    assert model(batch).attention is None
    assert model(batch, need_attention=True).attention.shape == (1, 2, 4)


def test_the_initialisation_of_the_paper() -> None:
    score = small(initialisation="paper", attention_size=64).attention.score
    assert score.energy.abs().sum().item() == 0.0
    assert score.query.weight.std().item() == pytest.approx(0.001, rel=0.2)
    assert score.key.weight.std().item() == pytest.approx(0.001, rel=0.2)


def test_dropout_acts_in_training_only() -> None:
    model = small(dropout=0.5)
    first, second = model.encode(one_sentence()).values, model.encode(one_sentence()).values
    assert torch.equal(first, second)
    model.train()
    assert not torch.equal(model.encode(one_sentence()).values, first)


def test_tied_sizes_must_agree() -> None:
    with pytest.raises(RecipeError, match="maxout_size 3 must equal embedding_size 4"):
        parse(RnnSearchConfig, {"tie": "decoder", "embedding_size": 4, "maxout_size": 3}, "recipe.yaml")


def test_tying_all_needs_one_vocabulary() -> None:
    with pytest.raises(RecipeError, match=r"set tokenizer\.joint to true"):
        small(tie="all")
