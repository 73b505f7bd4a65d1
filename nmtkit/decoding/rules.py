"""How a search is set, what may follow a prefix, and how a hypothesis is scored.

A rule sets log-probabilities `(N,X)` to minus infinity, in place. Those of what stays allowed are not renormalised: the
score of a hypothesis is the model's own. Beam search divides the summed log-probability by `length_penalty` and adds
`coverage_penalty`.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import Beam, Field, Length, Settings, model_validator
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK

INFINITY = float("inf")
MIN_ATTENTION = 2.0**-24
"""Attention is clamped to at least this: the smallest number of the narrowest type that a model computes in."""
LengthPenalty = Literal["none", "average", "gnmt"]
CoverageKind = Literal["gnmt", "summary"]
BEAM_PLACE_RULES = ("opennmt-py", "joeynmt")
"""Stop rules that count only the K best candidates of a step, ended ones included: OpenNMT-py then drops an ended one,
Joey NMT keeps it in the beam."""
Stop = Literal["first_k", "exact", "huggingface", "opennmt-py", "joeynmt"]


class SearchConfig(Settings):
    """The settings of a search."""

    min_length: Length = Field(default=0, ge=0)
    """The fewest tokens of a hypothesis, EOS not counted. Until then EOS is forbidden; the program of See et al. throws
    away what ends too early."""
    min_length_ratio: float = Field(default=0.0, ge=0.0)
    """At least this many tokens for each source token, EOS not counted. The larger of this and min_length holds, as far
    as max_length allows."""
    max_length: Length = Field(default=256, ge=1)
    """The most tokens of a hypothesis, EOS counted; a model's learned positions limit it, too. at_limit says what
    becomes of one that reaches it."""
    max_length_ratio: float = Field(default=2.0, ge=0.0)
    """At most this many tokens for each source token, plus max_length_offset. The smaller of this and max_length holds;
    with 0, max_length alone."""
    max_length_offset: Length = Field(default=30, ge=0)
    """Tokens that max_length_ratio allows on top."""
    no_repeat_ngram: int = Field(default=0, ge=0)
    """No hypothesis repeats an n-gram of this many tokens, nor one of its prompt. 3 is trigram blocking; 0 is off."""
    no_repeat_except: str = ""
    """Words that may repeat, separated by spaces. An n-gram with one of them is never blocked."""
    repetition_penalty: float = Field(default=1.0, ge=1.0, le=100.0)
    """The log-probability of a token that the hypothesis, or its prompt, already has is multiplied by this for the
    ranking. 1 is off."""
    forbid_unknown: bool = False
    """Never write the unknown word."""
    brackets: bool = False
    """Write well-formed trees in linear form, with one placeholder for each word of the source. The length limit is
    raised where a tree needs more. Always so for the task parsing."""

    beam_size: Beam = Field(default=5, ge=1)
    """Hypotheses kept for each sentence; 1 is greedy search."""
    length_penalty: LengthPenalty = "average"
    """The log-probability is divided by: none 1, average |Y|^alpha, gnmt ((5+|Y|)/6)^alpha. |Y| counts EOS."""
    alpha: float = Field(default=1.0, ge=0.0)
    """Strength of the length penalty; 0 is none."""
    coverage_penalty: float = Field(default=0.0, ge=0.0, le=1e6)
    """Strength (beta) of the coverage penalty. The model needs attention."""
    coverage_kind: CoverageKind = "gnmt"
    """gnmt: source words with little attention cost, once the hypothesis has ended. summary: source words with more
    than one word's attention cost, in every step."""
    word_reward: float = Field(default=0.0, ge=0.0, le=1e3)
    """Reward for every token, EOS counted, added to the score after the length penalty. It is most useful with length
    penalty none."""
    stop: Stop = "first_k"
    """When a sentence is done. first_k: with beam_size ended hypotheses. exact: when no other hypothesis can become
    better (slow). The others search as these toolkits do. huggingface: with beam_size ended hypotheses, once no other
    has a better score at its present length. opennmt-py: when the best hypothesis of a step has ended; one that ends
    leaves its place in the beam, |Y| counts BOS too, and max_length_ratio no EOS of the source. joeynmt: when each
    place in the beam has held an end; one that ends keeps its place."""
    at_limit: Literal["behind", "compete", "end"] = "behind"
    """Beam search: what becomes of hypotheses that reach max_length. behind: they are returned unfinished, behind all
    that ended. compete: they are returned unfinished, ranked with those that ended. end: their last token is EOS, with
    a probability of 1 (forced_eos_token_id of Hugging Face)."""
    patience: float = Field(default=1.0, ge=0.01, le=100.0)
    """With first_k, stop a sentence with patience times beam_size ended hypotheses."""
    prefix_bias: float = Field(default=1.0, ge=0.0, le=1.0)
    """How strongly a hypothesis keeps to a prefix that is given, as long as it has: the next token of it is ranked by
    (1 - beta) p + beta, all others by (1 - beta) p. 1 forces the prefix, 0 is none."""
    certain_prefix: bool = False
    """A forced prefix has a probability of 1 in the score (forced_bos_token_id of Hugging Face)."""
    diversity_groups: Beam = Field(default=1, ge=1)
    """Diverse beam search: number of groups in the beam. Each avoids the words of the groups before it."""
    diversity_strength: float = Field(default=0.5, ge=0.0, le=1e3)
    """Diverse beam search: cost of a word for each hypothesis of an earlier group that took it in the same step."""
    samples: Beam = Field(default=0, ge=0)
    """Sampling: number of translations to draw from the model's distribution for each sentence. 0 is beam search."""
    temperature: float = Field(default=1.0, ge=0.01, le=100.0)
    """Sampling: divisor of the log-probabilities. Below 1, likely words become likelier."""
    top_k: int = Field(default=0, ge=0)
    """Sampling: draw from the k likeliest words only. 0 is all."""
    top_p: float = Field(default=1.0, ge=0.001, le=1.0)
    """Sampling: draw from the fewest likeliest words whose probabilities reach this sum. 1 is all."""
    epsilon: float = Field(default=0.0, ge=0.0, le=1.0)
    """Sampling: draw words of at least this probability only. 0 is all."""
    seed: int = Field(default=1, ge=0)
    """Sampling: seed. Seed and line number decide what is drawn, whatever the batch."""
    mbr: Literal["none", "chrf", "bleu"] = "none"
    """Minimum Bayes risk: choose the sample, or the hypothesis of the beam, with the best expected sentence chrF or
    BLEU against all others. This is then its score."""

    @property
    def hypotheses(self) -> int:
        """Hypotheses of each sentence at a time: `samples` or `beam_size`."""
        return self.samples or self.beam_size

    @property
    def chooses_afterwards(self) -> bool:
        """Whether the best are chosen among all hypotheses: by minimum Bayes risk, or of diverse groups."""
        return self.mbr != "none" or self.diversity_groups > 1

    @property
    def rule(self) -> Stop:
        """The effective `stop`: a greedy search ends with its first ended hypothesis in all of these toolkits."""
        return self.stop if self.hypotheses > 1 or self.stop == "exact" else "first_k"

    def divisors(self, lengths: Tensor) -> Tensor:
        """The length penalty for lengths in tokens, EOS included; float64."""
        return length_penalty(self.length_penalty, lengths + (self.stop == "opennmt-py"), self.alpha)

    @model_validator(mode="after")
    def _settings_fit_together(self) -> "SearchConfig":
        if self.min_length >= self.max_length:
            raise ValueError(
                f"min_length {self.min_length} leaves no room below max_length {self.max_length} (which counts the end "
                "of the sentence): lower min_length or raise max_length"
            )
        if self.beam_size % self.diversity_groups:
            raise ValueError(
                f"diversity_groups: {self.diversity_groups} groups of one size do not make a beam of {self.beam_size}; "
                "set beam_size to a multiple"
            )
        if self.brackets and (self.min_length or self.min_length_ratio or self.no_repeat_ngram):
            raise ValueError(
                "brackets: the words of the source decide how long a tree is and what it repeats: leave min_length, "
                "min_length_ratio and no_repeat_ngram out"
            )
        if self.diversity_groups > 1 and (self.samples or self.stop in BEAM_PLACE_RULES):
            raise ValueError(
                "diversity_groups: samples, and stop opennmt-py or joeynmt, have no groups; set diversity_groups to 1"
            )
        return self

    def reject_unused(self, given: Collection[str], reads_text: bool = True) -> None:
        """Raises a RecipeError for a key in `given` that has no effect with these settings, or in this model."""
        sampling = "sampling: give samples too, 1 for one translation of each line"
        beam = "beam search, and samples are drawn without: leave one of the two out"
        of_text = "models that read a text, and this one reads none: give min_length or max_length"
        first_k = f"stop first_k, and stop is {self.stop}: leave one of the two out"
        purposes = [
            (["temperature", "top_k", "top_p", "epsilon", "seed"], self.samples > 0, sampling),
            (["beam_size", "stop", "at_limit", "patience", "diversity_strength"], self.samples == 0, beam),
            (["diversity_strength"], self.diversity_groups > 1, "diverse beam search: give diversity_groups too"),
            (["patience"], self.stop == "first_k", first_k),
            (["no_repeat_except"], self.no_repeat_ngram > 0, "blocked n-grams: give no_repeat_ngram too"),
            (["alpha"], self.length_penalty != "none", "a length penalty, and there is none: give length_penalty too"),
            (["max_length_ratio", "max_length_offset", "min_length_ratio"], reads_text, of_text),
            (["max_length_offset"], self.max_length_ratio > 0, "a limit by the source: give max_length_ratio too"),
            (["coverage_kind"], self.coverage_penalty > 0, "a coverage penalty: give coverage_penalty too"),
        ]
        for keys, has_effect, purpose in purposes:
            unused = [key for key in keys if key in given and not has_effect]
            if unused:
                raise RecipeError(f"{unused[0]} is for {purpose}")

    def reject_constraints(self) -> None:
        """Raises a RecipeError if this search cannot keep to constraints."""
        if self.brackets:
            raise RecipeError("brackets: a tree has no words that could be given: leave terms and prefixes out")
        if self.samples or self.diversity_groups > 1 or self.stop in BEAM_PLACE_RULES:
            raise RecipeError("terms need one beam: leave out samples and diversity_groups, and take stop first_k")


