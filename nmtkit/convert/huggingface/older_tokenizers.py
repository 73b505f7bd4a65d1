"""Builds tokenizers for folders that have older files instead of a `tokenizer.json`."""

import json
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nmtkit.convert.external_files import ExternalSettings, read_file, read_json, read_text
from nmtkit.core.errors import CheckpointError, shorten
from nmtkit.core.formats import KeyPath
from nmtkit.core.protobuf import decode_fields, last_values
from nmtkit.core.settings import Field, parse
from nmtkit.data.tokenizers.huggingface_tokenizer import library
from nmtkit.data.tokenizers.tokenizer import MAX_VOCAB_SIZE, SentencePieceTokenizer, TokenizerConfig
from nmtkit.data.tokenizers.vocabulary import SPECIALS, Vocabulary

REMEDY = (
    "download the folder again, or create tokenizer.json by loading and saving the tokenizer with "
    "AutoTokenizer from transformers"
)
_CONFIG = "tokenizer_config.json"
_MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<|endoftext|>", "<mask>")
_FAIRSEQ_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
"""The first tokens in fairseq's dictionaries, with which mBART, NLLB and M2M100 were trained."""
_M2M100_LANGUAGES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi "
    "hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne "
    "nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi "
    "wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""Languages of M2M100 and its WMT 2021 models, by `language_codes`, in id order."""
_NORMAL, _CONTROL = 1, 3
"""Piece types of SentencePiece models."""


class TokenizerSettings(ExternalSettings):
    """The settings that are read from `tokenizer_config.json` and `special_tokens_map.json`."""

    tokenizer_class: str = ""
    bos_token: str | None = None
    eos_token: str | None = None
    unk_token: str | None = None
    sep_token: str | None = None
    pad_token: str | None = None
    cls_token: str | None = None
    mask_token: str | None = None
    mask_token_sent: str | None = "<mask_1>"
    additional_special_tokens: list[str] = Field(default=[])
    extra_special_tokens: list[str] = Field(default=[])
    src_lang: str | None = None
    language_codes: Literal["m2m100", "wmt21"] = "m2m100"
    extra_ids: int = Field(default=100, ge=0, le=MAX_VOCAB_SIZE)
    offset: int = Field(default=103, ge=0, le=MAX_VOCAB_SIZE)
    add_prefix_space: bool = False
    clean_text: bool = True
    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    clean_up_tokenization_spaces: bool = False

    @property
    def special_tokens(self) -> list[str]:
        """Returns all tokens that the files declare as special."""
        named = [
            self.bos_token,
            self.eos_token,
            self.unk_token,
            self.sep_token,
            self.pad_token,
            self.cls_token,
            self.mask_token,
        ]
        listed = [*self.additional_special_tokens, *self.extra_special_tokens]
        return [*listed, *(token for token in named if token)]


def read_settings(folder: Path) -> TokenizerSettings:
    """Returns the settings of a folder's tokenizer; errors name the file that contains the value."""
    settings: dict[str, Any] = {}
    places: dict[KeyPath, str] = {}
    for path in (folder / "special_tokens_map.json", folder / _CONFIG):
        if not path.exists():
            continue
        for key, value in read_json(path, dict).items():
            settings[key] = _plain_tokens(value)
            places[(key,)] = str(path)
    return parse(TokenizerSettings, settings, str(folder / _CONFIG), places)


def _plain_tokens(value: Any) -> Any:
    """Returns the text of a token stored with its properties, as in `{"content": "<s>", "lstrip": false}`."""
    if isinstance(value, dict) and "content" in value:
        return value["content"]
    if isinstance(value, dict):
        return [_plain_tokens(token) for token in value.values()]
    if isinstance(value, list):
        return [_plain_tokens(token) for token in value]
    return value


@dataclass(frozen=True)
class _OlderTokenizer:
    tokenizer: Any
    """A tokenizer from Hugging Face's `tokenizers` library."""
    template: str = ""
    """The tokens around a text ($A); empty if the tokenizer adds them itself."""
    specials: Sequence[str] = field(default=())
    """Special tokens of the family, which the settings may omit."""

    @property
    def around(self) -> list[str]:
        """Returns the tokens that the template adds to a text."""
        return [token for token in self.template.split() if token != "$A"]


