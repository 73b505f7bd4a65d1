"""A run: its folder and write lock, recipe, tokenizers, stages, weights and model.

`find_run` has the rules for choosing a command's run, whether or not the user names one.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from typing_extensions import override

from nmtkit.config.tasks.builtin import TRANSLATION
from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import CheckpointError, NmtkitError, RecipeError
from nmtkit.core.files import (
    atomic_path,
    atomic_write_text,
    bytes_checksum,
    file_sha256,
    write_json,
)
from nmtkit.core.formats import parse_json
from nmtkit.core.settings import Settings, parse
from nmtkit.core.user_module import UserModule, load_copy, module_to_keep
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.decoding.settings import AnySearch
from nmtkit.models.base import (
    MODELS,
    AnyModelConfig,
    Model,
    ModelConfig,
    VocabularySizes,
    as_decoder,
)
from nmtkit.models.ensemble import Ensemble, Mean
from nmtkit.runs.folder import (
    RUNS_FOLDER,
    Notify,
    RunFolder,
    RunLock,
    ignore,
    lock_run,
    suggest_runs,
)
from nmtkit.training.checkpoints.manager import NAMED_WEIGHTS, CheckpointManager
from nmtkit.training.checkpoints.weights import (
    SkipInit,
    average_weights,
    load_weights,
    read_vocabulary_checksum,
    save_weights,
)

if TYPE_CHECKING:
    from nmtkit.config import Recipe

MODEL_VARIABLE = "NMTKIT_MODEL"


class InferenceConfig(Settings):
    """The recipe settings for decoding, stored in `inference.json` so that the recipe does not have to be read."""

    name: str
    task: str
    model: AnyModelConfig
    search: AnySearch
    max_source_tokens: int | None = None
    """Maximum number of source tokens that the model reads; None for no limit."""
    checkpoints: str = ""
    """The stage's checkpoint folder, relative to the run's folder."""
    recipe_sum: str = ""
    """Checksum of `recipe.yaml`; if the recipe has been edited since, `inference.json` is out of date."""
    user_module: str = ""
    """SHA-256 checksum of `user_module.py`, if the run has one."""

    @classmethod
    def of(cls, recipe: "Recipe") -> "InferenceConfig":
        """Returns the settings of a recipe, or of a stage's recipe."""
        return cls(
            name=recipe.name,
            task=recipe.task,
            model=recipe.model,
            search=recipe.search,
            max_source_tokens=source_token_limit(recipe),
        )


def source_token_limit(recipe: "Recipe") -> int | None:
    """Returns the maximum number of source tokens that a recipe's model reads; None for no limit."""
    cuts = recipe.data.truncation
    return cuts[0] if cuts is not None and TASKS.get(recipe.task).truncates_sources else None


@dataclass(frozen=True)
class SavedStage:
    """A stage of a run with its complete recipe; a run without stages has a single unnamed stage."""

    name: str
    recipe: "Recipe"
    checkpoints: CheckpointManager
    data: Path
    """Folder of the stage's encoded text."""


