"""Preprocessing: the text of a recipe is read once to be looked at, and once more to be encoded and stored."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from nmtkit.core.columns import label_type
from nmtkit.core.errors import DataError
from nmtkit.core.files import write_json
from nmtkit.core.processes import available_cores
from nmtkit.data.batches.encoding import PairEncoder, PreprocessingProgress, encode_split, fingerprint
from nmtkit.data.batches.store import Store
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.checking import DataReport, FileChecksums, PairChecker, read_checksums
from nmtkit.data.text.reading import read_blocks, require_plain_text
from nmtkit.data.tokenizers.tokenizer_training import TokenizerSample, describe_shortfall, learn_from_sample
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import SPECIALS, UNK
from nmtkit.datacheck.examine import examine
from nmtkit.datacheck.findings import Diagnosis
from nmtkit.experiment.checks import require_sound
from nmtkit.runs.folder import Notify
from nmtkit.runs.origin import origin_tokenizers, read_origin
from nmtkit.runs.saved import SavedRun
from nmtkit.tasks.task import TASKS


class Preprocessing:
    """A text of a run, of those in `Recipe.texts`, on its way into the arrays of its folder."""

    def __init__(self, run: SavedRun, notify: Notify, name: str) -> None:
        self._folder, self.data = run.folder, run.folder.data / name
        self._written = self.data / run.folder.report.name if name else run.folder.report
        self.recipe = recipe = run.recipe.texts()[name]
        self.notify = notify
        self.splits = recipe.data.splits()
        self._task = TASKS.get(recipe.task)
        origin = read_origin(run.folder)
        self.origin = origin if origin and origin.vocabulary else None
        data = recipe.storage_config.model_dump(mode="json", exclude={"train": {"temperature"}})
        for split in self.splits:
            if not data[split]["encoding"]:  # arrays of UTF-8 text are older than this setting
                del data[split]["encoding"]
        settings = {  # what the arrays depend on, beside the text
            "data": data,
            "tokenizer": recipe.tokenizer.model_dump(mode="json"),
            "labels": label_type(self._task.columns),
            "vocabulary": self.origin and self.origin.vocabulary,  # the settings of the tokenizer do not tell it
            "copying": recipe.copies,
        }
        self._mark = fingerprint(settings, recipe.storage_config.paths())
        self._place, self._report = self.data / "progress.json", DataReport()
        self.progress = PreprocessingProgress.load(self._place, self._mark) if run.folder.vocabulary.is_dir() else None
        if self.progress and not Store.has_shards(self.data, "train", self._mark, self.progress.shards):
            self.begin(self.progress.tokenizer)

    def is_done(self) -> bool:
        """Whether the arrays exist, and nothing has changed since."""
        return (
            self._folder.vocabulary.is_dir()
            and self.progress is None
            and all(Store.is_current(self.data, name, self._mark, self.notify) for name in self.splits)
        )

    def warning_of_unknown(self, report: DataReport, learned_before: bool) -> str:
        """A warning if the vocabulary lacks much of the text; empty if it does not, or if the model copies words."""
        sides = report.mostly_unknown()
        if not sides or self.recipe.copies:
            return ""
        owner = ""
        remedy = "Raise tokenizer.vocab_size, or take subwords (tokenizer.kind: bpe)"
        if self.origin is not None:
            owner = f" of {self.origin.run}"
            remedy = (
                "Train a model with a vocabulary of this text (without init_from), or fine-tune another one that knows "
                "its letters and words, such as a public multilingual model (nmtkit guide public-models)"
            )
        elif learned_before:
            owner = " of this run"
            remedy = "Train anew, so that a vocabulary is learned from this text"
        return (
            f"warning: unknown to the vocabulary{owner}: {sides}. The model reads and learns {SPECIALS[UNK]} in their "
            f"place, so a low perplexity says nothing. {remedy}"
        )

    def require_same_text(self) -> None:
        """Refuses text to train or validate on that has changed since the run was begun."""
        before = read_checksums(self._written)
        what = f"not the text that {self._folder.path} was begun with; bring that text back, or go on"
        if not before:  # as after a kill
            what = f"without {self._written} nobody knows if this is the text of the run; leave --resume out, or go on"
        for split in sorted(self.splits.keys() - {"test"}):
            for path, checksum in FileChecksums().of(self.splits[split].paths()).items():
                if before.get(split, {}).get(path) != checksum:
                    raise DataError(
                        f"{path}: {what} with the new one by --resume --allow-new-data: with the tokenizer of the old "
                        "text, from the beginning of an epoch"
                    )

    def begin(self, facts: Mapping[str, str | int]) -> None:
        """Begins with a tokenizer, of which the report has these facts."""
        self.data.mkdir(parents=True, exist_ok=True)
        self.progress = PreprocessingProgress(self._place, self._mark, facts)
        self.progress.save()

    def look(self, diagnosed: Callable[[Diagnosis], None], learns: bool) -> TokenizerSample:
        """Checks the text and takes the tokenizer's sample in one reading; DataError if train cannot be read."""
        self.notify("looking for faults in the text")
        train = self.splits["train"]
        sample = TokenizerSample(self.recipe.tokenizer.train_lines, train.weights, self._task.columns)

        def see(block: Block) -> None:
            require_plain_text(block, self.splits[block.split])
            if block.split == "train" and learns:
                sample.add_block(block)

        # Duplicates are found when the text is stored.
        diagnosis = examine(self.splits, self._task.monolingual, duplicates=False, see=see)
        diagnosed(diagnosis)
        require_sound(self.splits, diagnosis)
        return sample

    def store(self, tokenizers: Tokenizers, processes: int | None) -> DataReport:
        """Checks, encodes and stores all splits; writes and gives the report."""
        recipe, data, sums = self.recipe, self.data, FileChecksums()
        self._report.tokenizer = dict(self.progress.tokenizer) if self.progress else {}
        checker = PairChecker(
            recipe.storage_config, self._report, need_references=self._task.monolingual, forms=tokenizers.text_forms()
        )
        labels = label_type(self._task.columns)
        for name, files in self.splits.items():
            for block in read_blocks(name, files) if name != "train" else ():
                checker.register(block)
        for name, files in self.splits.items():
            self.notify(f"reading and checking {name}")
            keep_text = name != "train" or tokenizers.sampling
            encode_split(
                data,
                read_blocks(name, files, watch=sums),
                PairEncoder(name, tokenizers, recipe.storage_config, keep_text, recipe.copies, labels),
                checker,
                fingerprint=self._mark,
                processes=processes or available_cores(),
                progress=self.progress if name == "train" else None,
                notify=self.notify,
            )
            self._report.files[name] = sums.of(files.paths())
        if checker.estimates:
            self.notify(checker.estimates)
        write_json(self._written, asdict(self._report))
        self._place.unlink(missing_ok=True)
        return self._report


