"""ELMo: each direction sees what lies on its side and nothing else, and other models add the mixture of equation 1."""

import math

import pytest
import torch
from torch import Tensor, nn

from nmtkit.data.batches.batch import Batch, collate
from nmtkit.data.tokenizers.vocabulary import BOS, EOS
from nmtkit.models.base import MODELS, VocabularySizes
from nmtkit.training.config import TrainingConfig
from nmtkit.training.losses.objective import build_objectives
from nmtkit.zoo.elmo import ContextualEmbedding, Elmo, ElmoConfig
from tests.support.pretraining_batches import seeded, texts, tokenizers
from tests.support.seeds import moved

V = 12
TINY = ElmoConfig(hidden_size=3, layers=2, dropout=0.0)
TRAINING = {"max_updates": 1, "objectives": {"both_directions": {}}}
(OBJECTIVE,) = build_objectives(TrainingConfig.model_validate(TRAINING))


def large(model: nn.Module) -> nn.Module:
    """In float64, with large weights, so that what is untrained has opinions."""
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model.eval()


def model(config: ElmoConfig = TINY) -> Elmo:
    torch.manual_seed(moved(1))
    made = large(Elmo(config, VocabularySizes({"tgt": V})))
    assert isinstance(made, Elmo)
    return made


def told(batch: Batch) -> Batch:
    """What the objective makes of a batch of texts."""
    return OBJECTIVE.corrupt(batch, seeded(), tokenizers())


def lstm(layer: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    """The states of an LSTM from zero, written out."""
    of_inputs, of_hidden, *biases = layer.parameters()
    hidden = cell = torch.zeros(of_hidden.shape[1], dtype=torch.float64)
    states = []
    for one in inputs:
        gates = of_inputs @ one + of_hidden @ hidden + sum(biases)
        enter, forget, new, leave = gates.chunk(4)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        states.append(hidden)
    return states


def layers_by_hand(context: nn.Module, ids: list[int]) -> list[list[Tensor]]:
    """h_0, h_1 and h_2, forward and backward side by side, at each of the ids."""
    words = [context.words.weight[one] for one in ids]
    sides = []
    for side, read in ((0, words), (1, words[::-1])):
        lower = lstm(context.layers[0][side], read)
        upper = [
            new + old for new, old in zip(lstm(context.layers[1][side], lower), lower, strict=True)
        ]
        sides.append([layer if side == 0 else layer[::-1] for layer in (read, lower, upper)])
    return [
        [torch.cat(pair) for pair in zip(*both, strict=True)] for both in zip(*sides, strict=True)
    ]


@torch.no_grad()
def test_both_directions_of_a_text_are_as_by_hand() -> None:
    elmo, words = model(), [7, 5, 9]
    batch = told(collate(None, [words, [6]]))
    text, log_probs = [BOS, *words, EOS], elmo(batch)
    top, none = (
        layers_by_hand(elmo.src_embedding["context"], text)[2],
        torch.zeros(3, dtype=torch.float64),
    )
    ahead = [none, *(state[:3] for state in top[:-1])]
    back = [*(state[3:] for state in top[1:]), none]
    for side, states in enumerate((ahead, back)):
        by_hand = torch.stack([elmo.output(state).log_softmax(-1) for state in states])
        torch.testing.assert_close(log_probs[0, side], by_hand, rtol=1e-12, atol=1e-12)
    assert batch.labels[0].tolist() == [[-1, *words, EOS], [BOS, *words, -1]]
    assert batch.labels[1].tolist() == [[-1, 6, EOS, -1, -1], [BOS, 6, -1, -1, -1]]
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, 2, 5, dtype=torch.float64))


@pytest.mark.parametrize("layers", [1, 2])
def test_no_direction_sees_what_it_is_to_tell_or_what_lies_behind_that(layers: int) -> None:
    elmo, batch = model(TINY.changed({"layers": layers})), told(texts(5, 3, words=V))
    context = elmo.src_embedding["context"]
    assert isinstance(context.words, nn.Embedding)
    vectors = context.words(batch.inputs.ids).detach().requires_grad_()
    context.words.forward = lambda ids: vectors  # to have its gradient
    features = elmo.read(batch)[0].features  # (B,2,S,H)
    places = torch.arange(features.shape[2])
    for side, row, place in (batch.labels >= 0).transpose(0, 1).nonzero().tolist():
        (gradient,) = torch.autograd.grad(
            features[row, side, place].square().sum(), vectors, retain_graph=True
        )
        seen = places < place if side == 0 else (places > place) & batch.inputs.mask[row]
        assert torch.equal(gradient[row].abs().amax(-1) > 0, seen), (
            "exactly zero where it is not on its side"
        )
        assert not gradient[1 - row].any()


def test_the_loss_is_the_mean_over_both_directions() -> None:
    elmo, batch = model(), told(texts(6, 2, 4, words=V))
    assert batch.n_tokens == 2 * (7 + 3 + 5)
    assert OBJECTIVE.replaces_likelihood
    log_probs = elmo(batch)
    each = [
        log_probs[:, side].flatten(0, 1)[batch.labels[:, side].flatten() >= 0] for side in (0, 1)
    ]
    wanted = [batch.labels[:, side][batch.labels[:, side] >= 0] for side in (0, 1)]
    means = [nn.functional.nll_loss(one, ids) for one, ids in zip(each, wanted, strict=True)]
    whole = nn.functional.nll_loss(
        elmo(batch, batch.loss_mask), batch.loss_targets()[batch.loss_mask]
    )
    torch.testing.assert_close(whole, sum(means, torch.zeros(())).double() / 2)


def test_a_source_word_is_its_vector_and_the_mixture_of_equation_1() -> None:
    torch.manual_seed(moved(2))
    words = nn.Embedding(V, 4)
    made = large(ContextualEmbedding(words, TINY))
    assert isinstance(made, ContextualEmbedding)
    ids = torch.tensor([[7, 5, 9, EOS], [6, EOS, 0, 0]])
    found = made(ids)
    weights = [math.exp(one) for one in made.s.tolist()]
    for row, text in enumerate(([7, 5, 9, EOS], [6, EOS])):
        layers = layers_by_hand(made.context, [BOS, *text])
        for place, word in enumerate(text):
            mixed = sum(
                weight / sum(weights) * layer[place + 1]
                for weight, layer in zip(weights, layers, strict=True)
            )
            by_hand = words.weight[word] + made.gamma * (made.map.weight @ mixed)
            torch.testing.assert_close(found[row, place], by_hand, rtol=1e-12, atol=1e-12)
    found.sum().backward()
    trained = {name for name, one in made.named_parameters() if one.grad is not None}
    assert trained == {"weight", "s", "gamma", "map.weight"}, "the language models are not trained"


@pytest.mark.parametrize("tie", ["all", "none"])
def test_the_target_has_no_context_where_both_sides_share_one_matrix(tie: str) -> None:
    settings = {
        "hidden_size": 8,
        "heads": 2,
        "feed_forward_size": 8,
        "tie": tie,
        "src_embedding": {"kind": "elmo", "hidden_size": 3},
    }
    cls = MODELS.get("transformer")
    built = cls(
        cls.Config.model_validate(settings), VocabularySizes({"src": V, "tgt": V}, shared=True)
    )
    assert (built.embedding("src").weight is built.embedding("tgt").weight) == (tie == "all")
    assert type(built.embedding("tgt")) is nn.Embedding
