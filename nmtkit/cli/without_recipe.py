"""`nmtkit train --source FILE --target FILE`: the recipe is chosen by the text, written down, and said why."""

import json
import os
import re
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nmtkit import device as devices
from nmtkit import recipe
from nmtkit.cli.asked import Asked
from nmtkit.data.corpus import Files
from nmtkit.data.holdout import HoldOut, draw, write
from nmtkit.data.reading import read_pairs
from nmtkit.errors import CheckpointError, DataError, NmtkitError, writing
from nmtkit.experiment import folder as folders
from nmtkit.experiment import presets, tuning
from nmtkit.experiment.folder import RUNS, RunFolder
from nmtkit.experiment.hold import Hold, hold
from nmtkit.experiment.presets.writing import in_words
from nmtkit.settings import is_name, parse_json
from nmtkit.training import distributed

Notify = Callable[[str], None]

ROUGH_BELOW = 100
"""With fewer validation pairs BLEU and ROUGE say little."""


def choose_recipe(
    asked: Asked,
    run_path: str | None,
    overrides: Sequence[str],
    resume: bool,
    overwrite: bool,
    device: str,
    notify: Notify,
) -> Hold | None:
    """Chooses the recipe for a text and writes it into the run's folder, as `chosen.yaml`; process 0 does the work.

    Args:
        asked: the text, and what to do with it.
        run_path: the run's folder; None is `runs/` and a name made of the files' names.
        overrides: what `--set` will lay over the recipe; only checked here.
        resume: take the recipe of the run that is there.
        overwrite: replace the run that is there.
        device: where training will be, by name.
        notify: told in sentences what was found and chosen.

    Returns:
        The right to write in the folder, in process 0.

    Raises:
        NmtkitError: a file is missing or faulty, an override is wrong, or the run's folder is not free.
    """
    place = distributed.join(devices.choose(device))
    folder = RunFolder(Path(run_path) if run_path else RUNS / name_of(asked))

    held: list[Hold] = []

    def prepare() -> None:
        if resume:
            _require_same(folder, asked)
            return
        folder.require_free(overwrite)
        held.append(_write_recipe(folder, asked, overrides, overwrite, place, notify))

    distributed.by_first(prepare)
    return held[0] if held else None


def name_of(asked: Asked) -> str:
    """What the run is called: `train-en-de` for train.en and train.de, else both names."""
    (src, src_end), (tgt, tgt_end) = (_stem_and_end(paths[0]) for paths in (asked.source, asked.target))
    ends = [end for end in (src_end, tgt_end) if end] if src_end != tgt_end else []
    parts = [src, *ends] if src == tgt else [src, tgt]
    if len(asked.source) > 1:
        parts.append(f"and-{len(asked.source) - 1}-more")
    name = re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip("-.")
    return name if is_name(name) else "text"


def _stem_and_end(path: str) -> tuple[str, str]:
    stem, _, end = Path(path).name.removesuffix(".gz").rpartition(".")
    return (stem, end) if stem else (end, "")


def _require_same(folder: RunFolder, asked: Asked) -> None:
    """Makes sure that a run goes on with the options that it was begun with."""
    if not folder.asked.is_file():
        raise CheckpointError(
            f"{folder.path}: no training without a recipe was begun here, so none can go on; leave --resume out to "
            "begin one, or name the run's folder with --run DIR"
        )
    try:
        before = dict(parse_json(folder.asked.read_bytes(), folder.asked.name))
    except (DataError, TypeError, ValueError) as fault:
        raise CheckpointError(f"{folder.asked}: damaged ({fault}); train anew with --overwrite") from fault
    now: dict[str, Any] = json.loads(json.dumps(asked.given()))
    faults = [
        f"\n  {option} was {_told(before.get(option))} and is {_told(now.get(option))}"
        for option in sorted(before.keys() | now.keys())
        if before.get(option) != now.get(option)
    ]
    if faults:
        raise NmtkitError(
            f"{folder.path}: begun with other options, so one cannot go on with these (give the same ones, take "
            f"`nmtkit train {folder.chosen} --run {folder.path} --resume`, or train anew with "
            f"--overwrite):{''.join(faults)}"
        )


def _told(value: Any) -> str:
    return "not given" if value is None else " ".join(value) if isinstance(value, list) else str(value)


def _write_recipe(
    folder: RunFolder, asked: Asked, overrides: Sequence[str], overwrite: bool, place: torch.device, notify: Notify
) -> Hold:
    """Looks at the text, chooses, writes the recipe and the pairs that are held out, and says all of it."""
    splits = asked.splits()
    for path in (path for files in splits.values() for path in files.paths()):
        if Path(path).resolve().is_relative_to(folder.path.resolve()):
            raise NmtkitError(f"{path}: in the folder of the run that would be replaced; name another with --run DIR")
    notify(f"reading {' '.join(path for files in splits.values() for path in files.paths())}")
    try:
        hold_out, size = _measure(splits)
    except DataError as fault:
        raise _with_advice(fault, splits) from fault
    ends, names = _ends(asked), _names_of_train(asked)
    if hold_out is not None:
        splits["train"] = _in_run(names, ends)
        splits |= {split: _in_run([split], ends) for split in hold_out.splits}
    data = {split: _named(files) for split, files in splits.items()}
    name = Path(os.path.abspath(folder.path)).name

    def text_of(preset: presets.Preset) -> str:
        about = f"{preset.task} by preset {preset.name}, chosen by the size of the text"
        return presets.recipe_text(preset, name, data, about)

    def choose(preset: str | None, speeds: Mapping[presets.Name, float]) -> presets.Preset:
        task = asked.task or "translation"
        return presets.choose(task, size, preset, place.type == "cuda", asked.minutes, speeds)

    def speed_of(preset: presets.Preset) -> float | None:
        # Subwords are a third more than words.
        lengths = [max(1, round(1.3 * side.words / size.pairs)) for side in (size.src, size.tgt)]
        trial = _parsed(text_of(preset), overrides)
        found, speed = tuning.tokens_a_minute(trial, (lengths[0], lengths[1]), place)
        for sentence in found.sentences():
            notify(sentence)
        return speed

    preset = _by_speed(choose, speed_of, asked)
    text = text_of(preset)
    _parsed(text, overrides)
    held = hold(folder, notify)
    try:
        folder.require_free(overwrite)
        held.make_room()
        if folder.text.is_dir():
            shutil.rmtree(folder.text)
        folder.asked.unlink(missing_ok=True)
        folders.write_text(folder.chosen, text)
        counts = write(asked.splits()["train"], hold_out, folder.text, names, ends) if hold_out else None
        folders.write_json(folder.asked, asked.given())
    except BaseException:
        held.close()
        raise
    for sentence in _sentences(preset, folder, counts):
        notify(sentence)
    return held


