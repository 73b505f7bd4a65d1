"""The languages of an imported multilingual model, each of which has a token: around a source, and before a target."""

from typing import Any

from nmtkit.core.errors import RecipeError
from nmtkit.core.registry import suggest_names
from nmtkit.corpus.config import TEXT_COLUMNS, language_tag
from nmtkit.data.huggingface_tokenizer import HuggingFaceTokenizer
from nmtkit.data.tokenizers import Tokenizers


def language_tokens(tokenizers: Tokenizers) -> list[str]:
    """The tokens of languages, such as de_DE, deu_Latn or __de__; none where a model has no such tokens."""
    return next((one.languages for one in tokenizers.values() if isinstance(one, HuggingFaceTokenizer)), [])


def untold_languages(tokenizers: Tokenizers) -> list[str]:
    """The same, where a model does not know which of them to write."""
    return [] if dict(tokenizers.config.affixes).get("tgt") else language_tokens(tokenizers)


def in_direction(tokenizers: Tokenizers, source: str | None, target: str | None) -> tuple[Tokenizers, str]:
    """The tokenizers for these languages, None leaving a side as it is, and the tags before every source.

    A language is named by its token, `de` being __de__, or de_DE if no other begins so; in a model that was trained
    here by its `tgt_lang`. Raises a RecipeError for a language that there is not.
    """
    names = language_tokens(tokenizers)
    if not names:
        if source is not None:
            raise RecipeError(f"--from {source}: only imported models with tokens of languages are told; leave it out")
        return tokenizers, "" if target is None else language_tag(target)
    around: dict[str, Any] = {str(side): own for side, own in tokenizers.config.affixes.items()}
    for column, language in zip(TEXT_COLUMNS, (source, target), strict=True):
        if language is None:
            continue
        named = [name for name in names if language in (name, name.strip("_"))]
        named = named or [name for name in names if name.startswith(f"{language}_")]
        if len(named) != 1:
            raise RecipeError(f"the model has no one language {language!r}; {suggest_names(language, names)}")
        before, after = (around.get(column, {}).get(place, []) for place in ("before", "after"))
        before, after = ([named[0] if one in names else one for one in part] for part in (before, after))
        around[column] = {"before": before if named[0] in before + after else [*named, *before], "after": after}
    config = tokenizers.config.model_copy(update={"affixes": around})
    sides = {
        side: HuggingFaceTokenizer(config, one.content(), one.vocabulary, side) for side, one in tokenizers.items()
    }
    return Tokenizers(config, sides), ""
