"""The recipe section `data`: the files of each split, and the filters for training pairs."""

import os
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from nmtkit.core.errors import NmtkitError
from nmtkit.core.settings import Field, Settings, field_validator, model_validator
from nmtkit.data.text.files.names import require_encoding, text_path

COLUMNS = ("src", "tgt", "labels", "features")
"""Columns of an example. Each of them may have its own files."""
TEXT_COLUMNS = COLUMNS[:2]
LINE_ALIGNED_COLUMNS = (*COLUMNS, "alignment", "src_words", "tgt_words")
"""Settings of `SplitFiles` for files in which line n belongs to example n."""
FILE_KINDS = (*LINE_ALIGNED_COLUMNS, "jsonl", "stories", "story_lists")
"""Settings of `SplitFiles` for files or folders."""


LANGUAGE_KEYS = ("src_lang", "tgt_lang")
_CORPUS_KEYS = ("weight", "tag", *LANGUAGE_KEYS, "temperature", "encoding")
"""Keys that may differ between the corpora of a list, and that some of them may lack."""


def language_tag(language: str) -> str:
    """Returns the token that selects the target language if it precedes the source (Johnson et al. 2017, section 3)."""
    return f"<2{language}>"


def language_of_tag(tag: str) -> str:
    """Returns the language of a tag that `language_tag` could have made; "" for other tags."""
    language = tag[2:-1]
    return language if tag == language_tag(language) else ""


def _encodings_by_file(corpus: dict[str, Any]) -> dict[str, str]:
    """Returns the encoding of each file of a corpus; the setting may be one encoding for all files."""
    encoding = corpus.get("encoding") or {}
    if isinstance(encoding, dict):
        return encoding
    if not isinstance(encoding, str):
        raise ValueError(
            f"`encoding` must be the name of an encoding, such as cp1252, not {encoding!r}"
        )
    encodings: dict[str, str] = {}
    for kind in FILE_KINDS:
        for path in _as_list(corpus.get(kind, [])):
            encodings[str(path)] = encoding
    return encodings


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def joined_corpora(value: Any) -> Any:
    """Joins a list of corpora into one group of settings for the whole split. Other values are returned unchanged."""
    if isinstance(value, dict):
        return _with_languages_of_files(value)
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(corpus, dict) for corpus in value)
    ):
        return value
    _require_joinable(value)
    joined: dict[str, Any] = {}
    encodings: dict[str, str] = {}
    temperature: Any = 1.0
    weights: list[Any] = []
    tags: list[str] = []
    languages: dict[str, list[str]] = {key: [] for key in LANGUAGE_KEYS}
    for corpus in value:
        file_count = 1
        for key, setting in corpus.items():
            if key in FILE_KINDS:
                files = _as_list(setting)
                joined.setdefault(key, []).extend(files)
                file_count = max(file_count, len(files))
            elif key not in _CORPUS_KEYS:
                joined.setdefault(key, setting)
        encodings.update(_encodings_by_file(corpus))
        temperature = corpus.get("temperature", temperature)
        # These settings apply to each file of the corpus.
        weights += [corpus.get("weight", 1.0)] * file_count
        tags += [corpus.get("tag", "")] * file_count
        for key in LANGUAGE_KEYS:
            languages[key] += [corpus.get(key, "")] * file_count
    # All keys are set, so that they replace the values of an extended recipe.
    joined["encoding"] = encodings or ""
    joined["temperature"] = temperature
    joined["tags"] = tags if any(tags) else []
    joined["weights"] = weights if any(weight != 1.0 for weight in weights) else []
    for key, names in languages.items():
        joined[key] = names if any(names) else []
    joined["directions"] = []
    return joined


