"""Checks of a recipe that need more than its text, or that apply only to some commands.

They need files, a built model, this machine or another run, or apply only to training, for example. Rules
that need only the text and hold for every recipe are checked when it is loaded: single values by the
settings of each package, and combinations of groups by `Recipe` in `nmtkit.config.schema`.
`find_origin` in `nmtkit.runs.origin` checks `init_from` when training starts. `nmtkit.experiment.plan` runs
all checks before training; other commands run the checks that they need.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from nmtkit.config import Recipe, load, locate
from nmtkit.config.schema import deep_merge
from nmtkit.config.tasks.task import TASKS
from nmtkit.core.columns import label_type
from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.files import atomic_write_text, bundled_path
from nmtkit.core.formats import dump_yaml
from nmtkit.data.embeddings import check_size
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.config import FILE_KINDS, LANGUAGE_KEYS, TEXT_COLUMNS, SplitFiles
from nmtkit.data.text.features import require_one_layout
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.files.names import text_path
from nmtkit.data.text.reading import read_blocks, read_pairs, require_link_base
from nmtkit.data.tokenizers.huggingface_tokenizer import LANGUAGE, missing_language_message
from nmtkit.data.tokenizers.languages import language_names, sides_without_language
from nmtkit.data.tokenizers.tokenizer_training import describe_shortfall
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import SPECIALS
from nmtkit.datacheck.findings import Diagnosis
from nmtkit.datacheck.tokens import TokenReport, count_tokens, quick_sample, train_on_sample
from nmtkit.experiment.workloads import AUTO_KEYS
from nmtkit.metrics.metric import text_metrics
from nmtkit.metrics.systems import note_on_spaces
from nmtkit.models.abilities import auxiliary_objective, transformer_layers
from nmtkit.models.base import MODELS, Model, VocabularySizes, as_seq2seq
from nmtkit.runs.folder import Notify, RunFolder, ignore
from nmtkit.runs.origin import find_origin, origin_tokenizers
from nmtkit.runs.run import Run
from nmtkit.training.checkpoints.weights import count_parameters, get_weights
from nmtkit.training.config import TrainingConfig
from nmtkit.training.layers import LAYER_KEYS
from nmtkit.training.losses.objective import OBJECTIVES, chosen_objectives
from nmtkit.training.optimizers import freeze

LIMITS = ("max_updates", "max_epochs", "max_minutes", "patience")
"""Settings that limit the length of training."""
_MAY_CHANGE = (*LIMITS, "log_every", "save_every", "keep_best", "keep_recent", "threads", "shard")
"""Settings of training that may change when a run is resumed."""


def named_files(recipe: Recipe) -> list[tuple[str, str]]:
    """Returns the files and folders that a recipe names, with their keys."""
    own = recipe.data.splits()
    named = [(f"data.{name}", path) for name, files in own.items() for path in files.paths()]
    for text, one in recipe.texts().items():
        others = {
            name: files for name, files in one.data.splits().items() if files != own.get(name)
        }
        named += [
            (f"stages.{text}.data.{name}", path)
            for name, files in others.items()
            for path in files.paths()
        ]
    named += [
        (f"pretrained_embeddings.{side}", path) for side, path in recipe.embedding_files.items()
    ]
    if recipe.init_from is not None:
        named += [(f"init_from.{key}", run) for key, run in recipe.init_from.runs.items()]
    return named


def has_files(recipe: Recipe) -> bool:
    """Returns whether all files and runs that a recipe names exist."""
    return all(os.path.exists(path) for _, path in named_files(recipe))


def require_files(recipe: Recipe) -> None:
    """Raises DataError if text, word vectors or a run named by the recipe is missing."""
    require_data(recipe)
    missing = [f"{key}: {path}" for key, path in named_files(recipe) if not os.path.exists(path)]
    if missing:
        listed = "".join(f"\n  {file}" for file in missing)
        raise DataError(
            f"recipe {recipe.name}: these files are missing (correct their paths):{listed}"
        )


def require_columns(recipe: Recipe) -> None:
    """Raises DataError if a text FILE#COLUMN names a column, language or field that an existing file lacks."""
    for text in recipe.texts().values():
        for files in text.data.splits().values():
            for path in files.texts():
                file = text_path(path)
                if file != path and os.path.exists(file):
                    next(read_lines(path, files.encoding_of(path)), None)


def require_validation_files(recipe: Recipe) -> SplitFiles:
    """Returns the validation set; raises RecipeError if the recipe has none."""
    files = recipe.data.splits().get("valid")
    if files is None:
        raise RecipeError(
            f"recipe {recipe.name}: `data.valid` is missing, but training needs validation text; "
            "add it"
        )
    return files


