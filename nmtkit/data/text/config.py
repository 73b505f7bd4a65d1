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
"""Columns of an example. Each column may have its own files."""
TEXT_COLUMNS = COLUMNS[:2]
LINE_ALIGNED_COLUMNS = (*COLUMNS, "alignment", "src_words", "tgt_words")
"""Settings of `SplitFiles` for files in which line n belongs to example n."""
FILE_KINDS = (*LINE_ALIGNED_COLUMNS, "jsonl", "stories", "story_lists")
"""Settings of `SplitFiles` that name files or folders."""


LANGUAGE_KEYS = ("src_lang", "tgt_lang")
_CORPUS_KEYS = ("weight", "tag", *LANGUAGE_KEYS, "temperature", "encoding")
"""Keys that need not be set for every corpus in a list. Except for `temperature`, their values may differ."""


def language_tag(language: str) -> str:
    """Returns the token that precedes a source to select the target language (Johnson et al. 2017, section 3)."""
    return f"<2{language}>"


def language_of_tag(tag: str) -> str:
    """Returns the language in a language tag such as <2de>; "" for other tags."""
    language = tag[2:-1]
    return language if tag == language_tag(language) else ""


def _encodings_by_file(corpus: dict[str, Any]) -> dict[str, str]:
    """Returns the encoding of each file in a corpus whose `encoding` may be a single name for all files."""
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
    """Joins a list of corpora into one group of settings for the whole split.

    If `value` is a single corpus, only its languages are expanded to lists. Other values are returned unchanged.
    """
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
    # Set all of these keys, even if they are empty, so that they override the values of an extended recipe.
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
            "the corpora in this list set different values for `temperature`, which applies to the whole list; set it "
            "in only one corpus"
        )
    shared_keys = [key for key in corpora[0] if key not in _CORPUS_KEYS]
    for corpus in corpora:
        keys = {*corpus} - {*_CORPUS_KEYS}
        if keys != {*shared_keys} or keys & {"weights", "tags", "directions"}:
            raise ValueError(
                "all corpora in a list must set the same keys, except for the optional keys "
                f"{', '.join(_CORPUS_KEYS)}; weights, tags and directions are not allowed"
            )
        for key in ("tag", *LANGUAGE_KEYS):
            if not isinstance(corpus.get(key, ""), str):
                raise ValueError(
                    f"{key}: {corpus[key]!r} is not a string; put it in quotes, for example 'no' for Norwegian"
                )
        for key in shared_keys:
            if key not in FILE_KINDS and corpus[key] != corpora[0][key]:
                raise ValueError(f"`{key}` must be the same in all corpora in the list")


def _with_languages_of_files(files: dict[str, Any]) -> dict[str, Any]:
    """Expands a language that is set for a whole split into a list with one item per file."""
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

    `files` is a result of `joined_corpora`. If any file already has a language tag, no tags are added.
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
    """Returns each file's direction, such as en-de; an empty list if no languages are set."""
    directions = []
    for pair in zip_longest(sources, targets, fillvalue=""):
        names = [language for language in pair if language]
        directions.append("-".join(names))
    return directions if any(directions) else []


