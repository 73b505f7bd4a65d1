import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
from debian_archive import Archive, build, has_apt, workplace
from web_server import Site

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.settings import parse
from nmtkit.corpora.apt import Apt, AptDescriptions, AptPackage, package_files

NOBODY = 65534
needs_dpkg = pytest.mark.skipif(not has_apt(), reason="there is no dpkg-deb on this machine")
GERMAN = "Package: tool\nDescription-md5: 00\nDescription-de: Werkzeug\n Nützt.\n\n"
ENGLISH = "Package: tool\nDescription-md5: 00\nDescription-en: tool\n Is of use.\n\n"


def test_a_package_is_downloaded_once(archive: Archive, tmp_path: Path) -> None:
    archive.write(archive.add("tool", {"usr/share/tool/text": "Ä text.\n"}), {})
    work, told = workplace(tmp_path / 'a "folder" of downloads')
    source = AptPackage(package="tool")
    [first] = source.obtain(work)
    size = (archive.folder / "pool" / "tool.deb").stat().st_size
    assert first.path.name == "tool_1%3a2.0-1_all.deb"
    assert (first.origin, first.version, first.size, first.vouched) == ("tool", "1:2.0-1", size, True)
    assert first.path.read_bytes() == (archive.folder / "pool" / "tool.deb").read_bytes()
    assert list(package_files(first.path)) == [("usr/share/tool/text", "Ä text.\n".encode())]
    assert told == [
        "asking apt for the index of packages",
        "downloading tool 1:2.0-1 (0.0 MB)",
        f"0 of {size}",
        f"{size} of {size}",
    ]
    (archive.folder / "pool" / "tool.deb").unlink()
    assert source.obtain(work) == [first]
    assert len(told) == 4  # neither the index nor the package was asked for again


def test_a_damaged_download_is_replaced(archive: Archive, tmp_path: Path) -> None:
    archive.write(archive.add("tool", {"text": "some text\n"}), {})
    work, _ = workplace(tmp_path / "downloads")
    [first] = AptPackage(package="tool").obtain(work)
    whole = first.path.read_bytes()
    first.path.write_bytes(whole[:-1] + b"?")
    assert AptPackage(package="tool").obtain(work) == [first]
    assert first.path.read_bytes() == whole


def test_a_package_that_is_not_the_one_of_the_index_is_refused(archive: Archive, tmp_path: Path) -> None:
    archive.write(archive.add("tool", {"text": "some text\n"}), {})
    deb = archive.folder / "pool" / "tool.deb"
    deb.write_bytes(deb.read_bytes().replace(b"some", b"evil"))
    work, _ = workplace(tmp_path / "downloads")
    with pytest.raises(DataError, match=r"apt could not download tool 1:2.0-1: .*try it again later"):
        AptPackage(package="tool").obtain(work)
    assert not list(work.folder.glob("*.deb"))


def test_near_names_are_offered(archive: Archive, tmp_path: Path) -> None:
    archive.write(archive.add("help-de", {}) + archive.add("help-dk", {}) + archive.add("vim", {}), {})
    with pytest.raises(DataError, match=r"^the sources .* have no package help-dee; near names: help-de, help-dk$"):
        AptPackage(package="help-dee").obtain(workplace(tmp_path / "downloads")[0])
    with pytest.raises(DataError, match=r"have no package zzzzzzzz$"):
        AptPackage(package="zzzzzzzz").obtain(workplace(tmp_path / "downloads")[0])


@pytest.mark.parametrize("package", ["-o", "Tool", "tool de", "../tool", "tool=1"])
def test_names_that_no_package_has_are_refused(package: str) -> None:
    with pytest.raises(RecipeError, match="package"):
        parse(AptPackage, {"kind": "apt", "package": package}, "here")


