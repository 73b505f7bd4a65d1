"""The fastest way to search with a model on this machine: precision, size of batches, searches at a time."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from nmtkit.autotune import cache, timing
from nmtkit.autotune.cache import TuningResult
from nmtkit.autotune.timing import InterleavedTimings, TimeLimitError
from nmtkit.core import device as devices
from nmtkit.core.errors import DataError
from nmtkit.data.batches.batch import collate
from nmtkit.data.tokenizers.vocabulary import UNK
from nmtkit.decoding.engine import FEW_SENTENCES
from nmtkit.inference.inputs import SearchSpeedConfig, default_speed_config
from nmtkit.layers.inference import (
    MEASURED,
    Precision,
    PrecisionChoice,
    cast_to_16_bits,
    quantize_for_inference,
    supported_precisions,
)
from nmtkit.models.base import Model, ModelConfig, as_seq2seq

_WORTH = 1.1
"""A less exact configuration is taken only where the fastest exact one takes at least so many times its time."""
_PIECES = (FEW_SENTENCES + 1, 8)
"""So many lines are searched first, to know how long a line takes, and which configurations cannot be worth more of
them. Fewer lines are searched by captured steps, which `time_limit` cannot end."""
_SLOW, _SLOW_SECONDS = 10.0, 1.0
"""A piece is given up after so many times the usual configuration's seconds, but after so many seconds at least."""
FP16_PROBE_TOKENS = 64
"""Words of the source that shows whether a model's numbers fit into fp16."""
_FEWEST = 48
"""The least lines: with fewer, the batches that are compared would not be those of real work."""


