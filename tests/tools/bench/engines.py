"""The engines that are compared: each decodes text lines with the same weights, in a process of its own."""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np
import torch

from nmtkit.convert import engines
from nmtkit.convert.ctranslate2 import to_ctranslate2
from nmtkit.convert.engines import require_comparable
from nmtkit.convert.huggingface.generation import EARLY_STOPPING
from nmtkit.convert.huggingface.marian import to_marian
from nmtkit.core import device as devices
from nmtkit.data.batches.batch import Batch
from nmtkit.data.batches.batch_stream import bucket_by_length
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.decoding.limits import max_lengths
from nmtkit.decoding.settings import SearchConfig
from nmtkit.experiment.bench import peak_memory_mib, read_clock, reset_peak_memory
from nmtkit.inference.inputs import SourceLine, make_batch
from nmtkit.inference.loading.opening import build_workers, open_translator
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.loading.speed import SearchSpeedConfig, default_speed_config
from nmtkit.inference.result import Translation
from nmtkit.inference.translator import Translator
from nmtkit.layers.linear import Precision, supported_precisions
from nmtkit.models.base import Seq2Seq
from nmtkit.runs.run import find_run

from . import machine
from .matmuls import MatmulTrace

EXACT = "fp32"
WARM_UP = 256
"""Lines decoded before each measurement: in memory that has been used little a process is slower."""
_BATCHES = {"cpu": (32, 64, 128), "cuda": (64, 256, 512)}


@dataclass(frozen=True)
class Setting:
    """One configuration of an engine."""

    precision: str
    """`EXACT`, or less."""
    batch: int
    unit: str
    """What a batch is counted in."""
    searches: int = 1
    """At a time."""
    threads: int = 1
    """Of each."""

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        cores = f"{self.searches} x {threads}" if self.searches > 1 else threads
        return f"{self.precision}, {self.batch} {self.unit}, {cores}"


@dataclass(frozen=True)
class Decoded:
    """What an engine made of a line."""

    text: str
    tokens: list[str]
    finished: bool


@dataclass(frozen=True)
class Measured:
    """What decoding some lines took."""

    seconds: float
    cpu_seconds: float
    peak_mib: float
    """Beyond what the process had before it opened the engine."""
    lines: list[Decoded]


class Engine(ABC):
    """An engine with the weights of a run; `empty_mib` is the memory of the process before it was opened."""

    name: ClassVar[str]
    empty_mib = 0.0
    reader: Translator
    """Cuts text into tokens and joins tokens, for every engine alike."""
    place: torch.device

    def __init__(self) -> None:
        self._traces: dict[Setting, MatmulTrace] = {}

    @abstractmethod
    def settings(self) -> list[Setting]:
        """The configurations that are worth trying, exact ones first."""

    @abstractmethod
    def use(self, setting: Setting) -> None:
        """Prepares to decode so."""

    @abstractmethod
    def decode(self, lines: Sequence[str]) -> list[Decoded]:
        """The best translation of each line; an empty line gives an empty one."""

    def measure(self, setting: Setting, lines: Sequence[str]) -> Measured:
        self.use(setting)
        self.decode(lines[:WARM_UP])
        reset_peak_memory(self.place)
        begun, cpu_begun = read_clock(self.place), machine.cpu_seconds()
        decoded = self.decode(lines)
        seconds, cpu_seconds = read_clock(self.place) - begun, machine.cpu_seconds() - cpu_begun
        peak = peak_memory_mib(self.place) + machine.peak_of_workers_mib()
        return Measured(seconds, cpu_seconds, max(0.0, peak - self.empty_mib), decoded)

    def latencies(self, setting: Setting, lines: Sequence[str]) -> list[float]:
        """Seconds of each line by itself."""
        self.use(setting)
        self.decode(lines[:1])
        seconds = []
        for line in lines:
            begun = read_clock(self.place)
            self.decode([line])
            seconds.append(read_clock(self.place) - begun)
        return seconds

    def trace(self, setting: Setting, lines: Sequence[str]) -> tuple[float, float]:
        """Records the products for `matmul_seconds`; gives their GFLOP and gigabytes."""
        trace = self._traces[setting] = MatmulTrace()
        self.use(replace(setting, searches=1, threads=1))  # one search in this thread sees them all
        self.reader = replace(self.reader, steps="eager")  # graphs would hide them
        trace.record(lambda: self.decode(lines))
        return trace.gflop, trace.gigabytes

    def matmul_seconds(self, setting: Setting) -> float:
        self.use(setting)
        return self._traces[setting].seconds(self.place, setting.searches)

    def rescore(self, lines: Sequence[str], decoded: Sequence[Decoded]) -> list[float]:
        """The model's scores of some translations."""
        translations = [
            Translation(one.text, 0.0, 0.0, one.tokens, [], [], one.finished) for one in decoded
        ]
        self.use(self.settings()[0])
        return [one.score for one in self.reader.rescore(lines, translations)]


