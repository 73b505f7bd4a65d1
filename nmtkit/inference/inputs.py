"""Text as model input: token ids of both sides, extended ids for copying, and batches within a token budget."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import zip_longest
from threading import Lock
from typing import Literal, Self, cast

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from nmtkit.core.device import send
from nmtkit.core.errors import DataError, NmtkitError, RecipeError, shorten
from nmtkit.data.batches.batch import NEW_WORD, Batch, collate
from nmtkit.data.batches.batch_stream import bucket_by_length
from nmtkit.data.text.config import language_of_tag
from nmtkit.data.text.features import Rows
from nmtkit.data.tokenizers.huggingface_tokenizer import SENTINEL
from nmtkit.data.tokenizers.languages import in_direction
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import EOS, PAD, UNK
from nmtkit.decoding.constraints import Constraints
from nmtkit.decoding.settings import SearchConfig
from nmtkit.inference.loading.speed import SearchSpeedConfig, default_speed_config
from nmtkit.inference.requests import Request, Terminology, TermTokens, encode_terms, pad_terms, starts_word
from nmtkit.models.base import Model, ModelOutput, as_decoder, as_seq2seq


@dataclass(frozen=True)
class SourceLine:
    """One line, or as much of it as is read: a source, or the prompt of a model without one. If empty it has no ids."""

    ids: list[int]
    """Without EOS."""
    tokens: list[str]
    """The tokens of `ids`; for a model that copies, unknown words in their own spelling."""
    extended: list[int] | None = None
    """Their ids in the extended target vocabulary; None for a model that does not copy."""
    oov: tuple[str, ...] = ()
    """The words that the target vocabulary lacks; the i-th has the extended id V+i."""
    left_out: int = 0
    """Tokens at the end of the line that are not read."""
    text: str = ""
    """The line itself."""
    request: Request | None = None
    """The constraints of its translation; None if there are none."""
    prefix: tuple[int, ...] = ()
    """Forced first target tokens, extended ids."""
    terms: TermTokens | None = None
    """Lexical constraints as tokens."""
    is_prompt: bool = False
    tags: int = 0  # how many of `ids` are tags, which come first
    features: Rows | None = None
    """Rows of numbers `(R,F)`, in place of text."""

    @property
    def length(self) -> int:
        """Tokens, or rows of numbers."""
        return len(self.ids if self.features is None else self.features)

    @property
    def is_asked(self) -> bool:
        """Whether something is asked of its translation."""
        return self.request is not None or bool(self.prefix)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to answer; a model without a source writes from nothing, too."""
        return not self.length and not self.is_prompt


@dataclass(frozen=True)
class TargetLine:
    """One given translation, without EOS."""

    ids: list[int]
    extended: list[int]
    """The same, but words of its source that the vocabulary lacks have their extended ids."""

    def behind(self, source: SourceLine) -> "TargetLine":
        """The whole text where the source is a prompt, else this."""
        before = source.ids if source.is_prompt else []
        return TargetLine(before + self.ids, before + self.extended)


def require_list(**given: object) -> None:
    """Refuses a text where lines are meant, by the name of the argument: its letters would be taken for lines."""
    for name, lines in given.items():
        if isinstance(lines, str | bytes):
            raise DataError(f"{name}: one text was given, and a list of texts is wanted: put it into a list")


def require_pairs(sources: Sequence[object], others: Sequence[object] | None, what: str = "target") -> None:
    """Raises DataError unless there are as many `others`, if any are given, as sources."""
    if others is not None and len(others) != len(sources):
        raise DataError(f"{len(sources)} source lines but {len(others)} {what} lines: they must be pairs")


# The most bytes of log-probabilities of given targets that are in memory at a time.
CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}
MIN_ROWS = {"cpu": 32, "cuda": 128}
MAX_OVERSHOOT = {"cpu": 4, "cuda": 16}
"""A batch has at least MIN_ROWS rows, even above the budget, up to MAX_OVERSHOOT times. Few articles would fit into it,
and every step reads the whole matrix of the output layer, however few rows there are."""
MIN_COUNTED_LENGTH = 16
"""Shorter sentences count as ones of so many tokens: the output layer gives as many numbers for a row of any."""
WINDOW = {"cpu": 1024, "cuda": 16384}
"""Lines that are read together at a time, as many as make batches of nearly one length."""
MAX_SHOWN_LANGUAGES = 8
MIN_SENTENCES_PER_SEARCH = 8
"""A search of fewer sentences is not worth a core of its own."""


