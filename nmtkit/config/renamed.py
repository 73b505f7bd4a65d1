"""Recipe keys of earlier versions and their replacements.

All recipes are passed through `translate`: files, the files they extend, `--set`, and the recipes of saved runs. The
recipe of a saved run contains every key of the nmtkit version that wrote it, so most removed keys in it have harmless
values. A run's settings for decoding, `inference.json`, are copied from its recipe; if they contain keys of an earlier
version, the recipe is read instead.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nmtkit.core.errors import RecipeError, shorten
from nmtkit.core.formats import KeyPath
from nmtkit.decoding.settings import KINDS, SEARCH_FIELDS, with_kind

Tree = dict[str, Any]
"""The values of a recipe, or of a stage, as parsed from YAML."""
Places = dict[KeyPath, str]
"""The place where each key is set; see `load_yaml`."""


class _AnyValue:
    """An object that is equal to every value."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


ANY_VALUE = _AnyValue()


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Moved:
    """A key that was renamed."""

    key: str
    new_key: str
    convert: Callable[[Any], Any] = _same


@dataclass(frozen=True)
class Removed:
    """A key that was removed. It is dropped if its value is harmless, i.e. describes what nmtkit now always does."""

    key: str
    harmless: tuple[Any, ...]
    remedy: str
    """What to do if the key has any other value."""
    kinds: tuple[str, ...] = ()
    """The kinds of model that lost the key; if empty, all kinds."""


def _brackets(is_set: Any) -> Any:
    if isinstance(is_set, bool):
        return "brackets" if is_set else None
    return is_set


def _listed(rule: Any) -> Any:
    """Returns the list with a single rule, or an empty list for null."""
    if rule is None:
        return []
    return [rule] if isinstance(rule, str) else rule


def _elmo(settings: Any) -> Any:
    return {"kind": "elmo", **settings} if isinstance(settings, dict) else settings


def _search_of_one_kind(settings: Any) -> Any:
    """Removes the keys of other kinds from a `search` group that contains the keys of all kinds."""
    if not isinstance(settings, dict):
        return settings
    search = with_kind(settings)
    if "kind" in settings or "kind" not in search:
        return search
    own = KINDS[search["kind"]].model_fields
    return {key: value for key, value in search.items() if key in own or key not in SEARCH_FIELDS}


def _without_unused_strength(settings: Any) -> Any:
    """Removes `diversity_strength` from a `search` group with a single group of hypotheses, where it had no effect."""
    if not isinstance(settings, dict) or settings.get("diversity_groups") != 1:
        return settings
    return {key: value for key, value in settings.items() if key != "diversity_strength"}


def _without_usual_bridge(settings: Any) -> Any:
    """Removes the `bridge` of an `rnn_encdec` where it is the one that follows from `feed_context`."""
    if not isinstance(settings, dict) or settings.get("kind") != "rnn_encdec":
        return settings
    usual = "tanh" if settings.get("feed_context", True) else "copy"
    if settings.get("bridge") != usual:
        return settings
    return {key: value for key, value in settings.items() if key != "bridge"}


_STACKED = ("rnnsearch", "rnn_encdec", "luong", "pointer_generator")
LOSSES = (
    "guided_alignment",
    "coverage_weight",
    "expert_balance",
    "doubly_stochastic",
    "hard_attention",
    "reinforce",
    "masked_words",
    "span_corruption",
    "denoising",
)
"""Losses that were keys of `training`."""


def columns_of_json(split: Any) -> Any:
    """Replaces JSON lines and the keys for their fields, such as `labels_field`, with FILE#FIELD for each column."""
    if isinstance(split, list):
        return [columns_of_json(corpus) for corpus in split]
    if not isinstance(split, dict):
        return split
    fields = {"labels": split.get("labels_field"), "alignment": split.get("alignment_field")}
    if not any(fields.values()):
        return {
            key: value
            for key, value in split.items()
            if key not in ("labels_field", "alignment_field")
        }
    if "jsonl" not in split:
        return split
    files = split["jsonl"] if isinstance(split["jsonl"], list) else [split["jsonl"]]
    fields |= {"src": split.get("src_field", "src"), "tgt": split.get("tgt_field", "tgt")}
    gone = ("jsonl", *(f"{column}_field" for column in fields))
    columns = {key: value for key, value in split.items() if key not in gone}
    for column, field in fields.items():
        if field:
            columns[column] = [f"{file}#{field}" for file in files]
    return columns


SPLITS = ("data.train", "data.valid", "data.test", "init_from.test")

