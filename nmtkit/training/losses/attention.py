"""Losses on attention (guided alignment, coverage, double stochasticity, sampled positions) and on the use of experts.

Notation: B examples, T target positions, S source positions, A attention heads, M predicted positions.

Chen et al. 2016, "Guided Alignment Training for Topic-Aware Neural Machine Translation"; Garg et al. 2019, "Jointly
Learning to Align and Translate with Transformer Models"; See et al. 2017, "Get To The Point"; Xu et al. 2015, "Show,
Attend and Tell"; Shazeer et al. 2017, "Outrageously Large Neural Networks".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from nmtkit.core.settings import Field, Settings
from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.layers.elementary import at_least_float32
from nmtkit.models.abilities import auxiliary_logits, has_source_end, memory_lengths
from nmtkit.models.base import Model
from nmtkit.training.losses.objective import OBJECTIVES, InputKind, Objective, ObjectiveInput

AlignmentSource = Literal["file", "model"]
AlignmentLoss = Literal["cross_entropy", "squared_error"]

_MIN_WEIGHT = 1e-30
"""Lower bound for attention weights before the logarithm, since a window or rounding can make a weight zero."""

_BASELINE = "attention.baseline"
"""Name of the model's buffer for the baseline b of hard attention."""
_SOFT_SHARE = 0.5
"""Probability that a sentence is read with soft attention, without sampled positions (Xu et al. 2015, section 4.1)."""
_ENTROPY_WEIGHT = 0.01
"""lambda_e: weight of the attention's entropy in nats, which keeps the distribution from narrowing too soon."""


class GuidedAlignmentConfig(Settings):
    """Guided alignment: trains the attention on word alignments (Chen et al. 2016).

    In a Transformer, `model.alignment_layer` and `model.alignment_heads` select the attention that is trained: a single
    head, as in Garg et al. 2019, or the mean of all heads.
    """

    source: AlignmentSource = "file"
    """Source of the alignments. file: data.train.alignment. model: the attention itself; each target token is aligned
    to the source token with the largest mean weight over the layer's heads, and the head selected by
    model.alignment_heads is trained on these alignments (Garg et al. 2019)."""
    weight: float = Field(default=0.05, gt=0)
    """Weight of the alignment loss relative to the likelihood. The alignment loss is averaged over linked target
    tokens, the likelihood over all target tokens."""
    loss: AlignmentLoss = "cross_entropy"
    """Loss between attention and links: cross_entropy, or squared_error, which is milder; Chen et al. 2016
    compare both."""


def linked_positions(batch: Batch, source: AlignmentSource) -> Tensor:
    """Returns a mask `(B, T)` of target positions whose attention is trained: those with links, or all but EOS."""
    if source == "file":
        assert batch.alignment is not None, "the batch has no alignments"
        return batch.alignment.any(-1)
    mask = batch.targets.mask  # (B, T)
    # The last real position of a row is EOS; shifting the mask left by one removes it.
    words = torch.zeros_like(mask)  # (B, T)
    words[:, :-1] = mask[:, 1:]
    return words


def alignment_loss(
    attention: Tensor, links: Tensor, kind: AlignmentLoss = "cross_entropy"
) -> Tensor:
    """Returns the distance between attention and an alignment, summed over the target tokens that have a link.

    The k links of a target token form a distribution G that assigns 1/k to each link. cross_entropy is -sum_s G log A
    (Chen et al. 2016, Garg et al. 2019), squared_error is sum_s (G - A)^2 (Chen et al. 2016). If a window hides a
    linked source token, the loss of this link is constant.

    Args:
        attention: A, weights `(B, T, S)`.
        links: boolean alignment matrix, `(B, T, S)`.
        kind: loss to compute.
    """
    weights = attention.to(at_least_float32(attention))  # (B, T, S)
    n_links = links.sum(-1, keepdim=True)  # (B, T, 1)
    divisors = n_links.clamp(min=1).to(weights.dtype)  # (B, T, 1)
    gold = links / divisors  # (B, T, S)
    if kind == "cross_entropy":
        log_weights = weights.clamp(min=_MIN_WEIGHT).log()  # (B, T, S)
        return -(gold * log_weights).sum()
    errors = (gold - weights).square()  # (B, T, S)
    is_linked = n_links > 0  # (B, T, 1)
    return (errors * is_linked).sum()