def require_test_set(recipe: Recipe) -> SplitFiles:
    """Returns the test set for a comparison; raises RecipeError if there is none or it has no targets."""
    files = recipe.data.splits().get("test")
    if files is None or "tgt" not in files.columns:
        raise RecipeError(
            f"recipe {recipe.name}: there is no test set with targets for a comparison; add "
            "`data.test`"
        )
    return files


def require_data(recipe: Recipe) -> None:
    """Raises a DataError that lists the missing files of the recipe, if any."""
    missing = [
        path
        for one in recipe.texts().values()
        for path in one.data.paths()
        if not os.path.exists(path)
    ]
    if missing:
        places = (
            f"{recipe.data.folder} and the current folder"
            if recipe.data.folder
            else "the current folder"
        )
        listed = "".join(f"\n  {path}" for path in dict.fromkeys(missing))
        folder = Path(recipe.data.folder)
        fetched = (
            f"fetch them (nmtkit fetch {folder.name}), " if folder.parent.name == "corpora" else ""
        )
        raise DataError(
            f"recipe {recipe.name}: these files are missing (looked in {places}); {fetched}correct "
            "the paths under `data`, or set their folder with --set data.folder=DIR. A run can be "
            f"resumed, even on another machine, only with the files at their original paths:{listed}"
        )


def metric_warning(recipe: Recipe) -> str:
    """Returns a warning if validation metrics cannot split the language into words; otherwise an empty string."""
    files = recipe.data.splits().get("valid")
    references = TASKS.get(recipe.task).references
    if files is None or references != "tgt" or not all(map(os.path.exists, files.paths())):
        return ""
    chosen = text_metrics(recipe.validation_metrics)
    try:
        lines = [example.tgt or "" for example in islice(read_pairs(files), _LINES_FOR_SCRIPT)]
    except DataError:  # preprocessing and the data check report what is wrong with the text
        return ""
    note = note_on_spaces(chosen, lines, recipe.evaluation.options)
    return f"warning: {note}" if note else ""


_LINES_FOR_SCRIPT = 500
"""Number of validation lines that determine the script of a language."""


def require_languages(recipe: Recipe) -> None:
    """Raises RecipeError if a text for an imported multilingual model has no language."""
    names = (
        language_names(recipe.tokenizer.specials) if recipe.tokenizer.kind == "huggingface" else []
    )
    columns = [column.name for column in TASKS.get(recipe.task).columns]
    if not names or not {*TEXT_COLUMNS} <= {*columns}:
        return
    if recipe.tokenizer.affixes.get("tgt", {}).get("start") == [LANGUAGE] and any(
        recipe.data.train.tgt_lang
    ):
        raise RecipeError(
            f"recipe {recipe.name}: `data.train.tgt_lang` does not apply to this model, whose "
            "decoder starts with the token of the run's target language; remove the key, and train "
            "one run per language"
        )
    open_sides = sides_without_language(recipe.tokenizer)
    for name, text in recipe.texts().items():
        for split, files in text.data.splits().items():
            for side, key, option in zip(
                TEXT_COLUMNS, LANGUAGE_KEYS, ("--from", "--to"), strict=True
            ):
                languages = getattr(files, key)
                if side in open_sides and not (languages and all(languages)):
                    place = f"`stages.{name}.data.{split}`" if name else f"`data.{split}`"
                    example = missing_language_message(side, names).partition(option)[2]
                    raise RecipeError(
                        f"recipe {recipe.name}: the model is multilingual, but {place} has no "
                        f"`{key}`; specify the language, for example {key}:{example} (without a "
                        f"recipe, use {option})"
                    )


def require_sound(splits: Mapping[str, SplitFiles], diagnosis: Diagnosis) -> None:
    """Raises DataError if alignments or features do not match the text, or for the first error in the training text."""
    require_link_base(splits["train"])
    require_one_layout(splits.values())
    findings = diagnosis.splits["train"].findings.values()
    if any(finding.kind.stops_reading for finding in findings):
        for _ in read_blocks("train", splits["train"]):
            continue


