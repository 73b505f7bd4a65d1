"""Preprocessing: checks the text of a recipe, trains the tokenizers, and stores the encoded text.

The training text is read twice: `Preprocessing.look` checks it and takes a sample for the
tokenizers, and `Preprocessing.store` encodes it. The other splits are read once more in between; see
`store`. Text does not stay in memory between passes, because it may not fit.
"""

import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain

from nmtkit.config.tasks.task import TASKS
from nmtkit.core.columns import label_type
from nmtkit.core.errors import DataError
from nmtkit.core.files import write_json
from nmtkit.core.processes import available_cores
from nmtkit.data.batches.encoding import encode_split
from nmtkit.data.batches.pair_encoder import PairEncoder
from nmtkit.data.batches.progress import PreprocessingProgress, input_fingerprint
from nmtkit.data.batches.store import Store
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.checking import DataReport, PairChecker
from nmtkit.data.text.checksums import FileChecksums, read_checksums
from nmtkit.data.text.features import require_one_layout
from nmtkit.data.text.reading import read_blocks, require_plain_text
from nmtkit.data.tokenizers.tokenizer import TRAIN_LINES
from nmtkit.data.tokenizers.tokenizer_training import (
    TokenizerSample,
    describe_shortfall,
    learn_from_samples,
)
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import SPECIALS, UNK
from nmtkit.datacheck.examine import QUICK_LANGUAGE_PAIRS, examine
from nmtkit.datacheck.findings import Diagnosis
from nmtkit.experiment.checks import require_sound
from nmtkit.runs.folder import Notify, ignore
from nmtkit.runs.origin import origin_tokenizers, read_origin
from nmtkit.runs.run import Run


class Preprocessing:
    """Turns one of the texts in `Recipe.texts` into the arrays of the run's folder."""

    def __init__(self, run: Run, notify: Notify, name: str) -> None:
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
            if not data[split][
                "encoding"
            ]:  # this setting was added later, and arrays of UTF-8 text do not depend on it
                del data[split]["encoding"]
            # settings that only earlier versions had
            data[split] |= {"labels_field": "", "alignment_field": ""}
        # earlier versions had this setting, too
        tokenizer = recipe.tokenizer.model_dump(mode="json") | {"train_lines": TRAIN_LINES}
        settings = {  # everything that the arrays depend on, except the text
            "data": data,
            "tokenizer": tokenizer,
            "labels": label_type(self._task.columns),
            # not determined by the settings of the tokenizer
            "vocabulary": self.origin and self.origin.vocabulary,
            "copying": recipe.copies,
        }
        self._mark = input_fingerprint(settings, recipe.storage_config.paths())
        self._place, self._report = self.data / "progress.json", DataReport()
        self.progress = (
            PreprocessingProgress.load(self._place, self._mark)
            if run.folder.vocabulary.is_dir()
            else None
        )
        if self.progress and not Store.has_shards(
            self.data, "train", self._mark, self.progress.n_shards
        ):
            self.begin(self.progress.tokenizer)

    def is_done(self) -> bool:
        """Returns whether the arrays exist and are up to date."""
        return (
            self._folder.vocabulary.is_dir()
            and self.progress is None
            and all(
                Store.is_current(self.data, name, self._mark, self.notify) for name in self.splits
            )
        )

    def warning_of_unknown(self, report: DataReport, learned_before: bool) -> str:
        """Returns a warning if much of the text is not in the vocabulary and the model cannot copy."""
        sides = report.describe_unknown_sides()
        if not sides or self.recipe.copies:
            return ""
        owner = ""
        remedy = "Raise tokenizer.vocab_size, or use subwords (tokenizer.kind: bpe)"
        if self.origin is not None:
            owner = f" of {self.origin.run}"
            remedy = (
                "Train a model with a vocabulary from this text (without init_from), or fine-tune "
                "one whose vocabulary covers it, such as a public multilingual model (nmtkit "
                "guide public-models)"
            )
        elif learned_before:
            owner = " of this run"
            remedy = "Start a new run to build a vocabulary from this text"
        return (
            f"warning: {sides} are not in the vocabulary{owner}. The model sees "
            f"{SPECIALS[UNK]} instead, so a low perplexity is meaningless. {remedy}"
        )

    def require_same_text(self) -> None:
        """Rejects training or validation text that has changed since the run started."""
        before = read_checksums(self._written)
        what = (
            f"this is not the text that {self._folder.path} was started with; restore that text, "
            "or continue"
        )
        if not before:  # for example after the process was killed
            what = (
                f"because {self._written} is missing, this may not be the text of the run; omit "
                "--resume, or continue"
            )
        for split in sorted(self.splits.keys() - {"test"}):
            for path, checksum in FileChecksums().checksums_of(self.splits[split].paths()).items():
                if before.get(split, {}).get(path) != checksum:
                    raise DataError(
                        f"{path}: {what} with the new text using --resume --allow-new-data, which "
                        "keeps the tokenizer and starts at the beginning of an epoch"
                    )

    def begin(self, facts: Mapping[str, str | int]) -> None:
        """Records that encoding starts; `facts` about the tokenizer go into the report."""
        self.data.mkdir(parents=True, exist_ok=True)
        self.progress = PreprocessingProgress(self._place, self._mark, facts)
        self.progress.save()

    def look(self, learns: bool) -> Generator[Diagnosis, None, TokenizerSample]:
        """Checks the text and samples it for the tokenizer in one pass; raises DataError if train cannot be read."""
        self.notify(
            f"checking the text, and the language of its first {QUICK_LANGUAGE_PAIRS:,} lines; "
            "`nmtkit check` checks the language of all lines"
        )
        train = self.splits["train"]
        sample = TokenizerSample(TRAIN_LINES, train.weights, self._task.columns)

        def see(block: Block) -> None:
            require_plain_text(block, self.splits[block.split])
            if block.split == "train" and learns:
                sample.add_block(block)

        # Duplicates are found when the text is stored.
        diagnosis = examine(self.splits, self._task.monolingual, quick=True, see=see)
        yield diagnosis
        require_sound(self.splits, diagnosis)
        return sample

    def store(self, tokenizers: Tokenizers, processes: int | None) -> DataReport:
        """Checks, encodes and stores all splits; writes and returns the report."""
        recipe, data, sums = self.recipe, self.data, FileChecksums()
        self._report.tokenizer = dict(self.progress.tokenizer) if self.progress else {}
        checker = PairChecker(
            recipe.storage_config,
            self._report,
            need_references=self._task.monolingual,
            forms=tokenizers.text_forms(),
        )
        labels = label_type(self._task.columns)
        # A validation or test pair that is also in train is a fault of its own split. To find it without keeping all
        # hashes of train, the hashes of the other splits are collected first, and looked up while train is read. Only
        # then can the other splits be judged and stored. The hashed text is normalized by the tokenizers, which `look`
        # does not have.
        for name, files in self.splits.items():
            if name != "train":
                for block in read_blocks(name, files):
                    checker.register(block)
        for name, files in self.splits.items():
            self.notify(f"reading and checking {name}")
            encode_split(
                data,
                read_blocks(name, files, observer_for=sums),
                PairEncoder(
                    split=name,
                    tokenizers=tokenizers,
                    config=recipe.storage_config,
                    stores_text=name != "train" or tokenizers.sampling,
                    stores_extended_ids=recipe.copies,
                    label_type=labels,
                ),
                checker,
                fingerprint=self._mark,
                processes=processes or available_cores(),
                progress=self.progress if name == "train" else None,
                notify=self.notify,
            )
            self._report.files[name] = sums.checksums_of(files.paths())
        if checker.estimate_note:
            self.notify(checker.estimate_note)
        write_json(self._written, asdict(self._report))
        self._place.unlink(missing_ok=True)
        return self._report


