"""Vocabularies and tokenizers of other toolkits.

PAD, UNK, BOS and EOS come first here, so tokens get other ids. BOS is the token that the decoder begins with. Where it
shares its row with another special token, as in Marian, whose decoder begins with PAD, a bias keeps it from being
written.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.convert.external_files import read_file, unsupported
from nmtkit.core.errors import CheckpointError
from nmtkit.core.settings import parse
from nmtkit.data.text.config import TEXT_COLUMNS
from nmtkit.data.tokenizers.huggingface_tokenizer import LANGUAGE_TOKEN
from nmtkit.data.tokenizers.sentencepiece_model import bytes_field, message_fields
from nmtkit.data.tokenizers.tokenizer import WORD_START, SentencePieceTokenizer, TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary
from nmtkit.data.tokenizers.wordpiece import WordPieceTokenizer


@dataclass(frozen=True)
class VocabularyMap:
    """The vocabulary of one side in our order, and the rows of its tokens in the toolkit's matrices."""

    vocabulary: Vocabulary
    rows: Tensor
    """`(V,)`; `size` stands for a row of zeros behind the last."""
    size: int
    """Rows of the toolkit's matrices."""
    suppressed: Tensor
    """Our ids whose row belongs to another of our ids: they must never be written."""


Maps = tuple[VocabularyMap, VocabularyMap]
"""Maps of source and target; the same object twice where they share one vocabulary."""


def map_vocabulary(
    place: Path,
    tokens: Mapping[int, str],
    special: tuple[int, ...],
    size: int,
    dropped: Collection[int] = (),
    further: Sequence[int] = (),
) -> VocabularyMap:
    """Puts the four special tokens first, then the `further` special tokens that are not among them.

    `tokens` are by the toolkit's ids, `special` its ids of padding, of the decoder's first input, of the end, and of
    the unknown token where that is not called <unk>; `size` stands for one that it lacks. Of its `size` rows, those
    `dropped` get no token here. A language among the
    `further` ones that is the decoder's first input has a token beside BOS.
    """
    unknown = [*special[3:], *(row for row, token in tokens.items() if token == SPECIALS[UNK])]
    if not unknown:
        raise unsupported(place, f"the vocabulary has no {SPECIALS[UNK]}")
    row_of = {PAD: special[0], UNK: unknown[0], BOS: special[1], EOS: special[2]}
    owner: dict[int, int] = {}
    for ours in (EOS, UNK, PAD, BOS):  # the first of these keeps a row that two share
        owner.setdefault(row_of[ours], ours)
    start = row_of[BOS]
    if owner[start] == BOS and start in further and LANGUAGE_TOKEN.fullmatch(tokens.get(start, "")):
        del owner[start]
    further = [row for row in further if row not in owner]
    elsewhere = {*owner, *dropped, *further}
    ordinary = [*further, *(row for row in range(size) if row not in elsewhere)]
    taken, ordered = {*SPECIALS}, [*SPECIALS]
    for row in ordinary:
        token = tokens.get(row, "")
        # Tokens that no line can contain, or that are special here, never come from a text.
        token = f"<unused {row}>" if not token or "\n" in token or token in taken else token
        taken.add(token)
        ordered.append(token)
    rows = torch.tensor([*(row_of[ours] for ours in range(len(SPECIALS))), *ordinary])
    suppressed = torch.tensor([ours for ours, row in row_of.items() if owner.get(row) != ours], dtype=torch.long)
    vocabulary = Vocabulary(ordered, ordered[len(SPECIALS) : len(SPECIALS) + len(further)])
    return VocabularyMap(vocabulary, rows, size, suppressed)


@dataclass(frozen=True)
class ExternalVocabulary:
    """The tokens of one side in the toolkit's order, and which of them are special."""

    place: Path
    tokens: Sequence[str]
    unknown: int
    padding: int
    start: int
    """The decoder's first input."""
    end: int

    def mapped(self, pieces: bool) -> VocabularyMap:
        """In our order; words, which are no sentencepiece `pieces`, get the mark that begins words here."""
        special = (self.padding, self.start, self.end)
        if not all(0 <= row < len(self.tokens) for row in (*special, self.unknown)):
            raise CheckpointError(f"{self.place}: a special token has an id outside its {len(self.tokens)} tokens")
        marked = [token if pieces or not token else WORD_START + token for token in self.tokens]
        tokens = {row: "" if token == SPECIALS[UNK] else token for row, token in enumerate(marked)}
        tokens[self.unknown] = SPECIALS[UNK]
        return map_vocabulary(self.place, tokens, special, len(tokens))