def _require_joinable(corpora: list[dict[str, Any]]) -> None:
    temperatures = [corpus["temperature"] for corpus in corpora if "temperature" in corpus]
    if any(temperature != temperatures[0] for temperature in temperatures):
        raise ValueError(
            "`temperature` must be the same for all corpora of a list; set it in only one of them"
        )
    shared_keys = [key for key in corpora[0] if key not in _CORPUS_KEYS]
    for corpus in corpora:
        keys = {*corpus} - {*_CORPUS_KEYS}
        if keys != {*shared_keys} or keys & {"weights", "tags", "directions"}:
            raise ValueError(
                f"all corpora of a list must have the same keys; only these may be missing: {', '.join(_CORPUS_KEYS)}"
            )
        for key in ("tag", *LANGUAGE_KEYS):
            if not isinstance(corpus.get(key, ""), str):
                raise ValueError(
                    f"{key}: {corpus[key]!r} is not a string; put it in quotes, for example 'no' for Norwegian"
                )
        for key in shared_keys:
            if key not in FILE_KINDS and corpus[key] != corpora[0][key]:
                raise ValueError(f"`{key}` must be the same for all corpora of a list")


def _with_languages_of_files(files: dict[str, Any]) -> dict[str, Any]:
    """Expands a language that is set for all files of a split to a list with one item per file."""
    file_count = 1
    for kind in FILE_KINDS:
        if isinstance(files.get(kind), list):
            file_count = max(file_count, len(files[kind]))
    languages = {}
    for key in LANGUAGE_KEYS:
        if isinstance(files.get(key), str):
            languages[key] = [files[key]] * file_count
    return {**files, **languages}


def language_tags(files: dict[str, Any]) -> dict[str, Any]:
    """Replaces a split's languages with tags such as <2de>, for models trained with nmtkit.

    `files` is a result of `joined_corpora`. If there are tags for languages already, none are added.
    """
    sources = files.get("src_lang") or []
    targets = files.get("tgt_lang") or []
    if not sources and not targets:
        return files
    tags = files.get("tags") or [""] * max(len(sources), len(targets))
    names_languages = any(language_of_tag(tag) for tag in " ".join(tags).split())
    if targets and not names_languages:
        extended_tags = []
        for language, file_tags in zip(targets, tags, strict=True):
            words = file_tags.split()
            if language:
                words = [*language_tag(language).split(), *words]
            extended_tags.append(" ".join(words))
        tags = extended_tags
    return {
        **files,
        "tags": tags if any(tags) else [],
        "directions": files.get("directions") or language_directions(sources, targets),
        "src_lang": [],
        "tgt_lang": [],
    }


