"""The result for a line: a translation or summary, and the words copied from its source."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.tokenizers.tokenizer import Tokenizer
from nmtkit.data.tokenizers.words import word_spans
from nmtkit.decoding.settings import MbrConfig, SearchConfig
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.numbers import missing_numbers
from nmtkit.inference.unknowns import Replacement


@dataclass(frozen=True)
class Translation:
    """A translation of a source line."""

    text: str
    score: float
    """Ranking score: the log-probability with length and coverage penalties or, with MBR, the expected chrF or BLEU."""
    log_prob: float
    """Log-probability, summed over the target tokens and EOS, in nats."""
    tokens: list[str]
    """Target tokens without EOS."""
    token_log_probs: list[float]
    """Log-probability of each token, EOS last."""
    src_tokens: list[str]
    """Source tokens without EOS; for a language model, the tokens of the prompt, with which `text` begins."""
    finished: bool = True
    """False if the search reached its length limit before EOS."""
    attention: NDArray[np.float32] | None = None
    """Attention weights `(T, S)`: rows are `tokens` and EOS, columns are `src_tokens` and EOS."""
    replaced: list[Replacement] = field(default_factory=list)
    """Unknown words in `tokens` that are replaced in `text`; see `Translator.replacing_unknown`."""
    p_gen: list[float] | None = None
    """Probability of generating instead of copying, for each token, EOS last. None if the model does not copy or if
    copied words were not requested."""
    copied: list[int | None] | None = None
    """For each of `tokens`, the index in `src_tokens` of the token that it was copied from, or None if generated; see
    `copied_positions`. None under the same conditions as `p_gen`."""
    src_left_out: int = 0
    """Number of tokens that were truncated from the end of the source; see `TextModel.max_source_tokens`."""
    unmet_constraints: tuple[str, ...] = ()
    """Messages about required terms that `text` lacks and forbidden terms that it contains."""
    source: str = ""
    """The source line."""
    request: Request | None = None
    """Constraints on the translation; None if there were none."""

    @property
    def missing_numbers(self) -> tuple[str, ...]:
        """Numbers, URLs and e-mail addresses of the source that are missing from `text`; see `missing_numbers`."""
        return missing_numbers(self.source, self.text)


def merge_and_rerank(candidates: Sequence[Translation], config: SearchConfig) -> list[Translation]:
    """Drops candidates with duplicate texts; for minimum Bayes risk (MBR), also sorts them by expected utility.

    See `nmtkit.metrics.mbr`. The weight of a sample is the number of times it was drawn.
    """
    by_text: dict[str, Translation] = {}  # the first candidate with each text
    counts: dict[str, int] = {}
    for candidate in candidates:
        by_text.setdefault(candidate.text, candidate)
        counts[candidate.text] = counts.get(candidate.text, 0) + 1
    if not isinstance(config, MbrConfig):
        return list(by_text.values())
    from nmtkit.metrics.mbr import expected_utilities

    utilities = expected_utilities(list(by_text), list(counts.values()), config.metric)
    reranked = []
    for candidate, utility in zip(by_text.values(), utilities, strict=True):
        reranked.append(replace(candidate, score=utility))
    return sorted(reranked, key=lambda candidate: -candidate.score)


EMPTY = Translation(text="", score=0.0, log_prob=0.0, tokens=[], token_log_probs=[], src_tokens=[])


class Ranked(Protocol):
    """A scored result for a line: a `Translation` or a `JoinedTranslation`."""

    @property
    def text(self) -> str: ...

    @property
    def score(self) -> float: ...

    @property
    def log_prob(self) -> float:
        """Log-probability in nats."""

    @property
    def tokens(self) -> list[str]:
        """Target tokens without EOS."""


def moses_line(number: int, result: Ranked) -> str:
    """Formats a result as a line of a Moses n-best list, the format that Marian also writes and that rerankers read.

    The line is "NUMBER ||| TEXT ||| LogProb= L Length= T ||| SCORE" with the number of the source line, counted from 0,
    the log-probability in nats, and the number of target tokens without EOS. A "|||" in the text is escaped as in
    Moses.
    """
    text = result.text.replace("|||", "&#124;&#124;&#124;")
    features = f"LogProb= {result.log_prob:.6f} Length= {len(result.tokens)}"
    return f"{number} ||| {text} ||| {features} ||| {result.score:.6f}"


@dataclass(frozen=True)
class CopiedSpan:
    """Consecutive target tokens that were copied from consecutive source tokens. Ranges are half-open."""

    text: str
    tokens: tuple[int, int]
    """Range of target tokens."""
    source_tokens: tuple[int, int]
    """Range of source tokens."""
    source_words: tuple[int, int]
    """Range of the whitespace-separated words that contain the source tokens."""


def copied_positions(
    ids: Sequence[int],
    log_probs: Sequence[float],
    p_gen: Sequence[float],
    attention: NDArray[Any],
    src_extended: Sequence[int],
) -> list[int | None]:
    """Returns the source position that each target token was copied from, or None if the token was generated.

    A model that copies gives a token w the probability p_gen * P_vocab(w) + (1 - p_gen) * sum of a_i over the source
    positions i with word w (See et al. 2017, equation 9). The token counts as copied if the second term contributes
    more than half of the probability. Its source position is the most attended position with word w; ties are
    broken by taking the first. A word that the vocabulary lacks is always copied.

    Args:
        ids: T extended ids, without EOS.
        log_probs: log-probability of each token. Here and below, values after the first T are ignored.
        p_gen: generation probability of each token.
        attention: weights `(T, S)`; columns after the first S are ignored.
        src_extended: S extended ids of the source, without EOS.
    """
    target_length = len(ids)
    source_length = len(src_extended)
    if not target_length or not source_length:
        return [None] * target_length
    is_same_word = np.asarray(ids)[:, None] == np.asarray(src_extended)  # (T, S)
    weights = attention[:target_length, :source_length].astype(np.float64) * is_same_word  # (T, S)
    p_copy = 1.0 - np.asarray(p_gen[:target_length], dtype=np.float64)  # (T,)
    copy_probabilities = p_copy * weights.sum(1)  # (T,)
    probabilities = np.exp(np.asarray(log_probs[:target_length], dtype=np.float64))  # (T,)
    is_copied = copy_probabilities > 0.5 * probabilities  # (T,)
    most_attended = weights.argmax(1)  # (T,)
    positions: list[int | None] = []
    for position, copied in zip(most_attended, is_copied, strict=True):
        positions.append(int(position) if copied else None)
    return positions


def copied_spans(
    tokenizer: Tokenizer,
    tokens: Sequence[str],
    src_tokens: Sequence[str],
    copied: Sequence[int | None],
) -> list[CopiedSpan]:
    """Joins copied tokens into spans; a span continues as long as the tokens come from consecutive source positions.

    Args:
        tokenizer: the target tokenizer.
        tokens: target tokens.
        src_tokens: source tokens.
        copied: result of `copied_positions`.
    """
    word_of_token = []
    for word, word_span in enumerate(word_spans(src_tokens)):
        word_of_token += [word] * len(word_span)
    spans = []
    start = 0
    while start < len(copied):
        source_start = copied[start]
        end = start + 1
        if source_start is not None:
            while end < len(copied) and copied[end] == source_start + end - start:
                end += 1
            source_end = source_start + end - start
            span = CopiedSpan(
                text=tokenizer.join(tokens[start:end]),
                tokens=(start, end),
                source_tokens=(source_start, source_end),
                source_words=(word_of_token[source_start], word_of_token[source_end - 1] + 1),
            )
            spans.append(span)
        start = end
    return spans
