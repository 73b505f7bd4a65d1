from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing was measured before, and nothing is left to others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path
