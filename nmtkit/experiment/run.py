"""A run: one recipe carried out in one folder, stage by stage. The only place where the parts meet."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmtkit import device as devices
from nmtkit import metrics
from nmtkit.data.alignments import parse_alignments
from nmtkit.data.batch import Batch, BatchStream
from nmtkit.data.checking import Checker, DataReport, read_files
from nmtkit.data.corpus import Files
from nmtkit.data.embeddings import EmbeddingsConfig, read_vectors
from nmtkit.data.progress import Progress
from nmtkit.data.reading import Example, read_lines, read_pairs, require_base
from nmtkit.data.store import Store, fingerprint, seek, sums_of_files, write_store
from nmtkit.data.tokenizer import TokenizerPair, learn
from nmtkit.data.workers import cores
from nmtkit.diagnosis.examine import ExamineOptions, examine
from nmtkit.diagnosis.findings import Diagnosis
from nmtkit.errors import CheckpointError, DataError, RecipeError
from nmtkit.experiment import folder as folders
from nmtkit.experiment import tuning
from nmtkit.experiment.checks import (
    embedding_setting,
    require_data,
    require_embeddings,
    require_fitting_stages,
    require_memory,
)
from nmtkit.experiment.folder import RunFolder, StageFolder
from nmtkit.experiment.hold import Hold, hold
from nmtkit.experiment.log import Done, Log
from nmtkit.experiment.opening import Opening, find_way, open_translator
from nmtkit.experiment.validation import Validation, validation_files
from nmtkit.models.base import Seq2Seq
from nmtkit.recipe import Recipe
from nmtkit.task import TASKS
from nmtkit.training import distributed, randomness
from nmtkit.training.checkpoint import Checkpoints
from nmtkit.training.config import TrainingConfig
from nmtkit.training.events import Event, Saved, Stopped
from nmtkit.training.loop import train
from nmtkit.training.weights import (
    OPTIMIZER,
    average_weights,
    fill_known,
    read_weights,
    save_weights,
    under,
    vocabulary_of,
)
from nmtkit.translation.result import Translation
from nmtkit.translation.translator import Translator

Notify = Callable[[str], None]


@dataclass(frozen=True)
class TestResult:
    """The recipe's test set, translated by the trained model."""

    sources: list[str]
    """Its source lines."""
    references: list[str]
    """Its target lines; none if it has no targets."""
    translations: list[Translation]
    """One a source line, in order."""
    scores: list[metrics.Score]
    """Those of `Recipe.tested`, then AER if the test set names gold alignments. None without references."""
    seconds: float
    """Time of the translation, without opening the model."""
    cut: int
    """Of how many source lines only the beginning was read, as in training; see `Translator`."""


@dataclass(frozen=True)
class StageBegun:
    """A stage of the recipe begins, or goes on where it was stopped; the events that follow are of it."""

    name: str
    """Which."""
    number: int
    """From 1."""
    count: int
    """How many stages there are."""
    updates_before: int
    """Updates that all stages before made."""
    seconds_before: float
    """And the time they took."""
    training: TrainingConfig
    """Its settings; their limits count from its beginning."""


