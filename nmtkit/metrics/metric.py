"""The base classes of metrics, their registry, and functions that score with several metrics."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Literal, Self

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.registry import Registry, suggest_names, suggest_registered

METRICS: Registry["Metric"] = Registry(
    "metric",
    {
        **dict.fromkeys(
            ("bleu", "bleu1", "bleu2", "bleu3", "chrf", "chrf++", "ter", "gleu"),
            "nmtkit.metrics.bleu",
        ),
        **dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), "nmtkit.metrics.rouge"),
        **dict.fromkeys(("bertscore", "bertscore-en"), "nmtkit.metrics.neural"),
        **dict.fromkeys(("accuracy", "f1"), "nmtkit.metrics.labels"),
        **dict.fromkeys(("loss", "perplexity", "aer"), "nmtkit.metrics.fit"),
        "term-recall": "nmtkit.metrics.quality",
        "cider": "nmtkit.zoo.captioning.cider",
        **dict.fromkeys(
            ("bracket-f1", "bracket-precision", "bracket-recall", "bracket-exact"),
            "nmtkit.zoo.parsing.scores",
        ),
    },
)

MAX_SAMPLES = 10_000


@dataclass(frozen=True)
class Score:
    """A score with its signature."""

    name: str
    """The usual name of the metric, such as "BLEU" or "ROUGE-L"."""
    value: float
    """The score, from 0 to 100 except for metrics without an upper limit (TER, perplexity)."""
    signature: str
    """`key:value` pairs joined by "|", ending with the program version."""

    @property
    def parts(self) -> str:
        """Returns the components of the score, which are printed after it."""
        return ""


@dataclass(frozen=True)
class Comparison:
    """A system's score on the whole test set, with significance test results if available."""

    score: Score
    """The score; its signature includes the number of draws and the seed."""
    mean: float | None = None
    """Mean score over bootstrap draws."""
    interval: float | None = None
    """Half the width of the bootstrap's 95% confidence interval in points."""
    p_value: float | None = None
    """Probability (p-value) of so large a difference from the baseline by chance; None for the baseline."""

    def line(self, width: int = 1) -> str:
        """Formats a sacrebleu line with `width` digits: `NAME|SIGNATURE = VALUE (μ = MEAN ± INTERVAL) PARTS`."""
        drawn = "" if not self.mean else f" (μ = {self.mean:.{width}f} ± {self.interval:.{width}f})"
        parts = f" {self.score.parts}" if self.score.parts else ""
        return (
            f"{self.score.name}|{self.score.signature} = {self.score.value:.{width}f}{drawn}{parts}"
        )


@dataclass(frozen=True)
class Options:
    """Options for comparing texts."""

    tokenize: str = "13a"
    """Tokenizer for BLEU and GLEU: one of `TOKENIZERS` or `SPM_TOKENIZERS`; "none" for tokenized text."""
    words: Literal["auto", "a-z0-9", "unicode"] = "auto"
    """Words that ROUGE compares. With `a-z0-9`, they consist of the letters a-z and digits, as in
    rouge-score; with `unicode`, of all letters and digits, and each letter of a script without spaces is
    a word. `auto` selects `unicode` if most letters of the references are not Latin.
    """
    lowercase: bool = False
    """Whether BLEU, chrF and CIDEr-D ignore case. TER (like tercom) and ROUGE always ignore case."""
    stem: bool = True
    """Whether ROUGE compares Porter stems (English only)."""
    sentences: str = "auto"
    """Sentence rule of ROUGE-Lsum, one of `SENTENCE_RULES`; see `split_sentences`."""


