"""Files of a Debian release from a mirror: the package index, translated package descriptions, and packages.

The release file lists the checksum of every index, and the package index that of every package. So a corpus depends
on the release alone, not on the machine or its apt.
"""

import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from typing_extensions import override

from nmtkit.core.errors import DataError
from nmtkit.core.settings import Field
from nmtkit.data.text.files.lines import read_stream_lines
from nmtkit.datasets.archives import DAMAGE_ERRORS, NOT_UTF8, members
from nmtkit.datasets.download import FetchContext
from nmtkit.datasets.sources import CorpusSource, SourceFile, UrlSource

PACKAGE_INDEX = "main/binary-amd64/Packages"
MAX_FILE_BYTES = 2**26
"""Bytes of a file of a package that is read."""

_ADDRESS = re.compile(
    r"^(?:deb(?:\s+\[.*?\])?|URIs:)\s+(https?://\S*debian/?)(?=\s|$)", re.MULTILINE
)
"""An archive of Debian in one of apt's two formats; that of security updates has another name."""


def apt_mirrors(folder: Path) -> Iterator[str]:
    """The addresses of the Debian archives that apt reads, from its configuration in `folder`; as https.

    Apt compares signatures and may use plain http. Here the list of checksums is trusted, so nobody may change it.
    """
    for path in (folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))):
        if path.is_file():
            for address in _ADDRESS.findall(path.read_text(encoding="utf-8", errors="replace")):
                yield re.sub("^http:", "https:", address)


RELEASE = "bookworm"
"""The code name of the release, which no longer changes."""


class _ReleaseSource(CorpusSource):
    def _mirror(self) -> str:
        """The address of a mirror: $NMTKIT_DEBIAN_MIRROR, or the one that this machine's apt uses."""
        address = os.environ.get("NMTKIT_DEBIAN_MIRROR") or next(apt_mirrors(Path("/etc/apt")), "")
        if not address:
            raise DataError(
                f"{self.label()}: apt names no mirror of Debian; name one by NMTKIT_DEBIAN_MIRROR"
            )
        return address.rstrip("/")

    def _indexes(self, context: FetchContext, names: Sequence[str]) -> list[SourceFile]:
        address = f"{self._mirror()}/dists/{RELEASE}"
        [release] = UrlSource(
            url=f"{address}/Release", no_checksum="it is the list of checksums"
        ).obtain(context)
        try:
            facts = release.path.read_text("utf-8").split("\n")
            rows = (line.split() for line in facts if line[:1] == " ")
            checksums = {name: (sha, int(size)) for sha, size, name in rows}
        except ValueError:  # a page of a network that asks to log in
            raise DataError(
                f"{release.path}: not the list of checksums of Debian; delete it, and fetch again"
            ) from None
        version = "".join(
            line.removeprefix("Version: ") for line in facts if line.startswith("Version: ")
        )
        files = []
        for stem in names:
            name = next((stem + end for end in (".xz", ".bz2") if stem + end in checksums), None)
            if name is None:
                raise DataError(f"Debian {RELEASE} has no {stem}")
            sha, size = checksums[name]
            folder, _, file = name.rpartition("/")
            source = UrlSource(
                url=f"{address}/{folder}/by-hash/SHA256/{sha}", sha256=sha, size=size, file=file
            )
            files += [
                replace(one, version=f"{RELEASE} {version}") for one in source.obtain(context)
            ]
        return files


class DebianPackage(_ReleaseSource):
    """One package of a Debian release."""

    kind: Literal["debian_package"] = "debian_package"
    package: str = Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$")
    """The package's name."""

    @override
    def label(self) -> str:
        return f"Debian package {self.package} ({RELEASE})"

    def obtain(self, context: FetchContext) -> list[SourceFile]:
        """Finds the package in the index and downloads it."""
        [index] = self._indexes(context, [PACKAGE_INDEX])
        for stanza in stanzas(index.path, ("Package", "Version", "Filename", "SHA256", "Size")):
            if stanza.get("Package") == self.package:
                url, size = f"{self._mirror()}/{stanza['Filename']}", int(stanza["Size"])
                files = UrlSource(url=url, sha256=stanza["SHA256"], size=size).obtain(context)
                return [replace(one, version=stanza["Version"]) for one in files]
        raise DataError(f"Debian {RELEASE} has no package {self.package}")


class DebianIndexes(_ReleaseSource):
    """The descriptions of all packages of a Debian release in some languages, and the package index."""

    kind: Literal["debian_indexes"] = "debian_indexes"
    languages: list[Annotated[str, Field(pattern=r"^[a-z]{2,3}(_[A-Z]{2})?$")]] = Field(
        min_length=1
    )
    """Debian's language codes: en, pt_BR."""

    @override
    def label(self) -> str:
        return f"Debian's package descriptions ({', '.join(self.languages)}; {RELEASE})"

    def obtain(self, context: FetchContext) -> list[SourceFile]:
        """Downloads the indexes."""
        return self._indexes(
            context, [PACKAGE_INDEX, *(f"main/i18n/Translation-{one}" for one in self.languages)]
        )


def stanzas(path: Path, fields: Sequence[str]) -> Iterator[dict[str, str]]:
    """The stanzas of an index, each with the given fields that it has; continuation lines follow a line feed."""
    stanza: dict[str, str] = {}
    name = ""
    [index] = members(path)
    with index.open() as stream:
        for number, line in enumerate(
            read_stream_lines(stream, str(path), remedy=NOT_UTF8), start=1
        ):
            if line[:1] in (" ", "\t"):
                if name in stanza:
                    stanza[name] += "\n" + line
            elif line:
                name, colon, value = line.partition(":")
                if not colon:
                    raise DataError(
                        f"{path}, line {number}: expected `Field: value`; fetch it again"
                    )
                if name in fields:
                    stanza[name] = value.strip()
            elif stanza:
                yield stanza
                stanza, name = {}, ""
    if stanza:
        yield stanza


def package_files(deb: Path) -> Iterator[tuple[str, bytes]]:
    """The regular files of a package, one at a time: path from the root, and content. Nothing is written to disk."""
    try:
        with deb.open("rb") as file:
            if file.read(8) != b"!<arch>\n":
                raise tarfile.ReadError("not an ar archive")
            # of ar: name (16 bytes), time, owner, group, mode, size (10), 2 bytes
            while header := file.read(60):
                size = int(header[48:58])
                if file.tell() + size > deb.stat().st_size:
                    raise tarfile.ReadError("unexpected end of data")
                if header.startswith(b"data.tar"):
                    with tarfile.open(fileobj=file, mode="r|*") as tar:
                        for member in filter(tarfile.TarInfo.isreg, tar):
                            if member.size > MAX_FILE_BYTES:
                                raise tarfile.ReadError(
                                    f"{member.name} has {member.size} bytes, too many for a page"
                                )
                            yield member.name.removeprefix("./"), tar.extractfile(member).read()  # type: ignore[union-attr]
                    return
                file.seek(size + size % 2, 1)
            raise tarfile.ReadError("it has no data")
    except (*DAMAGE_ERRORS, ValueError) as fault:
        raise DataError(
            f"{deb}: not a complete package: {fault}; delete it and fetch it again"
        ) from fault