def min_lengths(settings: SearchConfig, src_lengths: Tensor) -> Tensor:
    """The fewest tokens, EOS not counted, by source lengths, EOS included, `(B,)`; below `max_length`."""
    by_source = ((src_lengths.double() - 1) * settings.min_length_ratio).floor()
    # Clamped before it is converted: what is larger than any int64 would become negative.
    return by_source.clamp(max=settings.max_length).long().clamp(min=settings.min_length, max=settings.max_length - 1)


def max_lengths(
    settings: SearchConfig, src_lengths: Tensor, prefix: Tensor | None, room: Tensor | None = None
) -> Tensor:
    """The most tokens of a hypothesis, EOS included, by source lengths, EOS included: `(B,)`, at least 1.

    A forced prefix `(B,P)`, padded with PAD, is never cut, nor are the minimum length and the tokens of positive
    constraints `room` `(B,)`: they raise the limit where it leaves no room for them.
    """
    lengths = src_lengths - 1 if settings.stop == "opennmt-py" else src_lengths  # its sources have no EOS
    by_source = (lengths.float() * settings.max_length_ratio).floor().clamp(max=settings.max_length).long()
    by_source = by_source + (settings.max_length_offset if settings.max_length_ratio else settings.max_length)
    limits = by_source.maximum(min_lengths(settings, src_lengths) + 1).clamp(max=settings.max_length)
    least = torch.ones_like(limits) if prefix is None else 1 + (prefix > PAD).sum(1)  # NEW_WORD is negative
    return limits.maximum(least if room is None else least + room)


