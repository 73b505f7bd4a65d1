"""One oracle for all cases: a command ends well and in full, or with one message that names the place."""

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.support.compare_runs import differences

from .cases import Case, families, use_of
from .material import copy_material, make_material
from .runner import Done, Runner

SHARES = {
    "recipes": 20,
    "settings": 13,
    "options": 12,
    "texts": 15,
    "jsons": 10,
    "alignments": 10,
    "folders": 11,
    "states": 9,
}
"""The families, and how many in a hundred cases are of each."""
SECONDS = 30.0
"""What takes longer hangs; the slowest of the cases takes a second."""


@dataclass
class Findings:
    """What a family of cases has shown."""

    cases: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    """Of each kind of fault the shortest case."""

    def add(self, other: "Findings") -> None:
        """Adds what other cases of the family have shown."""
        self.cases += other.cases
        self.codes.update(other.codes)
        self.faults.update(other.faults)
        for fault, shown in other.examples.items():
            self.examples[fault] = min(self.examples.get(fault, shown), shown, key=len)

    def __str__(self) -> str:
        faults = [
            f"{count} x {kind}\n    {self.examples[kind]}"
            for kind, count in self.faults.most_common()
        ]
        return "\n".join([f"{self.cases} cases, exit codes {dict(self.codes)}", *faults])


class Room:
    """Runs cases in folders of their own, and judges them.

    Args:
        runner: what the commands are copies of.
        folder: for the corpus, the runs and one case at a time.
    """

    def __init__(self, runner: Runner, folder: Path) -> None:
        self._runner = runner
        self._folder = folder
        self.material = folder / "material"
        self.material.mkdir()
        make_material(self.material, runner)
        runs = self.material / "runs"
        done = runner.run(
            *("train", "tiny.yaml", "--run", "runs/half", "--set", "training.max_updates=7"),
            cwd=self.material,
        )
        assert done.code == 0, done
        (runs / "half/result.json").unlink()
        shown = runner.run("recipe", "show", "tiny.yaml", "--resolved", cwd=self.material)
        names = sorted(
            {
                str(file.relative_to(run))
                for run in runs.iterdir()
                for file in run.rglob("*")
                if file.is_file()
            }
        )
        self.families = families(dict(_values(yaml.safe_load(shown.out))), str(runs), names)
        self._answers: dict[tuple[str, ...], object] = {}

    def hunt(self, family: str, count: int, seed_of_cases: int) -> Findings:
        """Draws cases of one family and judges each; a fault does not end it."""
        found = Findings()

        @seed(seed_of_cases)
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(self.families[family])
        def each(case: Case) -> None:
            done, faults = self.judge(case)
            found.cases += 1
            found.codes[done.code] += 1
            for fault in faults:
                shown = f"{_brief(case)}\n    {done.err[-300:]!r}"
                found.add(Findings(faults=Counter([fault]), examples={fault: shown}))

        each()
        return found

    def judge(self, case: Case) -> tuple[Done, list[str]]:
        """Runs a case; what was not well about it, in words that are the same for the same fault."""
        with self._place(case) as place:
            before = _around(place)
            done = self._runner.run(
                *case.words, cwd=place, stdin=case.stdin, device=case.device, seconds=SECONDS
            )
            faults = list(_of_end(case, done))
            if _around(place) != before:
                faults.append("wrote outside of its folder")
            if done.code == 0 and not faults:
                faults += self._of_answer(case, done, place)
            return done, faults

    @contextmanager
    def _place(self, case: Case) -> Iterator[Path]:
        """A folder with all that the case needs, in one with nothing else."""
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            place = Path(name) / "here"
            place.mkdir()
            copy_material(self.material, place, *case.runs)
            for path, content in case.files.items():
                (place / path).write_bytes(content)
            if case.harm is not None:
                harm(place / "runs" / case.runs[0], *case.harm)
            yield place

    def _of_answer(self, case: Case, done: Done, place: Path) -> Iterator[str]:
        if case.lines is not None and done.out.count(b"\n") != case.lines:
            yield "not a line out for each line in"
        if case.same and self._answer(case, done, place) != self._known(case):
            yield f"another answer, and nothing said: {case.words[0]}"
        if case.reloads:
            (place / "again.yaml").write_bytes(done.out)
            again = self._runner.run(
                "recipe", "show", "again.yaml", "--resolved", cwd=place, seconds=SECONDS
            )
            if again.out != done.out:
                yield "a recipe that was shown is another one when it is read"

    def _answer(self, case: Case, done: Done, place: Path) -> object:
        """What matters about the end of a command: lines, tensors, or the end of a training."""
        if case.words[0] == "train":
            run = place / "runs/half"
            if (place / "runs/half/metrics.jsonl").is_file():
                # not asked here
                shutil.copy(self.material / "runs/tiny/metrics.jsonl", run / "metrics.jsonl")
            return differences(self.material / "runs/tiny", run)
        if case.words[0] == "average":
            found = load_file(place / "out.safetensors")
            return {name: (str(found[name].dtype), found[name].numpy().tobytes()) for name in found}
        return done.out

    def _known(self, case: Case) -> object:
        """The answer without harm."""
        if case.words not in self._answers:
            whole = use_of(case.words, None)
            with self._place(whole) as place:
                done = self._runner.run(*whole.words, cwd=place, stdin=whole.stdin)
                assert done.code == 0, done
                self._answers[case.words] = self._answer(whole, done, place)
            assert case.words[0] != "train" or self._answers[case.words] == []
        return self._answers[case.words]


