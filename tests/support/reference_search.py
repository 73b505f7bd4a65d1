"""Beam search as one would write it on a blackboard: one sentence, lists of hypotheses, the whole prefix read again.

It is slow, and shares with the engine only the model's pass over given targets and the formulas of the penalties.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nmtkit.data.batches.batch import ABSENT, Batch
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.decoding.beam_search import DIVERSITY_STRENGTH
from nmtkit.decoding.limits import max_lengths, min_lengths
from nmtkit.decoding.scorers import COVERAGE_PENALTIES, LENGTH_PENALTIES, coverage_score
from nmtkit.decoding.settings import BeamConfig, SamplingConfig, SearchConfig
from nmtkit.models.abilities import as_copying
from nmtkit.models.base import Decoder, ModelOutput
from nmtkit.models.output import log_probabilities
from tests.support.step_by_step import Told

Read = Callable[[Sequence[Sequence[int]]], Batch]
"""The sentence as a batch, once beside each of these targets; EOS follows them."""


@dataclass(frozen=True)
class PlainHypothesis:
    """A hypothesis."""

    tokens: tuple[int, ...]
    """EOS among them, if it has ended."""
    log_probs: tuple[float, ...]
    """One for each."""
    score: float = 0.0
    penalty: float = 0.0
    """What it is ranked by beside its log-probability."""
    lowered: float = 0.0
    """What its group keeps it by beside that."""

    @property
    def log_prob(self) -> float:
        return math.fsum(self.log_probs)


Candidate = tuple[float, int, int, int, PlainHypothesis]
"""Its cost, the number of its parent, its token and its bank; the best come first."""


@dataclass(frozen=True)
class Request:
    """What is asked of the translations of one sentence."""

    prefix: Sequence[int] = ()
    required: Sequence[Sequence[int]] = ()
    refused: Sequence[Sequence[int]] = ()
    in_order: bool = False
    starts: Collection[int] = field(default_factory=set)
    """Tokens that begin a word."""

    def standing(self, tokens: Sequence[int]) -> list[int | None]:
        """How many tokens of each required term stand last; None where it is met, or must wait for another."""
        begin, counts, is_open = 0, [], True
        for term in self.required:
            size = len(term)
            ends = [
                end
                for end in range(begin + size, len(tokens))
                if list(tokens[end - size : end]) == list(term)
                and (tokens[end] == EOS or tokens[end] in self.starts)
            ]
            if not is_open or ends:
                counts.append(None)
                begin = min(ends, default=begin) if self.in_order else 0
            else:
                behind = list(tokens[begin:])
                counts.append(
                    max(n for n in range(size + 1) if behind[len(behind) - n :] == list(term[:n]))
                )
                is_open = not self.in_order
        return counts

    def bank(self, tokens: Sequence[int]) -> int:
        """How many tokens of required terms stand in these, the one behind each counted."""
        met, longest = 0, 0
        for term, count in zip(self.required, self.standing(tokens), strict=True):
            met += len(term) + 1 if count is None else 0
            longest = max(longest, count or 0)
            if count is not None and self.in_order:
                break
        return met + longest

    def following(self, tokens: Sequence[int]) -> set[int]:
        """The next token of each required term."""
        counts = zip(self.required, self.standing(tokens), strict=True)
        return {term[count] for term, count in counts if count is not None and count < len(term)}

    def is_enough(self, tokens: Sequence[int]) -> bool:
        """Whether the sentence may end behind them."""
        return self.bank([*tokens, EOS]) == sum(len(term) + 1 for term in self.required)


NO_REQUEST = Request()


def allowed(
    log_probs: list[float],
    tokens: Sequence[int],
    config: SearchConfig,
    least: int,
    request: Request = NO_REQUEST,
    prompt: Sequence[int] = (),
) -> list[float]:
    """The log-probabilities of what may follow these tokens behind a prompt."""
    if len(tokens) < len(request.prefix):
        wanted = request.prefix[len(tokens)]
        only = [-math.inf] * len(log_probs)
        only[wanted] = possible(log_probs[wanted])
        return only
    forbidden = {PAD, BOS}
    if config.forbid_unknown:
        forbidden.add(UNK)
    if len(tokens) < least:
        forbidden.add(EOS)
    size = config.no_repeat_ngram
    if size:
        whole = (*prompt, *tokens)
        grams = {tuple(whole[start : start + size]) for start in range(len(whole) - size + 1)}
        seen = grams
        before = tuple(whole[max(0, len(whole) - size + 1) :]) if size > 1 else ()
        forbidden |= {token for token in range(len(log_probs)) if (*before, token) in seen}
    for term in request.refused:
        if tuple(tokens[len(tokens) - len(term) + 1 :]) == tuple(term[:-1]) or len(term) == 1:
            forbidden.add(term[-1])
    left = [-math.inf if token in forbidden else value for token, value in enumerate(log_probs)]
    if not request.is_enough(tokens):
        left[EOS] = -math.inf
    if max(left) == -math.inf:
        left[EOS] = possible(log_probs[EOS])
    return left


def possible(log_prob: float) -> float:
    """What is demanded has a probability above zero."""
    return log_prob if log_prob > -math.inf else math.log(torch.finfo(torch.float64).tiny)


def more_weight(
    log_prob: float,
    tokens: Sequence[int],
    token: int,
    config: SearchConfig,
    prompt: Sequence[int] = (),
) -> float:
    """How much more than its own log-probability a token weighs."""
    return (config.repetition_penalty if token in (*prompt, *tokens) else 1.0) * log_prob - log_prob


def by_turns(candidates: list[Candidate], size: int) -> list[PlainHypothesis]:
    """The best of each bank, the highest bank first; then the second of each, and so on: `size` of each at most."""
    turns: dict[int, int] = {}
    keyed = []
    for *_, bank, one in candidates:
        turns[bank] = turns.get(bank, -1) + 1
        keyed.append((turns[bank], -bank, one))
    return [one for turn, _, one in sorted(keyed, key=lambda each: each[:2]) if turn < size]


def looked_at(
    candidates: list[Candidate], beam_size: int, request: Request, beam: list[PlainHypothesis]
) -> list[Candidate]:
    """For each hypothesis the best that begins a word, and the next tokens of its terms; and the best of all others."""
    if not request.required:
        return candidates[: 2 * beam_size]
    kept = []
    for number, one in enumerate(beam):
        own = [each for each in candidates if each[1] == number]
        starting = [each[2] for each in own if each[2] in request.starts][:1]
        kept += [each for each in own if each[2] in {*starting, *request.following(one.tokens)}]
    others = [each for each in candidates if each not in kept]
    return sorted([*kept, *others[: 2 * beam_size]], key=lambda each: each[:3])


class Sentence:
    """What a model says of the prefixes of one sentence; of each it is asked once, however many searches need it."""

    def __init__(self, model: Decoder, read: Read, prompt: Sequence[int] = ()) -> None:
        self.model, self.read, self.prompt = model, read, tuple(prompt)
        self.listed: Tensor | None = None
        self.words = model.sizes["tgt"]
        self.empty = read([[]])
        self.memory = model.encode(self.empty)
        self._passes: dict[tuple[int, ...], tuple[ModelOutput, Tensor]] = {}

    def among(self, listed: Tensor) -> "Sentence":
        """The same sentence, where only these words `(V,)`, bool, may follow; the model's passes are shared."""
        other = copy(self)
        other.listed = listed
        return other

    def go_on(self, hypotheses: Iterable[tuple[int, ...]]) -> None:
        """Reads equally long hypotheses beside each other, which is all that they share, those that are not known."""
        new = [tokens for tokens in dict.fromkeys(hypotheses) if tokens not in self._passes]
        if not new:
            return
        memory = self.memory.select(torch.zeros(len(new), dtype=torch.long))
        batch = self.read([(*self.prompt, *tokens) for tokens in new])
        whole = self.model.unroll(batch, memory, self.model.has_attention)
        readout = whole.mapped(lambda steps: steps[:, len(self.prompt) :])
        logits = self.model.logits(readout, memory)
        for row, tokens in enumerate(new):
            own = torch.tensor([row])
            self._passes[tokens] = readout.mapped(lambda steps, own=own: steps[own]), logits[own]

    def after(self, tokens: tuple[int, ...]) -> Told:
        """Of a whole pass over the prompt and these tokens as a given target: of the steps behind the prompt."""
        self.go_on([tokens])
        readout, logits = self._passes[tokens]
        if self.listed is not None:
            logits = logits.masked_fill(~self.listed, -math.inf)
        log_probs = log_probabilities(logits)
        if readout.copy_gate is not None:
            copying = as_copying(self.model)
            assert copying is not None
            log_probs = copying.copied(log_probs, readout, self.memory)
        return Told(log_probs, readout.attention)


