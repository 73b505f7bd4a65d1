"""A small archive of Debian packages on disk, as apt reads them, and whether the machine's own can be read."""

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from nmtkit.corpora.sources import FetchContext


@dataclass
class Archive:
    """Packages and their index in a folder, and the settings that make it apt's only source."""

    folder: Path
    """Where it is."""

    def write(self, packages: str, translations: dict[str, str]) -> None:
        """Writes an index of packages, and the descriptions in each language."""
        files = {"main/binary-all/Packages": "", f"main/binary-{architecture()}/Packages": packages}
        files |= {f"main/i18n/Translation-{language}": text for language, text in translations.items()}
        sums = []
        for name, text in files.items():
            path = self.folder / "dists" / "stable" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sums.append(f" {hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_size} {name}")
        head = ["Codename: stable", "Version: 1.0", "Date: Thu, 01 Jan 2015 00:00:00 UTC", "Components: main"]
        head += [f"Architectures: all {architecture()}", "SHA256:"]
        (self.folder / "dists" / "stable" / "Release").write_text("\n".join([*head, *sums, ""]), encoding="utf-8")

    def be_the_only_source(self, patch: pytest.MonkeyPatch, address: str = "") -> None:
        """Points apt to this archive, or to one at another address, and to no other."""
        sources = self.folder / "sources.list"
        sources.write_text(f"deb [trusted=yes] {address or f'file:{self.folder}'} stable main\n", encoding="utf-8")
        settings = self.folder / "only.conf"
        settings.write_text(f'Dir::Etc::sourcelist "{sources}";\nDir::Etc::sourceparts "/dev/null";\n')
        patch.setenv("APT_CONFIG", str(settings))

    def add(self, name: str, contents: dict[str, str], version: str = "1:2.0-1") -> str:
        """Builds a package of text files; gives its stanza of the index."""
        deb = build(self.folder / "building" / name, self.folder / "pool" / f"{name}.deb", name, contents, version)
        return (
            f"Package: {name}\nVersion: {version}\nArchitecture: all\nSize: {deb.stat().st_size}\n"
            f"Filename: pool/{name}.deb\nSHA256: {hashlib.sha256(deb.read_bytes()).hexdigest()}\n\n"
        )


@dataclass
class Debian:
    """What the machine's own sources of apt give."""

    work: FetchContext
    """A folder for downloads."""
    indexes: list[Path]
    """The index of packages, and their descriptions in English and German."""


def architecture() -> str:
    """What Debian calls the machine's processor."""
    return subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()


def build(folder: Path, deb: Path, name: str, contents: dict[str, str], version: str = "1") -> Path:
    """Makes a package of text files by dpkg-deb itself."""
    for path, text in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    (folder / "DEBIAN").mkdir(parents=True)
    (folder / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\n"
        "Description: made for a test\n"
    )
    deb.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["dpkg-deb", "-Znone", "--root-owner-group", "-b", str(folder), str(deb)], check=True, capture_output=True
    )
    return deb


def workplace(folder: Path) -> tuple[FetchContext, list[str]]:
    """A folder for downloads, and all that is told of them."""
    folder.mkdir(parents=True, exist_ok=True)
    told: list[str] = []
    return FetchContext(folder, told.append, lambda there, size: told.append(f"{there} of {size}")), told


def has_apt() -> bool:
    """Whether apt is on this machine."""
    return all(shutil.which(program) for program in ("apt-get", "apt-cache", "dpkg-deb", "dpkg"))
