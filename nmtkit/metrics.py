"""How good an output is: BLEU, chrF, TER, ROUGE, alignment error rate, perplexity.

The figures for text come from sacrebleu and rouge-score, and every one carries the signature that says how it was
made; this file is the only one that imports those two. Texts are lists of strings, one string per example.
References are a list of such lists: `refs[r][i]` is what reference file `r` says about example `i`.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from nmtkit.alignment import Alignment, Links
from nmtkit.errors import DataError, NmtkitError
from nmtkit.registry import near_names

SACREBLEU_METRICS = ("bleu", "chrf", "chrf++", "ter")
ROUGE_METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")

TOKENIZERS = ("13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none")
"""The tokenizers of sacrebleu that need no model from the network."""

SENTENCE_RULES = ("auto", "newline")

_ROUGE_TITLES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}
_SENTENCE_TAG = re.compile(r"</?[ts]>")
_SENTENCE_END = re.compile(r"([.!?][\"'”’»)\]]*)\s+")


@dataclass(frozen=True)
class Score:
    """One figure and how it was made.

    Attributes:
        name: the usual name of the metric, such as "BLEU" or "ROUGE-L".
        value: 0 to 100, except where the metric has no upper end (TER, perplexity).
        signature: `key:value` pairs joined by "|", the version of the program last.
    """

    name: str
    value: float
    signature: str


@dataclass(frozen=True)
class Comparison:
    """The score of one system among several, with what bootstrap resampling says about it.

    Attributes:
        score: the score on the whole test set; its signature also names the number of resamples and the seed.
        mean: mean of the score over the resamples.
        interval: half the width of the 95% confidence interval, in points.
        p_value: chance of so large a difference from the baseline if there were none; None for the baseline.
    """

    score: Score
    mean: float
    interval: float
    p_value: float | None


@dataclass(frozen=True)
class Options:
    """How texts are compared. Defaults are those of sacrebleu, and of the summarization papers for ROUGE.

    Attributes:
        tokenize: tokenizer of BLEU, one of `TOKENIZERS`; "none" for text that is tokenized already.
        lowercase: whether BLEU and chrF ignore case. TER (as tercom) and ROUGE always ignore it.
        stem: whether ROUGE compares Porter stems. The stemmer is made for English.
        sentences: how ROUGE-Lsum finds sentences, one of `SENTENCE_RULES`; see `split_sentences`.
    """

    tokenize: str = "13a"
    lowercase: bool = False
    stem: bool = True
    sentences: str = "auto"


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


def rouge(
    hyps: Sequence[str],
    refs: Sequence[Sequence[str]],
    stem: bool = True,
    sentences: str = "auto",
    types: Sequence[str] = ROUGE_METRICS,
) -> list[Score]:
    """ROUGE F1 by rouge-score: the mean over the examples, times 100.

    Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries": equation 1 for ROUGE-N, section 3.1 for
    ROUGE-L (longest common subsequence), section 3.2 for ROUGE-Lsum (union over sentences). With several
    references an example counts with the one that gives the highest F1, for each type by itself. rouge-score keeps
    only the letters a-z and digits; see `outside_rouge`.

    Args:
        hyps: one text per example.
        refs: `refs[r][i]` is reference `r` of example `i`.
        stem: whether Porter stems are compared.
        sentences: the rule of `split_sentences`.
        types: which of `ROUGE_METRICS`, in the order of the answer.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
        NmtkitError: an unknown rule.
    """
    _check(hyps, refs)
    options = Options(stem=stem, sentences=sentences)
    signature = _rouge_signature(options, len(refs))
    means = 100 * _rouge_per_example(hyps, refs, types, options).mean(axis=1)
    return [Score(_ROUGE_TITLES[name], float(mean), signature) for name, mean in zip(types, means, strict=True)]


def split_sentences(text: str, rule: str = "auto") -> list[str]:
    """Cuts a summary into its sentences, as ROUGE-Lsum needs them.

    Rule "newline" is that of rouge-score: sentences end at newlines and nowhere else, so ROUGE-Lsum of a one-line
    text is its ROUGE-L. Rule "auto" takes the first of these that applies to the text:

    1. it holds sentence tags (`<t>`, `</t>`, `<s>`, `</s>`): cut at the tags, which are removed;
    2. it holds newlines: cut there;
    3. else cut at white space after ".", "!" or "?" and the quotes and brackets that close there. Abbreviations are
       not known, so "Mr. Smith" is cut too.
    """
    if rule == "newline":
        pieces = text.split("\n")
    elif _SENTENCE_TAG.search(text):
        pieces = _SENTENCE_TAG.split(text)
    elif "\n" in text:
        pieces = text.split("\n")
    else:
        pieces = _SENTENCE_END.sub(r"\1\n", text).split("\n")
    return [piece.strip() for piece in pieces if piece.strip()]


def outside_rouge(lines: Iterable[str]) -> int:
    """Counts the lines with a letter or digit that rouge-score drops because it is not a-z or 0-9."""
    return sum(any(char.isalnum() and not char.isascii() for char in line) for line in lines)


def metric_names(given: Iterable[str]) -> list[str]:
    """Resolves the names a user may give: "rouge" stands for all four, and a repeated name counts once.

    Raises:
        NmtkitError: a name is unknown, or none is given.
    """
    names: list[str] = []
    for name in given:
        if name != "rouge" and name not in SACREBLEU_METRICS + ROUGE_METRICS:
            raise NmtkitError(
                f"unknown metric {name!r}: {near_names(name, (*SACREBLEU_METRICS, *ROUGE_METRICS, 'rouge'))}"
            )
        names += [member for member in (ROUGE_METRICS if name == "rouge" else (name,)) if member not in names]
    if not names:
        raise NmtkitError("no metric is named; give at least one, such as bleu")
    return names


def score_all(
    hyps: Sequence[str], refs: Sequence[Sequence[str]], metrics: Iterable[str], options: Options | None = None
) -> list[Score]:
    """Scores one system with every metric named, in that order.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
        NmtkitError: an unknown metric, tokenizer or sentence rule.
    """
    options = options or Options()
    names = metric_names(metrics)
    types = [name for name in names if name in ROUGE_METRICS]
    rouges = rouge(hyps, refs, options.stem, options.sentences, types) if types else []
    found = dict(zip(types, rouges, strict=True))
    for name in names:
        if name in SACREBLEU_METRICS:
            found[name] = _corpus_score(_sacrebleu(name, options), hyps, refs)
    return [found[name] for name in names]


def compare(
    systems: Sequence[tuple[str, Sequence[str]]],
    refs: Sequence[Sequence[str]],
    metrics: Iterable[str],
    options: Options | None = None,
    n_samples: int = 1000,
    seed: int = 12345,
) -> list[list[Comparison]]:
    """Paired bootstrap resampling of several systems against the first of them.

    Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation": the test set is drawn anew
    `n_samples` times with replacement, and all systems are scored on the same draws. sacrebleu does it for its own
    metrics, and the same arithmetic is used on the F1 per example of ROUGE. With d the difference between two
    systems on the whole test set and d* the absolute difference on one draw, p is the share of draws in which d*
    exceeds its own mean by more than |d|, one added above and below. sacrebleu calls systems of exactly equal score
    significantly different; here their p is 1.

    Memory: sacrebleu holds all draws at once, about `n_samples` times lines times 80 bytes.

    Args:
        systems: name and texts of each system; the first is the baseline.
        refs: `refs[r][i]` is reference `r` of example `i`.
        metrics: names as in `metric_names`.
        options: how texts are compared.
        n_samples: how often to draw, at least 1.
        seed: of the random draws, at least 1 (sacrebleu takes 0 for "not fixed").

    Returns:
        `[system][metric]`, in the orders given.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
        NmtkitError: an unknown metric, tokenizer or sentence rule, or a number out of range.
    """
    if n_samples < 1 or seed < 1:
        raise NmtkitError(f"samples and seed of the bootstrap must be at least 1, not {n_samples} and {seed}")
    for _, hyps in systems:
        _check(hyps, refs)
    options = options or Options()
    names = metric_names(metrics)
    found: dict[str, list[Comparison]] = {}

    own = [name for name in names if name in SACREBLEU_METRICS]
    if own:
        with _sacrebleu_seed(seed):
            test = PairedTest(
                list(systems),
                {name: _sacrebleu(name, options) for name in own},
                refs,
                test_type="bs",
                n_samples=n_samples,
            )
            signatures, results = test()
        for name, (title, made) in zip(own, signatures.items(), strict=True):
            column = [result for result in results[title] if isinstance(result, Result)]
            found[name] = [_from_sacrebleu(title, str(made), result, column[0]) for result in column]

    types = [name for name in names if name in ROUGE_METRICS]
    if types:
        per_example = np.stack([100 * _rouge_per_example(hyps, refs, types, options) for _, hyps in systems])
        signature = _rouge_signature(options, len(refs), n_samples, seed)
        for row, name in enumerate(types):
            found[name] = _bootstrap(_ROUGE_TITLES[name], signature, per_example[:, row], n_samples, seed)

    return [[found[name][i] for name in names] for i in range(len(systems))]


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
    _check(hyps, refs)
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


@dataclass(frozen=True)
class AlignmentScores:
    """Alignment error rate with its precision and recall, all 0 to 100."""

    aer: Score
    precision: Score
    recall: Score


def aer(predicted: Sequence[Links], gold: Sequence[Alignment]) -> AlignmentScores:
    """Alignment error rate over a corpus: lower is better.

    Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models", section 6: with A the
    predicted, S the sure and P the possible links,
    `precision = |A & P| / |A|`, `recall = |A & S| / |S|`, `AER = 1 - (|A & S| + |A & P|) / (|A| + |S|)`.
    Precision of no predicted links and recall of no sure links are given as 0.

    Args:
        predicted: the links of each sentence pair.
        gold: the gold alignment of each sentence pair.

    Raises:
        DataError: different numbers of sentence pairs, or no links at all.
    """
    if len(predicted) != len(gold):
        raise DataError(f"{len(predicted)} sentence pairs have a predicted alignment, but {len(gold)} a gold one")
    n_predicted = sum(len(links) for links in predicted)
    n_sure = sum(len(alignment.sure) for alignment in gold)
    if n_predicted + n_sure == 0:
        raise DataError("the alignment error rate is not defined: no link is predicted and no gold link is sure")
    hit_sure = sum(len(links & alignment.sure) for links, alignment in zip(predicted, gold, strict=True))
    hit_possible = sum(len(links & alignment.possible) for links, alignment in zip(predicted, gold, strict=True))
    n_possible = sum(len(alignment.possible) for alignment in gold)
    counts = f"pairs:{len(gold)}|links:{n_predicted}|sure:{n_sure}|possible:{n_possible}"
    signature = f"{counts}|version:nmtkit-{version('nmtkit')}"
    return AlignmentScores(
        Score("AER", 100 * (1 - (hit_sure + hit_possible) / (n_predicted + n_sure)), signature),
        Score("alignment precision", 100 * hit_possible / n_predicted if n_predicted else 0.0, signature),
        Score("alignment recall", 100 * hit_sure / n_sure if n_sure else 0.0, signature),
    )


def perplexity(log_prob: float, n_tokens: int) -> Score:
    """Perplexity per token, `exp(-log_prob / n_tokens)`: lower is better, at least 1; too large a one is infinity.

    Args:
        log_prob: sum of the log-probabilities of all tokens in nats, so at most 0.
        n_tokens: how many tokens were predicted, ends of sentence included.

    Raises:
        DataError: no tokens.
    """
    if n_tokens < 1:
        raise DataError("perplexity is not defined: there are no tokens")
    try:
        value = math.exp(-log_prob / n_tokens)
    except OverflowError:
        value = math.inf
    return Score("perplexity", value, f"tokens:{n_tokens}|version:nmtkit-{version('nmtkit')}")


def _check(hyps: Sequence[str], refs: Sequence[Sequence[str]]) -> None:
    """Refuses what the libraries would cut to the shorter side in silence, or fail on without a reason."""
    if not refs:
        raise DataError("there is no reference to score against")
    if not hyps:
        raise DataError("there are no hypotheses to score")
    for number, ref in enumerate(refs, start=1):
        if len(ref) != len(hyps):
            raise DataError(f"the hypotheses have {len(hyps)} lines, but reference {number} has {len(ref)}")


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
    _check(hyps, refs)
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


def _rouge_per_example(
    hyps: Sequence[str], refs: Sequence[Sequence[str]], types: Sequence[str], options: Options
) -> np.ndarray:
    """F1 from 0 to 1 of each type (axis 0) and example (axis 1)."""
    if options.sentences not in SENTENCE_RULES:
        raise NmtkitError(
            f"unknown sentence rule {options.sentences!r}: {near_names(options.sentences, SENTENCE_RULES)}"
        )
    scorer = RougeScorer(list(types), use_stemmer=options.stem)

    def prepared(text: str) -> str:
        return "\n".join(split_sentences(text, options.sentences))

    values = np.zeros((len(types), len(hyps)))
    for i, hyp in enumerate(hyps):
        best = scorer.score_multi([prepared(ref[i]) for ref in refs], prepared(hyp))
        values[:, i] = [best[name].fmeasure for name in types]
    return values


def _rouge_signature(options: Options, n_refs: int, n_samples: int | None = None, seed: int | None = None) -> str:
    parts = [f"nrefs:{n_refs}"]
    if n_samples is not None:
        parts += [f"bs:{n_samples}", f"seed:{seed}"]
    parts += [
        "agg:mean-f1",
        f"stem:{'porter' if options.stem else 'no'}",
        f"sents:{options.sentences}",
        "tok:a-z0-9",
        f"version:rouge-score-{version('rouge-score')}",
    ]
    return "|".join(parts)


def _bootstrap(title: str, signature: str, values: np.ndarray, n_samples: int, seed: int) -> list[Comparison]:
    """Paired bootstrap of a score that is a mean over examples; `values` is (systems, examples) in points."""
    n_systems, n_examples = values.shape
    random = np.random.default_rng(seed)
    means = np.empty((n_samples, n_systems))
    for draw in range(n_samples):
        means[draw] = values[:, random.integers(n_examples, size=n_examples)].mean(axis=1)
    whole = values.mean(axis=1)
    ends = np.quantile(means, [0.025, 0.975], axis=0)
    comparisons = []
    for i in range(n_systems):
        p_value = None
        if i > 0:
            gap = abs(whole[i] - whole[0])
            gaps = np.abs(means[:, i] - means[:, 0])
            exceeding = int((gaps - gaps.mean() > gap).sum())
            p_value = (exceeding + 1) / (n_samples + 1) if gap > 0 else 1.0
        interval = float(ends[1, i] - ends[0, i]) / 2
        score = Score(title, float(whole[i]), signature)
        comparisons.append(Comparison(score, float(means[:, i].mean()), interval, p_value))
    return comparisons