def require_fitting_stages(recipe: Recipe) -> None:
    """Raises RecipeError if a stage's model does not fit its task or its settings.

    This is the case if the model does not read the task's columns, lacks layers that the settings
    require, or changes the shape of a weight, or if its auxiliary head is trained in no stage.
    """
    before: dict[str, torch.Size] = {}
    stages = recipe.by_stage()
    head = auxiliary_objective(recipe.model)
    if head and not any(head in chosen_objectives(one.training) for one in stages.values()):
        fault = OBJECTIVES.get(head).fault_without(
            recipe.model, begins_from_run=recipe.init_from is not None
        )
        if fault:
            raise RecipeError(
                f"recipe {recipe.name}: `{TrainingConfig.key_of(head)}` is missing; {fault}"
            )
    for name, one in stages.items():
        model = model_on_meta(one)
        reads = [
            column.name
            for column in TASKS.get(one.task).columns
            if column.name in ("src", "features")
        ]
        if reads and model.output_column == "tgt" and as_seq2seq(model) is None:
            raise RecipeError(
                f"recipe {recipe.name}: models of kind {one.model.kind} do not read the column "
                f"{reads[0]} of task {one.task}; set `task` to language-modelling, or use a "
                "model that reads this column"
            )
        freeze(model, one.training.freeze)
        for key in (
            key
            for key in LAYER_KEYS
            if getattr(one.training, key) and not transformer_layers(model)
        ):
            raise RecipeError(
                f"recipe {recipe.name}: training.{key} requires Transformer layers, which "
                f"{one.model.kind} does not have; remove it"
            )
        now = {name: weight.shape for name, weight in get_weights(model).items()}
        faults = [weight for weight in now if weight in before and before[weight] != now[weight]]
        if faults:
            raise RecipeError(
                f"recipe {recipe.name}, stage {name}: the `model` settings change the shape of "
                f"{faults[0]!r} from {list(before[faults[0]])} to {list(now[faults[0]])}; a stage "
                "continues with the weights of the previous one, so shapes must stay the same"
            )
        before = now


def require_memory(recipe: Recipe) -> None:
    """Rejects a recipe whose weights exceed this machine's memory, before the kernel kills nmtkit."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for one in recipe.by_stage().values():
        sizes = one.max_vocabulary_sizes
        # a vocabulary of words or characters contains only those that occur in the text
        if one.tokenizer.kind not in ("bpe", "unigram"):
            sizes = VocabularySizes(dict.fromkeys(sizes, len(SPECIALS)), sizes.shared)
        needed = 4 * count_parameters(model_on_meta(one, sizes))
        if needed > there:
            raise RecipeError(
                f"recipe {recipe.name}: the model's weights need {needed / 2**30:,.0f} GiB, but "
                f"this machine has {there / 2**30:,.0f} GiB of memory; use fewer layers, smaller "
                "sizes (`model`) or a smaller vocabulary (`tokenizer.vocab_size`)"
            )


def model_on_meta(recipe: Recipe, sizes: VocabularySizes | None = None) -> Model:
    """Returns the model with weights on the meta device, by default with the largest vocabulary."""
    with torch.device("meta"):
        return MODELS.get(recipe.model.kind)(recipe.model, sizes or recipe.max_vocabulary_sizes)


def require_embeddings(recipe: Recipe) -> None:
    """Raises DataError if the recipe's word vectors are missing or do not match the model's size.

    Raises RecipeError if the task has no such side, or if the model has no separate word vectors
    for it.
    """
    texts = [one.name for one in TASKS.get(recipe.task).columns if one.type == "text"]
    tables = {
        side: getattr(model_on_meta(recipe), f"{side}_embedding", None)
        for side in texts
        if recipe.embedding_files
    }
    sizes = {
        side: one.embedding_dim
        for side, one in tables.items()
        if isinstance(one, torch.nn.Embedding)
    }
    for side, path in recipe.embedding_files.items():
        if side not in sizes:
            takes = f"word vectors only for {' and '.join(sizes)}" if sizes else "no word vectors"
            where = f"recipe {recipe.name}: `pretrained_embeddings.{side}`"
            raise RecipeError(
                f"{where}: {recipe.model.kind} models for {recipe.task} accept {takes}; remove it"
            )
        check_size(path, sizes[side], embedding_size_key(recipe))


def embedding_size_key(recipe: Recipe) -> str:
    """Returns the recipe's key for the size of word vectors."""
    has_own = "embedding_size" in type(recipe.model).model_fields
    return "model.embedding_size" if has_own else "model.hidden_size"


def recipe_differences(before: Recipe, now: Recipe, batches: bool = False) -> list[str]:
    """Returns the changes that a resumed run does not allow, one sentence per key.

    The name, the description, the settings in `_MAY_CHANGE` and, without `batches`, batch settings may differ.
    """
    return list(_differences(_without_limits(before, batches), _without_limits(now, batches)))


