"""Self-critical training: Paulus et al. 2018, "A Deep Reinforced Model for Abstractive Summarization", section 3.

For each article the model writes two summaries: y^s, sampled from its distribution, and y^, always its most probable
word. Where the sample is rewarded more than the greedy summary it becomes more probable, where less, less:

    L_rl    = (r(y^) - r(y^s)) sum_t log p(y^s_t | y^s_1 ... y^s_{t-1}, x)    eq. 15
    L_mixed = gamma L_rl + (1 - gamma) L_ml                                    eq. 16

The reward r is the ROUGE-L F1 between the ids of a summary and those of the reference, from 0 to 1. Ids are extended,
so that a copied unknown word counts; with subwords it is the ROUGE-L of pieces, not of words.

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
from nmtkit.data.batch import Batch, Targets
from nmtkit.data.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.layers.elementary import at_least_float32
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.base import Decoder, Memory, as_decoder
from nmtkit.training.objectives.likelihood import negative_log_probs
from nmtkit.training.objectives.objective import LOSS, OBJECTIVES, GradientAccumulator, Objective, ObjectiveInput

_NEVER = -1
"""The id of an unknown word of a reference, which no summary has: UNK earns no reward."""


class ReinforceConfig(Settings):
    """Self-critical training (Paulus et al. 2018, section 3): the reward of drawn summaries, mixed with likelihood."""

    gamma: float = Field(default=0.9984, gt=0, le=1)
    """Weight of the reinforcement; the likelihood has the rest. Rewards differ by little, so it is near one."""
    reward: Literal["rougeL"] = "rougeL"
    """The reward: ROUGE-L F1 of the tokens, from 0 to 1."""
    max_length: Length = Field(default=100, ge=1)
    """Largest length of a sampled summary, in tokens, EOS counted."""
    max_length_ratio: float = Field(default=1.5, gt=0, le=1e6)
    """Largest length relative to the longest reference of the batch. The smaller limit holds."""

    def limit(self, tgt_length: int) -> int:
        """The largest length of a sample if the longest reference of the batch has `tgt_length` tokens, EOS counted."""
        return max(1, min(self.max_length, math.ceil(self.max_length_ratio * tgt_length)))


@dataclass(frozen=True)
class Rollouts:
    """Two summaries of each of B articles: a sample, then the greedy one."""

    ids: Tensor
    """`(B,2,T)`: extended ids, EOS included where a summary ended before the limit; PAD after it."""
    lengths: Tensor
    """`(B,2)`: tokens, EOS counted."""


@torch.no_grad()
def sample_rollouts(model: Decoder, memory: Memory, limit: int) -> Rollouts:
    """Decodes both summaries of every article, as two hypotheses of one sentence, without any decoding rule."""
    sentences, device = memory.mask.shape[0], memory.mask.device
    model.reserve_positions(limit)
    state = model.start(memory).select(torch.arange(sentences, device=device).repeat_interleave(2))
    cache = KVCache(sentences, 2, device)
    tokens = torch.full((2 * sentences,), BOS, device=device)
    ended = torch.zeros_like(tokens, dtype=torch.bool)
    lengths = torch.zeros_like(tokens)
    written = []
    check_every = 1 if device.type == "cpu" else 8  # steps: the check waits for the device
    for step in range(limit):
        output, state = model.advance(tokens, state, memory, cache)
        log_probs = model.predict(output, memory)  # (2B,X)
        cache.next_step()
        drawn = log_probs.view(sentences, 2, -1)[:, 0]  # (B,X), a view
        # The largest of log p - log(Exp(1)) is a draw from p: Gumbel's trick. It does not wait for the device.
        noise = torch.empty_like(drawn).exponential_().clamp_(min=torch.finfo(drawn.dtype).tiny).log_()
        drawn -= noise
        tokens = log_probs.argmax(-1).masked_fill(ended, PAD)  # (2B,)
        written.append(tokens)
        lengths += ~ended
        ended |= tokens == EOS
        if (step + 1) % check_every == 0 and bool(ended.all()):
            break
    # Under autocast older torch keeps weights as they were cast here, without gradient, for later (issue 112583).
    torch.clear_autocast_cache()
    ids = torch.stack(written, 1)  # (2B,T)
    return Rollouts(ids.view(sentences, 2, -1), lengths.view(sentences, 2))


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


def rewards(rollouts: Rollouts, references: Tensor, reference_lengths: Tensor) -> Tensor:
    """The reward `(B,2)` of both summaries; EOS is not counted.

    `references` are extended ids `(B,U)`, EOS last; `reference_lengths` `(B,)` count it.
    """
    known = references.masked_fill(references == UNK, _NEVER).repeat_interleave(2, 0)  # (2B,U)
    ids, lengths = rollouts.ids.flatten(0, 1), rollouts.lengths.flatten()
    last = ids.gather(1, (lengths - 1).unsqueeze(1)).squeeze(1)
    words = lengths - (last == EOS).long()  # (2B,)
    return rouge_l(ids, words, known, (reference_lengths - 1).repeat_interleave(2)).view(-1, 2)


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Turns dropout off in a model that is differentiated.

    cuDNN can differentiate recurrent layers in training mode only, so they stay in it with a dropout of zero.
    """
    modes = [(module, module.training) for module in model.modules()]
    rates = [(module, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)]
    model.eval()
    for layer, _ in rates:
        layer.train()
        layer.dropout = 0.0
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for layer, rate in rates:
            layer.dropout = rate


