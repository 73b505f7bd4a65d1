"""What can be said of a pair by its two lines: empty, identical, far too long, in the wrong language."""

from operator import eq

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.blocks import Block
from nmtkit.data.faults import EMPTY, FOREIGN, IDENTICAL, LANGUAGE, LENGTH, RATIO, SCRIPT, SHORT_TARGET, SWAPPED, Kind
from nmtkit.diagnosis.characters import TextArrays
from nmtkit.diagnosis.foreign import OwnWords
from nmtkit.diagnosis.language import in_other_script
from nmtkit.diagnosis.norms import Norms

NAME_WORDS = 3
"""So many words may be the same on both sides: names, numbers, "OK"."""
LONG_SOURCE = 60
"""A source with so many characters must have more than a word for its target."""
SHORT_SHARE = 0.15
"""A target of one word is nearly empty if it has less than this share of the characters to be expected."""


def examine_pairs(
    block: Block, src: TextArrays, tgt: TextArrays | None, norms: Norms, summaries: bool
) -> NDArray[np.bool_]:
    """Notes the faults of the pairs of a block.

    Args:
        block: gets the faults.
        src: its sources.
        tgt: its targets.
        norms: what is normal in this corpus.
        summaries: whether the targets are summaries of the sources.

    Returns:
        For each pair, whether it could be read and no side of it is empty.
    """
    usable = np.ones(len(block), dtype=bool)
    usable[list(block.unread)] = False
    empty = block.empty()
    block.add(EMPTY, np.flatnonzero(empty))
    usable &= ~empty

    other_script = {"src": in_other_script(src, norms.src_scripts)}
    foreign = {"src": _foreign(src, norms.src_words)}
    block.add(LENGTH, np.flatnonzero(src.lengths > norms.src_longest), lambda row: block.side("src", row))
    if tgt is not None:
        other_script["tgt"] = in_other_script(tgt, norms.tgt_scripts)
        foreign["tgt"] = _foreign(tgt, norms.tgt_words)
        too_long = (tgt.lengths > norms.tgt_longest) & ~(src.lengths > norms.src_longest)
        block.add(LENGTH, np.flatnonzero(too_long), lambda row: block.side("tgt", row))
        identical = usable & np.fromiter(map(eq, block.src, block.tgt or []), dtype=bool, count=len(block))
        foreign = {side: found & ~identical for side, found in foreign.items()}
        block.add(IDENTICAL, np.flatnonzero(identical & (src.all_words() >= NAME_WORDS) & (src.all_letters() > 0)))
        short = usable & _nearly_empty(src, tgt, norms, summaries)
        block.add(SHORT_TARGET, np.flatnonzero(short))
        if not summaries:
            block.add(RATIO, np.flatnonzero(usable & ~short & norms.far_ratio(src, tgt)))
        if norms.languages is not None:
            swapped, src_wrong, tgt_wrong = norms.languages.doubts(src, tgt)
            block.add(SWAPPED, np.flatnonzero(swapped))
            for side, wrong in (("src", src_wrong), ("tgt", tgt_wrong)):
                _add_side(block, LANGUAGE, side, wrong & ~identical & ~other_script[side])
                other_script[side] &= ~swapped
                foreign[side] &= ~(swapped | wrong)
    for side, found in other_script.items():
        _add_side(block, SCRIPT, side, found & usable)
        _add_side(block, FOREIGN, side, foreign[side] & usable & ~found)
    return usable


def _foreign(text: TextArrays, own: OwnWords | None) -> NDArray[np.bool_]:
    return np.zeros(len(text.lines), dtype=bool) if own is None else own.foreign(text)


def _add_side(block: Block, kind: Kind, side: str, found: NDArray[np.bool_]) -> None:
    block.add(kind, np.flatnonzero(found), lambda row: block.side(side, row))


def _nearly_empty(src: TextArrays, tgt: TextArrays, norms: Norms, summaries: bool) -> NDArray[np.bool_]:
    """For each pair, whether the target says next to nothing though there is something to say."""
    empty: NDArray[np.bool_] = (tgt.all_letters() + tgt.digits == 0) | (tgt.all_words() <= 1)
    if not summaries:
        empty &= (src.lengths >= LONG_SOURCE) & (tgt.lengths < SHORT_SHARE * np.exp(norms.ratio) * src.lengths)
    return empty
