"""Beam search as one would write it on a blackboard: one sentence, lists of hypotheses, the whole prefix read again.

It is slow, and shares with the engine only the model's pass over given targets and the formulas of the penalties.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.data.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.models.base import Output, Seq2Seq, with_copies
from nmtkit.models.output import log_probabilities
from nmtkit.search.rules import SearchConfig, least_lengths, length_limits
from nmtkit.search.scoring import coverage_penalty, length_penalty

Read = Callable[[Sequence[int]], Batch]
"""The sentence as a batch, with these tokens as its target; EOS follows them."""


@dataclass(frozen=True)
class Plain:
    """A hypothesis."""

    tokens: tuple[int, ...]
    """EOS among them, if it has ended."""
    log_probs: tuple[float, ...]
    """One for each."""
    score: float = 0.0
    penalty: float = 0.0
    """What it is ranked by beside its log-probability."""

    @property
    def log_prob(self) -> float:
        return math.fsum(self.log_probs)


def allowed(
    log_probs: list[float], tokens: Sequence[int], config: SearchConfig, least: int, may_repeat: Collection[int] = ()
) -> list[float]:
    """The log-probabilities of what may follow these tokens."""
    forbidden = {PAD, BOS}
    if config.forbid_unknown:
        forbidden.add(UNK)
    if len(tokens) < least:
        forbidden.add(EOS)
    size = config.no_repeat_ngram
    if size:
        grams = {tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)}
        seen = {gram for gram in grams if not set(gram) & set(may_repeat)}
        before = tuple(tokens[len(tokens) - size + 1 :]) if size > 1 else ()
        forbidden |= {token for token in range(len(log_probs)) if (*before, token) in seen}
    left = [-math.inf if token in forbidden else value for token, value in enumerate(log_probs)]
    if size and max(left) == -math.inf:
        left[EOS] = log_probs[EOS]
    return left


class Sentence:
    """What a model says of the prefixes of one sentence; of each it is asked once, however many searches need it.

    Args:
        model: any.
        read: the sentence.
        listed: the only words that may follow, `(V,)`, bool; None: all.
    """

    def __init__(self, model: Seq2Seq, read: Read, listed: Tensor | None = None) -> None:
        self.model, self.read, self.listed = model, read, listed
        self.empty = read([])
        self.memory = model.encode(self.empty)
        self._said: dict[tuple[int, ...], Output] = {}

    def after(self, tokens: tuple[int, ...]) -> Output:
        """Of a whole pass over these tokens as a given target."""
        if tokens not in self._said:
            self._said[tokens] = self._pass(self.read(tokens))
        return self._said[tokens]

    def _pass(self, batch: Batch) -> Output:
        readout = self.model.unroll(batch, self.memory, self.model.has_attention)
        logits = self.model.logits(readout, self.memory)
        if self.listed is not None:
            logits = logits.masked_fill(~self.listed, -math.inf)
        log_probs = log_probabilities(logits)
        copied = log_probs if readout.copy_gate is None else with_copies(log_probs, readout, self.memory)
        return Output(copied, readout.attention)


@torch.no_grad()
def search(sentence: Sentence, config: SearchConfig, n_best: int, may_repeat: Collection[int] = ()) -> list[Plain]:
    """The best translations of one sentence, those that ended first."""
    lengths, words = sentence.empty.src_lengths, sentence.empty.src_mask[0].clone()
    words[int(lengths) - 1] = False  # EOS is not to be covered
    limit, least = int(length_limits(config, lengths, None)), int(least_lengths(config, lengths))
    divisors = length_penalty(config.length_penalty, torch.arange(1, limit + 1), config.alpha).tolist()
    beam, ended = [Plain((), ())], []
    for position in range(limit):
        candidates = []
        for number, one in enumerate(beam):
            output = sentence.after(one.tokens)
            cost = 0.0
            if config.coverage_penalty:
                coverage = output.attention[0].sum(0)
                cost = float(coverage_penalty(config.coverage_kind, coverage, words, config.coverage_penalty))
            following = output.log_probs[0, position].tolist()
            in_every_step = cost * divisors[position] if config.coverage_kind == "summary" else 0.0
            for token, value in enumerate(allowed(following, one.tokens, config, least, may_repeat)):
                again = token in one.tokens and value > -math.inf
                penalty = one.penalty + ((config.repetition_penalty - 1) * value if again else 0.0)
                log_probs = (*one.log_probs, value)
                ranked = math.fsum(log_probs) + penalty
                score = ranked / divisors[position] + cost + config.word_reward * (position + 1)
                found = Plain((*one.tokens, token), log_probs, score, penalty)
                candidates.append((-ranked - in_every_step, number, token, found))
        candidates.sort(key=lambda each: each[:3])
        best = [each[3] for each in candidates[: 2 * config.beam_size] if each[3].log_prob > -math.inf]
        ended += [one for one in best[: config.beam_size] if one.tokens[-1] == EOS]
        beam = [one for one in best if one.tokens[-1] != EOS][: config.beam_size]
        ended.sort(key=lambda one: -one.score)
        if not beam or (config.stop == "first_k" and len(ended) >= config.patience * config.beam_size):
            break
        bound = max(one.log_prob + one.penalty for one in beam) / divisors[-1] + config.word_reward * limit
        if config.stop == "exact" and len(ended) >= n_best and ended[n_best - 1].score >= bound:
            break
    cut = sorted(beam, key=lambda one: -one.score) if position == limit - 1 else []
    return [*ended, *cut][:n_best]
