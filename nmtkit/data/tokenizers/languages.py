"""The languages of imported multilingual models (mBART, M2M100, NLLB), each of which has a special token.

The token is put around a source, and before a target or as the decoder's first input. Its place is a setting of the
tokenizer, `TokenizerConfig.affixes`; `in_direction` chooses its language.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from nmtkit.core.errors import RecipeError
from nmtkit.data.text.config import TEXT_COLUMNS
from nmtkit.data.tokenizers.huggingface_tokenizer import (
    LANGUAGE,
    LANGUAGE_TOKEN,
    HuggingFaceTokenizer,
    missing_language_message,
)
from nmtkit.data.tokenizers.tokenizer import Tokenizer, TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS

Affixes = Mapping[str, Mapping[str, Sequence[str]]]

_LIST = "list"
"""The name that asks for all languages."""

_ISO_639 = """
af afr am amh ar arb as asm az azj ba bak be bel bg bul bn ben bo bod bs bos ca cat cs ces cy cym da dan de deu
el ell en eng eo epo es spa et est eu eus fa pes fi fin fo fao fr fra ga gle gd gla gl glg gu guj ha hau he heb
hi hin hr hrv ht hat hu hun hy hye id ind ig ibo is isl it ita ja jpn jv jav ka kat kk kaz km khm kn kan ko kor
ky kir lb ltz lg lug ln lin lo lao lt lit lv lvs mg plt mi mri mk mkd ml mal mn khk mr mar ms zsm mt mlt my mya
ne npi nl nld no nob nb nob nn nno oc oci pa pan pl pol ps pbt pt por qu quy ro ron ru rus rw kin sa san sd snd
si sin sk slk sl slv sm smo sn sna so som sq als sr srp su sun sv swe sw swh ta tam te tel tg tgk th tha ti tir
tk tuk tl tgl tn tsn tr tur tt tat uk ukr ur urd uz uzn vi vie wo wol xh xho yi ydd yo yor zh zho zu zul
"""
"""Two-letter codes of languages, each followed by the three-letter code that NLLB uses."""
_CODES = _ISO_639.split()
_THREE_LETTERS = dict(zip(_CODES[::2], _CODES[1::2], strict=True))
_TWO_LETTERS = {three: two for two, three in _THREE_LETTERS.items()}


def language_names(specials: Sequence[str]) -> list[str]:
    """Returns the special tokens that name languages, such as de_DE, deu_Latn or __de__."""
    return [token for token in specials if LANGUAGE_TOKEN.fullmatch(token)]


def find_language(language: str, names: Sequence[str]) -> str:
    """Returns the token of a language, which may be given without its region or underscores if one token matches.

    Raises a RecipeError that suggests the nearest names for a language that the model does not have.
    """
    if language == _LIST:
        raise RecipeError(f"the model has {len(names)} languages: {', '.join(sorted(names))}")
    matching = [name for name in names if language in (name, name.strip("_"))]
    if not matching:
        matching = [name for name in names if name.startswith(f"{language}_")]
    if len(matching) == 1:
        return matching[0]
    similar = matching or _similar_languages(language, names)
    count = f"the model has {len(names)} languages; --to list prints them"
    if not similar:
        raise RecipeError(f"no language {language!r} ({count})")
    raise RecipeError(f"no language {language!r}: did you mean {' or '.join(similar)}? ({count})")


def _similar_languages(language: str, names: Sequence[str]) -> list[str]:
    """Returns up to three names with the same code in another standard, else the most similar spelling."""
    code = re.split(r"[_-]", language.strip("_").lower())[0]
    codes = {code, _THREE_LETTERS.get(code, code), _TWO_LETTERS.get(code, code)}
    same = [name for name in names if name.strip("_").split("_")[0] in codes]
    if same:
        return sorted(same)[:3]
    return difflib.get_close_matches(language, names, n=1, cutoff=0.6)


def affixes_in_direction(
    affixes: Affixes, names: Sequence[str], source: str | None, target: str | None
) -> dict[str, dict[str, list[str]]]:
    """Returns affixes with these languages in the places of languages; None leaves a side as it is.

    `LANGUAGE` as a name leaves the choice open.
    """
    chosen = {side: {place: [*tokens] for place, tokens in places.items()} for side, places in affixes.items()}
    for side, language in zip(TEXT_COLUMNS, (source, target), strict=True):
        if language is None:
            continue
        name = LANGUAGE if language == LANGUAGE else find_language(language, names)
        places = chosen.setdefault(side, {})
        has_place = False
        for tokens in places.values():
            for position, token in enumerate(tokens):
                if token == LANGUAGE or token in names:
                    tokens[position] = name
                    has_place = True
        if not has_place:
            places["before"] = [name, *places.get("before", [])]
    return chosen


def chosen_languages(config: TokenizerConfig) -> dict[str, str | None]:
    """Returns the language of each side of a multilingual model, None where none is chosen; empty for other models."""
    names = language_names(config.specials)
    if not names:
        return {}
    affixes: Affixes = config.affixes  # type: ignore[assignment]
    chosen: dict[str, str | None] = dict.fromkeys(TEXT_COLUMNS)
    for side in TEXT_COLUMNS:
        for tokens in affixes.get(side, {}).values():
            for token in tokens:
                if token in names:
                    chosen[side] = token
    return chosen


def sides_without_language(config: TokenizerConfig) -> list[str]:
    """Returns the text columns for which a multilingual model needs a language that is not chosen yet."""
    missing = [side for side, language in chosen_languages(config).items() if language is None]
    # The decoder of an mBART that was imported by an older version begins with its language, which has no other token.
    ends_with_language = language_names(config.affixes.get("src", {}).get("after", []))
    if "tgt" in missing and "tgt" not in config.affixes and ends_with_language:
        missing.remove("tgt")
    return missing


def require_languages(config: TokenizerConfig) -> None:
    """Raises a RecipeError that asks for each language that is not chosen."""
    missing = sides_without_language(config)
    if missing:
        names = language_names(config.specials)
        sentences = [missing_language_message(side, names) for side in missing]
        raise RecipeError(f"the model is multilingual: {'; '.join(sentences)}")


def in_direction(tokenizers: Tokenizers, source: str | None = None, target: str | None = None) -> Tokenizers:
    """Returns the tokenizers of a multilingual model for a pair of languages; None leaves a side as it is.

    Raises a RecipeError for a language that the model does not have.
    """
    names = language_names(tokenizers.config.specials)
    affixes = affixes_in_direction(tokenizers.config.affixes, names, source, target)  # type: ignore[arg-type]
    return with_affixes(tokenizers, affixes)


def forces_first_token(tokenizers: Tokenizers) -> bool:
    """Whether translations begin with a token that is given, such as that of a language, which may not be known yet."""
    try:
        return bool(tokenizers.tgt.encode(""))
    except RecipeError:
        return True


def begins_with_language(tokenizers: Tokenizers) -> bool:
    """Whether the first input of the decoder is the language to write, as in mBART-25; `copy_first_input` sets it."""
    affixes: Affixes = tokenizers.config.affixes  # type: ignore[assignment]
    return bool(affixes.get("tgt", {}).get("start"))


def copy_first_input(embedding: nn.Embedding, tokenizers: Tokenizers) -> None:
    """Gives BOS the embedding of the target language, in models whose decoder begins with a language."""
    affixes: Affixes = tokenizers.config.affixes  # type: ignore[assignment]
    start = [*affixes.get("tgt", {}).get("start", [])]
    if start and start != [LANGUAGE]:
        (language,) = tokenizers.tgt.vocabulary.ids(start)
        with torch.no_grad():
            embedding.weight[BOS] = embedding.weight[language]


def tie_shared_rows(weight: nn.Parameter, tokenizer: Tokenizer | None) -> None:
    """Keeps rows of a matrix equal in training whose tokens are one token in the public model, such as BOS and EOS.

    Each of them gets the sum of their gradients, which is the gradient of the row in the public model.
    """
    if not isinstance(tokenizer, HuggingFaceTokenizer) or not weight.requires_grad:
        return
    groups = [torch.tensor(ids) for ids in tokenizer.shared_rows()]
    if groups:
        weight.register_hook(partial(_sum_rows, groups))  # type: ignore[no-untyped-call]


def _sum_rows(groups: Sequence[Tensor], gradient: Tensor) -> Tensor:
    summed = gradient.clone()
    for ids in groups:
        rows = ids.to(gradient.device)
        summed[rows] = gradient[rows].sum(0)
    return summed


def with_affixes(tokenizers: Tokenizers, affixes: Affixes) -> Tokenizers:
    """Returns imported tokenizers that put other special tokens around texts."""
    config = tokenizers.config.model_copy(update={"affixes": affixes})
    sides = {}
    for side, tokenizer in tokenizers.items():
        assert isinstance(tokenizer, HuggingFaceTokenizer)
        sides[side] = tokenizer.with_config(config, side)
    return Tokenizers(config, sides, tokenizers.labels, tokenizers.features)
