"""Searches of a fixed length by models with random weights, at the sizes of their papers.

No output may end before its limit, so that every search takes the same steps. The pointer-generator also summarizes
articles one at a time and in batches, one batch per core, as `nmtkit summarize` does it: the texts should be the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from nmtkit.cli import terminal
from nmtkit.core import device
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.data.tokenizers.vocabulary import UNK
from nmtkit.decoding.engine import Engine, OneBatch
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig, SearchConfig
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes

from .timing import summary, time_in_turns

UNKNOWN = 0.05
"""Share of an article's tokens that the vocabulary lacks."""
BEAM = 4
SEED = 1


@dataclass(frozen=True)
class Network:
    """A model with random weights, and how long its texts are."""

    kind: str
    settings: dict[str, Any] = field(hash=False)
    vocabulary: int = 50_000
    source: int = 399
    """Tokens without EOS."""
    output: int = 100
    """Tokens."""

    def build(self) -> Seq2Seq:
        torch.manual_seed(SEED)
        model = MODELS.get(self.kind)
        config = model.Config.model_validate({"kind": self.kind, **self.settings})
        return model(
            config, VocabularySizes({"src": self.vocabulary, "tgt": self.vocabulary}, shared=True)
        ).eval()

    def search_config(self, beam_size: int = BEAM) -> SearchConfig:
        """No output is shorter or longer than `output`."""
        limits = {
            "max_length": self.output,
            "max_length_ratio": 0.0,
            "max_length_offset": self.output,
        }
        return BeamConfig(beam_size=beam_size, min_length=self.output - 1, **limits)

    def sources(self, count: int, seed: int = SEED) -> list[list[int]]:
        """Extended ids: words drawn as Zipf says; unknown words are numbered as they come."""
        draw = np.random.default_rng(seed)
        frequency = 1.0 / (np.arange(self.vocabulary - 4) + 20.0)
        frequency /= frequency.sum()
        rows = []
        for _ in range(count):
            words = draw.choice(len(frequency), size=self.source, p=frequency) + 4
            unknown = draw.random(self.source) < UNKNOWN
            words[unknown] = self.vocabulary + np.arange(int(unknown.sum()))
            rows.append(words.tolist())
        return rows

    def batch(self, sources: Sequence[Sequence[int]]) -> Batch:
        plain = [[UNK if word >= self.vocabulary else word for word in row] for row in sources]
        unknown = max(0, max(max(row, default=0) for row in sources) - self.vocabulary + 1)
        return collate(plain, src_extended=sources, n_oov=unknown)


POINTER_GENERATOR = Network("pointer_generator", {"coverage": True})
TOY = Network("pointer_generator", {"coverage": True, "embedding_size": 8, "hidden_size": 8})


def run_engine(engine: Engine, batch: Batch) -> list[list[int]]:
    """The best output of every sentence of a batch."""
    results = dict(engine.run(OneBatch(batch)))
    return [results[number][0].ids for number in range(batch.size)]


def summarize(
    model: Seq2Seq,
    network: Network,
    sources: Sequence[Sequence[int]],
    together: int,
    place: torch.device,
) -> list[list[int]]:
    """The best summary of each article; several batches are searched at a time, one per core."""
    summaries: dict[int, list[int]] = {}

    def search(first: int) -> None:
        batch = network.batch(sources[first : first + together]).to(place)
        results = search_batch(model, batch, network.search_config())
        summaries.update((first + row, best[0].ids) for row, best in enumerate(results))

    firsts = range(0, len(sources), together)
    if together == 1:  # one article at a time has all threads
        for first in firsts:
            search(first)
    else:
        device.map_batches(search, firsts, place)
    return [summaries[number] for number in range(len(sources))]


def measure_summaries(
    network: Network,
    articles: int,
    alone: int,
    together: int,
    rounds: int,
    threads: int,
    place: torch.device,
) -> list[dict[str, Any]]:
    """The first articles one at a time and all in batches, with exact products and with faster ones."""
    rows = []
    for precision, arithmetic in (("highest", "fp32"), ("medium", "fp32, matmul medium")):
        device.prepare(place, precision, threads)
        model, sources = network.build().to(place), network.sources(articles, SEED + 1)
        with torch.no_grad():
            for parameter in model.parameters():
                # so that summaries differ, and no two words are as likely to the last digit
                parameter.mul_(4.0)
        jobs = {
            "one": partial(summarize, model, network, sources[:alone], 1, place),
            "all": partial(summarize, model, network, sources, together, place),
        }
        summarize(model, network, sources[:together], together, place)
        timings = time_in_turns(jobs, rounds, place, warm_up=False)
        one, batched = timings["one"].per_second(alone), timings["all"].per_second(articles)
        same = sum(map(list.__eq__, timings["one"].results[-1], timings["all"].results[-1]))
        compared = {"ratio": median(batched) / median(one), "identical": f"{same} of {alone}"}
        for way, key, speed, more in (
            (f"{alone} one at a time", "one", one, {}),
            (f"{articles:,}, {together} together", "all", batched, compared),
        ):
            row = {"way": f"{way}, {arithmetic}", "articles_per_second": speed, **more}
            rows.append({**row, "peak_mib": timings[key].peak_mib})
    return rows


def show_summaries(rows: Sequence[dict[str, Any]]) -> None:
    cells = []
    for row in rows:
        compared = [f"{row['ratio']:.1f}", row["identical"]] if "ratio" in row else ["-", "-"]
        speed = summary(row["articles_per_second"], "", 2)
        cells.append([row["way"], speed, *compared, f"{row['peak_mib']:,.0f}"])
    columns = ["decoding", "articles/s", "x one at a time", "identical text", "peak MiB"]
    terminal.table(
        f"pointer-generator with coverage and random weights, beam {BEAM}", columns, cells
    )
