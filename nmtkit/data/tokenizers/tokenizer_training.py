"""Trains tokenizers on evenly spread samples of the training examples, and collects the labels of all examples."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import assert_never

from nmtkit.core import columns as column_types
from nmtkit.core.columns import Column
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
"""Maximum number of characters in a sample, unless it consists of a single example. Only long texts reach it: a sample
of `TRAIN_LINES` pairs may have about 670 characters per pair."""
PAIR_COLUMNS = (Column("src"), Column("tgt"))
"""The columns of a corpus of text pairs."""


class TokenizerSample:
    """A sample of a corpus, spread evenly over its examples, and the counts of its labels. The corpus is read once.

    Without weights, every `stride`-th example is sampled. With weights, an example occupies an interval of the length
    w / m, where w is the weight of its file and m the smallest weight, and is sampled once for each multiple of the
    stride in its interval. The stride doubles (1, 2, 4, 8, ...) whenever the sample has more than `max_size` examples
    or more than `MAX_SAMPLE_CHARACTERS` characters. Labels are counted once for each example, whether or not it is
    sampled.

    Args:
        max_size: maximum number of examples in the sample.
        weights: a positive weight for each file of the corpus, in the order of `Example.file`; empty if all examples
            count once.
        columns: the columns of the corpus.
    """

    def __init__(
        self, max_size: int, weights: Sequence[float] = (), columns: Sequence[Column] = PAIR_COLUMNS
    ) -> None:
        assert max_size >= 1, f"a sample must have room for at least one example, not {max_size}"
        self._max_size = max_size
        self.text_columns = [column.name for column in columns if column.type == "text"]
        """Names of the columns with text: "src", "tgt", both, or none if the task reads only features."""
        self.label_type = column_types.label_type(columns)
        """Type of the labels, "label" or "labels"; None if there are none."""
        self.labels: Counter[str] = Counter()
        """How often each label occurs."""
        smallest_weight = min(weights, default=1.0)
        assert smallest_weight > 0, "the weights of files must be positive"
        self._relative_weights = [weight / smallest_weight for weight in weights]
        self._total_weight = 0.0
        """Sum of the relative weights of all examples seen so far: the end of the last interval."""
        self._stride = 1
        self.examples: list[Example] = []
        """The sampled examples, with repetitions if files have weights.

        Item k is the example whose interval contains k times the stride (see `add`). The items with even k therefore
        form the sample for twice the stride.
        """
        self._n_characters = 0
        """Number of characters in the sample."""
        self.examples_seen = 0
        """Number of examples seen so far."""

    def add_block(self, block: Block) -> None:
        """Adds each example of the next block to the sample, or skips it.

        Examples with unreadable text are treated like all others; callers must reject a corpus that has any.
        """
        for example in block.examples():
            self.add(example)

    def add(self, example: Example) -> None:
        """Adds the next example to the sample, or skips it."""
        self.examples_seen += 1
        if example.labels is not None:
            self.labels.update(split_labels(example.labels, self.label_type))
        # The intervals of the examples follow each other without gaps, and include their beginning, but not their end.
        # So after each example, the sample has one item for each multiple of the stride below `_total_weight`.
        weight = 1.0
        if self._relative_weights:
            weight = self._relative_weights[example.file]
        self._total_weight += weight
        while len(self.examples) < math.ceil(self._total_weight / self._stride):
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

    Also builds the vocabulary of labels and determines the number of features. Labels of another type than those of the
    first sample are left out, because they do not belong in the same vocabulary.

    Args:
        config: the settings of the tokenizers.
        samples: at least one sample. The first one determines the text columns and the type of the labels; in training,
            the first is the recipe's sample; the rest belong to its stages. Each sample has its own limit and stride,
            so large corpora do not contribute in proportion to their sizes.
        report: if there is text, receives the kind and size of the tokenizers and the number of examples, as
            `DataReport.tokenizer`.

    Raises:
        RecipeError: the tokenizers cannot be trained with these settings, for example because `vocab_size` does not fit
            the samples, because a kind exists only in imported models, or because the samples contain the name of a
            special token; see `_require_no_special_tokens`.
        DataError: there is no text to train on, sentencepiece cannot train on it, or the features of the first example
            cannot be read.
    """
    text_columns = samples[0].text_columns
    column_configs = {column: config.for_column(column) for column in text_columns}
    for applied_config in (config, *column_configs.values()):
        if applied_config.is_imported:
            raise RecipeError(
                f"tokenizer.kind: {applied_config.kind} exists only in imported models and cannot be trained; use bpe"
            )
    examples = list(chain.from_iterable(sample.examples for sample in samples))
    lines_by_column: dict[str, list[str]] = {}
    for column in text_columns:
        texts = [getattr(example, column) for example in examples]
        lines_by_column[column] = [text for text in texts if text is not None]
    tokenizers: dict[str, Tokenizer] = {}
    # Same condition as in `Tokenizers.load`. If `joint` is true, recipes reject per-column settings.
    if config.joint and len(text_columns) == 2:
        all_lines = list(chain.from_iterable(lines_by_column.values()))
        joint_tokenizer = _learn(config, all_lines, "text")
        # Both columns must have the same object, because `Tokenizers.shared` compares vocabularies by identity.
        tokenizers = dict.fromkeys(text_columns, joint_tokenizer)
    else:
        descriptions = {"src": "source text", "tgt": "target text"}
        for column, lines in lines_by_column.items():
            tokenizers[column] = _learn(column_configs[column], lines, descriptions[column])
    if report is not None and tokenizers:
        report.tokenizer = _describe_training(config, tokenizers, samples)
    return Tokenizers(
        config=config,
        columns=tokenizers,
        labels=_label_vocabulary(samples),
        features=_number_of_features(examples),
    )


