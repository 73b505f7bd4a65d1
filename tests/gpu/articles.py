"""Long sources and large vocabularies: articles or sentences a second, steps one by one and as CUDA graphs.

The weights are random, and no output may end before its limit. Beside them the pointer-generator in batches and one
article at a time, as `nmtkit summarize` does it.
"""

from collections.abc import Sequence
from typing import Any

import torch

from nmtkit.data.batch import Batch
from nmtkit.experiment.bench import peak_memory_mib, read_clock, reset_peak_memory
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes
from nmtkit.search.engine import Engine, StepMode
from nmtkit.search.rules import SearchConfig
from tests.bench import summarization

from .results import Given, given, middle

PAPER = {"embedding_size": 620, "hidden_size": 1000, "attention_size": 1000, "maxout_size": 500}
LOCAL = {"embedding_size": 1000, "hidden_size": 1000, "layers": 4, "window": "local_p"}
LOOKED_AT: dict[str, tuple[str, dict[str, Any], int, int, int]] = {
    "rnnsearch": ("rnnsearch", PAPER, 30_000, 30, 30),
    "luong, local-p": ("luong", LOCAL, 50_000, 30, 30),
    "pointer-generator with coverage": ("pointer_generator", {"coverage": True}, 50_000, 399, 100),
    "intra-attention": ("intra_attention", {}, 50_000, 799, 100),
}
"""By name: the kind of model, its settings, the vocabulary, tokens of a source and of an output."""
TOGETHER, QUICK_TOGETHER = 128, 2
ROUNDS = 3


def built(kind: str, settings: dict[str, Any], vocabulary: int) -> Seq2Seq:
    torch.manual_seed(1)
    cls = MODELS.get(kind)
    return cls(cls.Config.model_validate({"kind": kind, **settings}), VocabularySizes(vocabulary, vocabulary, True))


def decoded(engine: Engine, batch: Batch) -> list[list[int]]:
    waiting = [(range(batch.size), batch)]

    def feed(count: int | None, width: int | None) -> tuple[Sequence[int], Batch] | None:
        return waiting.pop() if waiting and count is None else None

    found = dict(engine.run(feed))
    return [found[number][0].ids for number in range(batch.size)]


def look(told: Given, name: str) -> None:
    """A row for each way to make steps, and what graphs gain."""
    kind, settings, vocabulary, length, written = LOOKED_AT[name]
    place, together = told.place, TOGETHER
    if told.quick:
        length, written, together = 9, 4, QUICK_TOGETHER
    model = built(kind, settings, vocabulary).to(place).eval()
    limits: dict[str, Any] = {"max_length": written, "max_length_ratio": 0.0, "max_length_offset": written}
    config = SearchConfig(beam_size=4, min_length=written - 1, **limits)
    sources = summarization.articles(together, length, 1)
    if kind in ("rnnsearch", "luong"):
        sources = [[min(word, vocabulary - 1) for word in source] for source in sources]
    batch = summarization.batch_of(sources).to(place)
    ways: list[tuple[StepMode, str]] = [("eager", "fp32")]
    if place.type == "cuda":
        ways += [("graph", "fp32"), ("graph", "fp16")]
    least: dict[tuple[StepMode, str], float] = {}
    outputs = {}
    for steps, arithmetic in ways:
        engine = Engine(model.half() if arithmetic == "fp16" else model, config, steps=steps)
        decoded(engine, batch)
        reset_peak_memory(place)
        taken = []
        for _ in range(1 if told.quick else ROUNDS):
            begun = read_clock(place)
            outputs[steps, arithmetic] = decoded(engine, batch)
            taken.append(read_clock(place) - begun)
        least[steps, arithmetic] = min(taken)
        speeds = [together / one for one in taken]
        ms = [1e3 * one / written for one in taken]
        figure = f"{middle(speeds, 'a second', 1)}, {middle(ms, 'ms a step', 2)}, {peak_memory_mib(place):,.0f} MiB"
        way = f"{name}, {together} together, {steps}, {arithmetic}"
        told.results.add(way, None, figure, per_second=speeds, ms_per_step=ms)
    if len(ways) > 1:
        one, recorded = ways[:2]
        same = sum(a == b for a, b in zip(outputs[one], outputs[recorded], strict=True))
        gain = least[one] / least[recorded]
        figure = f"{gain:.2f} times as quick, {same} of {together} equal"
        told.results.add(f"{name}, graph by eager", same == together, figure, gain=gain)


def main(told: Given) -> None:
    for name in LOOKED_AT:
        look(told, name)
    threads = torch.get_num_threads()
    sizes = (2, 1, 2, 1, threads, told.place, 4) if told.quick else (128, 2, 128, 2, threads, told.place)
    for article in summarization.decoding(*sizes):
        figure = f"{middle(article.per_second, 'articles/s', 2)}, {article.peak_mib:,.0f} MiB"
        if article.ratio is not None:
            figure += f", {article.ratio:.1f} x one at a time, {article.identical} equal"
        told.results.add(f"pointer-generator, {article.how}", None, figure, articles_per_second=article.per_second)


if __name__ == "__main__":
    main(given("articles", __doc__))
