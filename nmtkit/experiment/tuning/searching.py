"""How this machine searches quickest with a model: exactness, size of batches, one search a core or one on all."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from nmtkit import device as devices
from nmtkit.experiment.tuning import found
from nmtkit.experiment.tuning.found import Found
from nmtkit.experiment.tuning.turns import MOST_SECONDS, MOST_SHARE, in_turns
from nmtkit.layers.packed import PrecisionChoice, precisions
from nmtkit.recipe import Recipe
from nmtkit.translation.inputs import SearchWay, usual

_WORTH = 1.1
"""A less exact way is taken only where the quickest exact one takes at least so many times its time."""
_FIRST = 8
"""So many lines are searched first, to know how long a line takes."""
_FEWEST = 48
"""With fewer lines the batches that are compared would not be those of real work."""


def ways_to_search(device: torch.device, asked: PrecisionChoice = "auto") -> list[SearchWay]:
    """The usual way in the precision that was asked for, and those that differ from it in one thing.

    `auto` is fp32, and lets the precision differ too.
    """
    first = usual(device, "fp32" if asked == "auto" else asked)
    tokens = first.batch_tokens
    possible = [first, replace(first, batch_tokens=tokens // 2), replace(first, batch_tokens=tokens // 4)]
    if asked == "auto":
        possible += [replace(first, precision=other) for other in precisions(device)[1:]]
    if device.type == "cpu" and devices.cpu_threads() > 1:
        possible.append(replace(first, one_a_core=not first.one_a_core))
    return possible


def search_work(
    recipe: Recipe, vocabulary: int, beam_size: int, threads: int | None, device: torch.device, asked: PrecisionChoice
) -> dict[str, Any]:
    """What a finding is kept for: all that decides how quick the ways to search are, and which there are."""
    work = found.work_of("search", recipe.model, device)
    work["machine"] |= {"threads": threads} if threads else {}
    return {**work, "vocabularies": [vocabulary, vocabulary], "batch": [beam_size], "precision": asked}


def quickest_search(
    search: Callable[[SearchWay, Sequence[str]], Sequence[str]],
    lines: Sequence[str],
    device: torch.device,
    work: Mapping[str, Any],
    planned_seconds: float,
    again: bool = False,
) -> Found[SearchWay]:
    """The quickest way to search, as it was once found on this machine, else by searching some lines in every way.

    A less exact way is taken only where it finds the same texts for all of these lines and is quicker than every exact
    one by a tenth, since its scores differ a little from those of rescoring the same texts. What is refused for its
    texts is told, so that a user may ask for it by name. Measuring takes at most
    `MOST_SHARE` of the planned seconds; `again` measures even where something was found before, however long it takes.
    """
    known = None if again else found.look_up(work, SearchWay)
    if known is not None:
        return known
    begun = time.monotonic()
    possible = ways_to_search(device, work.get("precision", "auto"))
    unmeasured = Found("search", possible[0], "sentences/s")
    limit = MOST_SECONDS if again else min(MOST_SECONDS, MOST_SHARE * planned_seconds)
    texts: dict[SearchWay, Sequence[str]] = {}

    def seconds_of(way: SearchWay, sample: Sequence[str]) -> float:
        started = time.monotonic()
        with suppress(torch.OutOfMemoryError):
            texts[way] = search(way, sample)
            return time.monotonic() - started
        torch.cuda.empty_cache()  # here the error is gone, and with it all that the search had made
        return math.inf

    seconds_of(possible[0], lines[:_FIRST])
    a_line = seconds_of(possible[0], lines[:_FIRST]) / _FIRST
    # A round in every way and two more of those that are left, of which the slow ones are not.
    count = min(len(lines), int((limit - (time.monotonic() - begun)) / a_line / (2 * len(possible))))
    if count < _FEWEST:
        return unmeasured
    sample = lines[:: len(lines) // count][:count]
    measured = in_turns(possible, lambda way, _: seconds_of(way, sample), limit)
    if math.isinf(measured.slower[measured.best]):
        return unmeasured
    exact = [way for way in possible if way.precision == possible[0].precision and measured.slower[way] < math.inf]
    best, differing = measured.best, {}
    if exact:
        first = min(exact, key=measured.slower.__getitem__)
        for way in possible:
            if way not in exact and measured.slower[way] < math.inf:
                differing[str(way)] = sum(map(str.__ne__, texts[way], texts[first]))
        if best not in exact and (differing[str(best)] or measured.slower[first] < _WORTH * measured.slower[best]):
            best = first
    turns = measured.turns[measured.best]
    speed = measured.slower[measured.best] * count * len(turns) / sum(turns)
    speeds = {str(way): speed / slower for way, slower in measured.slower.items()}
    seconds = time.monotonic() - begun
    result = Found("search", best, "sentences/s", speeds, seconds, measured.is_noisy, lines=count, differing=differing)
    found.keep(work, result)
    return result
