"""The languages of an imported multilingual model, each of which has a token: around a source, and before a target."""

from typing import Any

from nmtkit.core.errors import RecipeError
from nmtkit.core.registry import suggest_names
from nmtkit.corpus.config import TEXT_COLUMNS
from nmtkit.data.huggingface_tokenizer import HuggingFaceTokenizer
from nmtkit.data.tokenizers import Tokenizers


def language_tokens(tokenizers: Tokenizers) -> list[str]:
    """The tokens of languages, such as de_DE, deu_Latn or __de__; none where a model has no such tokens."""
    return next((one.languages for one in tokenizers.values() if isinstance(one, HuggingFaceTokenizer)), [])


def in_direction(tokenizers: Tokenizers, source: str | None, target: str | None) -> Tokenizers:
    """The tokenizers for these languages, named by their tokens: `de` is __de__, or de_DE if no other begins so.

    None leaves a side as it is. Raises a RecipeError for a language that there is not.
    """
    names, given = language_tokens(tokenizers), {**tokenizers.config.affixes}
    around = {column: {"before": [], "after": [], **given.get(column, {})} for column in TEXT_COLUMNS}
    for column, language in zip(TEXT_COLUMNS, (source, target), strict=True):
        if language is None:
            continue
        named = [name for name in names if language in (name, name.strip("_"))]
        named = named or [name for name in names if name.startswith(f"{language}_")]
        if len(named) != 1:
            raise RecipeError(f"the model has no one language {language!r}; {suggest_names(language, names)}")
        own = {place: [named[0] if one in names else one for one in given] for place, given in around[column].items()}
        if named[0] not in own["before"] + own["after"]:
            own["before"] = [*named, *own["before"]]
        around[column] = own
    config = tokenizers.config.model_copy(update={"affixes": around})
    columns = {
        name: HuggingFaceTokenizer(config, one.content(), one.vocabulary, name) for name, one in tokenizers.items()
    }
    return Tokenizers(config, columns)