class EnsembleSentence:
    """What several models say of the prefixes of one sentence: the mean of their probabilities, or of the logarithms.

    Weights sum to one; a mean `of_logs` is made a distribution again.
    """

    def __init__(
        self, members: Sequence[Sentence], weights: Sequence[float], of_logs: bool = False
    ) -> None:
        self.members, self.weights, self.of_logs = members, weights, of_logs
        self.empty, self.words, self.prompt = members[0].empty, members[0].words, members[0].prompt

    def go_on(self, hypotheses: Iterable[tuple[int, ...]]) -> None:
        """Reads equally long hypotheses beside each other."""
        several = list(hypotheses)
        for one in self.members:
            one.go_on(several)

    def after(self, tokens: tuple[int, ...]) -> Told:
        """Of whole passes over these tokens; attention is the mean of those that have any."""
        outputs = [one.after(tokens) for one in self.members]
        size = max(one.log_probs.shape[2] for one in outputs)
        sums = torch.zeros(1, len(tokens) + 1, size, dtype=torch.float64)
        for one, weight in zip(outputs, self.weights, strict=True):
            whole = torch.full_like(sums, -math.inf)
            whole[:, :, : one.log_probs.shape[2]] = one.log_probs
            sums += weight * (whole if self.of_logs else whole.exp())
        pairs = zip(outputs, self.weights, strict=True)
        looks = [(one.attention, weight) for one, weight in pairs if one.attention is not None]
        total = sum(weight for _, weight in looks)
        mean = sum(attention * (weight / total) for attention, weight in looks) if looks else None
        return Told(sums.log_softmax(2) if self.of_logs else sums.log(), mean)


