"""Tokenizers of public models: `tokenizer.json`, or one made of the older files that are in its place."""

import json
import struct
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.core.errors import CheckpointError, shorten
from nmtkit.core.settings import parse
from nmtkit.corpus.config import TEXT_COLUMNS
from nmtkit.data.huggingface_tokenizer import HuggingFaceTokenizer, library, parse_tokenizer
from nmtkit.data.tokenizer import WORD_START, SentencePieceTokenizer, TokenizerConfig
from nmtkit.data.tokenizers import Tokenizers
from nmtkit.data.vocabulary import EOS, SPECIALS, Vocabulary
from nmtkit.interchange.external_files import read_file, read_json, read_text
from nmtkit.interchange.vocabulary import Maps, map_vocabulary, message_fields

_MASK = "<mask>"
_MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<|endoftext|>", _MASK)
_REMEDY = "download the folder again, or let AutoTokenizer of transformers read it and write a tokenizer.json"


def read_tokenizers(
    folder: Path,
    special: Sequence[int | str],
    size: int,
    columns: Sequence[str] = TEXT_COLUMNS,
    first: int | None = None,
) -> tuple[Tokenizers, Maps]:
    """The tokenizer of a folder for these columns, and where its tokens stand in matrices of `size` rows.

    `special` are the ids or tokens of padding, of the decoder's first input and of the end. What its template puts
    around a text is around all texts here, but for the first input and the end, which come by themselves. What is
    written from a source only begins with the token of id `first`, if any.
    """
    paths = [folder / "special_tokens_map.json", folder / "tokenizer_config.json"]
    settings = {key: value for path in paths if path.exists() for key, value in read_json(path, dict).items()}
    settings = {key: value.get("content") if isinstance(value, dict) else value for key, value in settings.items()}
    place, content = _content(folder, settings)
    try:
        model = content["model"]
        if isinstance(model["vocab"], dict):
            _require_distinct(model["vocab"].values())
        model["dropout"] = None  # of training; it would cut the same text in several ways
        text = json.dumps(content, ensure_ascii=False)
        tokenizer = parse_tokenizer(text)
        added, ids = tokenizer.get_added_tokens_decoder(), tokenizer.get_vocab()
        pad, start, end = (ids[one] if isinstance(one, str) else one for one in special)
        level = library().pre_tokenizers.ByteLevel.alphabet() if type(tokenizer.decoder).__name__ == "ByteLevel" else []
        if missing := {*level} - {*ids}:
            raise ValueError(f"{len(missing)} of 256 bytes have no token, so that text would be left out")
        if (last := max(*ids.values(), pad, start, end, first or 0)) >= size:
            raise ValueError(f"it has the id {last}, and the weights are of {size:,} tokens")
    except (CheckpointError, ValueError, KeyError, TypeError) as fault:
        raise CheckpointError(f"{place}: {shorten(str(fault), 200)}; {_REMEDY}") from fault
    shown, further = _shown_names(tokenizer, size), sorted(row for row, token in added.items() if token.special)
    for row in further:
        name = added[row].content
        odd = name in SPECIALS or name.split() != [name] or WORD_START in name
        shown[row] = _MASK if name == settings.get("mask_token") else f"<{row}>" if odd else name
    unknown = tokenizer.token_to_id(str(settings.get("unk_token") or model.get("unk_token")))
    if unknown is None:
        unknown = size if model.get("unk_id") is None else int(model["unk_id"])
    map_ = map_vocabulary(place, shown, (pad, start, end, unknown), size, further=further)
    rows, tokens = map_.rows.tolist(), map_.vocabulary.tokens
    named = dict(zip(rows, tokens, strict=True))  # the end, where another has its row
    template = tokenizer.encode("a")
    marks = template.special_tokens_mask
    before = [named[row] for row in template.ids[: marks.index(0) if 0 in marks else 0]]
    after = [named[row] for row, mark in zip(template.ids, marks, strict=True) if mark][len(before) :]
    affixes = {
        "before": before[1:] if before and template.ids[0] == start else before,
        "after": after[:-1] if after[-1:] == [SPECIALS[EOS]] else after,
    }
    around = dict.fromkeys(columns, affixes)
    if "src" in columns:
        around["tgt"] = {"before": [] if first is None else [named[first]], "after": []}
    given = {
        "kind": "huggingface",
        "vocab_size": max(5, len(tokens)),
        "joint": len(columns) > 1,
        "normalization": "none",
        "specials": tokens[len(SPECIALS) : map_.vocabulary.n_specials],
        "affixes": {column: own for column, own in around.items() if any(own.values())},
    }
    config = parse(TokenizerConfig, given, str(place))
    cleans_up = bool(settings.get("clean_up_tokenization_spaces")) and model.get("type") != "BPE"
    packed = HuggingFaceTokenizer.pack(text, rows, cleans_up)
    sides = {column: HuggingFaceTokenizer(config, packed, map_.vocabulary, column) for column in columns}
    return Tokenizers(config, sides), (map_, map_)


