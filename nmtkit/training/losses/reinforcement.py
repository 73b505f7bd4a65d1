"""Self-critical training: Paulus et al. 2018, "A Deep Reinforced Model for Abstractive Summarization", section 3.

For each article the model writes two summaries: y^s, sampled from its distribution, and y^, always its most probable
word. Where the sample is rewarded more than the greedy summary it becomes more probable, where less, less:

    L_rl    = (r(y^) - r(y^s)) sum_t log p(y^s_t | y^s_1 ... y^s_{t-1}, x)    eq. 15
    L_mixed = gamma L_rl + (1 - gamma) L_ml                                    eq. 16

Wu et al. 2016, section 5, draw 15 samples and compare each with the mean reward of them all. O_rl, the expected reward,
is their eq. 8. Eq. 9, alpha O_ml + O_rl, is eq. 16 with gamma = 1 / (1 + alpha), but for a constant factor.

The reward r is ROUGE-L or GLEU between the ids of a summary and those of the reference, from 0 to 1. Ids are extended,
so that a copied unknown word counts; with subwords it is that of pieces, not of words.

As in the paper both losses are sums over the words of a summary. Both are divided by the target words of the update.
The gradient of eq. 15 is that of the expected reward only if y^s is drawn from the distribution whose logarithm stands
there: both summaries are written, and y^s is scored, without dropout and without the model's own words as input.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from nmtkit.core.settings import Field, Length, Settings
from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.layers.elementary import at_least_float32
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.abilities import reserve_positions
from nmtkit.models.base import Decoder, Memory, as_decoder
from nmtkit.training.losses.objective import LOSS, OBJECTIVES, GradientAccumulator, Objective, ObjectiveInput

_NEVER = -1
"""The id of an unknown word of a reference, which no summary has: UNK earns no reward."""
MAX_LENGTH_RATIO = 1.5
"""Largest length of a sample relative to the longest reference of the batch."""
LEAVE_BELOW = 0.875
"""Articles leave a batch once no more than this part of it is still written: to copy the others takes a little."""


class ReinforceConfig(Settings):
    """The reward of drawn texts, mixed with likelihood: Paulus et al. 2018, section 3, or Wu et al. 2016, section 5."""

    gamma: float = Field(default=0.9984, gt=0, le=1)
    """Weight of the reinforcement; the likelihood has the rest. Rewards differ by little, so it is near one. 0.98328 is
    the alpha of 0.017 of Wu et al."""
    reward: Literal["rougeL", "gleu"] = "rougeL"
    """The reward, of the tokens, from 0 to 1: ROUGE-L F1 or, as Wu et al., GLEU."""
    samples: Length = Field(default=1, ge=1)
    """Texts drawn for each source. One is compared with the most probable words (self-critical); several with the mean
    of them all: Wu et al. draw 15."""
    max_length: Length = Field(default=100, ge=1)
    """Largest length of a sampled summary, in tokens, EOS counted; 1.5 times the longest reference of the batch, and a
    model's learned positions, limit it, too."""

    def limit(self, tgt_length: int) -> int:
        """The largest length of a sample if the longest reference of the batch has `tgt_length` tokens, EOS counted."""
        return max(1, min(self.max_length, math.ceil(MAX_LENGTH_RATIO * tgt_length)))


@dataclass(frozen=True)
class Rollouts:
    """K summaries of each of B articles: samples, then the greedy one."""

    ids: Tensor
    """`(B,K,T)`: extended ids, EOS included where a summary ended before the limit; PAD after it."""
    lengths: Tensor
    """`(B,K)`: tokens, EOS counted."""


@torch.no_grad()
def sample_rollouts(model: Decoder, memory: Memory, limit: int, samples: int = 1) -> Rollouts:
    """Decodes all summaries of every article, as hypotheses of one sentence, without any decoding rule.

    An article leaves the batch when all its summaries have ended: the steps behind it are those of the others alone.
    """
    device = memory.mask.device
    n_articles = len(memory.mask)
    n_summaries = samples + 1
    while not reserve_positions(model, limit):
        limit -= 1
    articles = torch.arange(n_articles, device=device)  # those that are still written
    summaries = torch.arange(n_summaries, device=device)
    state = model.start(memory).select(articles.repeat_interleave(n_summaries))
    cache = KVCache(n_articles, n_summaries, device)
    tokens = torch.full((n_articles, n_summaries), BOS, device=device)  # (B,K)
    ids = torch.full((n_articles, n_summaries, limit), PAD, device=device)  # (B,K,T)
    ended = torch.zeros_like(tokens, dtype=torch.bool)
    lengths = torch.zeros_like(tokens)
    check_every = 1 if device.type == "cpu" else 8  # steps: the check waits for the device
    for step in range(limit):
        output, state = model.advance(tokens.flatten(), state, memory, cache)
        log_probs = model.predict(output, memory).view(*tokens.shape, -1)  # (B,K,X)
        cache.next_step()
        drawn = draw(log_probs[:, :-1].exp())  # (B,K-1)
        greedy = log_probs[:, -1:].argmax(-1)  # (B,1)
        tokens = torch.cat([drawn, greedy], 1).masked_fill(ended, PAD)
        ids[articles, :, step] = tokens
        lengths[articles] += ~ended
        ended |= tokens == EOS
        if (step + 1) % check_every:
            continue
        live = (~ended).any(1).nonzero()[:, 0]
        if not len(live):
            break
        if len(live) <= LEAVE_BELOW * len(articles):
            rows = live[:, None] * n_summaries + summaries
            state = state.select(rows.flatten())
            cache.select(live)
            memory = memory.select(live)
            articles = articles[live]
            tokens = tokens[live]
            ended = ended[live]
    # Under autocast older torch keeps weights as they were cast here, without gradient, for later (issue 112583).
    torch.clear_autocast_cache()
    return Rollouts(ids[:, :, : step + 1], lengths)