class Steps:
    """How the hypotheses of one sentence may go on, and what they are ranked by."""

    def __init__(
        self, sentence: Sentence | EnsembleSentence, config: SearchConfig, request: Request
    ) -> None:
        lengths = sentence.empty.lengths
        if sentence.empty.inputs is not ABSENT:
            self.words = sentence.empty.inputs.mask[0].clone()
            if sentence.empty.reads_text:
                self.words[int(lengths) - 1] = False  # EOS is not to be covered
        self.sentence, self.config, self.request = sentence, config, request
        required = sum(len(term) + 1 for term in request.required)
        required += sum(token > PAD for token in request.prefix)
        self.limit = int(max_lengths(config, lengths, torch.tensor([required])))
        self.least = int(min_lengths(config, lengths))

    def divisor(self, length: int) -> float:
        """What the log-probability of a hypothesis of so many tokens is divided by."""
        penalty = LENGTH_PENALTIES.get(self.config.length_penalty)(self.config.alpha)
        return penalty.divisors(torch.tensor(length)).item()

    def after(self, one: PlainHypothesis) -> list[tuple[float, PlainHypothesis]]:
        """Every word that may follow: what it would be ranked by in this step, and the hypothesis."""
        config, position, divisor = self.config, len(one.tokens), self.divisor(len(one.tokens) + 1)
        output = self.sentence.after(one.tokens)
        cost = 0.0
        if config.coverage_penalty:
            coverage = output.attention[0].sum(0)
            penalty = COVERAGE_PENALTIES.get(config.coverage_kind)(config.coverage_penalty)
            cost = float(coverage_score(penalty, coverage, self.words))
        in_every_step = cost * divisor if config.coverage_kind == "summary" else 0.0
        following = []
        prompt, own = self.sentence.prompt, output.log_probs[0, position].tolist()
        values = allowed(own, one.tokens, config, self.least, self.request, prompt)
        is_forced = config.effective_at_limit == "end" and position + 1 == self.limit
        if is_forced:
            values = [0.0 if token == EOS else -math.inf for token in range(len(values))]
        for token, value in enumerate(values):
            if value == -math.inf:
                continue
            more = 0.0 if is_forced else more_weight(value, one.tokens, token, config, prompt)
            penalty = one.penalty + more
            log_probs = (*one.log_probs, value)
            ranks = math.fsum(log_probs) + penalty
            score = ranks / divisor + cost
            following.append(
                (
                    ranks + in_every_step,
                    PlainHypothesis((*one.tokens, token), log_probs, score, penalty),
                )
            )
        return following