@OBJECTIVES.register("guided_alignment")
@dataclass(frozen=True)
class GuidedAlignment(Objective):
    """Guided alignment: trains the attention on word alignments.

    The loss is the mean of `alignment_loss` per linked target token.
    """

    normalizers: ClassVar = {"alignment_loss": "links"}
    needs: ClassVar[InputKind] = "attention"

    Config = GuidedAlignmentConfig

    settings: GuidedAlignmentConfig

    @classmethod
    @override
    def from_setting(cls, setting: GuidedAlignmentConfig | float) -> "GuidedAlignment":
        if isinstance(setting, GuidedAlignmentConfig):
            settings = setting
        else:
            settings = GuidedAlignmentConfig(weight=setting)
        kind = GuidedAlignmentFromHeads if settings.source == "model" else GuidedAlignment
        return kind(settings=settings, weight=settings.weight)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Counts the target tokens whose attention is trained."""
        positions = linked_positions(batch, self.settings.source)
        return {"links": int(positions.sum())}

    def links(self, inputs: ObjectiveInput) -> Tensor:
        """Returns the boolean alignment matrix `(B, T, S)`."""
        assert inputs.device_batch.alignment is not None, "the batch has no alignments"
        return inputs.device_batch.alignment

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """Returns the loss without its weight."""
        attention = inputs.output.attention  # (B, T, S)
        assert attention is not None
        loss = alignment_loss(attention, self.links(inputs), self.settings.loss)  # ()
        return {"alignment_loss": loss}


class GuidedAlignmentFromHeads(GuidedAlignment):
    """Guided alignment of one head, which is trained on the mean attention of all heads in its layer."""

    needs = "heads"

    def links(self, inputs: ObjectiveInput) -> Tensor:
        """Links each target word to the source token with the largest mean weight over all heads, without gradient."""
        assert inputs.heads is not None
        mean_weights = inputs.heads.detach().mean(1)  # (B, T, S)
        best = mean_weights.argmax(-1, keepdim=True)  # (B, T, 1)
        is_word = linked_positions(inputs.device_batch, "model")  # (B, T)
        is_word = is_word.unsqueeze(-1)  # (B, T, 1)
        links = torch.zeros_like(mean_weights, dtype=torch.bool)  # (B, T, S)
        return links.scatter_(-1, best, is_word)


def coverage_loss(attention: Tensor, mask: Tensor) -> Tensor:
    """Returns the repeated attention, summed over the target tokens.

    See et al. 2017, equations 12 and 13, without the weight lambda: sum_s min(a, c), where the coverage c of a step is
    the sum of the attention of all earlier steps (eq. 10). The loss of a step is at most 1.

    Args:
        attention: a, weights `(B, T, S)`.
        mask: True at real target tokens, `(B, T)`.
    """
    weights = attention.to(at_least_float32(attention))  # (B, T, S)
    earlier_sums = weights[:, :-1].cumsum(1)  # (B, T-1, S)
    # Nothing is covered before the first step.
    coverage = pad(earlier_sums, (0, 0, 1, 0))  # (B, T, S)
    losses = torch.minimum(weights, coverage).sum(-1)  # (B, T)
    return (losses * mask).sum()


@OBJECTIVES.register("coverage_weight")
@dataclass(frozen=True)
class CoverageLoss(Objective):
    """Penalizes repeated attention: mean coverage loss per target token, from 0 to 1.

    The weight is lambda in See et al. 2017, equation 13; the paper uses 1, in a short final stage.
    """

    normalizers: ClassVar = {"coverage_loss": "tokens"}
    needs = "attention"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """Returns the loss without its weight."""
        assert inputs.output.attention is not None
        loss = coverage_loss(inputs.output.attention, inputs.device_batch.targets.mask)  # ()
        return {"coverage_loss": loss}


@OBJECTIVES.register("expert_balance")
@dataclass(frozen=True)
class ExpertBalance(Objective):
    """Keeps all `model.experts` in use; Shazeer et al. 2017 use a weight of 0.1.

    The loss is CV(v)^2, the variance of v divided by its squared mean, summed over all layers with experts. v is the
    experts' importance and, if the gates have noise, also their load (equation 7; appendix A, equation 11). The loss is
    0 if all experts are used equally. In a mean over batches, or over parts of a batch, each batch or part is weighted
    by its number of target tokens.
    """

    normalizers: ClassVar = {"expert_balance_loss": "tokens"}
    needs = "output"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """Returns the loss without its weight, times the number of target tokens."""
        # For each layer with n experts, a row for the importance and a row for the load.
        use = auxiliary_logits(inputs.model, inputs.device_batch, inputs.output)  # (rows, n)
        variance = use.var(-1, correction=0)  # (rows,)
        mean = use.mean(-1)  # (rows,)
        loss = (variance / mean.square()).sum()  # ()
        return {"expert_balance_loss": loss * inputs.batch.n_tokens}


@OBJECTIVES.register("doubly_stochastic")
@dataclass(frozen=True)
class DoublyStochasticLoss(Objective):
    """Spreads the attention evenly over an image; the weight is lambda in Xu et al. 2015, equation 14.

    The loss is the mean per example of `sum_i (1 - sum_t alpha_ti)^2`, with t up to EOS.
    """

    normalizers: ClassVar = {"doubly_stochastic_loss": "sentences"}
    needs = "attention"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """Returns the loss without its weight."""
        assert inputs.output.attention is not None
        target_mask = inputs.device_batch.targets.mask.unsqueeze(2)  # (B, T, 1)
        weights = inputs.output.attention * target_mask  # (B, T, S)
        total_weights = weights.sum(1, dtype=at_least_float32(weights))  # (B, S)
        missing = 1 - total_weights  # (B, S)
        lengths = memory_lengths(inputs.model, inputs.batch)  # (B,)
        # If the source's EOS is not in the memory, it needs no attention.
        if inputs.batch.reads_text and not has_source_end(inputs.model):
            lengths = (lengths - 1).clamp(min=1)
        is_real = torch.arange(missing.shape[1]) < lengths.unsqueeze(1)  # (B, S)
        loss = (missing.square() * is_real.to(missing.device)).sum()  # ()
        return {"doubly_stochastic_loss": loss}


class HardAttentionConfig(Settings):
    """Training of hard attention (Xu et al. 2015, section 4.1)."""

    reward_weight: float = Field(default=0.02, ge=0)
    """lambda_r: weight of the reward for sampled positions. 1 gives the gradient of the expected log-likelihood, which
    is very noisy."""


@OBJECTIVES.register("hard_attention")
@dataclass(frozen=True)
class HardAttention(Objective):
    """Trains a model with `model.hard_attention`, which samples the source positions that it attends to.

    Rewards sampled positions for the log-likelihood that they lead to, and adds the entropy of the attention (Xu et al.
    2015, below eq. 12):

        d/dW log p(y|s,x) + lambda_r (log p(y|s,x) - b) d/dW log p(s|x) + lambda_e d/dW H[s]
        b_k = 0.9 b_{k-1} + 0.1 log p(y|s_k,x)

    The first term is the gradient of the likelihood, which is another objective. A position is rewarded only for the
    words from its own step on: it cannot affect earlier words, whose reward would be zero on average but add noise. The
    baseline b is per word, so that it suits texts of any length. The reward affects only the gradient; its value in the
    loss is 0.
    """

    normalizers: ClassVar = {"hard_attention_loss": "tokens", "attention_entropy": "tokens"}

    Config = HardAttentionConfig

    settings: HardAttentionConfig

    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        """Chooses the sentences that are read with soft attention."""
        is_soft = torch.rand(batch.size, generator=generator) < _SOFT_SHARE  # (B,)
        return replace(batch, soft=is_soft)

    @property
    @override
    def reads_words(self) -> Literal["wanted"]:
        return "wanted"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """Returns the loss, and the entropy of the attention."""
        weights = inputs.output.attention  # (M, S) at the M predicted positions
        path_log_probs = inputs.output.path  # (M,): log p(s_1 ... s_t | x)
        assert inputs.nll is not None
        assert weights is not None
        assert path_log_probs is not None, "the model must be in training mode and sample positions"
        baseline = inputs.model.get_buffer(_BASELINE)  # ()
        advantages = -inputs.nll.detach() - baseline  # (M,)
        # The difference is 0, but has the gradient of the log-probabilities.
        zeros = path_log_probs - path_log_probs.detach()  # (M,)
        reward = (advantages * zeros).sum()  # ()
        log_weights = weights.clamp(min=_MIN_WEIGHT).log()  # (M, S)
        entropy = -(weights * log_weights).sum()  # ()
        loss = -self.settings.reward_weight * reward - _ENTROPY_WEIGHT * entropy  # ()
        return {"hard_attention_loss": loss, "attention_entropy": entropy.detach()}

    def after_update(
        self, model: Model, sums: Mapping[str, Tensor], counts: Mapping[str, int]
    ) -> None:
        """Moves the baseline towards the mean log-likelihood per word, unless that mean is not finite."""
        baseline = model.get_buffer(_BASELINE)  # ()
        log_likelihood = -sums["nll"].to(baseline)  # ()
        n_tokens = max(1, counts["tokens"])
        new_baseline = baseline.lerp(log_likelihood / n_tokens, 0.1)  # ()
        new_baseline = torch.where(new_baseline.isfinite(), new_baseline, baseline)
        baseline.copy_(new_baseline)