def older_content(
    folder: Path, settings: TokenizerSettings, model_type: str
) -> tuple[Path, dict[str, Any]]:
    """Returns the path of a tokenizer file, and the equivalent content of `tokenizer.json`."""
    readers = {
        "vocab.txt": _word_piece,
        "merges.txt": _byte_level,
        "spiece.model": _pegasus if model_type == "pegasus" else _t5,
        "sentencepiece.bpe.model": _m2m100 if (folder / "vocab.json").exists() else _fairseq,
    }
    path = next((folder / name for name in readers if (folder / name).exists()), None)
    if path is None:
        names = ", ".join(readers)
        raise CheckpointError(
            f"{folder}: contains neither tokenizer.json nor any of {names}; download the whole "
            "folder"
        )
    try:
        made = readers[path.name](path, settings)
        tokenizer = made.tokenizer
        special = [*settings.special_tokens, *made.specials]
        special += [
            token for token in (*_MARKS, *SPECIALS) if tokenizer.token_to_id(token) is not None
        ]
        tokenizer.add_special_tokens([*dict.fromkeys(special)])
        if made.template:
            _require_tokens(path, made, settings)
            ends = [(token, tokenizer.token_to_id(token)) for token in made.around]
            processors = library().processors
            tokenizer.post_processor = processors.TemplateProcessing(
                single=made.template, special_tokens=ends
            )
        content: dict[str, Any] = json.loads(tokenizer.to_str())
    except CheckpointError:
        raise
    except Exception as fault:  # the library raises no narrower exception
        raise CheckpointError(
            f"{path}: {shorten(' '.join(str(fault).split()), 200)}; {REMEDY}"
        ) from fault
    return path, content


def _require_tokens(path: Path, made: _OlderTokenizer, settings: TokenizerSettings) -> None:
    """Rejects a template that contains a language or end token that the tokenizer lacks."""
    place = path.with_name(_CONFIG)
    lists_languages = bool(
        settings.additional_special_tokens or settings.extra_special_tokens or made.specials
    )
    for token in made.around:
        if made.tokenizer.token_to_id(token) is not None:
            continue
        if settings.src_lang and settings.src_lang in token and lists_languages:
            raise CheckpointError(
                f"{place}: `src_lang` is {settings.src_lang!r}, which is not one of the model's "
                "languages"
            )
        raise CheckpointError(
            f"{place} does not list the token {token}; copy special_tokens_map.json from the "
            "model's page on the hub into the folder"
        )


def require_distinct(ids: Collection[Any]) -> None:
    """Rejects a vocabulary in which two tokens share an id."""
    if len({*ids}) < len(ids):
        raise ValueError("two tokens have the same id, or one token has two ids")


def _word_piece(path: Path, settings: TokenizerSettings) -> _OlderTokenizer:
    """The tokenizer of BERT (Devlin et al. 2019, section 3)."""
    require_distinct(read_text(path).split("\n"))
    tokenizer = library().implementations.BertWordPieceTokenizer(
        str(path),
        clean_text=settings.clean_text,
        strip_accents=settings.strip_accents,
        lowercase=settings.do_lower_case,
        handle_chinese_chars=settings.tokenize_chinese_chars,
    )
    return _OlderTokenizer(tokenizer)


def _byte_level(path: Path, settings: TokenizerSettings) -> _OlderTokenizer:
    """The tokenizer of GPT-2 (Radford et al. 2019, section 2.2), and of BART, which adds start and end tokens."""
    vocabulary = path.with_name("vocab.json")
    ids = read_json(vocabulary, dict)
    require_distinct(ids.values())
    tokenizer = library().implementations.ByteLevelBPETokenizer(
        str(vocabulary), str(path), add_prefix_space=settings.add_prefix_space
    )
    return _OlderTokenizer(tokenizer, "<s> $A </s>" if {"<s>", "</s>"} <= ids.keys() else "")


Piece = tuple[str, float, int]
"""A piece's text, score and type."""


@dataclass(frozen=True)
class _SentencePieceModel:
    pieces: list[Piece]
    is_bpe: bool
    charsmap: bytes
    """Precompiled normalization rules; empty if there are none."""


def _read_pieces(path: Path) -> _SentencePieceModel:
    content = read_file(path)
    try:
        SentencePieceTokenizer(TokenizerConfig(kind="marian"), content, Vocabulary(SPECIALS))
    except CheckpointError as fault:
        raise ValueError("this is not a SentencePiece model") from fault
    pieces: list[Piece] = []
    parts: dict[int, dict[int, Any]] = {}
    # The field numbers are defined by ModelProto and the messages it contains.
    for model_field in decode_fields(content):
        if model_field.number == 1:
            values = last_values(model_field.value)
            (score,) = struct.unpack("<f", values[2])
            pieces.append((values[1].decode(), score, values.get(3, _NORMAL)))
        elif model_field.number in (2, 3):
            parts.setdefault(model_field.number, last_values(model_field.value))
    trainer_spec = parts[2]
    normalizer_spec = parts[3]
    return _SentencePieceModel(
        pieces=pieces, is_bpe=trainer_spec.get(3, 1) == 2, charsmap=normalizer_spec.get(2, b"")
    )


