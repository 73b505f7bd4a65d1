"""The settings `data:` of a recipe: the files of each split, and the filters of training pairs."""

import os
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from nmtkit.core.errors import NmtkitError
from nmtkit.core.settings import Field, Settings, field_validator, model_validator
from nmtkit.data.text.files.names import require_encoding, text_path

COLUMNS = ("src", "tgt", "labels", "features")
"""The columns that an example may have, each with files of its own."""
TEXT_COLUMNS = COLUMNS[:2]
LINE_ALIGNED_COLUMNS = (*COLUMNS, "alignment", "src_words", "tgt_words")
"""What may have files of its own, line n of each for example n."""
FILE_KINDS = (*LINE_ALIGNED_COLUMNS, "jsonl", "stories", "story_lists")
"""The settings of `SplitFiles` that name files or folders."""


LANGUAGE_KEYS = ("src_lang", "tgt_lang")
_OF_A_CORPUS = ("weight", "tag", *LANGUAGE_KEYS, "temperature")
"""What a corpus of a list says of itself, beside its files."""


def language_tag(language: str) -> str:
    """The special token before a source that is to be translated into a language: Johnson et al. 2017, section 3."""
    return f"<2{language}>"


def language_of_tag(tag: str) -> str:
    """The language of `language_tag`; empty for other tags."""
    return tag[2:-1] if tag == language_tag(tag[2:-1]) else ""


def _encodings_by_file(corpus: dict[str, Any]) -> dict[str, str]:
    """The encoding of each file of a corpus in a list; the corpus may name one encoding for all its files."""
    encoding = corpus.get("encoding") or {}
    if isinstance(encoding, dict):
        return encoding
    if not isinstance(encoding, str):
        raise ValueError(f"encoding: {encoding!r} is not the name of an encoding; write a name such as cp1252")
    encodings: dict[str, str] = {}
    for kind in FILE_KINDS:
        files = corpus.get(kind, [])
        for path in files if isinstance(files, list) else [files]:
            encodings[str(path)] = encoding
    return encodings


def joined_corpora(given: Any) -> Any:
    """Returns a split that is a list of corpora as one group of settings; other values stay as they are."""
    if isinstance(given, dict):
        return _with_languages_of_files(given)
    if not isinstance(given, list) or not given or not all(isinstance(corpus, dict) for corpus in given):
        return given
    if any(corpus.get("encoding") for corpus in given):
        given = [{**corpus, "encoding": _encodings_by_file(corpus)} for corpus in given]
    keys = [key for key in given[0] if key not in _OF_A_CORPUS]
    encodings: dict[str, str] = {}
    joined: dict[str, Any] = {}
    weights: list[Any] = []
    tags: list[str] = []
    languages: dict[str, list[str]] = {key: [] for key in LANGUAGE_KEYS}
    temperatures = [corpus["temperature"] for corpus in given if "temperature" in corpus]
    if any(one != temperatures[0] for one in temperatures):
        raise ValueError("temperature is the same for all corpora of a list: give it in one of them")
    for corpus in given:
        other_keys = {*corpus} - {*_OF_A_CORPUS}
        if other_keys != {*keys} or other_keys & {"weights", "tags", "directions"}:
            raise ValueError(f"the corpora of a list have the same keys, and may have {', '.join(_OF_A_CORPUS)}")
        for key in ("tag", *LANGUAGE_KEYS):
            if not isinstance(corpus.get(key, ""), str):
                raise ValueError(f"{key}: {corpus[key]!r} is not a text: write it in quotes, as 'no' for Norwegian")
        counts = [1]
        for key in keys:
            if key in FILE_KINDS:
                files = corpus[key] if isinstance(corpus[key], list) else [corpus[key]]
                joined[key] = [*joined.get(key, []), *files]
                counts.append(len(files))
            elif key == "encoding":
                encodings |= corpus[key]
            elif joined.setdefault(key, corpus[key]) != corpus[key]:
                raise ValueError(f"{key} is the same for all corpora of a list")
        weights += [corpus.get("weight", 1.0)] * max(counts)
        tags += [corpus.get("tag", "")] * max(counts)
        for key in LANGUAGE_KEYS:
            languages[key] += [corpus.get(key, "")] * max(counts)
    # Defaults too, which take the place of what an extended recipe says.
    joined["encoding"] = encodings or ""
    joined |= {"temperature": temperatures[0] if temperatures else 1.0, "tags": tags if any(tags) else []}
    joined |= {"weights": weights if any(weight != 1.0 for weight in weights) else []}
    joined |= {key: names if any(names) else [] for key, names in languages.items()}
    return joined | {"directions": []}


