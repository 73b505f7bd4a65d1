"""The mixed distribution of See et al. 2017, eq. 9: numbers worked by hand, gradients, and what must never happen."""

import math

import pytest
import torch
from torch import Tensor

from nmtkit.layers.copying import mix, mix_targets

V, OOV = 6, 3
# PAD stands behind the first source; id 7 occurs twice there, 8 only in the second.
SRC = torch.tensor([[4, 7, 5, 7, 2, 0], [8, 6, 3, 7, 8, 2]])


def by_hand(vocab: Tensor, attention: Tensor, p_gen: Tensor, src: Tensor) -> Tensor:
    """Probabilities `(R,X)`, word by word as the equation says it."""
    rows = []
    for distribution, weights, gate, ids in zip(
        vocab.exp(), attention, p_gen[:, 0], src, strict=True
    ):
        row = [float(gate * p) for p in distribution] + [0.0] * OOV
        for weight, word in zip(weights.tolist(), ids.tolist(), strict=True):
            row[word] += (1 - float(gate)) * weight
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def drawn(*lead: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """log P_vocab, weights that leave out the padding of the first source, and gates."""
    generator = torch.Generator().manual_seed(seed)

    def normal(size: int) -> Tensor:
        return torch.randn(*lead, size, generator=generator, dtype=torch.float64)

    real = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    rows = math.prod(lead) // 2
    energies = normal(6).view(2, rows, 6).masked_fill(~real[:, None], -math.inf)
    return normal(V).log_softmax(-1), energies.softmax(-1).view(*lead, 6), normal(1).sigmoid()


@pytest.mark.parametrize("lead", [(2,), (8,), (2, 5)], ids=["sentences", "hypotheses", "targets"])
@pytest.mark.parametrize("n_oov", [OOV, 0])
def test_probabilities_are_those_of_the_equation(n_oov: int, lead: tuple[int, ...]) -> None:
    """Without unknown words, as of a subword vocabulary, tokens are copied by their plain ids."""
    vocab, attention, p_gen = drawn(*lead)
    src = SRC if n_oov else SRC.clamp(max=V - 1)
    mixed = mix(vocab, attention, p_gen, src, n_oov)
    assert mixed.shape == (*lead, V + n_oov)
    ids = src.repeat_interleave(math.prod(lead) // 2, 0)
    expected = by_hand(vocab.view(-1, V), attention.view(-1, 6), p_gen.view(-1, 1), ids)[
        :, : V + n_oov
    ]
    torch.testing.assert_close(mixed.view(-1, V + n_oov).exp(), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        mixed.exp().sum(-1), torch.ones(lead, dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_rows_that_were_picked_have_a_source_each() -> None:
    vocab, attention, p_gen = drawn(2, 4)
    whole = mix(vocab, attention, p_gen, SRC, OOV)
    sentences, steps = torch.tensor([1, 0, 1]), torch.tensor([2, 0, 3])
    picked = mix(
        *(part[sentences, steps] for part in (vocab, attention, p_gen)), SRC[sentences], OOV
    )
    torch.testing.assert_close(picked, whole[sentences, steps], rtol=0, atol=0)


@pytest.mark.parametrize("gate", [None, -100.0, 100.0])
def test_of_one_wanted_word_probability_and_gradient_are_those_of_the_mixture(
    gate: float | None,
) -> None:
    """Of every word of each distribution: in the source or not, in the vocabulary or not; gates of 0 and 1, too."""
    vocab, attention, p_gen = drawn(2, 4)
    sentences = torch.arange(2).repeat_interleave(4 * (V + OOV))
    gates = p_gen.logit() if gate is None else torch.full_like(p_gen, gate)
    leaves = [
        part.flatten(0, 1).repeat_interleave(V + OOV, 0).requires_grad_()
        for part in (vocab, attention.log(), gates)
    ]
    wanted = torch.arange(V + OOV).repeat(8)
    gradients = []

    def of_wanted(vocab: Tensor, *others: Tensor) -> Tensor:
        generated = vocab.gather(1, wanted.clamp(max=V - 1)[:, None])[:, 0].masked_fill(
            wanted >= V, -math.inf
        )
        return mix_targets(wanted, generated, *others)

    for mixed in (lambda *parts: mix(*parts, OOV).gather(1, wanted[:, None])[:, 0], of_wanted):
        result = mixed(
            leaves[0].log_softmax(-1), leaves[1].softmax(-1), leaves[2].sigmoid(), SRC[sentences]
        )
        possible = result.isfinite()
        gradients.append([result, *torch.autograd.grad(result[possible].sum(), leaves)])
    assert not possible.all()
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_what_no_word_fills_is_impossible() -> None:
    mixed = mix(*drawn(2), SRC, OOV)
    assert (mixed == -math.inf).tolist() == [[False] * 6 + [True, False, True], [False] * 9]


@pytest.mark.parametrize("lead", [(2,), (6,), (2, 3)], ids=["sentences", "hypotheses", "targets"])
@pytest.mark.parametrize("n_oov", [0, OOV])
def test_gradients(lead: tuple[int, ...], n_oov: int) -> None:
    """Against finite differences in float64, for all columns that are possible."""
    src = SRC if n_oov else SRC.clamp(max=V - 1)
    vocab, attention, p_gen = drawn(*lead)
    attention = 0.9 * attention + 0.1 / 6  # below a weight of zero there is nothing to differ from
    inputs = [part.requires_grad_() for part in (vocab, attention, p_gen)]

    def possible(vocab: Tensor, attention: Tensor, p_gen: Tensor) -> Tensor:
        mixed = mix(vocab, attention, p_gen, src, n_oov)
        return mixed[mixed > -math.inf]

    assert torch.autograd.gradcheck(possible, inputs)


@pytest.mark.parametrize("gate", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("weights", ["none", "one", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_never_nan(gate: float, weights: str, dtype: torch.dtype) -> None:
    """Gates of exactly 0 and 1, attention of zero, sources of unknown words alone: all finite, and so are gradients."""
    src = torch.tensor([[6, 7, 8, 6, 7]])
    vocab = torch.randn(1, V, dtype=dtype).log_softmax(-1).requires_grad_()
    share = {"none": [0.0] * 5, "one": [0.0, 1.0, 0.0, 0.0, 0.0], "all": [0.2] * 5}[weights]
    attention = torch.tensor([share], dtype=dtype, requires_grad=True)
    p_gen = torch.tensor([[gate]], dtype=dtype, requires_grad=True)
    mixed = mix(vocab, attention, p_gen, src, OOV)
    assert bool(mixed.isfinite().all())
    if weights != "none":
        torch.testing.assert_close(mixed.exp().sum(-1), torch.ones(1, dtype=dtype))
    for column in range(V + OOV):
        for part in torch.autograd.grad(
            mixed[0, column], (vocab, attention, p_gen), retain_graph=True
        ):
            assert bool(part.isfinite().all())


def test_a_normalizer_is_only_for_scores_without_gradients() -> None:
    """Its share of the gradient would be missing."""
    logits, attention, p_gen = drawn(2)
    logits = 3.0 * logits
    normalizer = logits.logsumexp(-1, keepdim=True)
    mixed = mix(logits, attention, p_gen, SRC, OOV, normalizer)
    torch.testing.assert_close(mixed, mix(logits.log_softmax(-1), attention, p_gen, SRC, OOV))
    with pytest.raises(AssertionError, match="the normalizer is not differentiated"):
        mix(logits.requires_grad_(), attention, p_gen, SRC, OOV, normalizer)


def test_a_batch_without_distributions_gives_an_empty_result() -> None:
    vocab = torch.zeros(0, V, requires_grad=True)
    mixed = mix(vocab, torch.zeros(0, 6), torch.zeros(0, 1), SRC[:0], OOV)
    assert mixed.shape == (0, V + OOV)
    mixed.sum().backward()
    assert vocab.grad.shape == (0, V)


def test_half_precision_parts_are_mixed_as_wide_as_the_vocabulary() -> None:
    vocab, attention, p_gen = drawn(2)
    mixed = mix(vocab.float(), attention.bfloat16(), p_gen.bfloat16(), SRC, OOV)
    assert mixed.dtype == torch.float32
    expected = by_hand(vocab, attention.bfloat16().double(), p_gen.bfloat16().double(), SRC)
    torch.testing.assert_close(mixed.exp().double(), expected, rtol=1e-5, atol=1e-6)
