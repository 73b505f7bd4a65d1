"""Learning tokenizers from an even sample of the training pairs, and the labels of all of them."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from nmtkit.core.columns import Column, label_type
from nmtkit.core.errors import RecipeError
from nmtkit.data.text.blocks import Block, Example
from nmtkit.data.text.checking import DataReport
from nmtkit.data.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer, TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import LabelVocabulary, split_labels
from nmtkit.data.tokenizers.wordpiece import WordPieceTokenizer

MAX_SAMPLE_CHARACTERS = 1 << 27
"""Limits a sample of long documents."""
PAIR = (Column("src"), Column("tgt"))
"""The columns of two texts."""


class TokenizerSample:
    """At most `most` pairs, spread evenly over a corpus that is read once.

    Every `stride`-th pair is taken; the stride doubles (1, 2, 4, 8, ...) whenever the sample becomes too large. With
    weights a pair counts as often as its file's weight relative to the smallest one, and may be taken several times.
    Labels are counted in all examples.
    """

    def __init__(self, most: int, weights: Sequence[float] = (), columns: Sequence[Column] = PAIR) -> None:
        self._most = most
        self.texts = [column.name for column in columns if column.type == "text"]
        self.label_type = label_type(columns)
        self.labels: Counter[str] = Counter()
        self._lengths = [weight / min(weights) for weight in weights]
        self._end = 0.0
        self._stride = 1
        self._characters = 0
        self.kept: list[Example] = []
        self.total = 0
        """Pairs seen."""

    def add_block(self, block: Block) -> None:
        """Samples from the next pairs."""
        for pair in block.examples():
            self.add(pair)

    def add(self, pair: Example) -> None:
        """Takes or skips the next pair."""
        self.total += 1
        if pair.labels is not None:
            self.labels.update(split_labels(pair.labels, self.label_type))
        begin = self._end
        self._end += self._lengths[pair.file] if self._lengths else 1.0
        # Once for each multiple of the stride from its begin to before its end.
        for _ in range(math.ceil(self._end / self._stride) - math.ceil(begin / self._stride)):
            self.kept.append(pair)
            self._characters += _characters(pair)
        while len(self.kept) > self._most or (self._characters > MAX_SAMPLE_CHARACTERS and len(self.kept) > 1):
            self.kept = self.kept[::2]
            self._characters = sum(map(_characters, self.kept))
            self._stride *= 2


def _characters(pair: Example) -> int:
    return len(pair.src) + len(pair.tgt or "")


def learn_from_sample(config: TokenizerConfig, sample: TokenizerSample, report: DataReport | None = None) -> Tokenizers:
    """Learns tokenizers from a sample, and records their sizes in the report."""
    if config.is_imported:
        raise RecipeError(f"tokenizer.kind: {config.kind} comes with an imported model and cannot be learned; take bpe")
    lines = {name: [text for pair in sample.kept if (text := getattr(pair, name)) is not None] for name in sample.texts}
    columns: Mapping[str, Tokenizer]
    if config.joint and len(lines) == 2:
        columns = dict.fromkeys(lines, _learn(config, [*chain.from_iterable(lines.values())], "text"))
    else:
        called = {"src": "source text", "tgt": "target text"}
        columns = {name: _learn(config.for_column(name), texts, called[name]) for name, texts in lines.items()}
    labels = LabelVocabulary.build(sample.labels) if sample.label_type else None
    rows = sample.kept[0].features if sample.kept else None
    tokenizers = Tokenizers(config, columns, labels, 0 if rows is None else rows.shape[1])
    if report is not None and columns:
        sizes = {f"{name}_size": len(tokenizer.vocabulary) for name, tokenizer in columns.items()}
        report.tokenizer = {"kind": config.kind, **sizes, "pairs_used": len(sample.kept), "pairs": sample.total}
    return tokenizers


def describe_shortfall(config: TokenizerConfig, tokenizers: Tokenizers) -> str:
    """A note if a text has fewer subwords than its vocabulary was meant to have; empty if it has enough."""
    facts = []
    for name, tokenizer in tokenizers.items():
        settings = config if tokenizers.shared else config.for_column(name)
        has_fewer = settings.kind in ("bpe", "unigram") and len(tokenizer.vocabulary) < settings.vocab_size
        side = "" if tokenizers.shared or len(tokenizers) == 1 else f"{name}: "
        fact = f"{side}{len(tokenizer.vocabulary):,} of {settings.vocab_size:,}"
        if has_fewer and fact not in facts:
            facts.append(fact)
    if not facts:
        return ""
    return f"note: the text has too few subwords to fill tokenizer.vocab_size; the vocabulary has {', '.join(facts)}"


def _learn(config: TokenizerConfig, lines: Sequence[str], what: str) -> Tokenizer:
    for name in config.special_tokens if not config.cuts_words else ():
        if name[0] not in "<[" and any(name in line for line in lines):
            raise RecipeError(
                f"tokenizer.specials: the {what} has {name!r} in it, and would be learned without; give the special "
                f"token, or tag, a name that no text has, such as <{name}>"
            )
    if config.kind == "wordpiece":
        return WordPieceTokenizer.learn(config, lines, what)
    return (WordTokenizer if config.cuts_words else SentencePieceTokenizer).learn(config, lines, what)