def test_descriptions_come_in_the_languages_that_are_asked_for(archive: Archive, tmp_path: Path) -> None:
    archive.write(archive.add("tool", {}), {"en": ENGLISH, "de": GERMAN, "fr": GERMAN})
    work, _ = workplace(tmp_path / "downloads")
    found = AptDescriptions(languages=["en", "de"]).obtain(work)
    kinds = [one.path.name.rpartition("_")[2] for one in found]
    assert sorted(kinds) == ["Packages", "Translation-de", "Translation-en"]
    assert {one.version for one in found} == {"stable 1.0"}
    german = found[kinds.index("Translation-de")]
    assert german.path.read_text("utf-8") == GERMAN
    assert german.origin == "Debian's Translations (de)"
    # Another corpus has other languages, which does not take these away.
    AptDescriptions(languages=["fr"]).obtain(work)
    assert german.path.exists()


def test_a_language_that_the_sources_do_not_have_is_named(archive: Archive, tmp_path: Path) -> None:
    archive.write(archive.add("tool", {}), {"en": ENGLISH, "de": GERMAN})
    with pytest.raises(DataError, match=r"no descriptions of packages in fr, ja; they have: de, en$"):
        AptDescriptions(languages=["en", "ja", "fr"]).obtain(workplace(tmp_path / "downloads")[0])


