"""A small Debian archive on a web server, and packages made without dpkg."""

import hashlib
import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nmtkit.datasets.download import FetchContext
from tests.datasets.corpus_files import Content, tarred
from tests.datasets.web_server import Site


# not changed
def write_release(site: Site, packages: str, translations: Mapping[str, str] = {}) -> str:
    """Publishes a release `stable` with its indexes; the address of the archive."""
    indexes = {"main/binary-amd64/Packages.xz": packages}
    indexes |= {
        f"main/i18n/Translation-{language}.xz": text for language, text in translations.items()
    }
    lines = [
        "Codename: stable",
        "Version: 1.0",
        "MD5Sum:",
        " 00 0 main/binary-amd64/Packages.xz",
        "SHA256:",
    ]
    for name, text in indexes.items():
        content = lzma.compress(text.encode())
        digest = hashlib.sha256(content).hexdigest()
        site.put(f"dists/stable/{Path(name).parent}/by-hash/SHA256/{digest}", content)
        lines.append(f" {digest} {len(content)} {name}")
    site.put("dists/stable/Release", ("\n".join(lines) + "\n").encode())
    return site.base


def package(name: str, deb: Path) -> str:
    """The stanza of a package in the index."""
    return (
        f"Package: {name}\nVersion: 1:2.0-1\nArchitecture: all\nSize: {deb.stat().st_size}\n"
        f"Filename: pool/{deb.name}\nSHA256: {hashlib.sha256(deb.read_bytes()).hexdigest()}\n\n"
    )


def build(
    deb: Path,
    contents: Mapping[str, Content],
    compression: str = "xz",
    others: Iterable[tuple[Any, ...]] = (),
) -> Path:
    """A package of files, and of other members of its tar."""
    data = tarred(
        [*((f"./{name}", content) for name, content in contents.items()), *others], compression
    )
    parts = {"debian-binary": b"2.0\n", "control.tar": b"odd", f"data.tar.{compression}": data}
    with deb.open("wb") as file:
        file.write(b"!<arch>\n")
        for name, part in parts.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(part):<10}`\n".encode())
            file.write(part + b"\n" * (len(part) % 2))
    return deb


def fetch_context(folder: Path) -> tuple[FetchContext, list[str]]:
    """A folder for downloads, and the messages about them."""
    folder.mkdir(parents=True, exist_ok=True)
    said: list[str] = []
    return FetchContext(folder, said.append, lambda done, size: None), said