class Run(AbstractContextManager["Run"]):
    """A run in its folder, to which this process may write while it holds the lock (`may_write`).

    `Run(folder)` and `open` are for reading; `create` and `open_to_write` also hold the lock until `close`. Creating
    the object does not access any files; the recipe is read once, on demand.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._lock: RunLock | None = None

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Opens a run for reading; raises CheckpointError if there is none."""
        run = cls(RunFolder(Path(path)))
        _ = run.recipe
        return run

    @classmethod
    def open_to_write(cls, path: str | Path, notify: Notify = ignore) -> "Run":
        """Opens a run for writing, to resume it; raises CheckpointError if there is none."""
        cls.open(path)  # raises the error first, because locking would create a missing folder
        run = cls(RunFolder(Path(path)))
        run._lock = lock_run(run.folder, notify)
        return run

    @classmethod
    def create(
        cls,
        recipe: "Recipe",
        path: str | None = None,
        overwrite: bool = False,
        notify: Notify = ignore,
    ) -> "Run":
        """Creates a run for writing, or opens one that was only preprocessed.

        `path` defaults to `runs/` plus the recipe's name. With `overwrite`, an earlier run is replaced, but kept until
        the new run has saved its first state.
        """
        run = cls(RunFolder.at(path, recipe.name))
        folder = run.folder
        folder.require_own()
        module = module_to_keep()
        with ExitStack() as undo:
            undo.callback(run.close)
            run._lock = lock_run(folder, notify)
            folder.require_free(overwrite)
            run._lock.set_aside()
            folder.origin.unlink(missing_ok=True)
            run.keep_module(module)
            run.save_recipe(recipe)
            undo.pop_all()
        return run

    @classmethod
    def create_untrained(
        cls,
        folder: RunFolder,
        recipe: "Recipe",
        tokenizers: Tokenizers,
        weights: Mapping[str, Tensor],
        reason: str,
    ) -> "Run":
        """Writes a run whose weights were not trained in its folder, i.e. an imported model or a copy.

        The folder must be new and unknown to other processes. `reason` is the origin of the weights, such as
        "imported".
        """
        tokenizers.save(folder.vocabulary)
        save_weights(folder.average, weights, tokenizers.checksum)
        write_json(folder.result, {"reason": reason, "updates": 0, "best": None, "kept": []})
        atomic_write_text(folder.recipe, recipe.to_yaml())
        run = cls(folder)
        run.save_inference()
        return run

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.folder.path}>"

    @property
    def may_write(self) -> bool:
        """Whether this process holds the lock; in distributed training only process 0 does."""
        return self._lock is not None and self._lock.is_open

    def require_write(self) -> None:
        """Raises NmtkitError if this process does not hold the lock."""
        if not self.may_write:
            raise NmtkitError(
                f"{self.folder.path}: this process does not hold the lock of the folder; open the run "
                "with `Run.create`, or with `Run.open_to_write` to resume it"
            )

    def commit(self) -> None:
        """Removes the earlier run that this run replaces, or restores it if this run has no checkpoint."""
        if self._lock is not None and self._lock.is_open:
            self._lock.commit_or_rollback()

    def close(self) -> None:
        """Releases the lock; restores an earlier run that has not been replaced yet."""
        lock = self._lock
        self._lock = None
        if lock is not None:
            lock.close()

    @override
    def __exit__(self, *fault: object) -> None:
        self.close()

    def save_recipe(self, recipe: "Recipe") -> None:
        """Sets the run's recipe and writes it into the folder, whose lock this process must hold."""
        self.require_write()
        self.recipe = recipe
        atomic_write_text(self.folder.recipe, recipe.to_yaml())

    def keep_module(self, module: UserModule | None) -> bool:
        """Copies the user module into the folder; returns whether it replaced a different one.

        If `module` is None, an earlier copy is removed. This process must hold the lock of the folder.
        """
        self.require_write()
        path = self.folder.user_module
        before = path.read_bytes() if path.is_file() else None
        if module is None:
            path.unlink(missing_ok=True)
        elif module.code != before:
            with atomic_path(path) as new:
                new.write_bytes(module.code)
        return before is not None and module is not None and module.code != before

    @cached_property
    def recipe(self) -> "Recipe":
        """The recipe of the run; raises CheckpointError if the folder is not a run."""
        path = self.folder.path
        if not self.folder.exists():
            what = "does not exist"
            remedy = "use the folder that `train` wrote"
            if path.is_dir():
                what = "is not a run folder, because it contains no recipe.yaml"
            elif path.suffix.lower() in (".zip", ".tar", ".gz", ".tgz", ".xz") and path.is_file():
                what = "is an archive"
                remedy = "unpack it, and use the run folder that it contains"
            elif path.exists():
                what = "is a file, not a run folder"
            raise CheckpointError(f"{path} {what}; {remedy}")
        # imported late: it loads the training settings, which decoding does not need
        from nmtkit.config import load

        return load(self.folder.recipe, trained=True)

    @cached_property
    def _saved_inference(self) -> InferenceConfig | None:
        """The saved settings; None if they are missing, damaged or out of date, so that the recipe must be read."""
        path = self.folder.inference
        load_copy(self.folder.path)
        with suppress(OSError, NmtkitError, TypeError):
            if path.is_file() and self.folder.recipe.is_file():  # reading a pipe would block
                config = parse(InferenceConfig, parse_json(path.read_bytes(), ""), str(path))
                return (
                    config
                    if config.recipe_sum == bytes_checksum(self.folder.recipe.read_bytes())
                    else None
                )
        return None

    @cached_property
    def task(self) -> str:
        """The name of the task; the run's user file is executed only if nothing else determines the name."""
        with suppress(OSError, NmtkitError, TypeError, KeyError):
            if self.folder.inference.is_file():
                return str(parse_json(self.folder.inference.read_bytes(), "")["task"])
        return self.inference.task

    @property
    def inference(self) -> InferenceConfig:
        """The recipe settings for decoding, from the newest validated stage."""
        return self._saved_inference or InferenceConfig.of(self.newest_stage().recipe)

    def save_inference(self) -> None:
        """Writes `inference.json`, after training or averaging.

        This does not require the lock, because the content follows from the recipe and the checkpoints.
        """
        self.__dict__.pop("_saved_inference", None)
        stage = self.newest_stage()
        place = {
            "checkpoints": stage.checkpoints.folder.relative_to(self.folder.path).as_posix(),
            "recipe_sum": bytes_checksum(self.folder.recipe.read_bytes()),
            "user_module": file_sha256(self.folder.user_module)
            if self.folder.user_module.is_file()
            else "",
        }
        config = InferenceConfig.of(stage.recipe).model_copy(update=place)
        write_json(self.folder.inference, config.model_dump(mode="json"))

    def load_tokenizers(self) -> Tokenizers:
        """Loads the tokenizers of the run."""
        if not self.folder.vocabulary.is_dir():
            raise CheckpointError(
                f"{self.folder.vocabulary}: the vocabulary is missing; copy the whole run "
                "folder, or train again"
            )
        return Tokenizers.load(self.folder.vocabulary)

    def stages(self, taken: Sequence[float] = (), vocabulary: str = "") -> list[SavedStage]:
        """Returns the stages in order; see `Recipe.by_stage` for `taken`, and `CheckpointManager` for `vocabulary`."""
        texts = {
            stage.name: text for text, one in self.recipe.texts().items() for stage in one.stages
        }
        checkpoints, data = self.folder.stage, self.folder.data
        return [
            SavedStage(
                name,
                one,
                CheckpointManager(checkpoints(number, name), vocabulary),
                data / texts.get(name, ""),
            )
            for number, (name, one) in enumerate(self.recipe.by_stage(taken).items(), start=1)
        ]

    def newest_stage(self) -> SavedStage:
        """Returns the last stage with validated weights, or the first stage if there are no such weights."""
        stages = self.stages()
        return next((stage for stage in reversed(stages) if stage.checkpoints.entries()), stages[0])

    def weights(self, which: str = "auto") -> Path:
        """Returns a weights file: `best`, `last`, `average`, a stage name (its best weights), or a path.

        `auto` is the average if it exists, else the best, else the last. Best and last belong to
        the newest validated stage.
        """
        known = self._saved_inference if which in NAMED_WEIGHTS else None
        stages = [] if known else self.stages()
        checkpoints = (
            CheckpointManager(self.folder.path / known.checkpoints)
            if known
            else self.newest_stage().checkpoints
        )
        best = next(iter(checkpoints.best()), None)
        last = checkpoints.last if checkpoints.last.is_file() else None
        average = self.folder.average if os.path.lexists(self.folder.average) else None
        named = {"best": best, "last": last, "average": average, "auto": average or best or last}
        of_stages = {stage.name: stage.checkpoints.best() for stage in stages if stage.name}
        named |= {name: next(iter(files), None) for name, files in of_stages.items()}
        path = named[which] if which in named else Path(which)
        if path is None or not path.is_file():
            have = [
                name
                for name in (*NAMED_WEIGHTS[1:], *of_stages)
                if (file := named[name]) and file.is_file()
            ]
            there = (
                f"the checkpoints are {', '.join(have)}"
                if have
                else "the run has no checkpoints yet; train it first"
            )
            missing = f" ({path} does not exist)" if path else ""
            raise CheckpointError(
                f"{self.folder.path} has no checkpoint {which!r}{missing}; {there}"
            )
        return path

    def members(self) -> "list[Run]":
        """Returns the runs of an ensemble, or only this run if it is not an ensemble."""
        return [self]

    def open_model(
        self, device: torch.device, which: str = "auto"
    ) -> "tuple[Model, Tokenizers, Recipe]":
        """Returns the model in evaluation mode, its tokenizers and recipe; `which` is as in `weights`.

        Model and recipe belong to the stage of the weights or, for an average or an external file, to the newest
        validated stage.
        """
        weights = self.weights(which)
        recipe = self._recipe_of(weights)
        return *self._load(recipe.model, weights, device), recipe

    def _recipe_of(self, weights: Path) -> "Recipe":
        folder = weights.resolve().parent
        own = [stage for stage in self.stages() if stage.checkpoints.folder.resolve() == folder]
        return (own or [self.newest_stage()])[0].recipe

    def open_for_inference(
        self, device: torch.device, which: str = "auto"
    ) -> tuple[Model, Tokenizers, InferenceConfig]:
        """Opens the model as `open_model` does, but returns only the settings that decoding needs."""
        settings = self.inference_of(which)
        return *self._load(settings.model, self.weights(which), device), settings

    def inference_of(self, which: str = "auto") -> InferenceConfig:
        """Returns the recipe settings for decoding with some weights; `which` is as in `weights`."""
        known = self._saved_inference
        if known is not None and which in NAMED_WEIGHTS:
            return known
        return InferenceConfig.of(self._recipe_of(self.weights(which)))

    def outline(self, which: str = "auto") -> tuple[Model, Tokenizers]:
        """Returns the model of `open_for_inference` on the CPU with uninitialized weights, and its tokenizers.

        The weights must not be used. They take up no memory, since they are never written.
        """
        tokenizers = self.load_tokenizers()
        settings = self.inference_of(which)
        with SkipInit(fill=False):
            return MODELS.get(settings.model.kind)(
                settings.model, sizes_of(tokenizers)
            ).eval(), tokenizers

    def _load(
        self, config: ModelConfig, weights: Path, device: torch.device
    ) -> tuple[Model, Tokenizers]:
        tokenizers = self.load_tokenizers()
        with SkipInit():
            model = MODELS.get(config.kind)(config, sizes_of(tokenizers))
        load_weights(model, weights, tokenizers.checksum)
        return model.to(device).eval(), tokenizers