def prepare_tokenizers(
    run: SavedRun, texts: Sequence[Preprocessing], diagnosed: Callable[[Diagnosis], None], learned_before: bool
) -> Tokenizers:
    """The tokenizers of a preprocessing that was stopped, if there are any, else new ones; texts are checked first.

    `diagnosed` receives the results. With `learned_before` existing tokenizers stay, for the texts that have changed.
    """
    first, folder, config, report = texts[0], run.folder, run.recipe.tokenizer, DataReport()
    stopped = {text: text.progress for text in texts if not text.is_done()}
    if all(stopped.values()):
        for text, progress in stopped.items():
            after = f" after the first {progress.read:,} pairs of train" if progress and progress.read else ""
            first.notify(f"{text.data}: preprocessing was stopped; it goes on{after}, with the tokenizer it learned")
        return run.load_tokenizers()
    samples = [text.look(diagnosed, learns=not learned_before and first.origin is None) for text in texts]
    if learned_before:
        first.notify(f"{folder.data}: preprocessing the text again with the same tokenizer")
        tokenizers = run.load_tokenizers()
    elif first.origin is not None:
        first.notify(f"the tokenizer ({config.kind}) comes from {first.origin.run}")
        tokenizers = origin_tokenizers(first.origin, run.recipe)
    else:
        trains = [text.splits["train"] for text in texts]
        if files := [path for train in trains for path in (*train.src, *train.tgt, *train.jsonl, *train.stories)]:
            first.notify(f"learning the tokenizer ({config.kind}) from {', '.join(files)}")
        for sample in samples[1:]:
            samples[0].kept += sample.kept
            samples[0].total += sample.total
        tokenizers = learn_from_sample(config, samples[0], report)
        if shortfall := describe_shortfall(config, tokenizers):
            first.notify(shortfall)
    if not learned_before:
        # First, so that arrays of an earlier tokenizer are never taken for those of this one.
        shutil.rmtree(folder.data, ignore_errors=True)
        tokenizers.save(folder.vocabulary)
    for text in texts:
        text.begin(report.tokenizer)
    return tokenizers
