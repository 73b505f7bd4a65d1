"""A recipe: every choice of one experiment in one file. It only chooses; it holds no logic.

A recipe may `extends:` one other file and say only what differs; `--set KEY=VALUE` goes through the same parser.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import nmtkit.models  # noqa: F401  # importing it registers every model
from nmtkit.data.batch import BatchConfig
from nmtkit.data.corpus import FILE_KINDS, DataConfig
from nmtkit.data.embeddings import EmbeddingsConfig
from nmtkit.data.tokenizer import TokenizerConfig
from nmtkit.errors import RecipeError
from nmtkit.models.base import MODELS, ModelConfig
from nmtkit.registry import near_names
from nmtkit.search.beam import SearchConfig
from nmtkit.settings import (
    Field,
    KeyPath,
    Settings,
    dump_yaml,
    load_yaml,
    model_validator,
    parse,
    parse_value,
)
from nmtkit.training.loop import TrainingConfig

if TYPE_CHECKING:
    AnyModelConfig = ModelConfig
else:
    _CONFIGS = tuple(MODELS.get(name).Config for name in MODELS.names())
    AnyModelConfig = Annotated[Union[_CONFIGS], Field(discriminator="kind")]  # noqa: UP007  # the members are not known here


HIGHER_IS_BETTER = {"bleu": True, "loss": False, "perplexity": False}
"""What validation measures and may decide which weights are best, and which way it goes."""


class EvaluationConfig(Settings):
    """How the model is judged on the validation set while it trains."""

    beam_size: int = Field(default=1, ge=1)
    """Beam size of the validation's search; the final translation uses `search.beam_size`."""
    max_sentences: int | None = Field(default=None, ge=1)
    """Translate only the first so many validation sentences (the loss is always over all); all if not given."""
    tokenize: Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none"] = "13a"
    """sacrebleu's tokenization for BLEU; none is for text that is already tokenized."""
    lowercase: bool = False
    """Whether BLEU ignores case."""
    batch_tokens: int = Field(default=4096, ge=1)
    """Padded tokens of the longer side that a batch may hold where the validation loss is computed."""


class Recipe(Settings):
    """All settings of one experiment."""

    name: str
    """The recipe's name: its file's name without `.yaml`, unless given."""
    description: str = ""
    """What the recipe is for, in a sentence."""
    task: Literal["translation"] = "translation"
    """What the model is for."""
    seed: int = 1
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

    @model_validator(mode="after")
    def _best_metric(self) -> "Recipe":
        name, higher = self.training.best_metric, self.training.higher_is_better
        if name not in HIGHER_IS_BETTER:
            raise ValueError(
                f"`training.best_metric`: validation gives no {name!r}: {near_names(name, HIGHER_IS_BETTER)}"
            )
        if higher != HIGHER_IS_BETTER[name]:
            raise ValueError(f"`training.higher_is_better` must be {str(not higher).lower()} for {name!r}")
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
    if path.is_file():
        return path
    ours = folder() / f"{recipe.removesuffix('.yaml')}.yaml"
    if ours.is_file():
        return ours
    raise RecipeError(f"no recipe {recipe!r}: not a file, and not one of nmtkit's own: {near_names(recipe, shipped())}")


def _merge(
    base: dict[str, Any],
    base_places: dict[KeyPath, str],
    extra: dict[str, Any],
    extra_places: dict[KeyPath, str],
    path: KeyPath = (),
) -> None:
    """Lays `extra` over `base`, key by key. A group whose `kind` changes starts afresh: its old keys do not fit."""
    for key, value in extra.items():
        here = (*path, key)
        old = base.get(key)
        fresh = (
            isinstance(value, dict) and isinstance(old, dict) and value.get("kind", old.get("kind")) != old.get("kind")
        )
        if isinstance(value, dict) and isinstance(old, dict) and not fresh:
            _merge(old, base_places, value, extra_places, here)
        else:
            base[key] = value
            for known in [known for known in base_places if known[: len(here)] == here]:
                del base_places[known]
        for known, place in extra_places.items():
            if known[: len(here)] == here:
                base_places[known] = place


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
    if not parent_path.is_file():
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
    return name if Path(name).exists() and not beside.exists() else str(beside)


def _make_whole(group: dict[str, Any], start: Path) -> None:
    """Begins `folder` at `start` if there is such a folder, so that it means the same from everywhere."""
    if isinstance(group.get("folder"), str) and group["folder"]:
        whole = start.resolve() / group["folder"]
        if whole.is_dir():
            group["folder"] = str(whole)


def load(recipe: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a recipe, the one it extends, and the overrides.

    Args:
        recipe: a file, or the name of a recipe that comes with nmtkit.
        overrides: `KEY=VALUE`, the key dotted: `training.lr=0.001`.

    Raises:
        RecipeError: every fault in one message: file, line, dotted key, what was given, what is valid.
    """
    path = locate(str(recipe))
    data, places = _read(path)
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise RecipeError(f"--set {text!r}: expected KEY=VALUE, e.g. --set training.lr=0.001")
        keys: KeyPath = tuple(key.strip().split("."))
        nested: Any = parse_value(value)
        for part in reversed(keys):
            nested = {part: nested}
        at: Any = data
        for part in keys[:-1]:
            at = at.get(part, {}) if isinstance(at, dict) else None
        if not isinstance(at, dict):
            raise RecipeError(f"--set {text}: `{key}` lies below a key that holds a single value")
        _merge(data, places, nested, {keys[:n]: f"--set {text}" for n in range(1, len(keys) + 1)})
    if isinstance(data.get("data"), dict):
        _make_whole(data["data"], Path())  # of what --set gave; a recipe's own is whole already
    data.setdefault("name", path.stem)
    return parse(Recipe, data, str(path), places)


def schema() -> dict[str, Any]:
    """The JSON schema of a recipe, for editors that check YAML while one types."""
    return Recipe.model_json_schema()
