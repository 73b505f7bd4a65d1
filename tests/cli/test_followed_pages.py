"""README and pages of the guide, followed from a folder that has a reader's texts and nothing else.

Commands are run in the order of the page, recipes are saved under the names that the page gives, and Python is run. So
a command fails if it needs a file or a run that no command before it makes. Only the limits of trainings are changed,
by `shortened` and `with_limits`. To have another page followed, add it to `FOLLOWED`.
"""

import random
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from nmtkit import config
from tests.support import shell as following
from tests.support.commands import Command, succeeded, write_lines
from tests.tools import guide_pages as pages
from tests.tools.guide_pages import ROOT

LIMITS = (
    "training.max_minutes=1",
    "training.max_updates=3",
    "batch.batch_tokens=400",
    "training.validate_every=1",
    "evaluation.max_sentences=2",
    "search.max_length=5",
)
"""What every training is given: a model that has learned nothing writes as much as it may."""
MINUTES = "0.3"
"""What stands for the minutes of `--minutes` and `max_minutes`."""


@dataclass(frozen=True)
class Page:
    """A page to follow."""

    path: Path
    after: tuple[str, ...] = ()
    """Pages that a reader has followed before, in the same folder."""
    skipped: tuple[str, ...] = ()
    """How commands and programs begin that are not run: they download, need several devices, a library
    that may be missing, or another environment."""
    until: str = ""
    """The heading at which following ends, because the rest of the page is not for reading in order; empty for none."""

    @property
    def text(self) -> str:
        """The part of the page to follow."""
        text = self.path.read_text(encoding="utf-8")
        if not self.until:
            return text
        heading = f"\n{self.until}\n"
        assert heading in text, f"{self.path} has no heading {self.until!r}"
        return text.partition(heading)[0]


GUIDE = ROOT / "nmtkit" / "guide"
FOLLOWED = {
    "README": Page(ROOT / "README.md", skipped=("make ",)),
    "first": Page(GUIDE / "first.md", skipped=("nmtkit fetch tatoeba-",)),
    "second": Page(
        GUIDE / "second.md",
        after=("first",),
        skipped=(
            "nmtkit evaluate runs/mine --test-set ",
            "torchrun ",
            "nmtkit translate -m runs/mine --device cuda",
            "nmtkit translate -m runs/mine --workers 2 ",
            "python3 -m venv comet",
            "comet/bin/",
            '"""Scores found.jsonl',
        ),
    ),
    "decoding": Page(
        GUIDE / "decoding.md",
        after=("first",),
        skipped=("nmtkit evaluate -m runs/mine --precision int8 ",),
        until="## Reference",
    ),
}
QUICK = ("README",)
"""Pages that `make test` follows; the others are slow."""


def write_texts(folder: Path) -> None:
    """A reader's texts: pairs of files for training, validation and test, and a text to translate."""
    draw = random.Random(1)
    syllables = [
        first + second
        for first in "bdfgklmnprstvz"
        for second in ("a", "e", "i", "o", "u", "au", "ei")
    ]
    words = sorted({"".join(draw.choices(syllables, k=draw.randrange(2, 5))) for _ in range(9000)})
    for name, count in (("train", 600), ("valid", 10), ("test", 10), ("new", 5)):
        sources = [" ".join(draw.choices(words, k=draw.randrange(6, 12))) for _ in range(count)]
        write_lines(folder / f"{name}.en", [f"{source}." for source in sources])
        if name != "new":
            write_lines(
                folder / f"{name}.de",
                [f"{' '.join(reversed(source.split()))}." for source in sources],
            )


def shortened(step: str) -> str:
    """A command or a recipe, with fewer minutes of training."""
    return re.sub(r"(--minutes |max_minutes[=:] ?)[\d.]+", rf"\g<1>{MINUTES}", step)


def with_limits(words: list[str]) -> list[str]:
    """The words of a command; a training has limits besides, and a question is answered, as nobody is there to ask."""
    if words[:2] in (["runs", "mv"], ["runs", "rm"]) and "--yes" not in words:
        return [*words, "--yes"]
    trains = words[0] == "train" or (
        words[0] == "compare" and any(word.endswith(".yaml") for word in words)
    )
    if not trains:
        return words
    limits = [word for limit in LIMITS for word in ("--set", limit)]
    if "--minutes" in words:
        limits = limits[2:]  # the first limit is that of the option
    return [*words, *limits]


def follow(page: Page, console: Command) -> set[str]:
    """Does what a page says, in the current folder; returns the runs that were there after any of its steps."""
    runs: set[str] = set()
    for step in pages.steps(page.text):
        if not isinstance(step, str):
            name, settings = step
            Path(name).write_text(shortened(settings), encoding="utf-8")
            config.load(name)
        elif not step.startswith(page.skipped):
            done = succeeded(following.run_in_process(shortened(step), console, with_limits))
            assert "Traceback" not in done.err, step
        runs |= {path.as_posix() for path in Path("runs").glob("*")}
    return runs


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FOLLOWED],
)
def test_a_page_is_followed_from_an_empty_folder(
    name: str, console: Command, tmp_path: Path
) -> None:
    page = FOLLOWED[name]
    write_texts(tmp_path)
    for before in page.after:
        follow(FOLLOWED[before], console)
    runs = follow(page, console)
    text = page.text
    lines = [step for step in pages.steps(text) if isinstance(step, str)] + pages.blocks(
        text, "python"
    )
    assert [
        begin for begin in page.skipped if not any(line.startswith(begin) for line in lines)
    ] == []
    shown = "\n".join(pages.blocks(text, *pages.SHELL, "python"))
    for run in set(re.findall(r"\bruns/[\w-]+", shown)):
        assert run in runs, f"the page names {run}, which none of its commands makes"
    for program in pages.blocks(text, "python"):
        if not program.startswith(page.skipped):
            exec(compile(program, name, "exec"), {})


def test_a_page_that_names_what_is_not_there_fails(console: Command, tmp_path: Path) -> None:
    write_texts(tmp_path)
    for number, block in enumerate(
        ("nmtkit translate -m runs/none new.en", "nmtkit check gone.en train.de")
    ):
        path = write_lines(tmp_path / f"page-{number}.md", ["# Page", "", "```", block, "```"])
        with pytest.raises(AssertionError):
            follow(Page(path), console)
