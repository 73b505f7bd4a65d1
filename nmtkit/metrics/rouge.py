"""ROUGE with Google's rouge-score."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from nmtkit.core.errors import NmtkitError
from nmtkit.data.text.scripts import count_characters, script_shares, word_pattern
from nmtkit.data.text.sentences import split_sentences
from nmtkit.metrics.metric import METRICS, Options, Resampling, Score, Texts
from nmtkit.metrics.significance import ExampleMetric


def lead(article: str, n: int) -> str:
    """Returns the first `n` sentences of an article on one line, the lead baseline."""
    if n < 1:
        raise NmtkitError(f"a lead must have at least 1 sentence, not {n}")
    return " ".join(split_sentences(article)[:n])


@dataclass(frozen=True)
class RougeScore(Score):
    """A ROUGE score: `value` is the mean F1 over examples; with several references, the best F1 counts."""

    precision: float
    """Mean precision over examples, 0 to 100."""
    recall: float
    """Mean recall over examples, 0 to 100."""


@dataclass(frozen=True)
class RougeMetric(ExampleMetric):
    """A ROUGE type from rouge-score. Several types are computed in one pass over the examples.

    Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries": equation 1 for ROUGE-N,
    section 3.1 for ROUGE-L (longest common subsequence), section 3.2 for ROUGE-Lsum (union over
    sentences). With several references, the one with the highest F1 counts for each example and type.
    rouge-score keeps only the letters a-z and digits, so ROUGE would be 0 for most languages;
    `Options.words` selects the words to compare.
    """

    @classmethod
    @override
    def score_examples(
        cls, metrics: Sequence[Self], texts: Texts, options: Options, resampling: Resampling | None
    ) -> list[tuple[Score, npt.NDArray[np.float64]]]:
        options = replace(options, words=chosen_words(options, texts.refs))
        values = _per_example([metric.name for metric in metrics], texts, options)
        scores: list[tuple[Score, npt.NDArray[np.float64]]] = []
        for metric, of_type in zip(metrics, values, strict=True):
            precision, recall, f1 = of_type.mean(axis=0).tolist()
            signature = metric.signature_of(texts, options, resampling)
            scores.append(
                (RougeScore(metric.title, f1, signature, precision, recall), of_type[:, 2:])
            )
        return scores

    @override
    def statistics(self, texts: Texts, options: Options) -> npt.NDArray[np.float64]:
        return self.score_examples([self], texts, options, None)[0][1]

    @override
    def signature(self, options: Options, n_refs: int, resampling: Resampling | None = None) -> str:
        parts = [
            f"nrefs:{n_refs}",
            "multi:best-f1" if n_refs > 1 else "",
            str(resampling) if resampling else "",
            "agg:mean-f1",
            f"stem:{'porter' if options.stem else 'no'}",
            f"sents:{options.sentences}",
            f"tok:{options.words}",
            f"version:rouge-score-{version('rouge-score')}",
        ]
        return "|".join(filter(None, parts))

    @override
    def note(self, refs: Sequence[Sequence[str]], options: Options) -> str:
        if chosen_words(options, refs) == "unicode":
            because = (
                ""
                if options.words == "unicode"
                else f", since most letters in the references are {_main_script(refs)}"
            )
            return (
                f"ROUGE compares the words of all scripts here (tok:unicode){because}; "
                "rouge-score itself keeps only a-z and 0-9, so compare these scores only with "
                "scores computed in the same way"
            )
        lines = [line for ref in refs for line in ref]
        dropped = sum(any(char.isalnum() and not char.isascii() for char in line) for line in lines)
        if not dropped:
            return ""
        return (
            f"{dropped} of {len(lines)} reference lines contain letters or digits other than a-z "
            "and 0-9, which rouge-score drops; compare these scores only with scores computed in "
            "the same way (--words unicode keeps them)"
        )


ROUGE_METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
for _name in ROUGE_METRICS:
    METRICS.register(_name)(RougeMetric(_name, f"ROUGE-{_name[5:]}", family="rouge"))


def chosen_words(options: Options, refs: Sequence[Sequence[str]]) -> Literal["a-z0-9", "unicode"]:
    """Returns the kind of words to compare, from the options or the script of the references."""
    if options.words != "auto":
        return options.words
    return "unicode" if _main_script(refs) not in ("", "Latin") else "a-z0-9"


def _main_script(refs: Sequence[Sequence[str]]) -> str:
    """Returns the script of most letters; empty if there are no letters."""
    shares = script_shares(count_characters(line for lines in refs for line in lines))
    return next(iter(shares), "")


_UNSPACED_END = re.compile(r"(?<=[。！？｡।])\s*(?=\S)")
"""Sentence ends that need no white space after them."""


def _per_example(types: Sequence[str], texts: Texts, options: Options) -> npt.NDArray[np.float64]:
    """Returns precision, recall and F1 (last axis), 0 to 100, by type (axis 0) and example (axis 1)."""
    # imported late, because loading it with its dependencies takes as long as loading torch
    from rouge_score.rouge_scorer import RougeScorer

    is_unicode = options.words == "unicode"
    tokenizer = _UnicodeTokenizer(options.stem) if is_unicode else _CachedTokenizer(options.stem)
    scorer = RougeScorer(list(types), tokenizer=tokenizer)

    def prepared(text: str) -> str:
        text = "\n".join(split_sentences(text, options.sentences))
        return (
            _UNSPACED_END.sub("\n", text) if is_unicode and options.sentences != "newline" else text
        )

    values = np.empty((len(types), len(texts.hyps), 3))
    for i, (hyp, references) in enumerate(zip(texts.hyps, texts.references, strict=True)):
        best = scorer.score_multi([prepared(reference) for reference in references], prepared(hyp))
        values[:, i] = [
            best[name] for name in types
        ]  # a named tuple of precision, recall and fmeasure
    return 100 * values


class _CachedTokenizer:
    """rouge-score's tokenizer, three times as fast because it stems each word only once."""

    def __init__(self, stem: bool) -> None:
        self._stem = stem
        self._words = _tokenizer(use_stemmer=False)

    def tokenize(self, text: str) -> list[str]:
        """Called by rouge-score."""
        words: list[str] = self._words.tokenize(text)
        return [token for word in words for token in _stems(word)] if self._stem else words


class _UnicodeTokenizer:
    """Splits text into lower-cased words of any script, and stems English words.

    Each letter of a script without spaces is a word.
    """

    def __init__(self, stem: bool) -> None:
        self._stem = stem

    def tokenize(self, text: str) -> list[str]:
        """Called by rouge-score."""
        tokens: list[str] = []
        for word in word_pattern().findall(text.lower()):
            tokens += _stems(word) if self._stem and word.isascii() else [word]
        return tokens


@cache
def _tokenizer(use_stemmer: bool) -> Any:
    from rouge_score.tokenizers import DefaultTokenizer

    return DefaultTokenizer(use_stemmer=use_stemmer)


@lru_cache(maxsize=1 << 18)
def _stems(word: str) -> tuple[str, ...]:
    """Returns the stem of a word that consists of a-z and digits; no stem if it would be empty."""
    return tuple(_tokenizer(use_stemmer=True).tokenize(word))