def candidate_search_configs(device: torch.device, precision: PrecisionChoice = "auto") -> list[SearchSpeedConfig]:
    """The usual configuration in this precision, and those that differ from it in one thing.

    `auto` is fp32, and lets the precision differ too.
    """
    first = default_speed_config(device, "fp32" if precision == "auto" else precision)
    candidates = [first, *(replace(first, batch_tokens=first.batch_tokens // part) for part in (2, 4))]
    if precision == "auto":
        candidates += [replace(first, precision=other) for other in supported_precisions(device)[1:]]
    if device.type == "cpu" and devices.cpu_threads() > 1:
        candidates.append(replace(first, one_a_core=not first.one_a_core))
    return candidates


def search_workload_key(
    model: ModelConfig, vocabulary: int, beam_size: int, threads: int | None, device: torch.device, precision: str
) -> dict[str, Any]:
    """The key of the cached result."""
    key = cache.workload_key("search", model, device)
    key["machine"] |= {"threads": threads} if threads else {}
    return {**key, "vocabularies": [vocabulary, vocabulary], "batch": [beam_size], "precision": precision}


@dataclass(frozen=True)
class MapTypes:
    """What `lower_pays` found on this machine, by precision and size."""

    pays: dict[str, list[bool]]


def quantize_as_before(
    model: nn.Module, precision: Precision, device: torch.device, read_by_rows: Collection[nn.Module] = ()
) -> None:
    """As `quantize_for_inference`, with the types of maps that another process has found: all give the same texts."""
    key = {"work": "maps", "torch": torch.__version__, "machine": cache.machine(device), cache.PLAN: None}
    is_mixed = device.type == "cpu" and precision != "fp32"  # float32 has no other types
    known = cache.get(key, MapTypes) if is_mixed else None
    MEASURED.update(known.config.pays if known else {})
    quantize_for_inference(model, precision, read_by_rows)
    if is_mixed and len(MEASURED) > (len(known.config.pays) if known else 0):
        cache.put(key, TuningResult("maps", MapTypes(MEASURED), "rows"))


def tune_search(
    search: Callable[[SearchSpeedConfig, Sequence[str], float], Sequence[str]],
    lines: Sequence[str],
    device: torch.device,
    key: Mapping[str, Any],
    planned_seconds: float,
    again: bool = False,
) -> TuningResult[SearchSpeedConfig]:
    """The fastest way to search, from the cache or else by searching some lines in every configuration.

    A less exact configuration is taken only where it finds the same texts for all of these lines and is faster than
    every exact one by a tenth, since its scores differ a little. Those with other texts are counted in the result, so
    that a user may choose them by name.

    `search` gives the texts of some lines, or raises TimeLimitError after the given seconds. Measuring takes at most
    `MAX_SHARE` of `planned_seconds`, those of all the work; with `again` it measures in spite of the cache, for up to
    `MAX_SECONDS`. `key` is that of `search_workload_key`.
    """
    known = None if again else cache.get(key, SearchSpeedConfig)
    if known is not None:
        return known
    begun = time.monotonic()
    candidates = candidate_search_configs(device, key.get("precision", "auto"))
    unmeasured = TuningResult("search", candidates[0], "sentences/s")
    limit = timing.MAX_SECONDS if again else min(timing.MAX_SECONDS, timing.MAX_SHARE * planned_seconds)
    texts: dict[SearchSpeedConfig, Sequence[str]] = {}

    def left() -> float:
        return max(0.0, limit - (time.monotonic() - begun))

    def seconds_of(config: SearchSpeedConfig, sample: Sequence[str], most: float) -> float:
        started = time.monotonic()
        texts.pop(config, None)
        with suppress(torch.OutOfMemoryError):
            texts[config] = search(config, sample, most)
            return time.monotonic() - started
        torch.cuda.empty_cache()  # the error is gone, and with it all that the search had allocated
        return math.inf

    timings, count = _measure(candidates, seconds_of, lines, left)
    if timings is None or math.isinf(timings.slower[timings.best]):
        return unmeasured
    best, slower, differing = timings.best, timings.slower, {}
    exact = [config for config in texts if config.precision == candidates[0].precision]
    if exact:
        first = min(exact, key=slower.__getitem__)
        for config in candidates:
            if config not in exact and config in texts:
                differing[str(config)] = sum(map(str.__ne__, texts[config], texts[first]))
        if best not in exact and (differing[str(best)] or slower[first] < _WORTH * slower[best]):
            best = first
    turns = timings.turns[timings.best]
    speed = slower[timings.best] * count * len(turns) / sum(turns)
    result = replace(
        unmeasured,
        config=best,
        speeds={str(config): speed / slower[config] for config in candidates},
        seconds=time.monotonic() - begun,
        lines=count,
        differing=differing,
    )
    cache.put(key, result)
    return result


def _measure(
    candidates: Sequence[SearchSpeedConfig],
    seconds_of: Callable[[SearchSpeedConfig, Sequence[str], float], float],
    lines: Sequence[str],
    left: Callable[[], float],
) -> tuple[InterleavedTimings[SearchSpeedConfig] | None, int]:
    """The timings, and how many of the lines each configuration searched; None where the time is too short."""
    usual_config, *others = candidates
    try:
        for piece in _PIECES:
            a_line = seconds_of(usual_config, lines[:piece], left()) / piece
    except TimeLimitError:
        return None, 0
    # One round of all configurations and two more of those that are left, of which the slow ones are not.
    count = min(len(lines), int(left() / a_line / (2 * len(candidates))))
    if count < _FEWEST:
        return None, 0
    too_slow = []
    for config in others:
        try:
            for piece in _PIECES:
                seconds_of(config, lines[:piece], min(left(), max(_SLOW_SECONDS, _SLOW * piece * a_line)))
        except TimeLimitError:
            too_slow.append(config)
    sample = lines[:: len(lines) // count][:count]
    fit = [config for config in candidates if config not in too_slow]
    timings = timing.time_interleaved(fit, lambda config, _, most: seconds_of(config, sample, most), left())
    return replace(timings, slower=timings.slower | dict.fromkeys(too_slow, timing.GIVE_UP_RATIO)), count


@torch.no_grad()
def fits_fp16(model: Model, tokens: int = FP16_PROBE_TOKENS) -> bool:
    """Whether all that the model makes of a text in fp16 is finite, with tokens from all over the vocabulary.

    There are so many, or half of them, and so on, where the model knows no more positions. Of a model that reads no
    text but other inputs this is not known.
    """
    if as_seq2seq(model) is not None and "src" not in model.sizes:
        return False
    halved = deepcopy(model)
    cast_to_16_bits(halved, torch.float16)
    ids = torch.linspace(UNK, min(model.sizes.values()) - 1, tokens).long().tolist()
    finite: list[bool] = []

    def look(part: torch.Tensor) -> torch.Tensor:
        finite.append(bool(part.isfinite().all()))
        return part

    try:
        for part in filter(None, halved.read(collate([ids], [ids]).to(next(model.parameters()).device))):
            part.mapped(look)
    except DataError:  # the text is too long for it
        return not tokens or fits_fp16(model, tokens // 2)
    return all(finite)
