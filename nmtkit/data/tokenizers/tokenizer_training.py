"""Trains tokenizers on evenly spread samples of the training examples, and collects the labels of all examples."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain, groupby
from typing import Any, assert_never

from nmtkit.core.columns import Column, label_type
from nmtkit.core.errors import RecipeError
from nmtkit.data.text.blocks import Block, Example
from nmtkit.data.text.checking import DataReport
from nmtkit.data.text.normalization import normalize
from nmtkit.data.tokenizers.tokenizer import (
    WORD_START,
    SentencePieceTokenizer,
    Tokenizer,
    TokenizerConfig,
    WordTokenizer,
)
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import LabelVocabulary, split_labels
from nmtkit.data.tokenizers.wordpiece import WordPieceTokenizer

MAX_SAMPLE_CHARACTERS = 1 << 27
"""Maximum number of characters in a sample, unless it consists of a single example.

A sample of 200,000 examples (`TRAIN_LINES`), as in preprocessing, reaches this limit if source and target together have
671 characters on average.
"""
PAIR = (Column("src"), Column("tgt"))
"""The columns of a corpus of text pairs."""


class TokenizerSample:
    """At most `max_size` examples, spread evenly over a corpus that is read once.

    Every `stride`-th example is sampled. The stride doubles (1, 2, 4, 8, ...) whenever the sample has more than
    `max_size` examples or more than `MAX_SAMPLE_CHARACTERS` characters. If files have weights, an example counts as
    often as its file's weight relative to the smallest weight, and may be sampled several times. The labels of all
    examples are counted, including examples that are not sampled. In these counts, each example counts once, whatever
    its weight.
    """

    def __init__(
        self, max_size: int, weights: Sequence[float] = (), columns: Sequence[Column] = PAIR
    ) -> None:
        assert max_size >= 1, f"a sample must have room for at least one example, not {max_size}"
        self._max_size = max_size
        self.text_columns = [column.name for column in columns if column.type == "text"]
        self.label_type = label_type(columns)
        self.labels: Counter[str] = Counter()
        # Without weights, `min` is never called: the loop calls it once per weight.
        self._relative_weights = [weight / min(weights) for weight in weights]
        self._end = 0.0
        """Sum of the relative weights of all examples seen so far."""
        self._stride = 1
        self.examples: list[Example] = []
        """The sampled examples, with repetitions if files have weights.

        Item k is the example whose interval contains k times the stride (see `add`). The items with even k therefore
        form the sample for twice the stride.
        """
        self._n_characters = 0
        """Number of characters in the sample."""
        self.total = 0
        """Number of examples seen so far."""

    def add_block(self, block: Block) -> None:
        """Adds each example of the next block to the sample, or skips it.

        Examples with unreadable text are treated like all others; callers must reject a corpus that has any.
        """
        for example in block.examples():
            self.add(example)

    def add(self, example: Example) -> None:
        """Adds the next example to the sample, or skips it."""
        self.total += 1
        if example.labels is not None:
            self.labels.update(split_labels(example.labels, self.label_type))
        # An example occupies an interval [begin, end) whose length is its weight, and is sampled once for each multiple
        # of the stride in the interval. Intervals follow each other without gaps, so the sample has one item for each
        # multiple of the stride below `begin`.
        weight = 1.0
        if self._relative_weights:
            weight = self._relative_weights[example.file]
        self._end += weight
        while len(self.examples) < math.ceil(self._end / self._stride):
            self.examples.append(example)
            self._n_characters += _count_characters(example)
            # The sample is thinned after each copy, because an example with a very large relative weight would
            # otherwise be copied billions of times first.
            while self._is_too_large():
                self.examples = self.examples[::2]
                self._n_characters = sum(map(_count_characters, self.examples))
                self._stride *= 2

    def _is_too_large(self) -> bool:
        size = len(self.examples)
        return size > self._max_size or (self._n_characters > MAX_SAMPLE_CHARACTERS and size > 1)


def _count_characters(example: Example) -> int:
    return len(example.src) + len(example.tgt or "")


def learn_from_samples(
    config: TokenizerConfig, samples: Sequence[TokenizerSample], report: DataReport | None = None
) -> Tokenizers:
    """Trains tokenizers on the samples of one or more corpora.

    Also builds the vocabulary of labels and determines the number of features. The text columns and the type of the
    labels are those of the first sample. Labels of another type are left out, because they do not belong in the same
    vocabulary. If there is text, the report receives the kind of tokenizer, the vocabulary sizes, the number of
    examples, and how many of them were used.

    Raises:
        RecipeError: the tokenizers cannot be trained with these settings, for example because `vocab_size` does not fit
            the samples, because a kind exists only in imported models, or because the samples contain the name of a
            special token; see `_require_no_special_tokens`.
        DataError: there is no text to train on, sentencepiece cannot train on it, or the features of the first example
            cannot be read.
    """
    text_columns = samples[0].text_columns
    column_configs = {column: config.for_column(column) for column in text_columns}
    for any_config in (config, *column_configs.values()):
        if any_config.is_imported:
            raise RecipeError(
                f"tokenizer.kind: {any_config.kind} exists only in imported models and cannot be trained; use bpe"
            )
    examples = list(chain.from_iterable(sample.examples for sample in samples))
    lines_by_column: dict[str, list[str]] = {}
    for column in text_columns:
        texts = [getattr(example, column) for example in examples]
        lines_by_column[column] = [text for text in texts if text is not None]
    tokenizers: dict[str, Tokenizer] = {}
    if config.joint and len(text_columns) == 2:  # as in `Tokenizers.load`
        all_lines = list(chain.from_iterable(lines_by_column.values()))
        joint_tokenizer = _learn(config, all_lines, "text")
        # Both columns must have the same object, because `Tokenizers.shared` compares vocabularies by identity.
        tokenizers = dict.fromkeys(text_columns, joint_tokenizer)
    else:
        descriptions = {"src": "source text", "tgt": "target text"}
        for column, lines in lines_by_column.items():
            tokenizers[column] = _learn(column_configs[column], lines, descriptions[column])
    n_features = 0
    if examples:
        # All examples have the same number of features: callers call `require_one_layout`, which compares the first
        # examples of all files, and `FeaturesFile.read` compares the other examples of a file with its first one.
        features = examples[0].features  # read from the file
        if features is not None:
            n_features = features.shape[1]
    if report is not None and tokenizers:
        # Reports are stored with these keys. "kind" is the shared setting, even if a column overrides it.
        facts: dict[str, Any] = {"kind": config.kind}
        for column, tokenizer in tokenizers.items():
            facts[f"{column}_size"] = len(tokenizer.vocabulary)
        # An example that was sampled several times counts once; its repetitions are adjacent.
        facts["pairs_used"] = sum(1 for _ in groupby(examples, key=id))
        facts["pairs"] = sum(sample.total for sample in samples)
        report.tokenizer = facts
    return Tokenizers(
        config=config, columns=tokenizers, labels=_label_vocabulary(samples), features=n_features
    )


def _label_vocabulary(samples: Sequence[TokenizerSample]) -> LabelVocabulary | None:
    """Returns the vocabulary of all labels that have the same type as those of the first sample."""
    first_type = samples[0].label_type
    if first_type is None:
        return None
    counts: Counter[str] = Counter()
    for sample in samples:
        if sample.label_type == first_type:
            counts.update(sample.labels)
    return LabelVocabulary.build(counts)


def describe_shortfall(config: TokenizerConfig, tokenizers: Tokenizers) -> str:
    """Returns a note on bpe and unigram vocabularies that are smaller than `vocab_size`; "" if there are none."""
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
    """Trains a tokenizer on lines; `what` describes them in messages."""
    kind = config.kind
    # `learn_from_samples` rejects the kinds of imported models.
    assert kind != "marian"
    assert kind != "huggingface"
    match kind:
        case "word" | "whitespace" | "pieces":
            # The lines may contain the name of a special token, such as MASK. Kinds `word` and `whitespace` read it as
            # the ordinary word `▁MASK`. A token without the marker that equals the name, as with kind `pieces` or in
            # "(MASK" with kind `word`, becomes unknown, because `Vocabulary.build` leaves it out.
            return WordTokenizer.learn(config, lines, what)
        case "wordpiece":
            _require_no_special_tokens(config, lines, what)
            return WordPieceTokenizer.learn(config, lines, what)
        case "bpe" | "unigram" | "char":
            _require_no_special_tokens(config, lines, what)
            return SentencePieceTokenizer.learn(config, lines, what)
        case _:
            assert_never(kind)


def _require_no_special_tokens(config: TokenizerConfig, lines: Sequence[str], what: str) -> None:
    """Raises a RecipeError if a line contains the name of a special token that does not begin with "<" or "[".

    sentencepiece would remove the name from the text, so that its letters might become unknown; a WordPiece vocabulary
    might contain the name twice. Names that begin with a bracket are not searched for, because texts rarely contain
    them. Only the sample is searched, not the whole corpus.
    """
    names = [name for name in config.special_tokens if name[0] not in "<["]
    if not names:
        return
    for line in lines:
        # The tokenizer reads the text in this form, so the name matters only if it occurs in this form. With the rules
        # nfkc, the form is only approximate, because sentencepiece's own rules differ from Unicode's NFKC.
        text = line.lower() if config.lowercase else line
        text = normalize(text.replace(WORD_START, " "), config.normalization)
        for name in names:
            if name in text:
                raise RecipeError(
                    f"tokenizer.specials: the {what} contains {name!r}, but a special token must not occur in a text; "
                    f"rename the special token or tag, for example to <{name}>"
                )