def draw(probs: Tensor) -> Tensor:
    """A number of each last axis, drawn by these probabilities `(*,X)`: `(*,)`; it does not wait for the device.

    It is the first whose sum with all before it is more than a uniform number. One number for each of X, as for
    Gumbel's trick, would take a CPU longer than the step itself, whose generator is serial. Sums have 64 bits.
    """
    sums = probs.cumsum(-1, dtype=torch.float64)  # (*,X)
    uniform = torch.rand(sums.shape[:-1], dtype=sums.dtype, device=sums.device)
    levels = uniform[..., None] * sums[..., -1:]  # (*,1)
    places = torch.searchsorted(sums, levels, right=True)[..., 0]
    return places.clamp(max=sums.shape[-1] - 1)  # for NaN, which is larger than all sums


def rouge_l(ids: Tensor, lengths: Tensor, references: Tensor, reference_lengths: Tensor) -> Tensor:
    """ROUGE-L F1 of token ids, each row for itself: Lin 2004, section 3, with as much weight on recall as on precision.

    The F1 of precision LCS/n and recall LCS/m is 2 LCS / (n + m). The longest common subsequence comes from the usual
    table, row by row: `L[i,j] = max over j' <= j of max(L[i-1,j'], L[i-1,j'-1] + [x_i = y_j'])`, a running maximum.

    `ids` `(R,T)` have `lengths` n `(R,)`, `references` `(R,U)` have `reference_lengths` m `(R,)`. The result `(R,)`
    is 0 where both are empty.
    """
    rows, width = references.shape
    is_real = torch.arange(width, device=ids.device) < reference_lengths[:, None]  # (R,U)
    longest = torch.zeros(rows, width + 1, dtype=torch.int64, device=ids.device)  # row i of the table, for all R
    for step, token in enumerate(ids.unbind(1)):
        is_written = (step < lengths)[:, None]  # (R,1)
        is_same = (token[:, None] == references) & is_real & is_written  # (R,U)
        with_token = longest[:, :-1] + is_same
        longest[:, 1:] = torch.maximum(longest[:, 1:], with_token).cummax(1)[0]
    total = (lengths + reference_lengths).clamp(min=1)
    return 2 * longest[:, -1] / total


def gleu(ids: Tensor, lengths: Tensor, references: Tensor, reference_lengths: Tensor) -> Tensor:
    """GLEU of token ids: the smaller of precision and recall of all 1- to 4-grams, Wu et al. 2016, section 5.

    An n-gram matches if it stood before fewer times than it stands in the reference. Otherwise as `rouge_l`.
    """
    is_written = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]  # (R,T)
    is_real = torch.arange(references.shape[1], device=ids.device) < reference_lengths[:, None]  # (R,U)
    # Whether two tokens are equal: both of the text, or one of the text and one of the reference.
    same_in_text = ids[:, :, None] == ids[:, None]  # (R,T,T)
    same_in_reference = (ids[:, :, None] == references[:, None]) & is_written[:, :, None] & is_real[:, None]  # (R,T,U)
    # Entry [i,j]: whether the n-grams that begin at i and at j are equal; first for n = 1.
    ngram_in_text = same_in_text
    ngram_in_reference = same_in_reference
    matches = torch.zeros_like(lengths)
    for n in range(1, 5):
        times_before = ngram_in_text.tril(-1).sum(2)
        times_in_reference = ngram_in_reference.sum(2)
        matches = matches + (times_before < times_in_reference).sum(1)
        ngram_in_text = ngram_in_text[:, :-1, :-1] & same_in_text[:, n:, n:]
        ngram_in_reference = ngram_in_reference[:, :-1, :-1] & same_in_reference[:, n:, n:]
    longer = torch.maximum(lengths, reference_lengths)[:, None]  # the smaller ratio has the larger denominator
    ngrams = (longer - torch.arange(4, device=ids.device)).clamp(min=0)  # (R,4): how many it has of each n
    return matches / ngrams.sum(1).clamp(min=1)


