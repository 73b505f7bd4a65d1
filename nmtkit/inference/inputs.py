"""Converts lines to model inputs: token ids of sources and targets, extended ids for copying, and batches."""

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
from nmtkit.inference.constraints.glossary import Glossary
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.constraints.terms import NO_TERMS, EncodedTerms, encode_terms, pad_terms
from nmtkit.inference.constraints.words import starts_word
from nmtkit.inference.loading.speed import SearchSpeedConfig, default_speed_config
from nmtkit.models.base import Model, ModelOutput, as_decoder, as_seq2seq


@dataclass(frozen=True)
class SourceLine:
    """A line as the model reads it: a source, or a language model's prompt. An empty line has no ids."""

    ids: list[int]
    """Token ids of the tags and the line, without EOS; a long line may be truncated."""
    tokens: list[str]
    """The tokens of `ids`. For a model that copies, unknown words keep their spelling."""
    extended: list[int] | None = None
    """Ids of `tokens` in the extended target vocabulary; None for a model that does not copy."""
    oov: tuple[str, ...] = ()
    """Words of the line that the target vocabulary lacks; word i has the extended id V+i."""
    left_out: int = 0
    """Number of tokens that were truncated from the end of the line."""
    text: str = ""
    """The line before tokenization."""
    request: Request | None = None
    """Constraints on the translation; None if there are none."""
    prefix: tuple[int, ...] = ()
    """Extended ids of the tokens that the translation must begin with."""
    terms: EncodedTerms | None = None
    """Required and forbidden terms as token ids."""
    is_prompt: bool = False
    tags: int = 0
    """Number of tags at the beginning of `ids`."""
    languages: tuple[str, str] = ("", "")
    """Source and target language, if they were chosen for this line; see `TextModel.in_direction`."""
    features: Rows | None = None
    """Rows of numbers `(R, F)` that the model reads instead of text."""

    @property
    def length(self) -> int:
        """Number of tokens or feature rows."""
        return len(self.ids if self.features is None else self.features)

    @property
    def is_constrained(self) -> bool:
        """Whether the translation has constraints or forced first tokens."""
        return self.request is not None or bool(self.prefix)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to translate. False for an empty prompt, which a language model can continue."""
        return not self.length and not self.is_prompt


@dataclass(frozen=True)
class TargetLine:
    """The tokens of a translation that is given, not generated."""

    ids: list[int]
    """Token ids without EOS."""
    extended: list[int]
    """Like `ids`, but source words that the target vocabulary lacks have extended ids (V and above) instead of UNK."""

    def after_prompt(self, source: SourceLine) -> "TargetLine":
        """Prepends the source if it is a prompt; otherwise returns the translation unchanged."""
        if not source.is_prompt:
            return self
        return TargetLine(source.ids + self.ids, source.ids + self.extended)


def require_list(**arguments: object) -> None:
    """Raises a DataError if an argument is a single string, whose characters would be treated as lines."""
    for name, lines in arguments.items():
        if isinstance(lines, str | bytes):
            raise DataError(f"`{name}` is a single text; pass a list of texts instead")


def require_pairs(
    sources: Sequence[object], partners: Sequence[object] | None, what: str = "target"
) -> None:
    """Raises a DataError unless there are as many partners as sources; `partners=None` is allowed."""
    if partners is not None and len(partners) != len(sources):
        raise DataError(
            f"there are {len(sources)} source lines but {len(partners)} {what} lines; "
            f"each source line needs exactly one {what} line"
        )


CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}
"""Maximum size in bytes of the log-probabilities that `score_targets` holds in memory at once."""
MIN_ROWS = {"cpu": 32, "cuda": 128}
MAX_OVERSHOOT = {"cpu": 4, "cuda": 16}
"""A batch may exceed the token budget by a factor of up to MAX_OVERSHOOT to have at least MIN_ROWS rows.

