"""A recipe: every choice of one experiment in one file. It only chooses; it holds no logic.

A recipe may `extends:` one other file and say only what differs; `--set KEY=VALUE` goes through the same parser.
Training in stages is a list of partial recipes, each laid over the whole one and checked as a whole.
"""

import copy
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import nmtkit.models  # noqa: F401  # importing it registers every model
from nmtkit.data.batch import BatchConfig
from nmtkit.data.corpus import FILE_KINDS, DataConfig
from nmtkit.data.embeddings import EmbeddingsConfig
from nmtkit.data.tokenizer import TokenizerConfig
from nmtkit.errors import NmtkitError, RecipeError
from nmtkit.metrics import METRICS, metric_names
from nmtkit.models.base import MODELS, ModelConfig
from nmtkit.registry import near_names
from nmtkit.search.beam import SearchConfig
from nmtkit.settings import (
    DEEPEST,
    Beam,
    Field,
    KeyPath,
    Name,
    Settings,
    dump_yaml,
    field_validator,
    is_name,
    load_yaml,
    model_validator,
    parse,
    parse_value,
    shortened,
)
from nmtkit.task import TASKS
from nmtkit.training.config import TrainingConfig

if TYPE_CHECKING:
    AnyModelConfig = ModelConfig
else:
    _CONFIGS = tuple(MODELS.get(name).Config for name in MODELS.names())
    AnyModelConfig = Annotated[Union[_CONFIGS], Field(discriminator="kind")]  # noqa: UP007  # the members are not known here


WEIGHTS = ("auto", "average", "best", "last")
"""The weights of a run that can be asked for by a word; a stage is called otherwise."""


class EvaluationConfig(Settings):
    """How the model is judged on the validation set while it trains."""

    beam_size: Beam = Field(default=1, ge=1)
    """Beam size of the validation's search; the final translation uses `search.beam_size`."""
    max_sentences: int | None = Field(default=None, ge=1)
    """Translate only the first so many validation sentences (the loss is always over all); all if not given."""
    tokenize: Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none"] = "13a"
    """sacrebleu's tokenization for BLEU; none is for text that is already tokenized."""
    lowercase: bool = False
    """Whether BLEU ignores case."""
    metrics: list[Name] | None = None
    """What validation measures beside loss and perplexity; names as in `nmtkit score --metrics`. If not given: bleu, of
    summaries rouge. The test after training measures it as well."""
    batch_tokens: int = Field(default=4096, ge=1)
    """Padded tokens of the longer side that a batch may hold where the validation loss is computed."""

    @field_validator("metrics")
    @classmethod
    def _metrics(cls, names: list[str] | None) -> list[str] | None:
        try:
            return None if names is None else metric_names(names)
        except NmtkitError as fault:
            raise ValueError(str(fault)) from fault


STAGE_GROUPS = ("data", "model", "batch", "training", "search", "evaluation")
"""The groups of a recipe that a stage may change."""
STAGE_LIMITS = ("max_length", "max_tgt_length")
"""What a stage may change in `data`: the text is read, cut into tokens and stored once, for all stages."""


MOST_STAGES = 100
"""How many stages a training may have: each is a whole recipe."""


class Stage(Settings):
    """One stage of a training: what it changes in the recipe. Updates, epochs and minutes count from its beginning.

    A stage begins with the weights that validation chose in the stage before, and with its own data order. What the
    model has only now begins as in a fresh model. The optimizer goes on with what it knows of each weight, if it is the
    same. Minutes that the recipe gives, and not a stage, are those of all stages together.
    """

    name: Name = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*(-[A-Za-z0-9_]+)*$")
    """What the stage is called; letters, digits, - and _."""
    data: dict[str, Any] = Field(default_factory=dict)
    """max_length and max_tgt_length of this stage; needs `data.over_long: truncate`."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Settings of the model that differ; `kind` and all sizes stay."""
    batch: dict[str, Any] = Field(default_factory=dict)
    """Settings of `batch` that differ."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Settings of `training` that differ."""
    search: dict[str, Any] = Field(default_factory=dict)
    """Settings of `search` that differ."""
    evaluation: dict[str, Any] = Field(default_factory=dict)
    """Settings of `evaluation` that differ."""

    def changes(self) -> dict[str, dict[str, Any]]:
        """The groups that it changes."""
        return {group: getattr(self, group) for group in STAGE_GROUPS if getattr(self, group)}