class SplitFiles(Settings):
    """Files of one split: files for each column, JSONL files, or folders of stories.

    If a column has several files, they are read one after another. A split may also be a list of such groups of files,
    called corpora.
    """

    src: list[str] = Field(default_factory=list)
    """Source text, one sentence per line. Here and in all other settings for text files, FILE#COLUMN refers to a column
    in a table (pairs.csv#English, pairs.tsv#1), a language in a TMX file (memory.tmx#en) or a field in a JSONL file
    (data.jsonl#translation.en)."""
    tgt: list[str] = Field(default_factory=list)
    """Target text. Line n is the translation of source line n. A test set does not need targets."""
    labels: list[str] = Field(default_factory=list)
    """Labels. Line n contains one label for example n, or one label for each of its words, separated by white space."""
    features: list[str] = Field(default_factory=list)
    """Feature vectors in float16 or float32: .npy files of shape (n, F) or (n, R, F), or .npz files with one array of
    shape (R, F) or (F,) per example. Arrays named 0, 1, 2, ... are read in numerical order, others in the order of the
    file. Alternatively, images of equal size: .npy or .npz files with a uint8 array of shape (n, height, width, 3), or
    .txt files with one image path per line, relative to the folder of the .txt file."""
    jsonl: list[str] = Field(default_factory=list)
    """JSONL files, used instead of one file per column: each line is a JSON object with a source and a target. If there
    are labels or alignments, specify each column instead: `src: data.jsonl#text`, `labels: data.jsonl#label`."""
    src_field: str = "src"
    """jsonl: key of the source, such as text, or translation.en for a key in a nested object. The value is a string, or
    a list of strings, which are joined with spaces. If the key is empty, the examples have no source."""
    tgt_field: str = "tgt"
    """jsonl: key of the target. If the key is empty, the examples have no target."""
    alignment: list[str] = Field(default_factory=list)
    """Word alignments in Pharaoh format, one file for each src file: in train for guided training, in test for
    evaluating the model's alignments. Line n contains the links of pair n, where i-j links source word i to target word
    j, counted from alignment_base. The line is empty if the pair has no links. Words are separated by white space."""
    src_words: list[str] = Field(default_factory=list)
    """Files with the lines of src, split into the words that the alignment refers to. Needed only if src is split
    differently."""
    tgt_words: list[str] = Field(default_factory=list)
    """Files with the lines of tgt, split into the words that the alignment refers to. Needed only if tgt is split
    differently."""
    alignment_base: Literal[0, 1] | None = None
    """Number that the links use for the first word of a sentence: 0 or 1. It is 1 in the gold links of Vilar et al.
    2006, which need `--oneRef` in the scorer of Zenkel et al. 2019. Default: 0, but the setting is required if the
    links for training seem to use 1."""
    stories: list[str] = Field(default_factory=list)
    """Folders of .story files in CNN/DailyMail format, used instead of src and tgt. Each file contains an article and
    its summary; each sentence of the summary follows a line `@highlight`."""
    story_lists: list[str] = Field(default_factory=list)
    """stories: files that list the split's stories, one per line, by file name or by the URL of the web page (the file
    name is then the SHA-1 hash of the URL). Default: all files in the folders, sorted by name."""
    weights: list[Annotated[float, Field(gt=0, le=10_000)]] = Field(default_factory=list)
    """Only for train: how often each pair is read per epoch, with one number for each column file, JSONL file or folder
    of stories. 2: twice. 0.25: a quarter of the pairs, resampled every epoch. 1.5: all pairs once, and half of
    them again. The tokenizer is trained with the same weights. Default: 1 for all."""
    temperature: float = Field(default=1.0, ge=1.0, le=10_000)
    """Only for train, as an alternative to weights: temperature T. A file's share of the epoch is proportional to
    n^(1/T), where n is its number of examples, so small files are read more often. 1: each example is read once. 5 is a
    common choice for many languages (Arivazhagan et al. 2019, section 4.2). The tokenizer is trained without this
    weighting."""
    tags: list[str] = Field(default_factory=list)
    """Special tokens that the model reads before each source, such as <2de> for the target language (Johnson et al.
    2017) or <BT> for back-translations (Caswell et al. 2019): one string for each src file, JSONL file or folder of
    stories, with tokens separated by spaces. Use "" for a file without tags. A newly trained tokenizer includes the
    tags in its `specials`."""
    src_lang: list[str] = Field(default_factory=list)
    """Source language, or a list of languages: one for each src file, JSONL file or folder of stories. For an imported
    multilingual model, use the language's token, such as eng_Latn."""
    tgt_lang: list[str] = Field(default_factory=list)
    """Target language, or a list of languages, as for src_lang. For an imported multilingual model, use the language's
    token, such as fra_Latn. For other models, `de` becomes the tag <2de>."""
    directions: list[str] = Field(default_factory=list)
    """Translation directions, such as en-de: one for each src file, JSONL file or folder of stories. Validation and
    test scores are also reported for each direction, as in Johnson et al. 2017. Use "" for a file without a
    direction."""

    encoding: str | dict[str, str] = ""
    """Encoding of the text if it is not UTF-8: any encoding that Python supports, such as cp1252, koi8-r, shift_jis or
    utf-16, or a mapping from the files that are not UTF-8 to their encodings: {train.fr: cp1252}."""

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
                "specify exactly one of the following: column files (src, tgt, labels or features), jsonl, or stories; "
                "to unset a key inherited from another recipe (`extends`), use an empty list, for example `jsonl: []`; "
                "to omit the test set, use `--set data.test=null`, or `test: null` in the recipe"
            )
        if not has_columns and any(getattr(self, kind) for kind in LINE_ALIGNED_COLUMNS):
            raise ValueError(
                "tgt, labels, features, alignment, src_words and tgt_words cannot be combined with jsonl or stories, "
                "which already contain both sides (for jsonl: src_field and tgt_field). To use other columns together "
                "with a JSONL file, remove `jsonl` and specify every column, for example `src: FILE#KEY`"
            )
        return self

    @model_validator(mode="after")
    def _files_fit_together(self) -> "SplitFiles":
        if self.has_links and not {*TEXT_COLUMNS} <= {*self.columns}:
            raise ValueError(
                "alignment: links connect words in src to words in tgt; set src and tgt, or remove alignment"
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
                "`weights` applies to individual folders of stories, but `story_lists` selects from all folders "
                "together; remove one of these settings"
            )
        if self.temperature != 1 and (self.weights or self.story_lists):
            raise ValueError(
                "`temperature` computes weights from file sizes and cannot be combined with `weights` or "
                "`story_lists`; remove `temperature`, or remove the others"
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
        """Returns how often each file's examples are read per epoch; an empty list if all examples are read once.

        With a temperature T, the share of a file with n examples is proportional to n^(1/T); the size of the epoch is
        still the total number of examples (Arivazhagan et al. 2019, section 4.2).
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
        """Source and target language of each file; an empty list if no languages are set."""
        return [*zip_longest(self.src_lang, self.tgt_lang, fillvalue="")]

    @property
    def has_links(self) -> bool:
        """Whether pairs have word alignments."""
        return bool(self.alignment)

    def texts(self) -> list[str]:
        """Returns the files of all columns, the JSONL files, or the folders of stories."""
        return [*self.src, *self.tgt, *self.labels, *self.features, *self.jsonl, *self.stories]

    def paths(self) -> list[str]:
        """Returns all files and folders without repetitions; FILE#COLUMN counts as FILE."""
        paths: dict[str, None] = {}  # used as an ordered set
        for kind in FILE_KINDS:
            for path in getattr(self, kind):
                paths[text_path(path)] = None
        return list(paths)

    def resolved(self, folder: str) -> "SplitFiles":
        """Returns a copy in which each path is resolved relative to `folder` if the file exists there."""

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
    """Training pairs, or a list of corpora, each with an optional `weight`, `tag`, `src_lang` and `tgt_lang`:
    `tgt_lang: de` adds the tag <2de>."""
    valid: SplitFiles | None = None
    """Pairs for validation during training."""
    test: SplitFiles | None = None
    """Pairs to translate and score after training. Use null for no test set, for example --set data.test=null if the
    extended recipe has one."""
    max_length: int = Field(default=256, ge=1)
    """Maximum number of tokens in a text of a training example. Longer texts are handled according to `over_long`."""
    max_tgt_length: int | None = Field(default=None, ge=1)
    """Maximum number of tokens in a target. Default: max_length."""
    over_long: Literal["drop", "truncate"] = "drop"
    """How to handle texts longer than max_length. drop: leave their pairs out of training. truncate: shorten the texts
    to max_length, in all splits; truncated targets still end with EOS."""
    max_ratio: float | None = Field(default=None, gt=1.0)
    """Maximum ratio of the longer side's token count to the shorter side's. Pairs with a larger ratio are left out of
    training; the limit is 1.5 in fairseq's preparation of WMT14 (Gehring et al. 2017). Default: no limit."""
    drop_duplicates: bool = False
    """Leave repeated pairs out of training, except for the first occurrence."""

    @model_validator(mode="after")
    def _settings_fit_splits(self) -> "DataConfig":
        if self.valid is not None and self.valid.has_links:
            raise ValueError(
                "valid: `alignment` can be set only in train, for guided training, and in test, for evaluation; remove "
                "it from valid"
            )
        for name, files in (("valid", self.valid), ("test", self.test)):
            if files is not None and (files.weights or files.temperature != 1):
                raise ValueError(
                    f"{name}: weights and temperature determine how often training reads each pair, so they can be set "
                    "only in train; remove them"
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
        """Directions that are used in validation or testing, but not in training (Johnson et al. 2017, section 4.4)."""
        directions: dict[str, None] = {}  # used as an ordered set
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
        """Returns the files of all splits, resolved in `folder`."""
        paths = []
        for files in self.splits().values():
            paths += files.paths()
        return paths
