"""Training without a recipe: proposes, explains and writes one for the user's text."""

import os
import re
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from nmtkit import config
from nmtkit.config import Recipe
from nmtkit.config.tasks.builtin import TRANSLATION
from nmtkit.config.tasks.task import TASKS
from nmtkit.core import device as devices
from nmtkit.core.columns import label_type
from nmtkit.core.errors import CheckpointError, DataError, NmtkitError
from nmtkit.core.files import atomic_write_text, write_errors, write_json
from nmtkit.core.formats import parse_json
from nmtkit.core.settings import is_valid_name
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.files.formats import DETECTION_LINES, text_format
from nmtkit.data.text.files.names import (
    parse_encodings,
    split_reference,
    text_path,
    without_compression_end,
)
from nmtkit.data.text.files.text_file import read_lines_lenient
from nmtkit.data.text.reading import read_pairs
from nmtkit.data.text.scripts import word_pattern
from nmtkit.data.text.splitting import HoldOut, choose_hold_out, pairs_to_split, write_splits
from nmtkit.data.text.statistics import CorpusCounter, CorpusStatistics
from nmtkit.experiment.presets.fine_tuning import FineTuningRecipe, languages_of_text
from nmtkit.experiment.presets.fitting import FittedPreset, choose_preset
from nmtkit.experiment.presets.proposal import ProposedRecipe, format_minutes
from nmtkit.experiment.tuning import tune_training
from nmtkit.experiment.workloads import first_stage, synthetic_workload, truncated_lengths
from nmtkit.runs.folder import Notify, RunFolder, RunLock, ignore, lock_run
from nmtkit.runs.origin import find_origin
from nmtkit.runs.run import Run, find_run
from nmtkit.training.parallel import processes

_SPLITS, _GENERAL = ("train", "valid", "test"), ("general", "general-test")
ROUGH_BELOW = 100
"""With fewer validation pairs, BLEU and ROUGE are unreliable."""