def preprocess(
    run: Run,
    notify: Notify = ignore,
    learned_before: bool = False,
    processes: int | None = None,
    allow_new_data: bool = False,
) -> Iterator[Diagnosis | DataReport]:
    """Checks the text, trains the tokenizers and writes the arrays, unless they are up to date.

    Interrupted preprocessing resumes after its last complete shard. Yields the result of the data
    check (without duplicates and overlap), and then, for each text, counts and faults of the new
    arrays.

    Args:
        run: the run whose recipe names the text.
        notify: receives messages.
        learned_before: whether to keep existing tokenizers, because a model was trained with them.
        processes: number of processes that tokenize a large corpus; None means one per core.
        allow_new_data: whether to accept changed text; only with `learned_before`.
    """
    texts = [Preprocessing(run, notify, name) for name in run.recipe.texts()]
    waiting = [text for text in texts if not text.is_done()]
    if not waiting:
        notify(f"{run.folder.data}: the text is already preprocessed and up to date")
        return
    if learned_before and not allow_new_data:
        for text in waiting:
            text.require_same_text()
    tokenizers = yield from _prepare_tokenizers(
        run, waiting if learned_before else texts, learned_before
    )
    for text in texts:
        if text.progress:
            report = text.store(tokenizers, processes)
            yield report
            if warning := text.warning_of_unknown(report, learned_before):
                notify(warning)


def _prepare_tokenizers(
    run: Run, texts: Sequence[Preprocessing], learned_before: bool
) -> Generator[Diagnosis, None, Tokenizers]:
    """Checks the texts; returns the tokenizers of interrupted preprocessing, if any, or new ones.

    With `learned_before`, existing tokenizers are kept for changed texts.
    """
    first, folder, config, report = texts[0], run.folder, run.recipe.tokenizer, DataReport()
    stopped = {text: text.progress for text in texts if not text.is_done()}
    if all(stopped.values()):
        for text, progress in stopped.items():
            after = (
                f" after the first {progress.n_read:,} training pairs"
                if progress and progress.n_read
                else ""
            )
            first.notify(
                f"{text.data}: resuming interrupted preprocessing{after} with the existing "
                "tokenizer"
            )
        return run.load_tokenizers()
    samples = []
    for text in texts:
        sample = yield from text.look(learns=not learned_before and first.origin is None)
        samples.append(sample)
    if learned_before:
        first.notify(f"{folder.data}: preprocessing the text again with the same tokenizer")
        tokenizers = run.load_tokenizers()
    elif first.origin is not None:
        first.notify(f"the tokenizer ({config.kind}) comes from {first.origin.run}")
        tokenizers = origin_tokenizers(first.origin, run.recipe)
    else:
        trains = [text.splits["train"] for text in texts]
        if files := [
            path
            for train in trains
            for path in (*train.src, *train.tgt, *train.jsonl, *train.stories)
        ]:
            first.notify(f"training the tokenizer ({config.kind}) on {', '.join(files)}")
        # `look` compares only the files of one text.
        require_one_layout(chain.from_iterable(text.splits.values() for text in texts))
        tokenizers = learn_from_samples(config, samples, report)
        if shortfall := describe_shortfall(config, tokenizers):
            first.notify(shortfall)
    if not learned_before:
        # This comes first, so that arrays of an earlier tokenizer are never mistaken for arrays of this one.
        shutil.rmtree(folder.data, ignore_errors=True)
        tokenizers.save(folder.vocabulary)
    for text in texts:
        text.begin(report.tokenizer)
    return tokenizers
