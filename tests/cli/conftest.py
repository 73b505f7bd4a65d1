"""Copies of what tests share, for one test to change or damage."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained run."""
    return Path(shutil.copytree(trained, tmp_path / "copied"))


@pytest.fixture
def own_corpus(small_corpus: Path, tmp_path: Path) -> Path:
    """A small corpus with its recipe."""
    return Path(shutil.copytree(small_corpus, tmp_path / "corpus"))
