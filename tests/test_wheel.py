"""A wheel is enough: installed outside the checkout, it trains the demo and translates with it."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.support.commands import Finished, as_text, copied_checkout, environment

QUICKLY = "--set training.max_updates=2 --set evaluation.max_sentences=2 --set search.max_length=4 --set data.test=null"


def why_not() -> str:
    """What is missing here to build a wheel without a network."""
    # not by `find_spec`, which has setuptools take Python's own distutils in this process from then on
    try:
        found = version("pip") and version("setuptools")
    except PackageNotFoundError as fault:
        return f"{fault.name} is not installed"
    return "" if int(found.split(".")[0]) >= 75 else f"setuptools {found} is older than 75"


def run(*words: object, cwd: Path, stdin: str = "", **changes: str) -> Finished:
    given = {key: value for key, value in environment(**changes).items() if key != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, words)),
        input=stdin,
        cwd=cwd,
        env=given,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    finished = Finished(done.returncode, done.stdout, done.stderr)
    assert finished.code == 0, (words, finished)
    return finished


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_wheel_is_enough(tmp_path: Path) -> None:
    tree = copied_checkout(tmp_path / "tree")
    build = ["wheel", tree, "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path]
    run(sys.executable, "-m", "pip", *build, cwd=tmp_path)
    shutil.rmtree(tree)
    (wheel,) = tmp_path.glob("*.whl")

    there = tmp_path / "there"
    run(sys.executable, "-m", "venv", "--without-pip", there, cwd=tmp_path)
    python = there / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=tmp_path,
    )
    # The libraries of this environment, but not what its own .pth files add: that may be this checkout. Links lead to
    # them, as Python reads a .pth file by the locale: in the plainest one it may name no letter beyond ASCII.
    (own,) = there.glob("lib/python*/site-packages")
    found = [
        folder
        for folder in sys.path
        if os.path.basename(folder) in ("site-packages", "dist-packages")
    ]
    libraries = [there / f"libraries-{n}" for n in range(len(found))]
    for link, folder in zip(libraries, found, strict=True):
        link.symlink_to(folder)
    (own / "libraries.pth").write_text(as_text(map(str, libraries)), encoding="utf-8")

    empty = tmp_path / "empty"
    empty.mkdir()
    named = run(python, "-c", "import nmtkit; print(nmtkit.__file__)", cwd=empty).out
    assert Path(named.strip()).is_relative_to(own)
    nmtkit, home = there / "bin" / "nmtkit", {"HOME": str(empty)}
    assert "demo-news-pointer-generator" in run(nmtkit, "recipe", "ls", cwd=empty, **home).out
    assert "\n  first " in run(nmtkit, "guide", cwd=empty, **home).out
    assert "nmtkit recipe check mine.yaml" in run(nmtkit, "guide", "first", cwd=empty, **home).out
    run(nmtkit, "guide", "tour", "--save", "lesson", cwd=empty, **home)
    assert (empty / "lesson" / "data" / "demo-scenes" / "test.images.npz").stat().st_size > 1000
    assert "libreoffice-help-{src}-{tgt}" in run(nmtkit, "fetch", "--list", cwd=empty, **home).out
    run(nmtkit, "train", "demo", *QUICKLY.split(), cwd=empty, **home)
    translated = run(
        nmtkit, "translate", "--max-length", "4", cwd=empty, stdin="The man sleeps.\n", **home
    )
    assert translated.out.count("\n") == 1
    page = empty / "attention.html"
    run(
        nmtkit,
        "plot-attention",
        "-m",
        "runs/demo",
        "The man sleeps.",
        "-o",
        page,
        cwd=empty,
        **home,
    )
    assert page.stat().st_size > 1000