INTERNAL_NAMES = frozenset(
    (
        *("batch_budget", "batch_tokens", "batches", "encode_requests", "encode_sources", "encode_target_tokens"),
        *(
            "encode_targets",
            "end",
            "external_engine",
            "facts",
            "falls_back",
            "opened",
            "outline",
            "reads",
            "replacer",
            "require_attention",
            "require_language_model",
        ),
        *("in_direction", "needs_language"),
        *("score_targets", "shortlist", "speed", "speed_config", "steps", "tag_ids", "tags", "token_classes"),
        *("translation", "window", "workers"),
    )
)
"""Attributes of `TextModel` and its subclasses that other packages of nmtkit use, and users do not need."""


class ListsPublicNames(type):
    """Keeps internal names out of `dir` and `help` of a class."""

    @override
    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if name not in INTERNAL_NAMES]


class ModelOnDemand:
    """A model whose weights are read when they are first needed, as where another library searches with its own copy.

    Args:
        outline: a model of the same shape whose weights mean nothing.
        device: where the model will be.
        load: reads the model.
    """

    def __init__(self, outline: Model, device: torch.device, load: Callable[[], Model]) -> None:
        self.outline = outline
        self.device = device
        self._load = load
        self._model: Model | None = None
        self._lock = Lock()  # searches run in threads

    @property
    def model(self) -> Model:
        """The model, read once."""
        with self._lock:
            if self._model is None:
                self._model = self._load()
            return self._model

    @property
    def is_read(self) -> bool:
        """Whether the model has been needed."""
        return self._model is not None