def _brief(case: Case) -> str:
    """A case without what is as usual in it, and without the middle of what is long."""
    parts = [
        f"{key}={value!r}"
        for key, value in vars(case).items()
        if value != getattr(Case, key, None) and value
    ]
    return ", ".join(
        part if len(part) < 700 else f"{part[:400]} ... {part[-200:]}" for part in parts
    )


def _values(tree: object, before: str = "") -> Iterator[tuple[str, object]]:
    """Every key of a recipe with its value."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield f"{before}{key}", value
            yield from _values(value, f"{before}{key}.")


def _around(place: Path) -> list[str]:
    """What stands beside the folder of a case, and where a recipe's odd names could lead."""
    return sorted(os.listdir(place.parent)) + sorted(
        name for name in os.listdir("/tmp") if name in ("up", "escaped")
    )


def _of_end(case: Case, done: Done) -> Iterator[str]:
    """What is wrong with how it ended."""
    if done.hung:
        yield f"hangs: {' '.join(case.words[:2])}"
        return
    if "Traceback" in done.err or "Exception ignored" in done.err:
        lines = done.err.splitlines()
        ends = [
            line.split(":")[0]
            for line in lines
            if re.match(r"\w[\w.]*(Error|Exception|Interrupt|Abort)\b", line)
        ]
        files = re.findall(r'nmtkit/(\S+\.py)", line (\d+)', done.err)
        yield f"traceback: {ends[-1] if ends else lines[-1][:80]} in {':'.join(files[-1]) if files else '?'}"
        return
    if done.code not in case.codes:
        yield f"exit code {done.code}: {' '.join(case.words[:2])}"
        return
    if done.code != 2:
        return
    messages = re.findall(r"^(?:nmtkit: error|Error): .*", done.err, re.MULTILINE)
    if len(messages) != 1:
        yield f"{len(messages)} messages with exit code 2"
        return
    message = done.err[done.err.index(messages[0]) :]
    if "out of memory" in message:
        if not case.large:
            yield "out of memory"
    elif case.places and not any(place and place in message for place in case.places):
        yield f"a message without its place: {re.sub(r'[0-9]+', 'N', messages[0])[:90]}"


# ---------------------------------------------------------------------------------------------------- harm to a run


def harm(run: Path, what: str, *how: object) -> None:
    """Damages one of a run's files, or puts a state or weights in place that are whole and wrong."""
    {"file": _harm_file, "tensor": _harm_tensor, "facts": _harm_facts}[what](run, *how)


def _harm_file(run: Path, name: str, kind: str, share: float) -> None:
    path = run / name
    if not path.is_file():
        return  # this run has no such file
    content = bytearray(path.read_bytes())
    at = int(share * len(content))
    if kind in ("bit", "byte") and content:
        content[at] ^= 1 << at % 8 if kind == "bit" else 0xFF
    changed = {
        "empty": b"",
        "cut": content[:at],
        "junk": content + b"\xffjunk",
        "zeros": bytes(len(content)),
    }
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("dangling", "circle"):
        path.symlink_to("nowhere" if kind == "dangling" else path.name)
    elif kind != "gone":
        path.write_bytes(changed.get(kind, content))


def _rewrite(path: Path, found: dict[str, torch.Tensor], **facts: str) -> None:
    with safe_open(path, framework="pt") as file:
        kept = file.metadata() or {}
    save_file(
        {name: tensor.clone().contiguous() for name, tensor in found.items()},
        path,
        {**kept, **facts},
    )


def _harm_tensor(run: Path, which: int, kind: str) -> None:
    half = run.name == "half"
    for path in (
        [run / "checkpoints/last.safetensors"]
        if half
        else sorted((run / "checkpoints").glob("weights-*"))
    ):
        kept = load_file(path)
        name = sorted(kept)[which % len(kept)]
        tensor = kept.pop(name)
        if kind in ("more", "renamed"):
            kept["extra"] = tensor
        if kind not in ("gone", "renamed"):
            kept[name] = _harmed(tensor, kind)
        _rewrite(path, kept)


def _harmed(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    if kind in ("float16", "float64", "int64"):
        return tensor.to(getattr(torch, kind))
    if kind in ("nan", "inf", "one-nan") and tensor.is_floating_point():
        place = torch.arange(tensor.numel()).view(tensor.shape) < (
            1 if kind == "one-nan" else tensor.numel()
        )
        return tensor.masked_fill(place, float(kind.removeprefix("one-")))
    changed = {"none": tensor.view(-1)[:0], "flat": tensor.reshape(1, -1), "changed": tensor + 1}
    return changed.get(kind, tensor)


def _harm_facts(run: Path, key: str, value: str) -> None:
    path = run / "checkpoints/last.safetensors"
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
    if not key:
        text = "" if value == "gone" else value
    else:
        facts.pop(key)
        text = json.dumps(facts)
        if value != "gone":
            text = f"{text[:-1]}, {json.dumps(key)}: {value}}}"
    _rewrite(path, load_file(path), facts=text)
