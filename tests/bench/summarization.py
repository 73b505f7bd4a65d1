"""Training and decoding speed of the pointer-generator at the sizes of See et al. 2017, on made-up articles.

Training: batches of 8 articles of 400 tokens and summaries of 100, a vocabulary of 50,000, coverage and its loss,
Adagrad, clipping; a step is all that the training loop does with a batch that is loaded.

Decoding: articles of 400 tokens, 4 hypotheses, 100 tokens out, by random weights that never end a summary. Whole
batches beside one article at a time: the same model, the same search, and the same text must come out.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor

from nmtkit import console
from nmtkit.core import device
from nmtkit.core.errors import NmtkitError
from nmtkit.data.batch import Batch, collate
from nmtkit.data.vocabulary import EOS, UNK
from nmtkit.experiment.bench import peak_memory_mib, read_clock, reset_peak_memory, spread
from nmtkit.models.base import Seq2Seq, VocabularySizes
from nmtkit.models.pointer_generator import PointerGenerator, PointerGeneratorConfig
from nmtkit.search.engine import beam_search
from nmtkit.search.rules import SearchConfig
from nmtkit.training.objectives.attention import CoverageLoss
from nmtkit.training.objectives.likelihood import Likelihood
from nmtkit.training.objectives.objective import GradientAccumulator
from nmtkit.training.optimizers import OptimizerConfig, build_optimizer

VOCABULARY = 50_000
PAPER = PointerGeneratorConfig(coverage=True)
TOY = PAPER.changed({"embedding_size": 8, "hidden_size": 8})
SOURCE, TARGET = 399, 99
"""Tokens without EOS; with it 400 and 100."""
TRAINED_TOGETHER = 8
UNKNOWN = 0.05
"""Share of an article's tokens that the vocabulary lacks."""
CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}
"""What the training loop allows the log-probabilities."""
BEAM = 4
IMPOSSIBLE = -1e4
SEED = 1


@dataclass(frozen=True)
class Speed:
    """One row of the result."""

    what: str
    how: str
    per_second: list[float]
    """Target tokens a second in training, articles a second in decoding; one figure a round."""
    peak_mib: float
    """The most memory until then, or on a CUDA device while it ran; see `peak_memory_mib`."""
    ratio: float | None = None
    """To one article at a time."""
    identical: str = "-"
    """Articles with the text of one at a time."""

    def row(self) -> list[str]:
        ratio = "-" if self.ratio is None else f"{self.ratio:.1f}"
        speed = [f"{median(self.per_second):,.2f}", spread(self.per_second, 2)]
        return [self.what, self.how, *speed, f"{self.peak_mib:,.0f}", ratio, self.identical]


def articles(count: int, length: int, seed: int) -> list[list[int]]:
    """Extended ids: words drawn as Zipf says, and unknown words numbered as they come."""
    draw = np.random.default_rng(seed)
    frequency = 1.0 / (np.arange(VOCABULARY - 4) + 20.0)
    frequency /= frequency.sum()
    found = []
    for _ in range(count):
        words = draw.choice(len(frequency), size=length, p=frequency) + 4
        unknown = draw.random(length) < UNKNOWN
        words[unknown] = VOCABULARY + np.arange(int(unknown.sum()))
        found.append(words.tolist())
    return found


def batch_of(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]] | None = None) -> Batch:
    def plain(rows: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[UNK if word >= VOCABULARY else word for word in row] for row in rows]

    n_oov = max(0, max(max(row, default=0) for row in sources) - VOCABULARY + 1)
    if targets is None:
        return collate(plain(sources), src_extended=sources, n_oov=n_oov)
    return collate(plain(sources), plain(targets), sources, targets, n_oov)


def build(config: PointerGeneratorConfig = PAPER) -> PointerGenerator:
    torch.manual_seed(SEED)
    return PointerGenerator(config, VocabularySizes(VOCABULARY, VOCABULARY, shared=True))


def training(
    updates: int, rounds: int, threads: int, place: torch.device, config: PointerGeneratorConfig = PAPER
) -> list[Speed]:
    """Steps with coverage and its loss, in the paper's arithmetic and with faster products."""
    rows = []
    precisions: list[device.MatmulPrecision] = ["highest", "medium"]
    for precision in precisions:
        device.prepare(place, precision, threads)
        model = build(config).to(place).train()
        settings = OptimizerConfig(optimizer="adagrad", lr=0.15)
        optimizer = build_optimizer(settings, dict(model.named_parameters()))
        sources = articles(TRAINED_TOGETHER * updates, SOURCE, SEED)
        batches = []
        for first in range(0, len(sources), TRAINED_TOGETHER):
            part = sources[first : first + TRAINED_TOGETHER]
            batches.append(batch_of(part, [source[:TARGET] for source in part]))
        speeds = []
        reset_peak_memory(place)
        for number in range(rounds + 1):  # the first is thrown away
            begun = read_clock(place)
            sums = torch.stack([update(model, optimizer, batch, place) for batch in batches])
            seconds = read_clock(place) - begun
            if not bool(sums.isfinite().all()):
                raise NmtkitError("the loss is not a number: nothing was measured")
            if number > 0:
                speeds.append(sum(batch.n_tokens for batch in batches) / seconds)
        rows.append(Speed("training, tokens/s", _arithmetic(precision), speeds, peak_memory_mib(place)))
    return rows


