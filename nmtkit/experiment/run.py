"""A run: one recipe carried out in one folder, stage by stage. The only place where the parts meet."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nmtkit.autotune.largest_batch import find_batch_tokens
from nmtkit.autotune.training import AUTO_KEYS, tune_training, workload_of_run
from nmtkit.config import Recipe
from nmtkit.core import device as devices
from nmtkit.core.errors import RecipeError
from nmtkit.core.files import atomic_write_text, write_json
from nmtkit.data.text.checking import DataReport
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.datacheck.findings import Diagnosis
from nmtkit.experiment import checks
from nmtkit.experiment.evaluation import evaluate_test_set, require_validation_files
from nmtkit.experiment.preprocessing import Preprocessing, prepare_tokenizers
from nmtkit.experiment.stages import StagedTraining, StageStarted, prepare_device
from nmtkit.runs.folder import Notify, RunFolder, RunLock, ignore, lock_run
from nmtkit.runs.origin import find_origin
from nmtkit.runs.saved import SavedRun
from nmtkit.tasks.task import TestResult
from nmtkit.training import randomness
from nmtkit.training.events import Event, Saved
from nmtkit.training.parallel.processes import join, rank, run_on_rank_zero


class Run(SavedRun):
    """One recipe and the folder it is carried out in; `create`, `begin` and `open` give one.

    It keeps the folder's lock until `close`; without a lock it only reads.
    """

    def __init__(self, folder: RunFolder, recipe: Recipe, held: RunLock | None = None) -> None:
        super().__init__(folder)
        self.recipe = recipe
        self._held = held

    def close(self) -> None:
        """Lets other processes write in the folder; an earlier run that was not replaced is put back."""
        if self._held is not None:
            self._held.close()

    @classmethod
    def create(cls, recipe: Recipe, path: str | None = None, overwrite: bool = False, notify: Notify = ignore) -> "Run":
        """Begins a run, or takes up one that was only preprocessed.

        The default of `path` is `runs/` and the recipe's name. With `overwrite` an earlier run is replaced; it is kept
        until the new training has saved its first state.
        """
        folder = RunFolder.at(path, recipe.name)
        folder.require_own()
        origin = find_origin(recipe, folder)
        held = lock_run(folder, notify)
        folder.require_free(overwrite)
        held.set_aside()
        folder.origin.unlink(missing_ok=True)
        if origin is not None:
            write_json(folder.origin, origin.model_dump(mode="json"))
            public = RunFolder(Path(origin.run)).public
            if origin.weights and public.is_dir():
                shutil.copytree(public, folder.public, dirs_exist_ok=True)
        atomic_write_text(folder.recipe, recipe.to_yaml())
        return cls(folder, recipe, held)

    @classmethod
    def open(cls, path: str, same_as: Recipe | None = None) -> "Run":
        """Opens a run that was begun before; CheckpointError if there is none.

        Raises RecipeError if it was not begun with the recipe `same_as`; names, limits and batches may differ.
        """
        folder = RunFolder(Path(path))
        run = cls(folder, SavedRun(folder).recipe)
        if same_as is not None:
            run._require_same(run.with_resolved(same_as))
        return run

    @classmethod
    def begin(
        cls,
        recipe: Recipe,
        path: str | None = None,
        *,
        resume: bool = False,
        overwrite: bool = False,
        allow_new_data: bool = False,
        notify: Notify = ignore,
        report: Callable[[DataReport], None] = ignore,
        diagnosed: Callable[[Diagnosis], None] = ignore,
        processes: int | None = None,
    ) -> "Run":
        """All that comes before training: checks, the folder, the preprocessed data. Process 0 does the work.

        With `resume` an existing run goes on, and the recipe may differ as `open` says. The other arguments are those
        of `create` and `preprocess`.
        """
        place = str(RunFolder.at(path, recipe.name).path)
        prepared: list[Run] = []

        def prepare() -> None:
            for one in recipe.texts().values():
                require_validation_files(one)
            checks.require_data(recipe)
            checks.require_fitting_stages(recipe)
            checks.require_memory(recipe)
            for one in recipe.texts().values():
                if warning := checks.metric_warning(one):
                    notify(warning)
            for direction in recipe.data.zero_shot:
                notify(f"{direction}: no corpus of data.train has this direction, so it is translated zero-shot")
            if not resume:
                checks.require_embeddings(recipe)
                checks.require_languages(recipe)
            run = cls._resume(recipe, place, notify) if resume else cls.create(recipe, place, overwrite, notify)
            prepared.append(run)
            run.preprocess(notify, report, diagnosed, resume, processes, allow_new_data)
            for stage in run.stages() if resume else ():
                stage.checkpoints.verify_kept()
            atomic_write_text(run.folder.recipe, run.recipe.to_yaml())

        try:
            run_on_rank_zero(prepare, Path(place).absolute())
        except BaseException:
            for run in prepared:
                run.close()
            raise
        run = cls.open(place)
        run._held = prepared[0]._held if prepared else None
        return run

    @classmethod
    def _resume(cls, recipe: Recipe, path: str, notify: Notify) -> "Run":
        cls.open(path)  # nothing is made where there is no run
        held = lock_run(RunFolder(Path(path)), notify)
        run = cls.open(path)
        recipe = run.with_resolved(recipe)
        run._require_same(recipe)
        changes = checks.recipe_differences(run.recipe, recipe, batches=True)
        if changes:
            notify(
                f"{', '.join(changes)}: training continues with the rest of its epoch in other batches, so some "
                "examples may come twice or not at all. The result is not bit-identical to an uninterrupted training"
            )
        limits_changed = checks.limit_differences(run.recipe, recipe)
        if limits_changed:
            notify(
                f"{'; '.join(limits_changed)}. Limits of an earlier --set are not remembered: "
                "to keep them, repeat the --set"
            )
        over, now = [one for one in run.stages() if one.checkpoints.last.exists()][:-1], recipe.by_stage()
        for one in over:
            limits = [{key: getattr(of.training, key) for key in checks.LIMITS} for of in (one.recipe, now[one.name])]
            if new := [key for key in limits[0] if limits[0][key] != limits[1][key]]:
                notify(f"stage {one.name} is over: a new {' or '.join(new)} has no effect on it")
        return cls(run.folder, recipe, held)

    def _require_same(self, recipe: Recipe) -> None:
        faults = checks.recipe_differences(self.recipe, recipe)
        if faults:
            listed = "".join(f"\n  {line}" for line in faults)
            raise RecipeError(
                f"{self.folder.path}: begun with another recipe, so one cannot go on with this one "
                f"(give the same --set, take {self.folder.recipe} itself, or train anew with --overwrite):{listed}"
            )

    def with_resolved(self, recipe: Recipe) -> Recipe:
        """The recipe with this run's values where it says `auto`, and with this run's names of the same files."""
        before, now = self.recipe.training, recipe.training
        known = {key: getattr(before, key) for key in AUTO_KEYS if getattr(now, key) == "auto"}
        data = self.recipe.data if checks.is_same_text(self.recipe, recipe) else recipe.data
        changes: dict[str, Any] = {"training": now.model_copy(update=known), "data": data}
        if "normalization" not in recipe.tokenizer.model_fields_set:
            # The run may be older than today's default.
            normalization = self.recipe.tokenizer.normalization
            changes["tokenizer"] = recipe.tokenizer.model_copy(update={"normalization": normalization})
        if recipe.batch.is_auto:
            changes["batch"] = recipe.batch.model_copy(update={"batch_tokens": self.recipe.batch.batch_tokens})
        own, named = self.recipe.init_from, recipe.init_from
        names = [{key: Path(run).name for key, run in one.runs.items()} if one else {} for one in (own, named)]
        if named and names[0] == names[1] and not all(Path(run).exists() for run in named.runs.values()):
            changes["init_from"] = own  # not needed once training has begun: its runs may be gone
        return recipe.model_copy(update=changes)

    def resolve_auto(self, device: torch.device, notify: Notify) -> None:
        """Finds the largest batch and the fastest values for `auto` on this machine, and prepares the process for them.

        They are written into the run's recipe, so that a resumed training uses the same.
        """
        if self.recipe.batch.is_auto:
            self.resolve_batch(device, notify)
            self._keep({})
        training = self.recipe.training
        left = [key for key in AUTO_KEYS if getattr(training, key) == "auto"]
        if left:
            workload, asked = workload_of_run(self, device), dict.fromkeys(left, "auto")
            # What the first stage has of its own is not for the others.
            key = {**workload.key, "training": {**workload.key["training"], **asked}}
            result = tune_training(replace(workload, config=workload.config.changed(asked), key=key))
            for sentence in result.sentences():
                notify(sentence)
            chosen = {key: getattr(result.config, key) for key in left}
            self._keep({"training": training.model_copy(update=chosen)})
        prepare_device(device, self.recipe)

    def resolve_batch(self, device: torch.device, notify: Notify) -> None:
        """Finds the largest batch for `auto`, and writes it nowhere."""
        if self.recipe.batch.is_auto:
            tokens, sentence = find_batch_tokens(self, device)
            notify(sentence)
            batch = self.recipe.batch.model_copy(update={"batch_tokens": tokens})
            self.recipe = self.recipe.model_copy(update={"batch": batch})

    def _keep(self, found: dict[str, Any]) -> None:
        self.recipe = self.recipe.model_copy(update=found)
        if rank() == 0:
            atomic_write_text(self.folder.recipe, self.recipe.to_yaml())

    def preprocess(
        self,
        notify: Notify,
        report: Callable[[DataReport], None],
        diagnosed: Callable[[Diagnosis], None] = ignore,
        learned_before: bool = False,
        processes: int | None = None,
        allow_new_data: bool = False,
    ) -> Tokenizers:
        """Reads and checks the text, learns the tokenizers, writes the arrays; does nothing where that is done.

        Preprocessing that was stopped goes on after its last complete shard.

        Args:
            notify: receives messages.
            report: receives counts and faults when new arrays were written.
            diagnosed: receives the result of the data check; duplicates and overlap are only in the report.
            learned_before: keep existing tokenizers, for a model that was trained with them.
            processes: that tokenize a large corpus; None: one per core.
            allow_new_data: with `learned_before`, accept other text than before.
        """
        texts = [Preprocessing(self, notify, name) for name in self.recipe.texts()]
        waiting = [one for one in texts if not one.is_done()]
        if not waiting:
            notify(f"{self.folder.data}: preprocessed before, and nothing has changed since")
            return self.load_tokenizers()
        for one in waiting if learned_before and not allow_new_data else ():
            one.require_same_text()
        tokenizers = prepare_tokenizers(self, waiting if learned_before else texts, diagnosed, learned_before)
        for text in texts:
            if text.progress:
                written = text.store(tokenizers, processes)
                report(written)
                if warning := text.warning_of_unknown(written, learned_before):
                    notify(warning)
        return tokenizers

    def train(
        self,
        device: torch.device,
        notify: Notify = ignore,
        resume: bool = False,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[Event | StageStarted]:
        """Trains the recipe's model; gives the events of `nmtkit.training.loop.train`, which are logged as well.

        Each stage of a recipe begins with a `StageStarted` and ends with a `Stopped`. Updates and seconds are counted
        from the beginning of the first stage. With `resume` training goes on from the last saved state as if it had
        never stopped. `stop` is asked between updates whether to stop; the state is saved first.
        """
        for event in StagedTraining(self, device, notify, resume, stop).events():
            if self._held is not None and isinstance(event, Saved):
                self._held.commit_or_rollback()
            yield event

    def test(self, device: torch.device, notify: Notify = ignore, threads: int | None = None) -> TestResult | None:
        """Has the model answer the recipe's test set, and scores it; see `evaluate_test_set`."""
        return evaluate_test_set(self, device, notify, threads)


def choose_device(name: str, recipe: Recipe) -> torch.device:
    """The device of that name, made ready for the recipe; joins the other processes under torchrun."""
    device = devices.choose(name)
    if device.type == "cuda" and any(one.training.deterministic for one in recipe.by_stage().values()):
        randomness.require_cublas_workspace()
    device = join(device)
    prepare_device(device, recipe)
    return device
