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

from nmtkit.core.settings import Field, Length, Settings
from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.layers.elementary import at_least_float32
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.base import Decoder, Memory, as_decoder
from nmtkit.training.losses.objective import LOSS, OBJECTIVES, GradientAccumulator, Objective, ObjectiveInput

_NEVER = -1
"""The id of an unknown word of a reference, which no summary has: UNK earns no reward."""
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
    """Largest length of a sampled summary, in tokens, EOS counted; a model's learned positions limit it, too."""
    max_length_ratio: float = Field(default=1.5, gt=0, le=1e6)
    """Largest length relative to the longest reference of the batch. The smaller limit holds."""

    def limit(self, tgt_length: int) -> int:
        """The largest length of a sample if the longest reference of the batch has `tgt_length` tokens, EOS counted."""
        return max(1, min(self.max_length, math.ceil(self.max_length_ratio * tgt_length)))


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
    sentences, device, several = memory.mask.shape[0], memory.mask.device, samples + 1
    limit = next(length for length in range(limit, 0, -1) if model.reserve_positions(length))
    articles, summaries = torch.arange(sentences, device=device), torch.arange(several, device=device)
    state = model.start(memory).select(articles.repeat_interleave(several))
    cache = KVCache(sentences, several, device)
    tokens = torch.full((sentences, several), BOS, device=device)
    ids, ended = torch.full((sentences, several, limit), PAD, device=device), torch.zeros_like(tokens, dtype=torch.bool)
    lengths = torch.zeros_like(tokens)
    check_every = 1 if device.type == "cpu" else 8  # steps: the check waits for the device
    for step in range(limit):
        output, state = model.advance(tokens.flatten(), state, memory, cache)
        log_probs = model.predict(output, memory).view(*tokens.shape, -1)  # (B,K,X)
        cache.next_step()
        drawn, best = draw(log_probs[:, :-1].exp()), log_probs[:, -1:].argmax(-1)
        tokens = torch.cat([drawn, best], 1).masked_fill(ended, PAD)
        ids[articles, :, step] = tokens
        lengths[articles] += ~ended
        ended |= tokens == EOS
        if (step + 1) % check_every:
            continue
        live = (~ended).any(1).nonzero()[:, 0]
        if not len(live):
            break
        if len(live) <= LEAVE_BELOW * len(articles):
            state = state.select((live[:, None] * several + summaries).flatten())
            cache.select(live)
            memory, articles, tokens, ended = memory.select(live), articles[live], tokens[live], ended[live]
    # Under autocast older torch keeps weights as they were cast here, without gradient, for later (issue 112583).
    torch.clear_autocast_cache()
    return Rollouts(ids[:, :, : step + 1], lengths)


def draw(probs: Tensor) -> Tensor:
    """A number of each last axis, drawn by these probabilities `(*,X)`: `(*,)`; it does not wait for the device.

    It is the first whose sum with all before it is more than a uniform number. One number for each of X, as for
    Gumbel's trick, would take a CPU longer than the step itself, whose generator is serial. Sums have 64 bits.
    """
    sums = probs.cumsum(-1, dtype=torch.float64)
    levels = torch.rand(sums.shape[:-1], dtype=sums.dtype, device=sums.device)[..., None] * sums[..., -1:]
    return torch.searchsorted(sums, levels, right=True)[..., 0].clamp(max=sums.shape[-1] - 1)  # also where it is NaN


def rouge_l(ids: Tensor, lengths: Tensor, references: Tensor, reference_lengths: Tensor) -> Tensor:
    """ROUGE-L F1 of token ids, each row for itself: Lin 2004, section 3, with as much weight on recall as on precision.

    The F1 of precision LCS/n and recall LCS/m is 2 LCS / (n + m). The longest common subsequence comes from the usual
    table, row by row: `L[i,j] = max over j' <= j of max(L[i-1,j'], L[i-1,j'-1] + [x_i = y_j'])`, a running maximum.

    `ids` `(R,T)` have `lengths` n `(R,)`, `references` `(R,U)` have `reference_lengths` m `(R,)`. The result `(R,)`
    is 0 where both are empty.
    """
    rows, width = references.shape
    counts = torch.arange(width, device=ids.device) < reference_lengths[:, None]  # (R,U)
    best = torch.zeros(rows, width + 1, dtype=torch.int64, device=ids.device)
    for step, token in enumerate(ids.unbind(1)):
        same = (token[:, None] == references) & counts & (step < lengths)[:, None]  # (R,U)
        best[:, 1:] = torch.maximum(best[:, 1:], best[:, :-1] + same).cummax(1)[0]
    return 2 * best[:, -1] / (lengths + reference_lengths).clamp(min=1)


