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
"""Source and target position, counted from 0."""
Links = frozenset[Link]
"""The alignment of one sentence pair."""

AlignmentFormat = Literal["pharaoh", "naacl"]

# No text has words of ten digits.
_LINK = re.compile(r"(\d{1,9})([-?p])(\d{1,9})", re.ASCII)
_NAACL_LINE = re.compile(r"(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})(?:\s+([SP]))?(?:\s+[\d.]+)?", re.ASCII)


@dataclass(frozen=True)
class GoldAlignment:
    """A gold alignment of one sentence pair: sure links, and possible ones."""

    sure: Links
    possible: Links
    """Includes the sure links."""


@dataclass(frozen=True)
class AlignmentFile:
    """The content of an alignment file."""

    pairs: list[GoldAlignment]
    """One for each sentence pair; a naacl file ends with the last pair that has links."""
    format: AlignmentFormat
    base: int
    """The index of the first word, 0 or 1."""

    @property
    def base_warning(self) -> str:
        """See `base_warning`; empty for a file that counts from 1."""
        return "" if self.base else base_warning(pair.possible for pair in self.pairs)


# ------------------------------------------------------------------------------------------------------ first words

RARE_SHARE = 0.05
"""A first word counts as never linked below this share of the links of the most linked position."""


def base_warning(alignments: Iterable[Links]) -> str:
    """Evidence that a file counts words from 1, not 0, such as "no link has a first word"; empty if there is none.

    A first word is linked about as often as any other. If on both sides it hardly ever is, the words are most likely
    counted from 1.
    """
    linked = Counter[int](), Counter[int]()
    for links in alignments:
        for side, counts in enumerate(linked):
            counts.update({link[side] for link in links})
    if not all(counts and counts[0] <= RARE_SHARE * max(counts.values()) for counts in linked):
        return ""
    return f"{'hardly a' if any(counts[0] for counts in linked) else 'no'} link has a first word"


# --------------------------------------------------------------------------------------------------------- formats

MAX_NAACL_PAIRS = 1_000_000
"""The highest number of a sentence pair in a naacl file: the list of pairs has this length, however few have links."""


def parse_alignments(lines: Iterable[str], place: str, base: int | None = None) -> AlignmentFile:
    """Reads alignments; the format is detected from the first line that is not empty.

    pharaoh: a line for each sentence pair, links separated by white space. `i-j` is a sure link between source word i
    and target word j, `i?j` or `ipj` a possible one. TALP files are the same.

    naacl (Mihalcea and Pedersen 2003, "An Evaluation Exercise for Word Alignment"): a line for each link, "PAIR SOURCE
    TARGET", then optionally S (sure, the default) or P (possible), then optionally a confidence, which is ignored.
    Pairs are counted from 1, in any order.

    `place` names the file in messages. Words are counted from `base`; None: 0 in pharaoh and 1 in naacl files.
    """
    texts = [line.strip() for line in lines]
    first = next(filter(None, texts), "")
    form: AlignmentFormat = "naacl" if _NAACL_LINE.fullmatch(first) else "pharaoh"
    base = int(form == "naacl") if base is None else base
    if form == "naacl":
        return AlignmentFile(_parse_naacl(texts, place, base), form, base)
    numbered = enumerate(texts, start=1)
    return AlignmentFile([parse_pharaoh_line(text, f"{place}, line {n}", base) for n, text in numbered], form, base)


def parse_pharaoh_line(line: str, place: str, base: int = 0) -> GoldAlignment:
    """Reads one line of a Pharaoh file; `place` is its file and number. DataError if it is malformed."""
    sure, possible = set(), set()
    for token in line.split():
        match = _LINK.fullmatch(token)
        if match is None:
            raise DataError(f"{place}: {shorten(token)!r} is not a link; write 3-4 (sure) or 3?4 (possible)")
        link = _make_link(match[1], match[3], base, f"{place}: link {token!r}")
        possible.add(link)
        if match[2] == "-":
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
            raise DataError(f"{place_and_line} is not a link; write PAIR SOURCE TARGET and S or P, such as 12 3 4 S")
        pair = int(match[1])
        if not 1 <= pair <= MAX_NAACL_PAIRS:
            raise DataError(
                f"{place}, line {number}: sentence pair {pair}; pairs are counted from 1, one by one, and there are at "
                f"most {MAX_NAACL_PAIRS:,}: correct the number"
            )
        link = _make_link(match[2], match[3], base, place_and_line)
        possible[pair].add(link)
        if match[4] != "P":
            sure[pair].add(link)
    pairs = range(1, max(possible) + 1)
    return [GoldAlignment(frozenset(sure.get(pair, ())), frozenset(possible.get(pair, ()))) for pair in pairs]


def _make_link(source: str, target: str, base: int, place: str) -> Link:
    link = (int(source) - base, int(target) - base)
    if min(link) < 0:
        raise DataError(
            f"{place} holds a word 0, but words are counted from 1; if the file counts from 0, give --hyp-base 0, "
            "--ref-base 0 or, in a recipe, alignment_base: 0; if its 0 stands for no word, take the link out"
        )
    return link


def format_pharaoh(links: Iterable[Link]) -> str:
    """A line of a Pharaoh file, ordered by source, then target position."""
    return " ".join(f"{i}-{j}" for i, j in sorted(links))


def reverse_links(links: Iterable[Link]) -> Links:
    """Swaps source and target."""
    return frozenset((target, source) for source, target in links)


# ------------------------------------------------------------------------------------------------- from attention