def update(model: Seq2Seq, optimizer: torch.optim.Optimizer, batch: Batch, place: torch.device) -> Tensor:
    """One update of the pointer-generator; gives the sums of its losses."""
    optimizer.zero_grad(set_to_none=True)
    chunk_bytes = CHUNK_BYTES.get(place.type, CHUNK_BYTES["cpu"])
    counts = {"tokens": batch.n_tokens}
    sums = GradientAccumulator(model, [Likelihood(), CoverageLoss()], counts, place, chunk_bytes).backward(batch)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    optimizer.step()
    return torch.stack(list(sums.values()))


def decoding(
    count: int,
    alone: int,
    together: int,
    rounds: int,
    threads: int,
    place: torch.device,
    longest: int = TARGET + 1,
    config: PointerGeneratorConfig = PAPER,
) -> list[Speed]:
    """`count` articles in batches of `together`, and the first `alone` of them one at a time."""
    rows = []
    precisions: list[device.MatmulPrecision] = ["highest", "medium"]
    for precision in precisions:
        device.prepare(place, precision, threads)
        model = build(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4.0)  # so that summaries differ, and no two words are as likely to the last digit
            model.get_parameter("output.bias")[EOS] = IMPOSSIBLE  # every summary runs to its limit
        model.to(place)
        sources = articles(count, SOURCE, SEED + 1)
        in_batches: list[float] = []
        one_by_one: list[float] = []
        peaks = [0.0, 0.0]
        decode(model, sources[:1], 1, 5, place)  # warms up
        if place.type != "cpu":  # where the first batch of a size pays for memory as well
            decode(model, sources[:together], together, longest, place)
        for _ in range(rounds):
            reset_peak_memory(place)
            begun = read_clock(place)
            single = decode(model, sources[:alone], 1, longest, place)
            one_by_one.append(alone / (read_clock(place) - begun))
            peaks[0] = peaks[0] or peak_memory_mib(place)
            reset_peak_memory(place)
            begun = read_clock(place)
            whole = decode(model, sources, together, longest, place)
            in_batches.append(count / (read_clock(place) - begun))
            peaks[1] = peak_memory_mib(place)
        same = sum(one == other for one, other in zip(single, whole[:alone], strict=True))
        ratio = median(in_batches) / median(one_by_one)
        arithmetic = _arithmetic(precision)
        what = "decoding, articles/s"
        rows.append(Speed(what, f"{alone} one at a time, {arithmetic}", one_by_one, peaks[0]))
        name = f"{count:,}, {together} together, {arithmetic}"
        rows.append(Speed(what, name, in_batches, peaks[1], ratio, f"{same} of {alone}"))
    return rows


def decode(
    model: Seq2Seq, sources: Sequence[Sequence[int]], together: int, longest: int, place: torch.device
) -> list[list[int]]:
    """The best summary of each article; of several batches one a core, as `nmtkit summarize` does it."""
    config = SearchConfig(beam_size=BEAM, max_length=longest, max_length_ratio=0.0, max_length_offset=longest)
    found: dict[int, list[int]] = {}

    def work(first: int) -> None:
        results = beam_search(model, batch_of(sources[first : first + together]).to(place), config)
        found.update((first + row, best[0].ids) for row, best in enumerate(results))

    firsts = range(0, len(sources), together)
    if together == 1:  # one article at a time, with all threads
        for first in firsts:
            work(first)
    else:
        device.map_batches(work, firsts, place)
    return [found[number] for number in range(len(sources))]


def _arithmetic(precision: device.MatmulPrecision) -> str:
    return "fp32" if precision == "highest" else f"fp32, matmul {precision}"


def show(speeds: Sequence[Speed]) -> None:
    console.table(
        f"pointer-generator, 400 tokens in, 100 out, vocabulary {VOCABULARY:,}, coverage; beam {BEAM}",
        ["what", "how", "per second", "min-max", "peak MiB", "x one at a time", "identical text"],
        [speed.row() for speed in speeds],
    )


def as_dicts(speeds: Sequence[Speed]) -> list[dict[str, object]]:
    return [asdict(speed) for speed in speeds]