def sampled_batch(batch: Batch, rollouts: Rollouts) -> Batch:
    """The batch with the sampled summaries as targets."""
    ids, lengths = rollouts.ids[:, 0], rollouts.lengths[:, 0]
    begin = torch.full_like(ids[:, :1], BOS)
    return replace(
        batch,
        targets=Targets(
            shifted=torch.cat([begin, ids[:, :-1]], 1),
            ids=ids,
            extended=ids,
            mask=torch.arange(ids.shape[1], device=ids.device) < lengths[:, None],
        ),
        alignment=None,
    )


@dataclass(frozen=True)
class _Rewarded(Objective):
    """Equation 15: the log-probability of samples, times the reward of the greedy summaries minus theirs."""

    normalizers: ClassVar = {LOSS: "tokens"}

    advantage: Tensor
    """r(y^s) - r(y^) of each sentence `(B,)`: what is minimised is the sum of it times -log p."""

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        assert inputs.log_probs is not None
        assert inputs.output.sentence is not None
        each = negative_log_probs(inputs.log_probs, inputs.batch, inputs.vocabulary_size, inputs.part)
        weights = self.advantage.index_select(0, inputs.output.sentence)
        return {LOSS: (each * weights).sum(dtype=at_least_float32(inputs.log_probs))}


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
        """Samples both summaries of every article; returns the loss of equation 15, and both rewards."""
        model = as_decoder(update.model)
        assert model is not None, f"{update.model.config.kind} writes no texts to sample"
        with without_dropout(model):
            device_batch = batch.to(update.device, non_blocking=True)
            memory = model.encode(device_batch)
            rollouts = sample_rollouts(model, memory, self.settings.limit(batch.targets.mask.shape[1]))
            reward = rewards(rollouts, device_batch.targets.extended, device_batch.targets.mask.sum(1))  # (B,2)
            drawn = sampled_batch(batch, replace(rollouts, ids=rollouts.ids.cpu(), lengths=rollouts.lengths.cpu()))
            rewarded = _Rewarded(advantage=reward[:, 0] - reward[:, 1], weight=self.weight)
            again = replace(update, objectives=[rewarded])
            loss = again.backward(drawn, lambda moved, attend: (model.unroll(moved, memory, attend), memory))[LOSS]
        sampled, greedy = reward.sum(0).to(loss).unbind()
        return {LOSS: loss, "sampled_reward": sampled, "greedy_reward": greedy}