def _with_languages_of_files(files: dict[str, Any]) -> dict[str, Any]:
    """Returns a split that names the languages of each file, where it named one language for all files."""
    count = 1
    for kind in FILE_KINDS:
        if isinstance(files.get(kind), list):
            count = max(count, len(files[kind]))
    named = {key: [files[key]] * count for key in LANGUAGE_KEYS if isinstance(files.get(key), str)}
    return {**files, **named}


def language_tags(files: dict[str, Any]) -> dict[str, Any]:
    """Returns a split with tags such as <2de>, by which models trained with nmtkit know the language of the target.

    `files` is what `joined_corpora` returns. Tags that name languages already stay as they are.
    """
    sources, targets = (files.get(key) or [] for key in LANGUAGE_KEYS)
    if not sources and not targets:
        return files
    tags = files.get("tags") or [""] * max(len(sources), len(targets))
    if targets and not any(language_of_tag(tag) for words in tags for tag in words.split()):
        before = [language_tag(language) if language else "" for language in targets]
        tags = [" ".join([*first.split(), *words.split()]) for first, words in zip(before, tags, strict=True)]
    return {
        **files,
        "tags": tags if any(tags) else [],
        "directions": files.get("directions") or language_directions(sources, targets),
        "src_lang": [],
        "tgt_lang": [],
    }


