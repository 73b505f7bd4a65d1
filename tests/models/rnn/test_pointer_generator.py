"""The pointer-generator of See et al. 2017: its equations by hand, its sizes, copying, coverage, and hard inputs."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from nmtkit.data.tokenizers.vocabulary import EOS, UNK
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig
from nmtkit.models.base import VocabularySizes
from nmtkit.models.rnn.pointer_generator import PointerGenerator, PointerGeneratorConfig
from nmtkit.training.losses.likelihood import likelihood
from tests.support import small_models
from tests.support.cases import daily
from tests.support.formulas import Array, linear, recurrent_step, sigmoid, softmax
from tests.support.gradients import backward
from tests.support.seeds import moved
from tests.support.small_models import V, batch_of, finite_gradients
from tests.support.step_by_step import told

build = partial(small_models.build, "pointer_generator")


@torch.no_grad()
def test_three_steps_by_hand() -> None:
    """Encoder, reduced state, and three steps of eq. 1 to 4 and 8 to 11, word by word in plain numbers."""
    model = build(coverage=True, noise=0.3)
    w: dict[str, Array] = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    source, extended, target = [5, UNK, 7, 5, EOS], [5, V, 7, 5, EOS], [V, 5]
    size = 4

    def read(layer: nn.Module, words: list[int]) -> tuple[list[Array], Array]:
        hidden, cell, states = np.zeros(size), np.zeros(size), []
        for word in words:
            hidden, cell = recurrent_step(layer, w["tgt_embedding.weight"][word], hidden, cell)
            states.append(hidden)
        return states, np.stack([hidden, cell])

    ahead, end_ahead = read(model.encoder.forward_layers[0], source)
    back, end_back = read(model.encoder.backward_layers[0], source[::-1])
    h = np.concatenate([ahead, back[::-1]], 1)  # (S,2H)
    ends = np.concatenate([end_ahead, end_back], 1)  # hidden and cell, (2,2H)
    hidden = np.maximum(linear(model.reduce.hidden, ends[0]), 0)
    cell = np.maximum(linear(model.reduce.cell, ends[1]), 0)
    context, coverage = np.zeros(2 * size), np.zeros(len(source))
    expected, looks, gates = [], [], []
    for word in [2, UNK, 5]:  # BOS, and the unknown word as the decoder reads it
        x = (
            linear(model.word_input, w["tgt_embedding.weight"][word])
            + w["context_input.weight"] @ context
        )
        hidden, cell = recurrent_step(model.decoder.cells[0], x, hidden, cell)
        inner = linear(model.attention.score.key, h) + np.outer(
            coverage, w["attention.score.coverage"]
        )
        inner = inner + w["attention.score.query.weight"] @ np.concatenate([hidden, cell])
        a = softmax(np.tanh(inner) @ w["attention.score.energy"])  # eq. 11, 2
        context = a @ h  # eq. 3
        # eq. 4
        p_vocab = softmax(
            linear(model.output, linear(model.readout, np.concatenate([hidden, context])))
        )
        p_gen = sigmoid(linear(model.gate, np.concatenate([hidden, context, cell, x])))[0]  # eq. 8
        p = np.append(p_gen * p_vocab, 0.0)
        for place, copied in enumerate(extended):
            p[copied] += (1 - p_gen) * a[place]  # eq. 9
        coverage = coverage + a  # eq. 10
        expected.append(p)
        looks.append(a)
        gates.append(p_gen)

    batch = batch_of([extended[:-1]], [target])
    output = told(model, batch)
    assert output.log_probs.shape == (1, 3, V + 1)
    np.testing.assert_allclose(output.log_probs[0].exp(), np.stack(expected), rtol=0, atol=1e-12)
    np.testing.assert_allclose(output.attention[0], np.stack(looks), rtol=0, atol=1e-12)
    np.testing.assert_allclose(output.copy_gate[0, :, 0], np.stack(gates), rtol=0, atol=1e-12)


def test_the_paper_counts_as_many_parameters() -> None:
    """21,499,600 in the baseline, 1,153 for the pointer, 512 for coverage (section 5 of the paper).

    Torch's LSTMs have two biases where the authors' had one; they are three, of 4 x 256 numbers.
    """

    def count(**settings: object) -> int:
        config = PointerGeneratorConfig.model_validate(settings)
        model = PointerGenerator(
            config, VocabularySizes({"src": 50_000, "tgt": 50_000}, shared=True)
        )
        return sum(parameter.numel() for parameter in model.parameters()) - 3 * 4 * 256

    assert count(copying=False) == 21_499_600
    assert count() == 21_499_600 + 1_153
    assert count(coverage=True) == 21_499_600 + 1_153 + 512


def test_initialisation_of_the_authors() -> None:
    model = build(
        VocabularySizes({"src": 400, "tgt": 400}, shared=True),
        hidden_size=32,
        initialisation="paper",
        coverage=True,
    )
    for name, tensor in model.state_dict().items():
        size, deviation = float(tensor.abs().max()), float(tensor.std(correction=0))
        if name.startswith(("encoder", "decoder")) and "weight" in name:
            assert size <= 0.02
            assert math.isclose(deviation, 0.02 / math.sqrt(3), rel_tol=0.05)
        elif name.startswith(("tgt_embedding", "reduce", "output")):
            assert size <= 2e-4
            assert 5e-5 < deviation < 1.2e-4
    assert model.src_embedding is model.tgt_embedding


@torch.no_grad()
def test_coverage_begins_without_effect_and_then_matters() -> None:
    """A model that gets `w_c` in a later stage goes on from what it had learned."""
    plain, covered = build(seed=1), build(seed=2, coverage=True)
    missing, unexpected = covered.load_state_dict(plain.state_dict(), strict=False)
    assert (missing, unexpected) == (["attention.score.coverage"], [])
    batch = batch_of([[5, 6, V, 7]], [[6, V, 8]])
    expected = plain(batch)
    torch.testing.assert_close(covered(batch), expected, rtol=0, atol=1e-12)
    covered.get_parameter("attention.score.coverage").fill_(1.0)
    changed = covered(batch)
    # nothing is covered yet
    torch.testing.assert_close(changed[:, 0], expected[:, 0], rtol=0, atol=1e-12)
    assert not torch.allclose(changed[:, 1:], expected[:, 1:])


HARD = {
    "empty": [[]],
    "one-word": [[5], [V]],
    "only-unknown": [[V, V + 1, V, V + 2]],
    "of-unequal-lengths": [[], [V], [5, V, 6, V + 1, 7]],
    "2000-tokens": [[4 + n % 8 if n % 3 else V + n % 50 for n in range(2000)], [5]],
}


@pytest.mark.parametrize("bias", [-1e4, 0.0, 1e4], ids=["copies-only", "both", "generates-only"])
@pytest.mark.parametrize("name", HARD)
def test_never_nan(name: str, bias: float) -> None:
    """In float32, with gates of exactly 0 and 1: the loss, every gradient and every score of a search are finite."""
    model = build(coverage=True).float()
    with torch.no_grad():
        model.gate.bias.fill_(bias)
        model.attention.score.energy.mul_(50.0)  # so that some weights come out as zero
    sources = HARD[name]
    batch = batch_of(
        sources,
        [[*source[:4], 5, V][:6] if V in source else [*source[:4], 5] for source in sources],
    )
    if bias:
        gates = told(model, batch, need_attention=False).copy_gate
        assert set(gates.flatten().tolist()) == {0.0 if bias < 0 else 1.0}
    finite_gradients(model.train(), batch, coverage_weight=1.0)
    for best in search_batch(model.eval(), batch, BeamConfig(beam_size=2, max_length=5), n_best=2):
        assert all(math.isfinite(hypothesis.score) for hypothesis in best)


@pytest.mark.parametrize("coverage", daily([True, False]), ids=["coverage", "plain"])
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20], ids=["word-by-word", "at-once"])
def test_gradient_of_the_likelihood(chunk_bytes: int, coverage: bool) -> None:
    """The training loop's gradient, whose output layer goes in parts, against finite differences in float64."""
    model = build(coverage=coverage, noise=0.2)
    batch = batch_of([[5, V, 7, 5, V + 1], [6]], [[V, 5, V + 1], [8, 6]])

    def loss() -> float:
        with torch.no_grad():
            return float(likelihood(model(batch, keep=batch.targets.mask), batch, V, 0.1)[0])

    backward(model, batch, 1, chunk_bytes, label_smoothing=0.1)
    step, checked = 1e-5, 0
    for name, parameter in model.named_parameters():
        for place in torch.randperm(parameter.numel())[:4].tolist():
            flat = parameter.detach().view(-1)
            value = float(flat[place])
            losses = []
            for change in (step, -step):
                flat[place] = value + change
                losses.append(loss())
            flat[place] = value
            numeric = (losses[0] - losses[1]) / (2 * step)
            assert math.isclose(
                numeric, float(parameter.grad.view(-1)[place]), rel_tol=1e-5, abs_tol=1e-7
            ), name
            checked += 1
    assert checked > 60


@torch.no_grad()
def test_who_sees_its_coverage_does_not_say_a_name_again(
    record_property: Callable[[str, object], None],
) -> None:
    """The same random weights, which only copy: the energy of a name falls where it was looked at, or does not."""
    sources = [list(range(V, V + 12))] * 4 + [list(range(V + 2, V + 9))]
    repeated = []
    for weight in (0.0, -10.0):
        model = build(seed=moved(1), coverage=True).float()
        model.gate.bias.fill_(-1e4)
        model.attention.score.key.weight.mul_(5.0)  # an untrained model looks everywhere alike
        model.attention.score.energy.mul_(100.0)
        model.attention.score.coverage.copy_(weight * model.attention.score.energy.sign())
        results = search_batch(
            model, batch_of(sources), BeamConfig(beam_size=2, min_length=6, max_length=7)
        )
        repeated.append(sum(len(best[0].ids) - len({*best[0].ids}) for best in results))
    blind, seeing = repeated
    record_property("said again by the blind, more than 6", blind)
    record_property("share of it said by the seeing, at most 0.5", seeing / blind)
    assert blind > 6
    assert seeing <= blind / 2
