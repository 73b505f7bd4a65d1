"""Tokenizers of public models: `tokenizer.json`, or an equivalent built from older files."""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from nmtkit.convert.external_files import read_json
from nmtkit.convert.huggingface.older_tokenizers import (
    REMEDY,
    older_content,
    read_settings,
    require_distinct,
)
from nmtkit.convert.vocabulary import Maps, map_vocabulary
from nmtkit.core.errors import CheckpointError, shorten
from nmtkit.core.settings import parse
from nmtkit.data.text.config import TEXT_COLUMNS
from nmtkit.data.tokenizers.huggingface_tokenizer import (
    LANGUAGE,
    LANGUAGE_TOKEN,
    SENTINEL,
    HuggingFaceTokenizer,
    library,
    parse_tokenizer,
)
from nmtkit.data.tokenizers.tokenizer import WORD_START, TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import EOS, SPECIALS

_MASK = "<mask>"


def read_tokenizers(
    folder: Path,
    special: Sequence[int | str],
    size: int,
    columns: Sequence[str] = TEXT_COLUMNS,
    first: int | None = None,
    model_type: str = "",
) -> tuple[Tokenizers, Maps]:
    """Returns a folder's tokenizer for these columns, and its tokens' rows in matrices of `size` rows.

    `special` are the ids or tokens of padding, the decoder's first input and the end. The tokens
    that the template adds around a text become affixes of all texts, except for the first input and
    the end, which are always added. In models with a source, a token `first` begins every output.
    mBART-25's template puts the source language after the end, and its decoder's first input is the
    target language.
    """
    settings = read_settings(folder)
    place = folder / "tokenizer.json"
    if place.exists():
        content = read_json(place, dict)
    else:
        place, content = older_content(folder, settings, model_type)
    try:
        model = content["model"]
        if isinstance(model["vocab"], dict):
            require_distinct(model["vocab"].values())
        # BPE dropout is for training; it would tokenize equal texts differently.
        model["dropout"] = None
        for token in content["added_tokens"]:
            if SENTINEL.fullmatch(token["content"]):
                token["special"] = False  # so that the token is recognized in text
        text = json.dumps(content, ensure_ascii=False)
        tokenizer = parse_tokenizer(text)
        ids = tokenizer.get_vocab()
        pad, start, end = (ids[token] if isinstance(token, str) else token for token in special)
        _require_bytes(tokenizer, ids)
        last = max(*ids.values(), pad, start, end, first or 0)
        if last >= size:
            raise ValueError(
                f"a token has the id {last}, but the weights have rows for only {size:,} tokens"
            )
    except (CheckpointError, ValueError, KeyError, TypeError) as fault:
        raise CheckpointError(f"{place}: {shorten(str(fault), 200)}; {REMEDY}") from fault
    shown, further = _names_of_rows(tokenizer, size, settings.mask_token)
    unknown = tokenizer.token_to_id(str(settings.unk_token or model.get("unk_token")))
    if unknown is None:
        unknown = size if model.get("unk_id") is None else int(model["unk_id"])
    template = tokenizer.encode("a")
    marks = template.special_tokens_mask
    languages = {row: shown[row] for row in further if LANGUAGE_TOKEN.fullmatch(shown[row])}
    first_language = None
    start_is_language = start in languages
    if model_type == "mbart" and template.ids[-1] in languages:
        # If the settings do not specify a language, the language in the template is a placeholder.
        first_language = start if start_is_language else template.ids[-1]
        start = first_language
    map_ = map_vocabulary(place, shown, (pad, start, end, unknown), size, further=further)
    rows, tokens = map_.rows.tolist(), map_.vocabulary.tokens
    named = dict(zip(rows, tokens, strict=True))  # a shared row gets the last token, the end
    before = [named[row] for row in template.ids[: marks.index(0) if 0 in marks else 0]]
    marked = [named[row] for row, mark in zip(template.ids, marks, strict=True) if mark]
    after = marked[len(before) :]
    affixes = {
        "before": before[1:] if before and template.ids[0] == start else before,
        "after": after[:-1] if after[-1:] == [SPECIALS[EOS]] else after,
    }
    around = dict.fromkeys(columns, affixes)
    if "src" in columns:
        around["tgt"] = {"before": [] if first is None else [named[first]], "after": []}
        if first_language is not None:
            around["tgt"] = {"start": [named[first_language] if start_is_language else LANGUAGE]}
        if languages:
            around = _with_open_languages(
                around, {*languages.values()}, settings.src_lang is not None
            )
    given = {
        "kind": "huggingface",
        "vocab_size": max(5, len(tokens)),
        "joint": len(columns) > 1,
        "normalization": "none",
        "specials": tokens[len(SPECIALS) : map_.vocabulary.n_specials],
        "affixes": {column: own for column, own in around.items() if any(own.values())},
    }
    config = parse(TokenizerConfig, given, str(place))
    cleans_up = settings.clean_up_tokenization_spaces and model.get("type") != "BPE"
    packed = HuggingFaceTokenizer.pack(text, rows, cleans_up)
    sides = {
        column: HuggingFaceTokenizer(config, packed, map_.vocabulary, column) for column in columns
    }
    return Tokenizers(config, sides), (map_, map_)


def _names_of_rows(tokenizer: Any, size: int, mask: str | None) -> tuple[dict[int, str], list[int]]:
    """Returns the token of each row, and the rows of special tokens and sentinels."""
    names = _shown_names(tokenizer, size)
    added = tokenizer.get_added_tokens_decoder()
    special_rows = []
    for row, token in sorted(added.items()):
        if token.special or SENTINEL.fullmatch(token.content):
            special_rows.append(row)
            names[row] = _special_name(row, token.content, mask)
    return names, special_rows


def _special_name(row: int, name: str, mask: str | None) -> str:
    """Returns our name for a special token."""
    if name == mask:
        return _MASK
    if name in SPECIALS or name.split() != [name] or WORD_START in name:
        return f"<{row}>"
    return name


def _with_open_languages(
    around: Mapping[str, Mapping[str, Sequence[str]]], names: set[str], source_is_named: bool
) -> dict[str, dict[str, list[str]]]:
    """Returns a multilingual model's affixes, with `LANGUAGE` where the folder does not fix the language.

    If the folder specifies a source language but no target language, the source language is only the
    library's default, which is probably not the language of the user's text.
    """
    target = {place: [*tokens] for place, tokens in around["tgt"].items()}
    if not (names | {LANGUAGE}) & {*chain(*target.values())}:
        target["before"] = [LANGUAGE, *target["before"]]
    source = {place: [*tokens] for place, tokens in around["src"].items()}
    if LANGUAGE in chain(*target.values()) or not source_is_named:
        for tokens in source.values():
            tokens[:] = [LANGUAGE if token in names else token for token in tokens]
    return {"src": source, "tgt": target}


def _require_bytes(tokenizer: Any, ids: Mapping[str, int]) -> None:
    """Rejects a byte-level tokenizer without a token for every byte."""
    if type(tokenizer.decoder).__name__ != "ByteLevel":
        return
    missing = {*library().pre_tokenizers.ByteLevel.alphabet()} - {*ids}
    if missing:
        raise ValueError(f"{len(missing)} of 256 bytes have no token, so text would be lost")


def _shown_names(tokenizer: Any, size: int) -> dict[int, str]:
    """Returns a unique name for each token, with "▁" at word starts; falls back to its original or an empty name."""
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
