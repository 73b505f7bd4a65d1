"""Decoding speed of nmtkit's search beside Hugging Face's `generate`: the same weights, batches and limits, in turns.

Given a trained run, its weights translate its test set. Without one the weights are random and never end a sentence
(EOS is all but impossible), so that every translation runs to one length and both engines take the same steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch

from nmtkit import device
from nmtkit.data.batch import Batch, collate, in_order_batches
from nmtkit.data.store import Store
from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.data.vocabulary import BOS, EOS, PAD
from nmtkit.errors import NmtkitError
from nmtkit.experiment import conversion
from nmtkit.experiment.bench import machine
from nmtkit.experiment.bench.engines import generate
from nmtkit.experiment.folder import RunFolder
from nmtkit.experiment.saved import SavedRun
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes
from nmtkit.models.transformer import TransformerConfig
from nmtkit.search.engine import beam_search
from nmtkit.search.rules import SearchConfig
from tests.bench.training import SMALL

BEAM = 5
BATCH_SIZE = 64
LONGEST = 100
LENGTH_OF_RANDOM = 15
"""Tokens that random weights write, EOS counted; what Multi30k's captions have on average."""
IMPOSSIBLE = -1e4

Ids = list[list[int]]
Engine = Callable[[], Ids]


@dataclass(frozen=True)
class Speed:
    """One row of the result."""

    search: str
    engine: str
    arithmetic: str
    sentences_per_second: list[float]
    ratio: float | None
    """To Hugging Face in the same arithmetic: the median of the rounds; None where there is none."""
    identical: int | None
    """Outputs equal to those of Hugging Face in fp32."""
    tokens: int
    """Tokens of all outputs."""
    batch_size: int
    """Sentences in a batch; text to text, nmtkit makes batches of its own."""
    peak_mib: float
    """The most memory while it ran; see `machine.peak_mib`."""

    def row(self) -> list[str]:
        ratio = "-" if self.ratio is None else f"{self.ratio:.2f}"
        same = "-" if self.identical is None else f"{self.identical:,}"
        speed = f"{median(self.sentences_per_second):,.1f}"
        least_to_most, peak = machine.spread(self.sentences_per_second, 1), f"{self.peak_mib:,.0f}"
        named = [self.search, str(self.batch_size), self.engine, self.arithmetic]
        return [*named, speed, least_to_most, ratio, f"{self.tokens:,}", same, peak]


@dataclass(frozen=True)
class Work:
    """What is to be decoded, and by which model."""

    model: Seq2Seq
    tokenizers: TokenizerPair
    texts: list[str]
    sources: Ids
    longest: int
    """Most tokens of a translation, EOS counted."""
    weights: str
    """Where they are from, in words."""
    device: torch.device
    """Where the model is."""
    batch_size: int = BATCH_SIZE

    def batches(self) -> list[tuple[list[int], Batch]]:
        """Sentences of like length together, on the device, and their numbers."""
        lengths = np.array([len(ids) + 1 for ids in self.sources])
        parts = in_order_batches(lengths, 1 << 30, self.batch_size)
        return [(part, collate([self.sources[number] for number in part]).to(self.device)) for part in parts]

    def first(self, sentences: int) -> "Work":
        """The same with fewer sentences."""
        return replace(self, texts=self.texts[:sentences], sources=self.sources[:sentences])

    def settings(self, beam_size: int) -> SearchConfig:
        return SearchConfig(
            beam_size=beam_size, max_length=self.longest, max_length_ratio=0.0, max_length_offset=self.longest
        )


def open_work(
    folder: RunFolder,
    sentences: int,
    place: torch.device,
    shape: TransformerConfig = SMALL,
    length_of_random: int = LENGTH_OF_RANDOM,
) -> Work:
    """The first sentences of the run's test set (else its validation set), and the run's model.

    A run that was only preprocessed has none: a Transformer of that shape with random weights takes its place, which
    writes so many tokens.

    Raises:
        NmtkitError: there is no such data, or the model cannot be opened.
    """
    name = "test" if (folder.data / "test.json").exists() else "valid"
    store = Store.open(folder.data, name)
    count = min(sentences, len(store))
    sources = [store.ids("src", number).tolist() for number in range(count)]
    texts = [store.text("src", number) for number in range(count)]
    if folder.checkpoints.exists():
        model, tokenizers, _ = SavedRun(folder).open_model(place)
        return Work(model.eval(), tokenizers, texts, sources, LONGEST, f"the weights of {folder.path}", place)
    tokenizers = SavedRun(folder).load_tokenizers()
    sizes = VocabularySizes(len(tokenizers.src.vocabulary), len(tokenizers.tgt.vocabulary), tokenizers.shared)
    torch.manual_seed(1)
    model = MODELS.get("transformer")(shape.changed({"tie": "all" if sizes.shared else "decoder"}), sizes)
    with torch.no_grad():
        model.get_parameter("output.bias")[[PAD, BOS, EOS]] = IMPOSSIBLE
    words = f"random weights, all outputs {length_of_random} tokens long"
    return Work(model.to(place).eval(), tokenizers, texts, sources, length_of_random, words, place)