def describe_shortfall(config: TokenizerConfig, tokenizers: Tokenizers) -> str:
    """Returns a note on bpe and unigram vocabularies that are smaller than `vocab_size`; "" if there are none.

    Other kinds are not reported, because a small vocabulary is usual with them. Word and character vocabularies contain
    every sufficiently frequent word or character, and wordpiece stops when no merge increases the likelihood.
    """
    shortfalls: list[str] = []
    for column, tokenizer in tokenizers.items():
        settings = config if tokenizers.shared else config.for_column(column)
        size = len(tokenizer.vocabulary)
        if settings.kind not in ("bpe", "unigram") or size >= settings.vocab_size:
            continue
        shortfall = f"{size:,} of {settings.vocab_size:,}"
        if len(tokenizers) > 1 and not tokenizers.shared:
            shortfall = f"{shortfall} for {column}"
        if shortfall not in shortfalls:  # columns that share a vocabulary have the same one
            shortfalls.append(shortfall)
    if not shortfalls:
        return ""
    return (
        f"note: the text has too few subwords to fill tokenizer.vocab_size: {', '.join(shortfalls)}"
    )


def _describe_training(
    config: TokenizerConfig, tokenizers: Mapping[str, Tokenizer], samples: Sequence[TokenizerSample]
) -> dict[str, str | int]:
    """Returns the kind and size of the tokenizers and the number of examples, with the keys of stored reports."""
    # "kind" is the shared setting, even if a column overrides it.
    facts: dict[str, str | int] = {"kind": config.kind}
    for column, tokenizer in tokenizers.items():
        facts[f"{column}_size"] = len(tokenizer.vocabulary)
    # An example that was sampled several times counts once; its repetitions are adjacent.
    examples = chain.from_iterable(sample.examples for sample in samples)
    facts["pairs_used"] = sum(1 for _ in groupby(examples, key=id))
    facts["pairs"] = sum(sample.examples_seen for sample in samples)
    return facts


def _number_of_features(examples: Sequence[Example]) -> int:
    """Returns the number of features in a row of the first example, or 0 if it has none. Reads the example's file.

    The other examples need no check: preprocessing has compared the first examples of all files (`require_one_layout`),
    and `FeaturesFile.read` compares the examples of a file with its first one.
    """
    if not examples:
        return 0
    features = examples[0].features
    return 0 if features is None else features.shape[1]


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


def _learn(config: TokenizerConfig, lines: Sequence[str], description: str) -> Tokenizer:
    """Trains a tokenizer on lines; `description` names them in messages."""
    match config.kind:
        case "word" | "whitespace" | "pieces":
            # The lines may contain the name of a special token, such as MASK. Kinds `word` and `whitespace` read it as
            # the ordinary word `▁MASK`. A token without the marker that equals the name, as with kind `pieces` or in
            # "(MASK" with kind `word`, becomes unknown, because `Vocabulary.build` leaves it out.
            return WordTokenizer.learn(config, lines, description)
        case "wordpiece":
            _require_no_special_tokens(config, lines, description)
            return WordPieceTokenizer.learn(config, lines, description)
        case "bpe" | "unigram" | "char":
            _require_no_special_tokens(config, lines, description)
            return SentencePieceTokenizer.learn(config, lines, description)
        case "marian" | "huggingface":
            raise AssertionError(f"`learn_from_samples` should have rejected {config.kind}")
        case _:
            assert_never(config.kind)


def _require_no_special_tokens(
    config: TokenizerConfig, lines: Sequence[str], description: str
) -> None:
    """Raises a RecipeError if a line contains the name of a special token that does not begin with "<" or "[".

    sentencepiece would remove the name from the text, also from inside a word, so that its letters might become
    unknown; a WordPiece vocabulary might contain the name twice. Names that begin with a bracket, such as <mask>, are
    not searched for: texts with markup may contain them by accident, and lose nothing but this markup. Only the sample
    is searched, not the whole corpus.
    """
    names = [name for name in config.special_tokens if name[0] not in "<["]
    if not names:
        return
    for line in lines:
        # The tokenizer will read the text in this form (see `Tokenizer.prepared`), so the name matters only if it
        # occurs in this form. With the rules nfkc, the form is only approximate, because sentencepiece's own rules
        # differ from Unicode's NFKC.
        text = line.lower() if config.lowercase else line
        text = normalize(text.replace(WORD_START, " "), config.normalization)
        for name in names:
            if name in text:
                raise RecipeError(
                    f"tokenizer.specials: the {description} contains {name!r}, but a special token must not occur in "
                    f"a text; rename the special token or tag, for example to <{name}>"
                )