class EnsembleRun(Run):
    """Several runs that decode as an `Ensemble`, with the recipe and folder of the first run."""

    def __init__(self, runs: Sequence[Run], mean: Mean, weights: Sequence[float] | None) -> None:
        super().__init__(runs[0].folder)
        self.runs, self._mean, self._weights = runs, mean, weights

    @override
    def members(self) -> list[Run]:
        return list(self.runs)

    @override
    def open_for_inference(
        self, device: torch.device, which: str = "auto"
    ) -> tuple[Model, Tokenizers, InferenceConfig]:
        if which not in NAMED_WEIGHTS and any(
            run.weights(which) == Path(which) for run in self.runs
        ):
            remedy = "use a name that each of the runs has, such as best or last"
            raise RecipeError(
                f"{which}: a single file cannot contain the weights of all models of an ensemble; "
                f"{remedy}"
            )
        opened = [run.open_for_inference(device, which) for run in self.runs]
        first, (_, tokenizers, config) = self.runs[0], opened[0]
        for run, (_, others, _) in zip(self.runs, opened, strict=True):
            if others.checksum != tokenizers.checksum:
                raise RecipeError(
                    f"{first.folder.path} and {run.folder.path} have different vocabularies, but "
                    "an ensemble requires a shared vocabulary; train both on the same text with the same "
                    "tokenizer settings"
                )
        members = [as_decoder(model) for model, _, _ in opened]
        if None in members:
            place = self.runs[members.index(None)].folder.path
            raise RecipeError(
                f"{place}: this model does not generate text, so it cannot be a member of an ensemble; "
                "remove it"
            )
        return (
            Ensemble([one for one in members if one is not None], self._mean, self._weights),
            tokenizers,
            config,
        )