class NmtkitEngine(Engine):
    """nmtkit, from text to text, as `translate` does it: lines come as a stream, to workers that stay."""

    name = "nmtkit"

    def __init__(self, how: DecodingOptions) -> None:
        super().__init__()
        self._how = replace(how, workers=None)  # one process per core, as `translate` has them
        self._run = find_run(how.model)[0]
        self.reader = open_translator(self._run, self._how)
        self.place = self.reader.device
        self._threads = how.threads or devices.cpu_threads()
        self._opened: dict[str, Translator] = {}
        self._setting: Setting | None = None
        self._stream: _Stream | None = None  # of the last setting with several searches

    def settings(self) -> list[Setting]:
        """The default in every precision, or in the one that is asked for, with batches of several sizes."""
        precisions = supported_precisions(self.place)
        if self._how.precision != "auto":
            precisions = [self._how.precision]
        searches = self._threads if self.place.type == "cpu" else 1
        settings = []
        for precision in precisions:
            whole = default_speed_config(self.place, precision).batch_tokens
            sizes = (
                [self.reader.batch_tokens]
                if self.reader.batch_tokens
                else [whole, whole // 2, whole // 4]
            )
            for size in sizes:
                settings.append(
                    Setting(precision, size, "tokens", searches, self._threads // searches)
                )
        return settings

    def use(self, setting: Setting) -> None:
        devices.prepare(self.place, threads=setting.searches * setting.threads)
        precision = setting.precision
        if precision not in self._opened:
            options = replace(self._how, precision=precision)  # type: ignore[arg-type]  # one of `settings`
            self._opened[precision] = open_translator(self._run, options)
        config = SearchSpeedConfig(precision, setting.batch)
        self._setting, self.reader = setting, replace(self._opened[precision], speed=config)
        if setting.searches > 1 and (self._stream is None or self._stream.setting != setting):
            if self._stream is not None:
                self._stream.close()
            workers = build_workers(self._how, self.place)
            self._stream = _Stream(setting, replace(self.reader, workers=workers))

    def decode(self, lines: Sequence[str]) -> list[Decoded]:
        """The first lines decide whether a stream has workers: they should be many."""
        has_stream = self._stream is not None and self._stream.setting == self._setting
        ranked = self._stream.decode(lines) if has_stream else self.reader.search(lines)
        return [Decoded(best[0].text, best[0].tokens, best[0].finished) for best in ranked]


class _Stream:
    """Searches lines that come at any time, as those of a file are searched."""

    def __init__(self, setting: Setting, reader: Translator) -> None:
        self.setting, self._size = setting, reader.window
        self._windows: SimpleQueue[Sequence[str]] = SimpleQueue()
        self._results = reader.stream(iter(self._windows.get, None))

    def decode(self, lines: Sequence[str]) -> list[list[Translation]]:
        for first in range(0, len(lines), self._size):
            self._windows.put(lines[first : first + self._size])
        ranked: list[list[Translation]] = []
        while len(ranked) < len(lines):
            ranked += next(self._results)
        return ranked

    def close(self) -> None:
        self._windows.put([])  # the thread that reads them waits for a window
        self._results.close()


class ExternalEngine(Engine):
    """An engine of another library, with a converted model."""

    def __init__(self, how: DecodingOptions) -> None:
        super().__init__()
        run = find_run(how.model)[0]
        model, tokenizers, trained = run.open_for_inference(torch.device("cpu"), how.weights)
        config = trained.search.changed(how.search_settings or {})
        require_comparable(self.name, config)
        limit = how.max_source_tokens or trained.max_source_tokens
        self.reader = Translator(model, tokenizers, config, max_source_tokens=limit)
        self.place = devices.choose(how.device)
        self._threads = how.threads or devices.cpu_threads()
        self._positions = 0
        self._setting = self.settings()[0]

    def decode(self, lines: Sequence[str]) -> list[Decoded]:
        """In batches of the engine's own; the limits of the longest line hold for all."""
        sources = self.reader.encode_sources(lines)
        decoded = [Decoded("", [], True)] * len(lines)
        filled = [number for number, source in enumerate(sources) if source.ids]
        if not filled:
            return decoded
        lengths = torch.tensor([len(sources[number].ids) + 1 for number in filled])
        limit = int(max_lengths(self.reader.config, lengths).max())
        longest = max(limit, int(lengths.max()))
        if longest > self._positions:
            self._positions = max(longest, 512)
            self._convert(self._positions)
        tokenizer = self.reader.tokenizers.tgt
        for number, ids in zip(
            filled, self._search([sources[number] for number in filled], limit), strict=True
        ):
            decoded[number] = Decoded(
                tokenizer.decode(ids), tokenizer.pieces(ids), len(ids) < limit
            )
        return decoded

    @abstractmethod
    def _convert(self, positions: int) -> None:
        """Makes the library's model, with so many positions."""

    @abstractmethod
    def _search(self, sources: list[SourceLine], limit: int) -> list[list[int]]:
        """Ids without EOS, at most `limit` with it."""


class HuggingFace(ExternalEngine):
    """`generate` of Hugging Face's `transformers`."""

    name = "huggingface"
    _TYPES: ClassVar = {EXACT: torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

    def settings(self) -> list[Setting]:
        """In half precision too, where that may pay."""
        half: Precision = "fp16" if self.place.type == "cuda" else "bf16"
        precisions = [EXACT, half] if half in supported_precisions(self.place) else [EXACT]
        sizes = _BATCHES.get(self.place.type, _BATCHES["cpu"])
        return [
            Setting(kind, size, "sentences", 1, self._threads)
            for kind in precisions
            for size in sizes
        ]

    def use(self, setting: Setting) -> None:
        self._setting = setting
        devices.prepare(self.place, "highest", setting.threads)

    def _convert(self, positions: int) -> None:
        self._networks: dict[torch.dtype, Any] = {}

    def _search(self, sources: list[SourceLine], limit: int) -> list[list[int]]:
        kind = self._TYPES[self._setting.precision]
        if kind not in self._networks:
            network = hugging_face_network(self.reader.model, self._positions)
            self._networks[kind] = network.to(self.place, kind)
        decoded: list[list[int]] = [[] for _ in sources]
        lengths = np.array([len(source.ids) + 1 for source in sources])
        for numbers in bucket_by_length(lengths, 1 << 30, self._setting.batch):
            batch = make_batch([sources[number] for number in numbers]).to(self.place)
            rows = generate(self._networks[kind], batch, self.reader.config, limit)
            for number, ids in zip(numbers, rows, strict=True):
                decoded[number] = ids
        return decoded


def hugging_face_network(model: Seq2Seq, longest: int) -> Any:
    """The network that export writes for `transformers`, in evaluation mode on the CPU."""
    settings, tensors = to_marian(model, longest)
    library = engines.library("huggingface")
    library.logging.set_verbosity_error()
    network = library.AutoModelForSeq2SeqLM.from_config(library.AutoConfig.for_model(**settings))
    network.load_state_dict(tensors, strict=False)
    return network.eval()


@torch.inference_mode()
def generate(network: Any, batch: Batch, config: SearchConfig, limit: int) -> list[list[int]]:
    """The best translations by a network of `hugging_face_network`, as ids without EOS.

    Args:
        network: on the batch's device.
        batch: sources.
        config: how to search, of what `require_comparable` allows.
        limit: most tokens, EOS counted.
    """
    stop = EARLY_STOPPING[config.effective_stop]
    beam = (
        {"length_penalty": _alpha(config), "early_stopping": stop}
        if config.n_hypotheses > 1
        else {}
    )
    beam |= {"forced_eos_token_id": EOS} if config.effective_at_limit == "end" else {}
    rules = {"no_repeat_ngram_size": config.no_repeat_ngram} if config.no_repeat_ngram else {}
    rules |= {"min_new_tokens": config.min_length} if config.min_length else {}
    output = network.generate(
        input_ids=batch.inputs.ids,
        attention_mask=batch.inputs.mask.long(),
        num_beams=config.n_hypotheses,
        do_sample=False,
        max_new_tokens=limit,
        suppress_tokens=[PAD, BOS, *([UNK] if config.forbid_unknown else [])],
        **beam,
        **rules,
    )
    rows = (row[1:] for row in output.tolist())
    return [row[: row.index(EOS)] if EOS in row else row for row in rows]


class CTranslate2(ExternalEngine):
    """CTranslate2's batches of sentences, on as many translators as there are searches."""

    name = "ctranslate2"
    _TYPES: ClassVar = {EXACT: "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}

    def __init__(self, how: DecodingOptions) -> None:
        self._library = engines.library(self.name)
        self._folder = tempfile.TemporaryDirectory(prefix="nmtkit-ctranslate2-")
        self._translator: Any = None
        self._opened: Setting | None = None
        super().__init__(how)

    def settings(self) -> list[Setting]:
        """Every precision that it has here, with one search per core or one on all cores."""
        supported = self._library.get_supported_compute_types(self.place.type)
        precisions = [name for name, kind in self._TYPES.items() if kind in supported]
        cores = (
            dict.fromkeys([(self._threads, 1), (1, self._threads)])
            if self.place.type == "cpu"
            else [(1, 1)]
        )
        sizes = _BATCHES["cuda"] if self.place.type == "cuda" else (32, 64)
        settings = [
            (kind, size, *shared) for kind in precisions for size in sizes for shared in cores
        ]
        return [
            Setting(kind, size, "sentences", searches, threads)
            for kind, size, searches, threads in settings
        ]

    def use(self, setting: Setting) -> None:
        """Reads the model again where precision or threads differ."""
        self._setting = setting
        if self._positions:
            self._open()

    def _convert(self, positions: int) -> None:
        src, tgt = self.reader.tokenizers.src.vocabulary, self.reader.tokenizers.tgt.vocabulary
        to_ctranslate2(self.reader.model, src.tokens, tgt.tokens, positions).save(self._folder.name)
        self._opened = None
        self._open()

    def _open(self) -> None:
        wanted = replace(self._setting, batch=0)
        if wanted == self._opened:
            return
        self._translator = self._library.Translator(
            self._folder.name,
            device=self.place.type,
            device_index=self.place.index or 0,
            compute_type=self._TYPES[wanted.precision],
            inter_threads=wanted.searches,
            intra_threads=wanted.threads,
        )
        self._opened = wanted

    def _search(self, sources: list[SourceLine], limit: int) -> list[list[int]]:
        config, tokenizers = self.reader.config, self.reader.tokenizers
        src, tgt = tokenizers.src.vocabulary, tokenizers.tgt.vocabulary
        results = self._translator.translate_batch(
            [[src.tokens[word] for word in source.ids] for source in sources],
            max_batch_size=self._setting.batch,
            batch_type="examples",
            beam_size=config.n_hypotheses,
            length_penalty=_alpha(config),
            max_decoding_length=limit,
            min_decoding_length=config.min_length,
            max_input_length=0,  # it would cut long lines in silence
            no_repeat_ngram_size=config.no_repeat_ngram,
            disable_unk=config.forbid_unknown,
            suppress_sequences=[[tgt.tokens[PAD]], [tgt.tokens[BOS]]],
            return_end_token=True,  # |Y| then counts it, as that of the others does
        )
        return [
            [word for word in tgt.ids(result.hypotheses[0]) if word != EOS] for result in results
        ]


def _alpha(config: SearchConfig) -> float:
    """The exponent of the length that a log-probability is divided by."""
    return config.alpha if config.length_penalty == "average" else 0.0


ENGINES: dict[str, type[NmtkitEngine] | type[ExternalEngine]] = {
    kind.name: kind for kind in (NmtkitEngine, CTranslate2, HuggingFace)
}