class Recipe(Settings):
    """All settings of one experiment."""

    name: Name
    """The recipe's name, and its run's: its file's name without `.yaml`, unless given. A word or several, no path."""
    description: str = ""
    """What the recipe is for, in a sentence."""
    task: str = Field(default="translation", json_schema_extra={"enum": [*TASKS.names()]})
    """What the model is for. Validation and test measure translations by BLEU, summaries by ROUGE."""
    seed: int = Field(default=1, ge=0)
    """Seeds the weights, the order of the data and dropout."""
    data: DataConfig
    """The text."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes tokens."""
    model: AnyModelConfig
    """The model; `kind` chooses, the other keys are that model's own."""
    pretrained_embeddings: EmbeddingsConfig | None = None
    """Word vectors for the model to begin with; random ones if not given."""
    batch: BatchConfig = BatchConfig()
    """How sentences are put together for training."""
    training: TrainingConfig
    """How the model is trained."""
    search: SearchConfig = SearchConfig()
    """How translations are searched for."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """How the model is judged while it trains."""
    stages: list[Stage] = Field(default_factory=list, max_length=MOST_STAGES)
    """Training in stages, one after the other, each with a name and what it changes of the groups above."""

    @field_validator("task")
    @classmethod
    def _task(cls, name: str) -> str:
        if name not in TASKS.names():
            raise ValueError(f"there is no task {shortened(name)!r}; {near_names(name, TASKS.names())}")
        return name

    @field_validator("stages")
    @classmethod
    def _stages(cls, stages: list[Stage]) -> list[Stage]:
        names = [stage.name for stage in stages]
        for number, stage in enumerate(stages):
            if stage.name in names[:number]:
                raise ValueError(f"two stages are called {stage.name!r}; give each a name of its own")
            if stage.name in WEIGHTS:
                raise ValueError(f"a stage cannot be called {stage.name!r}: --weights {stage.name} has another meaning")
            for key in stage.data:
                if key not in STAGE_LIMITS:
                    raise ValueError(
                        f"stage {stage.name}: `data.{key}` is for all stages; of `data` a stage may change only "
                        f"{' and '.join(STAGE_LIMITS)}"
                    )
            if "kind" in stage.model:
                raise ValueError(f"stage {stage.name}: `model.kind` is for all stages, which train one model")
        return stages

    @model_validator(mode="after")
    def _limits_of_stages(self) -> "Recipe":
        if self.data.over_long != "truncate" and any(stage.data for stage in self.stages):
            raise ValueError("`stages`: limits of length in a stage need `data.over_long: truncate`")
        return self

    @model_validator(mode="after")
    def _best_metric(self) -> "Recipe":
        name, higher = self.training.best_metric, self.training.higher_is_better
        given = (*self.validated, "loss", "perplexity")
        if name not in given:
            raise ValueError(
                f"`training.best_metric`: validation of a {self.task} gives no {name!r}: {near_names(name, given)}"
            )
        if higher != METRICS.get(name).higher_is_better:
            raise ValueError(f"`training.higher_is_better` must be {str(not higher).lower()} for {name!r}")
        return self

    @model_validator(mode="after")
    def _coverage(self) -> "Recipe":
        if self.training.coverage_weight and not MODELS.get(self.model.kind).has_attention:
            raise ValueError(
                f"`training.coverage_weight`: {self.model.kind} has no attention that could cover anything"
            )
        return self

    @model_validator(mode="after")
    def _guided_alignment(self) -> "Recipe":
        guided, linked = self.training.guided_alignment, self.data.train.has_links
        if linked and self.tokenizer.sampling:
            raise ValueError(
                "`data.train.alignment`: its links are laid between the tokens of one way to cut the text; "
                "set `tokenizer.sampling` to 0, or leave the alignment out"
            )
        if guided is None:
            return self
        if not MODELS.get(self.model.kind).has_attention:
            raise ValueError(f"`training.guided_alignment`: {self.model.kind} has no attention that could be taught")
        if guided.source == "file" and not linked:
            raise ValueError(
                "`training.guided_alignment`: its source is file, so `data.train.alignment` must name Pharaoh files "
                "(one line of i-j links a pair)"
            )
        if guided.source == "model" and not self.model.shows_one_head:
            raise ValueError(
                "`training.guided_alignment`: with source model all heads of a layer teach one of them, so the model "
                "must be a transformer and `model.alignment_heads` a head number"
            )
        return self

    @model_validator(mode="after")
    def _minutes_of_stages(self) -> "Recipe":
        whole, given = self.training.max_minutes, [stage.training.get("max_minutes") for stage in self.stages]
        own = sum(minutes for minutes in given if isinstance(minutes, int | float))
        others = [stage.name for stage in self.stages if "max_minutes" not in stage.training]
        if whole is not None and others and own >= whole:
            raise ValueError(
                f"`training.max_minutes`: the {whole:g} are those of the whole training, and stages have {own:g} of "
                f"their own, which leaves none for stage {others[0]}; give more in all, or a max_minutes to each stage"
            )
        return self

    def by_stage(self, taken: Sequence[float] = ()) -> dict[str, "Recipe"]:
        """The whole recipe of every stage by its name, in their order; of a recipe without stages itself, under "".

        A stage that has no `training.max_minutes` of its own gets its part of the whole training's: what the stages
        before have not used, and no later one has for itself, is shared equally by it and the later ones of its kind.

        Args:
            taken: the seconds that each of the first stages took, of those that are over; the others are taken to last
                as long as they may.

        Raises:
            RecipeError: a stage does not fit; never for a recipe that `load` gave.
        """
        if not self.stages:
            return {"": self}
        found = {}
        for stage in self.stages:
            data = self.model_dump(exclude={"stages"})
            _merge(data, {}, copy.deepcopy(stage.changes()), {})
            found[stage.name] = parse(Recipe, data, f"recipe {self.name}, stage {stage.name}")
        if self.training.max_minutes is not None:
            self._share_minutes(self.training.max_minutes, found, taken)
        return found

    def _share_minutes(self, whole: float, found: dict[str, "Recipe"], taken: Sequence[float]) -> None:
        """Gives the stages that have no minutes of their own their parts of the whole training's; 0 if none is left."""
        shared = [stage.name for stage in self.stages if "max_minutes" not in stage.training]
        left = whole - sum(one.training.max_minutes or 0.0 for name, one in found.items() if name not in shared)
        for number, (name, one) in enumerate(found.items()):
            minutes = one.training.max_minutes or 0.0
            if name in shared:
                minutes = max(0.0, left / (len(shared) - shared.index(name)))
                found[name] = one.model_copy(
                    update={"training": one.training.model_copy(update={"max_minutes": minutes})}
                )
                left -= minutes
            if number < len(taken):
                left += minutes - taken[number] / 60

    @property
    def validated(self) -> list[str]:
        """The metrics of validation beside loss and perplexity."""
        return self.evaluation.metrics or [*TASKS.get(self.task).validated]

    @property
    def tested(self) -> list[str]:
        """The metrics of the test after training: the task's, and those of validation."""
        return list(dict.fromkeys((*TASKS.get(self.task).tested, *self.validated)))

    @property
    def stored(self) -> DataConfig:
        """How the text is read and stored: cut at the longest limits of all stages."""
        if not self.stages:
            return self.data
        src, tgt = zip(*(one.data.limits for one in self.by_stage().values()), strict=True)
        return self.data.model_copy(update={"max_length": max(src), "max_tgt_length": max(tgt)})

    @property
    def copies(self) -> bool:
        """Whether the model copies in any stage, so that the text is stored with extended ids."""
        return any(one.model.copies for one in self.by_stage().values())

    def to_yaml(self) -> str:
        """The recipe with every default written out; loading it gives an equal recipe."""
        return dump_yaml(self.model_dump(mode="json"))


