"""Self-critical training: rewards by hand, and the sign and size of the gradient of a policy that fits on one line."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nmtkit.core.settings import parse
from nmtkit.data.batches.batch import Batch, CopySource, collate
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.base import (
    MODELS,
    DecoderState,
    Memory,
    ModelConfig,
    ModelOutput,
    Seq2Seq,
    VocabularySizes,
)
from nmtkit.training.losses.reinforcement import (
    ReinforceConfig,
    Rollouts,
    gleu,
    rewards,
    rouge_l,
    sample_rollouts,
    sampled_batch,
    without_dropout,
)
from tests.support.gradients import assert_same_gradients, backward, gradients
from tests.support.step_by_step import Walk

A, B = 4, 5
RNN = {"embedding_size": 6, "hidden_size": 8}


@dataclass(frozen=True)
class Position(DecoderState):
    step: Tensor


class Table(Seq2Seq):
    """A policy without a source: the logits of each step are parameters `(T,V)`; few words are possible in it."""

    def __init__(self, logits: Tensor, *possible: Sequence[int]) -> None:
        super().__init__(
            ModelConfig(kind="table"),
            VocabularySizes({"src": logits.shape[1], "tgt": logits.shape[1]}, shared=True),
        )
        self.table = nn.Parameter(logits.clone())
        self.mask = torch.full_like(logits, -math.inf)
        for step, words in enumerate(possible):
            self.mask[step, list(words)] = 0.0

    def encode(self, batch: Batch) -> Memory:
        return Memory(batch.inputs.mask, batch.inputs.copy)

    def start(self, memory: Memory) -> Position:
        return Position(torch.zeros(memory.mask.shape[0], dtype=torch.long))

    def advance(
        self,
        tokens: Tensor,
        state: DecoderState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, Position]:
        return ModelOutput((self.table + self.mask)[state.step]), Position(state.step + 1)

    def logits(self, readout: ModelOutput, memory: Memory) -> Tensor:
        return readout.features


def same_articles(number: int, reference: list[int]) -> Batch:
    return collate([[A]] * number, [reference] * number)


def small_model(kind: str, **settings: object) -> Seq2Seq:
    """In float64; ids of 12 words, extended ids from there on."""
    cls = MODELS.get(kind)
    torch.manual_seed(1)
    config = parse(cls.Config, {"kind": kind, "dropout": 0.0, **settings}, "test")
    return cls(config, VocabularySizes({"src": 12, "tgt": 12}, shared=True)).double()


def copier(seed: int = 1, **settings: object) -> Seq2Seq:
    """A model with everything in it, and with opinions."""
    model = small_model("intra_attention", **{**RNN, "own_words": 0.0, **settings})
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0).add_(0.2 * torch.randn_like(parameter))
    return model


UNKNOWN_WORDS = collate(
    [[5, UNK, 7, UNK], [UNK], [8, 9, 6]],
    [[UNK, 7], [UNK], [6, 8, 10, 4]],
    src_extended=[[5, 12, 7, 13], [12], [8, 9, 6]],
    tgt_extended=[[13, 7], [12], [6, 8, 10, 4]],
    n_oov=2,
)


# Rewards.


def lcs(one: Sequence[int], other: Sequence[int]) -> int:
    """The textbook's recursion."""
    if not one or not other:
        return 0
    if one[-1] == other[-1]:
        return lcs(one[:-1], other[:-1]) + 1
    return max(lcs(one[:-1], other), lcs(one, other[:-1]))


def drawn_pairs() -> list[tuple[list[int], list[int]]]:
    draw = random.Random(5)
    return [
        (
            [draw.randrange(4) for _ in range(draw.randrange(9))],
            [draw.randrange(4) for _ in range(draw.randrange(8))],
        )
        for _ in range(200)
    ]


def reward_of(
    pairs: Sequence[tuple[list[int], list[int]]],
    reward: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = rouge_l,
) -> list[float]:
    def padded(rows: list[list[int]]) -> Tensor:
        width = max(1, *map(len, rows))
        return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])

    ids, references = [one for one, _ in pairs], [other for _, other in pairs]
    lengths, reference_lengths = (
        torch.tensor([*map(len, ids)]),
        torch.tensor([*map(len, references)]),
    )
    return reward(padded(ids), lengths, padded(references), reference_lengths).tolist()


