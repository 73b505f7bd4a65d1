"""Losses on attention, guided alignment, coverage, double stochasticity and drawn places; on the gates between experts.

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

_LEAST = 1e-30
"""The least weight in a logarithm: a window or rounding may have made a weight zero."""

_BASELINE = "attention.baseline"
"""The buffer of a model with the b of a hard attention."""
_SOFT_SHARE = 0.5
"""Probability that no places of a sentence are drawn, and it is read as by a soft attention (Xu et al. 2015, section
4.1)."""
_ENTROPY_WEIGHT = 0.01
"""lambda_e: weight of the entropy of the places' distribution, in nats, which keeps it from narrowing too soon."""


class GuidedAlignmentConfig(Settings):
    """Guided alignment: attention is trained on word alignments (Chen et al. 2016).

    For one head of a Transformer, chosen by `model.alignment_layer` and `model.alignment_heads`: Garg et al. 2019.
    """

    source: AlignmentSource = "file"
    """Where the alignments come from. file: data.train.alignment. model: the attention itself, each word's most
    attended source token in the mean of the layer's heads; it trains the one head that model.alignment_heads names."""
    weight: float = Field(default=0.05, gt=0)
    """Weight of the alignment's loss, a mean over linked target tokens, beside the mean loss per target token."""
    loss: AlignmentLoss = "cross_entropy"
    """The loss between attention and links: cross_entropy, or squared_error, which is milder."""


def linked_positions(batch: Batch, teacher: AlignmentSource) -> Tensor:
    """The target positions `(B,T)` whose attention is trained: those with a link of the file, or all but EOS."""
    if teacher == "file":
        assert batch.alignment is not None, "the batch has no alignments"
        return batch.alignment.any(-1)
    words = torch.zeros_like(batch.targets.mask)
    words[:, :-1] = batch.targets.mask[:, 1:]  # the last real position of a row is EOS
    return words


def alignment_loss(attention: Tensor, links: Tensor, kind: AlignmentLoss = "cross_entropy") -> Tensor:
    """Distance of attention from an alignment, summed over the target tokens that have a link.

    The k links of a target token make a distribution G of 1/k each. cross_entropy is -sum_s G log A (Chen et al. 2016,
    Garg et al. 2019), squared_error is sum_s (G - A)^2 (Chen et al. 2016). A window that hides a linked source token
    costs a constant. `attention` is A, weights `(B,T,S)`; `links` are bool `(B,T,S)`.
    """
    weights = attention.to(at_least_float32(attention))
    counts = links.sum(-1, keepdim=True)  # (B,T,1)
    gold = links / counts.clamp(min=1).to(weights.dtype)  # (B,T,S)
    if kind == "cross_entropy":
        return -(gold * weights.clamp(min=_LEAST).log()).sum()
    return ((gold - weights).square() * (counts > 0)).sum()


