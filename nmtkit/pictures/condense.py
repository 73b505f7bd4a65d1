"""Long articles on little room: stretches that the model hardly looked at become one word each."""

from dataclasses import replace

import numpy as np

from nmtkit.pictures.attention import AttentionPicture


def condense(picture: AttentionPicture, most: int) -> tuple[AttentionPicture, list[int]]:
    """The same picture with at most `most` source words.

    The words with the most coverage stay as they are. What stands between them becomes one word a stretch, "… 14
    words", and its weight is the sum of theirs: looking at a stretch is looking at any of its words, as with the pieces
    of a word. So rows still sum to one, and nothing is left out.

    Args:
        picture: Without windows and known alignments, which belong to single words.
        most: At least one.

    Returns:
        The picture, and how many of the article's words each of its source words stands for.
    """
    assert not picture.windows, "windows over stretches"
    assert not picture.gold, "known alignments of stretches"
    assert most > 0, f"{most} words"
    by_coverage = np.argsort(-picture.coverage, kind="stable")
    count = len(by_coverage)
    kept = min(count, most)
    starts = _starts(by_coverage[:kept], count)
    while len(starts) > most:
        kept -= (len(starts) - most + 1) // 2  # a word less is two rows less at best
        starts = _starts(by_coverage[:kept], count)
    sizes = np.diff([*starts, count]).tolist()
    words = [
        picture.src_words[start] if size == 1 else f"… {size} words" for start, size in zip(starts, sizes, strict=True)
    ]
    weights = np.add.reduceat(picture.weights, starts, axis=1) if starts else picture.weights
    return replace(picture, src_words=words, weights=weights), sizes


def _starts(kept: np.ndarray[tuple[int, ...], np.dtype[np.int64]], count: int) -> list[int]:
    """Where the words and the stretches between them begin, of `count` words of which some are kept as they are."""
    alone = np.zeros(count, dtype=bool)
    alone[kept] = True
    return [i for i in range(count) if i == 0 or alone[i] or alone[i - 1]]
