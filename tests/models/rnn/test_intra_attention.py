"""The intra-attention model against the equations of Paulus et al. 2018, written out step by step."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from nmtkit.data.batches.batch import Batch, collate
from nmtkit.data.tokenizers.vocabulary import BOS, UNK
from nmtkit.layers.kernels import masked_softmax
from nmtkit.layers.linear import prepare_for_inference, supported_precisions
from nmtkit.models.rnn import intra_attention
from nmtkit.models.rnn.intra_attention import (
    IntraAttention,
    IntraAttentionConfig,
    past_before_each_step,
    subtract_past,
)
from tests.support import small_models
from tests.support.gradients import backward
from tests.support.small_models import V, batch_of, finite_gradients
from tests.support.step_by_step import Walk, told

build = partial(small_models.build, "intra_attention", scale=2.0, noise=0.2)
# Two words of the articles are unknown; one of them is in a summary, and one article is nothing else.
ARTICLES = batch_of(
    [[5, V, 7, V + 1, 6], [V], [8, 9, 6]], [[V + 1, 7, 4], [V], [6, 8, 10, 4, 4, 5]]
)


def by_the_equations(
    model: IntraAttention, batch: Batch, row: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities `(T,X)`, attention `(T,S)` and p(copy) `(T,)` of one article, one equation after the other."""
    length, steps = int(batch.inputs.lengths[row]), int(batch.targets.mask[row].sum())
    source = batch.inputs.ids[row : row + 1, :length]
    encoded = model.encoder(
        model.src_embedding(source), source >= 0, batch.inputs.lengths[row : row + 1]
    )
    values = encoded.states[0]  # (S,H)
    state = encoded.hidden[0], encoded.cell[0]
    w_attn = model.score.key.weight  # h_t^T W h_i
    earlier: list[Tensor] = []
    energies: list[Tensor] = []
    probabilities, attention, copying = [], [], []
    for step in range(steps):
        word = model.tgt_embedding(batch.targets.shifted[row, step]).view(1, 1, -1)
        answer, state = model.decoder(word, (state[0].view(1, 1, -1), state[1].view(1, 1, -1)))
        h = answer.view(-1)
        e = torch.stack([h @ w_attn @ value for value in values])  # eq. 2
        scores = e.exp() if not energies else e.exp() / sum(one.exp() for one in energies)  # eq. 3
        energies.append(e)
        alpha = scores / scores.sum()  # eq. 4
        context = (alpha[:, None] * values).sum(0)  # eq. 5
        own = torch.zeros_like(h)
        if earlier:
            # 6, 7
            beta = torch.stack(
                [h @ model.intra_decoder.query.weight.T @ other for other in earlier]
            ).softmax(0)
            own = beta @ torch.stack(earlier)  # eq. 8
        earlier.append(h)
        features = torch.cat([h, context, own])
        w_out = torch.tanh(model.tgt_embedding.weight @ model.projection.weight.T)  # eq. 13
        generate = (w_out @ features + model.output_bias).softmax(0)  # eq. 9
        u = torch.sigmoid(model.switch.weight[0] @ features + model.switch.bias[0])  # eq. 11
        whole = torch.cat([(1 - u) * generate, torch.zeros(batch.n_oov, dtype=torch.float64)])
        for position, word_id in enumerate(batch.inputs.copy.extended[row, :length].tolist()):
            whole[word_id] = whole[word_id] + u * alpha[position]  # eq. 10 and 12
        probabilities.append(whole)
        attention.append(alpha)
        copying.append(u)
    return torch.stack(probabilities), torch.stack(attention), torch.stack(copying)


@torch.no_grad()
def test_the_model_is_what_the_equations_say() -> None:
    model = build()
    output = told(model, ARTICLES)
    for row in range(3):
        probabilities, attention, copying = by_the_equations(model, ARTICLES, row)
        steps, length = attention.shape
        torch.testing.assert_close(
            output.log_probs[row, :steps].exp(), probabilities, rtol=1e-9, atol=1e-25
        )
        torch.testing.assert_close(
            output.attention[row, :steps, :length], attention, rtol=1e-10, atol=1e-14
        )
        torch.testing.assert_close(
            output.copy_gate[row, :steps, 0], 1 - copying, rtol=1e-10, atol=1e-14
        )
    assert float(output.copy_gate.max() - output.copy_gate.min()) > 0.3


