"""Noisy-channel reranking: Yee et al. 2019, "Simple and Effective Noisy Channel Modeling for NMT".

P(y|x) is proportional to P(x|y) P(y): a channel model, which translates in the reverse direction, measures how well a
candidate y explains the source x, and a language model measures how fluent y is. Reranking sorts the n-best list of a
direct model by

    1/t log P(y|x) + lambda/s (log P(x|y) + log P(y)),

where t and s are the numbers of tokens in y and x. Here the channel model and the language model have separate lambdas,
which are tuned on a validation set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from nmtkit.core.settings import Field, Settings
from nmtkit.inference.result import Translation
from nmtkit.inference.translator import Translator
from nmtkit.metrics import METRICS, Options, score_all

GRID = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
"""Values that tuning tries for each lambda."""


class ChannelWeights(Settings):
    """The lambdas of the channel model and the language model, as saved by `rerank --tune`."""

    channel: float = Field(default=1.0, ge=0.0)
    lm: float = Field(default=1.0, ge=0.0)


@dataclass(frozen=True)
class Candidate:
    """A translation with its three normalized log-probabilities, in nats per token."""

    text: str
    direct: float
    """1/t log P(y|x)."""
    channel: float = 0.0
    """1/s log P(x|y)."""
    lm: float = 0.0
    """1/s log P(y)."""
    finished: bool = True
    """False if the search reached its length limit before EOS."""

    def score(self, weights: ChannelWeights) -> float:
        """Returns the ranking score: the formula of this module with the lambdas in `weights`."""
        return self.direct + weights.channel * self.channel + weights.lm * self.lm


def score_candidates(
    sources: Sequence[str],
    n_best_lists: Sequence[Sequence[Translation]],
    channel: Translator,
    lm: Translator | None,
) -> list[list[Candidate]]:
    """Scores a direct model's translations of each source with the channel model and the language model.

    Drops empty translations. If a source has no other translations, its only candidate is the empty text.
    """
    numbers = []  # index of each translation's source
    translations = []
    for number, n_best in enumerate(n_best_lists):
        for translation in n_best:
            if translation.text.strip():
                numbers.append(number)
                translations.append(translation)
    texts = [translation.text for translation in translations]
    back_translations = channel.rescore(texts, [sources[number] for number in numbers])
    lm_log_probs = [0.0] * len(texts)
    if lm is not None:
        lm_log_probs = [result.log_prob for result in lm.rescore([""] * len(texts), texts)]
    candidates_by_source: list[list[Candidate]] = [[] for _ in sources]
    scored = zip(numbers, translations, back_translations, lm_log_probs, strict=True)
    for number, translation, back_translation, lm_log_prob in scored:
        target_length = len(translation.token_log_probs)
        source_length = len(back_translation.token_log_probs)
        candidate = Candidate(
            text=translation.text,
            direct=translation.log_prob / target_length,
            channel=back_translation.log_prob / source_length,
            lm=lm_log_prob / source_length,
            finished=translation.finished,
        )
        candidates_by_source[number].append(candidate)
    for candidates, n_best in zip(candidates_by_source, n_best_lists, strict=True):
        if not candidates:
            candidates.append(Candidate("", n_best[0].log_prob))
    return candidates_by_source


def rerank(candidates: Sequence[Candidate], weights: ChannelWeights) -> list[Candidate]:
    """Sorts candidates by score, best first; the sort is stable."""
    return sorted(candidates, key=lambda candidate: -candidate.score(weights))


def tune_weights(
    n_best_lists: Sequence[Sequence[Candidate]],
    references: Sequence[str],
    metric: str,
    options: Options | None = None,
) -> tuple[ChannelWeights, float, float]:
    """Searches the grid for the weights whose top candidates score best; ties are broken by the smaller sum of weights.

    Returns:
        The weights, their metric score, and the score of the direct model alone.
    """
    sign = 1.0 if METRICS.get(metric).higher_is_better else -1.0
    scores: dict[ChannelWeights, float] = {}
    scores_of_texts: dict[tuple[str, ...], float] = {}  # many weights select the same candidates
    for channel, lm in product(GRID, GRID):
        weights = ChannelWeights(channel=channel, lm=lm)
        reranked = [rerank(candidates, weights) for candidates in n_best_lists]
        texts = tuple(candidates[0].text for candidates in reranked)
        if texts not in scores_of_texts:
            (score,) = score_all(hyps=texts, refs=[references], metrics=[metric], options=options)
            scores_of_texts[texts] = score.value
        scores[weights] = scores_of_texts[texts]

    def quality(weights: ChannelWeights) -> tuple[float, float]:
        return sign * scores[weights], -weights.channel - weights.lm

    best = max(scores, key=quality)
    direct_only = ChannelWeights(channel=0.0, lm=0.0)
    return best, scores[best], scores[direct_only]