def folder() -> Path:
    """Where the recipes that come with nmtkit are: inside the package once installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def shipped() -> list[str]:
    """The names of the recipes that come with nmtkit."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def locate(recipe: str) -> Path:
    """The file of a recipe given as a path, or as the name (or file name) of one that comes with nmtkit.

    Raises:
        RecipeError: there is neither; the message offers the nearest name.
    """
    path = Path(recipe)
    if os.path.isfile(path):  # false as well where a name is longer than any file's
        return path
    ours = folder() / f"{recipe.removesuffix('.yaml')}.yaml"
    if os.path.isfile(ours):
        return ours
    raise RecipeError(f"no recipe {recipe!r}: not a file, and not one of nmtkit's own: {near_names(recipe, shipped())}")


def _merge(
    base: dict[str, Any],
    base_places: dict[KeyPath, str],
    extra: dict[str, Any],
    extra_places: dict[KeyPath, str],
    path: KeyPath = (),
) -> None:
    """Lays `extra` over `base`, both of which stand at `path`, key by key; the places of what is gone go with it."""
    replaced = set(_lay_over(base, extra, path))
    gone = [known for known in base_places if any(known[:n] in replaced for n in range(1, len(known) + 1))]
    for known in gone:
        del base_places[known]
    here = len(path)
    base_places.update(
        {known: place for known, place in extra_places.items() if known[here : here + 1] and known[here] in extra}
    )