@dataclass(frozen=True, eq=False, repr=False)
class TextModel(metaclass=ListsPublicNames):
    """A model with its tokenizers."""

    opened: Model | ModelOnDemand
    """The model in evaluation mode, on its device; or what reads it when it is first needed."""
    tokenizers: Tokenizers
    _: KW_ONLY
    name: str = ""
    """What to call the model in titles and messages."""
    articles: bool = False
    """Whether sources are articles: fewer are read at a time, and pictures are laid out otherwise."""
    max_source_tokens: int | None = None
    """Only so many tokens of a source are read; None reads all."""
    tags: str = ""
    """Special tokens before every source that has none of its own, see `nmtkit.data.text.config.SplitFiles.tags`."""
    needs_language: bool = False
    """Whether every source needs the tag of a language, since the model has read no others."""
    batch_tokens: int | None = None
    """Padded source tokens in a batch; None takes what `speed` says, and more for long sources."""
    speed: SearchSpeedConfig | None = None
    """None: `default_speed_config`."""
    parameters: int = 0
    """How many numbers the model has learned, as counted before it was quantized."""

    @override
    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in INTERNAL_NAMES]

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self.facts())}>"

    def facts(self) -> list[str]:
        """The parts of `repr`: name, kind of model, size, languages, device."""
        facts = [self.name, self.outline.config.kind] if self.name else [self.outline.config.kind]
        if self.parameters:
            facts.append(f"{self.parameters:,} parameters")
        languages = self.languages
        if languages:
            shown = ", ".join(languages[:MAX_SHOWN_LANGUAGES])
            more = len(languages) - MAX_SHOWN_LANGUAGES
            facts.append(f"languages {shown}" + (f" and {more} others" if more > 0 else ""))
        if self.tags:
            facts.append(f"source begins with {self.tags}")
        facts.append(f"on {self.device}")
        return facts

    @property
    def model(self) -> Model:
        """The model in evaluation mode, on its device."""
        return self.opened.model if isinstance(self.opened, ModelOnDemand) else self.opened

    @property
    def outline(self) -> Model:
        """The model, or one of the same shape whose weights are not read: for its settings, sizes and abilities."""
        return self.opened.outline if isinstance(self.opened, ModelOnDemand) else self.opened

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        if isinstance(self.opened, ModelOnDemand):
            return self.opened.device
        return next(self.opened.parameters()).device

    @property
    def window(self) -> int:
        """The best number of lines to be read together, if so many are available."""
        return WINDOW.get(self.device.type, WINDOW["cuda"])

    @property
    def languages(self) -> list[str]:
        """The languages that it can be told to write, if it was trained for several."""
        specials = [name for tokenizer in self.tokenizers.values() for name in tokenizer.vocabulary.specials]
        return [language for language in dict.fromkeys(map(language_of_tag, specials)) if language]

    @property
    def end(self) -> str:
        """The EOS token."""
        return self.tokenizers.tgt.vocabulary.tokens[EOS]

    @property
    def speed_config(self) -> SearchSpeedConfig:
        """The given speed settings, or the defaults."""
        return self.speed or default_speed_config(self.device)

    @property
    def batch_budget(self) -> int:
        """Padded source tokens in a batch, as given or by the speed settings."""
        return self.batch_tokens or self.speed_config.batch_tokens

    @property
    def reads(self) -> Literal["text", "features", "prompt"]:
        """What a line is to the model: what it reads, text or rows of numbers, or the prompt that it goes on with."""
        if as_decoder(self.outline) is not None and as_seq2seq(self.outline) is None:
            return "prompt"
        return "text" if "src" in self.outline.sizes else "features"

    def require_attention(self, purpose: str) -> None:
        """Raises NmtkitError if the model has no attention over a text, which the purpose needs."""
        if self.reads != "text" or not self.outline.has_attention:
            raise NmtkitError(
                f"the model {self.name!r} ({self.outline.config.kind}) has no attention to a text to {purpose}; "
                "take one that has, e.g. rnnsearch or transformer"
            )

    def require_language_model(self) -> None:
        """Raises NmtkitError unless the model goes on with a text word by word, and reads nothing else."""
        if self.reads != "prompt":
            raise NmtkitError(
                f"the model {self.name!r} ({self.outline.config.kind}) is not a language model; name a run with a "
                "language model, such as transformer_lm"
            )

    def encode_sources(
        self, lines: Sequence[str | Rows], tags: Sequence[str] = (), languages: Sequence[tuple[str, str]] = ()
    ) -> list[SourceLine]:
        """Cuts lines into tokens, as many of each as are read; raises a DataError for what the model cannot read.

        `tags` are the special tokens before each line, if there are any, with spaces between. `languages` are those of
        each line and its translation, where they differ from the model's.
        """
        if any(map(any, languages)):
            return self._encode_by_direction(lines, tags, languages)
        reads, limit = self.reads, self.max_source_tokens
        size = self.tokenizers.features
        wanted = f"rows of {size} numbers, at least one" if reads == "features" else "text"
        for number, line in enumerate(lines, start=1):
            fits = not isinstance(line, str) and line.shape[1:] == (size,) and len(line) > 0
            if not (fits if reads == "features" else isinstance(line, str)):
                raise DataError(f"example {number}: the model {self.name!r} reads {wanted}, which this is not")
        if reads == "features":
            return [SourceLine([], [], features=cast(Rows, rows)) for rows in lines]
        texts, are_prompts = cast(Sequence[str], lines), reads == "prompt"
        tokenizer = self.tokenizers.tgt if are_prompts else self.tokenizers.src
        spelled = [tokenizer.tokens(line) for line in texts] if self.outline.config.copies else None
        cut = [tokenizer.vocabulary.text_ids(own) for own in spelled] if spelled else tokenizer.encode_many(list(texts))
        tags = tags or [self.tags] * len(texts)
        for words in dict.fromkeys(tags):
            if self.needs_language and not any(map(language_of_tag, words.split())):
                raise RecipeError(
                    f"the model {self.name!r} is multilingual: name the language to write: --to {self.languages[0]} "
                    f"(it writes {shorten(', '.join(self.languages), 200)})"
                )
        before = {one: self.tag_ids(one) for one in dict.fromkeys(tags)}
        start = () if are_prompts or "tgt" not in self.tokenizers else tuple(self.tokenizers.tgt.encode(""))
        sources = []
        for number, (line, whole) in enumerate(zip(texts, cut, strict=True)):
            first = before[tags[number]] if line.strip() else []
            ids = whole[: None if limit is None else max(0, limit - len(first))] if line.strip() else []
            tokens = tokenizer.pieces(ids) if spelled is None else spelled[number][: len(ids)]
            extended, oov = (None, []) if spelled is None else self.tokenizers.tgt.vocabulary.extend(tokens)
            left_out = len(whole) - len(ids)
            ids, tokens = [*first, *ids], [*tokenizer.pieces(first), *tokens]
            extended = None if extended is None else [*first, *extended]
            source = SourceLine(ids, tokens, extended, tuple(oov), left_out, line, prefix=start, tags=len(first))
            sources.append(replace(source, is_prompt=are_prompts))
        return sources

    def _encode_by_direction(
        self, lines: Sequence[str | Rows], tags: Sequence[str], languages: Sequence[tuple[str, str]]
    ) -> list[SourceLine]:
        sources: dict[int, SourceLine] = {}
        for direction in dict.fromkeys(languages):
            rows = [row for row, languages_of_row in enumerate(languages) if languages_of_row == direction]
            encoded = self.in_direction(*direction).encode_sources(
                [lines[row] for row in rows], [tags[row] for row in rows] if tags else ()
            )
            sources.update(zip(rows, encoded, strict=True))
        return [sources[row] for row in range(len(lines))]

    def in_direction(self, source: str, target: str) -> Self:
        """Returns the same model with tokenizers for these languages; an empty name leaves a side as it is."""
        if not (source or target):
            return self
        return replace(self, tokenizers=in_direction(self.tokenizers, source or None, target or None))

    def tag_ids(self, tags: str) -> list[int]:
        """The ids of special tokens before a source, with spaces between; a DataError for one that was not learned."""
        vocabulary = (self.tokenizers.tgt if self.reads == "prompt" else self.tokenizers.src).vocabulary
        if unknown := [word for word in tags.split() if word not in vocabulary.specials]:
            names = ", ".join(token for token in vocabulary.specials if not SENTINEL.fullmatch(token))
            remedy = f"its tags are: {names}" if names else "it was trained without tags: leave --to or the tag out"
            raise DataError(f"the model {self.name!r} has not learned the tag {unknown[0]}; {remedy}")
        return vocabulary.ids(tags.split())

    def encode_requests(
        self, requests: Sequence[Request], terminology: Terminology | None, config: SearchConfig
    ) -> list[SourceLine]:
        """Cuts source lines into tokens, and the constraints on their translations; terminology is for all lines."""
        if terminology is not None:
            config.reject_constraints()
            if self.reads != "text":
                raise NmtkitError(f"the model {self.name!r} reads no text to look up terms in: leave terminology out")
            requests = [terminology.applied(request) for request in requests]
        tags = [request.tags or self.tags for request in requests]
        languages = [request.languages for request in requests]
        sources = self.encode_sources([request.source for request in requests], tags, languages)
        for number, request in enumerate(requests):
            if request.prefix or request.must or request.must_not:
                source = sources[number]
                if source.is_empty:
                    raise DataError(
                        f"{request.where}: it has a prefix or terms but no source to translate; add the source"
                    )
                (prefix,) = self.encode_targets([request.prefix], [source])
                terms = encode_terms(request, self.tokenizers.tgt, source.oov, config.max_length)
                if terms is not None:
                    config.reject_constraints()
                sources[number] = replace(source, request=request, prefix=tuple(prefix.extended), terms=terms)
        return sources

    def encode_targets(self, lines: Sequence[str], sources: Sequence[SourceLine]) -> list[TargetLine]:
        """Cuts the translations of some sources into tokens."""
        tokenizer = self.tokenizers.tgt
        if self.outline.config.copies:
            return [self._target(tokenizer.tokens(line), source) for line, source in zip(lines, sources, strict=True)]
        return [TargetLine(ids, ids) for ids in tokenizer.encode_many(list(lines))]

    def encode_target_tokens(self, tokens: Sequence[str], source: SourceLine, number: int) -> TargetLine:
        """A translation that is given token for token; `number` is the pair's, for the message."""
        ids = self.tokenizers.tgt.vocabulary.ids(tokens)  # of marks too, such as the token of a language
        target = self._target(tokens, source) if self.outline.config.copies else TargetLine(ids, ids)
        known = self.tokenizers.tgt.pieces(target.extended, source.oov)
        if known != list(tokens):
            # Marks such as </s> are in no translation, so that fewer may be known than there are.
            missing = next(one for one, other in zip_longest(tokens, known) if one != other)
            source_too = ", nor has its source" if self.outline.config.copies else ""
            raise DataError(
                f"pair {number}: the model's vocabulary has no token {missing!r}{source_too}; "
                "only translations by a model with the same tokenizer can be rescored token for token"
            )
        return target

    def _target(self, tokens: Sequence[str], source: SourceLine) -> TargetLine:
        # What neither the vocabulary nor the source has is UNK.
        vocabulary = self.tokenizers.tgt.vocabulary
        extended = vocabulary.extended_target_ids(tokens, source.oov)
        return TargetLine([UNK if number >= len(vocabulary) else number for number in extended], extended)

    def batches(
        self, sources: Sequence[SourceLine], targets: Sequence[TargetLine]
    ) -> Iterator[tuple[list[int], Batch]]:
        """The pairs whose source is not empty in batches on the CPU, each with their numbers."""
        filled = [number for number, source in enumerate(sources) if not source.is_empty]
        targets = [target.behind(source) for source, target in zip(sources, targets, strict=True)]
        lengths = [max(sources[number].length, len(targets[number].ids)) + 1 for number in filled]
        for members in bucket_by_length(np.array(lengths, dtype=np.int64), self.batch_budget):
            numbers = [filled[member] for member in members]
            yield numbers, make_batch([sources[number] for number in numbers], [targets[number] for number in numbers])

    def score_targets(self, batch: Batch, attend: bool) -> tuple[ModelOutput, Tensor]:
        """All steps over the targets of a batch on the CPU, and the log-probability of each target `(B,T)`, on the CPU.

        The output layer is gone through in parts: all log-probabilities of a batch, `(B,T,X)`, may not fit into memory.
        """
        moved = batch.to(self.device)
        readout, memory = self.model.read(moved, attend)
        kept = readout.gather(batch.targets.mask)
        targets = send(batch.targets.extended[batch.targets.mask], self.device)  # (M,)
        size = CHUNK_BYTES.get(self.device.type, CHUNK_BYTES["cpu"])
        rows = max(1, size // (4 * (self.outline.sizes["tgt"] + batch.n_oov)))
        parts = []
        for first in range(0, len(targets), rows):
            part = slice(first, first + rows)
            log_probs = self.model.predict(kept.select(part), memory)
            parts.append(log_probs.gather(-1, targets[part, None])[:, 0].float())
        chosen = torch.zeros(batch.targets.mask.shape)
        chosen[batch.targets.mask] = torch.cat(parts).cpu()
        return readout, chosen


def bucket_width(columns: int, *limits: int) -> int:
    """Columns rounded up to 16, 20, 24, 32, 40, 48, 64, ..., or a nearer limit: steps are captured once per width."""
    power = 16
    while 2 * power < columns:
        power *= 2
    widths = (power, power * 5 // 4, power * 3 // 2, 2 * power, *limits)
    return min(width for width in widths if width >= columns)


def make_batch(
    sources: Sequence[SourceLine], targets: Sequence[TargetLine] | None = None, width: int | None = None
) -> Batch:
    """One batch of them on the CPU, as wide as its longest source or wider; all were read for the same model."""
    ids, extended = [source.ids for source in sources], [one.extended for one in sources if one.extended is not None]
    features = [source.features for source in sources if source.features is not None]
    batch = collate(
        None if features or sources[0].is_prompt else ids,
        None if targets is None else [target.ids for target in targets],
        extended or None,
        None if targets is None else [target.extended for target in targets],
        n_oov=max(len(source.oov) for source in sources),
        width=width,
        features=features or None,
    )
    if sources[0].is_prompt and targets is None:
        batch = replace(batch, prompt=_padded(ids))
    if any(source.is_asked for source in sources):
        return _with_requests(batch, sources)
    return batch


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.long)


def _with_requests(batch: Batch, sources: Sequence[SourceLine]) -> Batch:
    copied = None
    prefixes = [_closed_prefix(source) for source in sources]
    prefix = _padded(prefixes) if any(prefixes) else None
    if not any(source.terms for source in sources):
        return replace(batch, prefix=prefix)
    if sources[0].extended is not None:
        copied = torch.zeros(batch.inputs.ids.shape, dtype=torch.bool)
        for row, source in enumerate(sources):
            copied[row, : len(source.tokens)] = torch.tensor([starts_word(token) for token in source.tokens])
    terms = [source.terms or TermTokens((), (), False) for source in sources]
    constraints = Constraints(
        positive=pad_terms([one.must for one in terms], 1),
        in_order=torch.tensor([one.in_order for one in terms]),
        negative=pad_terms([one.must_not for one in terms], 0),
        copied_starts=copied,
    )
    return replace(batch, prefix=prefix, terms=constraints)


def _closed_prefix(source: SourceLine) -> list[int]:
    """The ids that a translation begins with; the last word of a prefix that a user gave is whole."""
    given = "" if source.request is None else source.request.prefix
    if given and not starts_word(given[-1]):  # a letter; words may follow "l'" or "(" without a space
        return [*source.prefix, NEW_WORD]
    return [*source.prefix]
