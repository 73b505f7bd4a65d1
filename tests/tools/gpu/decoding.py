"""How fast models with random weights write outputs of one length: steps one by one, and as CUDA graphs."""

import copy
from dataclasses import replace
from functools import partial
from statistics import median

import torch

from nmtkit.data.batches.batch import Batch
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.engine import Engine
from tests.tools.bench.search import POINTER_GENERATOR, TOY, Network, measure_summaries, run_engine
from tests.tools.bench.timing import summary, time_in_turns
from tests.tools.bench.training import BASE

from .results import Part

RNNSEARCH = {"embedding_size": 620, "hidden_size": 1000, "attention_size": 1000, "maxout_size": 500}
LUONG = {"embedding_size": 1000, "hidden_size": 1000, "layers": 4, "window": "local_p"}
NETWORKS = {
    "transformer": Network("transformer", BASE.model_dump(), 32_000, 15, 30),
    "rnnsearch": Network("rnnsearch", RNNSEARCH, 30_000, 30, 30),
    "luong, local-p": Network("luong", LUONG, 50_000, 30, 30),
    "pointer-generator": POINTER_GENERATOR,
    "intra-attention": Network("intra_attention", {}, source=799),
}
BATCHES = {"transformer": [(size, beam) for size in (1, 32, 512) for beam in (4, 1)]}
"""Sizes of batch and beam, unless they are `USUAL`."""
USUAL = [(128, 4)]
CLAIMED = ("transformer", 32)
"""Where graphs must pay."""
GAIN = 3.0
"""How many times as fast as single steps they must be there."""


def engines(network: Network, beam_size: int, place: torch.device) -> dict[str, Engine]:
    """In every arithmetic and with both kinds of steps, those one by one first."""
    model, config = network.build().to(place), network.search_config(beam_size)
    if place.type != "cuda":
        return {"eager, fp32": Engine(BeamSearch(model, config), steps="eager")}
    models = {"fp32": model, "fp16": copy.deepcopy(model).half()}
    return {
        f"{steps}, {kind}": Engine(BeamSearch(one, config), steps=steps)
        for kind, one in models.items()
        for steps in ("eager", "graph")
    }


def batch_of(network: Network, size: int, place: torch.device) -> Batch:
    sources = network.sources(size)
    if network.kind in ("transformer", "rnnsearch", "luong"):  # which cannot copy
        sources = [[min(word, network.vocabulary - 1) for word in source] for source in sources]
    return network.batch(sources).to(place)


def look(part: Part, name: str, size: int, beam_size: int) -> None:
    """A row for every engine, and one for what graphs gain."""
    network = NETWORKS[name]
    if part.quick:
        size, network = min(size, 2), replace(network, source=9, output=4)
    batch = batch_of(network, size, part.place)
    jobs = {
        way: partial(run_engine, one, batch)
        for way, one in engines(network, beam_size, part.place).items()
    }
    timings = time_in_turns(jobs, 1 if part.quick else 3, part.place)
    title = f"{name}, batch {size}, beam {beam_size}"
    first = timings["eager, fp32"].results[-1]
    for way, timing in timings.items():
        tokens, ms = (
            timing.per_second(size * network.output),
            [1e3 * one / network.output for one in timing.seconds],
        )
        equal = sum(map(list.__eq__, timing.results[-1], first))
        figure = (
            f"{summary(tokens, 'tok/s')}, {summary(ms, 'ms a step', 2)}, {timing.peak_mib:,.0f} MiB"
        )
        values = {
            "tokens_per_second": tokens,
            "ms_per_step": ms,
            "peak_mib": timing.peak_mib,
            "equal": equal,
        }
        part.add(f"{title}, {way}", None, f"{figure}, {equal} of {size} as the first", **values)
    for kind in ("fp32", "fp16") if part.place.type == "cuda" else ():
        eager, graph = timings[f"eager, {kind}"], timings[f"graph, {kind}"]
        same = eager.results[-1] == graph.results[-1]
        part.add(f"{title}, {kind}: graph writes what eager writes", same, "yes" if same else "no")
        gain = median(eager.seconds) / median(graph.seconds)
        holds = gain >= GAIN if (name, size) == CLAIMED else None
        part.add(f"{title}, {kind}: graph by eager", holds, f"{gain:.2f} times as fast", gain=gain)


def main(part: Part) -> None:
    for name in NETWORKS:
        for size, beam_size in BATCHES.get(name, USUAL)[: 1 if part.quick else None]:
            look(part, name, size, beam_size)
    network, sizes = (TOY, (2, 1, 2, 1)) if part.quick else (POINTER_GENERATOR, (128, 2, 128, 2))
    for row in measure_summaries(network, *sizes, torch.get_num_threads(), part.place):
        figure = summary(row["articles_per_second"], "articles/s", 2)
        if "ratio" in row:
            figure += f", {row['ratio']:.1f} x one at a time, {row['identical']} equal"
        part.add(f"summaries, {row['way']}", None, figure, **row)
