"""Tags of corpora are special tokens of the tokenizer: see `SplitFiles.tags`."""

from typing import Any

from nmtkit.corpus.config import DataConfig, SplitFiles, joined_corpora
from nmtkit.data.tokenizer import TokenizerConfig


def with_tags_as_specials(given: Any) -> Any:
    """The values of a recipe, where a tokenizer that is to be learned has the tags of the corpora as special tokens."""
    try:
        train, tokenizer = joined_corpora(given["data"]["train"]), given.get("tokenizer", {})
    except (ValueError, TypeError, KeyError):  # what is wrong is told when the group is checked
        return given
    if not isinstance(train, dict) or not isinstance(tokenizer, dict) or given.get("init_from"):
        return given
    tags = [tag for tags in train.get("tags", ()) for tag in str(tags).split()]
    listed = tokenizer.get("specials", [])
    if not tags or not isinstance(listed, list):
        return given
    return {**given, "tokenizer": {**tokenizer, "specials": [*dict.fromkeys([*listed, *tags])]}}


def require_known_tags(data: DataConfig, tokenizer: TokenizerConfig) -> None:
    """ValueError for a tag that is no special token of the tokenizer."""
    for split, files in vars(data).items():
        for tags in files.tags if isinstance(files, SplitFiles) else ():
            if unknown := [tag for tag in tags.split() if tag not in tokenizer.specials]:
                raise ValueError(
                    f"`data`: {split}: the tokenizer has no tag {unknown[0]}, only the special tokens "
                    f"{', '.join(tokenizer.specials) or 'of every vocabulary'}; leave the tag out, or learn a "
                    "tokenizer with data.train that has it"
                )
