"""Steps of recurrent models, together and alone, beside their floors: `python -m tests.bench.steps [NAME ...]`.

The floor of a step are its matrix products, each with operands of its own, and with an additive score one sigmoid for
each unit, query and source position. What sentences can share is the reading of the weights: alone a step is bound by
that, together by the products. So the ratio of both floors is the most that decoding together can gain where a step
alone wastes nothing. What a sentence has for itself, as sigmoids and the softmax over the vocabulary, lowers it. Times
are those of one thread, the least of several turns.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch.utils._pytree import tree_unflatten

from nmtkit.cli import terminal
from nmtkit.core import device as devices
from nmtkit.decoding.decoding_batch import DecodingBatch
from nmtkit.decoding.graphs import CapturedBatch
from nmtkit.layers.attention import Additive
from nmtkit.layers.inference import quantize_for_inference
from nmtkit.models.base import Seq2Seq

from .matmuls import MatmulTrace, TensorSpec
from .search import Network

SIZES = {"embedding_size": 256, "hidden_size": 512}
NETWORKS = {
    "rnn_encdec": Network("rnn_encdec", SIZES, 8_000, 25),
    "rnnsearch": Network("rnnsearch", {**SIZES, "bidirectional": True}, 8_000, 25),
    "luong": Network("luong", {**SIZES, "layers": 2}, 8_000, 25),
    "luong local-p": Network("luong", {**SIZES, "layers": 2, "window": "local_p"}, 8_000, 25),
    "gnmt": Network("gnmt", {}, 8_000, 25),
    "pointer_generator": Network("pointer_generator", {"coverage": True}),
    "intra_attention": Network("intra_attention", {}),
}
"""Translators read 25 words, summarizers 399; the sizes are realistic, and the weights random."""
LENGTHS = (49, 99, 199, 399)
"""Source words of the second table."""
BEAM = 5
Steps = dict[str, Callable[[], object]]
IN_CACHE = 1 << 18
"""Numbers that a core works on in its cache, a MiB in float32."""


def least(jobs: Steps, rounds: int) -> dict[str, float]:
    """Milliseconds of each job in the fastest of some turns; a first one is not counted."""
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds + 1):
        for name, job in jobs.items():
            begun = time.thread_time()
            job()
            found[name].append(1e3 * (time.thread_time() - begun))
    return {name: min(times[1:]) for name, times in found.items()}


def begin(model: Seq2Seq, network: Network, count: int) -> DecodingBatch:
    """So many sentences after their first step."""
    batch = network.batch(network.sources(count))
    decoding = DecodingBatch.begin(model, batch, network.search_config(BEAM), 1)
    decoding.step(False)
    return decoding


def products_of(decoding: DecodingBatch) -> tuple[MatmulTrace, list[Callable[[], object]]]:
    """The matrix products of a step."""
    trace, calls = MatmulTrace(), list[Callable[[], object]]()
    trace.record(partial(decoding.step, False))
    for product, count in trace.counts.items():
        for _ in range(count):
            leaves = [leaf.zeros() if isinstance(leaf, TensorSpec) else leaf for leaf in product.leaves]
            arguments, keywords = tree_unflatten(leaves, product.structure)
            calls.append(partial(product.operator, *arguments, **keywords))
    return trace, calls


def in_turn(calls: Sequence[Callable[[], object]]) -> None:
    """Does one after the other."""
    for call in calls:
        call()


def sigmoids(model: Seq2Seq, network: Network, count: int) -> Callable[[], None]:
    """The sigmoids of the additive scores of a step, computed in the cache."""
    scores = [one for one in model.modules() if isinstance(one, Additive)]
    numbers = count * BEAM * (network.source + 1) * sum(len(one.energy) for one in scores)
    room = torch.zeros(IN_CACHE)

    def compute() -> None:
        for first in range(0, numbers, IN_CACHE):
            room[: numbers - first].sigmoid_()

    return compute


@torch.no_grad()
def measure(network: Network, together: int, rounds: int, precision: str = "fp32", floors: bool = True) -> list[float]:
    """Milliseconds of a step: together, alone, replayed; then of the products and sigmoids of the first two."""
    model = network.build()
    quantize_for_inference(model, precision)  # type: ignore[arg-type]  # one of the choices
    many, one = begin(model, network, together), begin(model, network, 1)
    captured = CapturedBatch(begin(model, network, 1), 1, network.output + 1, at_once=True)
    captured.step(False, 1)
    jobs: Steps = {
        "together": partial(many.step, False),
        "alone": partial(one.step, False),
        "replayed": partial(captured.step, False, 1),
    }
    if floors:
        for name, decoding in (("together", many), ("alone", one)):
            jobs[f"products {name}"] = partial(in_turn, products_of(decoding)[1])
            jobs[f"sigmoids {name}"] = sigmoids(model, network, together if name == "together" else 1)
    return list(least(jobs, rounds).values())


def main() -> None:
    """Prints a table of steps and floors, and one of steps by the length of the source."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", default=[], metavar="NAME", help=f"of {', '.join(NETWORKS)}; default: all")
    options.add_argument("--together", type=int, default=64, help="sentences; of summaries half as many")
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--precision", choices=["fp32", "bf16", "int8"], default="fp32")
    given = options.parse_args()
    devices.prepare(torch.device("cpu"), threads=1)
    cells, lengths = [], []
    for name in given.names or NETWORKS:
        network = NETWORKS[name]
        count = given.together if network.source < max(LENGTHS) else max(1, given.together // 2)
        step, alone, replayed, *floor = measure(network, count, given.rounds, given.precision)
        ratios = [count * other / step for other in (alone, replayed)]
        possible = count * sum(floor[2:]) / sum(floor[:2])
        times = [step, *floor[:2], alone, replayed, *floor[2:]]
        cells.append(
            [name, str(count), *(f"{one:.2f}" for one in times), *(f"{one:.1f}" for one in (*ratios, possible))]
        )
        by_length = [
            measure(replace(network, source=words), count, given.rounds, given.precision, floors=False)
            for words in LENGTHS
        ]
        lengths.append([name, *(f"{one[0]:.1f}, {one[1]:.2f}" for one in by_length)])
    columns = ["model", "texts", "together", "products", "sigmoids", "alone", "replayed", "products", "sigmoids"]
    title = f"milliseconds of a step, beam {BEAM}, {given.precision}"
    terminal.table(title, [*columns, "ratio", "to replayed", "of floors"], cells)
    names = ["model", *(f"{words + 1} tokens" for words in LENGTHS)]
    terminal.table(f"{title}, by source length: together, alone", names, lengths)


if __name__ == "__main__":
    main()
