"""The tokenizers of all text columns, and what else a run knows of its columns."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmtkit.core.errors import CheckpointError, DataError, RecipeError
from nmtkit.core.files import bytes_checksum, write_errors
from nmtkit.core.formats import parse_json
from nmtkit.core.settings import parse
from nmtkit.data.text.config import TEXT_COLUMNS
from nmtkit.data.text.normalization import TextForms
from nmtkit.data.tokenizers.huggingface_tokenizer import HuggingFaceTokenizer
from nmtkit.data.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer, TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.vocabulary import (
    RESTORE_HINT,
    LabelVocabulary,
    Vocabulary,
    check_sums,
    read_vocabulary_file,
)
from nmtkit.data.tokenizers.wordpiece import WordPieceTokenizer

_SETTINGS, _SUMS, _LABELS = "tokenizer.json", "sums.json", "labels.vocab"
"""Files of the settings, checksums and labels."""


class Tokenizers(dict[str, Tokenizer]):
    """The tokenizers of the text columns, made with settings `config`; the vocabulary of labels if there are any.

    `features` is the number of numbers in a row of features, 0 without features.
    With a joint vocabulary both are the same object; those of imported models are then two with the same vocabulary.
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
        raise CheckpointError(f"there is no tokenizer for {column}: texts are only {' and '.join(self) or 'none'}")

    @property
    def src(self) -> Tokenizer:
        """The tokenizer of sources; CheckpointError without one."""
        return self["src"]

    @property
    def tgt(self) -> Tokenizer:
        """The tokenizer of targets; CheckpointError without one."""
        return self["tgt"]

    @property
    def shared(self) -> bool:
        """Whether two texts have one vocabulary."""
        return len(self) == 2 and self.src.vocabulary is self.tgt.vocabulary

    @property
    def sampling(self) -> bool:
        """Whether tokenizations of training text are sampled."""
        return any(tokenizer.config.sampling > 0 for tokenizer in self.values())

    def text_forms(self) -> TextForms:
        """The forms of texts that the model sees, by which equal texts are found."""
        return {column: tokenizer.normalized for column, tokenizer in self.items()}

    @property
    def checksum(self) -> str:
        """The checksum by which weights know their vocabulary."""
        return bytes_checksum(b"".join(name.encode() + content for name, content in self._contents().items()))

    def with_source_prefix(self, prefix: str) -> "Tokenizers":
        """Returns the tokenizers of an imported model with this text before every source."""
        config = parse(TokenizerConfig, self.config.model_dump() | {"source_prefix": prefix}, "tokenizer")
        columns = {
            column: HuggingFaceTokenizer(config, tokenizer.content(), tokenizer.vocabulary, column)
            for column, tokenizer in self.items()
        }
        return Tokenizers(config, columns, self.labels, self.features)

    def _contents(self) -> dict[str, bytes]:
        """The content of each file, by name."""
        one_a_table = {"joint": self.src} if self.shared else {**self}
        sides = {**self} if self.config.kind == "marian" else one_a_table
        files = {f"{name}{side.suffix}": side.content() for name, side in sides.items()}
        if self.config.is_imported:
            files |= {f"{name}{WordTokenizer.suffix}": side.vocabulary.content() for name, side in one_a_table.items()}
        return files | ({_LABELS: self.labels.content()} if self.labels is not None else {})

    def save(self, folder: Path) -> None:
        """Writes all files that `load` needs into the folder."""
        facts: dict[str, Any] = {} if len(self) == 2 else {"texts": [*self]}
        facts |= {"features": self.features} if self.features else {}
        settings = json.dumps(self.config.model_dump() | facts, indent=2, ensure_ascii=False) + "\n"
        contents = {**self._contents(), _SETTINGS: settings.encode("utf-8")}
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            # The checksums go first and come last: at no moment are there those of other files.
            for stale in (_SUMS, _LABELS):  # labels of a classifier that was in the folder are not of another model
                (folder / stale).unlink(missing_ok=True)
            for name, content in contents.items():
                (folder / name).write_bytes(content)
            of_files = {name: bytes_checksum(content) for name, content in contents.items()}
            (folder / _SUMS).write_text(json.dumps(of_files, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Tokenizers":
        """Reads what `save` wrote; CheckpointError names a file that is missing or damaged."""
        check_sums(folder / _SUMS)
        settings = folder / _SETTINGS
        try:
            given = dict(parse_json(read_vocabulary_file(settings, "it"), settings.name))
            texts, features = list[str](given.pop("texts", TEXT_COLUMNS)), int(given.pop("features", 0))
            given.setdefault("normalization", "nfkc")  # the default before there was nfkc_numbers
            given.pop("train_lines", None)  # a setting of earlier versions, which tells how the tokenizer was learned
            config = parse(TokenizerConfig, given, str(settings))
        except (DataError, RecipeError, TypeError, ValueError) as fault:
            raise CheckpointError(f"{settings}: damaged ({fault}); {RESTORE_HINT}") from fault
        joint = config.joint and len(texts) == 2
        names = {column: "joint" if joint else column for column in texts}
        labels = LabelVocabulary.load(folder / _LABELS) if os.path.lexists(folder / _LABELS) else None
        if config.is_imported:
            tables = {
                name: Vocabulary.load(folder / f"{name}{WordTokenizer.suffix}", config.special_tokens)
                for name in dict.fromkeys(names.values())
            }
            files = {side: folder / (side if config.kind == "marian" else of) for side, of in names.items()}
            return cls(config, {side: load_tokenizer(config, files[side], tables[names[side]], side) for side in names})
        tokenizers = {
            name: load_tokenizer(config if joint else config.for_column(name), folder / name)
            for name in dict.fromkeys(names.values())
        }
        return cls(config, {column: tokenizers[name] for column, name in names.items()}, labels, features)


def load_tokenizer(config: TokenizerConfig, stem: Path, table: Vocabulary | None = None, column: str = "") -> Tokenizer:
    """Reads the tokenizer of a file without its ending; CheckpointError if it is missing or damaged.

    Those of imported models have the vocabulary `table`, and those of Hugging Face are for a column.
    """
    if config.cuts_words or config.kind == "wordpiece":
        own = WordTokenizer if config.cuts_words else WordPieceTokenizer
        return own(config, Vocabulary.load(stem.with_suffix(own.suffix), config.special_tokens))
    kind = HuggingFaceTokenizer if config.kind == "huggingface" else SentencePieceTokenizer
    path = stem.with_suffix(kind.suffix)
    content = read_vocabulary_file(path)
    try:
        if config.kind == "huggingface":
            assert table is not None, "it has no ids of its own"
            return HuggingFaceTokenizer(config, content, table, column)
        return SentencePieceTokenizer(config, content, table)
    except CheckpointError as fault:
        raise CheckpointError(f"{path}: {fault}") from fault
