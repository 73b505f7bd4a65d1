"""Word alignments, counted from 0: file formats, extraction from attention, and symmetrization."""

import io
import json
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

import numpy as np
from numpy.typing import NDArray

from nmtkit.core.errors import DataError, shorten
from nmtkit.core.files import atomic_user_path, write_errors

Link = tuple[int, int]
"""Positions of the source word and target word that are linked, counted from 0."""
Links = frozenset[Link]
"""All links of one sentence pair."""

AlignmentFormat = Literal["pharaoh", "naacl"]

# Nine digits are enough: no sentence has a billion words.
_LINK = re.compile(r"(\d{1,9})([-?p])(\d{1,9})", re.ASCII)
_NAACL_LINE = re.compile(r"(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})(?:\s+([SP]))?(?:\s+[\d.]+)?", re.ASCII)


@dataclass(frozen=True)
class GoldAlignment:
    """Gold alignment of one sentence pair."""

    sure: Links
    possible: Links
    """Includes the sure links."""


@dataclass(frozen=True)
class AlignmentFile:
    """Contents of an alignment file."""

    pairs: list[GoldAlignment]
    """One alignment per sentence pair; in a naacl file, up to the last pair with links."""
    format: AlignmentFormat
    base: int
    """Number that the file uses for the first word of a sentence: 0 or 1."""

    @property
    def base_warning(self) -> str:
        """Evidence that words are counted from 1 although `base` is 0; see the function `base_warning`."""
        if self.base == 1:
            return ""
        return base_warning(pair.possible for pair in self.pairs)


# ------------------------------------------------------------------------------------------------------ first words

RARE_SHARE = 0.05
"""First words count as hardly ever linked if the number of sentences in which the first word is linked is at most this
share of the number for the most frequently linked position."""


def base_warning(alignments: Iterable[Links]) -> str:
    """Returns evidence that words are counted from 1; "" if there is none.

    The evidence is a clause for messages, such as "no link refers to the first word of a sentence". First words are
    linked about as often as other words. If they are hardly ever linked on either side, words are probably counted
    from 1.
    """
    # For source and target: the number of sentences in which each position has a link.
    sentences_by_position = (Counter[int](), Counter[int]())
    for links in alignments:
        for side, sentences in enumerate(sentences_by_position):
            sentences.update({link[side] for link in links})
    amount = "no"
    for sentences in sentences_by_position:
        if not sentences or sentences[0] > RARE_SHARE * max(sentences.values()):
            return ""
        if sentences[0]:
            amount = "hardly any"
    return f"{amount} link refers to the first word of a sentence"


# --------------------------------------------------------------------------------------------------------- formats

MAX_NAACL_PAIRS = 1_000_000
"""Largest pair number in a naacl file. It limits memory usage, since pairs without links are stored, too."""


def parse_alignments(lines: Iterable[str], place: str, base: int | None = None) -> AlignmentFile:
    """Parses alignments; their format is detected from the first nonempty line.

    * pharaoh: one line per sentence pair, with links separated by white space. `i-j` is a sure link between source word
      i and target word j, `i?j` or `ipj` a possible one. TALP files have this format too.
    * naacl (Mihalcea and Pedersen 2003, "An Evaluation Exercise for Word Alignment"): one line per link, "PAIR SOURCE
      TARGET", then optionally S (sure, the default) or P (possible), then optionally a confidence, which is ignored.
      Pairs are numbered from 1 and may come in any order.

    Args:
        lines: lines of the file.
        place: name of the file in messages.
        base: number that the file uses for the first word of a sentence, 0 or 1. Default: 0 for pharaoh and 1 for naacl
            files.
    """
    texts = [line.strip() for line in lines]
    first_text = next(filter(None, texts), "")
    if _NAACL_LINE.fullmatch(first_text):
        naacl_base = 1 if base is None else base
        return AlignmentFile(_parse_naacl(texts, place, naacl_base), "naacl", naacl_base)
    pharaoh_base = 0 if base is None else base
    pairs = []
    for number, text in enumerate(texts, start=1):
        pairs.append(parse_pharaoh_line(text, f"{place}, line {number}", pharaoh_base))
    return AlignmentFile(pairs, "pharaoh", pharaoh_base)


def parse_pharaoh_line(line: str, place: str, base: int = 0) -> GoldAlignment:
    """Parses one line of a Pharaoh file, see `parse_alignments`. `place` is the file and line number, for messages.

    Raises:
        DataError: the line is malformed.
    """
    sure = set()
    possible = set()
    for token in line.split():
        match = _LINK.fullmatch(token)
        if match is None:
            raise DataError(
                f"{place}: {shorten(token)!r} is not a link; expected, for example, 3-4 (sure) or 3?4 (possible)"
            )
        source, kind, target = match.groups()
        link = _make_link(source, target, base=base, place=f"{place}: link {token!r}")
        possible.add(link)
        if kind == "-":
            sure.add(link)
    return GoldAlignment(frozenset(sure), frozenset(possible))


