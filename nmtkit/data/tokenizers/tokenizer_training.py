"""Learns tokenizers from an evenly spread sample of the training pairs, and label vocabularies from all pairs."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from nmtkit.core.columns import Column, label_type
from nmtkit.core.errors import RecipeError
from nmtkit.data.text.blocks import Block, Example
from nmtkit.data.text.checking import DataReport
from nmtkit.data.tokenizers.tokenizer import (
    SentencePieceTokenizer,
    Tokenizer,
    TokenizerConfig,
    WordTokenizer,
)
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import LabelVocabulary, split_labels
from nmtkit.data.tokenizers.wordpiece import WordPieceTokenizer

MAX_SAMPLE_CHARACTERS = 1 << 27
"""Maximum number of characters in a sample, which is reached by long documents."""
PAIR = (Column("src"), Column("tgt"))
"""The columns of a corpus of text pairs."""


class TokenizerSample:
    """At most `max_size` pairs, spread evenly over a corpus that is read once.

    Every `stride`-th pair is sampled; the stride doubles (1, 2, 4, 8, ...) whenever the sample becomes too large. If
    files have weights, a pair counts as often as its file's weight relative to the smallest weight, and may be sampled
    several times. Labels are counted in all examples.
    """

    def __init__(
        self, max_size: int, weights: Sequence[float] = (), columns: Sequence[Column] = PAIR
    ) -> None:
        self._max_size = max_size
        self.texts = [column.name for column in columns if column.type == "text"]
        self.label_type = label_type(columns)
        self.labels: Counter[str] = Counter()
        self._relative_weights = [weight / min(weights) for weight in weights]
        self._end = 0.0
        """Sum of the relative weights of all pairs seen."""
        self._stride = 1
        self.examples: list[Example] = []
        """The sampled pairs."""
        self._characters = 0
        """Number of characters in the sample."""
        self.total = 0
        """Number of pairs seen."""

    def add_block(self, block: Block) -> None:
        """Sees the pairs of the next block."""
        for pair in block.examples():
            self.add(pair)

    def add(self, pair: Example) -> None:
        """Sees the next pair, and adds it to the sample or skips it."""
        self.total += 1
        if pair.labels is not None:
            self.labels.update(split_labels(pair.labels, self.label_type))
        # A pair occupies an interval [begin, end) whose length is its weight, and is sampled once for each multiple of
        # the stride in the interval.
        begin = self._end
        weight = 1.0
        if self._relative_weights:
            weight = self._relative_weights[pair.file]
        self._end += weight
        first_multiple = math.ceil(begin / self._stride)
        end_multiple = math.ceil(self._end / self._stride)
        for _ in range(first_multiple, end_multiple):
            self.examples.append(pair)
            self._characters += _characters(pair)
        while len(self.examples) > self._max_size or (
            self._characters > MAX_SAMPLE_CHARACTERS and len(self.examples) > 1
        ):
            self.examples = self.examples[::2]
            self._characters = sum(map(_characters, self.examples))
            self._stride *= 2


def _characters(pair: Example) -> int:
    return len(pair.src) + len(pair.tgt or "")


def learn_from_sample(
    config: TokenizerConfig, sample: TokenizerSample, report: DataReport | None = None
) -> Tokenizers:
    """Learns tokenizers from a sample, and records their vocabulary sizes in the report."""
    if config.is_imported:
        raise RecipeError(
            f"tokenizer.kind: {config.kind} comes with an imported model and cannot be learned; take bpe"
        )
    lines: dict[str, list[str]] = {}
    for column in sample.texts:
        texts = [getattr(example, column) for example in sample.examples]
        lines[column] = [text for text in texts if text is not None]
    columns: dict[str, Tokenizer] = {}
    if config.joint and len(lines) == 2:
        all_lines = list(chain.from_iterable(lines.values()))
        columns = dict.fromkeys(lines, _learn(config, all_lines, "text"))
    else:
        descriptions = {"src": "source text", "tgt": "target text"}
        for column, texts in lines.items():
            column_config = config.for_column(column)
            columns[column] = _learn(column_config, texts, descriptions[column])
    labels = None
    if sample.label_type is not None:
        labels = LabelVocabulary.build(sample.labels)
    features = 0
    if sample.examples:
        rows = sample.examples[0].features
        if rows is not None:
            features = rows.shape[1]
    if report is not None and columns:
        facts: dict[str, Any] = {"kind": config.kind}
        for column, tokenizer in columns.items():
            facts[f"{column}_size"] = len(tokenizer.vocabulary)
        facts["pairs_used"] = len(sample.examples)
        facts["pairs"] = sample.total
        report.tokenizer = facts
    return Tokenizers(config=config, columns=columns, labels=labels, features=features)


def describe_shortfall(config: TokenizerConfig, tokenizers: Tokenizers) -> str:
    """Returns a note on vocabularies that are smaller than `vocab_size`; "" if all vocabularies are full."""
    facts: list[str] = []
    for column, tokenizer in tokenizers.items():
        settings = config if tokenizers.shared else config.for_column(column)
        size = len(tokenizer.vocabulary)
        if settings.kind not in ("bpe", "unigram") or size >= settings.vocab_size:
            continue
        fact = f"{size:,} of {settings.vocab_size:,}"
        if len(tokenizers) > 1 and not tokenizers.shared:
            fact = f"{column}: {fact}"
        if fact not in facts:  # equal for texts that share a vocabulary
            facts.append(fact)
    if not facts:
        return ""
    return f"note: the text has too few subwords to fill tokenizer.vocab_size; the vocabulary has {', '.join(facts)}"


def _learn(config: TokenizerConfig, lines: Sequence[str], what: str) -> Tokenizer:
    if config.cuts_words:
        return WordTokenizer.learn(config, lines, what)
    for name in config.special_tokens:
        # sentencepiece would cut the name out of the text, so that its letters might become unknown; WordPiece would
        # have the name twice. Names in brackets are not searched for, because they are rare in texts.
        if name[0] not in "<[" and any(name in line for line in lines):
            raise RecipeError(
                f"tokenizer.specials: the {what} contains {name!r}, but a special token must not occur in a text; "
                f"give it, or the tag, another name, such as <{name}>"
            )
    if config.kind == "wordpiece":
        return WordPieceTokenizer.learn(config, lines, what)
    return SentencePieceTokenizer.learn(config, lines, what)
