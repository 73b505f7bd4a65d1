"""Files of a Debian release from a mirror: the package index, translated package descriptions, and packages.

The release file lists the checksum of every index, and the package index the checksum of every
package. Therefore, a corpus depends only on the release, not on the machine or its apt configuration.
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
"""Maximum size in bytes of a file in a package."""

_ADDRESS = re.compile(
    r"^(?:deb(?:\s+\[.*?\])?|URIs:)\s+(https?://\S*debian/?)(?=\s|$)", re.MULTILINE
)
"""Address of a Debian archive in either of apt's two formats; the security archive's address does not match."""


def apt_mirrors(folder: Path) -> Iterator[str]:
    """Yields the addresses of the Debian archives in apt's configuration in `folder`, changed to https.

    Apt may use plain http, because it verifies signatures. nmtkit trusts the list of checksums, so
    this list must be transferred securely.
    """
    for path in (folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))):
        if path.is_file():
            for address in _ADDRESS.findall(path.read_text(encoding="utf-8", errors="replace")):
                yield re.sub("^http:", "https:", address)


RELEASE = "bookworm"
"""Code name of the release, which no longer changes."""


class _ReleaseSource(CorpusSource):
    def _mirror(self) -> str:
        """Returns the address of a mirror: $NMTKIT_DEBIAN_MIRROR, or the one in apt's configuration."""
        address = os.environ.get("NMTKIT_DEBIAN_MIRROR") or next(apt_mirrors(Path("/etc/apt")), "")
        if not address:
            raise DataError(
                f"{self.label()}: found no Debian mirror in apt's configuration; set "
                "NMTKIT_DEBIAN_MIRROR"
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
        except ValueError:  # for example a login page of the network
            raise DataError(
                f"{release.path}: this is not a valid Debian Release file; delete it and fetch the corpus again"
            ) from None
        version = "".join(
            line.removeprefix("Version: ") for line in facts if line.startswith("Version: ")
        )
        files = []
        for stem in names:
            name = next((stem + end for end in (".xz", ".bz2") if stem + end in checksums), None)
            if name is None:
                raise DataError(
                    f"Debian {RELEASE} has no index {stem}; check the languages of the corpus"
                )
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
    """A package of a Debian release."""

    kind: Literal["debian_package"] = "debian_package"
    package: str = Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$")
    """Name of the package."""

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
        raise DataError(
            f"Debian {RELEASE} has no package {self.package}; correct the name in the entry"
        )


class DebianIndexes(_ReleaseSource):
    """The package descriptions of a Debian release in some languages, and the package index."""

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
    """Yields the given fields of each stanza of an index; joins continuation lines with newlines."""
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
                        f"{path}, line {number}: expected `Field: value`; fetch the file again"
                    )
                if name in fields:
                    stanza[name] = value.strip()
            elif stanza:
                yield stanza
                stanza, name = {}, ""
    if stanza:
        yield stanza


def package_files(deb: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the path and content of each regular file of a package, without writing to disk."""
    try:
        with deb.open("rb") as file:
            if file.read(8) != b"!<arch>\n":
                raise tarfile.ReadError("this is not an ar archive")
            # ar header: name (16 bytes), time, owner, group, mode, size (10 bytes), 2 bytes
            while header := file.read(60):
                size = int(header[48:58])
                if file.tell() + size > deb.stat().st_size:
                    raise tarfile.ReadError("unexpected end of data")
                if header.startswith(b"data.tar"):
                    with tarfile.open(fileobj=file, mode="r|*") as tar:
                        for member in filter(tarfile.TarInfo.isreg, tar):
                            if member.size > MAX_FILE_BYTES:
                                raise tarfile.ReadError(
                                    f"{member.name} is too large for a help page "
                                    f"({member.size:,} bytes)"
                                )
                            content = tar.extractfile(member)
                            assert content is not None  # true for all regular files
                            yield member.name.removeprefix("./"), content.read()
                    return
                file.seek(size + size % 2, 1)
            raise tarfile.ReadError("it contains no data")
    except (*DAMAGE_ERRORS, ValueError) as fault:
        raise DataError(
            f"{deb}: incomplete or damaged package ({fault}); delete it and fetch the corpus again"
        ) from fault