def build_model(recipe: "Recipe", tokenizers: Tokenizers) -> Model:
    """Returns the recipe's model with random weights drawn from torch's generator."""
    return MODELS.get(recipe.model.kind)(recipe.model, sizes_of(tokenizers))


def sizes_of(tokenizers: Tokenizers) -> VocabularySizes:
    """Returns the vocabulary sizes of a model's columns, and the number of features if it reads features."""
    sizes = {column: len(tokenizer.vocabulary) for column, tokenizer in tokenizers.items()}
    sizes |= {} if tokenizers.labels is None else {"labels": len(tokenizers.labels)}
    sizes |= {"features": tokenizers.features} if tokenizers.features else {}
    return VocabularySizes(sizes, shared=tokenizers.shared)


def find_run(
    model: str | Path | Sequence[str | Path] | None = None,
    task: str | None = None,
    mean: Mean = "probabilities",
    weights: Sequence[float] | None = None,
) -> tuple[Run, str]:
    """Returns the run to use, and the reason as text; raises CheckpointError if there is none.

    `model` is a run's folder or its name under `runs/`. Several runs form an ensemble, to which `mean` and `weights`
    apply. None selects `$NMTKIT_MODEL`, or else the newest finished run for the task.
    """
    names = (
        []
        if model is None
        else [str(model)]
        if isinstance(model, str | Path)
        else [*map(str, model)]
    )
    if len(names) > 1:
        members = [_named_run(name)[0] for name in names]
        return EnsembleRun(members, mean, weights), f"one of {len(members)} in an ensemble"
    if weights is not None or mean != "probabilities":
        raise RecipeError(
            "`ensemble` and `ensemble_weights` apply only to more than one run; give the other runs "
            "with -m RUN as well"
        )
    if names:
        return _named_run(names[0])
    if given := os.environ.get(MODEL_VARIABLE):
        try:
            return _named_run(given)[0], f"${MODEL_VARIABLE}"
        except CheckpointError as fault:
            raise CheckpointError(
                f"the run in ${MODEL_VARIABLE} cannot be opened: {fault}; or give a run with -m RUN"
            ) from fault
    finished = [RunFolder(path.parent) for path in RUNS_FOLDER.glob("*/result.json")]
    finished.sort(key=lambda folder: folder.result.stat().st_mtime, reverse=True)
    newest = next((run for run in map(Run, finished) if task is None or run.task == task), None)
    of_task = f" for {task}" if task else ""
    if newest is None:
        raise CheckpointError(
            f"there is no finished run{of_task} under {RUNS_FOLDER}/; give one with -m RUN or ${MODEL_VARIABLE}, "
            f"or train one (`nmtkit train {TASKS.get(task or TRANSLATION.name).demo or 'RECIPE'}`)"
        )
    return newest, f"the newest finished run{of_task} under {RUNS_FOLDER}/"


