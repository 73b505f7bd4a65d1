"""The engines that are compared: each decodes text lines with the same weights, in a process of its own."""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np
import torch

from nmtkit.autotune.searching import candidate_search_configs
from nmtkit.core import device as devices
from nmtkit.data.batch import Batch, bucket_by_length
from nmtkit.data.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.experiment.loading import ModelOptions, build_workers, open_translator
from nmtkit.interchange import conversion
from nmtkit.interchange.exporting import EARLY_STOPPING, require_comparable
from nmtkit.layers.inference import Precision, supported_precisions
from nmtkit.models.base import Seq2Seq
from nmtkit.runs.saved import find_run
from nmtkit.search.rules import SearchConfig, max_lengths
from nmtkit.translation.inputs import SearchSpeedConfig, SourceLine, make_batch
from nmtkit.translation.result import Translation
from nmtkit.translation.translator import Translator

EXACT = "fp32"
_BATCHES = {"cpu": (32, 64, 128), "cuda": (64, 256, 512)}


@dataclass(frozen=True)
class Setting:
    """One way for an engine to work."""

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


class Contestant(ABC):
    """An engine with the weights of a run."""

    name: ClassVar[str]
    reader: Translator
    """Cuts text into tokens and puts tokens together, for every engine alike."""
    place: torch.device

    @abstractmethod
    def settings(self) -> list[Setting]:
        """The ways to work that are worth trying, exact ones first."""

    @abstractmethod
    def take(self, setting: Setting) -> None:
        """Makes ready to work so."""

    @abstractmethod
    def decode(self, lines: Sequence[str]) -> list[Decoded]:
        """The best translation of each line; an empty line gives an empty one."""