def apply_rules(
    log_probs: Tensor,
    settings: SearchConfig,
    written: Tensor | None,
    history: Tensor | None,
    wanted: Tensor | None,
    least: Tensor | None = None,
) -> Tensor:
    """Sets the log-probabilities `(N,X)` of forbidden tokens to minus infinity, in place, and returns them.

    Each hypothesis has so many tokens, `written` `(N,)`; they are its `history` `(N,t)`, negative behind them and for
    tokens that may repeat. `wanted` `(N,)` is the token forced upon it, PAD where it is free, and `least` `(N,)` the
    fewest tokens that it may have, see `min_lengths`. None: no rule asks for it.
    """
    forced = log_probs.gather(1, wanted[:, None]) if wanted is not None else None  # (N,1), before anything is forbidden
    repeats = settings.no_repeat_ngram and history is not None
    end = log_probs[:, EOS].clone() if repeats else None
    log_probs[:, PAD] = log_probs[:, BOS] = -INFINITY
    if settings.forbid_unknown:
        log_probs[:, UNK] = -INFINITY
    if least is not None and written is not None:
        log_probs[:, EOS].masked_fill_(least > written, -INFINITY)
    if end is not None and history is not None and written is not None:
        block_repeated_ngrams(log_probs, history, written, settings.no_repeat_ngram)
        allow_eos_if_stuck(log_probs, end)
    if wanted is not None and forced is not None:
        bound, index = (wanted != PAD)[:, None], wanted[:, None]  # (N,1)
        log_probs.masked_fill_(bound, -INFINITY)
        forced = torch.zeros_like(forced) if settings.certain_prefix else allow_if_possible(forced)
        log_probs.scatter_(1, index, torch.where(bound, forced, log_probs.gather(1, index)))
    return log_probs


