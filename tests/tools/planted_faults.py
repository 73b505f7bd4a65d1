"""Plants faults in a copy of the package, one at a time, and shows which test finds each.

    python -m tests.tools.planted_faults                       all faults
    python -m tests.tools.planted_faults --only layers,zoo     faults of these packages, or of these names
    python -m tests.tools.planted_faults --whole               where a package's tests find nothing, all tests are asked

A fault replaces a text that occurs exactly once in nmtkit/, so it follows its code to another file. A text that is
missing, or occurs more often, is reported and makes the exit code 1, as a fault that no test finds does.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import ROOT, copied_checkout

NO_TESTS = 5
"""The exit code of pytest where it was asked for no test that is run, such as slow ones only."""
LIMIT_SECONDS = 300
"""A run of pytest that takes longer is stopped: then the fault made a test hang, which finds it too."""


@dataclass(frozen=True)
class Fault:
    """One plausible mistake."""

    name: str
    before: str
    after: str
    tests: tuple[str, ...]
    """Files and folders of `tests/` in which the mistake should be found, the likeliest first."""


FAULTS = (
    # ---------------------------------------------------------------------------------------------- core
    Fault(
        name="core: a wrong checksum is accepted",
        before="if facts != with_checksum(plain):",
        after="if CHECKSUM_KEY in plain:",
        tests=(
            "runs",
            "training/test_damaged_checkpoints.py",
            "training/test_checkpoint.py",
            "cli",
        ),
    ),
    Fault(
        name="core: an interrupted write leaves its temporary file",
        before="""\
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
""",
        after="""\
    except BaseException:
        raise
