"""Sampling of translations: the loop of beam search, with tokens drawn in place of the best ones."""

import torch
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.data.vocabulary import EOS
from nmtkit.models.base import Seq2Seq
from nmtkit.search.choose import Choice
from nmtkit.search.engine import beam_search
from nmtkit.search.rules import INFINITY, RuleSettings, SearchConfig
from nmtkit.search.trace import Hypothesis
from nmtkit.settings import Field


class SamplingConfig(RuleSettings):
    """How translations are drawn."""

    samples: int = Field(default=1, ge=1, le=100_000)
    """Independent samples for each sentence."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Log-probabilities are divided by this: below 1 the likely tokens become more likely."""
    top_k: int = Field(default=0, ge=0)
    """Only this many of the most likely tokens can be drawn; 0: all."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Only the fewest most likely tokens whose probabilities sum to this can be drawn; 1: all. Holtzman et al. 2020."""


def sample_translations(
    model: Seq2Seq,
    batch: Batch,
    config: SamplingConfig,
    generator: torch.Generator,
    need_attention: bool = False,
    prefix: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Draws translations of every sentence of the batch, token by token.

    Args:
        model: any model, in eval mode; it is not changed.
        batch: B sentences, on the model's device; targets are not read.
        config: how to draw.
        generator: the source of randomness, on the model's device.
        need_attention: whether to return attention as well.
        prefix: ids that the translations must begin with `(B,P)`, padded on the right with PAD.

    Returns:
        For each sentence `config.samples` hypotheses: those that ended, then those cut at the length limit, each kind
        ordered by score, which is the model's own log-probability without temperature, top-k and top-p.
    """
    rules = {name: getattr(config, name) for name in RuleSettings.model_fields}
    beams = SearchConfig.model_validate({**rules, "length_penalty": "none"})
    beams = beams.model_copy(update={"beam_size": config.samples})  # samples may be more than any beam

    def choose(log_probs: Tensor, scores: Tensor, n_samples: int) -> Choice:
        return choose_drawn(log_probs, scores, n_samples, config, generator)

    return beam_search(model, batch, beams, config.samples, need_attention, prefix, choose)


def choose_drawn(
    log_probs: Tensor, scores: Tensor, n_samples: int, config: SamplingConfig, generator: torch.Generator
) -> Choice:
    """The choice of sampling: one continuation for each live hypothesis; in the first step, all from the one there is.

    Args:
        log_probs: `(N,X)`.
        scores: `(B,W)`, minus infinity for samples that have ended.
        n_samples: K.
        config: how to draw.
        generator: on the device of `log_probs`.
    """
    n_sentences, width = scores.shape
    weights = keep_top_p(keep_top_k(log_probs / config.temperature, config.top_k), config.top_p).softmax(1)
    drawn = draw_from(weights, n_samples // width, generator)  # (N,K/W)
    tokens = drawn.view(n_sentences, n_samples)
    parents = torch.arange(width, device=scores.device).repeat_interleave(n_samples // width).expand(n_sentences, -1)
    scores = scores.gather(1, parents) + log_probs.gather(1, drawn).view(n_sentences, n_samples)
    is_end = tokens == EOS
    kept = torch.arange(n_samples, device=scores.device).expand(n_sentences, -1)
    ended = is_end & (scores > -INFINITY)
    return Choice(tokens, parents, scores, ended, kept, scores.masked_fill(is_end, -INFINITY))


def draw_from(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draws `count` columns of each row `(N,X)`, with replacement, as probable as their weights: `(N,count)`, int64.

    A uniform number is looked up in the running sums of the weights: the column whose share it falls into. In float64,
    as sums over a large vocabulary need. Unlike `torch.multinomial` it never waits for the device.

    Args:
        weights: not negative; each row has one above zero.
        count: how many.
        generator: on the device of the weights.
    """
    sums = weights.cumsum(1, dtype=torch.float64)  # (N,X)
    uniform = torch.rand(len(weights), count, dtype=torch.float64, device=weights.device, generator=generator)  # < 1
    return torch.searchsorted(sums, uniform * sums[:, -1:], right=True)


def keep_top_k(log_probs: Tensor, top_k: int) -> Tensor:
    """Minus infinity for all but the `top_k` best of each row `(N,X)`; ties with the last of them stay; 0 keeps all."""
    if top_k == 0 or top_k >= log_probs.shape[1]:
        return log_probs
    least = log_probs.topk(top_k, 1)[0][:, -1:]
    return log_probs.masked_fill(log_probs < least, -INFINITY)


def keep_top_p(log_probs: Tensor, top_p: float) -> Tensor:
    """Minus infinity for all but the fewest best of each row `(N,X)` whose probabilities, together, reach `top_p`.

    Probabilities are those of the row after normalisation; the best token always stays. 1 keeps all.
    """
    if top_p == 1.0:
        return log_probs
    ordered, order = log_probs.softmax(1).sort(dim=1, descending=True, stable=True)
    enough = ordered.cumsum(1) - ordered >= top_p  # the better ones alone reach it
    return log_probs.masked_fill(torch.empty_like(enough).scatter_(1, order, enough), -INFINITY)
