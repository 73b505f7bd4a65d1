"""BLEU, chrF and TER from sacrebleu, GLEU, and BLEU by length."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from nmtkit.core.errors import NmtkitError
from nmtkit.core.registry import suggest_names
from nmtkit.data.text.scripts import count_words
from nmtkit.metrics.metric import (
    METRICS,
    Comparison,
    Options,
    Resampling,
    Score,
    TextMetric,
    Texts,
    missing_references,
)
from nmtkit.metrics.significance import ExampleMetric

TOKENIZERS = ("13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none")
"""sacrebleu's tokenizers that need no download."""
SPM_TOKENIZERS = ("flores101", "flores200", "spm")
"""Tokenizers with a SentencePiece model that sacrebleu downloads once; spm is flores101."""


@dataclass(frozen=True)
class BleuScore(Score):
    """BLEU and its components (Papineni et al. 2002, section 2.3)."""

    precisions: tuple[float, ...]
    """Precisions of 1- to 4-grams, 0 to 100, smoothed."""
    brevity_penalty: float
    """Brevity penalty: below 1 if the output is shorter than the references, otherwise 1."""
    ratio: float
    """`hyp_length / ref_length`."""
    hyp_length: int
    """Number of output tokens."""
    ref_length: int
    """Number of reference tokens. For each sentence, the reference closest in length counts."""

    @property
    def parts(self) -> str:
        """Formats the components like sacrebleu."""
        precisions = "/".join(f"{precision:.1f}" for precision in self.precisions)
        lengths = (
            f"ratio = {self.ratio:.3f} hyp_len = {self.hyp_length} ref_len = {self.ref_length}"
        )
        return f"{precisions} (BP = {self.brevity_penalty:.3f} {lengths})"


References = Sequence[Sequence[str | None]]
"""References in sacrebleu's form, with None for missing ones."""


@dataclass(frozen=True)
class SacrebleuMetric(TextMetric):
    """A metric from sacrebleu, which also runs its significance tests."""

    build: Callable[[Options, References], Any] = field(kw_only=True)
    """Creates sacrebleu's metric from the options and references."""

    @classmethod
    @override
    def measure(
        cls,
        metrics: Sequence[Self],
        systems: Sequence[Texts],
        options: Options,
        resampling: Resampling | None,
    ) -> list[list[Comparison]]:
        references = _with_gaps(systems[0])
        made = {metric.name: metric.build(options, references) for metric in metrics}
        if resampling is None:
            return [
                [Comparison(_score(metric, texts)) for texts in systems] for metric in made.values()
            ]
        from unittest.mock import patch

        from sacrebleu.significance import PairedTest, Result

        outputs = [(str(number), texts.hyps) for number, texts in enumerate(systems)]
        # sacrebleu reads the seed only from this variable
        with patch.dict(os.environ, SACREBLEU_SEED=str(resampling.seed)):
            test = PairedTest(
                outputs, dict(made), None, test_type=resampling.kind, n_samples=resampling.n_samples
            )
            signatures, results = test()
        rows: list[list[Comparison]] = []
        for metric, (title, signature) in zip(made.values(), signatures.items(), strict=True):
            column: list[Any] = [result for result in results[title] if isinstance(result, Result)]
            rows.append([])
            for texts, result in zip(systems, column, strict=True):
                p_value = (
                    1.0
                    if result.p_value is not None and result.score == column[0].score
                    else result.p_value
                )
                score = Score(title, result.score, str(signature))
                if isinstance(
                    metric, _sacrebleu().BLEU
                ):  # sacrebleu's test does not keep the components
                    score = replace(_score(metric, texts), signature=score.signature)
                mean, interval = (
                    None if value is None else float(value) for value in (result.mean, result.ci)
                )
                rows[-1].append(Comparison(score, mean, interval, p_value))
        return rows


def _with_gaps(texts: Texts) -> References:
    if not texts.have_missing:
        return texts.refs
    missing = missing_references(texts.refs)
    return [
        [None if gap else line for line, gap in zip(lines, gaps, strict=True)]
        for lines, gaps in zip(texts.refs, missing, strict=True)
    ]