def language_directions(sources: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Returns names such as en-de from the languages of each file."""
    directions = []
    for pair in zip_longest(sources, targets, fillvalue=""):
        directions.append("-".join(language for language in pair if language))
    return directions if any(directions) else []


class SplitFiles(Settings):
    """The files of one split: a file for each column, one JSONL file, or story folders.

    Several files of a kind are read one after the other. A list of such groups is a list of corpora.
    """

    src: list[str] = Field(default_factory=list)
    """Source text, one sentence a line. As in all texts, FILE#COLUMN is a column of a table (pairs.csv#English,
    pairs.tsv#1), a language of a TMX file (memory.tmx#en) or a field of JSON lines (data.jsonl#translation.en)."""
    tgt: list[str] = Field(default_factory=list)
    """Target text. Line n belongs to line n of the source. A test set may have none."""
    labels: list[str] = Field(default_factory=list)
    """Labels. Line n has the label of example n, or a label for each of its words, separated by white space."""
    features: list[str] = Field(default_factory=list)
    """Rows of numbers, float16 or float32: .npy files of shape (n, F) or (n, R, F), or .npz files with an array (R, F)
    or (F,) for each example, named 0, 1, 2, ... or in the order of the file. Or pictures of one size: .npy or .npz
    files of shape (n, height, width, 3) in uint8, or .txt files with the path of a picture on each line, as seen from
    there."""
    jsonl: list[str] = Field(default_factory=list)
    """Instead of files of columns: one JSON object a line, with a source and a target. Examples with labels or with an
    alignment name each column instead: `src: data.jsonl#text`, `labels: data.jsonl#label`."""
    src_field: str = "src"
    """jsonl: the key of the source, such as text, or translation.en for a key inside an object; its value is a string,
    or a list of strings to be joined by spaces. Empty: the examples have no source."""
    tgt_field: str = "tgt"
    """jsonl: the key of the target; empty if there is none."""
    alignment: list[str] = Field(default_factory=list)
    """Pharaoh files, one for each of src: in train for guided training, in test to measure the model's alignments. Line
    n holds the links of pair n as i-j, source word i and target word j, counted from alignment_base; it is empty where
    there are none. Words are what white space separates."""
    src_words: list[str] = Field(default_factory=list)
    """Lines of src cut into the words that the alignment counts, if they differ from src's own."""
    tgt_words: list[str] = Field(default_factory=list)
    """Lines of tgt cut into the words that the alignment counts."""
    alignment_base: Literal[0, 1] | None = None
    """The number that links give to the first word. Default: 0. Training links that look as if they counted from 1 are
    refused until this is set."""
    stories: list[str] = Field(default_factory=list)
    """Instead of src and tgt: folders of .story files as CNN/DailyMail is distributed: an article, then the sentences
    of its summary, each below a line `@highlight`."""
    story_lists: list[str] = Field(default_factory=list)
    """stories: files that select the split, one story a line: the name of its file, or the address of its web page, of
    which the name is the SHA-1 sum. Without them all files of the folders are taken, by name."""
    weights: list[Annotated[float, Field(gt=0, le=10_000)]] = Field(default_factory=list)
    """In train, one for each of src (or another column), jsonl or stories: how often its pairs come in an epoch. 2 is
    twice; 0.25 is a quarter of them, drawn anew in each epoch; 1.5 is once, and half of them once more. They also say
    how much each counts when the tokenizer is learned. Default: 1 for all."""
    temperature: float = Field(default=1.0, ge=1.0, le=10_000)
    """In train, in place of weights: a file of n examples gives a share of the epoch in proportion to n^(1/T), so that
    small ones come more often. 1 leaves them as they are; 5 is usual with many languages (Arivazhagan et al. 2019,
    section 4.2). The tokenizer is learned from the text as it is."""
    tags: list[str] = Field(default_factory=list)
    """One for each of src, jsonl or stories: special tokens, with spaces between, that the model reads before each
    source, such as <2de> for the language to write (Johnson et al. 2017) or <BT> for back-translations (Caswell et al.
    2019). "" is none. A tokenizer that is learned has them among its `specials`."""
    src_lang: list[str] = Field(default_factory=list)
    """The language of the sources, or one for each of src, jsonl or stories. An imported multilingual model reads its
    token, such as eng_Latn."""
    tgt_lang: list[str] = Field(default_factory=list)
    """The language of the targets, in the same form: the token of an imported multilingual model, such as fra_Latn;
    for a model that is trained here `de` is the tag <2de>."""
    directions: list[str] = Field(default_factory=list)
    """One for each of src, jsonl or stories: the languages of its pairs, such as en-de. Validation and test tell the
    scores of each direction. "" is none."""

    encoding: str | dict[str, str] = ""
    """Encoding of the text, if it is not UTF-8: a name of Python's, such as cp1252, koi8-r, shift_jis or utf-16; or a
    name for each file that has another encoding than UTF-8: {train.fr: cp1252}."""

    @model_validator(mode="before")
    @classmethod
    def _corpora(cls, given: Any) -> Any:
        return joined_corpora(given)

    @field_validator("encoding")
    @classmethod
    def _known_encodings(cls, value: str | dict[str, str]) -> str | dict[str, str]:
        names = value.values() if isinstance(value, dict) else filter(None, [value])
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
        columns = self.src or (not self.jsonl and not self.stories and (self.tgt or self.labels or self.features))
        if sum(map(bool, (columns, self.jsonl, self.stories))) != 1:
            raise ValueError(
                "give either src (and tgt), or jsonl, or stories; to take back what the extended recipe gives, write "
                "an empty list, e.g. `jsonl: []`; to leave out the test set, write `--set data.test=null`, or "
                "`test: null` in the recipe"
            )
        if not columns and any(getattr(self, kind) for kind in LINE_ALIGNED_COLUMNS):
            raise ValueError(
                "tgt, labels, features, alignment, src_words and tgt_words are for text files; a jsonl file has both "
                "sides, named by src_field and tgt_field, and so has a story. Name all columns as FILE#KEY instead"
            )
        return self

    @model_validator(mode="after")
    def _go_together(self) -> "SplitFiles":
        if self.has_links and not {*TEXT_COLUMNS} <= {*self.columns}:
            raise ValueError("alignment: its links are between the words of src and tgt; name both, or leave it out")
        if self.story_lists and not self.stories:
            raise ValueError("story_lists select from folders of stories: name them with `stories`")
        if (self.src_words or self.tgt_words or self.alignment_base is not None) and not self.has_links:
            raise ValueError(
                "src_words, tgt_words and alignment_base say what words an alignment counts: name the alignment as well"
            )
        kind = next(kind for kind in FILE_KINDS if getattr(self, kind))
        count = len(getattr(self, kind))
        for name in (*LINE_ALIGNED_COLUMNS, "weights", "tags", *LANGUAGE_KEYS, "directions"):
            if len(getattr(self, name)) not in (0, count):
                raise ValueError(f"{kind} names {count} and {name} {len(getattr(self, name))}: they must be paired")
        return self

    @model_validator(mode="after")
    def _of_files(self) -> "SplitFiles":
        if self.weights and self.story_lists:
            raise ValueError("weights are of folders of stories, and story_lists select from all of them together")
        if self.temperature != 1 and (self.weights or self.story_lists):
            raise ValueError("a temperature makes weights of the sizes of files: leave weights and story_lists out")
        if any(self.tags) and "src" not in self.columns:
            raise ValueError("tags stand before sources, and there are none")
        if self.stories and len({*zip(self.src_lang, self.tgt_lang, strict=False)}) > 1:
            raise ValueError("src_lang and tgt_lang are the same for all folders of stories")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it has, of `COLUMNS`."""
        if self.stories:
            return TEXT_COLUMNS
        if self.jsonl:
            return tuple(name for name in TEXT_COLUMNS if getattr(self, f"{name}_field"))
        return tuple(name for name in COLUMNS if getattr(self, name))

    def epoch_weights(self, sizes: Sequence[int]) -> list[float]:
        """How often the examples of each file, of these sizes, come in an epoch; empty: once each."""
        if self.temperature == 1:
            return self.weights
        flattened = [size ** (1 / self.temperature) for size in sizes]
        factor = sum(sizes) / sum(flattened)
        return [factor * share / max(size, 1) for share, size in zip(flattened, sizes, strict=True)]

    def encoding_of(self, path: str) -> str:
        """The encoding that is named for a file; empty for UTF-8."""
        if isinstance(self.encoding, str):
            return self.encoding
        return self.encoding.get(path) or self.encoding.get(text_path(path), "")

    @property
    def languages(self) -> list[tuple[str, str]]:
        """The languages of source and target of each file; empty where none are named."""
        return [*zip_longest(self.src_lang, self.tgt_lang, fillvalue="")]

    @property
    def has_links(self) -> bool:
        """Whether pairs have word alignments."""
        return bool(self.alignment)

    def texts(self) -> list[str]:
        """The files of the text, or folders of stories."""
        return [*self.src, *self.tgt, *self.labels, *self.features, *self.jsonl, *self.stories]

    def paths(self) -> list[str]:
        """All files and folders, without columns of tables."""
        paths = [path for kind in FILE_KINDS for path in getattr(self, kind)]
        return list(dict.fromkeys(map(text_path, paths)))

    def resolved(self, folder: str) -> "SplitFiles":
        """The same with relative paths resolved in `folder` if the file exists there."""

        def settle(path: str) -> str:
            resolved = os.path.join(folder, path)
            return str(Path(resolved)) if os.path.exists(text_path(resolved)) else path

        settled: dict[str, Any] = {kind: list(map(settle, getattr(self, kind))) for kind in FILE_KINDS}
        if isinstance(self.encoding, dict):
            settled["encoding"] = {settle(path): name for path, name in self.encoding.items()}
        return self.model_copy(update=settled)


class DataConfig(Settings):
    """The corpora, and the filters of training pairs. Valid and test pairs are never dropped."""

    folder: str = ""
    """The folder of relative paths; a file that is not there is searched in the current folder."""
    train: SplitFiles
    """Pairs for training. A list of such groups is a list of corpora, each of which may have a `weight`, a `tag`, and
    the languages `src_lang` and `tgt_lang`: `tgt_lang: de` is the tag <2de>."""
    valid: SplitFiles | None = None
    """Pairs for validation during training."""
    test: SplitFiles | None = None
    """Pairs to translate and score after training. null: no test set, e.g. --set data.test=null where the extended
    recipe has one."""
    max_length: int = Field(default=256, ge=1)
    """The most tokens of a text of a training example; a longer one is handled as `over_long` says."""
    max_tgt_length: int | None = Field(default=None, ge=1)
    """Another limit for targets. Default: max_length."""
    over_long: Literal["drop", "truncate"] = "drop"
    """drop: leave such pairs out of training. truncate: cut them to max_length, in all splits. A cut target
    ends there like any other: its last token is followed by EOS."""
    max_ratio: float | None = Field(default=None, gt=1.0)
    """Leave out pairs whose longer side has more than this many times the tokens of the shorter. Default: no limit."""
    drop_duplicates: bool = False
    """Keep only the first of equal pairs."""

    @model_validator(mode="after")
    def _belongs_to_splits(self) -> "DataConfig":
        if self.valid is not None and self.valid.has_links:
            raise ValueError("valid: alignments guide the training or measure the test; only train and test name them")
        for name, files in (("valid", self.valid), ("test", self.test)):
            if files is not None and (files.weights or files.temperature != 1):
                raise ValueError(f"{name}: weights and temperature say how often pairs are read; only train has them")
        return self

    @property
    def limits(self) -> tuple[int, int]:
        """The most tokens of a source and of a target."""
        return self.max_length, self.max_tgt_length or self.max_length

    @property
    def truncation(self) -> tuple[int, int] | None:
        """The lengths to which sources and targets are truncated, in tokens; None without truncation."""
        return self.limits if self.over_long == "truncate" else None

    @property
    def zero_shot(self) -> list[str]:
        """The directions that are validated or tested, and not trained: Johnson et al. 2017, section 4.4."""
        judged = [one for files in (self.valid, self.test) if files is not None for one in files.directions]
        return [one for one in dict.fromkeys(judged) if one not in ("", *self.train.directions)]

    def splits(self) -> dict[str, SplitFiles]:
        """The given splits by name: train, valid, test; their paths are resolved in `folder`."""
        given = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: files.resolved(self.folder) for name, files in given.items() if files is not None}

    def paths(self) -> list[str]:
        """All files of all splits, resolved in `folder`."""
        return [path for files in self.splits().values() for path in files.paths()]