def test_rouge_l_is_that_of_the_textbook() -> None:
    pairs = drawn_pairs()
    expected = [2 * lcs(one, other) / max(1, len(one) + len(other)) for one, other in pairs]
    assert len({round(value, 3) for value in expected}) > 20
    assert reward_of(pairs) == pytest.approx(expected, abs=1e-6)


def counted(ids: list[int]) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(ids[i:j]) for i in range(len(ids)) for j in range(i + 1, min(i + 4, len(ids)) + 1)
    )


def test_gleu_is_the_smaller_of_precision_and_recall_of_all_n_grams() -> None:
    """By hand: 4 5 6 7 has 4 + 3 + 2 + 1 n-grams, of which 4 5 6 has 3 + 2 + 1; the second 4 of 4 4 has no match."""
    assert reward_of(
        [([4, 5, 6, 7], [4, 5, 6]), ([4, 4], [4]), ([4, 5], [5, 4])], gleu
    ) == pytest.approx([6 / 10, 1 / 3, 2 / 3])
    assert reward_of(
        [([4, 5, 6, 7, 8], [4, 5, 6, 7, 8]), ([4], [4]), ([4], [5]), ([], [4])], gleu
    ) == [1, 1, 0, 0]
    pairs = drawn_pairs()
    found = reward_of(pairs, gleu)
    for (one, other), value in zip(pairs, found, strict=True):
        ours, theirs = counted(one), counted(other)
        matches = (ours & theirs).total()
        shares = matches / max(1, ours.total()), matches / max(1, theirs.total())
        assert value == pytest.approx(min(shares), abs=1e-6)
    assert reward_of([(other, one) for one, other in pairs], gleu) == found
    assert len({round(value, 3) for value in found}) > 20


def test_rewards_count_copied_words_and_neither_end_marks_nor_unknown_ones() -> None:
    references = torch.tensor([[12, 7, UNK, EOS], [6, EOS, PAD, PAD]])
    drawn = [[12, 7, EOS], [6, 6, 6]]  # the second was cut at the limit
    greedy = [[13, UNK, EOS], [EOS, PAD, PAD]]
    rollouts = Rollouts(
        torch.tensor([drawn, greedy]).transpose(0, 1), torch.tensor([[3, 3], [3, 1]])
    )
    found = rewards(rollouts, references, torch.tensor([4, 2]))
    # 12 7 of 12 7 UNK; 6 of 6 6 6.  Another unknown word, and UNK for UNK, earn nothing; nor does nothing at all.
    torch.testing.assert_close(found, torch.tensor([[4 / 5, 0.0], [2 / 4, 0.0]]))
    found = rewards(rollouts, references, torch.tensor([4, 2]), "gleu")
    # 12, 7 and both of 3 + 2 + 1 n-grams; 6 of 6, 6, 6, twice two and all three.
    torch.testing.assert_close(found, torch.tensor([[3 / 6, 0.0], [1 / 6, 0.0]]))


# Rollouts.


def test_the_greedy_summary_is_what_a_plain_loop_writes() -> None:
    model = copier(3).eval()
    memory = model.encode(UNKNOWN_WORDS)
    torch.manual_seed(1)
    rollouts = sample_rollouts(model, memory, 9)
    lengths = set()
    for row in range(3):
        one = model.encode(UNKNOWN_WORDS.select(torch.tensor([row])))
        walk, token, written = Walk(model, one), BOS, []
        while token != EOS and len(written) < 9:
            token = int(walk.step(torch.tensor([token]))[0].argmax())
            written.append(token)
        assert rollouts.ids[row, 1].tolist() == written + [PAD] * (
            rollouts.ids.shape[2] - len(written)
        )
        assert int(rollouts.lengths[row, 1]) == len(written)
        lengths.add(len(written))
    assert int(rollouts.ids.max()) >= 12  # a word that the vocabulary lacks


def test_drawn_summaries_come_as_often_as_their_probability_says() -> None:
    logits = torch.tensor([[0.0] * 4 + [1.0, 0.5], [0.0] * 3 + [0.3, -1.0, 0.7]])
    model = Table(logits, [EOS, A, B], [EOS, A, B])
    number = 40_000
    torch.manual_seed(2)
    rollouts = sample_rollouts(model, model.encode(same_articles(number, [A])), 2)
    probabilities = (logits[:, [EOS, A, B]]).softmax(-1)
    counts: dict[tuple[int, ...], int] = {}
    for ids, length in zip(
        rollouts.ids[:, 0].tolist(), rollouts.lengths[:, 0].tolist(), strict=True
    ):
        counts[tuple(ids[:length])] = counts.get(tuple(ids[:length]), 0) + 1
    words = {EOS: 0, A: 1, B: 2}
    assert len(counts) == 1 + 2 * 3
    for summary, count in counts.items():
        expected = math.prod(
            float(probabilities[step, words[word]]) for step, word in enumerate(summary)
        )
        assert count / number == pytest.approx(expected, abs=4 * math.sqrt(expected / number))
    assert rollouts.ids[:, 1].tolist() == [[A, B]] * number