def _score(metric: Any, texts: Texts) -> Score:
    result = metric.corpus_score(texts.hyps, None)
    score = Score(result.name, result.score, str(metric.get_signature()))
    if not isinstance(metric, _sacrebleu().BLEU):
        return score
    lengths = {
        "ratio": float(result.ratio),
        "hyp_length": result.sys_len,
        "ref_length": result.ref_len,
    }
    precisions = tuple(map(float, result.precisions))
    return BleuScore(
        score.name, score.value, score.signature, precisions, float(result.bp), **lengths
    )


def _sacrebleu() -> Any:
    import sacrebleu  # imported late: most commands do not score anything

    return sacrebleu


def _bleu(options: Options, references: References | None, order: int = 4) -> Any:
    name = options.tokenize
    if name not in (*TOKENIZERS, *SPM_TOKENIZERS):
        raise NmtkitError(
            f"unknown tokenizer {name!r}: {suggest_names(name, (*TOKENIZERS, *SPM_TOKENIZERS))}"
        )
    # the same tokenizer, without sacrebleu's warning about the old name
    name = "flores101" if name == "spm" else name
    # `force` silences the warning about tokenized text, which is expected with tokenizer "none".
    settings = {"tokenize": name, "force": name == "none", "lowercase": options.lowercase}
    try:
        return _named_bleu(order)(**settings, max_ngram_order=order, references=references)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        remedy = (
            "delete any damaged file in ~/.sacrebleu/models, and run this command once with an "
            "internet connection"
        )
        more = f"; this tokenizer needs a model file, so {remedy}" if name in SPM_TOKENIZERS else ""
        raise NmtkitError(
            f"tokenizer {options.tokenize!r} is not available: {reason}{more}"
        ) from error


@cache
def _named_bleu(order: int) -> Any:
    """Returns sacrebleu's BLEU, renamed for shorter n-grams, because sacrebleu identifies metrics by name."""
    plain = _sacrebleu().BLEU

    def named(self: Any, stats: list[int]) -> Any:
        score = plain._compute_score_from_stats(self, stats)
        score.name = f"BLEU-{order}"
        return score

    return plain if order == 4 else type("BLEU", (plain,), {"_compute_score_from_stats": named})


def _chrf(options: Options, references: References, word_order: int = 0) -> Any:
    return _sacrebleu().CHRF(
        word_order=word_order, lowercase=options.lowercase, references=references
    )


@dataclass(frozen=True)
class Gleu(ExampleMetric):
    """The minimum of precision and recall of a sentence's 1- to 4-grams (Wu et al. 2016, section 5).

    The score is the mean over sentences, using the best reference for each; NLTK's corpus_gleu
    instead sums the counts of all sentences first.
    """

    @override
    def statistics(self, texts: Texts, options: Options) -> npt.NDArray[np.float64]:
        tokenizer = _bleu(options, None).tokenizer
        best = []
        for line, references in zip(texts.hyps, texts.references, strict=True):
            output, *counts = [
                ngram_counts(tokenizer(text.rstrip()).split()) for text in (line, *references)
            ]
            best.append(
                max((output & ref).total() / max(1, output.total(), ref.total()) for ref in counts)
            )
        return 100 * np.array(best)[:, None]

    @override
    def signature(self, options: Options, n_refs: int, resampling: Resampling | None = None) -> str:
        return f"tok:{options.tokenize}|{super().signature(options, n_refs, resampling)}"