def block_repeated_ngrams(log_probs: Tensor, history: Tensor, written: Tensor, size: int) -> None:
    """Forbids, in place, tokens that would complete an n-gram anew; arguments as of `apply_rules`."""
    if history.shape[1] < size:
        return
    grams = history.unfold(1, size, 1)  # (N,t-size+1,size)
    places = (written - size + 1)[:, None] + torch.arange(size - 1, device=history.device)  # of what stands last
    tail = history.gather(1, places.clamp(min=0))[:, None]  # (N,1,size-1): what the next token would complete
    ends = grams[:, :, -1]  # (N,t-size+1)
    again = (grams[:, :, :-1] == tail).all(2) & (grams >= 0).all(2) & (written >= size)[:, None]
    # Added, not assigned: a token that ends several n-grams stays forbidden if any of them matches.
    ban = torch.zeros_like(again, dtype=log_probs.dtype).masked_fill_(again, -INFINITY)
    log_probs.scatter_add_(1, ends.clamp(min=0), ban)


def apply_repetition_penalty(log_probs: Tensor, history: Tensor, penalty: float) -> Tensor:
    """Multiplies the log-probabilities `(N,X)`, never positive, of tokens in the history `(N,t)` by `penalty`.

    Keskar et al. 2019, "CTRL", section 4.1. The history is negative behind its last token. The result is a new tensor.
    """
    held = torch.zeros_like(log_probs, dtype=torch.bool)
    held.scatter_(1, history.clamp(min=PAD), history >= 0)  # PAD, which never follows, may be written in any order
    return torch.where(held, log_probs * penalty, log_probs)


def bias_to_prefix(log_probs: Tensor, wanted: Tensor, strength: float) -> Tensor:
    """Ranking log-probabilities `(N,X)`, a new tensor, where a prefix is preferred and not forced.

    Arivazhagan et al. 2020, "Re-translation versus Streaming for Simultaneous Translation", section 3.2: the
    distribution is mixed, by beta < 1, with one that has only `wanted` `(N,)`, the next token of the prefix. That is
    PAD where a hypothesis has none, or has not kept to the prefix. What is forbidden stays so.
    """
    bound, index = (wanted != PAD)[:, None], wanted[:, None]
    own = log_probs.gather(1, index)
    mixed = torch.logaddexp(own + math.log1p(-strength), torch.full_like(own, math.log(max(strength, 1e-300))))
    mixed = torch.where(own == -INFINITY, own, mixed)
    others = log_probs + math.log1p(-strength)
    return torch.where(bound, others.scatter(1, index, mixed), log_probs)