def ranked(hypotheses: Collection[PlainHypothesis]) -> list[PlainHypothesis]:
    """The best first."""
    return sorted(hypotheses, key=lambda one: -one.score)


@torch.no_grad()
def search(
    sentence: Sentence | EnsembleSentence,
    config: BeamConfig,
    n_best: int,
    request: Request = NO_REQUEST,
) -> list[PlainHypothesis]:
    """The best translations of one sentence, those that ended first."""
    steps, groups = Steps(sentence, config, request), config.diversity_groups
    size = config.beam_size // groups
    beams: list[list[PlainHypothesis]] = [[PlainHypothesis((), ())] for _ in range(groups)]
    ended: list[list[PlainHypothesis]] = [[] for _ in range(groups)]
    stop = "first_k" if config.beam_size == 1 and config.stop != "exact" else config.stop
    for length in range(1, steps.limit + 1):
        taken: list[int] = []
        last: list[PlainHypothesis] = []
        first: list[PlainHypothesis] = []
        sentence.go_on(one.tokens for beam in beams for one in beam)
        for beam, own in zip(beams, ended, strict=True):
            candidates = []
            for number, one in enumerate(beam):
                for rank, longer in steps.after(one):
                    token = longer.tokens[-1]
                    lowered = one.lowered - DIVERSITY_STRENGTH * taken.count(token)
                    longer = replace(longer, lowered=lowered)
                    candidates.append(
                        (-rank - lowered, number, token, request.bank(longer.tokens), longer)
                    )
            if config.at_limit == "end" and length == steps.limit:
                met = [each for each in candidates if request.is_enough(each[-1].tokens[:-1])]
                candidates = met or candidates
            candidates.sort(key=lambda each: each[:3])
            candidates = looked_at(candidates, size, request, beam)
            best = by_turns(candidates, size)
            ends = [one for one in best if one.tokens[-1] == EOS and EOS not in one.tokens[:-1]]
            own += ends
            beam[:] = by_turns([each for each in candidates if each[2] != EOS], size)[:size]
            first += best
            taken += [one.tokens[-1] for one in beam]
            last += [*ends, *beam]
        live, whole = (
            [one for beam in beams for one in beam],
            ranked([one for own in ended for one in own]),
        )
        needed, counted = (
            (config.beam_size, length) if stop == "huggingface" else (n_best, steps.limit)
        )
        if stop in ("exact", "huggingface") and live and len(whole) >= needed:
            bound = max(one.log_prob + one.penalty for one in live) / steps.divisor(counted)
            if whole[needed - 1].score >= bound:
                break
        if stop == "first_k":
            for beam, own in zip(beams, ended, strict=True):
                if len(own) >= size:
                    beam.clear()
        if not any(beams):
            break
    cut = [one for one in ranked(live) if len(one.tokens) == steps.limit and EOS not in one.tokens]
    if any(one.tokens[-1] == EOS or request.is_enough(one.tokens) for one in last):
        cut = [one for one in cut if request.is_enough(one.tokens)]
    if config.at_limit != "behind":
        return ranked([*whole, *(one for one in cut if one in first)])[:n_best]
    return [*whole, *cut][:n_best]