@dataclass(frozen=True)
class Resampling:
    """A randomized significance test of several systems against the first.

    Paired bootstrap: Koehn 2004, "Statistical Significance Tests for Machine Translation
    Evaluation". The test set is resampled with replacement, and all systems are scored on the same
    draws. Let d be the difference between two systems on the whole test set, and d* the absolute
    difference on one draw. p is the share of draws in which d* exceeds its own mean by more than
    |d|, with one added to numerator and denominator; it is 1 for systems with equal scores.

    Approximate randomization: Riezler and Maxwell 2005, "On Some Pitfalls in Automatic Evaluation
    and Significance Testing for MT". Two systems swap half of their outputs at random. p is the
    share of draws in which they then differ by more than |d|, with one added to numerator and
    denominator. There are no intervals.
    """

    kind: Literal["bs", "ar"]
    """The method: bs (bootstrap) or ar (approximate randomization), as in sacrebleu and in signatures."""
    n_samples: int
    """Number of draws, 1 to `MAX_SAMPLES`; sacrebleu keeps about 80 bytes per draw and line in memory."""
    seed: int = 12345
    """Random seed; at least 1, because 0 means no fixed seed in sacrebleu."""

    def __post_init__(self) -> None:
        if not 1 <= self.n_samples <= MAX_SAMPLES or self.seed < 1:
            raise NmtkitError(
                f"a significance test requires 1 to {MAX_SAMPLES:,} samples and a seed of at least "
                f"1, not {self.n_samples} samples and seed {self.seed}"
            )

    def __str__(self) -> str:
        """Returns the options in signature form."""
        return f"{self.kind}:{self.n_samples}|seed:{self.seed}"


def missing_references(refs: Sequence[Sequence[str]]) -> list[list[bool]]:
    """Returns whether each reference is missing, i.e. empty although another reference of the example is not."""
    has_text = [any(map(str.strip, references)) for references in zip(*refs, strict=True)]
    return [
        [not line.strip() and other for line, other in zip(lines, has_text, strict=True)]
        for lines in refs
    ]


@dataclass(frozen=True)
class Texts:
    """A system's output with references and sources.

    Examples may have different numbers of references: an empty reference counts as missing if another
    reference of the example is not empty.

    Raises:
        DataError: there are no lines or references, or the numbers of lines differ.
    """

    hyps: Sequence[str]
    refs: Sequence[Sequence[str]]
    """`refs[r][i]` is reference `r` of example `i`; an empty one may count as missing."""
    sources: Sequence[str] | None = None
    """Sources, for metrics that need them."""

    def __post_init__(self) -> None:
        if isinstance(self.hyps, str) or any(
            isinstance(ref, str) for ref in (self.refs, *self.refs)
        ):
            raise DataError(
                "`hyps` must be a list of texts and `refs` a list of such lists, but a single text "
                "was given"
            )
        if not self.refs:
            raise DataError("there is no reference to score against")
        if not self.hyps:
            raise DataError("there are no hypotheses to score")
        others = [(f"reference {number}", ref) for number, ref in enumerate(self.refs, start=1)]
        others += [] if self.sources is None else [("the source", self.sources)]
        for name, lines in others:
            if len(lines) != len(self.hyps):
                raise DataError(
                    f"the hypotheses have {len(self.hyps)} lines, but {name} has {len(lines)}"
                )

    @cached_property
    def references(self) -> list[list[str]]:
        """Returns the references of each example without missing ones."""
        rows = zip(
            zip(*self.refs, strict=True),
            zip(*missing_references(self.refs), strict=True),
            strict=True,
        )
        return [
            [line for line, is_missing in zip(*row, strict=True) if not is_missing] for row in rows
        ]

    @property
    def have_missing(self) -> bool:
        """Returns whether examples have different numbers of references."""
        return any(len(references) < len(self.refs) for references in self.references)


@dataclass(frozen=True)
class Metric:
    """A metric in `METRICS`. A text metric is an `ExampleMetric`, unless a library runs its significance tests."""

    name: str
    """Name of the metric in options and recipes."""
    title: str
    """Title in tables and figures, and `Score.name`."""
    higher_is_better: bool = True
    unit: Literal["", "tokens", "words"] = ""
    """Unit of the metric: tokens of `Options.tokenize`, or white-space separated words; empty for
    other units.
    """
    needs: Literal["texts", "texts and sources", "alignments", "terms", "probabilities"] = "texts"
    family: str = ""
    """A name that selects all metrics of its family."""
    package: str = ""
    """The optional module that computes the metric, if any."""
    extra: str = ""
    """nmtkit's extra that installs this module."""

    @property
    def installed(self) -> bool:
        """Returns whether the package of the metric is installed."""
        return not self.package or find_spec(self.package) is not None