def build_tokenizers(
    kind: str, maps: Maps, place: Path, models: Sequence[Path] | None = None, restrict: bool = False, **more: Any
) -> Tokenizers:
    """Tokenizers over these vocabularies.

    `models` are the files of both sides' sentencepiece models, if the tokenizers need any; `restrict` leaves only those
    pieces of them that the vocabularies have. `more` are other settings of the tokenizers.
    """
    src, tgt = maps
    settings = {
        "kind": kind,
        "vocab_size": max(5, len(src.vocabulary)),
        "tgt_vocab_size": None if src is tgt else max(5, len(tgt.vocabulary)),
        "joint": src is tgt,
    }
    config = parse(TokenizerConfig, settings | more, str(place))
    if models is not None:
        pairs = zip(models, maps, strict=True)
        both = (_sentencepiece_tokenizer(path, config, one.vocabulary, restrict) for path, one in pairs)
        return Tokenizers(config, dict(zip(TEXT_COLUMNS, both, strict=True)))
    cutter = WordPieceTokenizer if kind == "wordpiece" else WordTokenizer
    words = cutter(config, src.vocabulary)
    return Tokenizers(config, {"src": words, "tgt": words if src is tgt else cutter(config, tgt.vocabulary)})


def _sentencepiece_tokenizer(
    path: Path, config: TokenizerConfig, vocabulary: Vocabulary, restrict: bool
) -> SentencePieceTokenizer:
    content = read_file(path)
    try:
        tokenizer = SentencePieceTokenizer(config, content, vocabulary)
    except CheckpointError as fault:
        raise CheckpointError(f"{path}: {fault}") from fault
    if "<0x00>" in tokenizer.own_pieces:
        raise unsupported(path, "cuts unknown characters into bytes")
    if not restrict:
        return tokenizer
    return SentencePieceTokenizer(config, _restricted(content, {*vocabulary.tokens}), vocabulary)


def toolkit_tokenizers(
    src: ExternalVocabulary,
    tgt: ExternalVocabulary,
    models: tuple[Path, Path] | None,
    lowercase: bool = False,
    restrict: bool = False,
) -> tuple[Tokenizers, Maps]:
    """Tokenizers of a toolkit that keeps vocabularies apart from sentencepiece models.

    Without models, tokens, words or pieces, stand between spaces. For `restrict` see `build_tokenizers`.
    """
    pieces = any(token.startswith(WORD_START) for token in (*src.tokens, *tgt.tokens))
    kind = "marian" if models else "pieces" if pieces else "whitespace"
    right = tgt.mapped(kind != "whitespace")
    maps = (right if [*src.tokens] == [*tgt.tokens] else src.mapped(kind != "whitespace"), right)
    return build_tokenizers(kind, maps, src.place, models, restrict, lowercase=lowercase, normalization="none"), maps


def find_sentencepiece_models(folder: Path, names: Sequence[str]) -> tuple[tuple[Path, Path] | None, list[str]]:
    """The sentencepiece models of both sides, by these names or as OpenNMT-py names them; else a note for the user."""
    paths = [
        next((folder / one for one in (name, f"{side}.model", "sentencepiece.model") if (folder / one).is_file()), None)
        for name, side in zip(names, ("source", "target"), strict=True)
    ]
    if paths[0] and paths[1]:
        return (paths[0], paths[1]), []
    missing = " or ".join(dict.fromkeys(name for name, path in zip(names, paths, strict=True) if not path))
    return None, [
        f"its tokens are sentencepiece pieces, and {missing} is not beside it: the run reads and writes text that is "
        "cut into pieces with spaces between; put the models there and import again for plain text"
    ]


_NORMAL, _UNUSED = 1, 5
"""Types of a piece of a sentencepiece model; a normal one may lack it."""


def _restricted(model: bytes, pieces: Collection[str]) -> bytes:
    """The model with all other pieces unused, but for single characters: `SetVocabulary` of sentencepiece.

    The model must have been opened before, so it is sound; all its fields are messages.
    """
    restricted = bytearray()
    for number, content in message_fields(model):
        assert isinstance(content, bytes)
        if number == 1:  # a piece: text, score, type
            fields: dict[int, Any] = dict(message_fields(content))
            text = fields[1].decode("utf-8", "replace")
            if fields.get(3, _NORMAL) in (_NORMAL, _UNUSED):  # a field given twice has its last value
                content += bytes([3 << 3, _NORMAL if text in pieces or len(text) == 1 else _UNUSED])
        restricted += bytes_field(number, content)
    return bytes(restricted)
