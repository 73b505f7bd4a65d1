"""Synthetic parallel text: the translations of a text, written beside it, filtered, and gone on with after a stop.

Back-translation (Sennrich et al. 2016, "Improving neural machine translation models with monolingual data") translates
text of the target language by a model of the other direction: the translations are sources. Forward translation, the
sequence-level distillation of Kim and Rush 2016, translates sources: the translations are targets.
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
    """Which pairs are left out, beside those with an empty side and those whose translation was cut."""

    max_ratio: float
    """The longer side has at most this many times the tokens of the shorter."""
    min_log_prob: float | None = None
    """The log-probability of a translation is at least this many nats a token, EOS counted; None: any."""

    def fault(self, line: str, one: Translation) -> str | None:
        """Why a pair is left out, in a word or two; None if it is kept."""
        lengths = len(one.tokens), len(one.src_tokens)
        if not line.strip() or not one.text.strip():
            return "empty"
        if not one.finished:
            return "cut at the length limit"
        if max(lengths) > self.max_ratio * min(lengths):
            return "too unlike in length"
        if self.min_log_prob is not None and one.log_prob < self.min_log_prob * (len(one.tokens) + 1):
            return "too improbable"
        return None


@dataclass
class SyntheticCorpus:
    """The files `src.txt` and `tgt.txt` of a folder, and `progress.json`: what was written of them so far.

    Lines of a text that were translated before a stop are not translated again; the text and the settings must be
    those of the beginning.
    """

    folder: Path
    settings: Mapping[str, Any]
    """All that the translations depend on, as JSON values."""
    forward: bool = False
    """Whether the translations are targets."""
    read: int = 0
    """Lines of the text that are done."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Pairs that were left out, by fault."""
    over: bool = False
    """Whether the text was read to its end."""

    def __post_init__(self) -> None:
        self._text = hashlib.sha256()
        self._expected, self._sizes = "", [0, 0]
        path = self.folder / "progress.json"
        if not path.exists():
            if any(one.exists() for one in self.paths):
                raise DataError(f"{self.folder}: has a text that is not of this command; name another folder with -o")
            return
        try:
            before = parse_json(path.read_bytes(), str(path))
            settings = dict(before["settings"])
            self.read, self.over = int(before["read"]), bool(before["over"])
            self.left_out = Counter(before["left_out"])
            self._expected, self._sizes = str(before["text"]), [*map(int, before["sizes"])]
        except (LookupError, TypeError, ValueError) as fault:
            raise DataError(f"{path}: damaged ({fault}); name another folder with -o") from fault
        for key, value in self.settings.items():
            if settings.get(key) != value:
                raise DataError(
                    f"{self.folder}: was begun with another {key}: {settings.get(key)!r}, not {value!r}; take that "
                    "again to go on, or name another folder with -o"
                )

    @property
    def paths(self) -> tuple[Path, Path]:
        """The file of sources and that of targets."""
        return self.folder / "src.txt", self.folder / "tgt.txt"

    @property
    def kept(self) -> int:
        """Pairs that were written."""
        return self.read - self.left_out.total()

    def to_translate(self, windows: Iterator[list[str]]) -> Iterator[list[str]]:
        """The lines to translate, with an empty one for each that is done: so what is sampled for the others stays."""
        left = self.read
        for window in windows:
            skipped = min(left, len(window))
            self._add_text(window[:skipped])
            left -= skipped
            if skipped and not left and self._text.hexdigest() != self._expected:
                raise DataError(f"{self.folder}: was begun with another text; take that one, or another folder with -o")
            yield [""] * skipped + window[skipped:]
        if left:
            raise DataError(f"{self.folder}: was begun with a text of at least {self.read} lines, and this has fewer")

    def write(self, results: Iterator[Sequence[tuple[str, Translation]]], keep: SyntheticFilter) -> Iterator[int]:
        """Writes the pairs of lines and their translations, and gives the number of each group; resumes after a stop.

        The first `read` lines of the results are passed over.
        """
        with write_errors(self.folder), ExitStack() as stack:
            self.folder.mkdir(parents=True, exist_ok=True)
            files = [stack.enter_context(open(path, "ab")) for path in self.paths]
            lock_alone(files[0].fileno(), self.folder)
            for file, size in zip(files, self._sizes, strict=True):  # what came after the last record is done again
                file.truncate(size)
                file.seek(size)
            left = self.read
            for group in results:
                new = group[left:]
                left = max(0, left - len(group))
                for line, one in new:
                    fault = keep.fault(line, one)
                    if fault is not None:
                        self.left_out[fault] += 1
                        continue
                    pair = (line, one.text) if self.forward else (one.text, line)
                    for file, text in zip(files, pair, strict=True):
                        file.write(text.encode("utf-8") + b"\n")
                self.read += len(new)
                self._add_text([line for line, _ in new])
                if new:  # of lines that were done before, not all may have been read again
                    self._save(files)
                yield len(new)
            self.over = True
            self._save(files)

    def _add_text(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._text.update(line.encode("utf-8", "surrogatepass") + b"\n")

    def _save(self, files: Sequence[BinaryIO]) -> None:
        for file in files:
            file.flush()
        facts = {"settings": self.settings, "read": self.read, "over": self.over, "left_out": dict(self.left_out)}
        sizes = [file.tell() for file in files]
        write_json(self.folder / "progress.json", facts | {"text": self._text.hexdigest(), "sizes": sizes})


def describe_faults(left_out: Mapping[str, int]) -> str:
    """How many pairs were left out for which reason, in words."""
    return ", ".join(f"{count:,} {fault}" for fault, count in sorted(left_out.items(), key=lambda one: -one[1]))