def ours(work: Work, beam_size: int) -> Engine:
    config = work.settings(beam_size)

    @torch.inference_mode()
    def decode() -> Ids:
        found: Ids = [[] for _ in work.sources]
        for numbers, batch in work.batches():
            for number, best in zip(numbers, beam_search(work.model, batch, config), strict=True):
                found[number] = best[0].ids
        return found

    return decode


def unfit(model: Seq2Seq) -> str | None:
    """Why Hugging Face cannot be measured with a model, if it cannot."""
    try:
        conversion.require_convertible(model.config, "huggingface")
        conversion.library("huggingface")
    except NmtkitError as fault:
        return str(fault)
    return None


def theirs(work: Work, beam_size: int, half: bool = False) -> Engine:
    longest_src = max(map(len, work.sources)) + 1
    model = conversion.to_hugging_face(work.model, max(work.longest, longest_src)).to(work.device)
    model = model.half() if half else model
    config = work.settings(beam_size)

    def decode() -> Ids:
        found: Ids = [[] for _ in work.sources]
        for numbers, batch in work.batches():
            outputs = generate(model, batch, config, work.longest)
            for number, ids in zip(numbers, outputs, strict=True):
                found[number] = ids
        return found

    return decode


def measure(
    work: Work,
    rounds: int,
    threads: int,
    with_hugging_face: bool,
    beams: Sequence[int] = (BEAM, 1),
) -> list[Speed]:
    """Beam search and greedy search by every engine, in turns; the first round is thrown away."""
    found = []
    for beam_size in beams:
        engines = {"nmtkit search": ours(work, beam_size)}
        reference = f"Hugging Face {conversion.library('huggingface').__version__}" if with_hugging_face else None
        if reference:
            engines[reference] = theirs(work, beam_size)
        if reference and work.device.type == "cuda":
            engines[f"{reference}, weights in fp16"] = theirs(work, beam_size, half=True)
        name = f"beam {beam_size}" if beam_size > 1 else "greedy"
        found += _in_turns(name, engines, reference, rounds, threads, work)
    return found


def _in_turns(
    name: str, engines: dict[str, Engine], reference: str | None, rounds: int, threads: int, work: Work
) -> list[Speed]:
    precisions: list[device.MatmulPrecision] = ["highest", "medium"]
    turns = [(engine, precision) for precision in precisions for engine in engines]
    speeds: dict[tuple[str, str], list[float]] = {turn: [] for turn in turns}
    outputs: dict[tuple[str, str], Ids] = {}
    peaks = dict.fromkeys(turns, 0.0)
    for number in range(rounds + 1):
        first = number % len(turns)
        for engine, precision in [*turns[first:], *turns[:first]]:
            device.prepare(work.device, precision, threads)
            machine.forget_peak(work.device)
            begun = machine.now(work.device)
            outputs[engine, precision] = engines[engine]()
            seconds = machine.now(work.device) - begun
            peaks[engine, precision] = max(peaks[engine, precision], machine.peak_mib(work.device))
            if number > 0:
                speeds[engine, precision].append(len(outputs[engine, precision]) / seconds)
    rows = []
    for engine, precision in turns:
        own, ratio, identical = speeds[engine, precision], None, None
        if reference is not None:
            base = speeds[reference, precision]
            ratio = median(a / b for a, b in zip(own, base, strict=True)) if engine != reference else None
            expected = outputs[reference, "highest"]
            identical = sum(a == b for a, b in zip(outputs[engine, precision], expected, strict=True))
        arithmetic = "fp32" if precision == "highest" else f"fp32, matmul {precision}"
        tokens = sum(map(len, outputs[engine, precision]))
        peak = peaks[engine, precision]
        rows.append(Speed(name, engine, arithmetic, own, ratio, identical, tokens, work.batch_size, peak))
    return rows
