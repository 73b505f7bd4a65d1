"""BLEU, chrF and TER by sacrebleu; the only file that imports it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from nmtkit.errors import DataError, NmtkitError
from nmtkit.metrics.score import Comparison, Options, Score, check_lines
from nmtkit.registry import near_names

SACREBLEU_METRICS = ("bleu", "chrf", "chrf++", "ter")

TOKENIZERS = ("13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none")
"""The tokenizers of sacrebleu that need no model from the network."""


def bleu(hyps: Sequence[str], refs: Sequence[Sequence[str]], tokenize: str = "13a", lowercase: bool = False) -> Score:
    """Corpus BLEU by sacrebleu.

    Papineni et al. 2002, "BLEU: a Method for Automatic Evaluation of Machine Translation", section 2.3:
    brevity penalty times the geometric mean of the clipped 1- to 4-gram precisions; an order without a match is
    smoothed as in mteval-v13a.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
        NmtkitError: an unknown tokenizer, or one whose packages are not installed.
    """
    return _corpus_score(_sacrebleu("bleu", Options(tokenize=tokenize, lowercase=lowercase)), hyps, refs)


def chrf(hyps: Sequence[str], refs: Sequence[Sequence[str]], word_order: int = 0, lowercase: bool = False) -> Score:
    """Corpus chrF2 by sacrebleu; `word_order=2` gives chrF2++.

    Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation", equation 1 with beta 2 and
    character n-grams up to 6; Popović 2017 adds word n-grams.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
    """
    return _corpus_score(CHRF(word_order=word_order, lowercase=lowercase), hyps, refs)


def ter(hyps: Sequence[str], refs: Sequence[Sequence[str]]) -> Score:
    """Corpus translation edit rate by sacrebleu: lower is better, and it can exceed 100. Case is ignored.

    Snover et al. 2006, "A Study of Translation Edit Rate with Targeted Human Annotation", section 2: edits
    (insertion, deletion, substitution, shift of a block) over the average number of reference words.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
    """
    return _corpus_score(TER(), hyps, refs)


@dataclass(frozen=True)
class LengthBucket:
    """BLEU of the examples of similar length.

    Attributes:
        low: shortest length in it, in words.
        high: longest length in it, or None where there is no upper end.
        count: number of examples.
        score: their corpus BLEU, or None when there are none.
    """

    low: int
    high: int | None
    count: int
    score: Score | None


def by_length(
    hyps: Sequence[str],
    refs: Sequence[Sequence[str]],
    lengths_of: Sequence[str],
    edges: Sequence[int] = (10, 20, 30, 40, 50),
    options: Options | None = None,
) -> list[LengthBucket]:
    """BLEU by length of the sentence, the picture of Bahdanau et al. 2015, figure 2.

    Args:
        hyps: one text per example.
        refs: `refs[r][i]` is reference `r` of example `i`.
        lengths_of: the texts, usually the sources, whose length in words (split at white space) sorts the examples.
        edges: longest length of each bucket but the last, rising; the first starts at 0, the last has no end.
        options: how BLEU compares texts.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
        NmtkitError: edges that do not rise from at least 0.
    """
    check_lines(hyps, refs)
    if len(lengths_of) != len(hyps):
        raise DataError(f"lengths are given by {len(lengths_of)} lines, but the hypotheses have {len(hyps)}")
    if any(low >= high for low, high in zip([-1, *edges], edges, strict=False)):
        raise NmtkitError(f"the edges of the length buckets must rise from at least 0, not {list(edges)}")
    options = options or Options()
    lengths = [len(line.split()) for line in lengths_of]
    buckets = []
    for low, high in zip([0, *(edge + 1 for edge in edges)], [*edges, None], strict=True):
        chosen = [i for i, length in enumerate(lengths) if low <= length and (high is None or length <= high)]
        score = None
        if chosen:
            chosen_refs = [[ref[i] for i in chosen] for ref in refs]
            score = bleu([hyps[i] for i in chosen], chosen_refs, options.tokenize, options.lowercase)
        buckets.append(LengthBucket(low, high, len(chosen), score))
    return buckets


def sacrebleu_score(name: str, hyps: Sequence[str], refs: Sequence[Sequence[str]], options: Options) -> Score:
    """The score of one of `SACREBLEU_METRICS`.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
        NmtkitError: an unknown tokenizer, or one whose packages are not installed.
    """
    return _corpus_score(_sacrebleu(name, options), hyps, refs)


def sacrebleu_compare(
    systems: Sequence[tuple[str, Sequence[str]]],
    refs: Sequence[Sequence[str]],
    names: Sequence[str],
    options: Options,
    n_samples: int,
    seed: int,
) -> list[list[Comparison]]:
    """The part of `several.compare` that sacrebleu does itself: `[metric][system]`.

    Raises:
        NmtkitError: an unknown tokenizer, or one whose packages are not installed.
    """
    with _sacrebleu_seed(seed):
        test = PairedTest(
            list(systems),
            {name: _sacrebleu(name, options) for name in names},
            refs,
            test_type="bs",
            n_samples=n_samples,
        )
        signatures, results = test()
    rows = []
    for title, made in signatures.items():
        column = [result for result in results[title] if isinstance(result, Result)]
        rows.append([_from_sacrebleu(title, str(made), result, column[0]) for result in column])
    return rows


def _sacrebleu(name: str, options: Options) -> Metric:
    """Builds the metric of sacrebleu by our name for it."""
    if name == "chrf":
        return CHRF(lowercase=options.lowercase)
    if name == "chrf++":
        return CHRF(word_order=2, lowercase=options.lowercase)
    if name == "ter":
        return TER()
    if options.tokenize not in TOKENIZERS:
        raise NmtkitError(f"unknown tokenizer {options.tokenize!r}: {near_names(options.tokenize, TOKENIZERS)}")
    try:
        # `force` silences the warning about tokenized text, which is just what tokenizer "none" is for.
        return BLEU(tokenize=options.tokenize, lowercase=options.lowercase, force=options.tokenize == "none")
    except RuntimeError as error:
        raise NmtkitError(f"tokenizer {options.tokenize!r} is not ready: {' '.join(str(error).split())}") from error


def _corpus_score(metric: Metric, hyps: Sequence[str], refs: Sequence[Sequence[str]]) -> Score:
    check_lines(hyps, refs)
    result = metric.corpus_score(hyps, refs)
    return Score(result.name, result.score, str(metric.get_signature()))


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Sets the seed of sacrebleu, which takes it from the environment and from nowhere else."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before


def _from_sacrebleu(title: str, signature: str, result: Result, baseline: Result) -> Comparison:
    p_value = result.p_value
    if p_value is not None and result.score == baseline.score:
        p_value = 1.0
    assert result.mean is not None  # the bootstrap test always gives it
    assert result.ci is not None
    return Comparison(Score(title, result.score, signature), float(result.mean), float(result.ci), p_value)