""",
        tests=("core", "runs", "cli/test_failures.py", "cli/test_files_of_commands.py"),
    ),
    # ---------------------------------------------------------------------------------------------- data
    Fault(
        name="data: bytes that are not UTF-8 pass for text",
        before="faulty_rows = [row for row, line in enumerate(lines) if BAD_BYTE.search(line)]",
        after="faulty_rows = []",
        tests=("data/text",),
    ),
    Fault(
        name="data: padding counts as a token",
        before="mask = positions <= lengths[:, None]  # (B, S), including EOS",
        after="mask = positions <= lengths[:, None] + 1  # (B, S), including EOS",
        tests=("data/batches", "contracts"),
    ),
    Fault(
        name="data: a resumed epoch begins one batch late",
        before="while self._position < position:",
        after="while self._position <= position:",
        tests=("data/batches", "training/test_loop.py", "experiment"),
    ),
    Fault(
        name="data: an epoch is never shuffled anew",
        before="self._start_epoch(self.epoch + 1)",
        after="self._start_epoch(self.epoch)",
        tests=("data/batches",),
    ),
    # ---------------------------------------------------------------------------------------------- layers
    Fault(
        name="layers: attention ignores the mask",
        before="weights = energies.masked_fill(hidden, torch.finfo(energies.dtype).min).softmax(-1)",
        after="weights = energies.softmax(-1)",
        tests=("layers", "contracts/test_models.py"),
    ),
    Fault(
        name="layers: the copy gate is turned round",
        before="log_copied = ((1.0 - p_gen) * p_copy)",
        after="log_copied = (p_gen * p_copy)",
        tests=("layers", "contracts/test_models.py"),
    ),
    Fault(
        name="layers: the window of a predicted centre is half as wide",
        before="sigma = self.half_width / 2",
        after="sigma = self.half_width / 4",
        tests=("layers",),
    ),
    Fault(
        name="layers: keys of finished sentences stay in the cache",
        before="self._entries = [stored.index_select(0, sentences) for stored in self._entries]",
        after="self._entries = [stored[: len(sentences)] for stored in self._entries]",
        tests=("layers", "contracts/test_models.py"),
    ),
    # ---------------------------------------------------------------------------------------------- plots
    Fault(
        name="plots: markup in a text is not escaped",
        before="autoescape=True",
        after="autoescape=False",
        tests=("plots", "datacheck"),
    ),
    Fault(
        name="plots: weights are cut off at a half",
        before="np.clip(weights, 0, 1) * 1000",
        after="np.clip(weights, 0, 0.5) * 1000",
        tests=("plots",),
    ),
    # ---------------------------------------------------------------------------------------------- metrics
    Fault(
        name="metrics: a p-value can be zero",
        before="(exceeding + 1) / (len(drawn) + 1)",
        after="exceeding / len(drawn)",
        tests=("metrics",),
    ),
    Fault(
        name="metrics: GLEU is the recall alone",
        before="(output & ref).total() / max(1, output.total(), ref.total())",
        after="(output & ref).total() / max(1, ref.total())",
        tests=("metrics",),
    ),
    # ---------------------------------------------------------------------------------------------- models
    Fault(
        name="models: a decoder reads the words to come",
        before="return torch.ones(length, length, dtype=torch.bool, device=query.device).tril()",
        after="return torch.ones(length, length, dtype=torch.bool, device=query.device).tril(1)",
        tests=("layers", "models", "contracts/test_models.py"),
    ),
    Fault(
        name="models: Luong's positions do not advance",
        before="position = state.position + 1  # (N,)",
        after="position = state.position  # (N,)",
        tests=("models/rnn/test_luong.py", "contracts/test_models.py"),
    ),
    Fault(
        name="models: embeddings of a Transformer are not scaled",
        before="math.sqrt(width) if config.scale_embeddings else 1.0",
        after="1.0",
        tests=("models",),
    ),
    # ---------------------------------------------------------------------------------------------- datacheck
    Fault(
        name="datacheck: sentences of test that are in valid are not found",
        before='if split == "test" and "valid" in self._others:',
        after='if split == "test" and "dev" in self._others:',
        tests=("datacheck",),
    ),
    Fault(
        name="datacheck: lines are doubted on a side whose language is not recognized",
        before="if doubted.total() <= MAX_DOUBTED * len(rows):",
        after="if doubted.total() <= len(rows):",
        tests=("datacheck/test_foreign.py",),
    ),
    Fault(
        name="datacheck: long lines need no larger margin of another language",
        before="return max(MARGIN, MARGIN_PER_CHARACTER * min(len(line), EXAMINED_CHARACTERS))",
        after="return MARGIN",
        tests=("datacheck/test_foreign.py",),
    ),
    # ---------------------------------------------------------------------------------------------- decoding
    Fault(
        name="decoding: the length penalty has another sign",
        before="return ((5 + lengths.double()) / 6).pow(self.alpha)",
        after="return ((5 + lengths.double()) / 6).pow(-self.alpha)",
        tests=("decoding",),
    ),
    Fault(
        name="decoding: an n-gram may be repeated once",
        before="is_long_enough = (lengths >= size)[:, None]",
        after="is_long_enough = (lengths > size)[:, None]",
        tests=("decoding",),
    ),
    Fault(
        name="decoding: hypotheses beyond the beam may end",
        before="ended[:, beam_size:] = False",
        after="ended[:, 2 * beam_size :] = False",
        tests=("decoding",),
    ),
    Fault(
        name="decoding: the minimum length counts EOS",
        before="is_early = live.per_hypothesis(self.fewest) > live.lengths",
        after="is_early = live.per_hypothesis(self.fewest) > live.lengths + 1",
        tests=("decoding",),
    ),
    # ---------------------------------------------------------------------------------------------- training
    Fault(
        name="training: smoothing is divided by one word less",
        before="(smoothing / vocabulary_size)",
        after="(smoothing / (vocabulary_size - 1))",
        tests=("training/losses",),
    ),
    Fault(
        name="training: each process divides by its own tokens",
        before="totals = processes.sum_over_ranks(list(counts.values()))",
        after="totals = list(counts.values())",
        tests=("training/parallel",),
    ),
    Fault(
        name="training: rewards are subtracted the wrong way",
        before="advantage = (sampled - baseline)",
        after="advantage = (baseline - sampled)",
        tests=("training/losses",),
    ),
    Fault(
        name="training: the optimizer starts afresh when a run is resumed",
        before="            optimizers.restore_state(self.optimizer, self.parameters, state)\n            if self.ema:",
        after="            if self.ema:",
        tests=("training/test_loop.py", "training/test_optimizers.py", "experiment"),
    ),
    Fault(
        name="training: the plateau waits one validation longer",
        before="if waited == self.patience:",
        after="if waited > self.patience:",
        tests=("training/test_schedules.py",),
    ),
    Fault(
        name="training: the worst checkpoint counts as the best",
        before="sorted(self.checkpoints, key=sort_key, reverse=True)",
        after="sorted(self.checkpoints, key=sort_key, reverse=False)",
        tests=("training/test_checkpoint.py", "training", "runs"),
    ),
    # ---------------------------------------------------------------------------------------------- inference
    Fault(
        name="inference: the answers of a group come in reverse order",
        before="group.append(job.translations)",
        after="group.insert(0, job.translations)",
        tests=("inference",),
    ),
    Fault(
        name="inference: an unknown word is replaced by its neighbour",
        before="weights = attention[position, n_tags:]  # (L,)",
        after="weights = attention[position - 1, n_tags:]",
        tests=("inference",),
    ),
    # ---------------------------------------------------------------------------------------------- config
    Fault(
        name="inference: the label of EOS is printed too",
        before="source_log_probs = source_log_probs[: sources[index].length]",
        after="source_log_probs = source_log_probs[: sources[index].length + 1]",
        tests=("inference", "config/tasks"),
    ),
    Fault(
        name="config: a recipe inherits the test set of another text",
        before='without_test = {key: value for key, value in data.items() if key != "test"}',
        after="without_test = dict(data)",
        tests=("config",),
    ),
    Fault(
        name="config: what a recipe extends wins over it",
        before="return own.over(_inherited(extended, own))",
        after="return _inherited(extended, own).over(own)",
        tests=("config",),
    ),
    # ---------------------------------------------------------------------------------------------- runs
    Fault(
        name="runs: two processes may hold the lock",
        before="""\
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
""",
        after="""\
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
""",
        tests=("runs", "cli/test_run_lock.py"),
    ),
    Fault(
        name="runs: an average of checkpoints is not preferred",
        before='"auto": average or best or last',
        after='"auto": best or average or last',
        tests=("runs", "inference/loading", "cli"),
    ),
    # ---------------------------------------------------------------------------------------------- inference
    Fault(
        name="inference: CTranslate2 decodes though its scores differ",
        before="        if changing and exact:",
        after="        if changing and not exact:",
        tests=("convert/test_engine_auto.py",),
    ),
    # ---------------------------------------------------------------------------------------------- convert
    Fault(
        name="convert: matrices that a toolkit stores transposed are exported as they are here",
        before="            tensor = tensor.t() if self.transposed else tensor\n            tensors[name] =",
        after="            tensors[name] =",
        tests=("convert/huggingface",),
    ),
    Fault(
        name="convert: post-norm models are imported as pre-norm",
        before='form = {"norm": _NORMS[architecture],',
        after='form = {"norm": "pre",',
        tests=("convert",),
    ),
    # ---------------------------------------------------------------------------------------------- experiment
    Fault(
        name="experiment: validation reads the first direction alone",
        before="if most is None or len({*files.directions}) < 2:",
        after="if most is None or len({*files.directions}) < 9:",
        tests=("experiment", "data/test_language_tokens.py", "cli/test_languages.py"),
    ),
    Fault(
        name="experiment: processes of a training translate the same lines",
        before="own = lines[processes.rank() :: processes.size()]",
        after="own = lines[: len(lines[processes.rank() :: processes.size()])]",
        tests=("experiment", "training/parallel"),
    ),
    # ---------------------------------------------------------------------------------------------- datasets
    Fault(
        name="datasets: a file with another checksum is accepted",
        before="if sha256 and digest != sha256:",
        after="if sha256 and len(digest) != len(sha256):",
        tests=("datasets",),
    ),
    Fault(
        name="datasets: an archive may write above its folder",
        before='if ".." in parts or re.match(',
        after="if re.match(",
        tests=("datasets",),
    ),
    # ---------------------------------------------------------------------------------------------- cli
    Fault(
        name="cli: a mistake ends with exit code 0",
        before="        code = fault.exit_code\n    except click.ClickException as fault:",
        after="        code = 0\n    except click.ClickException as fault:",
        tests=("cli/test_mistakes.py", "cli"),
    ),
    Fault(
        name="cli: results are written in the encoding of the machine",
        before='io.BufferedWriter(kind(number)), "utf-8", errors, line_buffering=by_line',
        after="io.BufferedWriter(kind(number)), None, errors, line_buffering=by_line",
        tests=("cli/test_streams.py", "cli"),
    ),
    Fault(
        name="cli: -o may overwrite the file that is read",
        before="if is_same or os.path.realpath(path) == os.path.realpath(other):",
        after="if str(path) == str(other):",
        tests=("cli/test_mistakes.py", "cli"),
    ),
    Fault(
        name="cli: a reader that has enough is an error of the command",
        before="    except BrokenPipeError:  # the program that reads our output has exited\n        code = 1",
        after="    except BrokenPipeError:  # the program that reads our output has exited\n        code = 2",
        tests=("cli/test_check.py", "cli"),
    ),
    # ---------------------------------------------------------------------------------------------- zoo
    Fault(
        name="zoo: the heads of a Turing machine shift the other way",
        before="steps = [gated.roll(step - shifts.shape[2] // 2, 2) for step in range(shifts.shape[2])]",
        after="steps = [gated.roll(shifts.shape[2] // 2 - step, 2) for step in range(shifts.shape[2])]",
        tests=("zoo",),
    ),
    Fault(
        name="zoo: SNAIL looks one word less far back",
        before="F.pad(states, (0, 0, r, 0))[:, :-r]",
        after="F.pad(states, (0, 0, r - 1, 0))[:, : states.shape[1]]",
        tests=("zoo", "contracts/test_models.py"),
    ),
)


class StaleFaultError(Exception):
    """The text that a fault replaces does not occur exactly once."""


def place_of(fault: Fault, package: Path) -> Path:
    """Returns the file whose text the fault replaces."""
    found = []
    for path in sorted(package.rglob("*.py")):
        found += [path] * path.read_text(encoding="utf-8").count(fault.before)
    if len(found) != 1:
        places = ", ".join(str(path.relative_to(package.parent)) for path in found) or "nowhere"
        raise StaleFaultError(f"its text occurs {len(found)} times ({places}): choose another one")
    return found[0]


def plant(fault: Fault, tree: Path) -> tuple[Path, str]:
    """Plants the fault in a tree; returns the file and its old text."""
    path = place_of(fault, tree / "nmtkit")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(fault.before, fault.after), encoding="utf-8")
    return path, text


def run_tests(tree: Path, places: Sequence[str]) -> str:
    """Runs tests in a tree up to the first one that fails; returns its name, or an empty text if all pass."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        *places,
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'data'}",
    }
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_SECONDS} seconds"
    if done.returncode in (0, NO_TESTS):
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return (
        failed[1]
        if failed
        else f"pytest ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}"
    )