Otherwise a batch of long articles would have only a few rows, which is inefficient: each decoding step reads the whole
output matrix, no matter how many rows the batch has.
"""
MIN_COUNTED_LENGTH = 16
"""Shorter sources count as this many tokens, since the cost of the output layer does not depend on source length."""
WINDOW = {"cpu": 1024, "cuda": 16384}
"""Number of lines that are read together; large enough to form batches of sentences with similar lengths."""
MAX_SHOWN_LANGUAGES = 8
MIN_SENTENCES_PER_SEARCH = 8
"""Minimum number of sentences per decoder; with fewer, an additional decoder does not pay off."""


INTERNAL_NAMES = frozenset(
    {
        "batch_budget",
        "batch_tokens",
        "batches",
        "encode_requests",
        "encode_sources",
        "encode_target_tokens",
        "encode_targets",
        "engine_name",
        "engines",
        "eos_token",
        "external_engine",
        "facts",
        "falls_back",
        "in_direction",
        "needs_language",
        "notify",
        "opened",
        "outline",
        "reads",
        "replacer",
        "report_once",
        "require_attention",
        "require_language_model",
        "score_targets",
        "shortlist",
        "speed",
        "speed_config",
        "steps",
        "tag_ids",
        "tags",
        "target_tokens",
        "translation",
        "window",
        "workers",
    }
)
"""Public attributes of `TextModel` and its subclasses that are meant for use inside nmtkit only."""


class ListsPublicNames(type):
    """Metaclass that hides `INTERNAL_NAMES` from `dir` and `help` of a class."""

    @override
    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if name not in INTERNAL_NAMES]


class ModelOnDemand:
    """A model whose weights are loaded on first use, because an external engine decodes with its own copy of them.

    Args:
        outline: a model of the same shape with uninitialized weights.
        device: the device that `load` puts the model on.
        load: loads the model.
    """

    def __init__(self, outline: Model, device: torch.device, load: Callable[[], Model]) -> None:
        self.outline = outline
        self.device = device
        self._load = load
        self._model: Model | None = None
        self._lock = Lock()  # several threads may access `model` at once

    @property
    def model(self) -> Model:
        """The model; loaded on first access."""
        with self._lock:
            if self._model is None:
                self._model = self._load()
            return self._model

    @property
    def is_read(self) -> bool:
        """Whether the weights have been loaded."""
        return self._model is not None


@dataclass(frozen=True, eq=False, repr=False)
class TextModel(metaclass=ListsPublicNames):
    """A trained model with its tokenizers."""

    opened: Model | ModelOnDemand
    """The model, in evaluation mode and on its device, or a `ModelOnDemand`."""
    tokenizers: Tokenizers
    _: KW_ONLY
    name: str = ""
    """Name of the model in titles and messages."""
    reads_articles: bool = False
    """Whether sources are articles. If so, fewer lines are read at a time, and pictures have a layout for articles."""
    max_source_tokens: int | None = None
    """Maximum number of tokens that the model reads from a source; None for no limit."""
    tags: str = ""
    """Space-separated special tokens to put before sources without tags of their own; see `SplitFiles.tags`."""
    needs_language: bool = False
    """Whether every source needs a language tag because every training source had one."""
    batch_tokens: int | None = None
    """Maximum number of padded source tokens in a batch. None selects the value in `speed`; batches of long sources
    may then exceed it."""
    speed: SearchSpeedConfig | None = None
    """Speed settings; None for those of `default_speed_config`."""
    parameters: int = 0
    """Number of parameters before quantization."""

    @override
    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in INTERNAL_NAMES]

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self.facts())}>"

    def facts(self) -> list[str]:
        """Returns the parts of `repr`: name, model kind, size, languages and device."""
        facts = []
        if self.name:
            facts.append(self.name)
        facts.append(self.outline.config.kind)
        if self.parameters:
            facts.append(f"{self.parameters:,} parameters")
        languages = self.languages
        if languages:
            shown = ", ".join(languages[:MAX_SHOWN_LANGUAGES])
            if len(languages) > MAX_SHOWN_LANGUAGES:
                shown += f" and {len(languages) - MAX_SHOWN_LANGUAGES} others"
            facts.append(f"languages {shown}")
        if self.tags:
            facts.append(f"source begins with {self.tags}")
        facts.append(f"on {self.device}")
        return facts

    @property
    def model(self) -> Model:
        """The model, in evaluation mode and on its device."""
        return self.opened.model if isinstance(self.opened, ModelOnDemand) else self.opened

    @property
    def outline(self) -> Model:
        """A model of the same shape, possibly without weights, whose settings, sizes and abilities can be read."""
        return self.opened.outline if isinstance(self.opened, ModelOnDemand) else self.opened

    @property
    def device(self) -> torch.device:
        if isinstance(self.opened, ModelOnDemand):
            return self.opened.device
        return next(self.opened.parameters()).device

    @property
    def window(self) -> int:
        """Recommended number of lines to read together."""
        return WINDOW.get(self.device.type, WINDOW["cuda"])

    @property
    def languages(self) -> list[str]:
        """Languages that the user can choose for the output; empty if the model has no language tags."""
        languages: dict[str, None] = {}  # an ordered set
        for tokenizer in self.tokenizers.values():
            for special in tokenizer.vocabulary.specials:
                language = language_of_tag(special)
                if language:
                    languages[language] = None
        return list(languages)

    @property
    def eos_token(self) -> str:
        return self.tokenizers.tgt.vocabulary.tokens[EOS]

    @property
    def speed_config(self) -> SearchSpeedConfig:
        """Speed settings; the device's defaults unless `speed` is set."""
        return self.speed or default_speed_config(self.device)

    @property
    def batch_budget(self) -> int:
        """Number of padded source tokens in a batch; taken from the speed settings unless `batch_tokens` is set."""
        return self.batch_tokens or self.speed_config.batch_tokens

    @property
    def reads(self) -> Literal["text", "features", "prompt"]:
        """The model's kind of input: source text, source features (rows of numbers), or a prompt to continue."""
        if as_decoder(self.outline) is not None and as_seq2seq(self.outline) is None:
            return "prompt"
        return "text" if "src" in self.outline.sizes else "features"

    def require_attention(self, purpose: str) -> None:
        """Raises an NmtkitError if the model has no attention over a source text.

        Args:
            purpose: a verb phrase that completes the message "the model cannot ..., because it has no attention".
        """
        if self.reads != "text" or not self.outline.has_attention:
            raise NmtkitError(
                f"the model {self.name!r} ({self.outline.config.kind}) cannot {purpose}, because it has no attention "
                "over a source text; use a model with attention, such as rnnsearch or transformer"
            )

    def require_language_model(self) -> None:
        """Raises an NmtkitError unless the model is a decoder without a source."""
        if self.reads != "prompt":
            raise NmtkitError(
                f"the model {self.name!r} ({self.outline.config.kind}) is not a language model; use a run with a "
                "language model, such as transformer_lm"
            )

    def encode_sources(
        self,
        lines: Sequence[str | Rows],
        tags: Sequence[str] = (),
        languages: Sequence[tuple[str, str]] = (),
    ) -> list[SourceLine]:
        """Tokenizes lines, and truncates them to `max_source_tokens`.

        Args:
            lines: texts, or rows of numbers `(R, F)`.
            tags: space-separated special tokens to put before each line; by default those in `self.tags`.
            languages: source and target language of each line, if they may differ from the model's.

        Raises:
            DataError: a line is not in the form that the model reads.
        """
        if any(map(any, languages)):
            return self._encode_by_direction(lines, tags, languages)
        reads = self.reads
        reads_features = reads == "features"
        size = self.tokenizers.features
        for number, line in enumerate(lines, start=1):
            if reads_features:
                is_readable = (
                    not isinstance(line, str) and line.shape[1:] == (size,) and len(line) > 0
                )
            else:
                is_readable = isinstance(line, str)
            if not is_readable:
                expected = f"one or more rows of {size} numbers" if reads_features else "text"
                raise DataError(
                    f"example {number} has the wrong form: the model {self.name!r} reads {expected}"
                )
        if reads_features:
            return [SourceLine([], [], features=cast(Rows, rows)) for rows in lines]
        return self._encode_texts(
            cast(Sequence[str], lines),
            tags=tags or [self.tags] * len(lines),
            is_prompt=reads == "prompt",
        )

    def _encode_texts(
        self, texts: Sequence[str], tags: Sequence[str], is_prompt: bool
    ) -> list[SourceLine]:
        tokenizer = self.tokenizers.tgt if is_prompt else self.tokenizers.src
        copies = self.outline.config.copies
        spelled: list[list[str]] = []
        if copies:  # the spelling of unknown words is needed for copying, so ids are not enough
            spelled = [tokenizer.tokens(text) for text in texts]
            ids_of_texts = [tokenizer.vocabulary.text_ids(tokens) for tokens in spelled]
        else:
            ids_of_texts = tokenizer.encode_many(list(texts))
        for words in dict.fromkeys(tags):
            has_language = any(map(language_of_tag, words.split()))
            if self.needs_language and not has_language:
                raise RecipeError(
                    f"the model {self.name!r} is multilingual; specify the target language, for example "
                    f"--to {self.languages[0]} (available: {shorten(', '.join(self.languages), 200)})"
                )
        ids_of_tags = {words: self.tag_ids(words) for words in dict.fromkeys(tags)}
        prefix: tuple[int, ...] = ()
        if not is_prompt and "tgt" in self.tokenizers:
            # Tokens that the tokenizer puts before every target, such as an imported model's language token.
            prefix = tuple(self.tokenizers.tgt.encode(""))
        sources = []
        for number, (text, text_ids) in enumerate(zip(texts, ids_of_texts, strict=True)):
            tag_ids: list[int] = []
            ids: list[int] = []
            if text.strip():
                tag_ids = ids_of_tags[tags[number]]
                ids = text_ids
                if self.max_source_tokens is not None:
                    ids = text_ids[: max(0, self.max_source_tokens - len(tag_ids))]
            tokens = spelled[number][: len(ids)] if copies else tokenizer.pieces(ids)
            extended = None
            oov: list[str] = []
            if copies:
                extended_text, oov = self.tokenizers.tgt.vocabulary.extend(tokens)
                extended = [*tag_ids, *extended_text]
            if tag_ids:
                tokens = [*tokenizer.pieces(tag_ids), *tokens]
            source = SourceLine(
                ids=[*tag_ids, *ids],
                tokens=tokens,
                extended=extended,
                oov=tuple(oov),
                left_out=len(text_ids) - len(ids),
                text=text,
                prefix=prefix,
                is_prompt=is_prompt,
                tags=len(tag_ids),
            )
            sources.append(source)
        return sources

    def _encode_by_direction(
        self, lines: Sequence[str | Rows], tags: Sequence[str], languages: Sequence[tuple[str, str]]
    ) -> list[SourceLine]:
        sources: dict[int, SourceLine] = {}
        for direction in dict.fromkeys(languages):
            rows = [
                row for row, row_languages in enumerate(languages) if row_languages == direction
            ]
            lines_of_rows = [lines[row] for row in rows]
            tags_of_rows = [tags[row] for row in rows] if tags else []
            model = self.in_direction(*direction)
            encoded = model.encode_sources(lines_of_rows, tags_of_rows)
            for row, source in zip(rows, encoded, strict=True):
                sources[row] = replace(source, languages=direction)
        return [sources[row] for row in range(len(lines))]

    def in_direction(self, source: str, target: str) -> Self:
        """Returns the same model with tokenizers for these languages; an empty string keeps the current language."""
        if not (source or target):
            return self
        return replace(
            self, tokenizers=in_direction(self.tokenizers, source or None, target or None)
        )

    def tag_ids(self, tags: str) -> list[int]:
        """Returns the ids of the space-separated special tokens that precede a source.

        Raises:
            DataError: the model has not learned one of the tags.
        """
        tokenizer = self.tokenizers.tgt if self.reads == "prompt" else self.tokenizers.src
        vocabulary = tokenizer.vocabulary
        unknown = [tag for tag in tags.split() if tag not in vocabulary.specials]
        if unknown:
            learned_tags = [token for token in vocabulary.specials if not SENTINEL.fullmatch(token)]
            remedy = "it was trained without tags, so remove --to or the tag"
            if learned_tags:
                remedy = f"its tags are: {', '.join(learned_tags)}"
            raise DataError(
                f"the model {self.name!r} has not learned the tag {unknown[0]}; {remedy}"
            )
        return vocabulary.ids(tags.split())

    def encode_requests(
        self, requests: Sequence[Request], glossary: Glossary | None, config: SearchConfig
    ) -> list[SourceLine]:
        """Tokenizes source lines and the constraints on their translations.

        Args:
            requests: source lines with constraints.
            glossary: a glossary for all lines.
            config: search settings, which must support required and forbidden terms if there are any.
        """
        if glossary is not None:
            config.reject_constraints()
            if self.reads != "text":
                raise NmtkitError(
                    f"the model {self.name!r} does not read text, so it cannot use a glossary; remove the glossary"
                )
            requests = [glossary.apply(request) for request in requests]
        tags = [request.tags or self.tags for request in requests]
        languages = [request.languages for request in requests]
        sources = self.encode_sources([request.source for request in requests], tags, languages)
        for number, request in enumerate(requests):
            if not (request.prefix or request.must or request.must_not):
                continue
            source = sources[number]
            if source.is_empty:
                raise DataError(
                    f"{request.place}: an empty source cannot have a prefix or terms; add the source"
                )
            (prefix,) = self.encode_targets([request.prefix], [source])
            terms = encode_terms(
                request, self.tokenizers.tgt, oov=source.oov, max_length=config.max_length
            )
            if terms is not None:
                config.reject_constraints()
            sources[number] = replace(
                source, request=request, prefix=tuple(prefix.extended), terms=terms
            )
        return sources

    def encode_targets(
        self, lines: Sequence[str], sources: Sequence[SourceLine]
    ) -> list[TargetLine]:
        """Tokenizes the translations of encoded sources."""
        tokenizer = self.tokenizers.tgt
        if not self.outline.config.copies:
            return [TargetLine(ids, ids) for ids in tokenizer.encode_many(list(lines))]
        targets = []
        for line, source in zip(lines, sources, strict=True):
            tokens = tokenizer.tokens(line)
            targets.append(self._extended_target(tokens, source))
        return targets

    def encode_target_tokens(
        self, tokens: Sequence[str], source: SourceLine, number: int
    ) -> TargetLine:
        """Encodes a translation that is already tokenized.

        Raises:
            DataError: a token is neither in the vocabulary nor in the source; `number` identifies the pair in the
                message.
        """
        if self.outline.config.copies:
            target = self._extended_target(tokens, source)
        else:
            # Unlike `text_ids`, `ids` accepts special tokens, such as language tokens.
            ids = self.tokenizers.tgt.vocabulary.ids(tokens)
            target = TargetLine(ids, ids)
        spelled = self.tokenizers.tgt.pieces(target.extended, source.oov)
        if spelled != list(tokens):
            # `spelled` is shorter if `tokens` contains BOS, EOS or PAD, which never occur in a translation.
            pairs = zip_longest(tokens, spelled)
            missing = next(token for token, spelled_token in pairs if token != spelled_token)
            or_source = " or in the source" if self.outline.config.copies else ""
            raise DataError(
                f"pair {number}: the token {missing!r} is not in the model's vocabulary{or_source}; "
                "only translations by a model with the same tokenizer can be rescored token by token"
            )
        return target

    def _extended_target(self, tokens: Sequence[str], source: SourceLine) -> TargetLine:
        vocabulary = self.tokenizers.tgt.vocabulary
        extended = vocabulary.extended_target_ids(tokens, source.oov)
        ids = []
        for token_id in extended:
            is_copied = token_id >= len(vocabulary)
            ids.append(UNK if is_copied else token_id)
        return TargetLine(ids, extended)

    def batches(
        self, sources: Sequence[SourceLine], targets: Sequence[TargetLine]
    ) -> Iterator[tuple[list[int], Batch]]:
        """Yields batches on the CPU, each with the indices of its pairs; skips pairs with an empty source."""
        targets_with_prompts = []
        nonempty_pairs = []  # indices of the pairs that go into batches
        lengths = []
        for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
            target_with_prompt = target.after_prompt(source)
            targets_with_prompts.append(target_with_prompt)
            if not source.is_empty:
                nonempty_pairs.append(number)
                lengths.append(max(source.length, len(target_with_prompt.ids)) + 1)
        for bucket in bucket_by_length(np.array(lengths, dtype=np.int64), self.batch_budget):
            numbers = [nonempty_pairs[index] for index in bucket]
            batch_sources = [sources[number] for number in numbers]
            batch_targets = [targets_with_prompts[number] for number in numbers]
            yield numbers, make_batch(batch_sources, batch_targets)

    def score_targets(self, batch: Batch, attend: bool) -> tuple[ModelOutput, Tensor]:
        """Computes the log-probabilities of a batch's targets in one forward pass.

        The output layer is computed in chunks of rows, since the log-probabilities `(B, T, X)` of a whole batch may not
        fit into memory.

        Args:
            batch: sources and targets, on the CPU.
            attend: whether the output must include the attention.

        Returns:
            The model's output at all positions, on the model's device; and the log-probability of each target token,
            including EOS, `(B, T)`, on the CPU, with 0 at padding.
        """
        readout, memory = self.model.read(batch.to(self.device), attend)
        mask = batch.targets.mask  # (B, T)
        rows = readout.gather(mask)  # M rows, one for each target token
        target_ids = send(batch.targets.extended[mask], self.device)  # (M,)
        chunk_bytes = CHUNK_BYTES.get(self.device.type, CHUNK_BYTES["cpu"])
        extended_size = self.outline.sizes["tgt"] + batch.n_oov  # X
        row_bytes = 4 * extended_size
        chunk_rows = max(1, chunk_bytes // row_bytes)
        chunks = []
        for first in range(0, len(target_ids), chunk_rows):
            chunk = slice(first, first + chunk_rows)
            log_probs = self.model.predict(rows.select(chunk), memory)  # (chunk_rows, X)
            target_log_probs = log_probs.gather(-1, target_ids[chunk, None])[:, 0]  # (chunk_rows,)
            chunks.append(target_log_probs.float())
        scores = torch.zeros(mask.shape)  # (B, T)
        scores[mask] = torch.cat(chunks).cpu()
        return readout, scores


def bucket_width(columns: int, *limits: int) -> int:
    """Rounds a number of columns up to 16, 20, 24, 32, 40, 48, 64, ..., or to one of the limits if that is closer.

    Each batch width needs separate CUDA graphs, so there should be few different widths.
    """
    power = 16
    while 2 * power < columns:
        power *= 2
    widths = (power, power * 5 // 4, power * 3 // 2, 2 * power, *limits)
    return min(width for width in widths if width >= columns)


def make_batch(
    sources: Sequence[SourceLine],
    targets: Sequence[TargetLine] | None = None,
    width: int | None = None,
) -> Batch:
    """Collates a batch on the CPU.

    Args:
        sources: lines that were encoded for one model.
        targets: given translations of the sources, each preceded by the prompt if its source is a prompt; None if there
            are no given translations.
        width: number of source columns. None selects the minimum: the length of the longest source, with EOS.
    """
    tgt_ids: list[list[int]] | None = None
    tgt_extended: list[list[int]] | None = None
    if targets is not None:
        tgt_ids = [target.ids for target in targets]
        tgt_extended = [target.extended for target in targets]
    ids = [source.ids for source in sources]
    extended = [source.extended for source in sources if source.extended is not None]
    features = [source.features for source in sources if source.features is not None]
    is_prompt = sources[0].is_prompt
    batch = collate(
        src=None if features or is_prompt else ids,
        tgt=tgt_ids,
        src_extended=extended or None,
        tgt_extended=tgt_extended,
        n_oov=max(len(source.oov) for source in sources),
        width=width,
        features=features or None,
    )
    if is_prompt and targets is None:
        batch = replace(batch, prompt=_padded(ids))
    if any(source.is_constrained for source in sources):
        return _with_constraints(batch, sources)
    return batch


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Right-pads rows of ids with PAD to `(B, T)`."""
    shape = (len(rows), max(map(len, rows)))
    padded = torch.full(shape, PAD, dtype=torch.long)  # (B, T)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = torch.tensor(row, dtype=torch.long)
    return padded


def _with_constraints(batch: Batch, sources: Sequence[SourceLine]) -> Batch:
    """Adds the sources' forced prefixes and terms to a batch."""
    prefixes = [_prefix_ids(source) for source in sources]
    prefix = _padded(prefixes) if any(prefixes) else None  # (B, P)
    if not any(source.terms for source in sources):
        return replace(batch, prefix=prefix)
    copied_starts: Tensor | None = None
    if sources[0].extended is not None:  # the model copies
        copied_starts = torch.zeros(batch.inputs.ids.shape, dtype=torch.bool)  # (B, S)
        for row, source in enumerate(sources):
            starts = [starts_word(token) for token in source.tokens]
            copied_starts[row, : len(starts)] = torch.tensor(starts)
    terms = [source.terms or NO_TERMS for source in sources]
    must = [sentence.must for sentence in terms]
    must_not = [sentence.must_not for sentence in terms]
    in_order = [sentence.in_order for sentence in terms]
    constraints = Constraints(
        positive=pad_terms(must, min_terms=1),  # (B, U, L)
        in_order=torch.tensor(in_order),  # (B,)
        negative=pad_terms(must_not, min_terms=0),  # (B, R, *)
        copied_starts=copied_starts,
    )
    return replace(batch, prefix=prefix, terms=constraints)


def _prefix_ids(source: SourceLine) -> list[int]:
    """Returns the ids that a translation must begin with.

    They end in NEW_WORD if the last word of the user's prefix must not be continued.
    """
    prefix = list(source.prefix)
    text = ""
    if source.request is not None:
        text = source.request.prefix
    # A prefix that ends in punctuation, such as "l'" or "(", needs no NEW_WORD: a word may follow it without a space.
    ends_in_letter = bool(text) and not starts_word(text[-1])
    if ends_in_letter:
        prefix.append(NEW_WORD)
    return prefix
