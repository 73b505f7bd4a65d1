"""Preprocessing: the text of a recipe is read once to be looked at, and once more to be encoded and stored."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from nmtkit.core.columns import label_type
from nmtkit.core.errors import DataError
from nmtkit.core.files import write_json
from nmtkit.core.processes import available_cores
from nmtkit.corpus.blocks import Block
from nmtkit.corpus.checking import DataReport, PairChecker, read_checksums
from nmtkit.corpus.reading import read_blocks, require_plain_text
from nmtkit.data.encoding import FileChecksums, PairEncoder, PreprocessingProgress, encode_split, fingerprint
from nmtkit.data.store import Store
from nmtkit.data.tokenizer_training import TokenizerSample, learn_from_sample
from nmtkit.data.tokenizers import Tokenizers
from nmtkit.diagnosis.examine import examine
from nmtkit.diagnosis.findings import Diagnosis
from nmtkit.experiment.checks import require_sound
from nmtkit.recipe import Recipe
from nmtkit.runs.folder import Notify
from nmtkit.runs.origin import FineTuningOrigin, origin_tokenizers, read_origin
from nmtkit.runs.saved import SavedRun
from nmtkit.tasks.task import TASKS

_NEWER = ("labels", "features", "labels_field", "columns", "specials", "tags", "sentinels", "directions")


class Preprocessing:
    """The text of a run's recipe on its way into the arrays of its folder."""

    def __init__(self, run: SavedRun, notify: Notify) -> None:
        self._run = run
        self._folder = folder = run.folder
        self._recipe = recipe = run.recipe
        self._notify = notify
        self._splits = recipe.data.splits()
        self._task = TASKS.get(recipe.task)
        origin = read_origin(folder)
        self._origin = origin if origin and origin.vocabulary else None
        self._mark = fingerprint(_settings(recipe, self._origin), recipe.storage_config.paths())
        learned = folder.vocabulary.is_dir()
        self._progress = PreprocessingProgress.load(folder.progress, self._mark) if learned else None
        self._report = DataReport()

    def is_done(self) -> bool:
        """Whether the arrays exist, and nothing has changed since."""
        return (
            self._folder.vocabulary.is_dir()
            and self._progress is None
            and all(Store.is_current(self._folder.data, name, self._mark, self._notify) for name in self._splits)
        )

    def require_same_text(self) -> None:
        """Refuses text to train or validate on that has changed since the run was begun."""
        before = read_checksums(self._folder.report)
        for split in sorted(self._splits.keys() - {"test"}):
            for path, checksum in FileChecksums().of(self._splits[split].paths()).items():
                if before.get(split, {}).get(path) != checksum:
                    raise DataError(
                        f"{path}: not the text that {self._folder.path} was begun with; bring that text back, or go on "
                        "with the new one by --resume --allow-new-data: with the tokenizer of the old text, from the "
                        "beginning of an epoch"
                    )

    def tokenizers(self, diagnosed: Callable[[Diagnosis], None], learned_before: bool) -> Tokenizers:
        """The tokenizers of a preprocessing that was stopped, if there are any, else new ones; text is checked first.

        `diagnosed` receives the result of that check. With `learned_before` existing tokenizers stay.
        """
        folder, progress = self._folder, self._progress
        if progress is not None:
            self._report.tokenizer = dict(progress.tokenizer)
            if not Store.has_shards(folder.data, "train", self._mark, progress.shards):
                progress = self._progress = PreprocessingProgress(folder.progress, self._mark, progress.tokenizer)
            after = f" after the first {progress.read:,} pairs of train" if progress.read else ""
            self._notify(f"{folder.data}: preprocessing was stopped; it goes on{after}, with the tokenizer it learned")
            return self._run.load_tokenizers()
        train = self._splits["train"]
        sample = None
        if not learned_before and self._origin is None:
            sample = TokenizerSample(self._recipe.tokenizer.train_lines, train.weights, self._task.columns)
        self._look(diagnosed, sample)
        if learned_before:
            self._notify(f"{folder.data}: preprocessing the text anew; the tokenizer stays")
            tokenizers = self._run.load_tokenizers()
        else:
            tokenizers = self._new_tokenizers(sample)
            # First, so that arrays of an earlier tokenizer are never taken for those of this one.
            for path in (folder.progress, *map(folder.manifest, self._splits)):
                path.unlink(missing_ok=True)
            tokenizers.save(folder.vocabulary)
        self._progress = PreprocessingProgress(folder.progress, self._mark, self._report.tokenizer)
        self._progress.save()
        return tokenizers

    def _new_tokenizers(self, sample: TokenizerSample | None) -> Tokenizers:
        """The tokenizers of the run to begin from, else learned from the sample."""
        config, train = self._recipe.tokenizer, self._splits["train"]
        if self._origin is not None:
            self._notify(f"the tokenizer ({config.kind}) is that of {self._origin.run}")
            return origin_tokenizers(self._origin, self._recipe)
        if files := [*train.src, *train.tgt, *train.jsonl, *train.stories]:
            self._notify(f"learning the tokenizer ({config.kind}) from {', '.join(files)}")
        assert sample is not None
        return learn_from_sample(config, sample, self._report)

    def _look(self, diagnosed: Callable[[Diagnosis], None], sample: TokenizerSample | None) -> None:
        """Checks the text and takes the tokenizer's sample in one reading; DataError if train cannot be read."""
        self._notify("looking for faults in the text")

        def see(block: Block) -> None:
            require_plain_text(block, self._splits[block.split])
            if block.split == "train" and sample is not None:
                sample.add_block(block)

        # Duplicates are found when the text is stored.
        diagnosis = examine(self._splits, self._task.monolingual, duplicates=False, see=see)
        diagnosed(diagnosis)
        require_sound(self._splits, diagnosis)

    def store(self, tokenizers: Tokenizers, processes: int | None) -> DataReport:
        """Checks, encodes and stores all splits; writes and gives the report."""
        recipe, data, sums = self._recipe, self._folder.data, FileChecksums()
        checker = PairChecker(recipe.storage_config, self._report, need_references=self._task.monolingual)
        labels = label_type(self._task.columns)
        for name, files in self._splits.items():
            for block in read_blocks(name, files) if name != "train" else ():
                checker.register(block)
        for name, files in self._splits.items():
            self._notify(f"reading and checking {name}")
            keep_text = name != "train" or tokenizers.sampling
            encode_split(
                data,
                read_blocks(name, files, watch=sums),
                PairEncoder(name, tokenizers, recipe.storage_config, keep_text, recipe.copies, labels),
                checker,
                fingerprint=self._mark,
                processes=processes or available_cores(),
                progress=self._progress if name == "train" else None,
                notify=self._notify,
            )
            self._report.files[name] = sums.of(files.paths())
        write_json(self._folder.report, asdict(self._report))
        self._folder.progress.unlink(missing_ok=True)
        return self._report


def _settings(recipe: Recipe, origin: FineTuningOrigin | None) -> Mapping[str, Any]:
    """What the arrays depend on, beside the text."""
    data = recipe.storage_config.model_dump(mode="json")
    settings = {"data": _without_newer(data), "tokenizer": _without_newer(recipe.tokenizer.model_dump(mode="json"))}
    if kind := label_type(TASKS.get(recipe.task).columns):
        settings["labels"] = kind
    if origin is not None:
        settings["vocabulary"] = origin.vocabulary  # the settings of the tokenizer do not tell it
    return settings | {"copying": True} if recipe.copies else settings


def _without_newer(values: Any) -> Any:
    """Settings without those that came later and are not used, so that earlier arrays stay current.

    Nor does anything stored depend on the temperature.
    """
    if not isinstance(values, dict):
        return values
    kept = {key: value for key, value in values.items() if key != "temperature" and (value or key not in _NEWER)}
    return {key: _without_newer(value) for key, value in kept.items()}