def find_training(model: str) -> Run:
    """Returns a run, by folder or name, for inspecting its training, even before it has replaced an earlier run."""
    folder = RunFolder(Path(model))
    # the run under runs/ is also used if a file or another folder has its name
    if not folder.exists() and (RUNS_FOLDER / model).is_dir():
        folder = RunFolder(RUNS_FOLDER / model)
    elif not folder.path.exists():
        raise CheckpointError(f"{model}: there is no such run; {suggest_runs(model)}")
    return Run(folder)


def _named_run(model: str) -> tuple[Run, str]:
    folder = find_training(model).folder
    if folder.replaced.is_dir() and not folder.has_checkpoint():
        why = "the earlier run, because its replacement has not saved a state yet"
        return Run(RunFolder(folder.replaced)), why
    return Run(folder), "as requested"


def weights_to_average(run: Run, best: int | None = None, recent: int | None = None) -> list[Path]:
    """Returns the weights files of a run's newest validated stage: the `best` or `recent` ones, or by default all."""
    checkpoints = run.newest_stage().checkpoints
    kept = checkpoints.best() if recent is None else checkpoints.recent()
    wanted = recent or best or 2
    if len(kept) < wanted:
        there = f"{len(kept)} was" if len(kept) == 1 else f"{len(kept)} were"
        raise CheckpointError(
            f"{checkpoints.folder}: at least {wanted} checkpoints are required, but {there} kept; "
            "train with more validations (a smaller training.validate_every), or keep more "
            "(training.keep_recent, training.keep_best)"
        )
    return kept[: recent or best]


def average_files(files: Sequence[Path], output: Path, of: Run | None = None) -> None:
    """Averages weights files into one; their shapes must be equal and, if a run `of` is passed, fit its model."""
    if len(files) < 2:
        raise CheckpointError(
            f"{files[0] if files else output}: an average requires at least two checkpoints; "
            "give more"
        )
    if of is None:
        model, vocabulary = None, next(filter(None, map(read_vocabulary_checksum, files)), "")
    else:
        tokenizers = of.load_tokenizers()
        model, vocabulary = build_model(of.newest_stage().recipe, tokenizers), tokenizers.checksum
    save_weights(output, average_weights(files, model, vocabulary), vocabulary)
    if of is not None and output == of.folder.average:
        of.save_inference()