def with_values_of(before: Recipe, now: Recipe) -> Recipe:
    """Returns the recipe of a resumed run, with the run's values for `auto` and its paths of unchanged files."""
    changes: dict[str, Any] = {}
    found = {
        key: getattr(before.training, key)
        for key in AUTO_KEYS
        if getattr(now.training, key) == "auto"
    }
    changes["training"] = now.training.model_copy(update=found)
    if is_same_text(before, now):
        changes["data"] = before.data
    if "normalization" not in now.tokenizer.model_fields_set:
        # The run may be older than today's default.
        normalization = before.tokenizer.normalization
        changes["tokenizer"] = now.tokenizer.model_copy(update={"normalization": normalization})
    if now.batch.is_auto:
        changes["batch"] = now.batch.model_copy(update={"batch_tokens": before.batch.batch_tokens})
    if now.init_from and before.init_from:
        names_before = {key: Path(run).name for key, run in before.init_from.runs.items()}
        names = {key: Path(run).name for key, run in now.init_from.runs.items()}
        if names == names_before and not all(
            Path(run).exists() for run in now.init_from.runs.values()
        ):
            # not needed once training has begun, and the runs may have been deleted
            changes["init_from"] = before.init_from
    return now.model_copy(update=changes)


def require_same_recipe(run: Run, recipe: Recipe) -> None:
    """Raises RecipeError if a run was started with a different recipe; names, limits and batches may differ."""
    faults = recipe_differences(run.recipe, with_values_of(run.recipe, recipe))
    if faults:
        listed = "".join(f"\n  {line}" for line in faults)
        raise RecipeError(
            f"{run.folder.path}: this run was started with a different recipe, so it cannot be "
            f"resumed with this one (repeat the same --set, use {run.folder.recipe} itself, or "
            f"restart with --overwrite):{listed}"
        )


def notes_on_resuming(run: Run, recipe: Recipe) -> Iterator[str]:
    """Returns notes for the user about changed batches and limits of a resumed run."""
    changes = recipe_differences(run.recipe, recipe, batches=True)
    if changes:
        yield (
            f"{', '.join(changes)}: training continues the epoch with different batches, so some "
            "examples may be repeated or skipped. The result is not bit-identical to that of an "
            "uninterrupted run"
        )
    limits_changed = limit_differences(run.recipe, recipe)
    if limits_changed:
        yield (
            f"{'; '.join(limits_changed)}. Limits from an earlier --set are not remembered; "
            "repeat the --set to keep them"
        )
    begun = [stage for stage in run.stages() if stage.checkpoints.last.exists()]
    recipes = recipe.by_stage()
    for stage in begun[:-1]:
        before, now = stage.recipe.training, recipes[stage.name].training
        changed = [key for key in LIMITS if getattr(before, key) != getattr(now, key)]
        if changed:
            names = " or ".join(changed)
            yield f"stage {stage.name} has ended, so a new {names} does not affect it"


def limit_differences(before: Recipe, now: Recipe) -> list[str]:
    """Returns the changed limits, one phrase each: first those of the whole run, then those of the stages."""
    pairs = [("training", before.training.model_dump(), now.training.model_dump())]
    stages = {stage.name: stage.training for stage in now.stages}
    for stage in before.stages:
        if stage.name in stages:
            pairs.append((f"stages.{stage.name}.training", stage.training, stages[stage.name]))
    found = []
    for group, old, new in pairs:
        for key in LIMITS:
            if old.get(key) != new.get(key):
                found.append(
                    f"`{group}.{key}` was {_limit(old.get(key))} and is now {_limit(new.get(key))}"
                )
    return found


def _limit(value: Any) -> str:
    return "unlimited" if value is None else f"{value:,}"


def is_same_text(before: Recipe, now: Recipe) -> bool:
    """Returns whether two recipes use the same files in the same way, however the paths are spelled."""
    return not any(
        _differences(before.data.model_dump(mode="json"), now.data.model_dump(mode="json"))
    )


def _without_limits(recipe: Recipe, batches: bool) -> dict[str, Any]:
    data = recipe.model_dump(mode="json", exclude={"name", "description"})
    for group in (data, *data["stages"]):
        for key in _MAY_CHANGE:
            group["training"].pop(key, None)
        if not batches:
            del group["batch"]
            group["training"].pop("accumulate", None)
    data["order of stages"] = [stage["name"] for stage in data["stages"]]
    data["stages"] = {stage.pop("name"): stage for stage in data["stages"]}
    return data


