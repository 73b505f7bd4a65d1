"""Vocabulary shortlists: the few target tokens that a search considers, given the tokens of the source.

Jean et al. 2015, "On Using Very Large Target Vocabulary for Neural Machine Translation", section 3.3, and Mi et al.
2016, "Vocabulary Manipulation for Neural Machine Translation". The candidates for a sentence are the target tokens that
are most often linked to its tokens in aligned sentence pairs, and the most frequent target tokens.

A shortlist is stored in a text file, with token ids as in the run's vocabulary files:

    nmtkit shortlist 1
    vocabularies CHECKSUM SOURCE_SIZE TARGET_SIZE
    frequent ID ID ...
    SOURCE_ID TARGET_ID TARGET_ID ...
    end

Each source token that has candidates has a line. The lines are sorted by source id, and in each line the most
frequently linked candidates come first.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
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
MAKE_HINT = "`nmtkit align --shortlist FILE` creates one"
LINKS_AT_ONCE = 1 << 20
"""Number of links that are collected before they are counted."""


@dataclass(frozen=True)
class Shortlist:
    """The candidates for every source token."""

    starts: Tensor
    """Index in `words` at which the candidates of each source token begin, followed by the length of `words`:
    `(V_src+1,)`, int64."""
    words: Tensor
    """The candidates for all source tokens, one token after another, best first for each token: `(M,)`, int64."""
    always: Tensor
    """Mask of the tokens that are candidates for every sentence: frequent and special tokens, `(V,)`, bool."""

    @classmethod
    def from_candidates(
        cls, candidates: Sequence[Sequence[int]], frequent: Sequence[int], vocabulary_size: int
    ) -> "Shortlist":
        """Builds a shortlist from the candidates for each source token and the `frequent` ones for all sentences."""
        counts = [len(row) for row in candidates]
        starts = np.cumsum([0, *counts], dtype=np.int64)  # (V_src+1,)
        n_words = int(starts[-1])
        words = np.fromiter(chain.from_iterable(candidates), np.int64, count=n_words)  # (M,)
        always = torch.zeros(vocabulary_size, dtype=torch.bool)  # (V,)
        always[: len(SPECIALS)] = True
        always[list(frequent)] = True
        return cls(torch.from_numpy(starts), torch.from_numpy(words), always)

    def to(self, device: torch.device) -> "Shortlist":
        """Returns a copy of the shortlist on a device."""
        return Shortlist(self.starts.to(device), self.words.to(device), self.always.to(device))

    def candidates(self, batch: Batch, copies: bool, prefix: Tensor | None = None) -> Tensor:
        """Returns a mask of the candidates for each sentence, `(B,V)`, bool.

        Args:
            batch: the sources.
            copies: whether to include source tokens that are also in the target vocabulary.
            prefix: other extended ids to include `(B,P)`.
        """
        src = batch.inputs.ids  # (B,S)
        device = src.device
        starts = self.starts[src].flatten()  # (B*S,)
        ends = self.starts[src + 1].flatten()  # (B*S,)
        counts = ends - starts  # (B*S,)

        # The candidates for all source tokens, one token after another: M = counts.sum(). Candidate m is in `words` at
        # the index start + m - n_before, where start and n_before belong to its source token.
        n_before = counts.cumsum(0) - counts  # (B*S,)
        offsets = (starts - n_before).repeat_interleave(counts)  # (M,)
        words = self.words[offsets + torch.arange(len(offsets), device=device)]  # (M,)
        token_sentences = torch.arange(batch.size, device=device).repeat_interleave(
            src.shape[1]
        )  # (B*S,)
        sentences = token_sentences.repeat_interleave(counts)  # (M,)

        is_candidate = self.always.repeat(batch.size, 1)  # (B,V)
        is_candidate[sentences, words] = True
        further_ids = []
        if copies:
            further_ids.append(batch.inputs.copy.extended)
        if prefix is not None:
            further_ids.append(prefix)
        for ids in further_ids:
            is_no_word = (ids >= len(self.always)) | (ids == NEW_WORD)  # (B,*)
            is_candidate.scatter_(1, ids.masked_fill(is_no_word, PAD), True)
        return is_candidate


class LinkCounts:
    """Counts links between source and target tokens. Memory use grows with the number of distinct links.

    Args:
        src_size: size of the source vocabulary.
        tgt_size: size of the target vocabulary.
    """

    def __init__(self, src_size: int, tgt_size: int) -> None:
        self._src_size = src_size
        self._tgt_size = tgt_size
        # A link is encoded as one integer, source id * target size + target id.
        self._links = np.empty(0, dtype=np.int64)  # (links,): distinct, in ascending order
        self._counts = np.empty(0, dtype=np.int64)  # (links,): how often each occurred
        # How often each target token occurred.
        self._occurrences = np.zeros(tgt_size, dtype=np.int64)  # (V,)
        self._recent_links: list[int] = []  # links that have not been counted yet

    def add(
        self, links: Iterable[Link], src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]
    ) -> None:
        """Counts the links between the words of a sentence pair; `src` and `tgt` are the token ids of each word."""
        for src_word, tgt_word in links:
            for src_id in src[src_word]:
                first_link = src_id * self._tgt_size
                for tgt_id in tgt[tgt_word]:
                    self._recent_links.append(first_link + tgt_id)
        tgt_ids = np.fromiter(chain.from_iterable(tgt), np.int64)  # (tokens,)
        np.add.at(self._occurrences, tgt_ids, 1)
        if len(self._recent_links) >= LINKS_AT_ONCE:
            self._count()

    def _count(self) -> None:
        """Adds the recent links to `_links` and `_counts`."""
        recent_links = np.array(self._recent_links, dtype=np.int64)  # (recent,)
        self._recent_links = []
        links, counts = np.unique(recent_links, return_counts=True)  # (new,)
        all_links = np.concatenate([self._links, links])  # (old+new,)
        all_counts = np.concatenate([self._counts, counts])  # (old+new,)
        self._links, places = np.unique(all_links, return_inverse=True)  # (links,), (old+new,)
        self._counts = np.zeros(len(self._links), dtype=np.int64)  # (links,)
        np.add.at(self._counts, places, all_counts)

    def candidates(self, best: int) -> list[list[int]]:
        """Returns the target tokens that are most frequently linked to each source token, at most `best` for each."""
        self._count()
        src_ids, tgt_ids = np.divmod(self._links, self._tgt_size)  # (links,)
        # Sorted by source token, then by descending frequency, then by target id.
        order = np.lexsort((tgt_ids, -self._counts, src_ids))  # (links,)
        ordered_tgt_ids: list[int] = tgt_ids[order].tolist()
        all_src_ids = np.arange(self._src_size + 1)  # (V_src+1,)
        bounds = np.searchsorted(src_ids, all_src_ids).tolist()
        candidates = []
        for start, end in pairwise(bounds):
            limited_end = min(end, start + best)
            candidates.append(ordered_tgt_ids[start:limited_end])
        return candidates

    def frequent(self, limit: int) -> list[int]:
        """Returns the most frequent target tokens, without special tokens, at most `limit` of them."""
        by_frequency = np.argsort(-self._occurrences, kind="stable")  # (V,)
        occurs = self._occurrences[by_frequency] > 0  # (V,)
        is_special = by_frequency < len(SPECIALS)  # (V,)
        tokens = by_frequency[occurs & ~is_special]  # (tokens,)
        frequent_tokens: list[int] = tokens[:limit].tolist()
        return frequent_tokens


@contextmanager
def shortlist_writer(
    path: Path, tokenizers: Tokenizers, best: int, frequent: int
) -> Iterator[LinkCounts]:
    """Yields a counter of links for the `with` block, and writes the shortlist at the end of the block.

    If the path is not writable, this raises an error before the block runs.

    Args:
        path: path of the shortlist file.
        tokenizers: the tokenizers of the run.
        best: maximum number of candidates for a source token.
        frequent: number of frequent target tokens that are candidates for every sentence.
    """
    counts = LinkCounts(len(tokenizers.src.vocabulary), len(tokenizers.tgt.vocabulary))
    with ExitStack() as open_file:
        with write_errors(path):
            temporary_path = open_file.enter_context(atomic_user_path(path))
            temporary_path.touch()
        yield counts
        with write_errors(path):
            lines = shortlist_lines(tokenizers, counts.candidates(best), counts.frequent(frequent))
            with temporary_path.open("w", encoding="utf-8") as file:
                file.writelines(lines)
            open_file.close()


def shortlist_lines(
    tokenizers: Tokenizers, candidates: Iterable[Sequence[int]], frequent: Iterable[int]
) -> Iterator[str]:
    """Yields the lines of a shortlist file. The `frequent` tokens are candidates for every sentence."""
    yield f"{HEAD}\n"
    yield f"{_vocabularies_line(tokenizers)}\n"
    yield " ".join(["frequent", *map(str, frequent)]) + "\n"
    for src_id, row in enumerate(candidates):
        if row:
            yield f"{src_id} {' '.join(map(str, row))}\n"
    yield f"{END}\n"


def _vocabularies_line(tokenizers: Tokenizers) -> str:
    return f"vocabularies {tokenizers.checksum} {len(tokenizers.src.vocabulary)} {len(tokenizers.tgt.vocabulary)}"


def read_shortlist(path: Path, tokenizers: Tokenizers) -> Shortlist:
    """Reads a shortlist from a file.

    Raises:
        DataError: the file is not a shortlist, is damaged, or belongs to different vocabularies. The message contains
            the line number.
    """
    src_size = len(tokenizers.src.vocabulary)
    tgt_size = len(tokenizers.tgt.vocabulary)
    lines = read_lines(path)
    # Only the beginning is compared, because the first line of a file that is not a shortlist may be very long.
    if next(lines, "")[: len(HEAD) + 1] != HEAD:
        raise DataError(
            f"{path}, line 1: expected {HEAD!r}; the file is not a shortlist of this version. {MAKE_HINT}"
        )
    if next(lines, "") != _vocabularies_line(tokenizers):
        raise DataError(
            f"{path}, line 2: the shortlist was made for different vocabularies; {MAKE_HINT} for this run"
        )
    name, *fields = next(lines, "").split(" ")
    frequent = _parse_ids(fields, tgt_size)
    if name != "frequent" or frequent is None:
        raise DataError(f"{path}, line 3: expected the ids of the frequent tokens; {MAKE_HINT}")

    candidates: list[list[int]] = []
    for number, line in enumerate(lines, start=4):
        if line == END and next(lines, None) is None:
            break
        first_field, *fields = line.split(" ")
        src_ids = _parse_ids([first_field], src_size)
        tgt_ids = _parse_ids(fields, tgt_size)
        if src_ids is None or tgt_ids is None or src_ids[0] < len(candidates):
            raise DataError(
                f"{path}, line {number}: expected the id of a source token, in ascending order, and the ids of its "
                f"target tokens (0 to {tgt_size - 1}), each once; {MAKE_HINT}"
            )
        _append_empty(candidates, src_ids[0])
        candidates.append(tgt_ids)
    else:
        raise DataError(f"{path}: truncated: the last line is not {END!r}; copy the file again")
    _append_empty(candidates, src_size)
    return Shortlist.from_candidates(candidates, frequent, tgt_size)


def _append_empty(candidates: list[list[int]], size: int) -> None:
    """Appends empty lists for source tokens without candidates, until there are `size` lists."""
    while len(candidates) < size:
        candidates.append([])


def _parse_ids(fields: Sequence[str], size: int) -> list[int] | None:
    """Parses distinct ids below `size`; returns None if a field is not a valid id or occurs twice."""
    # `map` and `all` check the fields in C, because a file may contain millions of fields.
    are_numbers = all(map(str.isascii, fields)) and all(map(str.isdecimal, fields))
    if not are_numbers:
        return None
    # Longer fields are rejected before calling `int`, which refuses to convert strings of thousands of digits.
    most_digits = max(map(len, fields), default=0)
    if most_digits > len(str(size)):
        return None
    ids = list(map(int, fields))
    if max(ids, default=0) >= size:
        return None
    if len(set(ids)) < len(ids):
        return None
    return ids
