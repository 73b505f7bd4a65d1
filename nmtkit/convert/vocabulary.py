"""Converts vocabularies and tokenizers from other toolkits.

PAD, UNK, BOS and EOS come first in nmtkit, so ids change. BOS is the decoder's first input. If it
shares its row with another special token, as in Marian, whose decoder begins with PAD, a bias keeps
it from being generated.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nmtkit.convert.external_files import read_file, unsupported
from nmtkit.core.errors import CheckpointError
from nmtkit.core.files import write_errors
from nmtkit.core.protobuf import decode_fields, encode_field, last_values
from nmtkit.core.settings import parse
from nmtkit.data.text.config import TEXT_COLUMNS
from nmtkit.data.tokenizers.huggingface_tokenizer import LANGUAGE_TOKEN
from nmtkit.data.tokenizers.sentencepiece_rules import with_number_rules
from nmtkit.data.tokenizers.tokenizer import (
    WORD_START,
    SentencePieceTokenizer,
    TokenizerConfig,
    WordTokenizer,
)
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary


@dataclass(frozen=True)
class VocabularyMap:
    """One side's vocabulary in our order, and its tokens' rows in the toolkit's matrices."""

    vocabulary: Vocabulary
    rows: Tensor
    """`(V,)`; the index `size` means a row of zeros."""
    size: int
    """Number of rows in the toolkit's matrices."""
    suppressed: Tensor
    """Ids that share the row of another id and must never be generated."""


Maps = tuple[VocabularyMap, VocabularyMap]
"""The vocabularies of source and target; the same object twice if they are shared."""


def map_vocabulary(
    place: Path,
    tokens: Mapping[int, str],
    special: tuple[int, ...],
    size: int,
    dropped: Collection[int] = (),
    further: Sequence[int] = (),
) -> VocabularyMap:
    """Puts the four special tokens first, followed by the `further` special tokens.

    Args:
        place: name of the vocabulary in messages.
        tokens: the tokens by the toolkit's ids.
        special: the toolkit's ids of padding, the decoder's first input, the end, and the unknown
            token unless it is called <unk>; `size` marks a missing one.
        size: number of rows in the toolkit's matrices.
        dropped: rows that get no token.
        further: rows of other special tokens. If a language is the decoder's first input, it keeps
            its own token in addition to BOS.
    """
    unknown = [*special[3:], *(row for row, token in tokens.items() if token == SPECIALS[UNK])]
    if not unknown:
        raise unsupported(place, f"a vocabulary without {SPECIALS[UNK]}")
    row_of = {PAD: special[0], UNK: unknown[0], BOS: special[1], EOS: special[2]}
    owner: dict[int, int] = {}
    for ours in (EOS, UNK, PAD, BOS):  # if several share a row, the first one keeps it
        owner.setdefault(row_of[ours], ours)
    start = row_of[BOS]
    if owner[start] == BOS and start in further and LANGUAGE_TOKEN.fullmatch(tokens.get(start, "")):
        del owner[start]
    further = [row for row in further if row not in owner]
    elsewhere = {*owner, *dropped, *further}
    ordinary = [*further, *(row for row in range(size) if row not in elsewhere)]
    ordered = _distinct_names(tokens, ordinary)
    rows = torch.tensor([*(row_of[ours] for ours in range(len(SPECIALS))), *ordinary])
    suppressed = torch.tensor(
        [ours for ours, row in row_of.items() if owner.get(row) != ours], dtype=torch.long
    )
    vocabulary = Vocabulary(ordered, ordered[len(SPECIALS) : len(SPECIALS) + len(further)])
    return VocabularyMap(vocabulary, rows, size, suppressed)


def _distinct_names(tokens: Mapping[int, str], rows: Sequence[int]) -> list[str]:
    """Returns our special tokens and the tokens of these rows, each with a unique name."""
    names = [*SPECIALS]
    taken = {*SPECIALS}
    for row in rows:
        name = tokens.get(row, "")
        # A line cannot contain an empty name or a line feed; other names may already be taken.
        if not name or "\n" in name or name in taken:
            name = f"<unused {row}>"
        taken.add(name)
        names.append(name)
    return names


# --------------------------------------------------------------------------------------- tokenizers for vocabularies


def build_tokenizers(
    kind: str,
    maps: Maps,
    place: Path,
    models: Sequence[Path] | None = None,
    restrict: bool = False,
    lowercase: bool = False,
) -> Tokenizers:
    """Returns tokenizers for these vocabularies.

    `models` are the SentencePiece files of both sides, if needed; `restrict` keeps only pieces that
    are in the vocabularies.
    """
    src, tgt = maps
    settings = {
        "kind": kind,
        "vocab_size": max(5, len(src.vocabulary)),
        "tgt_vocab_size": None if src is tgt else max(5, len(tgt.vocabulary)),
        "joint": src is tgt,
        "lowercase": lowercase,
        "normalization": "none",
    }
    config = parse(TokenizerConfig, settings, str(place))
    if models is None:
        src_words = WordTokenizer(config, src.vocabulary)
        tgt_words = src_words if src is tgt else WordTokenizer(config, tgt.vocabulary)
        return Tokenizers(config, {"src": src_words, "tgt": tgt_words})
    columns = {}
    for column, path, side in zip(TEXT_COLUMNS, models, maps, strict=True):
        columns[column] = _sentencepiece_tokenizer(path, config, side.vocabulary, restrict)
    return Tokenizers(config, columns)


