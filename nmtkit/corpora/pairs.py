"""What every reader of a public corpus gives: one pair of texts after the other."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """One sentence and its translation, or one article and its summary; each is one line without a line end."""

    src: str
    """Source text."""
    tgt: str
    """Target text."""
    group: str = ""
    """What may not be divided between splits: pairs of one page, one family of packages, one source sentence. Empty:
    the source text itself."""
    split: str = ""
    """"train", "valid" or "test" where the corpus itself says so; empty where it is for `splits` to decide."""