def language_directions(sources: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Returns each file's direction, such as en-de; an empty list if no language is given."""
    directions = []
    for pair in zip_longest(sources, targets, fillvalue=""):
        names = [language for language in pair if language]
        directions.append("-".join(names))
    return directions if any(directions) else []


class SplitFiles(Settings):
    """Files of one split: one file per column, a JSONL file, or folders of stories.

    If a column has more than one file, they are read one after the other. A split may also be a list of such groups of
    files, which are called corpora.
    """

    src: list[str] = Field(default_factory=list)
    """Source text, one sentence per line. Here and in all other text settings, FILE#COLUMN refers to a column of a
    table (pairs.csv#English, pairs.tsv#1), a language of a TMX file (memory.tmx#en) or a field of JSON lines
    (data.jsonl#translation.en)."""
    tgt: list[str] = Field(default_factory=list)
    """Target text. Line n is the translation of line n in the source. A test set may have no targets."""
    labels: list[str] = Field(default_factory=list)
    """Labels. Line n contains one label for example n, or one label for each word of it, separated by white space."""
    features: list[str] = Field(default_factory=list)
    """Rows of float16 or float32 numbers: .npy files of shape (n, F) or (n, R, F), or .npz files with one array (R, F)
    or (F,) per example. These arrays are ordered by name if the names are 0, 1, 2, ..., otherwise as in the file. Or
    images of equal size: .npy or .npz files of shape (n, height, width, 3) in uint8, or .txt files that list the paths
    of images, one per line, relative to the folder of the .txt file."""
    jsonl: list[str] = Field(default_factory=list)
    """Instead of one file per column: one JSON object per line, with a source and a target. For examples with labels or
    an alignment, specify each column instead: `src: data.jsonl#text`, `labels: data.jsonl#label`."""
    src_field: str = "src"
    """jsonl: the key of the source, such as text, or translation.en for a key in a nested object. Its value is a
    string, or a list of strings, which are joined by spaces. If the key is empty, the examples have no source."""
    tgt_field: str = "tgt"
    """jsonl: the key of the target. If the key is empty, the examples have no target."""
    alignment: list[str] = Field(default_factory=list)
    """Pharaoh files, one per file of src: in train for guided training, in test for evaluating the model's alignments.
    Line n contains the links of pair n in the form i-j, for source word i and target word j, counted from
    alignment_base; it is empty if pair n has no links. Words are separated by white space."""
    src_words: list[str] = Field(default_factory=list)
    """The lines of src, split into the words that the alignment refers to, if src itself is split differently."""
    tgt_words: list[str] = Field(default_factory=list)
    """The lines of tgt, split into the words that the alignment refers to, if tgt itself is split differently."""
    alignment_base: Literal[0, 1] | None = None
    """The number that the links use for the first word. Default: 0; but if the links for training seem to count from 1,
    it must be set."""
    stories: list[str] = Field(default_factory=list)
    """Instead of src and tgt: folders of .story files in the CNN/DailyMail format, an article followed by the sentences
    of its summary, each after a line `@highlight`."""
    story_lists: list[str] = Field(default_factory=list)
    """stories: files that list the split's stories, one per line: the name of a story's file, or the address of its web
    page, whose SHA-1 sum is the file name. Default: all files in the folders, sorted by name."""
    weights: list[Annotated[float, Field(gt=0, le=10_000)]] = Field(default_factory=list)
    """In train, one number per file of a column, JSONL file or folder of stories: how often its pairs are read per
    epoch. 2: twice. 0.25: a quarter of them, sampled anew for each epoch. 1.5: all of them once, and half of them a
    second time. The tokenizer is trained with the same weights. Default: 1 for all."""
    temperature: float = Field(default=1.0, ge=1.0, le=10_000)
    """In train, instead of weights: temperature T. A file of n examples gets a share of the epoch in proportion to
    n^(1/T), so that small files are read more often. 1: each example is read once. 5 is a common choice for many
    languages (Arivazhagan et al. 2019, section 4.2). The tokenizer is trained without this weighting."""
    tags: list[str] = Field(default_factory=list)
    """One string per file of src, JSONL file or folder of stories: special tokens, separated by spaces, that the model
    reads before each source, such as <2de> for the target language (Johnson et al. 2017) or <BT> for back-translations
    (Caswell et al. 2019). "" means none. Tags are added to the `specials` of a newly trained tokenizer."""
    src_lang: list[str] = Field(default_factory=list)
    """Language of the sources, or a list of languages, one per file of src, JSONL file or folder of stories. For an
    imported multilingual model, the language's token, such as eng_Latn."""
    tgt_lang: list[str] = Field(default_factory=list)
    """Language of the targets, or a list, as for src_lang. For an imported multilingual model, the language's token,
    such as fra_Latn. For other models, `de` becomes the tag <2de>."""
    directions: list[str] = Field(default_factory=list)
    """One translation direction per file of src, JSONL file or folder of stories, such as en-de. Validation and test
    scores are also reported by direction. "" means that a file has none."""

    encoding: str | dict[str, str] = ""
    """Encoding of the text if it is not UTF-8: a name that Python knows, such as cp1252, koi8-r, shift_jis or utf-16;
    or a mapping from files that are not UTF-8 to their encodings: {train.fr: cp1252}."""

    @model_validator(mode="before")
    @classmethod
    def _corpora(cls, value: Any) -> Any:
        return joined_corpora(value)

    @field_validator("encoding")
    @classmethod
    def _known_encodings(cls, value: str | dict[str, str]) -> str | dict[str, str]:
        names: list[str] = []
        if isinstance(value, dict):
            names = list(value.values())
        elif value:
            names = [value]
        for name in names:
            try:
                require_encoding(name)
            except NmtkitError as fault:
                raise ValueError(str(fault)) from fault
        return value

    @field_validator(*FILE_KINDS, mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_form(self) -> "SplitFiles":
        has_columns = bool(self.src)
        if not self.jsonl and not self.stories:
            has_columns = bool(self.src or self.tgt or self.labels or self.features)
        forms = [has_columns, bool(self.jsonl), bool(self.stories)]
        if forms.count(True) != 1:
            raise ValueError(
                "give either src (and tgt), or jsonl, or stories; to undo a setting of the extended recipe, use an "
                "empty list, for example `jsonl: []`; to omit the test set, use `--set data.test=null`, or "
                "`test: null` in the recipe"
            )
        if not has_columns and any(getattr(self, kind) for kind in LINE_ALIGNED_COLUMNS):
            raise ValueError(
                "tgt, labels, features, alignment, src_words and tgt_words can be combined only with src; jsonl and "
                "stories already contain both sides (for jsonl: src_field and tgt_field). To combine such columns with "
                "a JSONL file, give every column as FILE#KEY"
            )
        return self

    @model_validator(mode="after")
    def _files_fit_together(self) -> "SplitFiles":
        if self.has_links and not {*TEXT_COLUMNS} <= {*self.columns}:
            raise ValueError(
                "alignment: the links connect words of src and tgt; set both, or remove alignment"
            )
        if self.story_lists and not self.stories:
            raise ValueError(
                "`story_lists` selects stories from folders; set the folders with `stories`"
            )
        if (
            self.src_words or self.tgt_words or self.alignment_base is not None
        ) and not self.has_links:
            raise ValueError(
                "src_words, tgt_words and alignment_base describe the words of an alignment; set `alignment` as well"
            )
        kind = next(kind for kind in FILE_KINDS if getattr(self, kind))
        count = len(getattr(self, kind))
        for name in (*LINE_ALIGNED_COLUMNS, "weights", "tags", *LANGUAGE_KEYS, "directions"):
            values = getattr(self, name)
            if values and len(values) != count:
                raise ValueError(
                    f"{kind} and {name} must have the same number of entries, but have {count} and {len(values)}"
                )
        return self

    @model_validator(mode="after")
    def _settings_fit_files(self) -> "SplitFiles":
        if self.weights and self.story_lists:
            raise ValueError(
                "`weights` apply to folders of stories, but `story_lists` select from all folders together; remove one "
                "of them"
            )
        if self.temperature != 1 and (self.weights or self.story_lists):
            raise ValueError(
                "`temperature` computes weights from the sizes of the files; remove `weights` and `story_lists`, or "
                "`temperature`"
            )
        if any(self.tags) and "src" not in self.columns:
            raise ValueError(
                "tags precede sources, but these files have no sources; remove the tags"
            )
        if self.stories and len({*zip(self.src_lang, self.tgt_lang, strict=False)}) > 1:
            raise ValueError("src_lang and tgt_lang must be the same for all folders of stories")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that these files have, in the order of `COLUMNS`."""
        if self.stories:
            return TEXT_COLUMNS
        if self.jsonl:
            return tuple(name for name in TEXT_COLUMNS if getattr(self, f"{name}_field"))
        return tuple(name for name in COLUMNS if getattr(self, name))

    def epoch_weights(self, sizes: Sequence[int]) -> list[float]:
        """Returns how often the examples of each file are read per epoch; an empty list if they are read once.

        With a temperature T, a file of n examples gets a share of the epoch in proportion to n^(1/T); the size of the
        epoch is still the number of all examples (Arivazhagan et al. 2019, section 4.2).
        """
        if self.temperature == 1:
            return self.weights
        proportions = [size ** (1 / self.temperature) for size in sizes]
        factor = sum(sizes) / sum(proportions)
        weights = []
        for size, proportion in zip(sizes, proportions, strict=True):
            examples_per_epoch = factor * proportion
            weights.append(examples_per_epoch / max(size, 1))
        return weights

    def encoding_of(self, path: str) -> str:
        """Returns the encoding that the settings specify for a file; "" for UTF-8."""
        if isinstance(self.encoding, str):
            return self.encoding
        return self.encoding.get(path) or self.encoding.get(text_path(path), "")

    @property
    def languages(self) -> list[tuple[str, str]]:
        """Source and target language of each file; an empty list if none are given."""
        return [*zip_longest(self.src_lang, self.tgt_lang, fillvalue="")]

    @property
    def has_links(self) -> bool:
        """Whether pairs have word alignments."""
        return bool(self.alignment)

    def texts(self) -> list[str]:
        """Returns the files of all columns, or the folders of stories."""
        return [*self.src, *self.tgt, *self.labels, *self.features, *self.jsonl, *self.stories]

    def paths(self) -> list[str]:
        """Returns all files and folders without repetitions; FILE#COLUMN counts as FILE."""
        paths: dict[str, None] = {}  # a set that keeps the order
        for kind in FILE_KINDS:
            for path in getattr(self, kind):
                paths[text_path(path)] = None
        return list(paths)

    def resolved(self, folder: str) -> "SplitFiles":
        """Returns the same settings, in which relative paths are resolved in `folder` if the file exists there."""

        def resolve(path: str) -> str:
            resolved = os.path.join(folder, path)
            if os.path.exists(text_path(resolved)):
                return str(Path(resolved))
            return path

        changes: dict[str, Any] = {}
        for kind in FILE_KINDS:
            changes[kind] = [resolve(path) for path in getattr(self, kind)]
        if isinstance(self.encoding, dict):
            changes["encoding"] = {resolve(path): name for path, name in self.encoding.items()}
        return self.model_copy(update=changes)


class DataConfig(Settings):
    """The corpora, and the filters for training pairs. Validation and test pairs are never dropped."""

    folder: str = ""
    """Folder for relative paths. Files that do not exist there are looked up in the current folder."""
    train: SplitFiles
    """Pairs for training. May also be a list of corpora, each of which may have a `weight`, a `tag` and the languages
    `src_lang` and `tgt_lang`: `tgt_lang: de` adds the tag <2de>."""
    valid: SplitFiles | None = None
    """Pairs for validation during training."""
    test: SplitFiles | None = None
    """Pairs to translate and score after training. null means no test set, for example --set data.test=null if the
    extended recipe has one."""
    max_length: int = Field(default=256, ge=1)
    """Maximum number of tokens in a text of a training example. Longer texts are handled according to `over_long`."""
    max_tgt_length: int | None = Field(default=None, ge=1)
    """Maximum number of tokens in a target. Default: max_length."""
    over_long: Literal["drop", "truncate"] = "drop"
    """What happens to texts longer than max_length. drop: leave their pairs out of training. truncate: shorten the
    texts to max_length, in all splits; a truncated target still ends with EOS."""
    max_ratio: float | None = Field(default=None, gt=1.0)
    """Maximum ratio of the number of tokens on the longer side to that on the shorter side. Pairs with a larger ratio
    are left out of training. Default: no limit."""
    drop_duplicates: bool = False
    """Leave repeated pairs out of training; only the first of them is used."""

    @model_validator(mode="after")
    def _settings_fit_splits(self) -> "DataConfig":
        if self.valid is not None and self.valid.has_links:
            raise ValueError(
                "valid: alignments can be set only for train, to guide training, and for test, to be evaluated; remove "
                "`alignment` from valid"
            )
        for name, files in (("valid", self.valid), ("test", self.test)):
            if files is not None and (files.weights or files.temperature != 1):
                raise ValueError(
                    f"{name}: weights and temperature determine how often training reads each pair, so only train can "
                    "have them; remove them"
                )
        return self

    @property
    def limits(self) -> tuple[int, int]:
        """Maximum numbers of tokens in a source and in a target."""
        return self.max_length, self.max_tgt_length or self.max_length

    @property
    def truncation(self) -> tuple[int, int] | None:
        """Numbers of tokens to which sources and targets are truncated; None without truncation."""
        return self.limits if self.over_long == "truncate" else None

    @property
    def zero_shot(self) -> list[str]:
        """Directions that are validated or tested without being trained (Johnson et al. 2017, section 4.4)."""
        directions: dict[str, None] = {}  # a set that keeps the order
        for files in (self.valid, self.test):
            if files is not None:
                directions |= dict.fromkeys(files.directions)
        trained = {"", *self.train.directions}
        return [direction for direction in directions if direction not in trained]

    def splits(self) -> dict[str, SplitFiles]:
        """Returns the training split and, if they exist, the other splits, with paths resolved in `folder`."""
        splits = {"train": self.train, "valid": self.valid, "test": self.test}
        return {
            name: files.resolved(self.folder) for name, files in splits.items() if files is not None
        }

    def paths(self) -> list[str]:
        """Returns all files of all splits, resolved in `folder`."""
        paths = []
        for files in self.splits().values():
            paths += files.paths()
        return paths