def _sentencepiece_tokenizer(
    path: Path, config: TokenizerConfig, vocabulary: Vocabulary, restrict: bool
) -> SentencePieceTokenizer:
    content = read_file(path)
    try:
        tokenizer = SentencePieceTokenizer(config, content, vocabulary)
    except CheckpointError as fault:
        raise CheckpointError(f"{path}: {fault}") from fault
    if "<0x00>" in tokenizer.model_pieces:
        raise unsupported(path, "SentencePiece models that split unknown characters into bytes")
    if not restrict:
        return tokenizer
    return SentencePieceTokenizer(config, _restricted(content, {*vocabulary.tokens}), vocabulary)


# Field of a sentencepiece model, the protobuf message ModelProto.
_PIECES = 1
# Fields of a piece.
_TEXT = 1
_TYPE = 3
# Types of pieces; the type of a normal piece may be omitted.
_NORMAL = 1
_UNUSED = 5


def _restricted(model: bytes, pieces: Collection[str]) -> bytes:
    """Marks all pieces except these and single characters as unused, like SentencePiece's `SetVocabulary`.

    The model must be valid, that is, it must have been opened before.
    """
    restricted = bytearray()
    for field in decode_fields(model):
        if field.number != _PIECES:
            restricted += field.encoded
            continue
        piece: bytes = field.value
        values = last_values(piece)
        text = values[_TEXT].decode("utf-8", "replace")
        if values.get(_TYPE, _NORMAL) in (_NORMAL, _UNUSED):
            is_kept = text in pieces or len(text) == 1
            # A second value of the field overrides the first one.
            piece += encode_field(_TYPE, _NORMAL if is_kept else _UNUSED)
        restricted += encode_field(_PIECES, piece)
    return bytes(restricted)


def write_sentencepiece_models(tokenizers: Tokenizers, folder: Path) -> None:
    """Writes `source.spm` and `target.spm` with the tokenizers' normalization; writes nothing for word tokenizers."""
    for name, tokenizer in (("source.spm", tokenizers.src), ("target.spm", tokenizers.tgt)):
        if not isinstance(tokenizer, SentencePieceTokenizer):
            continue
        with write_errors(folder / name):
            content = tokenizer.content()
            # in other programs, the model must normalize text itself
            if tokenizer.config.normalization == "nfkc_numbers":
                content = with_number_rules(content)
            (folder / name).write_bytes(content)


# -------------------------------------------------------------------------- toolkits with separate vocabularies


@dataclass(frozen=True)
class ExternalVocabulary:
    """One side's tokens in the toolkit's order, and its special tokens."""

    place: Path
    tokens: Sequence[str]
    unknown: int
    padding: int
    start: int
    """The decoder's first input."""
    end: int

    def mapped(self, pieces: bool) -> VocabularyMap:
        """Returns the vocabulary in our order; word tokens (not `pieces`) get our word-start mark."""
        special = (self.padding, self.start, self.end)
        size = len(self.tokens)
        if not all(0 <= row < size for row in (*special, self.unknown)):
            raise CheckpointError(
                f"{self.place}: the id of a special token is outside the vocabulary of {size} tokens"
            )
        tokens = {}
        for row, token in enumerate(self.tokens):
            marked = token if pieces or not token else WORD_START + token
            tokens[row] = "" if marked == SPECIALS[UNK] else marked
        tokens[self.unknown] = SPECIALS[UNK]
        return map_vocabulary(self.place, tokens, special, size)


def toolkit_tokenizers(
    src: ExternalVocabulary,
    tgt: ExternalVocabulary,
    models: tuple[Path, Path] | None,
    lowercase: bool = False,
    restrict: bool = False,
) -> tuple[Tokenizers, Maps]:
    """Returns tokenizers for a toolkit that stores vocabularies separately from SentencePiece models.

    Without models, text consists of tokens (words or pieces) separated by spaces. `restrict` is as
    in `build_tokenizers`.
    """
    has_pieces = any(token.startswith(WORD_START) for token in (*src.tokens, *tgt.tokens))
    kind = "pieces" if has_pieces else "whitespace"
    if models:
        kind = "marian"
    tgt_map = tgt.mapped(pieces=kind != "whitespace")
    is_shared = [*src.tokens] == [*tgt.tokens]
    src_map = tgt_map if is_shared else src.mapped(pieces=kind != "whitespace")
    maps = (src_map, tgt_map)
    return build_tokenizers(kind, maps, src.place, models, restrict, lowercase), maps


def find_sentencepiece_models(
    folder: Path, names: Sequence[str]
) -> tuple[tuple[Path, Path] | None, list[str]]:
    """Finds the SentencePiece models by these names or OpenNMT-py's; returns None and a note if one is missing."""
    found: list[Path] = []
    missing: list[str] = []
    for name, side in zip(names, ("source", "target"), strict=True):
        candidates = [folder / file for file in (name, f"{side}.model", "sentencepiece.model")]
        path = next((path for path in candidates if path.is_file()), None)
        if path is None:
            missing.append(name)
        else:
            found.append(path)
    if not missing:
        return (found[0], found[1]), []
    return None, [
        f"the tokens are SentencePiece pieces, but {' or '.join(dict.fromkeys(missing))} is "
        "missing from the folder, so the run reads and outputs pieces separated by spaces; for "
        "plain text, put the models into the folder and import again"
    ]
