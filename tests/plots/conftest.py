"""For all tests of this folder: one window of Chromium, and a way to draw pictures."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nmtkit.plots import AttentionPicture, save
from tests.plots.browser import CHROMIUM, DRIVER, Browser


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip(
            "needs Chromium and chromedriver (Debian: apt-get install chromium chromium-driver)"
        )
    window = Browser()
    yield window
    window.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The window; nothing may have gone wrong on its pages at the end."""
    yield chromium
    assert chromium.errors() == []


@pytest.fixture
def draw(tmp_path: Path) -> Callable[..., Path]:
    """Saves pictures under a name, and gives the path."""

    def draw(
        pictures: AttentionPicture | Sequence[AttentionPicture], name: str = "a.svg", **options: Any
    ) -> Path:
        several = [pictures] if isinstance(pictures, AttentionPicture) else pictures
        save(several, tmp_path / name, **options)
        return tmp_path / name

    return draw