@torch.no_grad()
def test_what_was_looked_at_counts_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the same weights without intra-temporal attention: less of the look falls where the last ones did."""
    model = build(seed=2)
    model.score.key.weight.mul_(20.0)  # an untrained model looks everywhere alike
    looks = told(model, ARTICLES).attention
    monkeypatch.setattr(intra_attention, "subtract_past", lambda energies, past: energies)
    plain_looks = told(model, ARTICLES).attention
    assert torch.equal(looks[:, 0], plain_looks[:, 0])
    repeated = (looks[2, 1:7] * looks[2, :6]).sum(-1)
    plainly_repeated = (plain_looks[2, 1:7] * plain_looks[2, :6]).sum(-1)
    assert float(repeated.mean()) < 0.8 * float(plainly_repeated.mean())


# Words of its own.


def reads(model: IntraAttention, batch: Batch) -> Tensor:
    """The words `(B,T)` that the decoder reads in a training pass."""
    embedded: list[Tensor] = []
    handle = model.decoder.register_forward_pre_hook(
        lambda _, inputs: embedded.append(inputs[0].detach())
    )
    model.unroll(batch, model.encode(batch))
    handle.remove()
    distances = torch.cdist(
        embedded[-1], model.tgt_embedding.weight.detach()[None].expand(batch.size, -1, -1)
    )
    assert float(distances.min(-1)[0].max()) < 1e-6
    return distances.argmin(-1)


def test_all_words_its_own_is_what_it_writes_by_itself() -> None:
    model = build(seed=3, own_words=1.0).train()
    width = ARTICLES.targets.shifted.shape[1]
    with torch.no_grad():
        memory = model.encode(ARTICLES)
        walk, tokens, written = (
            Walk(model, memory),
            torch.tensor([BOS] * 3),
            [torch.tensor([BOS] * 3)],
        )
        for _ in range(width - 1):
            tokens = walk.step(tokens)[0].argmax(-1)
            written.append(tokens)
    own = torch.stack(written, 1)  # (B,T)
    # it copies a word that the vocabulary lacks, and reads it as unknown
    assert int(own.max()) >= V
    assert reads(model, ARTICLES).tolist() == own.masked_fill(own >= V, UNK).tolist()


def test_words_of_its_own_depend_on_those_before_them() -> None:
    """Every word read is the true one, or the one that the model finds most probable after what it *has* read."""
    model = build(seed=3, own_words=0.5).train()
    replaced = 0
    for seed in range(10):
        torch.manual_seed(seed)
        read = reads(model, ARTICLES)
        torch.manual_seed(seed)
        own = torch.rand(read.shape[1] - 1) < 0.5
        model.eval()
        with torch.no_grad():
            best = model(replace(ARTICLES, targets=replace(ARTICLES.targets, shifted=read))).argmax(
                -1
            )
        model.train()
        best = best.masked_fill(best >= V, UNK)
        assert torch.equal(read[:, 0], ARTICLES.targets.shifted[:, 0])
        assert torch.equal(
            read[:, 1:], torch.where(own, best[:, :-1], ARTICLES.targets.shifted[:, 1:])
        )
        replaced += int((read != ARTICLES.targets.shifted).sum())
    assert replaced > 20


def test_a_quarter_of_the_words_and_none_in_evaluation() -> None:
    assert IntraAttentionConfig().own_words == 0.25
    model = build(own_words=0.25)
    long = collate([[5, 6]], [[4] * 600])
    never = replace(
        long, targets=replace(long.targets, shifted=torch.full_like(long.targets.shifted, BOS))
    )
    torch.manual_seed(11)
    share = float((reads(model.train(), never)[:, 1:] != BOS).double().mean())
    assert share == pytest.approx(0.25, abs=0.06)
    state = torch.get_rng_state()
    assert bool((reads(model.eval(), never) == BOS).all())
    assert torch.equal(torch.get_rng_state(), state)


def test_bfloat16_gives_every_parameter_a_gradient() -> None:
    """Autocast keeps the 16-bit copies of weights; those made while own words were found have no gradient."""
    model = build(own_words=0.5).float().train()
    with torch.autocast("cpu", torch.bfloat16):
        backward(model, ARTICLES, 1)
    assert all(
        parameter.grad is not None and parameter.grad.any() for parameter in model.parameters()
    )


# Nothing is NaN.

HARD = {
    "empty": batch_of([[], []], [[4], []]),
    "one word": batch_of([[5], [6]], [[5], [7, 8]]),
    "only unknown words": batch_of([[V, V + 1], [V]], [[V + 1, 4], [V]]),
    "unknown words that cannot be copied": collate([[5, 6]], [[UNK, UNK]]),
    "2,000 words": batch_of([[4 + place % 8 for place in range(2000)], [5]], [[4, 5, 6], [5]]),
}


@pytest.mark.parametrize("gate", [None, 1000.0, -1000.0])
@pytest.mark.parametrize("name", HARD)
def test_loss_and_gradients_are_finite(name: str, gate: float | None) -> None:
    """With the switch as it is, stuck at copying, and stuck at generating; in float32, with strong opinions."""
    model = build(seed=4, own_words=0.25).float().train()
    with torch.no_grad():
        # energies in the hundreds: their exponentials do not exist
        model.score.key.weight.mul_(50.0)
        if gate is not None:
            model.switch.weight.zero_()
            model.switch.bias.fill_(gate)
    finite_gradients(model, HARD[name], label_smoothing=0.1)


@torch.no_grad()
def test_for_inference_the_output_layer_is_made_once_and_converted() -> None:
    trained = build().float()
    log_probs = told(trained, ARTICLES).log_probs
    for precision in supported_precisions(torch.device("cpu")):
        model = copy.deepcopy(trained)
        prepare_for_inference(model, precision)
        one, other = (model.encode(ARTICLES).output_matrix for _ in range(2))
        if precision == "fp32":
            assert one.weight is other.weight
            assert model.output is None
        else:
            assert one is other is None
            assert isinstance(model.output, nn.Linear)
        torch.testing.assert_close(told(model, ARTICLES).log_probs, log_probs, rtol=0.05, atol=0.1)


def weights_of(scores: Tensor) -> Tensor:
    """Weights of all steps by equations 3 and 4."""
    past = past_before_each_step(scores)
    return masked_softmax(subtract_past(scores, past), torch.ones_like(scores, dtype=torch.bool))


@pytest.mark.parametrize("size", [1.0, 100.0, 10_000.0])
def test_stays_finite_where_exponentials_do_not(size: float) -> None:
    scores = size * torch.tensor([[[1.0, -1.0, 0.5], [1.0, -1.0, -0.5], [-1.0, 1.0, 0.0]]])
    scores.requires_grad_()
    naive = scores.exp()
    earlier = naive.cumsum(1) - naive
    divided = torch.cat([naive[:, :1], naive[:, 1:] / earlier[:, 1:]], 1)
    naive_weights = divided / divided.sum(-1, keepdim=True)
    weights = weights_of(scores)
    if size == 1.0:
        torch.testing.assert_close(weights, naive_weights, rtol=1e-5, atol=1e-6)
    else:
        assert not bool(naive_weights.isfinite().all())
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 3))
    (weights * torch.tensor([1.0, 2.0, 5.0])).sum().backward()
    assert bool(scores.grad.isfinite().all())


def test_an_earlier_look_counts_once_however_large() -> None:
    """Place 0 had e^10000 and has it again: its share is 1, as that of place 1, which had and has e^0."""
    scores = torch.tensor([[[10_000.0, 0.0], [10_000.0, 0.0]]])
    weights = weights_of(scores)
    torch.testing.assert_close(weights, torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