def _parse_naacl(lines: Iterable[str], place: str, base: int) -> list[GoldAlignment]:
    sure: defaultdict[int, set[Link]] = defaultdict(set)
    possible: defaultdict[int, set[Link]] = defaultdict(set)
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        match = _NAACL_LINE.fullmatch(line)
        place_and_line = f"{place}, line {number}: {shorten(line)!r}"
        if match is None:
            raise DataError(
                f"{place_and_line} is not a link; expected PAIR SOURCE TARGET, optionally followed by S or P, for "
                "example 12 3 4 S"
            )
        pair = int(match[1])
        if not 1 <= pair <= MAX_NAACL_PAIRS:
            raise DataError(
                f"{place}, line {number}: there is no sentence pair {pair}: pairs are counted from 1, and at most "
                f"{MAX_NAACL_PAIRS:,} are supported; correct the number"
            )
        link = _make_link(match[2], match[3], base=base, place=place_and_line)
        possible[pair].add(link)
        if match[4] != "P":
            sure[pair].add(link)
    alignments = []
    for pair in range(1, max(possible) + 1):
        # Unlike indexing, `get` does not add pairs without links to the dictionaries.
        sure_links = frozenset(sure.get(pair, ()))
        possible_links = frozenset(possible.get(pair, ()))
        alignments.append(GoldAlignment(sure_links, possible_links))
    return alignments


def _make_link(source: str, target: str, base: int, place: str) -> Link:
    link = (int(source) - base, int(target) - base)
    if min(link) < 0:
        raise DataError(
            f"{place} refers to word 0, but words are counted from 1; if the file counts from 0, pass --hyp-base 0 or "
            "--ref-base 0 or, in a recipe, set alignment_base: 0; if 0 means no word, remove the link"
        )
    return link


def format_pharaoh(links: Iterable[Link]) -> str:
    """Returns a line of a Pharaoh file, with links sorted by source position and then by target position."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def reverse_links(links: Iterable[Link]) -> Links:
    """Swaps source and target in each link."""
    return frozenset((target, source) for source, target in links)


# ------------------------------------------------------------------------------------------------- from attention


@dataclass(frozen=True)
class SoftAlignment:
    """Attention between the S source words and T target words of a sentence pair."""

    src_words: list[str]
    tgt_words: list[str]
    weights: NDArray[np.float64]
    """Attention weights `(T,S)`. Each row sums to 1 minus the attention to EOS."""
    src_ids: list[list[int]] = field(default_factory=list)
    """Token ids of each source word; a token that covers parts of two words belongs to both of them."""
    tgt_ids: list[list[int]] = field(default_factory=list)
    """Token ids of each target word."""

    def symmetrized(
        self, method: "Symmetrization", reverse: "SoftAlignment | None" = None
    ) -> Links:
        """Returns the links of both directions, combined by `symmetrize`.

        `reverse` is the attention of the reverse model. By default, the backward links are derived from the columns of
        this attention matrix.
        """
        backward = links_from_attention(self.weights.T) if reverse is None else reverse.links()
        return symmetrize(self.links(), reverse_links(backward), method)

    def links(self, threshold: float | None = None) -> Links:
        """Converts the attention to hard links, see `links_from_attention`."""
        return links_from_attention(self.weights, threshold)


def links_from_attention(weights: NDArray[Any], threshold: float | None = None) -> Links:
    """Converts attention weights `(T,S)`, without the EOS column, to hard links.

    Without a threshold, each target word is linked to the source word with the largest weight (Luong et al. 2015,
    section 5.4); ties go to the first source word. With a threshold, it is linked to all source words with at least
    that weight. A row of zeros yields no link.
    """
    if threshold is not None:
        cells = np.argwhere((weights >= threshold) & (weights > 0))
        return frozenset((int(source), int(target)) for target, source in cells)
    if weights.size == 0:
        return frozenset()
    links = set()
    for target, source in enumerate(weights.argmax(axis=1).tolist()):
        if weights[target, source] > 0:
            links.add((source, target))
    return frozenset(links)


WritePair = Callable[[SoftAlignment, SoftAlignment | None], None]
"""Writes the attention for the next pair and, if there is a reverse model, also the attention of that model."""


class _JsonWriter:
    """Writes a JSON list of records, one per pair, each on its own line."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._count = 0

    def write(self, alignment: SoftAlignment, reverse: SoftAlignment | None) -> None:
        record: dict[str, Any] = {
            "source": alignment.src_words,
            "target": alignment.tgt_words,
            "weights": _rounded(alignment.weights),
        }
        if reverse is not None:
            record["reverse_weights"] = _rounded(reverse.weights)
        separator = ",\n" if self._count else "[\n"
        self._file.write(separator + json.dumps(record, ensure_ascii=False))
        self._count += 1

    def finish(self) -> None:
        self._file.write("\n]\n" if self._count else "[\n]\n")


def _rounded(weights: NDArray[np.float64]) -> list[list[float]]:
    rows = []
    for row in weights.tolist():
        rows.append([round(weight, 6) for weight in row])
    return rows