def test_rollouts_end_when_all_have_ended() -> None:
    logits = torch.zeros(50, 6)
    logits[2, EOS] = 1000.0
    rollouts = sample_rollouts(
        Table(logits, *[[EOS, A]] * 50),
        Memory(torch.ones(3, 2, dtype=torch.bool), CopySource(torch.ones(3, 2))),
        50,
    )
    assert rollouts.ids.shape == (3, 2, int(rollouts.lengths.max()))  # by chance all may end sooner
    assert bool((rollouts.lengths <= 3).all())


def test_a_word_of_the_padding_ends_no_summary() -> None:
    """A model may write it, however seldom; then it is a word, which has a probability like others."""
    table = Table(torch.zeros(3, 6), [PAD], [A], [EOS])
    rollouts = sample_rollouts(table, table.encode(same_articles(2, [A])), 3)
    assert rollouts.ids.tolist() == [[[PAD, A, EOS]] * 2] * 2
    assert rollouts.lengths.tolist() == [[3, 3]] * 2


@pytest.mark.parametrize("kind", ["transformer", "convs2s"])
def test_summaries_end_where_the_learned_positions_do(kind: str) -> None:
    learned = {"positions": "learned", "heads": 2} if kind == "transformer" else {}
    model = small_model(kind, hidden_size=8, max_positions=7, **learned)
    torch.manual_seed(1)
    rollouts = sample_rollouts(model, model.encode(UNKNOWN_WORDS), 20, samples=30)
    assert int(rollouts.lengths.max()) == rollouts.ids.shape[2] == 7


def test_limits() -> None:
    settings = ReinforceConfig(max_length=10)
    assert [settings.limit(length) for length in (1, 2, 3, 6, 7, 50)] == [2, 3, 5, 9, 10, 10]


def test_the_drawn_summaries_become_targets() -> None:
    ids = torch.tensor(
        [[[5, 12, EOS], [4, 4, 4]], [[EOS, PAD, PAD], [4, 4, 4]], [[7, 8, 9], [4, 4, 4]]]
    )
    batch = sampled_batch(UNKNOWN_WORDS, Rollouts(ids, torch.tensor([[3, 3], [1, 3], [3, 3]])))
    assert batch.targets.shifted.tolist() == [[BOS, 5, 12], [BOS, EOS, PAD], [BOS, 7, 8]]
    assert batch.targets.mask.tolist() == [[True] * 3, [True, False, False], [True] * 3]
    assert batch.targets.ids is batch.targets.extended
    assert torch.equal(batch.inputs.copy.extended, UNKNOWN_WORDS.inputs.copy.extended)


# The gradient.


@pytest.mark.parametrize("samples", [1, 3])
def test_the_mean_gradient_is_that_of_the_expected_reward(samples: int) -> None:
    """Two words, A and EOS, at most two steps, the reference is A. With p_t = p(A) in step t:

    E r = p_1 ((1 - p_2) 1 + p_2 2/3),  for "A" and "A A"; the empty summary has nothing.
    dE r / dtheta_1 = p_1 (1 - p_1) (1 - p_2 / 3),  dE r / dtheta_2 = -p_1 p_2 (1 - p_2) / 3.

    A third of the mean reward of three samples is the reward of the sample itself, which takes a third off.
    """
    number = 60_000 // samples
    logits = torch.zeros(2, 6, dtype=torch.float64)
    logits[:, A] = torch.tensor([0.3, -0.4])
    model = Table(logits, [EOS, A], [EOS, A])
    first, second = logits[:, A].sigmoid().tolist()
    torch.manual_seed(5)
    settings = {"gamma": 1.0, "max_length": 2, "samples": samples}
    sums = backward(model, same_articles(number, [A]), number, reinforce=settings)
    share = 1 if samples == 1 else 1 - 1 / samples
    expected = [
        share * first * (1 - first) * (1 - second / 3),
        -share * first * second * (1 - second) / 3,
    ]
    # Descent on the loss is ascent on the reward: the gradient of the loss is the negative.
    assert (-model.table.grad[:, A]).tolist() == pytest.approx(expected, abs=4 / math.sqrt(number))
    assert (model.table.grad[:, A] + model.table.grad[:, EOS]).abs().max() < 1e-12
    reward = first * ((1 - second) + second * 2 / 3)
    assert float(sums["sampled_reward"]) / number == pytest.approx(
        reward, abs=2 / math.sqrt(number)
    )
    assert float(sums["greedy_reward"]) / number == 1.0  # the greedy summary is "A"


