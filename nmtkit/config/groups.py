"""Groups of a recipe: `stages` and `evaluation`; also turns languages of corpora into affixes or special tokens."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from nmtkit.config.tasks.builtin import TRANSLATION
from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import NmtkitError, shorten
from nmtkit.core.settings import Beam, Field, Name, Settings, field_validator
from nmtkit.data.text.config import (
    LANGUAGE_KEYS,
    DataConfig,
    SplitFiles,
    joined_corpora,
    language_directions,
    language_tags,
)
from nmtkit.data.tokenizers.huggingface_tokenizer import LANGUAGE
from nmtkit.data.tokenizers.languages import affixes_in_direction, find_language, language_names
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.metrics import METRICS, Options, metric_names

STAGE_GROUPS = ("task", "data", "model", "batch", "training", "search")
"""The keys of a recipe that a stage may change: the task, and groups of settings."""
MAX_STAGES = 100
"""Maximum number of stages; each one is expanded to a complete recipe."""


class Stage(Settings):
    """One stage of training, which changes settings of the recipe. Its updates, epochs and minutes start at zero.

    A stage starts from the best weights of the previous stage, and has its own data order. Parts of the model that did
    not exist before are initialized as in a new model. The optimizer keeps its state if its kind stays the same. A time
    limit in the recipe, rather than in a stage, applies to all stages together.
    """

    name: Name = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*(-[A-Za-z0-9_]+)*$")
    """Name of the stage: letters, digits, - and _."""
    task: str | None = None
    """Task of this stage, such as language-modelling for pretraining. Default: the task of the recipe. The last stage
    must have the task of the recipe."""
    data: dict[str, Any] = Field(default_factory=dict)
    """Settings of `data` that change; train and valid are replaced as a whole. Text that differs from the recipe's is
    stored separately."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Settings of the model that change; `kind` and all sizes stay the same."""
    batch: dict[str, Any] = Field(default_factory=dict)
    """Settings of `batch` that change, such as shorter blocks at first (Devlin et al. 2019, appendix A.2)."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Settings of `training` that change."""
    search: dict[str, Any] = Field(default_factory=dict)
    """Settings of `search` that change."""

    def changes(self) -> dict[str, Any]:
        """Returns the changed settings by group."""
        return {group: getattr(self, group) for group in STAGE_GROUPS if getattr(self, group)}

    def with_storage_settings(self, whole: Any) -> "Stage":
        """Adds the storage settings of the stage's complete recipe `whole`; the stage then fits into other recipes."""
        limits = whole.data.model_dump(include={"max_length", "max_tgt_length"})
        own = {"data": {**self.data, **limits}, "model": whole.model.model_dump(exclude={"kind"})}
        return self.model_copy(update=own)

    def changed_keys(self) -> Iterator[tuple[str, Any]]:
        """Yields the dotted keys that the stage changes, with their values."""
        return _dotted_keys(self.changes())


