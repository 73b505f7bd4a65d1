"""Sources that are Debian packages, and what Debian's index says of all its packages."""

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from nmtkit.corpora.apt import Apt
from nmtkit.corpora.sources import SOURCES, Obtained, Source, Workplace
from nmtkit.errors import DataError
from nmtkit.settings import Field


@SOURCES.register("apt")
class AptPackage(Source):
    """One package of the Debian release, or relative of it, that this machine runs."""

    kind: Literal["apt"] = "apt"
    package: str = Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$")
    """Its name."""

    def named(self) -> str:
        """The package's name."""
        return f"Debian package {self.package}"

    def obtain(self, work: Workplace) -> list[Obtained]:
        """Downloads the package through apt, or finds it in the cache.

        Raises:
            DataError: there is no apt here, no network, or no such package.
        """
        apt = Apt(work.folder / "apt")
        _refresh(apt, work)
        package = apt.find(self.package)
        path = work.folder / package.file_name
        if not path.is_file() or _sum(path) != package.sha256:
            work.notify(f"downloading {package.name} {package.version} ({package.size / 1e6:.1f} MB)")
            work.progress(0, package.size)
            path.unlink(missing_ok=True)  # apt would leave a file as it is
            apt.download(package, work.folder)
            work.progress(package.size, package.size)
            if _sum(path) != package.sha256:
                path.unlink()
                raise DataError(f"{package.name}: the bytes that came are not those of the index; fetch it again")
        return [Obtained(path, package.name, package.sha256, package.size, package.version)]


@SOURCES.register("apt_descriptions")
class AptDescriptions(Source):
    """The descriptions of all packages of the Debian release, or relative of it, that this machine runs."""

    kind: Literal["apt_descriptions"] = "apt_descriptions"
    languages: list[Annotated[str, Field(pattern=r"^[a-z]{2,3}(_[A-Z]{2})?$")]] = Field(min_length=1)
    """The languages of the descriptions, as Debian calls them: en, pt_BR."""

    def named(self) -> str:
        """The languages."""
        return f"Debian's descriptions of packages ({', '.join(self.languages)})"

    def obtain(self, work: Workplace) -> list[Obtained]:
        """Reads the indexes through apt: of packages, and of their descriptions in each language.

        Raises:
            DataError: there is no apt here, no network, or no descriptions in a language.
        """
        apt = Apt(work.folder / f"apt-{'-'.join(sorted(self.languages))}", self.languages)
        _refresh(apt, work)
        indexes = apt.indexes()
        missing = sorted(set(self.languages) - {index.language for index in indexes})
        if missing:
            raise DataError(
                f"the sources of apt on this machine have no descriptions of packages in {', '.join(missing)}; "
                f"they have: {', '.join(apt.languages()) or 'none'}"
            )
        return [
            Obtained(
                index.path,
                f"Debian's {index.kind}{f' ({index.language})' if index.language else ''}",
                _sum(index.path),
                index.path.stat().st_size,
                index.release,
            )
            for index in indexes
        ]


def _refresh(apt: Apt, work: Workplace) -> None:
    if not apt.fresh:
        work.notify("asking apt for the index of packages")
    for warning in apt.refresh():
        work.notify(f"apt warns: {warning}")


def _sum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
