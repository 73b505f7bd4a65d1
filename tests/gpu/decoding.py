"""How fast sentences are translated: steps one by one and as CUDA graphs, beside the engines of others.

All have the same weights, random ones that write so many tokens, the same batches and the same limits. Hugging Face
and CTranslate2 are measured where they are installed; where they cannot be, a row says why.
"""

from dataclasses import replace
from statistics import median

from . import fixed_length, work
from .results import Given, given, middle

SENTENCES = {1: 8, 32: 64, 512: 1024}
"""How many are decoded, by the size of the batch."""
QUICK = {1: 2, 4: 8}
CLAIMED = 32
"""The size of batch at which graphs must pay."""
GAIN = 3.0
"""How many times as quick as single steps they must be there."""


def batch_of(told: Given, whole: fixed_length.Work, batch_size: int, beam_size: int, others: list[str]) -> None:
    """A row for every way, and one for what graphs gain."""
    count = (QUICK if told.quick else SENTENCES)[batch_size]
    part = replace(whole.first(count), batch_size=batch_size)
    steps = part.longest * len(part.batches())
    name = f"batch {batch_size}, {f'beam {beam_size}' if beam_size > 1 else 'greedy'}"
    speeds = fixed_length.measure(part, beam_size, others, 1 if told.quick else 3)
    taken = {(speed.way.engine, speed.way.arithmetic): median(speed.seconds) for speed in speeds}
    found = {(speed.way.engine, speed.way.arithmetic): speed.found for speed in speeds}
    first = speeds[0].found
    for speed in speeds:
        tokens = sum(map(len, speed.found))
        per_second = [tokens / seconds for seconds in speed.seconds]
        ms = [1e3 * seconds / steps for seconds in speed.seconds]
        equal = sum(a == b for a, b in zip(speed.found, first, strict=True))
        figure = f"{middle(per_second, 'tok/s')}, {middle(ms, 'ms a step', 2)}, {speed.peak_mib:,.0f} MiB, "
        figure += f"{equal} of {count} as the first"
        told.results.add(
            f"{name}, {speed.way.engine}, {speed.way.arithmetic}",
            None,
            figure,
            tokens_per_second=per_second,
            ms_per_step=ms,
            peak_mib=speed.peak_mib,
            tokens=tokens,
            equal=equal,
        )
    for arithmetic in dict.fromkeys(arithmetic for engine, arithmetic in taken if engine == "nmtkit, graph"):
        one, recorded = ("nmtkit, eager", arithmetic), ("nmtkit, graph", arithmetic)
        same = sum(a == b for a, b in zip(found[one], found[recorded], strict=True))
        told.results.add(f"{name}, {arithmetic}: graph writes what eager writes", same == count, f"{same} of {count}")
        gain = taken[one] / taken[recorded]
        claimed = gain >= GAIN if batch_size == CLAIMED else None
        told.results.add(f"{name}, {arithmetic}: graph by eager", claimed, f"{gain:.2f} times as quick", gain=gain)
    best = min((taken[way], way) for way in taken if way[0].startswith("nmtkit"))
    for other in others:
        peer = next(way for way in taken if way[0] == other)
        gain = taken[peer] / best[0]
        figure = f"{gain:.2f} times as quick ({', '.join(best[1])} by {', '.join(peer)})"
        told.results.add(f"{name}, nmtkit by {other}", None, figure, gain=gain)


def main(told: Given) -> None:
    sizes = QUICK if told.quick else SENTENCES
    whole = work.to_decode(told, max(sizes.values()))
    others = []
    for name in fixed_length.OTHERS:
        why = fixed_length.unfit(whole, name)
        if why is None:
            others.append(name)
        else:
            told.results.add(f"{name} is not measured", None, why)
    for batch_size in sizes:
        for beam_size in (4, 1):
            batch_of(told, whole, batch_size, beam_size, others)


if __name__ == "__main__":
    main(given("decoding", __doc__))
