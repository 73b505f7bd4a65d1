import pytest
import torch

from nmtkit.data.batch import Batch
from nmtkit.data.vocabulary import BOS, EOS
from nmtkit.errors import RecipeError
from nmtkit.models.base import VocabularySizes
from nmtkit.models.rnnsearch import RnnSearch, RnnSearchConfig
from nmtkit.settings import parse

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
    state = model.start(memory)

    ahead, _ = model.encoder.forward_layers[0](model.src_embedding(one_sentence().src))
    back, _ = model.encoder.backward_layers[0](model.src_embedding(one_sentence().src.flip(1)))
    annotations = torch.cat([ahead, back.flip(1)], -1)[0]  # (S,2H)
    before = torch.tanh(model.bridge.hidden(back[0, -1]))
    torch.testing.assert_close(state.hidden[0, 0], before)

    for token in (BOS, 5):
        log_probs, readout, state = model.step(torch.tensor([token]), state, memory, need_attention=True)
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
        torch.testing.assert_close(state.hidden[0, 0], after)
        before = after


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
