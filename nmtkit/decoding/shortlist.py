"""A vocabulary shortlist: the few target tokens that a search considers for the tokens of its source.

Jean et al. 2015, "On Using Very Large Target Vocabulary for Neural Machine Translation", section 3.3, and Mi et al.
2016, "Vocabulary Manipulation for Neural Machine Translation": the candidates of a sentence are the target tokens most
often linked to each of its tokens in aligned pairs, and the most frequent target tokens.

The file is text. Ids are those of the run's vocabulary files:

    nmtkit shortlist 1
    vocabularies CHECKSUM SOURCE_SIZE TARGET_SIZE
    frequent ID ID ...
    SOURCE_ID TARGET_ID TARGET_ID ...
    end

There is a line for each source token with candidates, in the order of ids; the most often linked candidates come first.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nmtkit.core.errors import DataError
from nmtkit.core.files import atomic_user_path, write_errors
from nmtkit.data.batches.batch import NEW_WORD, Batch
from nmtkit.data.text.alignments import Link
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import PAD, SPECIALS

HEAD = "nmtkit shortlist 1"
END = "end"
MAKE_HINT = "`nmtkit align --shortlist FILE` makes one"
LINKS_AT_ONCE = 1 << 20
"""Links collected before they are counted."""


@dataclass(frozen=True)
class Shortlist:
    """The candidates of every source token."""

    starts: Tensor
    """Where the candidates of each source token begin in `words`, and the end: `(V_src+1,)`, int64."""
    words: Tensor
    """The candidates of all source tokens, concatenated, best first: `(M,)`, int64."""
    always: Tensor
    """Candidates of every sentence: frequent and special tokens, `(V,)`, bool."""

    @classmethod
    def of(cls, candidates: Sequence[Sequence[int]], frequent: Sequence[int], size: int) -> "Shortlist":
        """From the candidates of each source token and of all; `size` is V."""
        starts = np.cumsum([0, *map(len, candidates)], dtype=np.int64)
        words = np.fromiter((word for row in candidates for word in row), np.int64, int(starts[-1]))
        always = torch.zeros(size, dtype=torch.bool)
        always[[*range(len(SPECIALS)), *frequent]] = True
        return cls(torch.from_numpy(starts), torch.from_numpy(words), always)

    def to(self, device: torch.device) -> "Shortlist":
        """Moves it to a device."""
        return Shortlist(self.starts.to(device), self.words.to(device), self.always.to(device))

    def candidates(self, batch: Batch, copies: bool, prefix: Tensor | None = None) -> Tensor:
        """The candidates of each sentence, `(B,V)`, bool.

        `copies`: include source tokens that are in the target vocabulary. `prefix` `(B,P)`: further extended ids to
        include.
        """
        src = batch.inputs.ids  # (B,S)
        begin = self.starts[src].flatten()  # (B*S,): where the candidates of each token begin in `words`
        counts = self.starts[src + 1].flatten() - begin  # (B*S,)
        # Entry m of what follows is one candidate of one source token; there are M = counts.sum() of them.
        before = counts.cumsum(0) - counts  # (B*S,): entries of the tokens before
        first = (begin - before).repeat_interleave(counts)  # (M,)
        words = self.words[first + torch.arange(len(first), device=src.device)]  # (M,)
        sentences = torch.arange(batch.size, device=src.device).repeat_interleave(src.shape[1])  # (B*S,)
        chosen = self.always.repeat(batch.size, 1)  # (B,V)
        chosen[sentences.repeat_interleave(counts), words] = True
        further = []
        if copies:
            further.append(batch.inputs.copy.extended)
        if prefix is not None:
            further.append(prefix)
        for ids in further:
            is_no_word = (ids >= len(self.always)) | (ids == NEW_WORD)
            chosen.scatter_(1, ids.masked_fill(is_no_word, PAD), True)
        return chosen


class LinkCounts:
    """Link counts of token pairs; memory grows with the number of different links.

    `src` and `tgt` are vocabulary sizes.
    """

    def __init__(self, src: int, tgt: int) -> None:
        self._sizes = src, tgt
        self._links = np.empty(0, dtype=np.int64)  # source * V + target, ascending
        self._counts = np.empty(0, dtype=np.int64)
        self._seen = np.zeros(tgt, dtype=np.int64)  # how often each target token was there
        self._recent: list[int] = []

    def add(self, links: Iterable[Link], src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> None:
        """Counts the links between the words of a pair; `src` and `tgt` are the tokens of each word."""
        size = self._sizes[1]
        self._recent += [one * size + other for i, j in links for one in src[i] for other in tgt[j]]
        np.add.at(self._seen, np.fromiter((token for word in tgt for token in word), np.int64), 1)
        if len(self._recent) >= LINKS_AT_ONCE:
            self._count()

    def _count(self) -> None:
        recent = np.array(self._recent, dtype=np.int64)
        self._recent = []
        links, counts = np.unique(recent, return_counts=True)
        all_links = np.concatenate([self._links, links])
        all_counts = np.concatenate([self._counts, counts])
        self._links, places = np.unique(all_links, return_inverse=True)
        self._counts = np.zeros(len(self._links), dtype=np.int64)
        np.add.at(self._counts, places, all_counts)

    def candidates(self, best: int) -> list[list[int]]:
        """For each source token the most often linked target tokens, at most `best`."""
        self._count()
        src, tgt = np.divmod(self._links, self._sizes[1])
        order = np.lexsort((tgt, -self._counts, src))
        ends = np.searchsorted(src, np.arange(self._sizes[0] + 1))
        of_all: list[int] = tgt[order].tolist()
        return [of_all[a : min(b, a + best)] for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]

    def frequent(self, most: int) -> list[int]:
        """The most frequent target tokens, at most so many, without special ones."""
        order = np.argsort(-self._seen, kind="stable")
        tokens = order[(self._seen[order] > 0) & (order >= len(SPECIALS))]
        best: list[int] = tokens[:most].tolist()
        return best


@contextmanager
def shortlist_writer(path: Path, tokenizers: Tokenizers, best: int, frequent: int) -> Iterator[LinkCounts]:
    """Counts links in its block, and writes the shortlist at the end; a path that cannot be written fails at once.

    `best` and `frequent` limit the candidates of a source token and of all sentences.
    """
    counts = LinkCounts(len(tokenizers.src.vocabulary), len(tokenizers.tgt.vocabulary))
    with ExitStack() as opened:
        with write_errors(path):
            beside = opened.enter_context(atomic_user_path(path))
            beside.touch()
        yield counts
        with write_errors(path):
            with beside.open("w", encoding="utf-8") as file:
                file.writelines(shortlist_lines(tokenizers, counts.candidates(best), counts.frequent(frequent)))
            opened.close()


def shortlist_lines(
    tokenizers: Tokenizers, candidates: Iterable[Sequence[int]], frequent: Iterable[int]
) -> Iterator[str]:
    """The lines of a file with the candidates of each source token, and of all."""
    yield f"{HEAD}\n"
    yield f"{_made_for(tokenizers)}\n"
    yield " ".join(["frequent", *map(str, frequent)]) + "\n"
    for src, row in enumerate(candidates):
        if row:
            yield f"{src} {' '.join(map(str, row))}\n"
    yield f"{END}\n"


def _made_for(tokenizers: Tokenizers) -> str:
    return f"vocabularies {tokenizers.checksum} {len(tokenizers.src.vocabulary)} {len(tokenizers.tgt.vocabulary)}"


def read_shortlist(path: Path, tokenizers: Tokenizers) -> Shortlist:
    """Reads a file; DataError, with the line, if it is no shortlist, damaged, or of other vocabularies."""
    src_size, tgt_size = len(tokenizers.src.vocabulary), len(tokenizers.tgt.vocabulary)
    lines = read_lines(path)
    if next(lines, "")[: len(HEAD) + 1] != HEAD:
        raise DataError(f"{path}, line 1: not {HEAD!r}, so it is not a shortlist of this version; {MAKE_HINT}")
    if next(lines, "") != _made_for(tokenizers):
        raise DataError(f"{path}, line 2: it belongs to other vocabularies than this run's; {MAKE_HINT} for it")
    name, *rest = next(lines, "").split(" ")
    frequent = _ids(rest, tgt_size)
    if name != "frequent" or frequent is None:
        raise DataError(f"{path}, line 3: expected the frequent tokens; {MAKE_HINT}")
    candidates: list[list[int]] = []
    for number, line in enumerate(lines, start=4):
        if line == END and next(lines, None) is None:
            break
        first, *rest = line.split(" ")
        src, tgt = _ids([first], src_size), _ids(rest, tgt_size)
        if src is None or tgt is None or src[0] < len(candidates):
            raise DataError(
                f"{path}, line {number}: expected the id of a source token, in order, and those of target tokens "
                f"(0 to {tgt_size - 1}), each once; {MAKE_HINT}"
            )
        candidates += [[] for _ in range(src[0] - len(candidates))]
        candidates.append(tgt)
    else:
        raise DataError(f"{path}: truncated: its last line is not {END!r}; copy it again")
    return Shortlist.of(candidates + [[] for _ in range(src_size - len(candidates))], frequent, tgt_size)


def _ids(numbers: Sequence[str], size: int) -> list[int] | None:
    """Distinct ids below `size`; None for anything else."""
    # All at once, since there are millions.
    is_number = all(map(str.isascii, numbers)) and all(map(str.isdecimal, numbers))
    if not is_number or max(map(len, numbers), default=0) > len(str(size)):
        return None
    ids = [*map(int, numbers)]
    return ids if max(ids, default=0) < size and len(set(ids)) == len(ids) else None