def ngram_counts(tokens: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Counts the 1- to 4-grams of a text."""
    return Counter(
        tuple(tokens[at : at + n]) for n in range(1, 5) for at in range(len(tokens) - n + 1)
    )


BLEU = SacrebleuMetric("bleu", "BLEU", unit="tokens", build=_bleu)
"""Papineni et al. 2002, "BLEU: a Method for Automatic Evaluation of Machine Translation", section
2.3: brevity penalty times the geometric mean of the clipped 1- to 4-gram precisions; orders without
a match are smoothed as in mteval-v13a.
"""
SHORT_BLEU = [
    SacrebleuMetric(f"bleu{n}", f"BLEU-{n}", unit="tokens", build=partial(_bleu, order=n))
    for n in (1, 2, 3)
]
"""BLEU with n-grams up to 1, 2 and 3, as used for image captions (Xu et al. 2015, table 1)."""
CHRF = SacrebleuMetric("chrf", "chrF2", build=_chrf)
"""Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation", equation 1 with beta 2 and character
n-grams up to 6."""
CHRF_WITH_WORDS = SacrebleuMetric("chrf++", "chrF2++", build=partial(_chrf, word_order=2))
"""chrF with word n-grams (Popović 2017)."""
TER = SacrebleuMetric(
    "ter",
    "TER",
    False,
    unit="words",
    build=lambda _, references: _sacrebleu().TER(references=references),
)
"""Snover et al. 2006, "A Study of Translation Edit Rate with Targeted Human Annotation", section 2: edits (insertion,
deletion, substitution, shift of a block) over the average number of reference words, which can exceed 100."""
for _metric in (BLEU, *SHORT_BLEU, CHRF, CHRF_WITH_WORDS, TER, Gleu("gleu", "GLEU", unit="tokens")):
    METRICS.register(_metric.name)(_metric)


def bleu_tokens(texts: Sequence[str], options: Options | None = None) -> list[list[str]]:
    """Splits each text into tokens with BLEU's tokenizer."""
    tokenizer = _bleu(options or Options(), None).tokenizer
    return [tokenizer(text.rstrip()).split() for text in texts]


def sentence_statistics(
    hyps: Sequence[str], references: Sequence[str], options: Options
) -> npt.NDArray[np.float64]:
    """Returns the counts per sentence that determine corpus BLEU, `(N, 10)`.

    Columns: matches and totals of 1- to 4-grams, then the lengths of hypothesis and reference.
    """
    metric = _bleu(options, None)
    rows = []
    for hyp, reference in zip(hyps, references, strict=True):
        score = metric.corpus_score([hyp], [[reference]])
        rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return np.array(rows, dtype=np.float64)


def bleu_from_statistics(sums: npt.NDArray[np.float64]) -> float:
    """Returns corpus BLEU from the summed `sentence_statistics`, `(10,)`, smoothed like sacrebleu."""
    counts = sums.astype(np.int64).tolist()
    score = _sacrebleu().BLEU.compute_bleu(
        correct=counts[0:4],
        total=counts[4:8],
        sys_len=counts[8],
        ref_len=counts[9],
        smooth_method="exp",
    )
    return float(score.score)


@dataclass(frozen=True)
class LengthBucket:
    """BLEU of examples of similar length."""

    low: int
    """Minimum length in words."""
    high: int | None
    """Maximum length, if any."""
    count: int
    """Number of examples."""
    score: Score | None
    """Corpus BLEU of these examples; None if the bucket is empty."""


def by_length(
    hyps: Sequence[str],
    refs: Sequence[Sequence[str]],
    lengths_of: Sequence[str],
    edges: Sequence[int] = (10, 20, 30, 40, 50),
    options: Options | None = None,
) -> list[LengthBucket]:
    """Returns BLEU by sentence length, as in Bahdanau et al. 2015, figure 2.

    An example's length is the number of words (`count_words`) of its line in `lengths_of`, usually
    the source. `edges` are the maximum lengths of all buckets except the last, in ascending order;
    the first bucket starts at 0, and the last one is unbounded.
    """
    Texts(hyps, refs, lengths_of)
    lengths = [count_words(line) for line in lengths_of]
    buckets = []
    for low, high in zip([0, *(edge + 1 for edge in edges)], [*edges, None], strict=True):
        chosen = [
            i
            for i, length in enumerate(lengths)
            if low <= length and (high is None or length <= high)
        ]
        score = None
        if chosen:
            texts = Texts([hyps[i] for i in chosen], [[ref[i] for i in chosen] for ref in refs])
            score = BLEU.score(texts, options or Options())
        buckets.append(LengthBucket(low, high, len(chosen), score))
    return buckets