def _lay_over(base: dict[str, Any], extra: dict[str, Any], path: KeyPath) -> Iterator[KeyPath]:
    """Lays `extra` over `base`, and gives the path of every value that takes the place of another.

    A group whose `kind` changes starts afresh: its old keys do not fit.
    """
    for key, value in extra.items():
        old: Any = base.get(key)
        groups = isinstance(value, dict) and isinstance(old, dict)
        if groups and value.get("kind", old.get("kind")) == old.get("kind"):
            yield from _lay_over(old, value, (*path, key))
        else:
            base[key] = value
            yield (*path, key)


def _read(path: Path, seen: tuple[Path, ...] = ()) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    if path.resolve() in seen:
        chain = " -> ".join(str(one) for one in (*seen, path.resolve()))
        raise RecipeError(f"{path}: `extends` goes round in a circle: {chain}")
    data, places = load_yaml(path)
    _settle_paths(data, path)
    parent = data.pop("extends", None)
    if parent is None:
        return data, places
    if not isinstance(parent, str):
        raise RecipeError(f"{places[('extends',)]}: `extends` names one other recipe, not a {type(parent).__name__}")
    parent_path = path.parent / parent
    if not os.path.isfile(parent_path):
        try:
            parent_path = locate(parent)
        except RecipeError as fault:
            raise RecipeError(f"{places[('extends',)]}: `extends`: {fault}") from fault
    base, base_places = _read(parent_path, (*seen, path.resolve()))
    _merge(base, base_places, data, places)
    return base, base_places


def _settle_paths(data: dict[str, Any], path: Path) -> None:
    """Makes the files' paths whole: what a recipe names is meant from the recipe's own folder, then from here."""
    vectors = data.get("pretrained_embeddings")
    if isinstance(vectors, dict):
        for side in ("src", "tgt"):
            if isinstance(vectors.get(side), str):
                vectors[side] = _beside(vectors[side], path)
    group = data.get("data")
    if not isinstance(group, dict):
        return
    if "folder" in group:
        _make_whole(group, path.parent)
        return
    for split in ("train", "valid", "test"):
        files: Any = group.get(split)
        for kind in FILE_KINDS if isinstance(files, dict) else ():
            given = files.get(kind)
            if isinstance(given, str):
                files[kind] = _beside(given, path)
            elif isinstance(given, list):
                files[kind] = [_beside(one, path) if isinstance(one, str) else one for one in given]


def _beside(name: str, path: Path) -> str:
    """A file's path from the recipe's folder; only a file that is not there but here is meant from here."""
    beside = path.parent.resolve() / name
    return name if os.path.exists(name) and not os.path.exists(beside) else str(beside)


def _make_whole(group: dict[str, Any], start: Path) -> None:
    """Begins `folder` at `start` if there is such a folder, so that it means the same from everywhere."""
    if isinstance(group.get("folder"), str) and group["folder"]:
        whole = start.resolve() / group["folder"]
        if os.path.isdir(whole):
            group["folder"] = str(whole)


def load(recipe: str | Path, overrides: Sequence[str] = (), otherwise: str | None = None) -> Recipe:
    """Reads a recipe, the one it extends, and the overrides.

    Args:
        recipe: a file, or the name of a recipe that comes with nmtkit.
        overrides: `KEY=VALUE`, the key dotted: `training.lr=0.001`.
        otherwise: what to call it where its name is none, as earlier runs may have it, instead of refusing it.

    Raises:
        RecipeError: every fault in one message: file, line, dotted key, what was given, what is valid.
    """
    path = locate(str(recipe))
    data, places = _read(path)
    for text in overrides:
        _override(data, places, text)
    if isinstance(data.get("data"), dict):
        _make_whole(data["data"], Path())  # of what --set gave; a recipe's own is whole already
    data.setdefault("name", path.stem)
    if otherwise and isinstance(data["name"], str) and not is_name(data["name"]):
        data["name"] = otherwise
    return _checked(data, places, str(path))


