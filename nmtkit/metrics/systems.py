"""Scores of one or more systems, and notes on them, for the output of commands."""

from collections.abc import Sequence, Sized
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nmtkit.core.errors import DataError
from nmtkit.data.text.files.names import STDIN
from nmtkit.data.text.scripts import count_characters, script_shares, unspaced_script_of_lines
from nmtkit.metrics.metric import (
    Comparison,
    Options,
    Resampling,
    TextMetric,
    Texts,
    metric_names,
    missing_references,
    score_texts,
    text_metrics,
)


@dataclass(frozen=True)
class ScoredSystem:
    """A system: its output file, its name in tables and figures, and its score by each metric."""

    path: str
    title: str
    scores: list[Comparison]

    def record(self, **more: object) -> dict[str, Any]:
        """Returns the JSON record; `more` precedes the scores."""
        scores = []
        for cell in self.scores:
            drawn = {} if cell.interval is None else {"mean": cell.mean, "interval": cell.interval}
            tested = (
                {} if cell.interval is None and cell.p_value is None else {"p_value": cell.p_value}
            )
            scores.append(asdict(cell.score) | drawn | tested)
        return {"system": self.path, **more, "scores": scores}


def score_systems(
    systems: Sequence[tuple[str, Sequence[str]]],
    refs: Sequence[Sequence[str]],
    metrics: Sequence[str],
    options: Options,
    resampling: Resampling | None,
    sources: Sequence[str] | None,
) -> list[ScoredSystem]:
    """Scores several systems, given as files with texts."""
    paths = [path for path, _ in systems]
    rows = score_texts(
        [Texts(hyps, refs, sources) for _, hyps in systems], metrics, options, resampling
    )
    return [
        ScoredSystem(path, title, row)
        for path, title, row in zip(paths, titles(paths), rows, strict=True)
    ]


def notes(metrics: Sequence[str], refs: Sequence[Sequence[str]], options: Options) -> list[str]:
    """Returns the metrics' warnings about the references, each once."""
    chosen = text_metrics(metric_names(metrics))
    texts = [
        _note_on_missing(refs),
        note_on_spaces(chosen, [line for lines in refs for line in lines], options),
    ]
    texts += [metric.note(refs, options) for metric in chosen]
    return [text for text in dict.fromkeys(texts) if text]


def _note_on_missing(refs: Sequence[Sequence[str]]) -> str:
    missing = missing_references(refs)
    count = sum(map(sum, missing))
    if not count:
        return ""
    first = min(row.index(True) for row in missing if any(row)) + 1
    are, they = ("is", "it is") if count == 1 else ("are", "they are")
    return (
        f"{count:,} of {len(refs) * len(refs[0]):,} references {are} empty (first on line {first}) "
        f"while other references of the same line are not; {they} treated as missing"
    )


_SEE_NO_WORDS = ("13a", "intl", "none", "ko-mecab")
"""Tokenizers that treat consecutive letters of unspaced scripts as one word."""


_JAPANESE_SHARE = 0.1
"""A text with at least this share of kana is Japanese; Chinese has none."""


def note_on_spaces(metrics: Sequence[TextMetric], lines: Sequence[str], options: Options) -> str:
    """Returns a warning if word-based metrics are used for a language without spaces, otherwise an empty string."""
    script = unspaced_script_of_lines(lines)
    if not script:
        return ""
    shares = script_shares(count_characters(lines))
    if shares.get("Hiragana", 0.0) + shares.get("Katakana", 0.0) >= _JAPANESE_SHARE:
        script = "Japanese"
    is_blind = options.tokenize in _SEE_NO_WORDS or (
        options.tokenize == "zh" and script not in ("Han", "Bopomofo")
    )
    of_tokens = [metric.title for metric in metrics if metric.unit == "tokens" and is_blind]
    of_words = [metric.title for metric in metrics if metric.unit == "words"]
    if not of_tokens and not of_words:
        return ""
    named = [*of_tokens, *of_words]
    say = "says" if len(named) == 1 else "say"
    script = "Chinese" if script == "Han" else script
    text = (
        f"{' and '.join(named)} {say} little about the quality of these texts, because {script} is written "
        "without spaces between words"
    )
    if of_tokens:
        text += (
            f", and the tokenizer {options.tokenize} treats each line as one word or a few words. "
            "Use --tokenize "
        )
        text += f"{_tokenizer_for(script)} (in a recipe: evaluation.tokenize), or use chrF"
    else:
        text += ", and it treats the text between two spaces as one word. Use chrF"
    return f"{text} (-m chrf)"


def _tokenizer_for(script: str) -> str:
    """Returns BLEU tokenizers that split a script into words or characters, the usual one first."""
    if script == "Japanese":
        return (
            "char (or ja-mecab after pip install 'sacrebleu[ja]')"
            if find_spec("MeCab") is None
            else "ja-mecab"
        )
    return (
        "zh or char"
        if script in ("Chinese", "Bopomofo")
        else "char (or flores200, which needs an internet connection on first use)"
    )


def titles(paths: Sequence[str]) -> Sequence[str]:
    """Returns file names without folders if they are still distinct."""
    names = [Path(path).name for path in paths]
    return names if len(set(names)) == len(set(paths)) else paths


def named(path: str) -> str:
    """Returns the name by which messages refer to a file."""
    return STDIN if path == "-" else path


def require_equal_counts(files: Sequence[tuple[str, Sized]], why: str = "") -> None:
    """Raises an error unless all files (paths with lines) have the same number of lines; `why` explains it."""
    (first, lines), *others = files
    for path, other in others:
        if len(other) != len(lines):
            raise DataError(
                f"the files have different line counts: {named(first)} has {len(lines)} lines, but "
                f"{named(path)} has {len(other)}; " + (why or "lines must correspond one to one")
            )
