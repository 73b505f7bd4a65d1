"""Result of one line: a translation or summary, and the words copied from its source."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.tokenizers.tokenizer import Tokenizer
from nmtkit.data.tokenizers.words import word_spans
from nmtkit.decoding.settings import MbrConfig, SearchConfig
from nmtkit.inference.numbers import missing_numbers
from nmtkit.inference.requests import Request
from nmtkit.inference.unknowns import Replacement


@dataclass(frozen=True)
class Translation:
    """One translation of one source line."""

    text: str
    score: float
    """What it is ranked by: the log-probability after length and coverage penalties, or its expected chrF or BLEU."""
    log_prob: float
    """Sum over the target's tokens and EOS, in nats."""
    tokens: list[str]
    """Target pieces that were written, without EOS."""
    token_log_probs: list[float]
    """One a token, EOS last."""
    src_tokens: list[str]
    """Source pieces, without EOS; of a model without a source those of the prompt, with which `text` begins."""
    finished: bool = True
    """False where the search reached its length limit before EOS."""
    attention: NDArray[np.float32] | None = None
    """`(T,S)`: a row for each of `tokens` and EOS, a column for each of `src_tokens` and EOS."""
    replaced: list[Replacement] = field(default_factory=list)
    """Unknown words of `tokens` that `text` has other words for; see `Translator.replacing_unknown`."""
    p_gen: list[float] | None = None
    """One a token, EOS last: how likely the model was to generate and not to copy. None where it does not copy, or was
    not asked, here and below."""
    copied: list[int | None] | None = None
    """For each of `tokens` which of `src_tokens` it was copied from, or None; see `copied_positions`."""
    src_left_out: int = 0
    """Tokens at the end of the source that were not read; see `TextModel`."""
    unmet_constraints: tuple[str, ...] = ()
    """Messages about terms that `text` should contain and lacks, or contains and should not."""
    source: str = ""
    """The line that was translated."""
    request: Request | None = None
    """Prefix and terms that the translation had to have; None if there were none."""

    @property
    def missing_numbers(self) -> tuple[str, ...]:
        """Numbers, URLs and e-mail addresses of the source that `text` lacks; see `numbers.missing_numbers`."""
        return missing_numbers(self.source, self.text)


def merge_and_rerank(candidates: Sequence[Translation], config: SearchConfig) -> list[Translation]:
    """All that was found for a line, each text once; by minimum Bayes risk those first that are most like all others.

    See `nmtkit.metrics.mbr`. Samples count as often as they were drawn.
    """
    first: dict[str, Translation] = {}
    counts: dict[str, int] = {}
    for one in candidates:
        first.setdefault(one.text, one)
        counts[one.text] = counts.get(one.text, 0) + 1
    if not isinstance(config, MbrConfig):
        return list(first.values())
    from nmtkit.metrics.mbr import expected_utilities

    utilities = expected_utilities(list(first), list(counts.values()), config.metric)
    weighed = [replace(one, score=utility) for one, utility in zip(first.values(), utilities, strict=True)]
    return sorted(weighed, key=lambda one: -one.score)


EMPTY = Translation("", 0.0, 0.0, [], [], [])


class Ranked(Protocol):
    """A result of a line with its score: a `Translation`, or one joined from parts."""

    @property
    def text(self) -> str:
        """Text of the result."""

    @property
    def score(self) -> float:
        """Ranking score."""

    @property
    def log_prob(self) -> float:
        """Log-probability in nats."""

    @property
    def tokens(self) -> list[str]:
        """Target pieces."""


def moses_line(number: int, one: Ranked) -> str:
    """A result as a line of an n-best list of Moses, which Marian writes too and rerankers read.

    "NUMBER ||| TEXT ||| LogProb= L Length= T ||| SCORE", with the number of the source line, from 0, the
    log-probability in nats, and the number of target tokens without EOS. A "|||" of the text is escaped as in Moses.
    """
    text = one.text.replace("|||", "&#124;&#124;&#124;")
    return f"{number} ||| {text} ||| LogProb= {one.log_prob:.6f} Length= {len(one.tokens)} ||| {one.score:.6f}"


@dataclass(frozen=True)
class CopiedSpan:
    """Target tokens in a row that were copied from source tokens in a row. Ranges are [first, behind the last]."""

    text: str
    tokens: tuple[int, int]
    """Of the target."""
    source_tokens: tuple[int, int]
    source_words: tuple[int, int]
    """The words that the source tokens belong to, separated by white space."""


def copied_positions(
    ids: Sequence[int],
    log_probs: Sequence[float],
    p_gen: Sequence[float],
    attention: NDArray[Any],
    src_extended: Sequence[int],
) -> list[int | None]:
    """The source position that each target token was copied from, or None where it was generated.

    A model that copies gives a token the probability p_gen * P_vocab + (1 - p_gen) * sum a_i, over the source positions
    i where it stands (See et al. 2017, equation 9). The token counts as copied if the second part is larger than the
    first: more than half of the probability. Its position is the one of those with the most attention, the first of
    equals. A word that the vocabulary lacks is always copied.

    Target and source are extended ids, without EOS, attention is `(T,S)`; what follows the T-th token is not looked at.
    """
    count, length = len(ids), len(src_extended)
    if not count or not length:
        return [None] * count
    same = np.asarray(ids)[:, None] == np.asarray(src_extended)  # (T,S)
    weights = attention[:count, :length].astype(np.float64) * same
    copied = (1.0 - np.asarray(p_gen[:count], dtype=np.float64)) * weights.sum(1)  # (T,)
    decided = copied > 0.5 * np.exp(np.asarray(log_probs[:count], dtype=np.float64))
    return [int(place) if yes else None for place, yes in zip(weights.argmax(1), decided, strict=True)]


def copied_spans(
    tokenizer: Tokenizer, tokens: Sequence[str], src_tokens: Sequence[str], copied: Sequence[int | None]
) -> list[CopiedSpan]:
    """Joins copied tokens to spans: a span goes on while the next target token was copied from the next source token.

    The tokenizer is that of the target, and `copied` is what `copied_positions` gives.
    """
    words = [word for word, span in enumerate(word_spans(src_tokens)) for _ in span]
    spans = []
    start = 0
    while start < len(copied):
        source = copied[start]
        end = start + 1
        if source is not None:
            while end < len(copied) and copied[end] == source + end - start:
                end += 1
            last = source + end - start
            text, source_words = tokenizer.join(tokens[start:end]), (words[source], words[last - 1] + 1)
            spans.append(CopiedSpan(text, (start, end), (source, last), source_words))
        start = end
    return spans