def gleu(ids: Tensor, lengths: Tensor, references: Tensor, reference_lengths: Tensor) -> Tensor:
    """GLEU of token ids: the smaller of precision and recall of all 1- to 4-grams, Wu et al. 2016, section 5.

    An n-gram matches if it stood before fewer times than it stands in the reference. Otherwise as `rouge_l`.
    """
    real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    known = torch.arange(references.shape[1], device=ids.device) < reference_lengths[:, None]
    own = same_here = ids[:, :, None] == ids[:, None]  # (R,T,T)
    other = same_there = (ids[:, :, None] == references[:, None]) & real[:, :, None] & known[:, None]  # (R,T,U)
    matches = torch.zeros_like(lengths)
    for n in range(1, 5):
        matches = matches + (own.tril(-1).sum(2) < other.sum(2)).sum(1)
        own, other = own[:, :-1, :-1] & same_here[:, n:, n:], other[:, :-1, :-1] & same_there[:, n:, n:]
    most = torch.maximum(lengths, reference_lengths)[:, None] - torch.arange(4, device=ids.device)  # the longer's
    return matches / most.clamp(min=0).sum(1).clamp(min=1)


def rewards(rollouts: Rollouts, references: Tensor, reference_lengths: Tensor, reward: str = "rougeL") -> Tensor:
    """The reward `(B,K)` of all summaries; EOS is not counted.

    `references` are extended ids `(B,U)`, EOS last; `reference_lengths` `(B,)` count it.
    """
    several = rollouts.ids.shape[1]
    known = references.masked_fill(references == UNK, _NEVER).repeat_interleave(several, 0)  # (BK,U)
    ids, lengths = rollouts.ids.flatten(0, 1), rollouts.lengths.flatten()
    words = lengths - (ids == EOS).sum(1)  # (BK,)
    measure = rouge_l if reward == "rougeL" else gleu
    return measure(ids, words, known, (reference_lengths - 1).repeat_interleave(several)).view(-1, several)


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Turns dropout off in a model that is differentiated.

    cuDNN can differentiate recurrent layers in training mode only, so they stay in it with a dropout of zero.
    """
    modes = [(module, module.training) for module in model.modules()]
    rates = [(module, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)]
    model.eval()
    for layer, _ in rates:
        layer.training, layer.dropout = True, 0.0
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for layer, rate in rates:
            layer.dropout = rate


def sampled_batch(batch: Batch, rollouts: Rollouts) -> Batch:
    """The batch with the sampled summaries as targets, those of an article one after the other."""
    ids, lengths = rollouts.ids[:, :-1].flatten(0, 1), rollouts.lengths[:, :-1].flatten()
    rows = torch.arange(batch.size).repeat_interleave(len(ids) // batch.size)
    shifted = torch.cat([torch.full_like(ids[:, :1], BOS), ids[:, :-1]], 1)
    mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    return replace(batch.select(rows), targets=Targets(shifted, ids, ids, mask), alignment=None)


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
        weights = self.advantage.index_select(0, inputs.output.sentence)
        return {LOSS: (inputs.nll * weights).sum(dtype=at_least_float32(inputs.nll))}


@OBJECTIVES.register("reinforce")
@dataclass(frozen=True)
class Reinforce(Objective):
    """The reinforced part of equation 16; all other objectives belong to L_ml, and share the weight 1 - gamma."""

    normalizers: ClassVar = {LOSS: "tokens", "sampled_reward": "sentences", "greedy_reward": "sentences"}
    needs = "none"

    settings: ReinforceConfig

    @classmethod
    def from_setting(cls, setting: ReinforceConfig | None) -> "Reinforce | None":
        """None without settings."""
        return cls(settings=setting, weight=setting.gamma) if setting is not None else None

    @property
    def remaining_weight(self) -> float:
        """1 - gamma."""
        return 1 - self.settings.gamma

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """Empty: the given targets are not used."""
        return {}

    def custom_backward(self, update: GradientAccumulator, batch: Batch) -> dict[str, Tensor]:
        """Samples all summaries of every article; returns the loss of equation 15, and the rewards."""
        model, count = as_decoder(update.model), self.settings.samples
        assert model is not None, f"{update.model.config.kind} writes no texts to sample"
        with without_dropout(model):
            moved = batch.to(update.device)
            memory, wanted = model.encode(moved), moved.targets
            rollouts = sample_rollouts(model, memory, self.settings.limit(wanted.mask.shape[1]), count)
            reward = rewards(rollouts, wanted.extended, wanted.mask.sum(1), self.settings.reward)  # (B,K)
            drawn = sampled_batch(batch, replace(rollouts, ids=rollouts.ids.cpu(), lengths=rollouts.lengths.cpu()))
            sampled, greedy = reward[:, :-1], reward[:, -1:]
            advantage = (sampled - (greedy if count == 1 else sampled.mean(1, keepdim=True))).flatten() / count
            again = replace(update, objectives=[_Rewarded(advantage=advantage, weight=self.weight)])
            copies = memory.select(torch.arange(batch.size, device=update.device).repeat_interleave(count))
            loss = again.backward(drawn, lambda moved, attend: (model.unroll(moved, copies, attend), copies))[LOSS]
        return {LOSS: loss, "sampled_reward": sampled.mean(1).sum().to(loss), "greedy_reward": greedy.sum().to(loss)}