def _differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            yield from _differences(
                before.get(name), now.get(name), f"{key}.{name}" if key else name
            )
    elif _normal_paths(before) != _normal_paths(now):
        yield f"`{key}` was {before!r} and is {now!r}"


def _normal_paths(value: Any) -> Any:
    if isinstance(value, list):
        return [_normal_paths(one) for one in value]
    return os.path.normpath(value) if isinstance(value, str) and "/../" in value else value


@dataclass
class RecipeDataCheck:
    """A recipe whose data is being checked."""

    recipe: Recipe
    path: Path
    """Path of the recipe file."""
    run: Run
    """The run folder of the recipe; it need not exist."""
    overridden: bool = False
    """Whether options override settings of the recipe file."""

    def __post_init__(self) -> None:
        self.splits = self.recipe.data.splits()
        origin = find_origin(self.recipe)
        self._origin = origin if origin and origin.vocabulary else None
        self._columns = TASKS.get(self.recipe.task).columns
        config, folder = self.recipe.tokenizer, self.run.folder
        learned = (
            folder.vocabulary.is_dir() and folder.exists() and self.run.recipe.tokenizer == config
        )
        self._sample = None if self._origin or learned else quick_sample(config, self._columns)

    def see(self, block: Block) -> None:
        """Collects the part of an examined block that is needed for counting tokens."""
        if block.split == "train" and self._sample is not None:
            self._sample.add_block(block)

    def count_tokens(
        self,
        diagnosis: Diagnosis,
        notify: Notify = ignore,
        progress: Callable[[int], None] = ignore,
    ) -> TokenReport:
        """Tokenizes the text as the run does, once all of it has been read; adds the results to the diagnosis."""
        require_sound(self.splits, diagnosis)
        tokenizers, source = self._tokenizers(notify)
        labels = label_type(self._columns)
        return count_tokens(
            self.recipe.storage_config, tokenizers, diagnosis, source, progress, labels
        )

    def _tokenizers(self, notify: Notify) -> tuple[Tokenizers, str]:
        config, train, folder = self.recipe.tokenizer, self.splits["train"], self.run.folder
        if self._origin is not None:
            tokenizers = origin_tokenizers(self._origin, self.recipe)
            return tokenizers, f"The tokenizer ({config.kind}) comes from {self._origin.run}."
        if self._sample is None:
            return (
                self.run.load_tokenizers(),
                f"The tokenizer ({config.kind}) comes from {folder.path}.",
            )
        notify(
            f"training a tokenizer ({config.kind}) for this check, because {folder.path} has "
            "none with these settings"
        )
        learned = train_on_sample(config, self._sample, train, self._columns)
        if shortfall := describe_shortfall(config, learned):
            notify(shortfall)
        return learned, f"The tokenizer ({config.kind}) was trained for this check."

    def write(self, out: Path, splits: Mapping[str, SplitFiles]) -> Path:
        """Writes a recipe with the given files into the folder `out`; paths are absolute or relative to it."""
        ours = self.path.resolve().parent == bundled_path("recipes").resolve()
        parent = self.path.stem if ours else os.path.relpath(self.path, out)
        data: dict[str, object] = {"folder": "."}
        for name, files in splits.items():
            old: SplitFiles = getattr(self.recipe.data, name)
            # All keys for files in the old recipe are replaced.
            keys = [key for key in FILE_KINDS if getattr(files, key) or getattr(old, key)]
            keys += ["src_field", "tgt_field"] if files.jsonl else []
            data[name] = {key: _relative_to(out, getattr(files, key)) for key in keys}
        path = out / f"{self.path.stem}.yaml"
        text = f"# {self.recipe.name} with the files cleaned by `nmtkit check --fix`.\n"
        base = self.recipe.model_dump(mode="json") if self.overridden else {"extends": parent}
        about = {"name": f"{self.recipe.name}-clean", "description": self.recipe.description}
        text += dump_yaml(deep_merge(base, {**about, "data": data}))
        atomic_write_text(path, text)
        return path


def open_data_check(
    name: str, overrides: Sequence[str] = (), run_path: str | None = None
) -> RecipeDataCheck:
    """Loads a recipe to check its data."""
    recipe = load(name, overrides)
    require_data(recipe)
    return RecipeDataCheck(
        recipe, locate(name), Run(RunFolder.at(run_path, recipe.name)), bool(overrides)
    )


def _relative_to(out: Path, value: list[str] | str) -> list[str] | str:
    if isinstance(value, str):
        return value
    return [path if (out / path).exists() else os.path.abspath(path) for path in value]