CHANGES: tuple[Moved | Removed, ...] = (
    Removed(
        "training.higher_is_better",
        (ANY_VALUE,),
        "remove it, because it follows from `training.best_metric`",
    ),
    Moved("training.next_sentence", "training.objectives.next_sentence"),
    Moved("training.replaced_tokens", "training.objectives.replaced_tokens"),
    Moved("training.permutation", "training.objectives.permutation"),
    Moved("training.both_directions", "training.objectives.both_directions"),
    Moved("search.brackets", "search.rule", _brackets),
    Moved("search.rule", "search.rules", _listed),
    *(Moved(split, split, columns_of_json) for split in SPLITS),
    *(Moved(f"training.{loss}", f"training.objectives.{loss}") for loss in LOSSES),
    Removed(
        "training.objectives.hard_attention.entropy_weight",
        (0.01,),
        "remove it, because the value is always 0.01",
    ),
    Removed(
        "training.objectives.hard_attention.soft_share",
        (0.5,),
        "remove it, because the value is always 0.5",
    ),
    Removed(
        "training.objectives.span_corruption.mean_length",
        (3,),
        "remove it, because the value is always 3",
    ),
    Removed(
        "training.objectives.denoising.mean_length",
        (3,),
        "remove it, because the value is always 3",
    ),
    Removed(
        "training.objectives.denoising.permute_sentences",
        (True,),
        "remove it, because sentences are always permuted",
    ),
    Removed(
        "training.objectives.masked_words.random",
        (0.5,),
        "remove it, because the value is always 0.5",
    ),
    Removed(
        "training.objectives.reinforce.max_length_ratio",
        (1.5,),
        "remove it, because the value is always 1.5; set `max_length` instead",
    ),
    Removed(
        "training.objectives.permutation.predict_one_in",
        (6,),
        "remove it, because the value is always 6",
    ),
    Removed("training.rho", (0.95,), "remove it, because the value is always 0.95"),
    Removed("training.momentum", (0,), "use `training.optimizer: adam`"),
    Removed("training.schedule.factor", (0.5,), "remove it, because the rate is always halved"),
    Removed("evaluation.batch_tokens", (ANY_VALUE,), "remove it"),
    Removed("tokenizer.train_lines", (200_000,), "remove it, because the value is always 200,000"),
    Removed(
        "pretrained_embeddings.rescale", (True,), "remove it, because vectors are always scaled"
    ),
    Removed(
        "pretrained_embeddings.freeze",
        (False,),
        "use `training.freeze: [src_embedding]` to keep the vectors of `src`, and tgt_embedding to keep those of `tgt`",
    ),
    Removed("model.residual", (False,), "use `model.kind: gnmt`", _STACKED),
    Removed(
        "model.bridge",
        ("tanh",),
        "remove it, because an rnnsearch always projects the encoder's state with a tanh, or use `model.kind: luong`",
        ("rnnsearch",),
    ),
    Moved("model", "model", _without_usual_bridge),
    Removed(
        "model.bridge",
        (None,),
        "remove it, because it follows from `feed_context`: tanh if true, otherwise copy",
        ("rnn_encdec",),
    ),
    Removed("model.kernel_size", (3,), "remove it, because the value is always 3", ("convs2s",)),
    Removed(
        "model.generator_size", (0.25,), "remove it, because the value is always 0.25", ("electra",)
    ),
    Removed(
        "model.embedding_norm",
        (False,),
        "remove it, because a t5 does not normalize embeddings",
        ("t5",),
    ),
    Removed(
        "model.scale_embeddings",
        (False,),
        "remove it, because a t5 does not scale embeddings",
        ("t5",),
    ),
    Removed(
        "model.positions",
        ("relative",),
        "remove it, because a t5 always has relative positions",
        ("t5",),
    ),
    Removed(
        "model.max_positions", (1024,), "remove it, because a t5 reads texts of any length", ("t5",)
    ),
    Removed(
        "model.intra_temporal", (True,), "use `model.kind: pointer_generator`", ("intra_attention",)
    ),
    Removed(
        "model.intra_decoder", (True,), "use `model.kind: pointer_generator`", ("intra_attention",)
    ),
    Removed(
        "model.copying",
        (True,),
        "remove it, because an intra_attention always copies, or use `model.kind: pointer_generator`",
        ("intra_attention",),
    ),
    Removed(
        "model.layers",
        (1,),
        "remove it, because this kind of model has one layer",
        ("intra_attention", "ntm"),
    ),
    Removed("model.shift", (1,), "remove it, because the value is always 1", ("ntm",)),
    Removed(
        "model.tie",
        ("decoder",),
        "remove it, because embedding and output layer are always tied",
        ("ntm", "snail"),
    ),
    Removed("model.experts.noise", (True,), "remove it, because noise is always added"),
    Moved("model.elmo", "model.src_embedding", _elmo),
    Removed("search.word_reward", (0,), "remove it, and use a different `search.length_penalty`"),
    Removed(
        "search.no_repeat_except", ("",), "remove it, because n-gram blocking has no exceptions"
    ),
    Moved("search", "search", _without_unused_strength),
    Removed("search.diversity_strength", (0.5,), "remove it, because the value is always 0.5"),
    Removed("search.patience", (1,), "raise `search.beam_size` to finish more hypotheses"),
    Removed("search.prefix_bias", (1,), "remove it, because a prefix is always forced"),
    Moved("search", "search", _search_of_one_kind),
)
"""Changes of recipes and stages, in the order in which they are applied."""