@dataclass(frozen=True)
class SoftAlignment:
    """Attention between words."""

    src_words: list[str]
    tgt_words: list[str]
    weights: NDArray[np.float64]
    """`(T,S)`. A row sums to one minus the attention to the end of the sentence."""
    src_ids: list[list[int]] = field(default_factory=list)
    """The tokens of each source word; a token of two words belongs to both."""
    tgt_ids: list[list[int]] = field(default_factory=list)

    def symmetrized(self, method: "Symmetrization", reverse: "SoftAlignment | None" = None) -> Links:
        """Symmetrized links of two models, or of the rows and columns of this attention; see `symmetrize`."""
        backward = links_from_attention(self.weights.T) if reverse is None else reverse.links()
        return symmetrize(self.links(), reverse_links(backward), method)

    def links(self, threshold: float | None = None) -> Links:
        """Hard links, see `links_from_attention`."""
        return links_from_attention(self.weights, threshold)


def links_from_attention(weights: NDArray[Any], threshold: float | None = None) -> Links:
    """Hard links of attention `(T,S)`; a row of zeros has none.

    Without a threshold each target word is linked to the source word of the largest weight (Luong et al. 2015, section
    5.4), the first of equals. With one, it is linked to all source words of at least that weight. The caller removes
    the column of EOS.
    """
    if threshold is not None:
        cells = np.argwhere((weights >= threshold) & (weights > 0))
        return frozenset((int(source), int(target)) for target, source in cells)
    if weights.size == 0:
        return frozenset()
    best = weights.argmax(axis=1)
    return frozenset((int(source), row) for row, source in enumerate(best) if weights[row, source] > 0)


WritePair = Callable[[SoftAlignment, SoftAlignment | None], None]
"""Writes the attention of the next pair, and of the reverse model if there is one."""


@contextmanager
def soft_alignment_writer(path: Path) -> Iterator[WritePair]:
    """Writes attention between words to NAME.json or NAME.npz; the file appears when the block ends."""
    if path.suffix not in (".json", ".npz"):
        raise DataError(f"{str(path)!r} must end in .json or .npz, for weights are written in one of these formats")
    count = 0
    with ExitStack() as opened:
        with write_errors(path):
            beside = opened.enter_context(atomic_user_path(path))
            file: zipfile.ZipFile | TextIO = (
                beside.open("w", encoding="utf-8")
                if path.suffix == ".json"
                else zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED)
            )
            opened.enter_context(file)

        def write(alignment: SoftAlignment, reverse: SoftAlignment | None) -> None:
            nonlocal count
            count += 1
            weights = {"weights": alignment.weights} | ({} if reverse is None else {"reverse_weights": reverse.weights})
            with write_errors(path):
                if isinstance(file, zipfile.ZipFile):
                    for key, array in weights.items():
                        packed = io.BytesIO()
                        np.save(packed, array.astype(np.float32))
                        name = f"{count}.npy" if key == "weights" else f"{count}.reverse.npy"
                        file.writestr(name, packed.getvalue())
                    return
                rows = {key: [[round(one, 6) for one in row] for row in weights[key].tolist()] for key in weights}
                record = {"source": alignment.src_words, "target": alignment.tgt_words, **rows}
                file.write(("[\n" if count == 1 else ",\n") + json.dumps(record, ensure_ascii=False))

        try:
            yield write
        except BaseException as fault:
            with suppress(OSError):
                opened.pop_all().__exit__(type(fault), fault, fault.__traceback__)
            raise
        with write_errors(path), opened.pop_all():
            if not isinstance(file, zipfile.ZipFile):
                file.write("\n]\n" if count else "[\n]\n")


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

# Steps of (source, target). The order is part of the definition: which links are added depends on which come first.
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrize(forward: Links, backward: Links, method: Symmetrization) -> Links:
    """Combines the alignments of two directions, both as (source, target) of the first.

    Koehn, Och and Marcu 2003, "Statistical Phrase-Based Translation", section 4, and Koehn et al. 2005, "Edinburgh
    System Description for the 2005 IWSLT Speech Translation Evaluation":

    * intersection, union: the links of both, or of either.
    * grow-diag starts from the intersection. Until nothing changes, it goes through its links, source word by source
    word, and adds those of their eight neighbours that are in the union and whose source *or* target word has no link
    yet.
    * grow-diag-final then adds other links, first of the forward, then of the backward direction, whose source *or*
    target word still has none; grow-diag-final-and adds those whose source *and* target word have none.
    * grow-diag-strict, grow-diag-final-strict: an added link must join a source *and* a target word without links. The
    alignment-scripts of Zenkel et al. 2019 call these grow-diagonal and grow-diagonal-final.
    """
    both, union, strict = forward & backward, forward | backward, method.endswith("-strict")
    if method in ("intersection", "union"):
        return both if method == "intersection" else union
    links = set(both)
    linked = [{link[side] for link in links} for side in (0, 1)]

    def add(link: Link, neither: bool) -> bool:
        """Adds a link of the union if one of its words has none yet, or only if `neither` has one."""
        free = [word not in known for word, known in zip(link, linked, strict=True)]
        if link not in union or not (all(free) if neither else any(free)):
            return False
        links.add(link)
        for word, known in zip(link, linked, strict=True):
            known.add(word)
        return True

    grows = True
    while grows:
        grows = False
        for source, target in sorted(union):  # a link that is added ahead of this one is met in the same pass
            for source_step, target_step in _NEIGHBOURS if (source, target) in links else ():
                grows |= add((source + source_step, target + target_step), strict)
    if method.startswith("grow-diag-final"):
        for link in (*sorted(forward), *sorted(backward)):
            add(link, strict or method.endswith("-and"))
    return frozenset(links)
