"""Debian packages through apt's own programs: as any user, with the machine's own sources, proxies and keys.

apt keeps what it knows in folders of the system that only root may write. Here it is given folders of our own instead,
so that nothing of the system is touched. apt checks the signatures of what it fetches; this file only asks it.
"""

import difflib
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from nmtkit.core.errors import DataError
from nmtkit.core.settings import Field
from nmtkit.corpora.download import sha256_of
from nmtkit.corpora.sources import SOURCES, CorpusSource, FetchContext, SourceFile

# apt reads this after the machine's own settings, so that `#clear` undoes theirs. Commands that the machine runs at an
# update are for its own state, not ours. Lists are kept as plain text, for us to read.
_SETTINGS = """\
#clear Acquire::Languages;
Acquire::Languages {{ {languages} }};
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Acquire::GzipIndexes "false";
Acquire::AllowInsecureRepositories "false";
Acquire::Retries "3";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
Dir::State::status "/dev/null";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
APT::Sandbox::User "root";
"""
_TARGET = re.compile(r"Acquire::IndexTargets::(deb(?:-src)?::[^: ]+) ")
_WANTED_TARGETS = ("deb::Packages", "deb::Translations")
_LARGEST_MEMBER = 2**26
_FRESH = 600.0  # seconds


@dataclass(frozen=True)
class Package:
    """One version of a package, and the sum and the bytes of its file, as the signed index describes them."""

    name: str
    version: str
    architecture: str
    """"all", or the machine's."""
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        """What apt calls its file."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


class Apt:
    """apt with folders of its own.

    Args:
        folder: for what apt keeps; made where it is missing.
        languages: the languages whose descriptions of packages are read too.

    Raises:
        DataError: apt is not on this machine.
    """

    def __init__(self, folder: Path, languages: Sequence[str] = ()) -> None:
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise DataError(
                "this corpus comes from Debian packages, and there is no apt-get here; "
                "fetch it on Debian, Ubuntu or a relative of theirs, and copy its folder here"
            )
        self._folder = folder.resolve()
        self._stamp = self._folder / "refreshed"
        wanted = " ".join(f'"{language}";' for language in languages or ["none"])
        settings = _SETTINGS.format(languages=wanted) + self._unwanted_targets()
        try:
            for part in ("lists/partial", "cache/archives/partial"):
                (self._folder / part).mkdir(parents=True, exist_ok=True)
            (self._folder / "apt.conf").write_text(settings, encoding="utf-8")
        except OSError as fault:
            raise DataError(f"{self._folder}: cannot write here: {fault.strerror or fault}") from fault

    @property
    def fresh(self) -> bool:
        """Whether the index was read a few minutes ago."""
        return self._stamp.is_file() and 0 <= time.time() - self._stamp.stat().st_mtime < _FRESH

    def refresh(self) -> list[str]:
        """Reads the index of packages from the machine's sources, or what changed in it since the last time.

        Returns:
            apt's warnings: sources that could not be read, though others could.

        Raises:
            DataError: no source could be read.
        """
        done = self._run("apt-get", "update")
        if not any(path.is_file() for path in (self._folder / "lists").glob("*_Packages")):
            raise DataError(
                f"apt could read no index of packages{_reason(done)}; "
                "look whether the network is up, and whether `apt-get update` works on this machine"
            )
        self._stamp.touch()
        return _complaints(done)

    def indexes(self) -> list[tuple[str, SourceFile]]:
        """The indexes that were read, of packages and of their descriptions, in the order of the machine's sources.

        Each comes with its language, which is empty for packages; its version is the release, such as bookworm 12.11.
        """
        form = "$(CREATED_BY)|$(LANGUAGE)|$(CODENAME) $(VERSION)|$(FILENAME)"
        found = []
        for line in self._run("apt-get", "indextargets", "--format", form).stdout.splitlines():
            kind, language, release, name = line.split("|", 3)
            # What a source does not have keeps its placeholder.
            language, release = (re.sub(r"\$\([A-Z_]+\)", "", text).strip() for text in (language, release))
            path = Path(name)
            if kind in ("Packages", "Translations") and path.is_file():
                origin = f"Debian's {kind}{f' ({language})' if language else ''}"
                found.append((language, SourceFile(path, origin, sha256_of(path), path.stat().st_size, release)))
        return found

    def languages(self) -> list[str]:
        """The languages in which the machine's sources describe their packages."""
        found: set[str] = set()
        for path in (self._folder / "lists").glob("*Release"):
            found.update(re.findall(r"i18n/Translation-([A-Za-z_@]+)", path.read_text("utf-8", errors="replace")))
        return sorted(found)

    def find(self, name: str) -> Package:
        """The newest version of a package that apt would install; a DataError with near names where there is none."""
        shown = self._run("apt-cache", "show", "--no-all-versions", name).stdout
        fields = dict(re.findall(r"(?m)^([A-Za-z0-9-]+): (.*)$", shown.split("\n\n")[0]))
        if fields.get("Package") != name:
            names = self._run("apt-cache", "pkgnames").stdout.split()
            close = difflib.get_close_matches(name, names, n=3, cutoff=0.7)
            hint = f"; near names: {', '.join(close)}" if close else ""
            raise DataError(f"the sources of apt on this machine have no package {name}{hint}")
        if not {"Version", "Architecture", "SHA256", "Size"} <= set(fields):
            raise DataError(f"the index of packages gives no sum for {name}; use a source of apt that does")
        return Package(name, fields["Version"], fields["Architecture"], fields["SHA256"].lower(), int(fields["Size"]))

    def download(self, package: Package, folder: Path) -> Path:
        """Downloads the file of a package into a folder; a DataError has apt's reason."""
        path = folder / package.file_name
        done = self._run("apt-get", "download", f"{package.name}={package.version}", cwd=folder)
        if done.returncode or not path.is_file():
            raise DataError(
                f"apt could not download {package.name} {package.version}{_reason(done)}; try it again later"
            )
        return path

    def _run(self, program: str, *words: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
        """Runs one of apt's programs with our folders; its messages are in English."""
        places = {
            "Dir::State": self._folder,
            "Dir::State::lists": self._folder / "lists",
            "Dir::Cache": self._folder / "cache",
            "Dir::Cache::archives": self._folder / "cache" / "archives",
        }
        options = [word for key, path in places.items() for word in ("-o", f"{key}={path}/")]
        return _output([program, "-c", str(self._folder / "apt.conf"), *options, *words], cwd)

    def _unwanted_targets(self) -> str:
        """Settings that switch off every kind of index but those that are read here."""
        shown = _output(["apt-config", "dump"]).stdout
        names = set(_TARGET.findall(shown)) - set(_WANTED_TARGETS)
        return "".join(f'Acquire::IndexTargets::{name}::DefaultEnabled "false";\n' for name in sorted(names))


def package_files(deb: Path) -> Iterator[tuple[str, bytes]]:
    """The regular files in a package, one at a time: their path from the root, and their bytes. Nothing is unpacked.

    Raises:
        DataError: it is not a package, or it is damaged.
    """
    command = ["dpkg-deb", "--fsys-tarfile", str(deb)]
    with subprocess.Popen(command, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        try:
            with tarfile.open(fileobj=program.stdout, mode="r|") as tar:
                for member in tar:
                    if member.isreg():
                        yield member.name.removeprefix("./"), _bytes(tar, member, deb)
            # A tar that is cut between two files looks whole; only the program knows better.
            program.stdout.read()
            if program.wait():
                raise tarfile.ReadError("it ends too early")
        except tarfile.TarError as fault:
            said = program.stderr.read().decode("utf-8", errors="replace").strip()
            reason = said.splitlines()[0] if said else fault
            raise DataError(f"{deb}: not a whole package: {reason}; delete it and fetch it again") from fault
        finally:
            program.kill()  # of use where the caller wants no more members


def _bytes(tar: tarfile.TarFile, member: tarfile.TarInfo, deb: Path) -> bytes:
    if member.size > _LARGEST_MEMBER:
        raise DataError(f"{deb}: {member.name} has {member.size} bytes, more than any page; it is not read")
    file = tar.extractfile(member)
    assert file is not None  # it is a regular file
    return file.read()


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def _output(command: Sequence[str], cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=cwd, env=_environment(), capture_output=True, encoding="utf-8", check=False)


def _reason(done: "subprocess.CompletedProcess[str]") -> str:
    """The reason that apt gives for a failure, as the middle of a sentence."""
    told = _complaints(done)
    return f": {told[0]}" if told else ""


def _complaints(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """Apt's warnings and errors, in its own words."""
    return [" ".join(line[2:].split()) for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]


# ------------------------------------------------------------------------------------------------------------- sources


@SOURCES.register("apt")
class AptPackage(CorpusSource):
    """One package of the Debian release, or relative of it, that this machine runs."""

    kind: Literal["apt"] = "apt"
    package: str = Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$")
    """Its name."""

    def named(self) -> str:
        """See `CorpusSource`."""
        return f"Debian package {self.package}"

    def obtain(self, work: FetchContext) -> list[SourceFile]:
        """Downloads the package through apt, or finds it in the cache."""
        apt = _refreshed(work, "apt")
        package = apt.find(self.package)
        path = work.folder / package.file_name
        if not path.is_file() or sha256_of(path) != package.sha256:
            work.notify(f"downloading {package.name} {package.version} ({package.size / 1e6:.1f} MB)")
            work.progress(0, package.size)
            path.unlink(missing_ok=True)  # apt would leave a file as it is
            apt.download(package, work.folder)
            work.progress(package.size, package.size)
            if sha256_of(path) != package.sha256:
                path.unlink()
                raise DataError(f"{package.name}: the bytes that came are not those of the index; fetch it again")
        return [SourceFile(path, package.name, package.sha256, package.size, package.version)]


@SOURCES.register("apt_descriptions")
class AptDescriptions(CorpusSource):
    """The descriptions of all packages of the Debian release, or relative of it, that this machine runs."""

    kind: Literal["apt_descriptions"] = "apt_descriptions"
    languages: list[Annotated[str, Field(pattern=r"^[a-z]{2,3}(_[A-Z]{2})?$")]] = Field(min_length=1)
    """The languages of the descriptions, as Debian calls them: en, pt_BR."""

    def named(self) -> str:
        """See `CorpusSource`."""
        return f"Debian's descriptions of packages ({', '.join(self.languages)})"

    def obtain(self, work: FetchContext) -> list[SourceFile]:
        """Reads the indexes through apt: of packages, and of their descriptions in each language."""
        apt = _refreshed(work, f"apt-{'-'.join(sorted(self.languages))}", self.languages)
        indexes = apt.indexes()
        missing = sorted(set(self.languages) - {language for language, _ in indexes})
        if missing:
            raise DataError(
                f"the sources of apt on this machine have no descriptions of packages in {', '.join(missing)}; "
                f"they have: {', '.join(apt.languages()) or 'none'}"
            )
        return [index for _, index in indexes]


def _refreshed(work: FetchContext, folder: str, languages: Sequence[str] = ()) -> Apt:
    """Apt with that folder in the cache, and an index of packages that is no more than minutes old."""
    apt = Apt(work.folder / folder, languages)
    if not apt.fresh:  # a corpus may have several packages
        work.notify("asking apt for the index of packages")
        for warning in apt.refresh():
            work.notify(f"apt warns: {warning}")
    return apt