def _measure(splits: dict[str, Files]) -> tuple[HoldOut | None, presets.CorpusSize]:
    """What to hold out, if no validation set was given, and the size of what is left. Reads every file through."""
    for split in ("valid", "test"):
        if split in splits and not sum(1 for _ in read_pairs(splits[split])):
            raise DataError(f"{' '.join(splits[split].paths())}: there is nothing in these files")
    hold_out = None if "valid" in splits else draw(read_pairs(splits["train"]), with_test="test" not in splits)
    counts = presets.Counts()
    for pair in read_pairs(splits["train"]):
        if hold_out is None or hold_out.split_of(pair) == "train":
            counts.add(pair.src, pair.tgt or "")
    return hold_out, counts.size()


def _with_advice(fault: DataError, splits: dict[str, Files]) -> DataError:
    """The same fault, with the command that finds all others as well, where the files are there to be looked at."""
    for files in splits.values():
        for pair in zip(files.src, files.tgt or files.src, strict=True):
            if any(path in str(fault) for path in pair) and all(map(os.path.isfile, pair)):
                return DataError(f"{fault}\n`nmtkit check {shlex.join(pair)}` finds every fault of these files")
    return fault


def _by_speed(
    choose: Callable[[str | None, Mapping[presets.Name, float]], presets.Preset],
    speed_of: Callable[[presets.Preset], float | None],
    asked: Asked,
) -> presets.Preset:
    """The preset, by the speed of this machine: that of the fitting one, and of smaller ones while time is short."""
    preset, speeds = choose(asked.preset, {}), dict[presets.Name, float]()
    if distributed.size() > 1:
        return preset  # one process alone says nothing of what several will do
    while (speed := speed_of(preset)) is not None:
        speeds[preset.name] = speed
        less = presets.smaller(preset.name)
        if asked.preset or not asked.minutes or less is None or choose(preset.name, speeds).is_useful:
            break
        preset = choose(less, speeds)
    return choose(asked.preset, speeds)


def _parsed(text: str, overrides: Sequence[str]) -> recipe.Recipe:
    """The recipe with what `--set` says, before anything is written."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "chosen.yaml")
        with writing(path):
            path.write_text(text, encoding="utf-8")
        return recipe.load(path, overrides)


def _ends(asked: Asked) -> tuple[str, str]:
    """How the files with the held-out pairs end: as the user's, where that tells the sides apart."""
    src, tgt = (_stem_and_end(paths[0])[1] for paths in (asked.source, asked.target))
    return (src, tgt) if src and tgt and src != tgt else ("src", "tgt")


def _names_of_train(asked: Asked) -> list[str]:
    """One for each corpus, so that a recipe can give them weights."""
    count = len(asked.source)
    return ["train"] if count == 1 else [f"train-{number}" for number in range(1, count + 1)]


def _in_run(names: list[str], ends: tuple[str, str]) -> Files:
    """Files of that name as a recipe in the run's folder names them."""
    src, tgt = ([f"text/{name}.{end}" for name in names] for end in ends)
    return Files(src=src, tgt=tgt)


def _named(files: Files) -> dict[str, Any]:
    """Files as one would write them into a recipe."""
    sides = {"src": files.src, "tgt": files.tgt}
    return {side: paths[0] if len(paths) == 1 else paths for side, paths in sides.items() if paths}


def _sentences(preset: presets.Preset, folder: RunFolder, held: Counter[str] | None) -> Iterator[str]:
    """What was chosen and why, for a person."""
    yield f"{preset.size.pairs:,} pairs of {preset.size.src.words:,} and {preset.size.tgt.words:,} words to train on"
    for reason in preset.reasons:
        yield f"  {reason.setting}: {reason.value}, because {reason.because}"
    if held is not None:
        told = " and ".join(f"{held[split]:,} for {split}" for split in ("valid", "test") if held[split])
        yield f"held out: {told}; none of their sources is in train (all are in {folder.text})"
        if held["valid"] < ROUGH_BELOW:
            yield f"warning: {held['valid']} pairs are few to validate by: their scores are rough"
    for warning in preset.warnings:
        yield f"warning: {warning}"
    if preset.minutes is not None:
        yield f"training takes {in_words(preset.minutes)} on this machine"
    yield f"the recipe, to be read and changed: {folder.chosen}"
