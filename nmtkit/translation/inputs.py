"""Text as a model reads it: ids of both sides, those that copying needs, and batches of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from nmtkit.data.batch import Batch, collate
from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.data.vocabulary import UNK
from nmtkit.errors import DataError


@dataclass(frozen=True)
class Source:
    """One source line, or as much of it as is read. An empty line has no ids."""

    ids: list[int]
    """Without EOS."""
    tokens: list[str]
    """As many tokens; for a model that copies, unknown words by their own spelling."""
    extended: list[int] | None = None
    """Their ids in the extended target vocabulary; None for a model that does not copy."""
    oov: tuple[str, ...] = ()
    """The words that the target vocabulary lacks; the i-th has the extended id V+i."""
    left_out: int = 0
    """Tokens at the end of the line that are not read."""


@dataclass(frozen=True)
class Target:
    """One given translation."""

    ids: list[int]
    """Without EOS."""
    extended: list[int]
    """The same, but words of its source that the vocabulary lacks have their extended ids."""


def refuse_one_text(**given: object) -> None:
    """Refuses a text where lines are meant, by the name of the argument: its letters would be taken for lines.

    Raises:
        DataError: one of them is a text.
    """
    for name, lines in given.items():
        if isinstance(lines, str | bytes):
            raise DataError(f"{name}: one text was given, and a list of texts is wanted: put it into a list")


def read_sources(
    tokenizers: TokenizerPair, lines: Sequence[str], copies: bool, limit: int | None = None
) -> list[Source]:
    """Cuts source lines into tokens.

    Args:
        tokenizers: of both sides.
        lines: text.
        copies: whether the model copies words.
        limit: the most tokens of a line that are read; None reads all.
    """
    sources = []
    for line, ids in zip(lines, tokenizers.src.encode_many(list(lines)), strict=True):
        if not line.strip():
            sources.append(Source([], []))
            continue
        read = ids[:limit]
        left_out = len(ids) - len(read)
        if copies:
            tokens = tokenizers.src.tokens(line)[:limit]
            extended, oov = tokenizers.tgt.vocabulary.extend(tokens)
            sources.append(Source(read, tokens, extended, tuple(oov), left_out))
        else:
            sources.append(Source(read, tokenizers.src.pieces(read), left_out=left_out))
    return sources


def read_targets(tokenizers: TokenizerPair, lines: Sequence[str], sources: Sequence[Source]) -> list[Target]:
    """Cuts the translations of some sources into tokens."""
    return [
        Target(ids, ids) if source.extended is None else target_of(tokenizers, tokenizers.tgt.tokens(line), source)
        for line, ids, source in zip(lines, tokenizers.tgt.encode_many(list(lines)), sources, strict=True)
    ]


def target_of(tokenizers: TokenizerPair, tokens: Sequence[str], source: Source) -> Target:
    """The ids of target tokens; what neither the vocabulary nor the source has is UNK."""
    vocabulary = tokenizers.tgt.vocabulary
    size = len(vocabulary)
    extended = vocabulary.extended_target_ids(tokens, source.oov)
    return Target([UNK if number >= size else number for number in extended], extended)


def make_batch(sources: Sequence[Source], targets: Sequence[Target] | None = None) -> Batch:
    """One batch of them on the CPU; all sources were read for the same model."""
    extended = [source.extended for source in sources if source.extended is not None]
    return collate(
        [source.ids for source in sources],
        None if targets is None else [target.ids for target in targets],
        extended or None,
        None if targets is None else [target.extended for target in targets],
        n_oov=max(len(source.oov) for source in sources),
    )