def _override(data: dict[str, Any], places: dict[KeyPath, str], text: str) -> None:
    """Lays one `KEY=VALUE` over the recipe; a stage is named, or counted from 0: `stages.NAME.training.lr=0.001`."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise RecipeError(f"--set {text!r}: expected KEY=VALUE, e.g. --set training.lr=0.001")
    text, key = shortened(text), key.strip()
    keys: KeyPath = tuple(key.split("."))
    if len(keys) > DEEPEST:
        raise RecipeError(f"--set {text}: no key lies so deep; expected KEY=VALUE, e.g. --set training.lr=0.001")
    listed = data.get("stages")
    stages = [stage for stage in listed if isinstance(stage, dict)] if isinstance(listed, list) else []
    group, above = data, 0  # how many of the keys lead to the mapping that is changed
    if keys[0] == "stages" and len(keys) > 1:
        names = [str(stage.get("name", "")) for stage in stages]
        counted = [str(number) for number in range(len(stages))]
        number = next((known.index(keys[1]) for known in (names, counted) if keys[1] in known), None)
        if number is None:
            raise RecipeError(f"--set {text}: no stage {shortened(repr(keys[1]))}: {near_names(str(keys[1]), names)}")
        if len(keys) == 2:
            raise RecipeError(f"--set {text}: name a key of the stage, e.g. stages.{keys[1]}.training.lr=0.001")
        keys = ("stages", number, *keys[2:])
        group, above = stages[number], 2
    elif stages and keys[0] in STAGE_GROUPS and all(_has(stage, keys) for stage in stages):
        raise RecipeError(
            f"--set {text}: every stage says `{key}` itself, so this would change nothing; "
            f"change it in a stage: --set stages.{stages[0].get('name')}.{text}"
        )
    nested: Any = parse_value(value)
    for part in reversed(keys[above:]):
        nested = {part: nested}
    at: Any = group
    for part in keys[above:-1]:
        at = at.get(part, {}) if isinstance(at, dict) else None
    if not isinstance(at, dict):
        raise RecipeError(f"--set {text}: `{key}` lies below a key that holds a single value")
    set_here = {keys[:n]: f"--set {text}" for n in range(above + 1, len(keys) + 1)}
    _merge(group, places, nested, set_here, keys[:above])


def _has(group: Any, keys: KeyPath) -> bool:
    for key in keys:
        if not isinstance(group, dict) or key not in group:
            return False
        group = group[key]
    return True


def _checked(data: dict[str, Any], places: dict[KeyPath, str], where: str) -> Recipe:
    """The recipe, if it and each of its stages, laid over it, are valid; else all faults of all of them.

    What a stage says is told under its own path and line, what it takes over under the recipe's.
    """
    listed = data.get("stages")
    stages = dict(enumerate(listed if isinstance(listed, list) and len(listed) <= MOST_STAGES else []))
    names = {number: stage.get("name") if isinstance(stage, dict) else None for number, stage in stages.items()}

    def by_name(path: KeyPath) -> KeyPath:
        if len(path) > 1 and path[0] == "stages" and isinstance(path[1], int):
            return ("stages", names.get(path[1]) or path[1], *path[2:])
        return path

    faults: list[str] = []
    recipe = None
    try:
        recipe = parse(Recipe, data, where, places, by_name)
    except RecipeError as fault:
        if fault.more:
            raise
        faults += fault.faults
    whole = {key: value for key, value in data.items() if key != "stages"}
    for number, stage in stages.items():
        if not isinstance(stage, dict):
            continue
        changes = {group: stage[group] for group in STAGE_GROUPS if isinstance(stage.get(group), dict)}
        own = {path[2:]: place for path, place in places.items() if path[:2] == ("stages", number) and path[2:]}
        merged, merged_places = copy.deepcopy(whole), dict(places)
        _merge(merged, merged_places, copy.deepcopy(changes), own)

        def called(
            path: KeyPath,
            own: dict[KeyPath, str] = own,
            known: dict[KeyPath, str] = merged_places,
            number: int = number,
        ) -> KeyPath:
            nearest = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in known), ())
            return by_name(("stages", number, *path)) if nearest in own else path

        here = f"{places.get(('stages', number), where)}: stage {names[number]}"
        try:
            parse(Recipe, merged, here, merged_places, called)
        except RecipeError as fault:
            faults += fault.faults
    if recipe is None or faults:
        raise RecipeError(*dict.fromkeys(faults))
    return recipe


def schema() -> dict[str, Any]:
    """The JSON schema of a recipe, for editors that check YAML while one types."""
    return Recipe.model_json_schema()