def allow_eos_if_stuck(log_probs: Tensor, end: Tensor) -> None:
    """Allows EOS again, with the model's own log-probability `end` `(N,)`, where every token is forbidden."""
    stuck = log_probs.amax(1) == -INFINITY
    log_probs[:, EOS] = torch.where(stuck, allow_if_possible(end), log_probs[:, EOS])


def allow_if_possible(log_probs: Tensor) -> Tensor:
    """The same where it is finite, logits too; a token that a rule demands needs a probability above zero."""
    return log_probs.masked_fill(log_probs == -INFINITY, math.log(torch.finfo(log_probs.dtype).tiny))


def length_penalty(kind: LengthPenalty, lengths: Tensor, alpha: float) -> Tensor:
    """Divides the log-probability of a hypothesis. It must not fall as the length grows: the `exact` stop relies on it.

    `none`: 1. `average`: |Y|^alpha. `gnmt`: ((5 + |Y|) / 6)^alpha, Wu et al. 2016, equation 14. |Y| are `lengths` in
    tokens, EOS included, of any shape; the result is float64.
    """
    lengths = lengths.double()
    if kind == "average":
        return lengths.pow(alpha)
    if kind == "gnmt":
        return ((5 + lengths) / 6).pow(alpha)
    assert kind == "none", kind
    return torch.ones_like(lengths)


def coverage_penalty(kind: CoverageKind, coverage: Tensor, mask: Tensor, beta: float) -> Tensor:
    """The cost, zero or less, of attention that is spread badly over the source.

    With c_i = sum_j a_ij, the attention of all target words j so far to source word i:

    - `gnmt`: beta * sum_i log(min(c_i, 1)), for words that got less than one word's worth: Wu et al. 2016, equation 14.
      A word without any attention costs as much as one with `MIN_ATTENTION`.
    - `summary`: -beta * sum_i (max(c_i, 1) - 1), for words that got more: Gehrmann, Deng and Rush 2018, "Bottom-Up
      Abstractive Summarization", section 5, where cp is this cost with the other sign.

    Takes c `(...,S)`, and the mask of the source words to be covered, without EOS. Returns `(...)`, finite, in float32
    or wider.
    """
    coverage = coverage.to(torch.promote_types(coverage.dtype, torch.float32))
    if kind == "summary":
        return -beta * (coverage.clamp(min=1.0) - 1.0).masked_fill(~mask, 0.0).sum(-1)
    return beta * coverage.clamp(min=MIN_ATTENTION, max=1.0).log().masked_fill(~mask, 0.0).sum(-1)


def source_words(mask: Tensor) -> Tensor:
    """The mask `(B,S)` of real tokens without the EOS behind them."""
    return mask & pad(mask[:, 1:], (0, 1))


def score_given(
    config: SearchConfig,
    ids: Sequence[int],
    log_probs: Tensor,
    attention: npt.NDArray[np.floating[Any]] | None,
    prompt: Sequence[int] = (),
) -> float:
    """The ranking score of a given hypothesis.

    Its tokens `ids`, behind a `prompt`, are extended ids, without EOS; `log_probs` `(T,)` have that of EOS, too, if it
    has ended. Attention is `(T,S)`, EOS of the source included; None where there is none.
    """
    summed = float(log_probs.sum())
    if config.repetition_penalty > 1:
        again = [place for place, token in enumerate(ids) if token in ids[:place] or token in prompt]
        summed += (config.repetition_penalty - 1) * float(log_probs[again].sum())
    score = summed / float(config.divisors(torch.tensor(len(log_probs))))
    if config.coverage_penalty and attention is not None:
        coverage = torch.from_numpy(attention).sum(0)[:-1]  # EOS is not to be covered
        score += float(coverage_penalty(config.coverage_kind, coverage, torch.tensor(True), config.coverage_penalty))
    return score + config.word_reward * len(log_probs)