@OBJECTIVES.register("guided_alignment")
@dataclass(frozen=True)
class GuidedAlignment(Objective):
    """Guided alignment: trains the attention with given word alignments.

    It is the mean of `alignment_loss` over the linked target tokens.
    """

    normalizers: ClassVar = {"alignment_loss": "links"}
    needs: ClassVar[InputKind] = "attention"

    Config = GuidedAlignmentConfig

    settings: GuidedAlignmentConfig

    @classmethod
    @override
    def from_setting(cls, setting: GuidedAlignmentConfig | float) -> "GuidedAlignment":
        settings = setting if isinstance(setting, GuidedAlignmentConfig) else GuidedAlignmentConfig(weight=setting)
        kind = GuidedAlignmentFromHeads if settings.source == "model" else GuidedAlignment
        return kind(settings=settings, weight=settings.weight)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Counts the target tokens whose attention is trained."""
        return {"links": int(linked_positions(batch, self.settings.source).sum())}

    def links(self, inputs: ObjectiveInput) -> Tensor:
        """The alignment `(B,T,S)`."""
        assert inputs.device_batch.alignment is not None, "the batch has no alignments"
        return inputs.device_batch.alignment

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """The loss without its weight."""
        assert inputs.output.attention is not None
        attention = inputs.output.attention
        return {"alignment_loss": alignment_loss(attention, self.links(inputs), self.settings.loss)}


class GuidedAlignmentFromHeads(GuidedAlignment):
    """Guided alignment of one head with the mean of all heads of its layer as the alignment."""

    needs = "heads"

    def links(self, inputs: ObjectiveInput) -> Tensor:
        """A link at each position to the argmax of the mean of the heads, a constant."""
        assert inputs.heads is not None
        best = inputs.heads.detach().mean(1).argmax(-1, keepdim=True)  # (B,T,1)
        positions = linked_positions(inputs.device_batch, "model")
        return torch.zeros_like(inputs.heads[:, 0], dtype=torch.bool).scatter_(-1, best, positions[..., None])


def coverage_loss(attention: Tensor, mask: Tensor) -> Tensor:
    """Repeated attention, summed over the target tokens.

    See et al. 2017, equations 12 and 13, without the weight lambda: sum_s min(a, c), where the coverage c of a step is
    the sum of the attention of all steps before it (eq. 10). A step costs at most 1. `attention` is a, weights
    `(B,T,S)`; `mask` is True where a target token is real, `(B,T)`.
    """
    weights = attention.to(at_least_float32(attention))
    before = pad(weights[:, :-1].cumsum(1), (0, 0, 1, 0))  # (B,T,S)
    return (torch.minimum(weights, before).sum(-1) * mask).sum()


@OBJECTIVES.register("coverage_weight")
@dataclass(frozen=True)
class CoverageLoss(Objective):
    """Makes repeated attention costly: the mean coverage loss of a target token, from 0 to 1.

    Its weight is lambda of See et al. 2017, equation 13: 1 in the paper, in a short stage at the end.
    """

    normalizers: ClassVar = {"coverage_loss": "tokens"}
    needs = "attention"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """The loss without its weight."""
        assert inputs.output.attention is not None
        return {"coverage_loss": coverage_loss(inputs.output.attention, inputs.device_batch.targets.mask)}


@OBJECTIVES.register("expert_balance")
@dataclass(frozen=True)
class ExpertBalance(Objective):
    """Keeps all of `model.experts` in use; the weight is 0.1 in the paper.

    How unevenly experts are used: a mean over batches, or parts of them, as their target tokens weigh.

    CV(v)^2, the variance of v over its squared mean, summed over all layers with experts, where v is the importance of
    their experts, and where noise is drawn the load too: Shazeer et al. 2017, equation 7, appendix A, equation 11. It
    is 0 where all are used alike.
    """

    normalizers: ClassVar = {"expert_balance_loss": "tokens"}
    needs = "output"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """The loss without its weight."""
        use = auxiliary_logits(inputs.model, inputs.device_batch, inputs.output)  # (R,n)
        uneven = (use.var(-1, correction=0) / use.mean(-1).square()).sum()
        return {"expert_balance_loss": uneven * inputs.batch.n_tokens}


@OBJECTIVES.register("doubly_stochastic")
@dataclass(frozen=True)
class DoublyStochasticLoss(Objective):
    """Wants all of a picture attended to alike; its weight is lambda of Xu et al. 2015, equation 14.

    `sum_i (1 - sum_t alpha_ti)^2`, t up to EOS, a mean of examples.
    """

    normalizers: ClassVar = {"doubly_stochastic_loss": "sentences"}
    needs = "attention"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """The loss without its weight."""
        assert inputs.output.attention is not None
        weights = inputs.output.attention * inputs.device_batch.targets.mask.unsqueeze(2)  # (B,T,S)
        missing = 1 - weights.sum(1, dtype=at_least_float32(weights))  # (B,S)
        lengths = memory_lengths(inputs.model, inputs.batch)  # (B,)
        # Nothing looks at an end that is not in the memory, so it is not missing.
        if inputs.batch.reads_text and not has_source_end(inputs.model):
            lengths = (lengths - 1).clamp(min=1)
        real = torch.arange(missing.shape[1]) < lengths.unsqueeze(1)
        return {"doubly_stochastic_loss": (missing.square() * real.to(missing.device)).sum()}


class HardAttentionConfig(Settings):
    """How a hard attention learns where to look (Xu et al. 2015, section 4.1)."""

    reward_weight: float = Field(default=0.02, ge=0)
    """lambda_r: weight of the reward of drawn places; 1 is the expected log-likelihood's gradient, with much noise."""


@OBJECTIVES.register("hard_attention")
@dataclass(frozen=True)
class HardAttention(Objective):
    """Trains a model with `model.hard_attention` to choose places by drawing them.

    What drawn places add to the likelihood is their reward, and their entropy (Xu et al. 2015, below eq. 12):

        d/dW log p(y|s,x) + lambda_r (log p(y|s,x) - b) d/dW log p(s|x) + lambda_e d/dW H[s]
        b_k = 0.9 b_{k-1} + 0.1 log p(y|s_k,x)

    The first term is the likelihood's. A place is rewarded for the words from its own on: it cannot change those before
    it, which would add noise, and nothing on average. b is of one word, so that it suits texts of any length. The
    reward has a gradient, but no value in the loss, where it would mean nothing.
    """

    normalizers: ClassVar = {"hard_attention_loss": "tokens", "attention_entropy": "tokens"}

    Config = HardAttentionConfig

    settings: HardAttentionConfig

    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        """Chooses the sentences that are read as by a soft attention."""
        return replace(batch, soft=torch.rand(batch.size, generator=generator) < _SOFT_SHARE)

    @property
    def reads_words(self) -> Literal["wanted"]:
        """Those wanted."""
        return "wanted"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """The loss, and the entropy."""
        weights, path = inputs.output.attention, inputs.output.path
        assert inputs.nll is not None
        assert weights is not None
        assert path is not None, "a model in training mode that draws places"
        reward = ((-inputs.nll.detach() - inputs.model.get_buffer(_BASELINE)) * (path - path.detach())).sum()
        entropy = -(weights * weights.clamp(min=_LEAST).log()).sum()
        loss = -self.settings.reward_weight * reward - _ENTROPY_WEIGHT * entropy
        return {"hard_attention_loss": loss, "attention_entropy": entropy.detach()}

    def after_update(self, model: Model, sums: Mapping[str, Tensor], counts: Mapping[str, int]) -> None:
        """Moves the baseline; an update that is not finite leaves it."""
        baseline = model.get_buffer(_BASELINE)
        moved = baseline.lerp(-sums["nll"].to(baseline) / max(1, counts["tokens"]), 0.1)
        baseline.copy_(torch.where(moved.isfinite(), moved, baseline))
