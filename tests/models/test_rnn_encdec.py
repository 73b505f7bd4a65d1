import pytest
import torch
from walk import Walk

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.batch import Batch
from nmtkit.data.vocabulary import BOS, EOS
from nmtkit.models.base import VocabularySizes
from nmtkit.models.rnn_encdec import RnnEncDec, RnnEncDecConfig

SIZES = VocabularySizes(7, 9, shared=False)
SUTSKEVER = {"cell": "lstm", "layers": 2, "maxout_size": None, "feed_context": False, "reverse_source": True}


def small(**settings: object) -> RnnEncDec:
    torch.manual_seed(1)
    sizes = {"embedding_size": 3, "hidden_size": 4, "maxout_size": 3}
    return RnnEncDec(RnnEncDecConfig.model_validate({**sizes, **settings}), SIZES).double().eval()


def batch_of(*sources: list[int]) -> Batch:
    lengths = torch.tensor([len(source) for source in sources])
    width = int(lengths.max())
    src = torch.tensor([[*source, *[0] * (width - len(source))] for source in sources])
    return Batch(src, torch.arange(width) < lengths[:, None], lengths, src)


@torch.no_grad()
def test_cho_feeds_the_summary_to_every_step_and_to_the_readout() -> None:
    model = small()
    batch = batch_of([4, 5, EOS])
    memory = model.encode(batch)
    walk = Walk(model, memory)
    assert model.summary is not None
    assert model.bridge.hidden is not None
    assert model.readout is not None

    _, last = model.encoder.forward_layers[0](model.src_embedding(batch.src))
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
    model = small(**SUTSKEVER)
    batch = batch_of([4, 5, 6, EOS], [6, EOS])
    state = model.start(model.encode(batch))
    for row, words in enumerate(([EOS, 6, 5, 4], [EOS, 6])):
        states = model.src_embedding(torch.tensor([words]))
        assert state.cell is not None
        for number, layer in enumerate(model.encoder.forward_layers):
            states, (hidden, cell) = layer(states)
            torch.testing.assert_close(state.hidden[row, number], hidden[0, 0])
            torch.testing.assert_close(state.cell[row, number], cell[0, 0])
    assert model.readout is None
    assert model.config.model_dump()["bridge"] is None
    assert not list(model.bridge.parameters())


@torch.no_grad()
def test_an_encoder_of_both_directions_is_summed_up_in_one_vector() -> None:
    """And a copied first state is the encoder's own, while the summary is still fed."""
    model = small(bidirectional=True, encoder_hidden_size=2, bridge="copy")
    batch = batch_of([4, 5, EOS])
    memory = model.encode(batch)
    words = model.src_embedding(batch.src)
    ahead, _ = model.encoder.forward_layers[0](words)
    back, _ = model.encoder.backward_layers[0](words.flip(1))
    final = torch.cat([ahead[:, -1], back[:, -1]], -1)
    assert model.summary is not None
    torch.testing.assert_close(memory.summary, torch.tanh(model.summary(final)))
    torch.testing.assert_close(memory.hidden, final[:, None])


@torch.no_grad()
def test_a_first_state_of_zero_leaves_the_source_to_the_fed_summary() -> None:
    model = small(bridge="zero", layers=2, encoder_layers=1)
    memory = model.encode(batch_of([4, 5, EOS]))
    assert torch.equal(memory.hidden, torch.zeros(1, 2, 4, dtype=torch.float64))
    one, _ = Walk(model, memory).step(torch.tensor([BOS]))
    memory = model.encode(batch_of([5, 4, EOS]))
    other, _ = Walk(model, memory).step(torch.tensor([BOS]))
    assert not torch.allclose(one, other)


def test_it_has_no_attention() -> None:
    model = small()
    batch = batch_of([4, EOS])
    batch = Batch(batch.src, batch.src_mask, batch.src_lengths, batch.src, torch.tensor([[BOS, 4]]))
    assert not model.has_attention
    assert model(batch, need_attention=True).attention is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"embedding_size": 4, "maxout_size": 3}, "embedding_size 4 must equal maxout_size 3"),
        ({"embedding_size": 4, "maxout_size": None, "hidden_size": 8}, "embedding_size 4 must equal hidden_size 8"),
    ],
)
def test_tied_sizes_must_agree(settings: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse(RnnEncDecConfig, {"tie": "decoder", **settings}, "recipe.yaml")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"residual": True}, "residual: an encoder of one layer has none to connect; set layers or encoder_layers"),
        ({"feed_context": False, "bridge": "zero"}, "bridge: zero hides the source from the decoder; set feed_context"),
        ({"feed_context": False, "bidirectional": True}, "1 x 512 numbers.*where the decoder has 1 x 256"),
        ({"feed_context": False, "encoder_layers": 3}, "3 x 256 numbers.*where the decoder has 1 x 256"),
        ({"bidirectional": True, "reverse_source": True}, "reverse_source: a bidirectional encoder reads the source"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse(RnnEncDecConfig, settings, "recipe.yaml")


def test_tying_all_needs_one_vocabulary() -> None:
    with pytest.raises(RecipeError, match=r"set tokenizer\.joint to true"):
        small(tie="all")