def _shown_names(tokenizer: Any, size: int) -> dict[int, str]:
    """A name of each token, "▁" where a word begins; its own name where that is none, or another token's."""
    kind, shown, taken = type(tokenizer.decoder).__name__, {}, set[str]()
    for row in range(size):
        own = name = tokenizer.id_to_token(row) or ""
        if kind == "ByteLevel":
            name = tokenizer.decoder.decode([own]).replace(" ", WORD_START)
        elif kind == "WordPiece":
            name = own.removeprefix("##") if own.startswith("##") else WORD_START + own
        plain = name.split() == [name] and "\ufffd" not in name and name not in taken
        shown[row] = name if plain else own if own not in taken else ""
        taken.add(shown[row])
    return shown


def _require_distinct(given: Collection[Any]) -> None:
    if len({*given}) < len(given):
        raise ValueError("two tokens have the same id, or one has two")


def _content(folder: Path, settings: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """A file, and what `tokenizer.json` holds, or would hold if it were there."""
    if (path := folder / "tokenizer.json").exists():
        return path, read_json(path, dict)
    makers = {"vocab.txt": _word_piece, "merges.txt": _byte_level}
    makers |= dict.fromkeys(("spiece.model", "sentencepiece.bpe.model"), _sentence_piece)
    path = next((folder / name for name in makers if (folder / name).exists()), path)
    if path.name not in makers:
        raise CheckpointError(f"{folder}: no tokenizer.json, nor any of {', '.join(makers)}; download the whole folder")
    try:
        tokenizer, template = makers[path.name](path, settings)
        listed = [one for key in ("additional", "extra") for one in settings.get(f"{key}_special_tokens") or []]
        special = [one["content"] if isinstance(one, dict) else one for one in listed]
        special += [value for key, value in settings.items() if key.endswith("_token") and isinstance(value, str)]
        special += [token for token in (*_MARKS, *SPECIALS) if tokenizer.token_to_id(token) is not None]
        tokenizer.add_special_tokens([*dict.fromkeys(special)])
        if template:
            ends = [(token, tokenizer.token_to_id(token)) for token in template.split() if token != "$A"]
            tokenizer.post_processor = library().processors.TemplateProcessing(single=template, special_tokens=ends)
        content: dict[str, Any] = json.loads(tokenizer.to_str())
    except CheckpointError:
        raise
    except Exception as fault:  # the library raises no narrower one
        raise CheckpointError(f"{path}: {shorten(' '.join(str(fault).split()), 200)}; {_REMEDY}") from fault
    return path, content


def _word_piece(path: Path, settings: Mapping[str, Any]) -> tuple[Any, str]:
    """BERT's: Devlin et al. 2019, section 3."""
    _require_distinct(read_text(path).split("\n"))
    how = {key: settings[key] for key in ("clean_text", "strip_accents") if key in settings}
    how |= {"lowercase": settings.get("do_lower_case", True)}
    how |= {"handle_chinese_chars": settings.get("tokenize_chinese_chars", True)}
    return library().implementations.BertWordPieceTokenizer(str(path), **how), ""


def _byte_level(path: Path, settings: Mapping[str, Any]) -> tuple[Any, str]:
    """GPT-2's: Radford et al. 2019, section 2.2; and BART's, with both ends around a text."""
    vocabulary, space = path.with_name("vocab.json"), bool(settings.get("add_prefix_space"))
    _require_distinct((ids := read_json(vocabulary, dict)).values())
    tokenizer = library().implementations.ByteLevelBPETokenizer(str(vocabulary), str(path), add_prefix_space=space)
    return tokenizer, "<s> $A </s>" if {"<s>", "</s>"} <= ids.keys() else ""


def _sentence_piece(path: Path, settings: Mapping[str, Any]) -> tuple[Any, str]:
    """By a sentencepiece model: T5's and mT5's has their ids; fairseq's, of mBART and NLLB, begin with its own four.

    Those of M2M100 are in `vocab.json`.
    """
    lib, content = library(), read_file(path)
    try:
        SentencePieceTokenizer(TokenizerConfig(kind="marian"), content, Vocabulary(SPECIALS))
    except CheckpointError as fault:
        raise ValueError("not a sentencepiece model") from fault
    fields: list[tuple[int, dict[int, Any]]]
    fields = [(number, dict(message_fields(own))) for number, own in message_fields(content) if isinstance(own, bytes)]
    pieces = [(own[1].decode(), struct.unpack("<f", own[2])[0], own.get(3, 1)) for number, own in fields if number == 1]
    learned, normalized = (next(own for number, own in fields if number == part) for part in (2, 3))
    cleaners = [lib.normalizers.Precompiled(normalized[2])] if normalized.get(2) else []
    start = lib.pre_tokenizers.Metaspace(prepend_scheme="always")
    if path.name == "spiece.model":
        pieces += [(f"<extra_id_{one}>", 0.0, 3) for one in reversed(range(settings.get("extra_ids", 100)))]
        template, start = "$A </s>", lib.pre_tokenizers.Sequence([lib.pre_tokenizers.WhitespaceSplit(), start])
    else:
        pieces = [*((token, 0.0, 3) for token in ("<s>", "<pad>", "</s>", "<unk>")), *pieces[3:]]
        cleaners += [lib.normalizers.Strip(), lib.normalizers.Replace(lib.Regex(" {2,}"), " ")]
        language = settings.get("src_lang") or "en_XX"
        is_old = str(settings.get("tokenizer_class")).startswith("MBartTokenizer")
        template = f"$A </s> {language}" if is_old else f"{language} $A </s>"
    ids = {piece: row for row, (piece, _, _) in enumerate(pieces)}
    if (place := path.with_name("vocab.json")).exists():
        ids, template = read_json(place, dict), f"__{settings.get('src_lang') or 'en'}__ $A </s>"
    if learned.get(3, 1) == 2:  # BPE: of the pairs in a text, those that make the best piece are merged first
        parts = ((-score, one[:at], one[at:]) for one, score, kind in pieces if kind == 1 for at in range(1, len(one)))
        merges = [pair for _, *pair in sorted(parts) if {*pair, "".join(pair)} <= ids.keys()]
        model = lib.models.BPE(ids, [*map(tuple, merges)], unk_token="<unk>", fuse_unk=True)
    else:
        model = lib.models.Unigram([piece[:2] for piece in pieces], ids["<unk>"])
    tokenizer = lib.Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = lib.normalizers.Sequence(cleaners), start
    tokenizer.decoder = lib.decoders.Metaspace(prepend_scheme="always")
    return tokenizer, template
