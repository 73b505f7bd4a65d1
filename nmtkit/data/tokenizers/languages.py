"""Languages of imported multilingual models (mBART, M2M100, NLLB), which have a special token for each language.

The token precedes or follows a source; it precedes a target or is the decoder's first input. The tokenizer setting
`TokenizerConfig.affixes` determines the token's place; `in_direction` chooses the language.
"""

import difflib
import re
from collections.abc import Sequence
from itertools import chain

from nmtkit.core.errors import RecipeError
from nmtkit.data.text.config import TEXT_COLUMNS
from nmtkit.data.tokenizers.huggingface_tokenizer import (
    LANGUAGE,
    LANGUAGE_TOKEN,
    Affixes,
    HuggingFaceTokenizer,
    missing_language_message,
)
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers

_LIST = "list"
"""Pseudo-language with which a user asks for the list of languages."""

_ISO_639 = """
af afr am amh ar arb as asm az azj ba bak be bel bg bul bn ben bo bod bs bos ca cat cs ces cy cym da dan de deu
el ell en eng eo epo es spa et est eu eus fa pes fi fin fo fao fr fra ga gle gd gla gl glg gu guj ha hau he heb
hi hin hr hrv ht hat hu hun hy hye id ind ig ibo is isl it ita ja jpn jv jav ka kat kk kaz km khm kn kan ko kor
ky kir lb ltz lg lug ln lin lo lao lt lit lv lvs mg plt mi mri mk mkd ml mal mn khk mr mar ms zsm mt mlt my mya
ne npi nl nld no nob nb nob nn nno oc oci pa pan pl pol ps pbt pt por qu quy ro ron ru rus rw kin sa san sd snd
si sin sk slk sl slv sm smo sn sna so som sq als sr srp su sun sv swe sw swh ta tam te tel tg tgk th tha ti tir
tk tuk tl tgl tn tsn tr tur tt tat uk ukr ur urd uz uzn vi vie wo wol xh xho yi ydd yo yor zh zho zu zul
"""
"""Two-letter language codes, each followed by the three-letter code that NLLB uses."""
_CODES = _ISO_639.split()
_THREE_LETTERS = dict(zip(_CODES[::2], _CODES[1::2], strict=True))
_TWO_LETTERS = {three: two for two, three in _THREE_LETTERS.items()}


def language_names(specials: Sequence[str]) -> list[str]:
    """Returns the special tokens that name languages, such as de_DE, deu_Latn or __de__."""
    return [token for token in specials if LANGUAGE_TOKEN.fullmatch(token)]


def find_language(language: str, names: Sequence[str]) -> str:
    """Returns the token of a language; region and underscores may be omitted if only one token matches.

    If the model does not have the language, raises a RecipeError that suggests similar names.
    """
    if language == _LIST:
        all_names = ", ".join(sorted(names))
        raise RecipeError(f"the model has {len(names)} languages: {all_names}")
    matching = [name for name in names if language in (name, name.strip("_"))]
    if not matching:
        matching = [name for name in names if name.startswith(f"{language}_")]
    if len(matching) == 1:
        return matching[0]
    suggestions = matching or _similar_languages(language, names)
    count = f"the model has {len(names)} languages; --to list prints them"
    if not suggestions:
        raise RecipeError(f"unknown language {language!r} ({count})")
    suggestion = " or ".join(suggestions)
    raise RecipeError(f"unknown language {language!r}: did you mean {suggestion}? ({count})")


def _similar_languages(language: str, names: Sequence[str]) -> list[str]:
    """Returns up to three names of the same language under other standards, or else the most similar name, if any."""
    code = re.split(r"[_-]", language.strip("_").lower())[0]
    equivalent_codes = {code, _THREE_LETTERS.get(code, code), _TWO_LETTERS.get(code, code)}
    same_language = []
    for name in names:
        name_code = name.strip("_").split("_")[0]
        if name_code in equivalent_codes:
            same_language.append(name)
    if same_language:
        return sorted(same_language)[:3]
    return difflib.get_close_matches(language, names, n=1, cutoff=0.6)


def affixes_in_direction(
    affixes: Affixes, names: Sequence[str], source: str | None, target: str | None
) -> dict[str, dict[str, list[str]]]:
    """Returns affixes in which these languages replace the previous ones.

    Args:
        affixes: special tokens by side and place; not modified.
        names: the model's languages.
        source: language of the sources. None leaves it unchanged; `LANGUAGE` leaves the choice open.
        target: language of the targets; None and `LANGUAGE` have the same meaning as for `source`.
    """
    chosen: dict[str, dict[str, list[str]]] = {}
    for side, places in affixes.items():
        chosen[side] = {place: [*tokens] for place, tokens in places.items()}
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
    """Returns the chosen language, or None, for each side of a multilingual model; empty for other models."""
    names = language_names(config.specials)
    if not names:
        return {}
    affixes: Affixes = config.affixes
    chosen: dict[str, str | None] = dict.fromkeys(TEXT_COLUMNS)
    for side in TEXT_COLUMNS:
        for token in chain.from_iterable(affixes.get(side, {}).values()):
            if token in names:
                chosen[side] = token
    return chosen


def sides_without_language(config: TokenizerConfig) -> list[str]:
    """Returns the text columns for which a multilingual model still needs a language."""
    languages = chosen_languages(config)
    missing = [side for side, language in languages.items() if language is None]
    # An mBART model imported by an older version has no affixes for targets, because BOS represents their language.
    source_suffix = config.affixes.get("src", {}).get("after", [])
    is_older_mbart = "tgt" not in config.affixes and language_names(source_suffix)
    if "tgt" in missing and is_older_mbart:
        missing.remove("tgt")
    return missing


def require_languages(config: TokenizerConfig) -> None:
    """Raises a RecipeError that asks for the languages that have not been chosen yet, if any."""
    missing = sides_without_language(config)
    if missing:
        names = language_names(config.specials)
        sentences = [missing_language_message(side, names) for side in missing]
        raise RecipeError(f"the model is multilingual: {'; '.join(sentences)}")


def in_direction(
    tokenizers: Tokenizers, source: str | None = None, target: str | None = None
) -> Tokenizers:
    """Returns a multilingual model's tokenizers for a pair of languages; None leaves a side unchanged.

    Raises a RecipeError for a language that the model does not have.
    """
    names = language_names(tokenizers.config.specials)
    affixes = affixes_in_direction(tokenizers.config.affixes, names, source=source, target=target)
    return with_affixes(tokenizers, affixes)


def forces_first_token(tokenizers: Tokenizers) -> bool:
    """Returns whether all translations begin with the same special token, such as the target language's token."""
    try:
        return bool(tokenizers.tgt.encode(""))
    except RecipeError:  # the language has not been chosen yet
        return True


def begins_with_language(tokenizers: Tokenizers) -> bool:
    """Returns whether the decoder's first input is the target language, as in mBART-25 (see `copy_first_input`)."""
    return bool(tokenizers.config.affixes.get("tgt", {}).get("start"))


def with_affixes(tokenizers: Tokenizers, affixes: Affixes) -> Tokenizers:
    """Returns copies of imported tokenizers that put these special tokens around texts."""
    config = tokenizers.config.model_copy(update={"affixes": affixes})
    columns = {}
    for column, tokenizer in tokenizers.items():
        assert isinstance(tokenizer, HuggingFaceTokenizer)
        columns[column] = tokenizer.with_config(config, column)
    return Tokenizers(
        config=config, columns=columns, labels=tokenizers.labels, features=tokenizers.features
    )