def without_replaced(recipe: Mapping[str, Any], stage: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recipe without the settings that a stage replaces as a whole.

    A stage replaces files if it has its own, the metrics and the test set if it has a different task, and the metric
    that selects the best checkpoint if it sets a different one or does not measure it.
    """
    gone = {"train", "valid"} & {*stage.get("data", ())}
    if stage.get("task"):
        gone |= {"test", "metrics"}
    left = dict(recipe)
    for group in ("data", "evaluation"):
        if isinstance(recipe.get(group), Mapping):
            left[group] = {key: value for key, value in recipe[group].items() if key not in gone}
    training = recipe.get("training")
    if isinstance(training, Mapping):
        changed = stage.get("training")
        names_another = isinstance(changed, Mapping) and "best_metric" in changed
        if names_another or not _is_measured(training.get("best_metric"), left, stage):
            left["training"] = {
                key: value for key, value in training.items() if key != "best_metric"
            }
    return left


def _is_measured(metric: Any, recipe: Mapping[str, Any], stage: Mapping[str, Any]) -> bool:
    """Returns whether a stage of a recipe measures a validation metric; True if the settings are invalid."""
    task = stage.get("task") or recipe.get("task", TRANSLATION.name)
    if not isinstance(task, str) or task not in TASKS.names():
        return True
    named = _named_metrics(recipe.get("evaluation", {}))
    if named is None:
        return True
    measured = named or TASKS.get(task).validation_metrics
    return metric in measured or metric in ("loss", "perplexity")


def _named_metrics(evaluation: Any) -> list[str] | None:
    """Returns the metrics that `evaluation` lists, possibly none, or None if the settings are invalid."""
    if not isinstance(evaluation, Mapping):
        return None
    try:
        return metric_names(evaluation["metrics"]) if evaluation.get("metrics") else []
    except (NmtkitError, TypeError):
        return None


def with_best_metric(given: Any) -> Any:
    """Returns the values of a recipe, including the metric that selects the best checkpoint.

    The default is the metric of the task. Invalid values are left unchanged; validation of their group reports them.
    """
    if not isinstance(given, dict):
        return given
    task = given.get("task", TRANSLATION.name)
    training = given.get("training")
    named = _named_metrics(given.get("evaluation", {}))
    if (
        not isinstance(training, dict)
        or named is None
        or not isinstance(task, str)
        or task not in TASKS.names()
    ):
        return given
    training = dict(training)
    training.setdefault("best_metric", TASKS.get(task).choose_best_metric(named))
    return {**given, "training": training}


def _dotted_keys(changes: dict[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in changes.items():
        if isinstance(value, dict):
            yield from _dotted_keys(value, f"{group}{key}.")
        else:
            yield f"{group}{key}", value


class EvaluationConfig(Settings):
    """How the model is evaluated on the validation set during training."""

    beam_size: Beam = Field(default=1, ge=1)
    """Beam size for validation; the final translation uses `search.beam_size`."""
    max_sentences: int | None = Field(default=None, ge=1)
    """Maximum number of validation sentences to translate, from the beginning of the set; with `directions`, this is
    the maximum for each direction. Default: all. The loss is always computed on all sentences."""
    tokenize: Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none"] = "13a"
    """sacrebleu's tokenization for BLEU and GLEU; use none for text that is already tokenized."""
    lowercase: bool = False
    """Ignore case in BLEU, chrF and CIDEr-D, like sacrebleu's `-lc` (Post 2018); `nmtkit evaluate` uses it by
    default."""
    metrics: Annotated[list[Name] | None, METRICS] = None
    """Validation metrics in addition to loss and perplexity, named as in `nmtkit score --metrics`. Default: the metrics
    of the task, such as bleu, or rouge for summaries. The test after training also uses them."""

    @property
    def options(self) -> Options:
        """Options for preparing text before metrics compare it."""
        return Options(tokenize=self.tokenize, lowercase=self.lowercase)

    @field_validator("metrics")
    @classmethod
    def _metrics(cls, names: list[str] | None) -> list[str] | None:
        try:
            return None if names is None else metric_names(names)
        except NmtkitError as fault:
            raise ValueError(str(fault)) from fault


def with_languages_of_corpora(given: Any) -> Any:
    """Returns the values of a recipe, with the languages of its corpora moved to where the tokenizer needs them.

    An imported multilingual model has a token for each language. The languages become `tokenizer.affixes`, or stay with
    each file if there is more than one direction. For other models, the languages become tags, such as <2de>. A
    tokenizer that is yet to be trained gets the tags as special tokens.

    Raises:
        ValueError: an imported model does not have a language.
    """
    try:
        data = {**given["data"]}
        tokenizer = given.get("tokenizer", {})
        splits = {
            name: joined_corpora(data[name]) for name in ("train", "valid", "test") if name in data
        }
        specials = tokenizer.get("specials", [])
        is_imported = tokenizer.get("kind") == "huggingface" and _are_texts(specials)
        names = language_names(specials) if is_imported else []
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
    ):  # the error is raised when the group is validated
        return given
    if names:
        return _in_directions_of_corpora(given, splits, names)
    try:
        data |= {
            name: language_tags(files) if isinstance(files, dict) else files
            for name, files in splits.items()
        }
        tags = " ".join(data["train"].get("tags") or []).split()
        origin = given.get("init_from")
        test = (
            joined_corpora(origin["test"])
            if isinstance(origin, dict) and origin.get("test")
            else None
        )
        tagged_test = language_tags(test) if isinstance(test, dict) else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return given
    changed = {**given, "data": data}
    if isinstance(origin, dict) and tagged_test is not None:
        changed["init_from"] = {**origin, "test": tagged_test}
    if tags and _are_texts(specials) and not given.get("init_from"):
        changed["tokenizer"] = {**tokenizer, "specials": [*dict.fromkeys([*specials, *tags])]}
    return changed


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _in_directions_of_corpora(
    given: dict[str, Any], splits: dict[str, Any], names: list[str]
) -> dict[str, Any]:
    """Returns the values of a recipe for an imported model that has the languages `names`."""
    changed = {}
    used: dict[str, set[str]] = {key: set() for key in LANGUAGE_KEYS}
    for split, files in splits.items():
        if not isinstance(files, dict):
            continue
        found: dict[str, list[str]] = {}
        for key in LANGUAGE_KEYS:
            languages = files.get(key) or []
            if not isinstance(languages, list) or not all(
                isinstance(language, str) for language in languages
            ):
                return given
            try:
                found[key] = [
                    find_language(language, names) if language else "" for language in languages
                ]
            except NmtkitError as fault:
                raise ValueError(f"`data.{split}.{key}`: {fault}") from fault
            used[key].update(found[key])
        changed[split] = {**files, **found}
        if not files.get("directions"):
            changed[split]["directions"] = language_directions(*found.values())
    if not any(used.values()):
        return given
    sides = []
    for key in LANGUAGE_KEYS:
        several = LANGUAGE if len(used[key]) > 1 else None
        sides.append(next(iter(used[key])) if len(used[key]) == 1 else several)
    affixes = affixes_in_direction(given["tokenizer"].get("affixes") or {}, names, *sides)
    return {
        **given,
        "data": {**given["data"], **changed},
        "tokenizer": {**given["tokenizer"], "affixes": affixes},
    }


def require_known_tags(data: DataConfig, tokenizer: TokenizerConfig) -> None:
    """Raises a ValueError if a tag is not a special token of the tokenizer."""
    for split, files in vars(data).items():
        for tags in files.tags if isinstance(files, SplitFiles) else ():
            if unknown := [tag for tag in tags.split() if tag not in tokenizer.specials]:
                raise ValueError(
                    f"`data.{split}`: the tokenizer has no special token for the tag {unknown[0]} (special tokens: "
                    f"{shorten(', '.join(tokenizer.specials), 200) or 'none'}); remove the tag, or use it in "
                    "data.train and train a new tokenizer"
                )
