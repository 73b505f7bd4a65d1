"""Tokenizers of public models: `tokenizer.json`, or one made of the older files that are in its place."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.core.errors import CheckpointError, shorten
from nmtkit.core.settings import parse
from nmtkit.corpus.config import TEXT_COLUMNS
from nmtkit.data.huggingface_tokenizer import HuggingFaceTokenizer, library, parse_tokenizer
from nmtkit.data.tokenizer import WORD_START, TokenizerConfig
from nmtkit.data.tokenizers import Tokenizers
from nmtkit.data.vocabulary import EOS, SPECIALS
from nmtkit.interchange.external_files import read_json, read_text
from nmtkit.interchange.vocabulary import Maps, map_vocabulary

_MASK = "<mask>"
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
        rows_used = [*model["vocab"].values()] if isinstance(model["vocab"], dict) else [*range(len(model["vocab"]))]
        model["dropout"] = None  # of training; it would cut the same text in several ways
        text = json.dumps(content, ensure_ascii=False)
        tokenizer = parse_tokenizer(text)
        added, ids = tokenizer.get_added_tokens_decoder(), tokenizer.get_vocab()
        pad, start, end = (ids[one] if isinstance(one, str) else one for one in special)
        if len({*rows_used}) < len(rows_used):
            raise ValueError("two tokens have the same id")
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


def _content(folder: Path, settings: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """A file, and what `tokenizer.json` holds, or would hold if it were there."""
    made = library().implementations
    tokens = {value for key, value in settings.items() if key.endswith("_token") and isinstance(value, str)}
    if (path := folder / "tokenizer.json").exists():
        return path, read_json(path, dict)
    try:
        if (path := folder / "vocab.txt").exists():  # BERT's: Devlin et al. 2019, section 3
            words = read_text(path).split("\n")
            if len({*words}) < len(words):
                raise ValueError("a token stands there twice")
            same = ("clean_text", "strip_accents")
            how = {key: settings[key] for key in same if key in settings} | {
                "lowercase": settings.get("do_lower_case", True),
                "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
            }
            tokenizer = made.BertWordPieceTokenizer(str(path), **how)
            tokens |= {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
        elif (path := folder / "merges.txt").exists():  # GPT-2's: Radford et al. 2019, section 2.2; and BART's
            ids = read_json(folder / "vocab.json", dict)
            space = bool(settings.get("add_prefix_space"))
            tokenizer = made.ByteLevelBPETokenizer(str(path.with_name("vocab.json")), str(path), add_prefix_space=space)
            if {"<s>", "</s>"} <= {*ids}:
                ends = [(token, ids[token]) for token in ("<s>", "</s>")]
                template = library().processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
                tokenizer.post_processor = template
            tokens |= {"<|endoftext|>", *SPECIALS, _MASK} & {*ids}
        else:
            names = "tokenizer.json, vocab.txt, merges.txt"
            raise CheckpointError(f"{folder}: no tokenizer (none of {names}); download the whole folder")
        known = tokenizer.get_vocab()
        tokenizer.add_special_tokens(sorted({*tokens} & {*known}, key=known.__getitem__))
    except CheckpointError:
        raise
    except Exception as fault:  # the library raises no narrower one
        raise CheckpointError(f"{path}: {shorten(' '.join(str(fault).split()), 200)}; {_REMEDY}") from fault
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return path, content