STAGE_CHANGES: tuple[Removed, ...] = (
    Removed(
        "evaluation",
        ({},),
        "a stage cannot change it, so move it to the recipe's `evaluation`, which applies to all stages",
    ),
)
"""Further changes of stages; they are applied last."""


OF_TRAINING = ("training", "evaluation", "pretrained_embeddings", "tokenizer.train_lines")
"""Groups and keys of a recipe that a trained model no longer depends on."""


def translate(
    data: Mapping[str, Any], places: Mapping[KeyPath, str], where: str, trained: bool = False
) -> tuple[Tree, Places]:
    """Returns the values of a recipe with current keys, and the places of these keys.

    Malformed values are left unchanged; the validation of the recipe reports them.

    Args:
        data: the values of the recipe.
        places: the places of its keys.
        where: the place of keys that are not in `places`.
        trained: whether the recipe belongs to a trained run whose model is used. Its training settings may then have
            values that nmtkit no longer supports.

    Raises:
        RecipeError: a removed key has a value that nmtkit no longer supports.
    """
    recipe = _Recipe(copy.deepcopy(dict(data)), dict(places), where, trained)
    stages = recipe.data.get("stages")
    above: list[KeyPath] = [()]
    if isinstance(stages, list):
        above += [("stages", number) for number in range(len(stages))]
    faults: list[str] = []
    for path in above:
        changes = CHANGES if path == () else (*CHANGES, *STAGE_CHANGES)
        for change in changes:
            if fault := recipe.apply(change, path):
                faults.append(fault)
    if faults:
        raise RecipeError(*faults)
    return recipe.data, recipe.places


@dataclass
class _Recipe:
    data: Tree
    places: Places
    where: str
    trained: bool

    def apply(self, change: Moved | Removed, above: KeyPath) -> str:
        """Applies a change to a recipe or a stage, whose path is `above`; returns the error message, if any."""
        path = (*above, *change.key.split("."))
        group = self._group(path[:-1])
        key = path[-1]
        if group is None or key not in group:
            return ""
        if isinstance(change, Moved):
            self._move(path, (*above, *change.new_key.split(".")), change.convert)
            return ""
        if change.kinds and group.get("kind") not in change.kinds:
            return ""
        value = group[key]
        is_of_training = f"{change.key}.".startswith(tuple(f"{part}." for part in OF_TRAINING))
        has_no_effect = self.trained and is_of_training
        if value not in change.harmless and not has_no_effect:
            place = self.places.get(path, self.where)
            return f"{place}: the setting `{change.key}: {shorten(str(value))}` no longer exists; {change.remedy}"
        self._take(path)
        return ""

    def _group(self, path: Sequence[str | int]) -> Any:
        """Returns the group at a path, or None if there is no group."""
        group: Any = self.data
        for key in path:
            try:
                group = group[key]
            except (KeyError, TypeError, IndexError):
                return None
        return group if isinstance(group, dict) else None

    def _take(self, path: KeyPath) -> Any:
        """Removes a key and returns its value."""
        for other in [other for other in self.places if other[: len(path)] == path]:
            del self.places[other]
        return self._group(path[:-1]).pop(path[-1])

    def _move(self, path: KeyPath, new_path: KeyPath, convert: Callable[[Any], Any]) -> None:
        moved = {}
        for other, place in self.places.items():
            if other[: len(path)] == path:
                moved[(*new_path, *other[len(path) :])] = place
        value = convert(self._take(path))
        group: Any = self.data
        for key in new_path[:-1]:
            if isinstance(group, dict):
                group.setdefault(key, {})
            group = group[key]
        if isinstance(group, dict):
            group.setdefault(new_path[-1], value)
        self.places.update(moved)
