"""The intra-attention model against the equations of Paulus et al. 2018, written out step by step."""

from dataclasses import replace

import pytest
import torch
from gradients import backward
from torch import Tensor
from walk import Walk

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.batch import Batch, collate
from nmtkit.data.vocabulary import BOS, EOS, UNK
from nmtkit.models.base import DecoderOutput, VocabularySizes
from nmtkit.models.intra_attention import IntraAttention, IntraAttentionConfig, IntraAttentionMemory

V = 12
# Unknown words of the articles have the ids 12 and 13; one is asked for, and one article is nothing else.
ARTICLES = collate(
    [[5, UNK, 7, UNK, 6], [UNK], [8, 9, 6]],
    [[UNK, 7, 4], [UNK], [6, 8, 10, 4, 4, 5]],
    src_extended=[[5, 12, 7, 13, 6], [12], [8, 9, 6]],
    tgt_extended=[[13, 7, 4], [12], [6, 8, 10, 4, 4, 5]],
    n_oov=2,
)


def build(seed: int = 1, **settings: object) -> IntraAttention:
    torch.manual_seed(seed)
    small = {"kind": "intra_attention", "embedding_size": 6, "hidden_size": 8, "dropout": 0.0, "own_words": 0.0}
    model = IntraAttention(parse(IntraAttentionConfig, {**small, **settings}, "test"), VocabularySizes(V, V, True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0).add_(0.2 * torch.randn_like(parameter))
    return model.double()


def by_the_equations(model: IntraAttention, batch: Batch, row: int) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities `(T,X)`, attention `(T,S)` and p(copy) `(T,)` of one article, one equation after the other."""
    assert batch.tgt_in is not None
    assert batch.tgt_mask is not None
    length, steps = int(batch.src_lengths[row]), int(batch.tgt_mask[row].sum())
    source = batch.src[row : row + 1, :length]
    encoded = model.encoder(model.src_embedding(source), torch.ones_like(source, dtype=torch.bool))
    values = encoded.states[0]  # (S,H)
    state = encoded.hidden[0], encoded.cell[0]
    w_attn = model.score.key.weight  # h_t^T W h_i
    earlier: list[Tensor] = []
    looked: list[Tensor] = []
    probabilities, attention, copying = [], [], []
    for step in range(steps):
        word = model.tgt_embedding(batch.tgt_in[row, step]).view(1, 1, -1)
        answer, state = model.decoder(word, (state[0].view(1, 1, -1), state[1].view(1, 1, -1)))
        h = answer.view(-1)
        e = torch.stack([h @ w_attn @ value for value in values])  # eq. 2
        scores = e.exp() if not looked else e.exp() / sum(one.exp() for one in looked)  # eq. 3
        looked.append(e)
        alpha = scores / scores.sum()  # eq. 4
        context = (alpha[:, None] * values).sum(0)  # eq. 5
        own = torch.zeros_like(h)
        if earlier:
            assert model.intra_decoder is not None
            beta = torch.stack([h @ model.intra_decoder.query.weight.T @ other for other in earlier]).softmax(0)  # 6, 7
            own = sum((share * other for share, other in zip(beta, earlier, strict=True)), own)  # eq. 8
        earlier.append(h)
        features = torch.cat([h, context, own])
        assert model.projection is not None
        w_out = torch.tanh(model.tgt_embedding.weight @ model.projection.weight.T)  # eq. 13
        generate = (w_out @ features + model.output_bias).softmax(0)  # eq. 9
        assert model.switch is not None
        u = torch.sigmoid(model.switch.weight[0] @ features + model.switch.bias[0])  # eq. 11
        whole = torch.cat([(1 - u) * generate, torch.zeros(batch.n_oov, dtype=torch.float64)])
        for position, word_id in enumerate(batch.src_extended[row, :length].tolist()):
            whole[word_id] = whole[word_id] + u * alpha[position]  # eq. 10 and 12
        probabilities.append(whole)
        attention.append(alpha)
        copying.append(u)
    return torch.stack(probabilities), torch.stack(attention), torch.stack(copying)


@torch.no_grad()
def test_the_model_is_what_the_equations_say() -> None:
    model = build().eval()
    output = model(ARTICLES, need_attention=True)
    assert ARTICLES.tgt_mask is not None
    assert output.attention is not None
    assert output.copy_gate is not None
    for row in range(3):
        probabilities, attention, copying = by_the_equations(model, ARTICLES, row)
        steps, length = attention.shape
        torch.testing.assert_close(output.log_probs[row, :steps].exp(), probabilities, rtol=1e-9, atol=1e-25)
        torch.testing.assert_close(output.attention[row, :steps, :length], attention, rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(output.copy_gate[row, :steps, 0], 1 - copying, rtol=1e-10, atol=1e-14)
    assert float(output.copy_gate.max() - output.copy_gate.min()) > 0.3


def test_the_gradient_of_a_walk_is_that_of_all_steps_at_once() -> None:
    found = []
    for walks in (False, True):
        model = build(5).eval()
        memory = model.encode(ARTICLES)
        assert ARTICLES.tgt_in is not None
        if walks:
            walk = Walk(model, memory)
            whole = torch.stack([walk.step(tokens)[0] for tokens in ARTICLES.tgt_in.unbind(1)], 1)
        else:
            whole = model.predict(model.unroll(ARTICLES, memory), memory)
        torch.autograd.backward(whole[..., :V].sin().sum())
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in found[0].items():
        assert gradient is not None
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-9, atol=1e-12, msg=name)


@torch.no_grad()
def test_what_was_looked_at_counts_less() -> None:
    """Against the same weights without intra-temporal attention: less of the look falls where the last ones did."""
    model, plain = build(2).eval(), build(2, intra_temporal=False).eval()
    model.score.key.weight.mul_(20.0)  # an untrained model looks everywhere alike
    plain.load_state_dict(model.state_dict())
    looks, plain_looks = (one(ARTICLES, need_attention=True).attention for one in (model, plain))
    assert torch.equal(looks[:, 0], plain_looks[:, 0])
    repeated = (looks[2, 1:7] * looks[2, :6]).sum(-1)
    plainly_repeated = (plain_looks[2, 1:7] * plain_looks[2, :6]).sum(-1)
    assert float(repeated.mean()) < 0.8 * float(plainly_repeated.mean())


@torch.no_grad()
def test_without_a_switch_nothing_is_copied() -> None:
    model = build(copying=False).eval()
    assert not model.config.copies
    output = model(ARTICLES)
    assert output.log_probs.shape[-1] == V
    assert output.copy_gate is None


def test_every_article_has_its_rows_and_all_one_output_layer() -> None:
    model = build().eval()
    memory = model.encode(ARTICLES)
    picked = memory.select(torch.tensor([2, 0, 0]))
    assert picked.output_weight is memory.output_weight
    assert torch.equal(picked.values, memory.values[[2, 0, 0]])
    assert build(tie="none").encode(ARTICLES).output_weight is None


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(RecipeError, match="even number"):
        parse(IntraAttentionConfig, {"hidden_size": 7}, "test")
    config = parse(IntraAttentionConfig, {"tie": "all"}, "test")
    with pytest.raises(RecipeError, match=r"tokenizer\.joint"):
        IntraAttention(config, VocabularySizes(V, V, shared=False))


# Words of its own.


def reads(model: IntraAttention, batch: Batch) -> Tensor:
    """The words `(B,T)` that the decoder reads in a training pass."""
    seen: list[Tensor] = []
    handle = model.decoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    model.unroll(batch, model.encode(batch))
    handle.remove()
    distances = torch.cdist(seen[-1], model.tgt_embedding.weight.detach()[None].expand(batch.size, -1, -1))
    assert float(distances.min(-1)[0].max()) < 1e-6
    return distances.argmin(-1)


def test_all_words_its_own_is_what_it_writes_by_itself() -> None:
    model = build(3, own_words=1.0).train()
    assert ARTICLES.tgt_in is not None
    width = ARTICLES.tgt_in.shape[1]
    with torch.no_grad():
        memory = model.encode(ARTICLES)
        walk, tokens, written = Walk(model, memory), torch.tensor([BOS] * 3), [torch.tensor([BOS] * 3)]
        for _ in range(width - 1):
            tokens = walk.step(tokens)[0].argmax(-1)
            written.append(tokens)
    own = torch.stack(written, 1)  # (B,T)
    assert int(own.max()) >= V  # it copies a word that the vocabulary lacks, and reads it as unknown
    assert reads(model, ARTICLES).tolist() == own.masked_fill(own >= V, UNK).tolist()


def test_words_of_its_own_depend_on_those_before_them() -> None:
    """Every word read is the true one, or the one that the model finds most probable after what it *has* read."""
    model = build(3, own_words=0.5).train()
    assert ARTICLES.tgt_in is not None
    replaced = 0
    for seed in range(10):
        torch.manual_seed(seed)
        read = reads(model, ARTICLES)
        torch.manual_seed(seed)
        own = torch.rand(read.shape[1] - 1) < 0.5
        model.eval()
        with torch.no_grad():
            best = model(replace(ARTICLES, tgt_in=read)).log_probs.argmax(-1)
        model.train()
        best = best.masked_fill(best >= V, UNK)
        assert torch.equal(read[:, 0], ARTICLES.tgt_in[:, 0])
        assert torch.equal(read[:, 1:], torch.where(own, best[:, :-1], ARTICLES.tgt_in[:, 1:]))
        replaced += int((read != ARTICLES.tgt_in).sum())
    assert replaced > 20


def test_a_quarter_of_the_words_and_none_in_evaluation() -> None:
    assert IntraAttentionConfig().own_words == 0.25
    model = build(own_words=0.25)
    long = collate([[5, 6]], [[4] * 600])
    assert long.tgt_in is not None
    never = replace(long, tgt_in=torch.full_like(long.tgt_in, BOS))
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
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name


# Nothing is NaN.

HARD = {
    "empty": collate([[], []], [[4], []]),
    "one word": collate([[5], [6]], [[5], [7, 8]]),
    "only unknown words": collate(
        [[UNK, UNK], [UNK]], [[UNK, 4], [UNK]], src_extended=[[12, 13], [12]], tgt_extended=[[13, 4], [12]], n_oov=2
    ),
    "unknown words that cannot be copied": collate([[5, 6]], [[UNK, UNK]]),
    "2,000 words": collate([[4 + place % 8 for place in range(2000)], [5]], [[4, 5, 6], [5]]),
}


@pytest.mark.parametrize("gate", [None, 1000.0, -1000.0])
@pytest.mark.parametrize("name", HARD)
def test_loss_and_gradients_are_finite(name: str, gate: float | None) -> None:
    """With the switch as it is, stuck at copying, and stuck at generating; in float32, with strong opinions."""
    model = build(4, own_words=0.25).float().train()
    with torch.no_grad():
        model.score.key.weight.mul_(50.0)  # energies in the hundreds: their exponentials do not exist
        if gate is not None:
            assert model.switch is not None
            model.switch.weight.zero_()
            model.switch.bias.fill_(gate)
    sums = backward(model, HARD[name], 10, label_smoothing=0.1)
    assert all(bool(total.isfinite()) for total in sums.values())
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert bool(parameter.grad.isfinite().all()), key


@torch.no_grad()
def test_the_first_step_has_no_earlier_states() -> None:
    """The third part of the features is zero in the first step, in a search as in training."""
    model = build().eval()
    memory = model.encode(ARTICLES)
    _, readout = Walk(model, memory).step(torch.tensor([BOS] * 3))
    whole: DecoderOutput = model.unroll(ARTICLES, memory)
    assert float(readout.features[:, 16:].abs().max()) == 0.0
    assert float(whole.features[:, 0, 16:].abs().max()) == 0.0
    assert float(whole.features[:, 1, 16:].abs().min()) > 0.0


def test_end_marks_are_places_like_others() -> None:
    """An empty article is its end mark: the decoder looks there and nowhere else."""
    model = build().eval()
    memory = model.encode(HARD["empty"])
    assert isinstance(memory, IntraAttentionMemory)
    assert memory.mask.sum(1).tolist() == [1, 1]
    attention = model(HARD["empty"], need_attention=True).attention
    assert bool((attention == 1.0).all())
    assert HARD["empty"].src.tolist() == [[EOS], [EOS]]
