"""Self-critical training: Paulus et al. 2018, "A Deep Reinforced Model for Abstractive Summarization", section 3.

For each article, the model generates two summaries: y^s, sampled from its distribution, and y^, the most probable word
at each step. If the sample gets a higher reward than the greedy summary, its probability is raised, otherwise lowered:

    L_rl    = (r(y^) - r(y^s)) sum_t log p(y^s_t | y^s_1 ... y^s_{t-1}, x)    eq. 15
    L_mixed = gamma L_rl + (1 - gamma) L_ml                                    eq. 16

Wu et al. 2016, section 5, draw 15 samples and compare each with the mean reward of all samples. The expected reward
O_rl is their eq. 8. Their eq. 9, alpha O_ml + O_rl, is eq. 16 with gamma = 1 / (1 + alpha), up to a constant factor.

The reward r, from 0 to 1, is ROUGE-L or GLEU between the ids of a summary and those of the reference. Ids are extended,
so that a copied unknown word counts. With subwords, the reward is computed on subword tokens, not on words.

As in the paper, both losses are sums over the words of a summary. Both are divided by the number of target words in the
update. The gradient of eq. 15 is the gradient of the expected reward only if y^s is sampled from exactly the
distribution whose logarithm appears in the equation. Therefore both summaries are generated, and y^s is scored, without
dropout and with `model.own_words` switched off.

Notation: B articles, N samples of each, K = N + 1 summaries of each (the samples, then the greedy summary), T positions
of a summary, U positions of a reference, R pairs of summary and reference as rows, M words of all samples, X = V plus
the unknown words of the source.
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
from nmtkit.models.base import Decoder, Memory, ModelOutput, as_decoder
from nmtkit.training.losses.objective import (
    LOSS,
    OBJECTIVES,
    GradientAccumulator,
    Objective,
    ObjectiveInput,
)

_NEVER = -1
"""Replaces UNK in references. No summary contains it, so UNK in a summary earns no reward."""
MAX_LENGTH_RATIO = 1.5
"""Maximum length of a sample relative to the longest reference of the batch."""
LEAVE_BELOW = 0.875
"""Share of unfinished articles at or below which the finished ones are removed from the batch. It is less than 1,
because copying the remaining articles takes time."""


class ReinforceConfig(Settings):
    """Reward of sampled texts, mixed with likelihood: Paulus et al. 2018, section 3, or Wu et al. 2016, section 5."""

    gamma: float = Field(default=0.9984, gt=0, le=1)
    """Weight of the reinforcement loss; the likelihood gets the rest. Rewards differ only slightly, so the weight is
    near one. 0.98328 corresponds to alpha = 0.017 in Wu et al."""
    reward: Literal["rougeL", "gleu"] = "rougeL"
    """Reward of a text, computed on its tokens, from 0 to 1: ROUGE-L F1, or GLEU as in Wu et al."""
    samples: Length = Field(default=1, ge=1)
    """Number of texts sampled per source. The reward of a single sample is compared with that of greedy search
    (self-critical training). The rewards of two or more are compared with their mean; Wu et al. draw 15."""
    max_length: Length = Field(default=100, ge=1)
    """Maximum length of a sampled summary, in tokens including EOS. It is also limited to 1.5 times the longest
    reference of the batch, and to the number of learned position embeddings of the model."""

    def limit(self, tgt_length: int) -> int:
        """Returns the maximum length of a sample if the longest reference has `tgt_length` tokens, including EOS."""
        limit = math.ceil(MAX_LENGTH_RATIO * tgt_length)
        return max(1, min(self.max_length, limit))


@dataclass(frozen=True)
class Rollouts:
    """K summaries of each of B articles: the samples, then the greedy summary."""

    ids: Tensor
    """Extended ids `(B, K, T)`, including EOS if a summary ended before the limit, followed by PAD."""
    lengths: Tensor
    """Number of tokens, including EOS, `(B, K)`."""


@torch.no_grad()
def sample_rollouts(model: Decoder, memory: Memory, limit: int, samples: int = 1) -> Rollouts:
    """Decodes all summaries of an article together, like the hypotheses of a beam, without decoding rules.

    An article is removed from the batch when all its summaries have ended. From then on, B in the shapes below is the
    number of remaining articles; `ids` and `lengths` keep the rows of all articles.
    """
    device = memory.mask.device
    n_articles = len(memory.mask)
    n_summaries = samples + 1
    while not reserve_positions(model, limit):
        limit -= 1
    # rows of `ids` that are still being filled
    articles = torch.arange(n_articles, device=device)  # (B,)
    summaries = torch.arange(n_summaries, device=device)  # (K,)
    # Row b * K + k of the state is summary k of article b.
    state = model.start(memory).select(articles.repeat_interleave(n_summaries))
    cache = KVCache(n_articles, n_summaries, device)
    tokens = torch.full((n_articles, n_summaries), BOS, device=device)  # (B, K)
    ids = torch.full((n_articles, n_summaries, limit), PAD, device=device)  # (B, K, T)
    ended = torch.zeros_like(tokens, dtype=torch.bool)  # (B, K)
    lengths = torch.zeros_like(tokens)  # (B, K)
    check_every = 1 if device.type == "cpu" else 8  # in steps; the check waits for the device
    for step in range(limit):
        output, state = model.advance(tokens.flatten(), state, memory, cache=cache)
        log_probs = model.predict(output, memory)  # (B*K, X)
        log_probs = log_probs.view(*tokens.shape, -1)  # (B, K, X)
        cache.next_step()
        sampled = sample_indices(log_probs[:, :-1].exp())  # (B, K-1)
        greedy = log_probs[:, -1:].argmax(-1)  # (B, 1)
        tokens = torch.cat([sampled, greedy], 1)  # (B, K)
        tokens = tokens.masked_fill(ended, PAD)
        ids[articles, :, step] = tokens
        lengths[articles] += ~ended
        ended |= tokens == EOS
        if (step + 1) % check_every:
            continue
        is_unfinished = (~ended).any(1)  # (B,)
        unfinished = is_unfinished.nonzero()[:, 0]  # (B',): rows of `articles`
        if not len(unfinished):
            break
        if len(unfinished) <= LEAVE_BELOW * len(articles):
            rows = unfinished[:, None] * n_summaries + summaries  # (B', K)
            state = state.select(rows.flatten())
            cache.select(unfinished)
            memory = memory.select(unfinished)
            articles = articles[unfinished]
            tokens = tokens[unfinished]
            ended = ended[unfinished]
    # Under autocast, older versions of torch would reuse weights that were cast here, without gradients, in the second
    # pass (pytorch issue 112583).
    torch.clear_autocast_cache()
    return Rollouts(ids[:, :, : step + 1], lengths)


def sample_indices(probs: Tensor) -> Tensor:
    """Samples an index `(*,)` of the last axis from probabilities `(*, X)`, without waiting for the device.

    The index is the first whose cumulative probability exceeds a uniform random number. The Gumbel trick would need X
    random numbers per sample, and generating them serially on a CPU would take longer than the step itself.
    """
    cumulated = probs.cumsum(
        -1, dtype=torch.float64
    )  # (*, X); float32 would round small probabilities away
    uniform = torch.rand(
        cumulated.shape[:-1], dtype=cumulated.dtype, device=cumulated.device
    )  # (*,)
    # The probabilities may sum to slightly more or less than 1.
    total = cumulated[..., -1:]  # (*, 1)
    threshold = uniform.unsqueeze(-1) * total  # (*, 1)
    indices = torch.searchsorted(cumulated, threshold, right=True)  # (*, 1)
    indices = indices.squeeze(-1)  # (*,)
    # NaN compares as larger than all sums and would give the index X.
    return indices.clamp(max=cumulated.shape[-1] - 1)


def rouge_l(ids: Tensor, lengths: Tensor, references: Tensor, reference_lengths: Tensor) -> Tensor:
    """Returns the ROUGE-L F1 of each row `(R,)`: Lin 2004, section 3, with equal weights for recall and precision.

    The F1 of precision LCS/n and recall LCS/m is 2 LCS / (n + m). The length of the longest common subsequence comes
    from the usual table: `L[i,j] = max(L[i-1,j], L[i,j-1], L[i-1,j-1] + [x_i = y_j])`.

    Args:
        ids: texts `(R, T)`.
        lengths: text lengths n `(R,)`.
        references: references `(R, U)`.
        reference_lengths: reference lengths m `(R,)`. The result is 0 if n and m are both 0.
    """
    n_rows, width = references.shape
    columns = torch.arange(width, device=ids.device)  # (U,)
    is_real = columns < reference_lengths[:, None]  # (R, U)
    # Row i of the table L for all R pairs. Column 0 is for the empty prefix of the reference.
    longest = torch.zeros(n_rows, width + 1, dtype=torch.int64, device=ids.device)  # (R, U+1)
    for step, token in enumerate(ids.unbind(1)):
        is_written = (step < lengths)[:, None]  # (R, 1)
        is_equal = token[:, None] == references  # (R, U)
        is_match = is_equal & is_real & is_written  # (R, U)
        without_match = longest[:, 1:]  # (R, U): L[i-1,j]
        with_match = longest[:, :-1] + is_match  # (R, U): L[i-1,j-1] + [x_i = y_j]
        best = torch.maximum(without_match, with_match)  # (R, U)
        # The running maximum over j includes the comparison with L[i,j-1].
        longest[:, 1:] = best.cummax(1).values
    total = (lengths + reference_lengths).clamp(min=1)  # (R,)
    return 2 * longest[:, -1] / total


def gleu(ids: Tensor, lengths: Tensor, references: Tensor, reference_lengths: Tensor) -> Tensor:
    """Returns the GLEU of each row `(R,)`: the smaller of precision and recall of all 1- to 4-grams.

    Wu et al. 2016, section 5. The arguments are those of `rouge_l`. An n-gram of the text is a match if it occurred
    earlier in the text fewer times than it occurs in the reference, so each n-gram of the reference is matched once.
    """
    device = ids.device
    positions = torch.arange(ids.shape[1], device=device)  # (T,)
    is_written = positions < lengths[:, None]  # (R, T)
    reference_positions = torch.arange(references.shape[1], device=device)  # (U,)
    is_real = reference_positions < reference_lengths[:, None]  # (R, U)
    # Entry [i,j]: whether the tokens at i and j are equal, within the text, or in text and reference.
    same_in_text = ids[:, :, None] == ids[:, None]  # (R, T, T)
    same_in_reference = ids[:, :, None] == references[:, None]  # (R, T, U)
    same_in_reference &= is_written[:, :, None]
    same_in_reference &= is_real[:, None]
    # Entry [i,j]: whether the n-grams that begin at i and j are equal. They are if their first n-1 tokens are equal and
    # the tokens at i+n-1 and j+n-1 are, too.
    ngram_in_text = same_in_text
    ngram_in_reference = same_in_reference
    matches = torch.zeros_like(lengths)  # (R,)
    for n in range(1, 5):
        # number of equal n-grams earlier in the text
        n_earlier = ngram_in_text.tril(-1).sum(2)  # (R, T-n+1)
        n_in_reference = ngram_in_reference.sum(2)  # (R, T-n+1)
        is_match = n_earlier < n_in_reference  # (R, T-n+1)
        matches = matches + is_match.sum(1)
        ngram_in_text = ngram_in_text[:, :-1, :-1] & same_in_text[:, n:, n:]  # (R, T-n, T-n)
        ngram_in_reference = (
            ngram_in_reference[:, :-1, :-1] & same_in_reference[:, n:, n:]
        )  # (R, T-n, U-n)
    # Precision divides by the text's n-grams, recall by the reference's: the smaller ratio has the larger denominator.
    # A text of l tokens has l-n+1 n-grams.
    max_lengths = torch.maximum(lengths, reference_lengths)  # (R,)
    n_ngrams = max_lengths[:, None] - torch.arange(4, device=device)  # (R, 4)
    n_ngrams = n_ngrams.clamp(min=0).sum(1)  # (R,)
    return matches / n_ngrams.clamp(min=1)


def rewards(
    rollouts: Rollouts, references: Tensor, reference_lengths: Tensor, reward: str = "rougeL"
) -> Tensor:
    """Returns the rewards `(B, K)` of all summaries, compared without EOS.

    Args:
        rollouts: the summaries.
        references: extended ids `(B, U)`, with EOS at the end.
        reference_lengths: reference lengths `(B,)`, including EOS.
        reward: `rougeL` or `gleu`.
    """
    n_summaries = rollouts.ids.shape[1]
    ids = rollouts.ids.flatten(0, 1)  # (B*K, T)
    has_eos = (ids == EOS).sum(1)  # (B*K,): 1 or 0
    lengths = rollouts.lengths.flatten() - has_eos  # (B*K,)
    references = references.masked_fill(references == UNK, _NEVER)  # (B, U)
    references = references.repeat_interleave(n_summaries, 0)  # (B*K, U)
    reference_lengths = (reference_lengths - 1).repeat_interleave(n_summaries)  # (B*K,)
    measure = rouge_l if reward == "rougeL" else gleu
    scores = measure(
        ids=ids, lengths=lengths, references=references, reference_lengths=reference_lengths
    )  # (B*K,)
    return scores.view(-1, n_summaries)


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Disables dropout in a model while its gradients are computed.

    cuDNN can differentiate recurrent layers only in training mode, so they stay in training mode, with a dropout of
    zero.
    """
    modes = [(module, module.training) for module in model.modules()]
    rates = [
        (module, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)
    ]
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
    """Returns the batch with the sampled summaries as targets; an article's N samples are consecutive rows."""
    sample_ids = rollouts.ids[:, :-1]  # (B, N, T), without the greedy summaries
    sample_lengths = rollouts.lengths[:, :-1]  # (B, N)
    n_samples = sample_ids.shape[1]
    ids = sample_ids.flatten(0, 1)  # (B*N, T)
    lengths = sample_lengths.flatten()  # (B*N,)
    begin = torch.full_like(ids[:, :1], BOS)  # (B*N, 1)
    shifted = torch.cat([begin, ids[:, :-1]], 1)  # (B*N, T)
    positions = torch.arange(ids.shape[1], device=ids.device)  # (T,)
    mask = positions < lengths[:, None]  # (B*N, T)
    targets = Targets(shifted=shifted, ids=ids, extended=ids, mask=mask)
    articles = torch.arange(batch.size).repeat_interleave(n_samples)  # (B*N,)
    return replace(batch.select(articles), targets=targets, alignment=None)


