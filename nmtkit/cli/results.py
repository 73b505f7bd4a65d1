"""How `translate` and `summarize` print what was found, and how that is read again."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nmtkit import console
from nmtkit.data.tokenizer import Tokenizer
from nmtkit.errors import DataError
from nmtkit.settings import parse_json
from nmtkit.translation.result import Translation, copied_spans
from nmtkit.translation.summarizer import Summary

_PLAIN = "for translations in plain text take another suffix, such as .txt"


@dataclass
class Printer:
    """Writes results to standard output, line by line, and counts what a user should be told at the end."""

    tokenizer: Tokenizer
    """Of the target."""
    n_best: int
    """How many results of each line were asked for."""
    scores: bool
    """Whether score and log-probability stand before each."""
    as_json: bool
    """Whether to write objects."""
    replaced: bool
    """Whether unknown words were to be replaced, so that objects say which."""
    lines: int = 0
    """Lines of input that were written."""
    unfinished: int = 0
    """Results that reached the length limit before their end."""
    cut: int = 0
    """Lines of input that were not read to their end."""

    def write(self, found: Sequence[Translation]) -> None:
        """Writes the results of one line of input, best first."""
        self._count(found[:1])
        best = found[0]
        if self.as_json:
            record: dict[str, Any] = {"line": self.lines, "source_tokens": best.src_tokens}
            if best.src_left_out:
                record["source_tokens_left_out"] = best.src_left_out
            write_json_line(record | {"best": self._record(best), "others": [self._record(one) for one in found[1:]]})
        elif self.n_best > 1:
            for one in found:
                _write(f"{self.lines}\t{one.score:.6f}\t{one.log_prob:.6f}\t{one.text}")
        elif self.scores:
            _write(f"{best.score:.6f}\t{best.log_prob:.6f}\t{best.text}")
        else:
            _write(best.text)

    def write_windows(self, summary: Summary) -> None:
        """Writes the summary of one article that was read in windows."""
        self._count(summary.windows)
        if self.as_json:
            windows = [{"source_tokens": one.src_tokens, "best": self._record(one)} for one in summary.windows]
            write_json_line({"line": self.lines, "text": summary.text, "windows": windows})
        else:
            _write(summary.text)

    def say_unfinished(self, results: str, remedy: str) -> None:
        """Says on stderr how many results reached the length limit, and by which options it is raised."""
        if self.unfinished:
            console.say(
                f"{self.unfinished} of the {results} reached the length limit before their end; "
                f"raise it with {remedy} if they look cut",
                stderr=True,
            )

    def _count(self, found: Sequence[Translation]) -> None:
        self.lines += 1
        self.unfinished += any(not one.finished for one in found)
        self.cut += any(one.src_left_out > 0 for one in found)

    def _record(self, one: Translation) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "text": one.text,
            "score": one.score,
            "log_prob": one.log_prob,
            "tokens": one.tokens,
            "token_log_probs": one.token_log_probs,
            "finished": one.finished,
        }
        if self.replaced:
            fields["replaced"] = [asdict(replacement) for replacement in one.replaced]
        if one.copied is not None:
            spans = copied_spans(self.tokenizer, one.tokens, one.src_tokens, one.copied)
            fields |= {"p_gen": one.p_gen, "copied": one.copied, "copied_spans": [asdict(span) for span in spans]}
        return fields


def read_translation(line: str, where: str) -> Translation:
    """The best translation of a line that `nmtkit translate --json` printed.

    Raises:
        DataError: the line is nothing of the kind; `where` is what the message calls it.
    """
    try:
        record = parse_json(line, where)
    except DataError as fault:
        raise DataError(f"{fault}, so it is not what `nmtkit translate --json` prints; {_PLAIN}") from fault
    if isinstance(record, dict) and "windows" in record:
        raise DataError(
            f"{where}: a summary of several windows, each of an article of its own, cannot be rescored as one; "
            "leave --window out, or write the summaries as plain text"
        )
    try:
        best = record["best"]
        return Translation(
            text=str(best["text"]),
            score=float(best["score"]),
            log_prob=float(best["log_prob"]),
            tokens=[str(token) for token in best["tokens"]],
            token_log_probs=[],
            src_tokens=[],
            finished=bool(best["finished"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError) as fault:
        raise DataError(f"{where}: not what `nmtkit translate --json` prints ({fault!r}); {_PLAIN}") from fault


def write_json_line(record: dict[str, Any]) -> None:
    """Writes an object as a line of standard output."""
    _write(json.dumps(record, ensure_ascii=False))


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
