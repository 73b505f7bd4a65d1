"""Trains tokenizers on an evenly spread sample of the training pairs, and collects the labels of all pairs."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain, groupby
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
"""Maximum number of characters in a sample of several pairs that is not merged; only long documents reach it."""
PAIR = (Column("src"), Column("tgt"))
"""The columns of a corpus of text pairs."""


class TokenizerSample:
    """At most `max_size` pairs, spread evenly over a corpus that is read once. A pair is any example of the corpus.

    Every `stride`-th pair is sampled; the stride doubles (1, 2, 4, 8, ...) whenever the sample becomes too large. If
    files have weights, a pair counts as often as its file's weight relative to the smallest weight, and may be sampled
    several times. Labels are counted in all examples. A sample that was merged with another may exceed `max_size`.
    """

    def __init__(
        self, max_size: int, weights: Sequence[float] = (), columns: Sequence[Column] = PAIR
    ) -> None:
        self._max_size = max_size
        self.text_columns = [column.name for column in columns if column.type == "text"]
        self.label_type = label_type(columns)
        self.labels: Counter[str] = Counter()
        self._relative_weights = [weight / min(weights) for weight in weights]
        self._end = 0.0
        """Sum of the relative weights of all pairs seen so far."""
        self._stride = 1
        self.examples: list[Example] = []
        """The sampled pairs, with repetitions if files have weights.

        Item k is the pair whose interval contains k times the stride (see `add`). Every second item is therefore the
        sample for twice the stride.
        """
        self._n_characters = 0
        """Number of characters in the sample."""
        self.total = 0
        """Number of pairs seen so far."""

    def add_block(self, block: Block) -> None:
        """Adds each pair of the next block to the sample, or skips it.

        Pairs with unreadable text are treated like all others; callers must reject a corpus that has any.
        """
        for pair in block.examples():
            self.add(pair)

    def add(self, pair: Example) -> None:
        """Adds the next pair to the sample, or skips it."""
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
            self._n_characters += _count_characters(pair)
        while len(self.examples) > self._max_size or (
            self._n_characters > MAX_SAMPLE_CHARACTERS and len(self.examples) > 1
        ):
            self.examples = self.examples[::2]
            self._n_characters = sum(map(_count_characters, self.examples))
            self._stride *= 2

    def merge(self, other: "TokenizerSample") -> None:
        """Appends the sample of another corpus. No pairs may be added afterwards.

        The text columns and the type of the labels remain those of this sample. Labels of another type are left out,
        because they do not belong in the same vocabulary.
        """
        self.examples += other.examples
        self.total += other.total
        if other.label_type == self.label_type:
            self.labels += other.labels


def _count_characters(pair: Example) -> int:
    return len(pair.src) + len(pair.tgt or "")


def learn_from_sample(
    config: TokenizerConfig, sample: TokenizerSample, report: DataReport | None = None
) -> Tokenizers:
    """Trains tokenizers on a sample, and records their vocabulary sizes in the report.

    Also builds the vocabulary of labels and determines the number of features.

    Raises:
        RecipeError: the tokenizers cannot be trained with these settings, for example because `vocab_size` does not fit
            the sample, because the kind exists only in imported models, or because a special token occurs in the text.
        DataError: there is no text to train on, sentencepiece cannot train on it, or the features of the first example
            cannot be read.
    """
    if config.is_imported:
        raise RecipeError(
            f"tokenizer.kind: {config.kind} exists only in imported models and cannot be trained; use bpe"
        )
    lines_by_column: dict[str, list[str]] = {}
    for column in sample.text_columns:
        texts = [getattr(example, column) for example in sample.examples]
        lines_by_column[column] = [text for text in texts if text is not None]
    tokenizers: dict[str, Tokenizer] = {}
    if config.joint and len(lines_by_column) == 2:  # as in `Tokenizers.load`
        all_lines = list(chain.from_iterable(lines_by_column.values()))
        tokenizers = dict.fromkeys(lines_by_column, _learn(config, all_lines, "text"))
    else:
        descriptions = {"src": "source text", "tgt": "target text"}
        for column, lines in lines_by_column.items():
            column_config = config.for_column(column)
            tokenizers[column] = _learn(column_config, lines, descriptions[column])
    labels = None
    if sample.label_type is not None:
        labels = LabelVocabulary.build(sample.labels)
    n_features = 0
    if sample.examples:
        # All examples have the same number of features: `require_one_layout` compares the first examples of the files,
        # and `FeaturesFile.read` all others. This reads the example's file.
        rows = sample.examples[0].features
        if rows is not None:
            n_features = rows.shape[1]
    if report is not None and tokenizers:
        # Reports are stored with these keys. The kind is the common one, even if a column has a kind of its own.
        facts: dict[str, Any] = {"kind": config.kind}
        for column, tokenizer in tokenizers.items():
            facts[f"{column}_size"] = len(tokenizer.vocabulary)
        # A pair that was sampled several times counts once; its repetitions are adjacent.
        facts["pairs_used"] = sum(1 for _ in groupby(sample.examples, key=id))
        facts["pairs"] = sample.total
        report.tokenizer = facts
    return Tokenizers(config=config, columns=tokenizers, labels=labels, features=n_features)


def describe_shortfall(config: TokenizerConfig, tokenizers: Tokenizers) -> str:
    """Returns a note on vocabularies of kind bpe or unigram that are smaller than `vocab_size`; "" if these are full.

    There is no note on vocabularies of other kinds.
    """
    facts: list[str] = []
    for column, tokenizer in tokenizers.items():
        settings = config if tokenizers.shared else config.for_column(column)
        size = len(tokenizer.vocabulary)
        if settings.kind not in ("bpe", "unigram") or size >= settings.vocab_size:
            continue
        fact = f"{size:,} of {settings.vocab_size:,}"
        if len(tokenizers) > 1 and not tokenizers.shared:
            fact = f"{fact} for {column}"
        if fact not in facts:  # equal for texts that share a vocabulary
            facts.append(fact)
    if not facts:
        return ""
    return f"note: the text has too few subwords to fill tokenizer.vocab_size: {', '.join(facts)}"


def _learn(config: TokenizerConfig, lines: Sequence[str], what: str) -> Tokenizer:
    if config.cuts_words:  # `Vocabulary.build` leaves out words that are names of special tokens
        return WordTokenizer.learn(config, lines, what)
    for name in config.special_tokens:
        # sentencepiece would remove the name from the text, so that its letters might become unknown; a WordPiece
        # vocabulary might contain the name twice. Only the sample is searched. Names in brackets are not searched for,
        # because they are rare.
        if name[0] not in "<[" and any(name in line for line in lines):
            raise RecipeError(
                f"tokenizer.specials: the {what} contains {name!r}, but a special token must not occur in a text; "
                f"rename the special token or tag, for example to <{name}>"
            )
    if config.kind == "wordpiece":
        return WordPieceTokenizer.learn(config, lines, what)
    return SentencePieceTokenizer.learn(config, lines, what)