def _cutter(
    model: _SentencePieceModel, pieces: Sequence[Piece], ids: Mapping[str, int], splits_words: bool
) -> Any:
    """Returns a `tokenizers` tokenizer that segments like the SentencePiece model, with these pieces and ids.

    With `splits_words`, text is split into words before segmentation, as in T5 and Pegasus;
    otherwise white space is collapsed to one space.
    """
    lib = library()
    cleaners = [lib.normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    start = lib.pre_tokenizers.Metaspace(prepend_scheme="always")
    if splits_words:
        start = lib.pre_tokenizers.Sequence([lib.pre_tokenizers.WhitespaceSplit(), start])
    else:
        cleaners += [lib.normalizers.Strip(), lib.normalizers.Replace(lib.Regex(" {2,}"), " ")]
    if model.is_bpe:
        cutter = lib.models.BPE(dict(ids), _merges(pieces, ids), unk_token="<unk>", fuse_unk=True)
    else:
        cutter = lib.models.Unigram([(text, score) for text, score, _ in pieces], ids["<unk>"])
    tokenizer = lib.Tokenizer(cutter)
    tokenizer.normalizer = lib.normalizers.Sequence(cleaners)
    tokenizer.pre_tokenizer = start
    tokenizer.decoder = lib.decoders.Metaspace(prepend_scheme="always")
    return tokenizer


def _merges(pieces: Sequence[Piece], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Returns the merges of a BPE model, ordered by the rank of the merged piece."""
    candidates = []
    for text, score, kind in pieces:
        if kind != _NORMAL:
            continue
        for cut in range(1, len(text)):
            candidates.append((-score, text[:cut], text[cut:]))
    return [
        (left, right)
        for _, left, right in sorted(candidates)
        if {left, right, left + right} <= ids.keys()
    ]


def _row_of(pieces: Sequence[Piece]) -> dict[str, int]:
    return {text: row for row, (text, _, _) in enumerate(pieces)}


def _t5(path: Path, settings: TokenizerSettings) -> _OlderTokenizer:
    """The tokenizer of T5 and mT5: the pieces with their ids, then `extra_ids` sentinels in reverse order."""
    model = _read_pieces(path)
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(settings.extra_ids))]
    pieces = [*model.pieces, *((token, 0.0, _CONTROL) for token in sentinels)]
    tokenizer = _cutter(model, pieces, _row_of(pieces), splits_words=True)
    return _OlderTokenizer(tokenizer, "$A </s>", sentinels)


def _pegasus(path: Path, settings: TokenizerSettings) -> _OlderTokenizer:
    """The tokenizer of Pegasus: padding, end, two masks, `<unk_2>`, ..., then pieces from the third on.

    A piece's id is its id in the SentencePiece model plus `offset`.
    """
    model = _read_pieces(path)
    first = [settings.pad_token or "<pad>", settings.eos_token or "</s>"]
    if settings.mask_token_sent:
        first += [settings.mask_token_sent, settings.mask_token or "<mask_2>"]
    first += [f"<unk_{number}>" for number in range(2, settings.offset)]
    pieces = [*((token, 0.0, _CONTROL) for token in first), *model.pieces[2:]]
    tokenizer = _cutter(model, pieces, _row_of(pieces), splits_words=True)
    return _OlderTokenizer(tokenizer, f"$A {first[1]}", first)


def _fairseq(path: Path, settings: TokenizerSettings) -> _OlderTokenizer:
    """The tokenizer of mBART and NLLB: fairseq's special tokens, pieces from the fourth on, languages."""
    model = _read_pieces(path)
    pieces = [*((token, 0.0, _CONTROL) for token in _FAIRSEQ_SPECIALS), *model.pieces[3:]]
    tokenizer = _cutter(model, pieces, _row_of(pieces), splits_words=False)
    language = settings.src_lang or "en_XX"
    is_first_mbart = settings.tokenizer_class.startswith("MBartTokenizer")
    return _OlderTokenizer(
        tokenizer, f"$A </s> {language}" if is_first_mbart else f"{language} $A </s>"
    )


def _m2m100(path: Path, settings: TokenizerSettings) -> _OlderTokenizer:
    """The tokenizer of M2M100: the ids of `vocab.json`, then the languages, which transformers 5 does not save."""
    model = _read_pieces(path)
    pieces = [*((token, 0.0, _CONTROL) for token in _FAIRSEQ_SPECIALS), *model.pieces[3:]]
    ids = read_json(path.with_name("vocab.json"), dict)
    tokenizer = _cutter(model, pieces, ids, splits_words=False)
    languages = [token for token in settings.special_tokens if token.startswith("__")]
    if not languages:
        languages = [f"__{code}__" for code in _M2M100_LANGUAGES[settings.language_codes].split()]
    return _OlderTokenizer(tokenizer, f"__{settings.src_lang or 'en'}__ $A </s>", languages)
