"""Steps of recurrent models, together and alone, beside their floors: `python -m tests.tools.bench.steps [NAME ...]`.

The floor of a step are its matrix products, each with operands of its own, and with an additive score one sigmoid for
each unit, query and source position. What sentences can share is the reading of the weights: alone a step is bound by
that, together by the products. So the ratio of both floors is the most that decoding together can gain where a step
alone wastes nothing. What a sentence has for itself, as sigmoids and the softmax over the vocabulary, lowers it. Times
are those of one thread, the least of several turns.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.utils._pytree import tree_unflatten

from nmtkit.cli import terminal
from nmtkit.core import device as devices
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.search_state import SearchState
from nmtkit.layers.attention import Additive
from nmtkit.layers.linear import prepare_for_inference
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


@dataclass(frozen=True)
class Begun:
    """Sentences after their first step."""

    search: BeamSearch
    state: SearchState

    @classmethod
    def of(cls, model: Seq2Seq, network: Network, count: int) -> "Begun":
        search = BeamSearch(model, network.search_config(BEAM))
        state = search.begin(network.batch(network.sources(count)))
        search.step(state)
        return cls(search, state)

    def step(self) -> None:
        """Makes the next step."""
        self.search.step(self.state)


def trace_products(begun: Begun) -> MatmulTrace:
    """The matrix products of a step."""
    trace = MatmulTrace()
    trace.record(begun.step)
    return trace


def calls_of(trace: MatmulTrace) -> list[Callable[[], object]]:
    """The products, each with operands of its own."""
    calls: list[Callable[[], object]] = []
    for product, count in trace.counts.items():
        for _ in range(count):
            leaves = [
                leaf.zeros() if isinstance(leaf, TensorSpec) else leaf for leaf in product.leaves
            ]
            arguments, keywords = tree_unflatten(leaves, product.structure)
            calls.append(partial(product.operator, *arguments, **keywords))
    return calls


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
def measure(
    network: Network, together: int, rounds: int, precision: str = "fp32", floors: bool = True
) -> list[float]:
    """Milliseconds of a step: together, alone; then of the products and sigmoids of both."""
    model = network.build()
    prepare_for_inference(model, precision)  # type: ignore[arg-type]  # one of the choices
    counts = {"together": together, "alone": 1}
    begun = {name: Begun.of(model, network, count) for name, count in counts.items()}
    jobs: Steps = {name: sentences.step for name, sentences in begun.items()}
    if floors:
        for name, sentences in begun.items():
            jobs[f"products {name}"] = partial(in_turn, calls_of(trace_products(sentences)))
            jobs[f"sigmoids {name}"] = sigmoids(model, network, counts[name])
    return list(least(jobs, rounds).values())


def main() -> None:
    """Prints a table of steps and floors, and one of steps by the length of the source."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "names",
        nargs="*",
        default=[],
        metavar="NAME",
        help=f"of {', '.join(NETWORKS)}; default: all",
    )
    options.add_argument(
        "--together", type=int, default=64, help="sentences; of summaries half as many"
    )
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    given = options.parse_args()
    devices.prepare(torch.device("cpu"), threads=1)
    cells, lengths = [], []
    for name in given.names or NETWORKS:
        network = NETWORKS[name]
        count = given.together if network.source < max(LENGTHS) else max(1, given.together // 2)
        step, alone, *floor = measure(network, count, given.rounds, given.precision)
        ratio = count * alone / step
        possible = count * sum(floor[2:]) / sum(floor[:2])
        times = [step, *floor[:2], alone, *floor[2:]]
        cells.append(
            [
                name,
                str(count),
                *(f"{one:.2f}" for one in times),
                *(f"{one:.1f}" for one in (ratio, possible)),
            ]
        )
        by_length = [
            measure(
                replace(network, source=words), count, given.rounds, given.precision, floors=False
            )
            for words in LENGTHS
        ]
        lengths.append([name, *(f"{one[0]:.1f}, {one[1]:.2f}" for one in by_length)])
    columns = [
        "model",
        "texts",
        "together",
        "products",
        "sigmoids",
        "alone",
        "products",
        "sigmoids",
    ]
    title = f"milliseconds of a step, beam {BEAM}, {given.precision}"
    terminal.table(title, [*columns, "ratio", "of floors"], cells)
    names = ["model", *(f"{words + 1} tokens" for words in LENGTHS)]
    terminal.table(f"{title}, by source length: together, alone", names, lengths)


if __name__ == "__main__":
    main()