def test_no_source_that_answers_is_one_sentence(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.be_the_only_source(monkeypatch, f"file:{tmp_path}/nowhere")
    with pytest.raises(DataError, match=r"^apt could read no index of packages: .*nowhere.*; look whether the network"):
        AptPackage(package="tool").obtain(workplace(tmp_path / "downloads")[0])


def test_the_last_index_serves_when_the_sources_do_not_answer(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = _on_the_web(site, monkeypatch)
    archive.write(archive.add("tool", {"text": "some text\n"}), {})
    work, told = workplace(tmp_path / "downloads")
    [first] = AptPackage(package="tool").obtain(work)
    os.utime(work.folder / "apt" / "refreshed", (0, 0))
    (archive.folder / "dists").rename(archive.folder / "gone")
    assert AptPackage(package="tool").obtain(work) == [first]
    assert any(one.startswith("apt warns: ") for one in told)


def test_a_machine_without_apt_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        DataError, match=r"^this corpus comes from Debian packages, and there is no apt-get here; fetch"
    ):
        Apt(tmp_path / "apt")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    if not has_apt():
        pytest.skip("there is no apt on this machine")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file/apt: cannot write here"):
        Apt(tmp_path / "file" / "apt")


def test_commands_of_the_machine_are_not_run_and_its_other_indexes_not_read(archive: Archive, tmp_path: Path) -> None:
    archive.write(archive.add("tool", {}), {"en": ENGLISH})
    (archive.folder / "dists" / "stable" / "main" / "Contents").write_text("everything\n")
    with (archive.folder / "only.conf").open("a") as settings:
        settings.write(f'APT::Update::Pre-Invoke {{ "touch {tmp_path}/ran"; }};\n')
        settings.write(f'APT::Update::Post-Invoke {{ "touch {tmp_path}/ran"; }};\n')
        settings.write(f'APT::Update::Post-Invoke-Success {{ "touch {tmp_path}/ran"; }};\n')
        settings.write('Acquire::IndexTargets::deb::Contents { MetaKey "$(COMPONENT)/Contents"; Optional "no"; };\n')
        settings.write('Acquire::Languages { "en"; };\nAcquire::GzipIndexes "true";\n')
    work, told = workplace(tmp_path / "downloads")
    AptPackage(package="tool").obtain(work)
    assert not any(one.startswith("apt warns") for one in told), told
    assert not (tmp_path / "ran").exists()
    lists = [path.name for path in (work.folder / "apt" / "lists").iterdir() if path.is_file() and "_" in path.name]
    assert not [name for name in lists if not name.endswith(("Packages", "Release"))], lists


def test_nothing_of_the_system_is_touched(archive: Archive, tmp_path: Path) -> None:
    archive.write(archive.add("tool", {}), {})
    before = _changes()
    AptPackage(package="tool").obtain(workplace(tmp_path / "downloads")[0])
    assert _changes() == before


def _changes() -> dict[str, int]:
    """When the files were changed that apt keeps for the system."""
    paths = [path for folder in ("/var/lib/apt", "/var/cache/apt") for path in Path(folder).rglob("*")]
    return {str(path): path.stat().st_mtime_ns for path in paths if path.exists()}


@pytest.mark.skipif(os.getuid() != 0, reason="all other tests run as a user who is not root here")
def test_any_user_may(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = _on_the_web(site, monkeypatch)
        archive.write(archive.add("tool", {"text": "some text\n"}), {})
        for name in ("sources.list", "only.conf"):
            (archive.folder / name).rename(f"{folder}/{name}")
        settings = Path(folder, "only.conf")
        settings.write_text(settings.read_text().replace(str(archive.folder), folder))
        monkeypatch.setenv("APT_CONFIG", str(settings))
        monkeypatch.setenv("HOME", folder)
        os.chown(folder, NOBODY, NOBODY)
        program = (
            "import os, sys\n"
            "from pathlib import Path\n"
            "from nmtkit.corpora.apt import Apt\n"
            f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
            "apt = Apt(Path(sys.argv[1]) / 'apt')\n"
            "print(apt.refresh(), apt.download(apt.find('tool'), Path(sys.argv[1])).name)"
        )
        done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[] tool_1%3a2.0-1_all.deb\n", "")


def _on_the_web(site: Site, patch: pytest.MonkeyPatch) -> Archive:
    """An archive on a web server, which is apt's only source."""
    if not has_apt():
        pytest.skip("there is no apt on this machine")
    archive = Archive(site.folder)
    archive.be_the_only_source(patch, site.base)
    return archive


@needs_dpkg
def test_only_regular_files_of_a_package_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "tool"
    folder.mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    deb = build(folder, tmp_path / "tool.deb", "tool", {"a/text": "one", "b": "two"})
    assert sorted(package_files(deb)) == [("a/text", b"one"), ("b", b"two")]


@needs_dpkg
def test_a_package_may_be_read_in_part(tmp_path: Path) -> None:
    deb = build(tmp_path / "tool", tmp_path / "tool.deb", "tool", {f"file{i}": "x" * 100_000 for i in range(20)})
    reading = package_files(deb)
    name, data = next(reading)
    reading.close()  # type: ignore[attr-defined]  # it is a generator
    assert name.startswith("file")
    assert data == b"x" * 100_000


@needs_dpkg
@pytest.mark.parametrize("size", [0, 5, 70, 3_000, 30_000, -1], ids=lambda size: f"bytes={size}")
def test_a_package_that_is_cut_is_named(tmp_path: Path, size: int) -> None:
    deb = build(tmp_path / "tool", tmp_path / "tool.deb", "tool", {f"file{i}": f"{i}" * 5_000 for i in range(9)})
    deb.write_bytes(deb.read_bytes()[:size])
    with pytest.raises(DataError, match=r"tool\.deb: not a whole package: .*; delete it and fetch it again$"):
        list(package_files(deb))


@needs_dpkg
def test_a_file_too_large_for_a_text_is_refused(tmp_path: Path) -> None:
    deb = _raw_package(tmp_path, size=2**26 + 1)
    with pytest.raises(DataError, match=r"big has 67108865 bytes"):
        list(package_files(deb))


def _raw_package(folder: Path, size: int) -> Path:
    """A package whose list of files promises a large one."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        header = tarfile.TarInfo("./big")
        header.size = size
        tar.addfile(header, io.BytesIO(bytes(size)))
    control = io.BytesIO()
    with tarfile.open(fileobj=control, mode="w") as tar:
        text = b"Package: big\nVersion: 1\nArchitecture: all\n"
        header = tarfile.TarInfo("./control")
        header.size = len(text)
        tar.addfile(header, io.BytesIO(text))
    deb = folder / "big.deb"
    parts = {"debian-binary": b"2.0\n", "control.tar": control.getvalue(), "data.tar": data.getvalue()}
    with deb.open("wb") as file:
        file.write(b"!<arch>\n")
        for name, part in parts.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(part):<10}`\n".encode())
            file.write(part + b"\n" * (len(part) % 2))
    return deb
