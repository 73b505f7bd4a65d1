"""The tokenizers of all text columns of a run, with the vocabulary of labels and the width of features."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import assert_never

from nmtkit.core.errors import CheckpointError, DataError, RecipeError
from nmtkit.core.files import bytes_checksum, write_errors
from nmtkit.core.formats import parse_json
from nmtkit.core.settings import parse
from nmtkit.data.text.config import TEXT_COLUMNS
from nmtkit.data.text.normalization import TextForms
from nmtkit.data.tokenizers.huggingface_tokenizer import HuggingFaceTokenizer
from nmtkit.data.tokenizers.tokenizer import (
    SentencePieceTokenizer,
    Tokenizer,
    TokenizerConfig,
    WordTokenizer,
)
from nmtkit.data.tokenizers.vocabulary import (
    RESTORE_HINT,
    LabelVocabulary,
    Vocabulary,
    check_sums,
    read_vocabulary_file,
)
from nmtkit.data.tokenizers.wordpiece import WordPieceTokenizer

# File names.
_SETTINGS = "tokenizer.json"
_SUMS = "sums.json"
_LABELS = "labels.vocab"


class Tokenizers(dict[str, Tokenizer]):
    """Tokenizers by text column, with their settings `config`.

    `labels` is the vocabulary of labels, if there are any. `features` is the number of features in a row, or 0. If the
    vocabulary is joint, both columns have the same tokenizer or, in imported models, two tokenizers that share a
    vocabulary.
    """

    def __init__(
        self,
        config: TokenizerConfig,
        columns: Mapping[str, Tokenizer],
        labels: LabelVocabulary | None = None,
        features: int = 0,
    ) -> None:
        super().__init__(columns)
        self.config = config
        self.labels = labels
        self.features = features

    def __missing__(self, column: str) -> Tokenizer:
        raise CheckpointError(
            f"there is no tokenizer for {column}; the columns with text are: {', '.join(self) or 'none'}"
        )

    @property
    def src(self) -> Tokenizer:
        """Tokenizer of the sources; raises a CheckpointError if there is none."""
        return self["src"]

    @property
    def tgt(self) -> Tokenizer:
        """Tokenizer of the targets; raises a CheckpointError if there is none."""
        return self["tgt"]

    @property
    def shared(self) -> bool:
        """Whether source and target share a vocabulary."""
        return len(self) == 2 and self.src.vocabulary is self.tgt.vocabulary

    @property
    def sampling(self) -> bool:
        """Whether tokenizations of training text are sampled."""
        return any(tokenizer.config.sampling > 0 for tokenizer in self.values())

    def text_forms(self) -> TextForms:
        """Returns, for each column, the function that converts a text to the form that determines its tokens.

        Texts with equal forms count as duplicates.
        """
        return {column: tokenizer.normalized for column, tokenizer in self.items()}

    @property
    def checksum(self) -> str:
        """Checksum of all vocabularies, which checkpoints save with their weights."""
        joined = bytearray()
        for name, content in self._contents().items():
            joined += name.encode()
            joined += content
        return bytes_checksum(bytes(joined))

    def with_source_prefix(self, prefix: str) -> "Tokenizers":
        """Returns copies of the tokenizers of an imported model that put this text before each source."""
        settings = self.config.model_dump()
        settings["source_prefix"] = prefix
        config = parse(TokenizerConfig, settings, "tokenizer")
        columns = {}
        for column, tokenizer in self.items():
            columns[column] = HuggingFaceTokenizer(
                config=config,
                content=tokenizer.content(),
                vocabulary=tokenizer.vocabulary,
                column=column,
            )
        return Tokenizers(
            config=config, columns=columns, labels=self.labels, features=self.features
        )

    def _contents(self) -> dict[str, bytes]:
        """Returns the contents of all files except the settings, by file name."""
        # A shared vocabulary is stored once; even then, Marian has a sentencepiece model for each side.
        vocabularies: Mapping[str, Tokenizer] = {"joint": self.src} if self.shared else self
        models = self if self.config.kind == "marian" else vocabularies
        contents = {}
        for name, tokenizer in models.items():
            contents[f"{name}{tokenizer.suffix}"] = tokenizer.content()
        if self.config.is_imported:
            for name, tokenizer in vocabularies.items():
                contents[f"{name}{WordTokenizer.suffix}"] = tokenizer.vocabulary.content()
        if self.labels is not None:
            contents[_LABELS] = self.labels.content()
        return contents

    def save(self, folder: Path) -> None:
        """Saves the tokenizers in a folder, from which `load` reads them."""
        settings = self.config.model_dump()
        if len(self) != 2:
            settings["texts"] = [*self]
        if self.features:
            settings["features"] = self.features
        settings_text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        contents = self._contents()
        contents[_SETTINGS] = settings_text.encode("utf-8")
        checksums = {name: bytes_checksum(content) for name, content in contents.items()}
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            # The checksums are removed first and written last, so that they never disagree with the files. The labels
            # are removed because they may belong to an earlier model in this folder.
            for name in (_SUMS, _LABELS):
                (folder / name).unlink(missing_ok=True)
            for name, content in contents.items():
                (folder / name).write_bytes(content)
            (folder / _SUMS).write_text(json.dumps(checksums, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Tokenizers":
        """Reads the files written by `save`; raises a CheckpointError for a file that is missing or damaged."""
        check_sums(folder / _SUMS)
        path = folder / _SETTINGS
        try:
            settings = dict(parse_json(read_vocabulary_file(path, "the settings"), path.name))
            texts = list[str](settings.pop("texts", TEXT_COLUMNS))
            features = int(settings.pop("features", 0))
            # Files without this key are older than the rules nfkc_numbers.
            settings.setdefault("normalization", "nfkc")
            # This setting of earlier versions affected only training.
            settings.pop("train_lines", None)
            config = parse(TokenizerConfig, settings, str(path))
        except (DataError, RecipeError, TypeError, ValueError) as fault:
            raise CheckpointError(f"{path}: damaged ({fault}); {RESTORE_HINT}") from fault
        labels = None
        labels_file = folder / _LABELS
        if os.path.lexists(labels_file):
            labels = LabelVocabulary.load(labels_file)
        is_joint = config.joint and len(texts) == 2
        columns: dict[str, Tokenizer] = {}
        if config.is_imported:
            vocabularies: dict[str, Vocabulary] = {}
            for column in texts:
                name = "joint" if is_joint else column
                if name not in vocabularies:
                    vocabulary_file = folder / f"{name}{WordTokenizer.suffix}"
                    vocabularies[name] = Vocabulary.load(vocabulary_file, config.special_tokens)
                stem = folder / (column if config.kind == "marian" else name)
                columns[column] = load_tokenizer(
                    config, stem, table=vocabularies[name], column=column
                )
            return cls(config, columns)
        if is_joint:
            columns = dict.fromkeys(texts, load_tokenizer(config, folder / "joint"))
        else:
            for column in texts:
                columns[column] = load_tokenizer(config.for_column(column), folder / column)
        return cls(config=config, columns=columns, labels=labels, features=features)


def load_tokenizer(
    config: TokenizerConfig, stem: Path, table: Vocabulary | None = None, column: str = ""
) -> Tokenizer:
    """Reads a tokenizer from its file; raises a CheckpointError if the file is missing or damaged.

    Args:
        config: settings of the tokenizer.
        stem: path of the file without its suffix.
        table: vocabulary of an imported model, whose ids differ from the ids in the file.
        column: text column of the tokenizer; needed only for a `huggingface` tokenizer.
    """
    kind = config.kind
    match kind:
        case "word" | "whitespace" | "pieces":
            path = stem.with_suffix(WordTokenizer.suffix)
            return WordTokenizer(config, Vocabulary.load(path, config.special_tokens))
        case "wordpiece":
            path = stem.with_suffix(WordPieceTokenizer.suffix)
            return WordPieceTokenizer(config, Vocabulary.load(path, config.special_tokens))
        case "huggingface":
            path = stem.with_suffix(HuggingFaceTokenizer.suffix)
        case "bpe" | "unigram" | "char" | "marian":
            path = stem.with_suffix(SentencePieceTokenizer.suffix)
        case _:
            assert_never(kind)
    content = read_vocabulary_file(path)
    try:
        if kind == "huggingface":
            assert table is not None, "a Hugging Face tokenizer needs a vocabulary"
            return HuggingFaceTokenizer(
                config=config, content=content, vocabulary=table, column=column
            )
        return SentencePieceTokenizer(config, content, table)
    except CheckpointError as fault:
        raise CheckpointError(f"{path}: {fault}") from fault
