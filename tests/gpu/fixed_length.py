"""Decoding speed of nmtkit's engine beside those of others: the same weights, batches and limits, in turns.

Given a trained run, its weights translate its test set. Without one the weights are random and never end a sentence
(EOS is all but impossible), so that every translation runs to one length and all engines take the same steps.
"""

import copy
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from nmtkit.data.batch import Batch, bucket_by_length, collate
from nmtkit.data.store import Store
from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.data.vocabulary import BOS, EOS, PAD
from nmtkit.experiment.bench import peak_memory_mib, read_clock, reset_peak_memory
from nmtkit.interchange import conversion
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes
from nmtkit.models.transformer import TransformerConfig
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.saved import SavedRun
from nmtkit.search.engine import Engine, StepMode
from nmtkit.search.rules import SearchConfig
from tests.bench.engines import generate, hugging_face_network
from tests.bench.training import SMALL

BATCH_SIZE = 64
LONGEST = 100
LENGTH_OF_RANDOM = 15
"""Tokens that random weights write, EOS counted; what Multi30k's captions have on average."""
IMPOSSIBLE = -1e4
WIDTH = 16
"""Sources are padded to a multiple of so many tokens."""

Ids = list[list[int]]


@dataclass(frozen=True)
class Way:
    """One engine in one arithmetic."""

    engine: str
    arithmetic: str
    decode: Callable[[], Ids]


@dataclass
class Speed:
    """What one way did: a figure for every round."""

    way: Way
    seconds: list[float] = field(default_factory=list)
    peak_mib: float = 0.0
    """The most memory while it ran; see `peak_memory_mib`."""
    found: Ids = field(default_factory=list)


def padded(length: int) -> int:
    return -(-length // WIDTH) * WIDTH


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
        """Sentences of like length together, on the device, and their numbers; padded to one of few lengths.

        What is recorded for one length serves all sentences that are padded to it.
        """
        lengths = np.array([len(ids) + 1 for ids in self.sources])
        found = []
        for part in bucket_by_length(lengths, 1 << 30, self.batch_size):
            sources = [self.sources[number] for number in part]
            found.append((part, collate(sources, width=padded(int(max(lengths[part])))).to(self.device)))
        return found

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


def ours(work: Work, beam_size: int, steps: StepMode, dtype: torch.dtype) -> Callable[[], Ids]:
    """One engine for all batches, so that what was recorded for one serves the others."""
    model = work.model if dtype == torch.float32 else copy.deepcopy(work.model).to(dtype)
    engine = Engine(model, work.settings(beam_size), steps=steps)

    def decode() -> Ids:
        waiting = work.batches()[::-1]

        def feed(count: int | None, width: int | None) -> tuple[Sequence[int], Batch] | None:
            return waiting.pop() if waiting and count is None else None

        found = dict(engine.run(feed))
        return [found[number][0].ids for number in range(len(work.sources))]

    return decode


def hugging_face(work: Work, beam_size: int, dtype: torch.dtype) -> Callable[[], Ids]:
    longest = max(work.longest, padded(max(map(len, work.sources)) + 1))  # with fewer it makes positions of its own
    model = hugging_face_network(work.model, longest).to(work.device, dtype)
    config = work.settings(beam_size)

    def decode() -> Ids:
        found: Ids = [[] for _ in work.sources]
        for numbers, batch in work.batches():
            for number, ids in zip(numbers, generate(model, batch, config, work.longest), strict=True):
                found[number] = ids
        return found

    return decode


def ctranslate2(work: Work, beam_size: int, dtype: torch.dtype) -> Callable[[], Ids]:
    vocabularies = work.tokenizers.src.vocabulary, work.tokenizers.tgt.vocabulary
    src, tgt = (vocabulary.tokens for vocabulary in vocabularies)
    longest = max(work.longest, *(len(ids) + 1 for ids in work.sources)) + 1
    model = copy.deepcopy(work.model).cpu()
    with tempfile.TemporaryDirectory(prefix="nmtkit-slot-") as folder:
        conversion.to_ctranslate2(model, src, tgt, longest).save(folder)
        translator = conversion.library("ctranslate2").Translator(
            folder,
            device=work.device.type,
            device_index=work.device.index or 0,
            compute_type=str(dtype).removeprefix("torch."),
            intra_threads=torch.get_num_threads(),
        )

    def decode() -> Ids:
        results = translator.translate_batch(
            [[src[word] for word in ids] for ids in work.sources],
            max_batch_size=work.batch_size,
            beam_size=beam_size,
            length_penalty=work.settings(beam_size).alpha,
            max_decoding_length=work.longest,
            max_input_length=0,
        )
        return [vocabularies[1].ids(result.hypotheses[0]) for result in results]

    return decode


OTHERS = {"huggingface": hugging_face, "ctranslate2": ctranslate2}


def unfit(work: Work, name: str) -> str | None:
    """Why another engine cannot be measured, if it cannot: it is not installed, has no such model, or fails."""
    try:
        conversion.require_convertible(work.model.config, name)
        conversion.library(name)
        OTHERS[name](replace(work.first(1), batch_size=1), 1, _half(work))()
    except Exception as fault:  # of the other engine: a missing library of CUDA is told by an error of its own
        return f"{type(fault).__name__}: {fault}".splitlines()[0]
    return None


def _half(work: Work) -> torch.dtype:
    """What the quickest arithmetic of all engines has; a CPU is only to show that everything runs."""
    return torch.float16 if work.device.type == "cuda" else torch.float32


def ways(work: Work, beam_size: int, others: Sequence[str]) -> list[Way]:
    """All that are to be measured; nmtkit's steps one by one first."""
    kinds: dict[str, torch.dtype] = {"fp32": torch.float32}
    recorded: list[StepMode] = ["eager"]
    if work.device.type == "cuda":
        kinds["fp16"] = torch.float16
        recorded.append("graph")
    found = []
    for kind, dtype in kinds.items():
        found += [Way(f"nmtkit, {steps}", kind, ours(work, beam_size, steps, dtype)) for steps in recorded]
    kind = list(kinds)[-1]
    return [*found, *(Way(name, kind, OTHERS[name](work, beam_size, kinds[kind])) for name in others)]


def measure(work: Work, beam_size: int, others: Sequence[str], rounds: int) -> list[Speed]:
    """Every way in turns; the first round is thrown away."""
    speeds = [Speed(way) for way in ways(work, beam_size, others)]
    for number in range(rounds + 1):
        first = number % len(speeds)
        for speed in [*speeds[first:], *speeds[:first]]:
            reset_peak_memory(work.device)
            begun = read_clock(work.device)
            speed.found = speed.way.decode()
            seconds = read_clock(work.device) - begun
            speed.peak_mib = max(speed.peak_mib, peak_memory_mib(work.device))
            if number > 0:
                speed.seconds.append(seconds)
    return speeds
