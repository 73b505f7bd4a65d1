"""Files that are written whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

from nmtkit.errors import require_replaceable, writing


def write_json(path: Path, data: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never half of it.

    Raises:
        NmtkitError: it cannot be written.
    """
    write_whole(path, json.dumps(data, ensure_ascii=False, indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Writes a text file so that a reader sees the old one or the new one, never half of it.

    Raises:
        NmtkitError: it cannot be written.
    """
    require_replaceable(path)
    temporary = path.with_name(f"{path.name}.new")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
