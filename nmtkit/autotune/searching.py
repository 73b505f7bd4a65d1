"""How this machine searches quickest with a model: exactness, size of batches, one search a core or one on all."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from nmtkit.autotune import cache
from nmtkit.autotune.cache import TuningResult
from nmtkit.autotune.timing import (
    GIVEN_UP,
    MOST_SECONDS,
    MOST_SHARE,
    InterleavedTimings,
    TooSlowError,
    time_interleaved,
)
from nmtkit.core import device as devices
from nmtkit.layers.inference import PrecisionChoice, is_slow, supported_precisions
from nmtkit.models.base import ModelConfig
from nmtkit.search.engine import FEW_SENTENCES
from nmtkit.translation.inputs import SearchSpeedConfig, usual

_WORTH = 1.1
"""A less exact way is taken only where the quickest exact one takes at least so many times its time."""
_PIECES = (FEW_SENTENCES + 1, 8)
"""So many lines are searched first, to know how long a line takes, and which ways cannot be worth more of them. Fewer
are searched from tapes, which `time_limit` cannot end."""
_FAR, _SOON = 10.0, 1.0
"""Times of the usual way's seconds, but so many at least, after which such a piece is given up."""
_FEWEST = 48
"""With fewer lines the batches that are compared would not be those of real work."""


def candidate_search_configs(device: torch.device, asked: PrecisionChoice = "auto") -> list[SearchSpeedConfig]:
    """The usual way in the precision that was asked for, and those that differ from it in one thing.

    `auto` is fp32, and lets the precision differ too, but for those whose products are slow here.
    """
    first = usual(device, "fp32" if asked == "auto" else asked)
    tokens = first.batch_tokens
    possible = [first, replace(first, batch_tokens=tokens // 2), replace(first, batch_tokens=tokens // 4)]
    if asked == "auto":
        others = [other for other in supported_precisions(device)[1:] if device.type != "cpu" or not is_slow(other)]
        possible += [replace(first, precision=other) for other in others]
    if device.type == "cpu" and devices.cpu_threads() > 1:
        possible.append(replace(first, one_a_core=not first.one_a_core))
    return possible


def search_workload_key(
    model: ModelConfig,
    vocabulary: int,
    beam_size: int,
    threads: int | None,
    device: torch.device,
    asked: PrecisionChoice,
) -> dict[str, Any]:
    """What a finding is kept for: all that decides how quick the ways to search are, and which there are."""
    work = cache.workload_key("search", model, device)
    work["machine"] |= {"threads": threads} if threads else {}
    return {**work, "vocabularies": [vocabulary, vocabulary], "batch": [beam_size], "precision": asked}


def tune_search(
    search: Callable[[SearchSpeedConfig, Sequence[str], float], Sequence[str]],
    lines: Sequence[str],
    device: torch.device,
    work: Mapping[str, Any],
    planned_seconds: float,
    again: bool = False,
) -> TuningResult[SearchSpeedConfig]:
    """The quickest way to search, as it was once found on this machine, else by searching some lines in every way.

    A less exact way is taken only where it finds the same texts for all of these lines and is quicker than every exact
    one by a tenth, since its scores differ a little from those of rescoring the same texts. What is refused for its
    texts is told, so that a user may ask for it by name. Measuring takes at most
    `MOST_SHARE` of the planned seconds, and a way that cannot win is given up; `again` measures even where something
    was found before, for up to `MOST_SECONDS`.

    `search` is given the seconds that it may take, and raises TooSlowError where it takes longer.
    """
    known = None if again else cache.get(work, SearchSpeedConfig)
    if known is not None:
        return known
    begun = time.monotonic()
    possible = candidate_search_configs(device, work.get("precision", "auto"))
    unmeasured = TuningResult("search", possible[0], "sentences/s")
    limit = MOST_SECONDS if again else min(MOST_SECONDS, MOST_SHARE * planned_seconds)
    texts: dict[SearchSpeedConfig, Sequence[str]] = {}

    def left() -> float:
        return max(0.0, limit - (time.monotonic() - begun))

    def seconds_of(way: SearchSpeedConfig, sample: Sequence[str], most: float) -> float:
        started = time.monotonic()
        texts.pop(way, None)
        with suppress(torch.OutOfMemoryError):
            texts[way] = search(way, sample, most)
            return time.monotonic() - started
        torch.cuda.empty_cache()  # here the error is gone, and with it all that the search had made
        return math.inf

    measured, count = _measure(possible, seconds_of, lines, left)
    if measured is None or math.isinf(measured.slower[measured.best]):
        return unmeasured
    exact = [way for way in texts if way.precision == possible[0].precision]
    best, differing = measured.best, {}
    if exact:
        first = min(exact, key=measured.slower.__getitem__)
        for way in possible:
            if way not in exact and way in texts:
                differing[str(way)] = sum(map(str.__ne__, texts[way], texts[first]))
        if best not in exact and (differing[str(best)] or measured.slower[first] < _WORTH * measured.slower[best]):
            best = first
    turns = measured.turns[measured.best]
    speed = measured.slower[measured.best] * count * len(turns) / sum(turns)
    speeds = {str(way): speed / slower for way, slower in measured.slower.items()}
    seconds = time.monotonic() - begun
    result = TuningResult(
        "search", best, "sentences/s", speeds, seconds, measured.is_noisy, lines=count, differing=differing
    )
    cache.put(work, result)
    return result


def _measure(
    possible: Sequence[SearchSpeedConfig],
    seconds_of: Callable[[SearchSpeedConfig, Sequence[str], float], float],
    lines: Sequence[str],
    left: Callable[[], float],
) -> tuple[InterleavedTimings[SearchSpeedConfig] | None, int]:
    """The ways in turns, and how many of the lines each searched; None where what is left of the time is too little."""
    try:
        for piece in _PIECES:
            a_line = seconds_of(possible[0], lines[:piece], left()) / piece
    except TooSlowError:
        return None, 0
    # A round in every way and two more of those that are left, of which the slow ones are not.
    count = min(len(lines), int(left() / a_line / (2 * len(possible))))
    if count < _FEWEST:
        return None, 0
    too_slow = []
    for way in possible[1:]:
        try:
            for piece in _PIECES:
                seconds_of(way, lines[:piece], min(left(), max(_SOON, _FAR * piece * a_line)))
        except TooSlowError:
            too_slow.append(way)
    sample = lines[:: len(lines) // count][:count]
    others = [way for way in possible if way not in too_slow]
    turns = time_interleaved(others, lambda way, _, most: seconds_of(way, sample, most), left())
    slower = {way: GIVEN_UP if way in too_slow else turns.slower[way] for way in possible}
    return replace(turns, slower=slower), count
