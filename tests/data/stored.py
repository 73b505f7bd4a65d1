"""Examples as blocks, and put into a store as preprocessing does it."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from nmtkit.data.batches.encoding import encode_split
from nmtkit.data.batches.pair_encoder import PairEncoder
from nmtkit.data.batches.progress import PreprocessingProgress
from nmtkit.data.text.blocks import Block, Example
from nmtkit.data.text.checking import DataReport, PairChecker
from nmtkit.data.text.config import DataConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers


def checker(**settings: object) -> PairChecker:
    """What judges pairs by these settings of the data."""
    return PairChecker(
        DataConfig.model_validate({"train": {"src": "a", "tgt": "b"}, **settings}), DataReport()
    )


def blocks_of(
    examples: Iterable[Example], split: str = "train", size: int = 4096
) -> Iterator[Block]:
    coming = iter(examples)
    while some := list(islice(coming, size)):
        yield Block(
            split=split,
            src_file="src",
            tgt_file="tgt",
            first=1,
            src=[example.src for example in some],
            tgt=None if some[0].tgt is None else [example.tgt or "" for example in some],
            position=[example.file for example in some],
            columns={
                kind: [getattr(example, kind) for example in some]
                for kind in ("src_words", "tgt_words")
                if getattr(some[0], kind) is not None
            },
            offset=some[0].line - 1,
            links=None
            if some[0].links is None
            else [example.links or frozenset() for example in some],
        )


def write_store(
    folder: Path,
    name: str,
    examples: Iterable[Example],
    tokenizers: Tokenizers,
    checker: PairChecker,
    keep_text: bool = False,
    copying: bool = False,
    fingerprint: str = "",
    processes: int = 1,
    progress: PreprocessingProgress | None = None,
    size: int = 4096,
) -> int:
    """Stores the examples of one split; gives how many there are."""
    encoder = PairEncoder(name, tokenizers, checker.config, keep_text, copying)
    return encode_split(
        folder, blocks_of(examples, name, size), encoder, checker, fingerprint, processes, progress
    )