def find(fault: Fault, tree: Path, whole: bool) -> str:
    """Plants a fault, and returns the name of the test that finds it, or an empty text."""
    places = [f"tests/{place}" for place in fault.tests]
    missing = [place for place in places if not (tree / place).exists()]
    if missing:
        raise StaleFaultError(f"{missing[0]} does not exist")
    path, text = plant(fault, tree)
    try:
        # One place after the other: a whole folder need not be imported where the first file finds the fault.
        for place in [*places, *(["tests"] if whole else [])]:
            if found := run_tests(tree, [place]):
                return found
        return ""
    finally:
        path.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.planted_faults", description=__doc__
    )
    parser.add_argument(
        "--only",
        metavar="NAMES",
        default="",
        help="packages or parts of names, with commas between",
    )
    parser.add_argument(
        "--whole", action="store_true", help="ask all tests where a package's own find nothing"
    )
    parser.add_argument(
        "--list", action="store_true", help="show the faults and where each is planted"
    )
    given = parser.parse_args()
    wanted = [
        fault for fault in FAULTS if any(word in fault.name for word in given.only.split(","))
    ]
    not_found = stale = 0
    with tempfile.TemporaryDirectory(prefix="planted-faults-") as folder:
        tree = ROOT if given.list else copied_checkout(Path(folder, "tree"))
        for fault in wanted:
            started = time.monotonic()
            try:
                found = (
                    str(place_of(fault, tree / "nmtkit"))
                    if given.list
                    else find(fault, tree, given.whole)
                )
            except StaleFaultError as error:
                stale += 1
                print(f"STALE      {fault.name}: {error}", flush=True)
                continue
            not_found += not found
            seconds = time.monotonic() - started
            print(
                f"{'found' if found else 'NOT FOUND':11}{fault.name}  ({seconds:.0f} s)  {found}",
                flush=True,
            )
    print(
        f"{len(wanted)} faults: {len(wanted) - not_found - stale} found, {not_found} not found, {stale} stale"
    )
    return 1 if not_found or stale else 0


if __name__ == "__main__":
    sys.exit(main())