class _NpzWriter:
    """Writes arrays `(T,S)` named 1, 2, ... and, for a reverse model, 1.reverse, 2.reverse, ..."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._count = 0

    def write(self, alignment: SoftAlignment, reverse: SoftAlignment | None) -> None:
        self._count += 1
        self._write_array(f"{self._count}.npy", alignment.weights)
        if reverse is not None:
            self._write_array(f"{self._count}.reverse.npy", reverse.weights)

    def _write_array(self, name: str, weights: NDArray[np.float64]) -> None:
        content = io.BytesIO()
        np.save(content, weights.astype(np.float32))
        self._archive.writestr(name, content.getvalue())

    def finish(self) -> None:
        pass  # the archive writes its directory when it is closed


@contextmanager
def soft_alignment_writer(path: Path) -> Iterator[WritePair]:
    """Opens NAME.json or NAME.npz for writing attention between words; the file appears when the `with` block ends."""
    if path.suffix not in (".json", ".npz"):
        raise DataError(
            f"{str(path)!r} must end in .json or .npz, the supported formats for attention weights"
        )
    with ExitStack() as opened:
        # `write_errors` encloses only statements that write the file: other errors in the block have other causes.
        with write_errors(path):
            temporary_path = opened.enter_context(atomic_user_path(path))
            writer: _JsonWriter | _NpzWriter
            if path.suffix == ".json":
                writer = _JsonWriter(
                    opened.enter_context(temporary_path.open("w", encoding="utf-8"))
                )
            else:
                archive = zipfile.ZipFile(temporary_path, "w", zipfile.ZIP_DEFLATED)
                writer = _NpzWriter(opened.enter_context(archive))

        def write(alignment: SoftAlignment, reverse: SoftAlignment | None) -> None:
            with write_errors(path):
                writer.write(alignment, reverse)

        try:
            yield write
        except BaseException as fault:
            # Delete the temporary file. A failure to close it must not hide the original error.
            with suppress(OSError):
                opened.pop_all().__exit__(type(fault), fault, fault.__traceback__)
            raise
        with write_errors(path), opened.pop_all():
            writer.finish()


# ------------------------------------------------------------------------------------------------- two directions

Symmetrization = Literal[
    "intersection",
    "union",
    "grow-diag",
    "grow-diag-final",
    "grow-diag-final-and",
    "grow-diag-strict",
    "grow-diag-final-strict",
]
SYMMETRIZATIONS: tuple[Symmetrization, ...] = get_args(Symmetrization)

# Offsets (source, target). The order is part of the definition: it affects which links are added.
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrize(forward: Links, backward: Links, method: Symmetrization) -> Links:
    """Combines the alignments of both directions; all links are (source, target) pairs of the forward direction.

    Koehn, Och and Marcu 2003, "Statistical Phrase-Based Translation", section 4, and Koehn et al. 2005, "Edinburgh
    System Description for the 2005 IWSLT Speech Translation Evaluation":

    * intersection, union: the links found in both directions, or in either.
    * grow-diag: starts with the intersection and visits its links in the order of the source words. Of the eight
      neighbours of each link, it adds those that are in the union and whose source *or* target word has no link yet.
      This is repeated until nothing changes.
    * grow-diag-final: then adds links, first from the forward and then from the backward direction, if their source
      *or* target word still has no link; grow-diag-final-and adds links only if neither word has one.
    * grow-diag-strict, grow-diag-final-strict: a link is added only if neither its source nor its target word has a
      link. The alignment scripts of Zenkel et al. 2019 call these methods grow-diagonal and grow-diagonal-final.
    """
    intersection = forward & backward
    union = forward | backward
    if method == "intersection":
        return intersection
    if method == "union":
        return union
    strict = method.endswith("-strict")
    links = set(intersection)
    linked_sources = {source for source, _ in links}
    linked_targets = {target for _, target in links}

    def add(source: int, target: int, requires_free_pair: bool) -> bool:
        """Adds a link from the union if either of its words, or both if `requires_free_pair` is set, is still unlinked.

        Returns whether the link was added.
        """
        source_is_free = source not in linked_sources
        target_is_free = target not in linked_targets
        if requires_free_pair:
            fits = source_is_free and target_is_free
        else:
            fits = source_is_free or target_is_free
        if not fits or (source, target) not in union:
            return False
        links.add((source, target))
        linked_sources.add(source)
        linked_targets.add(target)
        return True

    grows = True
    while grows:
        grows = False
        # Iterates over the union, not over `links`, so that a neighbour added now can be visited in the same pass.
        for source, target in sorted(union):
            if (source, target) not in links:
                continue
            for source_step, target_step in _NEIGHBOURS:
                if add(source + source_step, target + target_step, requires_free_pair=strict):
                    grows = True
    if method.startswith("grow-diag-final"):
        requires_free_pair = strict or method.endswith("-and")
        for source, target in (*sorted(forward), *sorted(backward)):
            add(source, target, requires_free_pair=requires_free_pair)
    return frozenset(links)