def token_log_probs(model: Seq2Seq, targets: Batch) -> Tensor:
    ids = targets.targets.extended if model.config.copies else targets.targets.ids
    log_probs = model(targets).gather(2, ids[:, :, None]).squeeze(2)
    return torch.where(targets.targets.mask, log_probs, torch.zeros_like(log_probs)).sum(1)


def mixed_loss(model: Seq2Seq, batch: Batch, rollouts: Rollouts, gamma: float) -> Tensor:
    """Equation 16 as it stands in the paper, from one whole forward pass for each of its halves."""
    reward = rewards(rollouts, batch.targets.extended, batch.targets.mask.sum(1)).double()
    reinforced = (reward[:, 1] - reward[:, 0]) * token_log_probs(
        model, sampled_batch(batch, rollouts)
    )
    return gamma * reinforced.sum() - (1 - gamma) * token_log_probs(model, batch).sum()


def seed_with_rewards(model: Seq2Seq, batch: Batch, limit: int) -> int:
    """A seed whose drawn summaries are rewarded otherwise than the greedy ones, one better and one worse."""
    for seed in range(200):
        torch.manual_seed(seed)
        reward = rewards(
            sample_rollouts(model, model.encode(batch), limit),
            batch.targets.extended,
            batch.targets.mask.sum(1),
        )
        advantage = reward[:, 0] - reward[:, 1]
        if bool((advantage > 0.1).any()) and bool((advantage < -0.1).any()):
            return seed
    raise AssertionError("no such seed")


REINFORCED: dict[str, Callable[[], Seq2Seq]] = {
    "intra_attention": lambda: copier(3),
    "pointer_generator": lambda: small_model("pointer_generator", **RNN, coverage=True),
    "transformer": lambda: small_model(
        "transformer", hidden_size=8, feed_forward_size=12, heads=2, copying="learned"
    ),
    "luong": lambda: small_model("luong", **RNN),
    "gnmt": lambda: small_model("gnmt", **RNN, layers=3),
}


@pytest.mark.parametrize(
    ("name", "rows"),
    [*((name, 3) for name in REINFORCED), ("intra_attention", 1), ("intra_attention", 1000)],
)
def test_the_gradient_of_the_mixed_loss(name: str, rows: int) -> None:
    """In parts of the output layer, and as a whole."""
    settings = {"gamma": 0.7, "max_length": 6}
    model, limit = REINFORCED[name](), ReinforceConfig.model_validate(settings).limit(5)
    seed = seed_with_rewards(model, UNKNOWN_WORDS, limit)
    torch.manual_seed(seed)
    sums = backward(model, UNKNOWN_WORDS, 4, rows * 4 * 14, reinforce=settings)
    found = gradients(model)

    torch.manual_seed(seed)
    rollouts = sample_rollouts(model, model.encode(UNKNOWN_WORDS), limit)
    loss = mixed_loss(model, UNKNOWN_WORDS, rollouts, 0.7)
    torch.autograd.backward(loss / 4)
    assert_same_gradients(found, gradients(model), within=1e-6)
    assert float(sums["loss"]) == pytest.approx(loss.item(), rel=1e-6)
    assert float(sums["nll"]) == pytest.approx(
        mixed_loss(model, UNKNOWN_WORDS, rollouts, 0.0).item(), rel=1e-9
    )