@dataclass(frozen=True)
class RecipeRequest:
    """The options given instead of a recipe; files are absolute paths."""

    target: tuple[str, ...]
    """Target files, one per corpus, in the order of the source files."""
    source: tuple[str, ...] = ()
    """Source files, one per corpus; empty if the task has a single text, which is the target."""
    valid: tuple[str, ...] = ()
    """Validation files in the order source, target, source, target, and so on; only targets for tasks with
    one text. If there are none, pairs are held out.
    """
    test: tuple[str, ...] = ()
    """Test files in the same order; a source without a target is translated but not scored."""
    task: str | None = None
    """Name of the task. Default: translation."""
    preset: str | None = None
    """Name of the preset; None means that it depends on the text."""
    minutes: float | None = None
    """Time limit of training in minutes."""
    encoding: tuple[str, ...] = ()
    """Encodings of files that are not UTF-8: NAME, or FILE=NAME for one file."""

    init_from: str | None = None
    """A run to fine-tune."""
    general: tuple[str, ...] = ()
    """Text similar to the run's training text, which is mixed in; only with `init_from`. Order as in `valid`."""
    general_test: tuple[str, ...] = ()
    """A test set of such text. Default: the run's own test set."""
    source_language: str | None = None
    """Source language, for fine-tuning a multilingual model."""
    to: str | None = None
    """Target language."""

    @property
    def one_text(self) -> bool:
        """Whether an example is a single text, according to the task or the run to fine-tune."""
        known = len(TASKS.get(self.task or TRANSLATION.name).columns) == 1
        return known or (self.init_from is not None and not self.source)

    def files(self, split: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the files of both sides of train, valid, test, general or general-test."""
        if split == "train":
            return self.source, self.target
        files: tuple[str, ...] = getattr(self, split.replace("-", "_"))
        return ((), files) if self.one_text else (files[0::2], files[1::2])

    def given(self) -> dict[str, Any]:
        """Returns the given options as the user writes them, with their values."""
        values = {_option_of(one.name): getattr(self, one.name) for one in fields(self)}
        return {option: value for option, value in values.items() if value}

    def fault(self) -> str | None:
        """Returns why the options conflict, or None if they do not."""
        if self.one_text and self.source:
            return (
                "--source does not apply to this task, whose examples are single texts; give only "
                "--target FILE"
            )
        if not self.one_text and len(self.source) != len(self.target):
            counts = (
                f"{len(self.source)} --source and {len(self.target)} --target were given; give one "
                "--target for each --source"
            )
            return counts + _table_hint([*self.source, *self.target])
        for split in (*_SPLITS[1:], *_GENERAL):
            src, tgt = self.files(split)
            if not self.one_text and len(src) != len(tgt) and (tgt or split != "test"):
                return (
                    f"--{split} {' '.join([*src, *tgt])}: give a source file and a target file"
                    + _table_hint([*src, *tgt])
                )
        if not self.target:
            source = "" if self.one_text else "--source FILE "
            return (
                f"{', '.join(self.given())}: the training text is missing; give it with "
                f"{source}--target FILE"
            )
        general = [option for option in self.given() if option.startswith("--general")]
        if self.init_from is None and general:
            return (
                f"{' and '.join(general)}: only for fine-tuning; give the initial run with "
                "--init-from RUN"
            )
        languages = [option for option in self.given() if option in ("--from", "--to")]
        if languages and self.init_from is None:
            return (
                f"{' and '.join(languages)}: only for fine-tuning a multilingual model; give the "
                "model with --init-from RUN"
            )
        if languages and self.one_text:
            return (
                f"{' and '.join(languages)}: a language model has no source or target language; "
                "remove these options"
            )
        if self.one_text and self.general_test:
            return (
                "--general-test does not apply to language models, which are not scored before and "
                "after fine-tuning; remove it"
            )
        if self.init_from is not None and (self.preset or self.task):
            return (
                f"--init-from uses the model and task of {self.init_from}; remove --preset and "
                "--task"
            )
        return None

    def splits(self) -> dict[str, SplitFiles]:
        """Returns the files of train, and of valid and test if given."""
        splits: dict[str, SplitFiles] = {}
        for split in _SPLITS:
            src, tgt = self.files(split)
            if src or tgt:
                splits[split] = SplitFiles(
                    src=list(src), tgt=list(tgt), encoding=self.encodings([*src, *tgt])
                )
        return splits

    def encodings(self, paths: Sequence[str]) -> dict[str, str]:
        """Returns the encodings of files that are not UTF-8."""
        named = parse_encodings(self.encoding)
        encodings: dict[str, str] = {}
        for path in map(text_path, paths):
            name = named.get(path, named.get("", ""))
            if name:
                encodings[path] = name
        return encodings


def _option_of(field: str) -> str:
    return "--from" if field == "source_language" else f"--{field.replace('_', '-')}"


def propose_recipe(
    request: RecipeRequest,
    path: str | None = None,
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    notify: Notify = ignore,
) -> RunLock | None:
    """Proposes a recipe for a text and writes it into the run's folder as `chosen.yaml` (in process 0).

    Without a `path`, the folder is `runs/` plus a name made from the file names. `resume` reuses the
    existing recipe. `overrides` (values of `--set`) are checked but not written. `notify` receives
    notes on text and recipe.

    Returns:
        The lock of the folder (in process 0).
    """
    if fault := request.fault():
        raise NmtkitError(fault)
    place = processes.join(devices.choose(device))
    folder = RunFolder.at(path, name_of_run(request))
    locks: list[RunLock] = []

    def prepare() -> None:
        if resume:
            _require_same(folder, request)
            return
        folder.require_free(overwrite)
        locks.append(_Proposal(request, folder, overrides, place, notify).write(overwrite))

    processes.run_on_rank_zero(prepare)
    return locks[0] if locks else None


def name_of_run(request: RecipeRequest) -> str:
    """Returns a run's default name: `train-en-de` for train.en and train.de, otherwise both file names combined."""
    paths = (request.source or request.target)[0], request.target[0]
    (src, src_end), (tgt, tgt_end) = map(_stem_and_end, paths)
    ends = [end for end in (src_end, tgt_end) if end] if src_end != tgt_end else []
    parts = [src, *ends] if src == tgt else [src, tgt]
    if len(request.target) > 1:
        parts.append(f"and-{len(request.target) - 1}-more")
    if request.init_from is not None:
        parts += ["from", Path(request.init_from).name]
    name = re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip("-.")
    return name if is_valid_name(name) else "text"


def _stem_and_end(path: str) -> tuple[str, str]:
    file, column = split_reference(path)
    if column:
        return without_compression_end(Path(file).name).rpartition(".")[0], re.sub(
            r"[^\w-]+", "-", column
        )
    stem, _, end = without_compression_end(Path(path).name).rpartition(".")
    return (stem, end) if stem else (end, "")


def _require_same(folder: RunFolder, request: RecipeRequest) -> None:
    if not folder.request.is_file():
        raise CheckpointError(
            f"{folder.path}: contains no run that was started without a recipe; omit --resume to "
            "start one, or give the folder of the run with --run DIR"
        )
    try:
        before = dict(parse_json(folder.request.read_bytes(), folder.request.name))
    except (DataError, TypeError, ValueError) as fault:
        raise CheckpointError(
            f"{folder.request}: damaged ({fault}); restart with --overwrite"
        ) from fault
    now = request.given()

    def shown(value: Any) -> str:
        return (
            "not given"
            if value is None
            else " ".join(value)
            if isinstance(value, list | tuple)
            else str(value)
        )

    both = (
        (option, shown(before.get(option)), shown(now.get(option)))
        for option in sorted({*before, *now})
    )
    faults = [f"\n  {option} was {old} and is now {new}" for option, old, new in both if old != new]
    if faults:
        command = shlex.join(
            ["nmtkit", "train", str(folder.chosen), "--run", str(folder.path), "--resume"]
        )
        raise NmtkitError(
            f"{folder.path}: this run was started with different options, so it cannot be resumed "
            f"with these (repeat the original ones, use `{command}`, or restart with "
            f"--overwrite):{''.join(faults)}"
        )


class _Proposal:
    def __init__(
        self,
        request: RecipeRequest,
        folder: RunFolder,
        overrides: Sequence[str],
        place: torch.device,
        notify: Notify,
    ) -> None:
        self.request, self.folder, self.overrides = request, folder, overrides
        self.place, self.notify = place, notify
        self.name = Path(os.path.abspath(folder.path)).name
        splits = request.splits()
        paths = [path for files in splits.values() for path in files.paths()]
        for path in (*paths, *chain(*chain(*map(request.files, _GENERAL)))):
            if Path(path).resolve().is_relative_to(folder.path.resolve()):
                raise NmtkitError(
                    f"{path}: this file is in the folder of the run, which would be replaced; "
                    "choose another folder with --run DIR"
                )
        self.languages: dict[str, str] = {}
        if request.init_from and not request.one_text:
            self.languages = languages_of_text(
                find_run(request.init_from)[0], request.source_language, request.to
            )
        if self.languages:
            shown = {"src_lang": "source", "tgt_lang": "target"}
            named = " and ".join(f"{name} as {shown[key]}" for key, name in self.languages.items())
            notify(f"languages: {named}")
        notify(f"reading {' '.join(paths)}")
        origin = request.init_from and find_run(request.init_from)[0]
        columns = TASKS.get(
            origin.inference.task if origin else request.task or TRANSLATION.name
        ).columns
        self.labelled = label_type(columns) is not None
        if origin and (self.labelled or columns[0].name == "features"):
            what = f"continuing a run with task {origin.inference.task} requires a recipe"
            raise NmtkitError(f"{request.init_from}: {what}; write one with `init_from`")
        self.hold_out, self.size = _measure(splits, self.labelled)
        answer = "labels" if self.labelled else "tgt"
        # Files of held-out pairs have the suffixes of the user's source and target, if these differ from each other.
        src, tgt = (
            _stem_and_end(paths[0])[1] if paths else ""
            for paths in (request.source, request.target)
        )
        of_pairs = [src, tgt] if src and tgt and src != tgt else ["src", answer]
        self.ends = [tgt or "txt"] if request.one_text else of_pairs
        # One name for each corpus, so that a recipe can give them weights.
        several = [f"train-{number}" for number in range(1, len(request.target) + 1)]
        self.names = several if len(several) > 1 else ["train"]
        self.data = {
            split: self._user_files(files.src, files.tgt, answer) for split, files in splits.items()
        }
        if self.hold_out is not None:
            for split, names in {
                "train": self.names,
                **{one: [one] for one in self.hold_out.splits},
            }.items():
                sides = [[f"text/{name}.{end}" for name in names] for end in self.ends]
                self.data[split] = _side_files(
                    [] if request.one_text else sides[0], sides[-1], answer
                )

    def _user_files(
        self, src: Sequence[str], tgt: Sequence[str], answer: str = "tgt"
    ) -> dict[str, Any]:
        """Returns the files of a split as in a recipe, with their encodings."""
        files = _side_files(src, tgt, answer)
        if encodings := self.request.encodings([*src, *tgt]):
            files["encoding"] = encodings
        return files

    def write(self, overwrite: bool) -> RunLock:
        """Writes the recipe and the held-out pairs, and explains them."""
        folder = self.folder
        proposed, text = self._propose_fine_tuning() if self.request.init_from else self._propose()
        find_origin(_load_text(text, self.overrides), folder)
        lock, counts = lock_run(folder, self.notify), None
        try:
            folder.require_free(overwrite)
            lock.set_aside()
            if folder.text.is_dir():
                shutil.rmtree(folder.text)
            folder.request.unlink(missing_ok=True)
            atomic_write_text(folder.chosen, text)
            if self.hold_out is not None:
                counts = write_splits(
                    self.request.splits()["train"],
                    self.hold_out,
                    folder.text,
                    self.names,
                    self.ends,
                )
            write_json(folder.request, self.request.given())
        except BaseException:
            lock.close()
            raise
        for sentence in _explanation(proposed, folder, counts, self.overrides):
            self.notify(sentence)
        return lock

    def _propose(self) -> tuple[ProposedRecipe, str]:
        request, on_gpu, task = (
            self.request,
            self.place.type == "cuda",
            self.request.task or TRANSLATION.name,
        )
        preset = choose_preset(
            task, self.size, request.preset, on_gpu, request.minutes, self._speed_of
        )
        return preset, self._text_of(preset)

    def _text_of(self, preset: FittedPreset) -> str:
        description = f"{preset.task} with preset {preset.name}, fitted to the text"
        return preset.text(self.name, self.data, description)

    def _speed_of(self, preset: FittedPreset) -> float | None:
        """Returns this machine's training speed in padded tokens per minute; None if not measured."""
        if processes.size() > 1:
            return None  # measurements in one process do not apply to several
        # There are about a third more subwords than words.
        src, tgt = (
            max(1, round(1.3 * side.words / self.size.pairs))
            for side in (self.size.src, self.size.tgt)
        )
        loaded = _load_text(self._text_of(preset), self.overrides)
        lengths = (src, 0 if self.labelled else tgt)
        if loaded.batch.block_tokens is not None:
            lengths = (0, loaded.batch.block_tokens - 1)
        return _tokens_a_minute(loaded, lengths, self.place)

    def _propose_fine_tuning(self) -> tuple[ProposedRecipe, str]:
        request, train = self.request, self.data["train"]
        general, test = (self._user_files(*request.files(split)) for split in _GENERAL)
        general_targets = request.files("general")[1]
        pairs = 0
        if general:
            files = SplitFiles(**general)
            self.notify(f"reading {' '.join(files.paths())}")
            pairs = _count_pairs(files)
        proposed = FineTuningRecipe(
            find_run(request.init_from)[0], self.size, pairs, request.minutes
        )
        if general:
            encodings = {**train.pop("encoding", {}), **general.get("encoding", {})}
            own = {
                side: [paths] if isinstance(paths, str) else [*paths]
                for side, paths in train.items()
            }
            both = {side: [*own[side], *getattr(files, side)] for side in own}
            weights = [1.0] * len(own["tgt"]) + [proposed.weight] * len(general_targets)
            self.data["train"] = {**both, "weights": weights}
            if encodings:
                self.data["train"]["encoding"] = encodings
        data = {split: {**files, **self.languages} for split, files in self.data.items()}
        return proposed, proposed.text(
            self.name, data, {**test, **self.languages} if test else test
        )


def _table_hint(paths: Sequence[str]) -> str:
    """Returns a hint about the first file that is not plain text, such as a table; otherwise an empty string."""
    for path in paths:
        if split_reference(path)[1]:
            continue
        found = text_format(list(islice(read_lines_lenient(path), DETECTION_LINES)), path)
        if found is not None:
            return f". {path} is {found.title}. {found.advice.rstrip('.')}"
    return ""


def _count_pairs(files: SplitFiles) -> int:
    pairs = sum(1 for _ in read_pairs(files))
    if not pairs:
        raise DataError(f"{' '.join(files.paths())}: these files are empty")
    return pairs


def _measure(
    splits: dict[str, SplitFiles], labelled: bool
) -> tuple[HoldOut | None, CorpusStatistics]:
    """Returns the pairs to hold out if there is no validation set, and the size of the rest."""
    for split in ("valid", "test"):
        if split in splits:
            _count_pairs(splits[split])
    counts = CorpusCounter()

    def count(pair: Example) -> None:
        counts.add(pair.src, pair.src if labelled else pair.tgt or "")

    pairs = pairs_to_split(splits["train"])
    one_text = labelled or "src" not in splits["train"].columns
    if "valid" in splits:
        for pair in pairs:
            count(pair)
        return None, counts.statistics(one_text)
    filled = 0

    def watched() -> Iterator[Example]:
        nonlocal filled
        for pair in pairs:
            filled += bool(pair.src.strip() and (pair.tgt or "").strip())
            yield pair

    hold_out = choose_hold_out(watched(), "test" not in splits, count, labelled)
    size = counts.statistics(one_text)
    return hold_out, replace(size, held_out=filled - size.pairs)


def held_out_note(run: Run) -> str:
    """Returns a note on how far to trust the scores of a held-out test set; empty for a user's test set."""
    splits = run.recipe.data.splits()
    test = splits.get("test")
    folder = run.folder.text.resolve()
    if test is None or not all(
        Path(path).resolve().is_relative_to(folder) for path in test.paths()
    ):
        return ""
    note = (
        "the test set was held out from your text and resembles it; the model will do worse on "
        "other text"
    )
    share = similar_share(_sources(splits["train"]), _sources(test))
    if share < _MANY_SIMILAR:
        return note
    return (
        f"{note}. {share:.0%} of the test sources differ from a training source by at most one "
        "word, so this score means little; test the model on real text (--test SRC TGT)"
    )


_MANY_SIMILAR = 0.3
"""Share of near-duplicate test sources at which a text is assumed to be made from templates."""
_COMPARED = 50_000
"""Maximum number of training sources compared with test sources."""
_COMPARED_WORDS = range(3, 61)
"""A source is compared only if its number of words is in this range."""


def _sources(files: SplitFiles) -> list[str]:
    return [pair.src for pair in islice(pairs_to_split(files), _COMPARED)]


def similar_share(train: Sequence[str], test: Sequence[str]) -> float:
    """Returns the share of test sources that differ from a training source by at most one word."""
    seen = {hash(gapped) for source in train for gapped in _with_gaps(source)}
    similar = [any(hash(gapped) in seen for gapped in _with_gaps(source)) for source in test]
    return sum(similar) / max(1, len(similar))


def _with_gaps(source: str) -> Iterator[tuple[str, ...]]:
    """Yields the words of a source, each time with a different word removed."""
    words = tuple(word_pattern().findall(source.casefold()))
    if len(words) not in _COMPARED_WORDS:
        return
    for place in range(len(words)):
        yield (*words[:place], "", *words[place + 1 :])


def _load_text(text: str, overrides: Sequence[str]) -> config.Recipe:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "chosen.yaml")
        with write_errors(path):
            path.write_text(text, encoding="utf-8")
        return config.load(path, overrides)