class Run:
    """One recipe and the folder it is carried out in.

    Args:
        folder: of a run that was begun; `create`, `begin` and `open` give one.
        recipe: what is carried out in it.
        held: the right to write in the folder, kept as long as this object is, or until `close`; None to read only.
    """

    def __init__(self, folder: RunFolder, recipe: Recipe, held: Hold | None = None) -> None:
        self.folder = folder
        self.recipe = recipe
        self._held = held

    def close(self) -> None:
        """Lets other processes write in the folder; an earlier run that was not replaced is put back."""
        if self._held is not None:
            self._held.close()

    @classmethod
    def create(
        cls, recipe: Recipe, path: str | None = None, overwrite: bool = False, notify: Notify = lambda text: None
    ) -> "Run":
        """Begins a run, or takes up one that was only preprocessed.

        Args:
            recipe: what to do.
            path: the folder; None is `runs/` and the recipe's name.
            overwrite: replace an earlier run; it is kept until the new training has saved its first state.
            notify: told in a sentence what is done beside that.

        Raises:
            NmtkitError: there is an earlier run, the folder holds other things, another process works in it, or it
                cannot be written.
        """
        folder = RunFolder(Path(path) if path else folders.RUNS / recipe.name)
        folder.require_own()
        held = hold(folder, notify)
        folder.require_free(overwrite)
        held.make_room()
        folders.write_text(folder.recipe, recipe.to_yaml())
        return cls(folder, recipe, held)

    @classmethod
    def begin(
        cls,
        recipe: Recipe,
        path: str,
        resume: bool,
        overwrite: bool,
        notify: Notify,
        report: Callable[[DataReport], None],
        diagnosed: Callable[[Diagnosis], None] | None = None,
        processes: int | None = None,
        new_data: bool = False,
    ) -> "Run":
        """All that comes before training: the folder, and the preprocessed data. Process 0 does the work.

        Args:
            recipe: what to do.
            path: the folder.
            resume: go on with the run that is there.
            overwrite: replace the run that is there.
            notify: told in a sentence what is going on.
            report: given what was found in the text, when it was preprocessed.
            diagnosed: as of `preprocess`.
            processes: as of `preprocess`.
            new_data: as of `preprocess`.

        Raises:
            NmtkitError: as `create`, `resumed` and `preprocess`; or the recipe has no validation set, or its word
                vectors are missing or of another size than the model's.
        """
        begun: list[Run] = []

        def prepare() -> None:
            validation_files(recipe)
            require_data(recipe)
            require_fitting_stages(recipe)
            require_memory(recipe)
            if not resume:
                require_embeddings(recipe)
            run = cls.resumed(recipe, path, notify) if resume else cls.create(recipe, path, overwrite, notify)
            begun.append(run)
            run.preprocess(notify, report, diagnosed, resume, processes, new_data)
            for stage in run.folder.stages(recipe) if resume else ():
                stage.checkpoints.check_kept()
            folders.write_text(run.folder.recipe, run.recipe.to_yaml())

        try:
            distributed.by_first(prepare, Path(path).absolute())
        except BaseException:
            for run in begun:
                run.close()
            raise
        run = cls.open(path)
        run._held = begun[0]._held if begun else None
        return run

    @classmethod
    def resumed(cls, recipe: Recipe, path: str, notify: Notify) -> "Run":
        """Opens a run to go on with it. Names, the limits of training and how batches are cut may differ from before.

        The folder has the new recipe once `begin` has written it there.

        Args:
            recipe: what to do.
            path: the run's folder.
            notify: told in a sentence what another way to cut batches means.

        Raises:
            RecipeError: the recipe is not the one that the run was begun with.
            CheckpointError: there is no run.
            NmtkitError: another process works in the folder.
        """
        RunFolder(Path(path)).load_recipe()  # nothing is made where there is no run
        held = hold(RunFolder(Path(path)), notify)
        run = cls.open(path)
        recipe = run.with_found(recipe)
        run.require_same(recipe)
        before, now = (_without_limits(one, batches=True) for one in (run.recipe, recipe))
        changes = list(_differences(before, now))
        if changes:
            notify(
                f"{', '.join(changes)}: training goes on with what is left of its epoch, cut into other batches; from "
                "here on it is no longer the training that was begun, bit for bit"
            )
        return cls(run.folder, recipe, held)

    def require_same(self, recipe: Recipe) -> None:
        """Makes sure that the run was begun with this recipe; names, limits of training and batches may differ.

        Raises:
            RecipeError: it was begun with another one; names what differs.
        """
        faults = list(_differences(_without_limits(self.recipe), _without_limits(self.with_found(recipe))))
        if faults:
            listed = "".join(f"\n  {line}" for line in faults)
            raise RecipeError(
                f"{self.folder.path}: begun with another recipe, so one cannot go on with this one "
                f"(give the same --set, take {self.folder.recipe} itself, or train anew with --overwrite):{listed}"
            )

    @classmethod
    def open(cls, path: str) -> "Run":
        """Opens a run that was begun before.

        Raises:
            CheckpointError: there is none.
        """
        folder = RunFolder(Path(path))
        return cls(folder, folder.load_recipe())

    def with_found(self, recipe: Recipe) -> Recipe:
        """The recipe, with what this run has found where the recipe says `auto`."""
        before, now = self.recipe.training, recipe.training
        known = {key: getattr(before, key) for key in tuning.KEYS if getattr(now, key) == "auto"}
        return recipe.model_copy(update={"training": now.model_copy(update=known)})

    def measure(self, device: torch.device, again: bool = False) -> tuning.Found[tuning.Way]:
        """How this machine trains the model quickest, as it was found once, else by measuring it now.

        Where the recipe has stages, the first one decides for all. The process is left set up for one of the ways.

        Args:
            device: where training will be.
            again: measure, even if something was found on this machine before.

        Raises:
            NmtkitError: the preprocessed data are missing or damaged.
        """
        first = next(iter(self.recipe.by_stage().values()))
        tokenizers = self.folder.load_tokenizers()
        store = Store.open(self.folder.data, "train")

        def first_batches(count: int) -> list[Batch]:
            rank, world, data = distributed.rank(), distributed.size(), first.data
            return list(islice(BatchStream(store, first.batch, first.seed, tokenizers, rank, world, data.cuts), count))

        tokens = int(np.maximum(store.lengths("src"), store.lengths("tgt")).sum()) + len(store)
        a_pass = tokens / first.batch.batch_tokens / first.training.accumulate / distributed.size()
        work = tuning.work(first, folders.sizes_of(tokenizers), device)
        return tuning.find(
            lambda: self.folder.build(first, tokenizers), first_batches, first.training, device, work, a_pass, again
        )

    def settle(self, device: torch.device, notify: Notify) -> None:
        """Chooses what the recipe leaves open (`auto`) for this machine, and prepares the process for it.

        It is written into the run's recipe, so that whoever goes on with the run uses the same.

        Args:
            device: where training will be.
            notify: told in a sentence what was found.

        Raises:
            NmtkitError: as `measure`; or the recipe cannot be written.
        """
        training = self.recipe.training
        left = [key for key in tuning.KEYS if getattr(training, key) == "auto"]
        if left:
            result = self.measure(device)
            for sentence in result.sentences():
                notify(sentence)
            chosen = {key: getattr(result.way, key) for key in left}
            self.recipe = self.recipe.model_copy(update={"training": training.model_copy(update=chosen)})
            if distributed.rank() == 0:
                folders.write_text(self.folder.recipe, self.recipe.to_yaml())
        prepare_device(device, self.recipe)

    # ------------------------------------------------------------------------------------------------- preprocessing

    def reopen(self, notify: Notify) -> None:
        """Takes away what says that training is over, and the average, which is of the weights up to now."""
        self.folder.result.unlink(missing_ok=True)
        self._forget_average(notify)

    def preprocess(
        self,
        notify: Notify,
        report: Callable[[DataReport], None],
        diagnosed: Callable[[Diagnosis], None] | None = None,
        learned_before: bool = False,
        processes: int | None = None,
        new_data: bool = False,
    ) -> TokenizerPair:
        """Reads and checks the text, learns the tokenizers, writes the arrays; does nothing where that is done.

        What was stopped before its end goes on after the last shard that is complete.

        Args:
            notify: told in a sentence what is going on.
            report: given what was found, when new arrays were written.
            diagnosed: given what the data doctor says of the text, before anything is made of it. Duplicates and
                overlap are not in it but in the report.
            learned_before: keep the tokenizers that are there, for a model that was trained with them.
            processes: how many cut the text of a large corpus; None: one a core. The result does not depend on it.
            new_data: with `learned_before`, take text that is another than before.

        Raises:
            NmtkitError: a file is missing or damaged, the text does not fit the settings, it is not the text that the
                run was begun with, or the folder cannot be written.
        """
        recipe = self.recipe
        splits = recipe.data.splits()
        config, copying = recipe.stored, recipe.copies
        data = config.model_dump(mode="json")
        # Arrays that were written before there was such a key are what they would be now.
        for files in (data["train"], data["valid"], data["test"]):
            for key in ("weights", "alignment_base"):
                if files and files[key] in ([], None):
                    del files[key]
        settings: dict[str, Any] = {"data": data, "tokenizer": recipe.tokenizer.model_dump(mode="json")}
        if copying:
            settings["copying"] = True
        mark = fingerprint(settings, config.paths())
        learned = self.folder.vocabulary.is_dir()
        progress = Progress.load(self.folder.progress, mark) if learned else None
        if (
            learned
            and progress is None
            and all(Store.is_current(self.folder.data, name, mark, notify) for name in splits)
        ):
            notify(f"{self.folder.data}: preprocessed before, and nothing has changed since")
            return self.folder.load_tokenizers()
        found = DataReport(files={name: sums_of_files(files.paths()) for name, files in splits.items()})
        if learned_before and not new_data:
            self._require_same_text(found.files)
        if progress is not None:
            tokenizers = self.folder.load_tokenizers()
            found.tokenizer = dict(progress.tokenizer)
            if not Store.has_shards(self.folder.data, "train", mark, progress.shards):
                progress.forget_shards()
            after = f" after the first {progress.read:,} pairs of train" if progress.read else ""
            notify(f"{self.folder.data}: preprocessing was stopped; it goes on{after}, with the tokenizer it learned")
        else:
            if diagnosed is not None:
                notify("looking for faults in the text")
                diagnosed(examine(splits, ExamineOptions(recipe.task, duplicates=False)))
            require_base(splits["train"])
            tokenizers = self._tokenizers(notify, found, learned_before)
            progress = Progress(self.folder.progress, mark, found.tokenizer)
            progress.save()
        checker = Checker(config, found, need_references=TASKS.get(recipe.task).in_one_language)
        for name, files in splits.items():
            if name != "train":
                seek(checker, read_pairs(files))
        for name, files in splits.items():
            notify(f"reading and checking {name}")
            write_store(
                self.folder.data,
                name,
                read_pairs(files),
                tokenizers,
                checker,
                keep_text=name != "train" or tokenizers.sampling,
                copying=copying,
                fingerprint=mark,
                processes=processes or cores(),
                progress=progress if name == "train" else None,
                notify=notify,
            )
        folders.write_json(self.folder.report, found.as_dict())
        self.folder.progress.unlink(missing_ok=True)
        report(found)
        return tokenizers

    def _require_same_text(self, now: Mapping[str, Mapping[str, str]]) -> None:
        """Makes sure that what is trained and validated on is what it was when the run was begun."""
        before = read_files(self.folder.report)
        others = [
            path
            for split in ("train", "valid")
            for path, known in now.get(split, {}).items()
            if before.get(split, {}).get(path) != known
        ]
        if not others:
            return
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        what = "not the text" if before else "changed since, or never compared with the text"
        raise DataError(
            f"{others[0]}{more}: {what} that {self.folder.path} was begun with, so its training cannot go on as if it "
            "had not stopped; bring the text back, or go on in the text as it is now with --resume --new-data: with "
            "the tokenizer of the old text, from the beginning of an epoch"
        )

    def _tokenizers(self, notify: Notify, found: DataReport, learned_before: bool) -> TokenizerPair:
        """The tokenizers that are there, or new ones, learned from train."""
        if learned_before:
            notify(f"{self.folder.data}: preprocessing the text anew; the tokenizer stays")
            return self.folder.load_tokenizers()
        splits, config = self.recipe.data.splits(), self.recipe.tokenizer
        train = splits["train"]
        notify(f"learning the tokenizer ({config.kind}) from {', '.join(train.texts())}")
        tokenizers = learn(config, read_pairs(train), found, train.weights)
        # What names the arrays of an earlier tokenizer goes first: never do they pass for those of this one.
        for path in (self.folder.progress, *map(self.folder.manifest, splits)):
            path.unlink(missing_ok=True)
        tokenizers.save(self.folder.vocabulary)
        return tokenizers

    # ------------------------------------------------------------------------------------------------------ training

    def train(
        self,
        device: torch.device,
        notify: Notify,
        resume: bool = False,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[Event | StageBegun]:
        """Trains the recipe's model; `metrics.jsonl`, and TensorBoard if it is there, get every `Step` and `Evaluated`.

        Where the recipe has stages they follow each other. Updates and seconds are then counted from the beginning of
        the first, in the log and in the events, which a `StageBegun` parts.

        Args:
            device: where to train.
            notify: told in a sentence what the model and each stage begin with, and how much text is cut.
            resume: go on from the last saved state as if training had never stopped; bit for bit as
                `nmtkit.training.loop.train` says.
            stop: asked between updates whether to stop; the state is saved first.

        Yields:
            The events of `nmtkit.training.loop.train`; every stage ends with a `Stopped`.

        Raises:
            NmtkitError: as `nmtkit.training.loop.train`; or the preprocessed data or the word vectors are missing or
                damaged, or a stage's model does not fit the one before.
        """
        tokenizers = self.folder.load_tokenizers()
        stages = self.folder.stages(self.recipe, vocabulary=tokenizers.sum)
        begun = [number for number, stage in enumerate(stages) if stage.checkpoints.last.exists()]
        first = begun[-1] if resume and begun else 0
        done = Done()
        for stage in stages[:first]:
            done = done.and_then(stage)
        log: Log | None = None
        try:
            for number in range(first, len(stages)):
                stages = self.folder.stages(self.recipe, done.by_stage, tokenizers.sum)
                stage, going_on = stages[number], resume and number == first
                if stage.name:
                    facts = (number + 1, len(stages), done.updates, done.seconds)
                    yield StageBegun(stage.name, *facts, stage.recipe.training)
                if distributed.rank() == 0 and not going_on:
                    self._forget_average(notify)
                training = self._train_stage(stages, number, tokenizers, device, notify, going_on, stop)
                for event in training:
                    if log is None and distributed.rank() == 0:
                        # Only now has a state that training goes on from shown itself whole; before, nothing may go.
                        if resume:
                            self.reopen(notify)
                        log = Log(self.folder, stage, done, resume)
                    if log is not None:
                        log.stage = stage.name
                    shown = done.shift(event)
                    if log is not None:
                        log.add(shown)
                    if self._held is not None and isinstance(event, Saved):
                        self._held.settle()
                    yield shown
                    if isinstance(event, Stopped) and event.reason == "interrupted":
                        return
                done = done.and_then(stage)
            if log is not None:
                self._finish(stages, shown)
        finally:
            if log is not None:
                log.close()

    def _train_stage(
        self,
        stages: Sequence[StageFolder],
        number: int,
        tokenizers: TokenizerPair,
        device: torch.device,
        notify: Notify,
        resume: bool,
        stop: Callable[[], bool] | None,
    ) -> Iterator[Event]:
        """Trains one stage, beginning with what the one before it has reached."""
        stage = stages[number]
        recipe = stage.recipe
        torch.manual_seed(recipe.seed)
        model = self.folder.build(recipe, tokenizers)
        optimizer_state = None
        if recipe.training.max_minutes == 0:
            notify(
                f"stage {stage.name}: the stages before have used up training.max_minutes; it makes no update, and is "
                "only validated"
            )
        if resume:
            if stage.name:
                notify(f"stage {stage.name} goes on ({number + 1} of {len(stages)})")
        elif number:
            optimizer_state = _take_over(model, stages, number, notify)
        elif stage.name:
            notify(f"stage {stage.name} begins (1 of {len(stages)})")
        if recipe.pretrained_embeddings is not None:
            if not resume and not number:
                _begin_embeddings(model, tokenizers, recipe, recipe.pretrained_embeddings, notify)
            for side in recipe.pretrained_embeddings.files() if recipe.pretrained_embeddings.freeze else ():
                model.embedding(side).weight.requires_grad_(False)
        store, seed = Store.open(self.folder.data, "train"), recipe.seed + number
        store.require_vocabulary(tokenizers.sum)
        for text in (*_cuts(store, recipe), *_cuts(Store.open(self.folder.data, "valid"), recipe)):
            notify(text)
        rank, world = distributed.rank(), distributed.size()
        weights = recipe.data.train.weights
        if resume and stage.checkpoints.read_facts()["stream"].get("data", store.identity) != store.identity:
            notify("the text is not that of the last state: with it the epoch begins anew")
        stream = BatchStream(store, recipe.batch, seed, tokenizers, rank, world, recipe.data.cuts, weights)
        evaluate = Validation(self.folder, recipe, tokenizers, device)
        return train(
            model,
            stream,
            recipe.training,
            evaluate,
            stage.checkpoints,
            device,
            resume,
            stop,
            seed,
            optimizer_state,
        )

    def _forget_average(self, notify: Notify) -> None:
        if self.folder.average.exists():
            self.folder.average.unlink()
            notify(f"{self.folder.average}: removed, since training goes on; average again when it is over")

    def _finish(self, stages: Sequence[StageFolder], event: Event) -> None:
        assert isinstance(event, Stopped)
        last = stages[-1].checkpoints
        result: dict[str, Any] = {
            "reason": event.reason,
            "updates": event.update,
            "best": _best_name(last),
            "kept": [asdict(entry) for entry in last.kept()],
        }
        if stages[-1].name:
            result["stages"] = [
                {
                    "name": stage.name,
                    "updates": stage.checkpoints.read_facts()["update"],
                    "best": _best_name(stage.checkpoints),
                    "kept": [asdict(entry) for entry in stage.checkpoints.kept()],
                }
                for stage in stages
            ]
        folders.write_json(self.folder.result, result)

    # ----------------------------------------------------------------------------------------------------------- test

    def test(self, device: torch.device, notify: Notify | None = None, threads: int | None = None) -> TestResult | None:
        """Translates the recipe's test set with the run's weights and scores it; None if the recipe names none.

        The translations are written beside the run's other files, one a line. Where nobody has measured how this
        machine searches quickest with such a model, that is done first.

        Args:
            device: where.
            notify: told in a sentence what was measured.
            threads: CPU threads; None is one a core.

        Raises:
            NmtkitError: the run has no weights, the test set cannot be read, or the folder cannot be written.
        """
        files = self.recipe.data.splits().get("test")
        if files is None:
            return None
        pairs = list(read_pairs(files))
        sources, references = [pair.src for pair in pairs], [pair.tgt for pair in pairs]
        # Not as many as the training had: fewer may have been quicker there.
        threads = threads or devices.cpu_threads()
        translator = open_translator(self.folder, Opening(device=str(device), threads=threads))
        filled = [source for source in sources if source.strip()]
        spent = sum(stage.checkpoints.read_facts()["seconds"] for stage in self.folder.stages(self.recipe))
        if filled:
            translator, found_way = find_way(translator, self.recipe, filled, spent, threads)
            for sentence in found_way.sentences():
                (notify or str)(sentence)
        begun = time.monotonic()
        found = [best[0] for best in translator.search(sources)]
        seconds = time.monotonic() - begun
        cut = sum(translation.src_left_out > 0 for translation in found)
        texts = [translation.text for translation in found]
        folders.write_text(self.folder.test_output, "".join(text + "\n" for text in texts))
        given = [reference for reference in references if reference is not None]
        scores: list[metrics.Score] = []
        if len(given) == len(texts):
            how = self.recipe.evaluation
            options = metrics.Options(tokenize=how.tokenize, lowercase=how.lowercase)
            scores = metrics.score_all(texts, [given], self.recipe.tested, options, sources)
            if files.alignment and translator.model.has_attention:
                scores.append(_alignment_error_rate(translator, files, pairs, notify))
            summary = [asdict(score) for score in scores]
            folders.write_json(self.folder.test_scores, {"scores": summary, "seconds": seconds, "sources_cut": cut})
        return TestResult(sources, given, found, scores, seconds, cut)


def _alignment_error_rate(
    translator: Translator, files: Files, pairs: Sequence[Example], notify: Notify | None
) -> metrics.Score:
    """AER of the model's attention on given pairs against the gold alignments that their files name."""
    base = files.alignment_base
    gold = []
    for path in files.alignment:
        read = parse_alignments(read_lines(path), path, base or 0)
        gold += read.pairs
        if base is None and notify is not None and (doubt := read.doubt):
            notify(
                f"note: {path} was read as counting words from 0, but {doubt}; if it counts from 1, the AER is wrong: "
                "set data.test.alignment_base: 1 (and measure this run with `nmtkit align` and `score-alignments`)"
            )

    def column(name: str) -> list[str]:
        return [str(getattr(pair, name)) for pair in pairs]

    found = translator.align(
        column("src"),
        column("tgt"),
        column("src_words") if files.src_words else None,
        column("tgt_words") if files.tgt_words else None,
    )
    return metrics.aer([one.links() for one in found], gold).aer


def _best_name(checkpoints: Checkpoints) -> str | None:
    return next((path.name for path in checkpoints.best()), None)


def _cuts(store: Store, recipe: Recipe) -> Iterator[str]:
    """In a sentence a side, how many examples are longer than the recipe's limits."""
    sides = TASKS.get(recipe.task).sides
    for side, what, limit in zip(("src", "tgt"), sides, recipe.data.cuts or (), strict=False):
        longer = store.longer(side, limit)
        if longer:
            of = f"{longer:,} of {len(store):,} {what}"
            yield f"{store.name}: {of} are longer than {limit} tokens and are cut to {limit}"


def _take_over(
    model: Seq2Seq, stages: Sequence[StageFolder], number: int, notify: Notify
) -> dict[str, torch.Tensor] | None:
    """Gives the model of a stage the best weights of the stage before; what its optimizer knew, if it is the same."""
    before, stage = stages[number - 1], stages[number]
    path = before.checkpoints.best()[0]
    new, gone = fill_known(model, read_weights(path, before.checkpoints.vocabulary), path)
    update = next(
        entry.update for entry in before.checkpoints.kept() if before.checkpoints.weights_path(entry.update) == path
    )
    kind = before.recipe.training.optimizer
    same = kind == stage.recipe.training.optimizer
    said = [f"stage {stage.name} begins ({number + 1} of {len(stages)})"]
    said.append(f"with the best weights of stage {before.name}, those of its update {update}")
    if new:
        said.append(f"new, as in a fresh model: {', '.join(new)}")
    if gone:
        said.append(f"no longer there: {', '.join(gone)}")
    said.append(f"{kind} goes on" if same else f"{stage.recipe.training.optimizer} begins afresh, after {kind}")
    notify("; ".join(said))
    if not same:
        return None
    state = under(OPTIMIZER, before.checkpoints.load_last()[0])
    own = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {name: tensor for name, tensor in state.items() if name.partition("/")[2] in own}


def _begin_embeddings(
    model: Seq2Seq, tokenizers: TokenizerPair, recipe: Recipe, config: EmbeddingsConfig, notify: Notify
) -> None:
    """Puts the recipe's word vectors into a model that was just made."""
    for side, path in config.files().items():
        vocabulary = (tokenizers.src if side == "src" else tokenizers.tgt).vocabulary
        weight = model.embedding(side).weight
        found = read_vectors(path, vocabulary, weight.shape[1], embedding_setting(recipe))
        factor = model.begin_embedding(
            side, torch.from_numpy(found.ids), torch.from_numpy(found.vectors), config.rescale
        )
        places = [name for name, other in model.named_parameters(remove_duplicate=False) if other is weight]
        share = len(found.ids) / len(vocabulary)
        notify(
            f"{path}: {found.in_file:,} vectors; {len(found.ids):,} of the {len(vocabulary):,} tokens ({share:.1%}) "
            f"begin with one in {' and '.join(places)}, times {factor:.3g}; the others begin at random"
            + ("; none of them will be trained" if config.freeze else "")
        )


# ------------------------------------------------------------------------------------------------------ smaller works


def to_average(folder: RunFolder, best: int | None = None, recent: int | None = None) -> list[Path]:
    """The weights files of a run that are to be averaged.

    Args:
        folder: of the run; where training has stages, those of the newest stage that was validated are taken.
        best: how many of its best; None for all that were kept.
        recent: how many of its newest, instead of the best.

    Raises:
        CheckpointError: there are not so many, or fewer than two.
    """
    checkpoints = folder.newest_stage(folder.load_recipe()).checkpoints
    kept = checkpoints.best() if recent is None else checkpoints.recent()
    wanted = recent or best or 2
    if len(kept) < wanted:
        raise CheckpointError(
            f"{checkpoints.folder}: at least {wanted} checkpoints are needed for this, and {len(kept)} were kept; "
            "keep more with training.keep_best or training.keep_recent"
        )
    return kept[: recent or best]


def average(files: Sequence[Path], output: Path, of: RunFolder | None = None) -> None:
    """Averages weights files into one.

    Args:
        files: the weights.
        output: where to.
        of: the run whose model they must fit; None: they need only fit each other.

    Raises:
        CheckpointError: there are fewer than two, they do not fit each other, or the output cannot be written.
    """
    if len(files) < 2:
        raise CheckpointError(f"{files[0] if files else output}: an average needs at least two checkpoints; name more")
    if of is None:
        model, vocabulary = None, next(filter(None, map(vocabulary_of, files)), "")
    else:
        tokenizers = of.load_tokenizers()
        model, vocabulary = of.build(of.newest_stage(of.load_recipe()).recipe, tokenizers), tokenizers.sum
    save_weights(output, average_weights(files, model, vocabulary), vocabulary)


def choose_device(name: str, recipe: Recipe) -> torch.device:
    """The device of that name, made ready for the recipe; joins the other processes under torchrun."""
    device = devices.choose(name)
    if device.type == "cuda" and any(one.training.deterministic for one in recipe.by_stage().values()):
        randomness.fix_workspace()
    device = distributed.join(device)
    prepare_device(device, recipe)
    return device


def prepare_device(device: torch.device, recipe: Recipe) -> None:
    """Sets the process up as the recipe says."""
    config = recipe.training
    threads = devices.cpu_threads() if config.threads == "auto" else config.threads
    devices.prepare(device, config.matmul_precision, threads)


def _without_limits(recipe: Recipe, batches: bool = False) -> dict[str, Any]:
    """What must stay the same when a run goes on, stages by their names; with how batches are cut, if asked for."""
    data = recipe.model_dump(mode="json", exclude={"name", "description"})
    for group in (data, *data["stages"]):
        for key in ("max_updates", "max_epochs", "max_minutes", "patience", "log_every", "save_every", "threads"):
            group["training"].pop(key, None)
        if not batches:
            del group["batch"]
            group["training"].pop("accumulate", None)
    data["stages"] = {stage.pop("name"): stage for stage in data["stages"]}
    return data


def _differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    """Where two recipes part, one sentence a key."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif before != now:
        yield f"`{key}` was {before!r} and is {now!r}"