@dataclass(frozen=True)
class TextMetric(Metric, ABC):
    """A metric that compares a system's output with references."""

    @classmethod
    @abstractmethod
    def measure(
        cls,
        metrics: Sequence[Self],
        systems: Sequence[Texts],
        options: Options,
        resampling: Resampling | None,
    ) -> list[list[Comparison]]:
        """Scores systems that share their references with several metrics of one class; returns `[metric][system]`.

        The draws are the same for all systems; the first system is the baseline.
        """

    def score(self, texts: Texts, options: Options) -> Score:
        """Returns a system's score by this metric."""
        return self.measure([self], [texts], options, None)[0][0].score

    def note(self, refs: Sequence[Sequence[str]], options: Options) -> str:
        """Returns a warning about these references, or an empty string."""
        return ""


def text_metric(name: str) -> TextMetric | None:
    """Returns the metric of this name; None if there is none or it does not compare texts."""
    metric = METRICS.get(name) if name in METRICS else None
    return metric if isinstance(metric, TextMetric) else None


def text_metrics(names: Iterable[str] | None = None) -> list[TextMetric]:
    """Returns the metrics with these names that compare texts; by default all of them, sorted by name."""
    metrics = [text_metric(name) for name in (METRICS.names() if names is None else names)]
    return [metric for metric in metrics if metric is not None]


def metric_names(given: Iterable[str]) -> list[str]:
    """Resolves names given by the user: "rouge" selects all four ROUGE metrics, and repeated names count once."""
    names: list[str] = []
    for name in given:
        if name == "comet":
            raise NmtkitError(
                "COMET requires older versions of some libraries than nmtkit does, so it must run in a "
                "separate environment; `nmtkit guide second` shows how to score files with it"
            )
        members = [name] if text_metric(name) is not None else _family(name)
        names += [member for member in members if member not in names]
    for name in names:
        metric = METRICS.get(name)
        if not metric.installed:
            raise NmtkitError(
                f"metric {name!r} is not installed; install it with `pip install "
                f"'nmtkit[{metric.extra}]'`"
            )
    if not names:
        raise NmtkitError("no metric given; specify at least one, for example bleu")
    return names


def _family(name: str) -> list[str]:
    """Returns the names of a family's metrics; NmtkitError if there is no such family."""
    known = text_metrics()
    members = [metric.name for metric in known if metric.family == name]
    if not name or not members:
        valid = sorted(
            {metric.name for metric in known} | {metric.family for metric in known if metric.family}
        )
        if name in METRICS:
            needs = METRICS.get(name).needs
            raise NmtkitError(
                f"metric {name!r} needs {needs} instead of texts: {suggest_names(name, valid)}"
            )
        raise NmtkitError(f"unknown metric {name!r}: {suggest_registered(name, valid)}")
    return members


def score_texts(
    systems: Sequence[Texts],
    metrics: Iterable[str],
    options: Options | None = None,
    resampling: Resampling | None = None,
) -> list[list[Comparison]]:
    """Scores systems with all named metrics, and compares them with the first system; returns `[system][metric]`."""
    names = metric_names(metrics)
    classes: dict[type[TextMetric], list[TextMetric]] = {}
    for metric in text_metrics(names):
        name = metric.name
        if metric.needs == "texts and sources" and any(texts.sources is None for texts in systems):
            raise NmtkitError(f"metric {name!r} requires the source texts; add --source")
        classes.setdefault(type(metric), []).append(metric)
    comparisons: dict[str, list[Comparison]] = {}
    for one, of_class in classes.items():
        rows = one.measure(of_class, systems, options or Options(), resampling)
        comparisons.update(zip((metric.name for metric in of_class), rows, strict=True))
    return [[comparisons[name][number] for name in names] for number in range(len(systems))]


def score_all(
    hyps: Sequence[str],
    refs: Sequence[Sequence[str]],
    metrics: Iterable[str],
    options: Options | None = None,
    sources: Sequence[str] | None = None,
) -> list[Score]:
    """Scores one system with all named metrics, in this order."""
    return [cell.score for cell in score_texts([Texts(hyps, refs, sources)], metrics, options)[0]]
