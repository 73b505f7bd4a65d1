"""Writes synthetic parallel corpora, which pair a text with its translations, and filters out bad pairs.

Back-translation (Sennrich et al. 2016, "Improving neural machine translation models with monolingual data") translates
text in the target language with a model for the reverse direction; the translations serve as sources. Forward
translation, used in sequence-level distillation (Kim and Rush 2016), translates sources; the translations serve as
targets. An interrupted run can be resumed.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from nmtkit.core.errors import DataError
from nmtkit.core.files import lock_alone, write_errors, write_json
from nmtkit.core.formats import parse_json
from nmtkit.inference.result import Translation


@dataclass(frozen=True)
class SyntheticFilter:
    """Limits that a pair must satisfy. Pairs with an empty side or an unfinished translation are always left out."""

    max_ratio: float
    """Maximum ratio between the token counts of the longer and the shorter side."""
    min_log_prob: float | None = None
    """Minimum log-probability per token, including EOS, in nats; None for no limit."""

    def fault(self, line: str, translation: Translation) -> str | None:
        """Returns a short reason for leaving out a pair; None if the pair should be written."""
        if not line.strip() or not translation.text.strip():
            return "empty"
        if not translation.finished:
            return "cut off at the length limit"
        lengths = (len(translation.tokens), len(translation.src_tokens))
        if max(lengths) > self.max_ratio * min(lengths):
            return "too different in length"
        if self.min_log_prob is not None:
            tokens_with_eos = len(translation.tokens) + 1
            if translation.log_prob < self.min_log_prob * tokens_with_eos:
                return "too improbable"
        return None


@dataclass
class SyntheticCorpus:
    """A folder with the corpus files `src.txt` and `tgt.txt`, and with `progress.json`, which records the progress.

    A resumed run continues after the last recorded line; the text and the settings must be the same as before.
    """

    folder: Path
    settings: Mapping[str, Any]
    """Everything that the translations depend on, as JSON values."""
    forward: bool = False
    """Whether the translations are targets instead of sources."""
    read: int = 0
    """Number of finished input lines, whether their pairs were written or left out."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of pairs that were left out, by reason."""
    over: bool = False
    """Whether all lines of the text are finished."""

    def __post_init__(self) -> None:
        self._text_hash = hashlib.sha256()  # hash of the finished lines
        self._expected_hash = ""  # hash recorded by the interrupted run
        self._sizes = [0, 0]  # recorded sizes of the two files, in bytes
        path = self.folder / "progress.json"
        if not path.exists():
            if any(text.exists() for text in self.paths):
                raise DataError(
                    f"{self.folder} contains a text that this command did not write; use a different folder (-o)"
                )
            return
        try:
            progress = parse_json(path.read_bytes(), str(path))
            settings = dict(progress["settings"])
            self.read = int(progress["read"])
            self.over = bool(progress["over"])
            self.left_out = Counter(progress["left_out"])
            self._expected_hash = str(progress["text"])
            self._sizes = [int(size) for size in progress["sizes"]]
        except (LookupError, TypeError, ValueError) as fault:
            raise DataError(f"{path}: damaged ({fault}); use a different folder (-o)") from fault
        for key, value in self.settings.items():
            if settings.get(key) != value:
                raise DataError(
                    f"{self.folder}: this corpus was started with a different {key}: {settings.get(key)!r}, not "
                    f"{value!r}; use the original value to continue, or use a different folder (-o)"
                )

    @property
    def paths(self) -> tuple[Path, Path]:
        """Paths of the source file and the target file."""
        return self.folder / "src.txt", self.folder / "tgt.txt"

    @property
    def written(self) -> int:
        """Number of pairs that were written."""
        return self.read - self.left_out.total()

    def to_translate(self, windows: Iterator[list[str]]) -> Iterator[list[str]]:
        """Yields windows of lines to translate, in which finished lines are replaced with empty ones.

        This way, all lines keep their numbers, which seed the random samples.

        Raises:
            DataError: the text differs from the one that the corpus was started with.
        """
        left = self.read  # number of finished lines that have not been skipped yet
        for window in windows:
            skipped = min(left, len(window))
            self._add_text(window[:skipped])
            left -= skipped
            if skipped and not left and self._text_hash.hexdigest() != self._expected_hash:
                raise DataError(
                    f"{self.folder}: this corpus was started with a different text; use the original text, or a "
                    "different folder (-o)"
                )
            yield [""] * skipped + window[skipped:]
        if left:
            raise DataError(
                f"{self.folder}: this corpus was started with a text of at least {self.read} lines, but this text has "
                "fewer; use the original text, or a different folder (-o)"
            )

    def write(
        self, results: Iterator[Sequence[tuple[str, Translation]]], keep: SyntheticFilter
    ) -> Iterator[int]:
        """Writes pairs of lines and translations, and yields the number of new lines in each group.

        Args:
            results: groups of lines and their translations. The first `read` lines, which are already finished, are
                skipped.
            keep: decides which pairs are written.
        """
        with write_errors(self.folder), ExitStack() as stack:
            self.folder.mkdir(parents=True, exist_ok=True)
            files = [stack.enter_context(open(path, "ab")) for path in self.paths]
            lock_alone(files[0].fileno(), self.folder)
            # Drop pairs that an interrupted run wrote but did not record; their lines are translated again.
            for file, size in zip(files, self._sizes, strict=True):
                file.truncate(size)
                file.seek(size)
            left = self.read
            for group in results:
                new = group[left:]
                left = max(0, left - len(group))
                for line, translation in new:
                    self._write_pair(files, line, translation, keep=keep)
                self.read += len(new)
                self._add_text([line for line, _ in new])
                # While lines are still being skipped, the hash may not cover all finished lines yet.
                if new:
                    self._save(files)
                yield len(new)
            self.over = True
            self._save(files)

    def _write_pair(
        self,
        files: Sequence[BinaryIO],
        line: str,
        translation: Translation,
        *,
        keep: SyntheticFilter,
    ) -> None:
        fault = keep.fault(line, translation)
        if fault is not None:
            self.left_out[fault] += 1
            return
        pair = (line, translation.text) if self.forward else (translation.text, line)
        for file, text in zip(files, pair, strict=True):
            file.write(text.encode("utf-8") + b"\n")

    def _add_text(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._text_hash.update(line.encode("utf-8", "surrogatepass") + b"\n")

    def _save(self, files: Sequence[BinaryIO]) -> None:
        for file in files:
            file.flush()
        progress = {
            "settings": self.settings,
            "read": self.read,
            "over": self.over,
            "left_out": dict(self.left_out),
            "text": self._text_hash.hexdigest(),
            "sizes": [file.tell() for file in files],
        }
        write_json(self.folder / "progress.json", progress)


def describe_faults(left_out: Mapping[str, int]) -> str:
    """Lists how many pairs were left out for each reason, most frequent first."""
    faults = sorted(left_out.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {fault}" for fault, count in faults)