def hashed(key: int, counter: int) -> int:
    """SplitMix64 in whole numbers without sign."""
    mixed = (key + (counter + 1) * 0x9E3779B97F4A7C15) % 2**64
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
    return mixed ^ (mixed >> 31)


def noise(key: int, counter: int) -> float:
    """A number from the Gumbel distribution."""
    return -math.log(-math.log(((hashed(key, counter) >> 12) + 0.5) / 2**52))


def drawn(log_probs: dict[int, float], key: int) -> int:
    """A word: first the block of 64 that it is in, then itself."""
    blocks: dict[int, list[int]] = {}
    for word in log_probs:
        blocks.setdefault(word // 64, []).append(word)
    sums = {
        block: math.log(math.fsum(math.exp(log_probs[word]) for word in own))
        for block, own in blocks.items()
    }
    block = max(sums, key=lambda one: sums[one] + noise(key, one))
    return max(blocks[block], key=lambda word: log_probs[word] + noise(key, 2**32 + word))


def left(values: dict[int, float], config: SamplingConfig) -> dict[int, float]:
    """The log-probabilities, less that of the best, of the words that temperature, top-k, top-p and epsilon leave."""
    best = max(values.values())
    values = {
        word: (value - best) / config.temperature
        for word, value in values.items()
        if value > -math.inf
    }
    order = sorted(values.values(), reverse=True)
    least = order[min(config.top_k or len(order), len(order)) - 1]
    values = {word: value for word, value in values.items() if value >= least}
    total = math.fsum(map(math.exp, values.values()))
    order, mass = sorted(values.values(), reverse=True), 0.0
    for least in order:
        mass += math.exp(least) / total
        if mass >= config.top_p:
            break
    values = {word: value for word, value in values.items() if value >= least}
    least = math.log(math.fsum(map(math.exp, values.values()))) + math.log(config.epsilon or 1e-300)
    return {word: value for word, value in values.items() if value >= min(least, order[0])}


@torch.no_grad()
def sampled(
    sentence: Sentence | EnsembleSentence,
    config: SamplingConfig,
    line: int,
    request: Request = NO_REQUEST,
) -> list[PlainHypothesis]:
    """The samples of the sentence of this number; words that only its source has are behind those of the vocabulary."""
    steps, words = Steps(sentence, config, request), sentence.words
    source = sentence.empty.inputs.copy.extended[0].tolist() if sentence.empty.reads_text else []
    ended, cut = [], []
    for sample in range(config.samples):
        one = PlainHypothesis((), ())
        for position in range(steps.limit):
            key = hashed(hashed(hashed(config.seed, line), sample), len(sentence.prompt) + position)
            places = {}  # a word that only the source has counts as its first place there
            for _, longer in steps.after(one):
                token = longer.tokens[-1]
                places[token if token < words else words + source.index(token)] = longer
            weighed = {
                place: longer.log_probs[-1] + longer.penalty - one.penalty
                for place, longer in places.items()
            }
            one = places[drawn(left(weighed, config), key)]
            if one.tokens[-1] == EOS:
                break
        (ended if one.tokens[-1] == EOS else cut).append(one)
    return [*ranked(ended), *ranked(cut)]