def _side_files(src: Sequence[str], tgt: Sequence[str], answer: str = "tgt") -> dict[str, Any]:
    return {
        side: paths[0] if len(paths) == 1 else paths
        for side, paths in (("src", src), (answer, tgt))
        if paths
    }


def _explanation(
    proposed: ProposedRecipe, folder: RunFolder, held: Counter[str] | None, overrides: Sequence[str]
) -> Iterator[str]:
    """Yields the explanation of the recipe and of the user's own settings."""
    overridden = {
        key.strip(): value for key, _, value in (text.partition("=") for text in overrides)
    }
    size = proposed.size
    yield f"{size.amount} for training"
    for reason in proposed.reasons:
        if reason.setting not in overridden:
            yield f"  {reason.setting}: {reason.value}, because {reason.because}"
    for setting, value in overridden.items():
        yield f"  {setting}: {value}, because you set it"
    if held is not None:
        counts = " and ".join(
            f"{held[split]:,} for {split}" for split in ("valid", "test") if held[split]
        )
        texts = "texts" if size.one_text else "sources"
        yield (
            f"held out: {counts}; none of their {texts} are used for training (the files are in "
            f"{folder.text})"
        )
        if held["valid"] < ROUGH_BELOW:
            few = f"{held['valid']} {'texts' if size.one_text else 'pairs'}"
            yield f"warning: {few} are too few for precise validation scores"
    for warning in proposed.warnings:
        yield f"warning: {warning}"
    yield from proposed.advice
    if proposed.minutes is not None and not any(
        setting.startswith("training.") for setting in overridden
    ):
        yield f"training takes {format_minutes(proposed.minutes)} on this machine"
    yield f"recipe (you can edit it): {folder.chosen}"


def _tokens_a_minute(
    recipe: Recipe, lengths: tuple[int, int], device: torch.device
) -> float | None:
    """Returns the training speed in padded tokens (longer side) per minute, measured on random words.

    Returns None if nothing could be measured, because memory or time is insufficient.
    """
    result = tune_training(synthetic_workload(recipe, lengths, device), need_speed=True)
    if not result.speed:
        return None
    src, tgt = truncated_lengths(first_stage(recipe), lengths)
    return 60 * result.speed * (max(src, tgt) + 1) / (tgt + 1)