@pytest.mark.parametrize("name", ["gnmt", "intra_attention"])
def test_the_gradient_of_the_objective_of_gnmt(name: str) -> None:
    """Wu et al. 2016, eq. 9 with alpha 0.017, and rewards less the mean of those drawn for a source."""
    alpha, samples = 0.017, 4
    settings = {"gamma": 1 / (1 + alpha), "reward": "gleu", "samples": samples, "max_length": 6}
    model = REINFORCED[name]()
    torch.manual_seed(3)
    sums = backward(model, UNKNOWN_WORDS, 4, 3 * 4 * 14, reinforce=settings)
    found = gradients(model)

    torch.manual_seed(3)
    limit = ReinforceConfig.model_validate(settings).limit(5)
    rollouts = sample_rollouts(model, model.encode(UNKNOWN_WORDS), limit, samples)
    targets = UNKNOWN_WORDS.targets
    reward = rewards(rollouts, targets.extended, targets.mask.sum(1), "gleu").double()
    drawn = reward[:, :samples]
    assert drawn.std(1).max() > 0.05
    mixed = alpha * token_log_probs(model, UNKNOWN_WORDS).sum()
    for number in range(samples):
        one = Rollouts(rollouts.ids[:, [number, -1]], rollouts.lengths[:, [number, -1]])
        batch = sampled_batch(UNKNOWN_WORDS, one)
        log_probs = token_log_probs(model, batch)
        mixed = mixed + ((drawn[:, number] - drawn.mean(1)) * log_probs).sum() / samples
    loss = -mixed / (1 + alpha)
    torch.autograd.backward(loss / 4)
    assert_same_gradients(found, gradients(model), within=1e-6)
    assert float(sums["loss"]) == pytest.approx(loss.item(), rel=1e-6)
    assert float(sums["sampled_reward"]) == pytest.approx(drawn.mean(1).sum().item(), rel=1e-6)
    assert float(sums["greedy_reward"]) == pytest.approx(reward[:, -1].sum().item(), rel=1e-6)


@pytest.mark.parametrize("name", ["luong", "intra_attention"])
def test_where_probabilities_are_not_finite_the_loss_is_not_either(name: str) -> None:
    """So that the update is called off, as that of any other loss."""
    model = REINFORCED[name]()
    next(model.parameters()).data.fill_(math.nan)
    assert not backward(model, UNKNOWN_WORDS, 4, reinforce={"max_length": 6})["loss"].isfinite()


def test_all_that_is_random_comes_from_torch() -> None:
    """The loop restores torch's generators when training is resumed, and others draw from the rest."""
    found = []
    for _ in range(2):
        model = copier(dropout=0.3, own_words=0.5).train()
        states = random.getstate(), np.random.get_state()[1].tolist()
        torch.manual_seed(8)
        backward(model, UNKNOWN_WORDS, 1, reinforce={})
        assert states == (random.getstate(), np.random.get_state()[1].tolist())
        found.append([torch.get_rng_state(), *gradients(model).values()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


# Dropout, and precision.


def test_without_dropout_answers_are_the_same_twice_and_the_model_is_as_before() -> None:
    model = small_model("luong", **RNN, layers=2, dropout=0.5).train()
    model.output.eval()  # a part that somebody has frozen stays so
    modes = [module.training for module in model.modules()]

    def answer() -> Tensor:
        return model(UNKNOWN_WORDS)

    with torch.no_grad():
        assert not torch.equal(answer(), answer())
        with suppress(ZeroDivisionError), without_dropout(model):
            inside = answer()
            assert torch.equal(inside, answer())
            assert all(layer.training for layer in model.modules() if isinstance(layer, nn.RNNBase))
            raise ZeroDivisionError
        assert modes == [module.training for module in model.modules()]
        assert not torch.equal(answer(), answer())
        model.eval()
        torch.testing.assert_close(answer(), inside, rtol=0, atol=0)


def test_a_rollout_in_bfloat16_leaves_no_weight_without_gradient() -> None:
    """Autocast keeps the 16-bit copies of weights, and those made while nothing had a gradient must not stay."""
    model = copier(3).float().train()
    with torch.autocast("cpu", torch.bfloat16):
        sample_rollouts(model, model.encode(UNKNOWN_WORDS), 3)
        backward(model, UNKNOWN_WORDS, 1)
    found = gradients(model)
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(float(gradient.abs().max()) > 0 for gradient in found.values())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_trains_in_evaluation_mode() -> None:
    model = copier(own_words=0.5, dropout=0.1).cuda().train()
    sums = backward(
        model, UNKNOWN_WORDS, 1, device=torch.device("cuda"), reinforce={"max_length": 6}
    )
    assert list(sums) == ["loss", "nll", "sampled_reward", "greedy_reward"]
    assert all(bool(total.isfinite()) for total in sums.values())
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(model).values())
