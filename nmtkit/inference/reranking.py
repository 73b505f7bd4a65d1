"""Noisy-channel reranking: Yee et al. 2019, "Simple and Effective Noisy Channel Modeling for NMT".

P(y|x) is proportional to P(x|y) P(y): a channel model, which translates back, says how well a candidate y explains the
source x, and a language model how good a text it is. Among the n best of a direct model the best has the highest

    1/t log P(y|x) + lambda/s (log P(x|y) + log P(y)),

t and s being the tokens of y and x. Here each of the two models has a lambda, tuned on a validation set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from nmtkit.core.settings import Field, Settings
from nmtkit.inference.result import Translation
from nmtkit.inference.translator import Translator
from nmtkit.metrics import METRICS, Options, score_all

GRID = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
"""The weights that tuning tries."""


class ChannelWeights(Settings):
    """What `rerank --tune` writes: the lambda of each model."""

    channel: float = Field(default=1.0, ge=0.0)
    lm: float = Field(default=1.0, ge=0.0)


@dataclass(frozen=True)
class Candidate:
    """A translation and its three terms, in nats a token: 1/t log P(y|x), 1/s log P(x|y) and 1/s log P(y)."""

    text: str
    direct: float
    channel: float = 0.0
    lm: float = 0.0
    finished: bool = True
    """False where the search reached its length limit before EOS."""

    def score(self, weights: ChannelWeights) -> float:
        """What it is ranked by."""
        return self.direct + weights.channel * self.channel + weights.lm * self.lm


def score_candidates(
    sources: Sequence[str], found: Sequence[Sequence[Translation]], channel: Translator, lm: Translator | None
) -> list[list[Candidate]]:
    """The candidates found for each source with their terms; an empty one counts only where there is no other."""
    kept = [[one for one in several if one.text.strip()] for several in found]
    texts = [one.text for several in kept for one in several]
    repeated = [source for source, several in zip(sources, kept, strict=True) for _ in several]
    spoken = [0.0] * len(texts) if lm is None else [one.log_prob for one in lm.rescore([""] * len(texts), texts)]
    beside = zip(channel.rescore(texts, repeated), spoken, strict=True)

    def candidate(one: Translation) -> Candidate:
        back, said = next(beside)
        t, s = len(one.token_log_probs), len(back.token_log_probs)
        return Candidate(one.text, one.log_prob / t, back.log_prob / s, said / s, one.finished)

    return [
        [candidate(one) for one in several] or [Candidate("", whole[0].log_prob)]
        for several, whole in zip(kept, found, strict=True)
    ]


def rerank(candidates: Sequence[Candidate], weights: ChannelWeights) -> list[Candidate]:
    """The same, best first; of equal scores the earlier."""
    return sorted(candidates, key=lambda one: -one.score(weights))


def tune_weights(
    candidates: Sequence[Sequence[Candidate]], references: Sequence[str], metric: str, options: Options | None = None
) -> tuple[ChannelWeights, float, float]:
    """The weights whose choices have the best score, the smallest of equal ones; it, and that of the direct model."""
    sign = 1.0 if METRICS.get(metric).higher_is_better else -1.0
    scores, known = dict[ChannelWeights, float](), dict[tuple[str, ...], float]()
    for channel, lm in product(GRID, GRID):
        weights = ChannelWeights(channel=channel, lm=lm)
        texts = tuple(rerank(several, weights)[0].text for several in candidates)
        if texts not in known:
            known[texts] = score_all(texts, [references], [metric], options)[0].value
        scores[weights] = known[texts]
    best = max(scores, key=lambda one: (sign * scores[one], -one.channel - one.lm))
    return best, scores[best], scores[ChannelWeights(channel=0.0, lm=0.0)]