def rewards(rollouts: Rollouts, references: Tensor, reference_lengths: Tensor, reward: str = "rougeL") -> Tensor:
    """The reward `(B,K)` of all summaries; EOS is not counted.

    `references` are extended ids `(B,U)`, EOS last; `reference_lengths` `(B,)` count it.
    """
    n_summaries = rollouts.ids.shape[1]
    ids = rollouts.ids.flatten(0, 1)  # (BK,T)
    words = rollouts.lengths.flatten() - (ids == EOS).sum(1)  # (BK,)
    reference_ids = references.masked_fill(references == UNK, _NEVER).repeat_interleave(n_summaries, 0)  # (BK,U)
    reference_words = (reference_lengths - 1).repeat_interleave(n_summaries)  # (BK,)
    measure = rouge_l if reward == "rougeL" else gleu
    return measure(ids, words, reference_ids, reference_words).view(-1, n_summaries)


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Turns dropout off in a model that is differentiated.

    cuDNN can differentiate recurrent layers in training mode only, so they stay in it with a dropout of zero.
    """
    modes = [(module, module.training) for module in model.modules()]
    rates = [(module, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)]
    model.eval()
    for layer, _ in rates:
        layer.training = True
        layer.dropout = 0.0
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for layer, rate in rates:
            layer.dropout = rate


def sampled_batch(batch: Batch, rollouts: Rollouts) -> Batch:
    """Returns the batch with the sampled summaries as targets, those of an article one after the other."""
    ids = rollouts.ids[:, :-1].flatten(0, 1)  # (BK,T), without the greedy summaries
    lengths = rollouts.lengths[:, :-1].flatten()  # (BK,)
    begin = torch.full_like(ids[:, :1], BOS)
    targets = Targets(
        shifted=torch.cat([begin, ids[:, :-1]], 1),
        ids=ids,
        extended=ids,
        mask=torch.arange(ids.shape[1], device=ids.device) < lengths[:, None],
    )
    rows = torch.arange(batch.size).repeat_interleave(len(ids) // batch.size)
    return replace(batch.select(rows), targets=targets, alignment=None)


@dataclass(frozen=True)
class _Rewarded(Objective):
    """Equation 15: the log-probability of samples, times the reward that they are compared with minus theirs."""

    normalizers: ClassVar = {LOSS: "tokens"}

    advantage: Tensor
    """r(y^s) - r(y^) of each sample: what is minimised is the sum of it times -log p."""

    @property
    def reads_words(self) -> Literal["wanted"]:
        return "wanted"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        assert inputs.nll is not None
        assert inputs.output.sentence is not None
        advantage = self.advantage.index_select(0, inputs.output.sentence)  # (M,)
        weighted = inputs.nll * advantage
        return {LOSS: weighted.sum(dtype=at_least_float32(inputs.nll))}


@OBJECTIVES.register("reinforce")
@dataclass(frozen=True)
class Reinforce(Objective):
    """Self-critical training: rewards texts that the model samples, beside the likelihood, in a last stage.

    The reinforced part of equation 16; all other objectives belong to L_ml, and share the weight 1 - gamma.
    """

    normalizers: ClassVar = {LOSS: "tokens", "sampled_reward": "sentences", "greedy_reward": "sentences"}
    needs = "none"

    Config = ReinforceConfig

    settings: ReinforceConfig

    @classmethod
    @override
    def from_setting(cls, setting: ReinforceConfig | float) -> "Reinforce":
        settings = setting if isinstance(setting, ReinforceConfig) else ReinforceConfig(gamma=setting)
        return cls(settings=settings, weight=settings.gamma)

    @property
    def remaining_weight(self) -> float:
        """1 - gamma."""
        return 1 - self.settings.gamma

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """Empty: the given targets are not used."""
        return {}

    def custom_backward(self, update: GradientAccumulator, batch: Batch) -> dict[str, Tensor]:
        """Samples all summaries of every article; returns the loss of equation 15, and the rewards."""
        model = as_decoder(update.model)
        samples = self.settings.samples
        assert model is not None, f"{update.model.config.kind} writes no texts to sample"
        with without_dropout(model):
            on_device = batch.to(update.device)
            references = on_device.targets
            memory = model.encode(on_device)
            limit = self.settings.limit(references.mask.shape[1])
            rollouts = sample_rollouts(model, memory, limit, samples)
            reward = rewards(rollouts, references.extended, references.mask.sum(1), self.settings.reward)  # (B,K)
            sampled = reward[:, :-1]  # (B,K-1)
            greedy = reward[:, -1:]  # (B,1)
            baseline = greedy if samples == 1 else sampled.mean(1, keepdim=True)
            advantage = (sampled - baseline).flatten() / samples

            # The samples are targets of a second pass, over copies of the memory.
            sampled_texts = sampled_batch(batch, Rollouts(rollouts.ids.cpu(), rollouts.lengths.cpu()))
            rows = torch.arange(batch.size, device=update.device).repeat_interleave(samples)
            copies = memory.select(rows)
            second_pass = replace(update, objectives=[_Rewarded(advantage=advantage, weight=self.weight)])
            losses = second_pass.backward(
                sampled_texts, lambda targets, attend: (model.unroll(targets, copies, attend), copies)
            )
        loss = losses[LOSS]
        return {LOSS: loss, "sampled_reward": sampled.mean(1).sum().to(loss), "greedy_reward": greedy.sum().to(loss)}
