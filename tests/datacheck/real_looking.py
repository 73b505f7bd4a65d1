"""A corpus to plant faults in: the embedded demo corpus, 20,000 pairs of English and French."""

import gzip
from pathlib import Path
from typing import Literal

from nmtkit.data.text.config import SplitFiles
from nmtkit.datacheck.findings import SplitDiagnosis

FOLDER = Path(__file__).resolve().parent.parent.parent / "data" / "demo-en-fr"


def pairs(count: int = 3000, split: str = "train") -> tuple[list[str], list[str]]:
    """The first sources and targets."""
    sides = []
    for language in ("en", "fr"):
        text = gzip.decompress((FOLDER / f"{split}.{language}.gz").read_bytes()).decode("utf-8")
        sides.append(text.splitlines()[:count])
    return sides[0], sides[1]


def write(folder: Path, name: str, src: list[str], tgt: list[str]) -> SplitFiles:
    """The files of a split."""
    paths = [folder / f"{name}.src", folder / f"{name}.tgt"]
    for path, lines in zip(paths, (src, tgt), strict=True):
        path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return SplitFiles(src=str(paths[0]), tgt=str(paths[1]))


def write_splits(folder: Path, **splits: tuple[list[str], list[str]]) -> dict[str, SplitFiles]:
    """The files of several splits, each of sources and targets."""
    return {name: write(folder, name, *sides) for name, sides in splits.items()}


def write_pairs(
    folder: Path, name: str, pairs: list[tuple[str, str]], suffix: Literal["", ".gz"] = ""
) -> SplitFiles:
    """The files of a split from English-German pairs."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.{side}{suffix}" for side in ("en", "de")]
    for path, lines in zip(paths, zip(*pairs, strict=True) if pairs else ((), ()), strict=True):
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
        path.write_bytes(gzip.compress(text) if suffix else text)
    return SplitFiles(src=str(paths[0]), tgt=str(paths[1]))


def lines_by_kind(split: SplitDiagnosis) -> dict[str, list[int]]:
    """The lines of the examples of each fault in a split."""
    return {
        kind: [place.line for place in finding.places] for kind, finding in split.findings.items()
    }
