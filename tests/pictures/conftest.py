"""One window of Chromium for all tests of this folder."""

from collections.abc import Iterator

import pytest
from browser import CHROMIUM, DRIVER, Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs Chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
    window = Browser()
    yield window
    window.close()