@dataclass(frozen=True)
class _Rewarded(Objective):
    """Equation 15: the sum of -log p(y^s) times the advantage r(y^s) - r(y^), over all words of all samples."""

    normalizers: ClassVar = {LOSS: "tokens"}

    advantage: Tensor
    """r(y^s) - r(y^) of each sample, `(B*N,)`."""

    @property
    def reads_words(self) -> Literal["wanted"]:
        return "wanted"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        assert inputs.nll is not None
        assert inputs.output.sentence is not None
        advantage = self.advantage.index_select(0, inputs.output.sentence)  # (M,)
        losses = inputs.nll * advantage  # (M,)
        loss = losses.sum(dtype=at_least_float32(inputs.nll))  # ()
        return {LOSS: loss}


@OBJECTIVES.register("reinforce")
@dataclass(frozen=True)
class Reinforce(Objective):
    """Self-critical training: rewards texts sampled from the model, in addition to the likelihood, in a last stage.

    This is the reinforcement term of equation 16; all other objectives belong to L_ml and share the weight 1 - gamma.
    """

    normalizers: ClassVar = {
        LOSS: "tokens",
        "sampled_reward": "sentences",
        "greedy_reward": "sentences",
    }
    needs = "none"

    Config = ReinforceConfig

    settings: ReinforceConfig

    @classmethod
    @override
    def from_setting(cls, setting: ReinforceConfig | float) -> "Reinforce":
        if isinstance(setting, ReinforceConfig):
            settings = setting
        else:
            settings = ReinforceConfig(gamma=setting)
        return cls(settings=settings, weight=settings.gamma)

    @property
    @override
    def remaining_weight(self) -> float:
        return 1 - self.settings.gamma

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """Returns nothing, because `custom_backward` samples the targets."""
        return {}

    def custom_backward(self, update: GradientAccumulator, batch: Batch) -> dict[str, Tensor]:
        """Samples summaries of each article and adds the gradient of equation 15; returns its loss and the rewards."""
        model = as_decoder(update.model)
        n_samples = self.settings.samples  # N
        assert model is not None, (
            f"{update.model.config.kind} generates no text that could be sampled"
        )
        with without_dropout(model):
            device_batch = batch.to(update.device)
            references = device_batch.targets
            memory = model.encode(device_batch)
            limit = self.settings.limit(references.mask.shape[1])
            rollouts = sample_rollouts(model=model, memory=memory, limit=limit, samples=n_samples)
            reward = rewards(
                rollouts=rollouts,
                references=references.extended,
                reference_lengths=references.mask.sum(1),
                reward=self.settings.reward,
            )  # (B, N+1)
            sampled = reward[:, :-1]  # (B, N)
            greedy = reward[:, -1:]  # (B, 1)
            mean_reward = sampled.mean(1, keepdim=True)  # (B, 1)
            baseline = greedy if n_samples == 1 else mean_reward  # (B, 1)
            advantage = (sampled - baseline).flatten() / n_samples  # (B*N,)

            # In a second pass, the samples are the targets. Each one reads a copy of its article's memory.
            cpu_rollouts = Rollouts(rollouts.ids.cpu(), rollouts.lengths.cpu())
            samples_batch = sampled_batch(batch, cpu_rollouts)  # B*N examples
            articles = torch.arange(batch.size, device=update.device).repeat_interleave(
                n_samples
            )  # (B*N,)
            memory_per_sample = memory.select(articles)

            def read(targets: Batch, need_attention: bool) -> tuple[ModelOutput, Memory]:
                return model.unroll(targets, memory_per_sample, need_attention), memory_per_sample

            rewarded = _Rewarded(advantage=advantage, weight=self.weight)
            second_pass = replace(update, objectives=[rewarded])
            loss = second_pass.backward(samples_batch, read)[LOSS]
        sampled_reward = mean_reward.sum()  # ()
        greedy_reward = greedy.sum()  # ()
        return {
            LOSS: loss,
            "sampled_reward": sampled_reward.to(loss),
            "greedy_reward": greedy_reward.to(loss),
        }