class Ours(Contestant):
    """nmtkit, from text to text, as `translate` does it: lines come as a stream, to workers that stay."""

    name = "nmtkit"

    def __init__(self, how: ModelOptions) -> None:
        how = replace(how, workers=None)  # a process a core, as `translate` has them
        self._run, self._how = find_run(how.model)[0], how
        self.reader = open_translator(self._run, how)
        self.place = self.reader.device
        self._threads = how.threads or devices.cpu_threads()
        self._opened: dict[Precision, Translator] = {}
        self._setting: Setting | None = None
        self._stream: _Stream | None = None  # of the last setting with several searches

    def _possible(self) -> list[SearchSpeedConfig]:
        given = self.reader.batch_tokens
        ways = candidate_search_configs(self.place, self._how.precision)
        return list(dict.fromkeys(replace(way, batch_tokens=given) if given else way for way in ways))

    def settings(self) -> list[Setting]:
        """As a tuned search would try them."""
        found = []
        for way in self._possible():
            searches = self._threads if way.one_a_core else 1
            found.append(Setting(way.precision, way.batch_tokens, "tokens", searches, self._threads // searches))
        return found

    def take(self, setting: Setting) -> None:
        """Takes the way of that precision, with that batch and those threads."""
        devices.prepare(self.place, threads=setting.searches * setting.threads)
        precision = next(way.precision for way in self._possible() if way.precision == setting.precision)
        if precision not in self._opened:
            self._opened[precision] = open_translator(self._run, replace(self._how, precision=precision))
        way = SearchSpeedConfig(precision, setting.batch, setting.searches > 1)
        self._setting, self.reader = setting, replace(self._opened[precision], way=way)
        if setting.searches > 1 and (self._stream is None or self._stream.setting != setting):
            if self._stream is not None:
                self._stream.close()
            workers = build_workers(self._how, self.place, way)
            self._stream = _Stream(setting, replace(self.reader, workers=workers))

    def decode(self, lines: Sequence[str]) -> list[Decoded]:
        """The first lines decide whether a stream has workers: they should be many."""
        stream = self._stream if self._stream is not None and self._stream.setting == self._setting else None
        found = self.reader.search(lines) if stream is None else stream.decode(lines)
        return [Decoded(best[0].text, best[0].tokens, best[0].finished) for best in found]


class _Stream:
    """Lines that come now and then, searched as those of a file are."""

    def __init__(self, setting: Setting, reader: Translator) -> None:
        self.setting, self._size = setting, reader.window
        self._windows: SimpleQueue[Sequence[str]] = SimpleQueue()
        self._found = reader.stream(iter(self._windows.get, None))

    def decode(self, lines: Sequence[str]) -> list[list[Translation]]:
        for first in range(0, len(lines), self._size):
            self._windows.put(lines[first : first + self._size])
        found: list[list[Translation]] = []
        while len(found) < len(lines):
            found += next(self._found)
        return found

    def close(self) -> None:
        self._windows.put([])  # the thread that reads them waits for a window
        self._found.close()


class _Peer(Contestant):
    """Another engine: the model is converted, and what is the same for all of them stands here."""

    def __init__(self, how: ModelOptions) -> None:
        run = find_run(how.model)[0]
        model, tokenizers, trained = run.open_for_inference(torch.device("cpu"), how.weights)
        config = trained.search.changed(how.search_settings or {})
        most = how.max_source_tokens or trained.max_source_tokens
        self.reader = Translator(model, tokenizers, config, max_source_tokens=most)
        self.place = devices.choose(how.device)
        self._threads = how.threads or devices.cpu_threads()
        self._longest = 0
        require_comparable(self.name, config)

    def decode(self, lines: Sequence[str]) -> list[Decoded]:
        """In batches of the engine's own; the limits of the longest line hold for all."""
        sources = self.reader.sources(lines)
        found = [Decoded("", [], True)] * len(lines)
        filled = [number for number, source in enumerate(sources) if source.ids]
        if not filled:
            return found
        lengths = torch.tensor([len(sources[number].ids) + 1 for number in filled])
        limit = int(max_lengths(self.reader.config, lengths, None).max())
        self._require_positions(max(limit, int(lengths.max())))
        tokenizer = self.reader.tokenizers.tgt
        for number, ids in zip(filled, self._search([sources[number] for number in filled], limit), strict=True):
            found[number] = Decoded(tokenizer.decode(ids), tokenizer.pieces(ids), len(ids) < limit)
        return found

    def _require_positions(self, longest: int) -> None:
        """Converts the model anew where it has too few positions for these lines."""
        if longest > self._longest:
            self._longest = max(longest, 512)
            self._convert(self._longest)

    @abstractmethod
    def _convert(self, longest: int) -> None: ...

    @abstractmethod
    def _search(self, sources: list[SourceLine], limit: int) -> list[list[int]]:
        """Ids without EOS, at most so many with it."""


class HuggingFace(_Peer):
    """`generate` of Hugging Face's `transformers`."""

    name = "huggingface"
    _TYPES: ClassVar = {EXACT: torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

    def __init__(self, how: ModelOptions) -> None:
        super().__init__(how)
        self._setting = self.settings()[0]
        self._networks: dict[torch.dtype, Any] = {}

    def settings(self) -> list[Setting]:
        """In half precision too, where that may pay."""
        half: Precision = "fp16" if self.place.type == "cuda" else "bf16"
        kinds = [EXACT, half] if half in supported_precisions(self.place) else [EXACT]
        sizes = _BATCHES.get(self.place.type, _BATCHES["cpu"])
        return [Setting(kind, size, "sentences", 1, self._threads) for kind in kinds for size in sizes]

    def take(self, setting: Setting) -> None:
        """The weights are rounded when the first line comes."""
        self._setting = setting
        devices.prepare(self.place, "highest", setting.threads)

    def _convert(self, longest: int) -> None:
        self._networks = {torch.float32: hugging_face_network(self.reader.model, longest).to(self.place)}

    def _search(self, sources: list[SourceLine], limit: int) -> list[list[int]]:
        kind = self._TYPES[self._setting.precision]
        if kind not in self._networks:
            self._networks[kind] = hugging_face_network(self.reader.model, self._longest).to(self.place, kind)
        found: list[list[int]] = [[] for _ in sources]
        lengths = np.array([len(source.ids) + 1 for source in sources])
        for numbers in bucket_by_length(lengths, 1 << 30, self._setting.batch):
            batch = make_batch([sources[number] for number in numbers]).to(self.place)
            for number, ids in zip(
                numbers, generate(self._networks[kind], batch, self.reader.config, limit), strict=True
            ):
                found[number] = ids
        return found


def hugging_face_network(model: Seq2Seq, longest: int) -> Any:
    """The network that export writes for `transformers`, in evaluation mode on the CPU."""
    settings, tensors = conversion.to_hugging_face(model, longest)
    library = conversion.library("huggingface")
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
    stop = EARLY_STOPPING[config.stop]
    beam = {"length_penalty": _alpha(config), "early_stopping": stop} if config.beam_size > 1 else {}
    beam |= {"forced_eos_token_id": EOS} if config.at_limit == "end" else {}
    rules = {"no_repeat_ngram_size": config.no_repeat_ngram} if config.no_repeat_ngram else {}
    rules |= {"min_new_tokens": config.min_length} if config.min_length else {}
    rows = network.generate(
        input_ids=batch.src,
        attention_mask=batch.src_mask.long(),
        num_beams=config.beam_size,
        do_sample=False,
        max_new_tokens=limit,
        suppress_tokens=[PAD, BOS, *([UNK] if config.forbid_unknown else [])],
        **beam,
        **rules,
    )
    found = (row[1:] for row in rows.tolist())
    return [row[: row.index(EOS)] if EOS in row else row for row in found]


class CTranslate2(_Peer):
    """CTranslate2's batches of sentences, on as many translators as there are searches."""

    name = "ctranslate2"
    _TYPES: ClassVar = {EXACT: "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}

    def __init__(self, how: ModelOptions) -> None:
        super().__init__(how)
        self._library = conversion.library(self.name)
        self._folder = tempfile.TemporaryDirectory(prefix="nmtkit-ctranslate2-")
        self._setting = self.settings()[0]
        self._opened: Setting | None = None
        self._translator: Any = None

    def settings(self) -> list[Setting]:
        """Every precision that it has here, one search a core or one on all."""
        here = self._library.get_supported_compute_types(self.place.type)
        kinds = [name for name, kind in self._TYPES.items() if kind in here]
        cores = dict.fromkeys([(self._threads, 1), (1, self._threads)]) if self.place.type == "cpu" else [(1, 1)]
        sizes = _BATCHES.get(self.place.type, (32,))[-3:] if self.place.type == "cuda" else (32, 64)
        found = [(kind, size, *shared) for kind in kinds for size in sizes for shared in cores]
        return [Setting(kind, size, "sentences", searches, threads) for kind, size, searches, threads in found]

    def take(self, setting: Setting) -> None:
        """The model is read anew where precision or threads differ."""
        self._setting = setting
        if self._longest:
            self._open()

    def _convert(self, longest: int) -> None:
        src, tgt = (one.vocabulary.tokens for one in (self.reader.tokenizers.src, self.reader.tokenizers.tgt))
        conversion.to_ctranslate2(self.reader.model, src, tgt, longest).save(self._folder.name)
        self._opened = None
        self._open()

    def _open(self) -> None:
        wanted = replace(self._setting, batch=0)
        if wanted == self._opened:
            return
        self._translator = self._library.Translator(
            str(Path(self._folder.name)),
            device=self.place.type,
            device_index=self.place.index or 0,
            compute_type=self._TYPES[wanted.precision],
            inter_threads=wanted.searches,
            intra_threads=wanted.threads,
        )
        self._opened = wanted

    def _search(self, sources: list[SourceLine], limit: int) -> list[list[int]]:
        config, tokens = self.reader.config, self.reader.tokenizers.src.vocabulary.tokens
        marks = self.reader.tokenizers.tgt.vocabulary.tokens
        results = self._translator.translate_batch(
            [[tokens[word] for word in source.ids] for source in sources],
            max_batch_size=self._setting.batch,
            batch_type="examples",
            beam_size=config.beam_size,
            length_penalty=_alpha(config),
            max_decoding_length=limit,
            min_decoding_length=config.min_length,
            max_input_length=0,  # it would cut long lines in silence
            no_repeat_ngram_size=config.no_repeat_ngram,
            disable_unk=config.forbid_unknown,
            suppress_sequences=[[marks[PAD]], [marks[BOS]]],
        )
        return [self.reader.tokenizers.tgt.vocabulary.ids(result.hypotheses[0]) for result in results]


def _alpha(config: SearchConfig) -> float:
    """The exponent of the length that a log-probability is divided by."""
    return config.alpha if config.length_penalty == "average" else 0.0


CONTESTANTS: dict[str, type[Ours] | type[HuggingFace] | type[CTranslate2]] = {
    kind.name: kind for kind in (Ours, CTranslate2, HuggingFace)
}
"""By name; all but the first are optional."""
