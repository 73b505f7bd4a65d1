import tarfile
from collections import Counter
from pathlib import Path

import pytest

from nmtkit.core.errors import DataError, NmtkitError, RecipeError
from nmtkit.core.settings import parse
from nmtkit.datasets import debian
from nmtkit.datasets.debian import DebianIndexes, DebianPackage, apt_mirrors, package_files, stanzas
from nmtkit.datasets.debian_readers import DebianDescriptions, DebianSummaries, LibreOfficeHelp
from tests.datasets.debian_archive import build, fetch_context, package, write_release
from tests.datasets.web_server import Site

GERMAN = "Package: tool\nDescription-md5: 00\nDescription-de: Werkzeug\n Nützt.\n\n"
ENGLISH = "Package: tool\nDescription-md5: 00\nDescription-en: tool\n Is of use.\n\n"


@pytest.fixture(autouse=True)
def mirror(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "RELEASE", "stable")
    monkeypatch.setenv("NMTKIT_DEBIAN_MIRROR", site.base)


def publish(site: Site, folder: Path) -> DebianPackage:
    deb = build(folder / "tool.deb", {"usr/share/tool/text": "Ä text.\n"})
    site.put("pool/tool.deb", deb.read_bytes())
    write_release(
        site, package("other", deb).replace("tool.deb", "other.deb") + package("tool", deb)
    )
    return DebianPackage(package="tool")


def test_a_mirror_is_named_by_apt_or_by_a_variable(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    old = "# a comment\ndeb [arch=amd64 signed-by=/a.gpg] http://one.example/debian bookworm main\n"
    (tmp_path / "sources.list").write_text(
        old + "deb http://two.example/debian-security bookworm-security main\n"
    )
    (tmp_path / "sources.list.d/debian.sources").write_text(
        "Types: deb\nURIs: https://three.example/debian/\nSuites: a\n"
    )
    assert list(apt_mirrors(tmp_path)) == [
        "https://one.example/debian",
        "https://three.example/debian/",
    ]
    assert list(apt_mirrors(tmp_path / "none")) == []

    source, (context, _) = publish(site, tmp_path), fetch_context(tmp_path / "downloads")
    monkeypatch.setenv("NMTKIT_DEBIAN_MIRROR", f"{site.base}/")
    assert [one.path.name for one in source.obtain(context)] == ["tool.deb"]
    monkeypatch.delenv("NMTKIT_DEBIAN_MIRROR")
    monkeypatch.setattr(debian, "apt_mirrors", lambda folder: iter(()))
    with pytest.raises(
        DataError, match="no Debian mirror in apt's configuration; set NMTKIT_DEBIAN_MIRROR"
    ):
        source.obtain(context)


def test_a_package_is_downloaded_once(site: Site, tmp_path: Path) -> None:
    source = publish(site, tmp_path)
    context, said = fetch_context(tmp_path / 'a "folder" of downloads')
    [first] = source.obtain(context)
    assert first.path.name == "tool.deb"
    assert (first.origin, first.version, first.verified) == (
        f"{site.base}/pool/tool.deb",
        "1:2.0-1",
        True,
    )
    assert list(package_files(first.path)) == [("usr/share/tool/text", "Ä text.\n".encode())]
    assert sum(one.startswith("downloading") for one in said) == len(site.asked) == 3
    assert source.obtain(context) == [first]
    assert len(site.asked) == 3


@pytest.mark.parametrize("where", ["cache", "mirror"])
def test_a_damaged_package_is_not_used(site: Site, tmp_path: Path, where: str) -> None:
    source = publish(site, tmp_path)
    context, _ = fetch_context(tmp_path / "downloads")
    whole = (site.folder / "pool" / "tool.deb").read_bytes()
    if where == "mirror":
        site.put("pool/tool.deb", whole[:-1] + b"?")
        with pytest.raises(DataError, match="has the SHA-256 checksum"):
            source.obtain(context)
        assert not list(context.folder.rglob("*.deb"))
    else:
        [first] = source.obtain(context)
        first.path.write_bytes(whole[:-1] + b"?")
        assert source.obtain(context) == [first]
        assert first.path.read_bytes() == whole


def test_packages_that_cannot_be_are_refused(site: Site, tmp_path: Path) -> None:
    publish(site, tmp_path)
    source = DebianPackage(package="toool")
    with pytest.raises(
        DataError, match=r"^Debian stable has no package toool; correct the name in the entry$"
    ):
        source.obtain(fetch_context(tmp_path / "downloads")[0])
    for name in ("-o", "Tool", "tool de", "../tool", "tool=1"):
        with pytest.raises(RecipeError, match="package"):
            parse(DebianPackage, {"kind": "debian_package", "package": name}, "here")


def test_a_page_in_place_of_the_checksums_is_named(site: Site, tmp_path: Path) -> None:
    """As a network sends that asks to log in first."""
    source = publish(site, tmp_path)
    site.put("dists/stable/Release", b"<html>\n <body> <p> Log in, please </p> </body>\n</html>\n")
    with pytest.raises(
        DataError,
        match=r"Release: this is not a valid Debian Release file; delete it and fetch the corpus again",
    ):
        source.obtain(fetch_context(tmp_path / "downloads")[0])


def test_descriptions_come_in_the_requested_languages(site: Site, tmp_path: Path) -> None:
    write_release(site, "Package: tool\n", {"en": ENGLISH, "de": GERMAN, "fr": GERMAN})
    context, _ = fetch_context(tmp_path / "downloads")
    files = DebianIndexes(languages=["en", "de"]).obtain(context)
    assert [one.path.name for one in files] == [
        "Packages.xz",
        "Translation-en.xz",
        "Translation-de.xz",
    ]
    assert {one.version for one in files} == {"stable 1.0"}
    [german] = stanzas(files[2].path, ("Package", "Description-de"))
    assert german == {"Package": "tool", "Description-de": "Werkzeug\n Nützt."}
    with pytest.raises(
        DataError,
        match=r"^Debian stable has no index main/i18n/Translation-ja; check the languages of the corpus$",
    ):
        DebianIndexes(languages=["en", "ja"]).obtain(context)


def test_only_regular_files_of_a_package_are_read_and_none_too_large_for_a_text(
    tmp_path: Path,
) -> None:
    others = [
        ("./link", b"", tarfile.SYMTYPE, "/etc/passwd"),
        ("./pipe", b"", tarfile.FIFOTYPE, ""),
    ]
    deb = build(tmp_path / "tool.deb", {"a/text": "one", "b": "two"}, others=others)
    assert list(package_files(deb)) == [("a/text", b"one"), ("b", b"two")]
    big = build(tmp_path / "big.deb", {"big": bytes(2**26 + 1)}, "gz")
    with pytest.raises(DataError, match=r"big is too large for a help page \(67,108,865 bytes\)"):
        list(package_files(big))


@pytest.mark.parametrize("compression", ["xz", "gz", ""])
@pytest.mark.parametrize("size", [0, 5, 70, 3_000, 30_000, -1], ids=lambda size: f"bytes={size}")
def test_a_package_that_is_cut_is_named(tmp_path: Path, size: int, compression: str) -> None:
    texts = {f"file{i}": "".join(f"{i * n * n}" for n in range(2_000)) for i in range(9)}
    deb = build(tmp_path / "tool.deb", texts, compression)
    assert dict(package_files(deb)) == {name: text.encode() for name, text in texts.items()}
    deb.write_bytes(deb.read_bytes()[: size if size < deb.stat().st_size else -1].rstrip(b"\n"))
    with pytest.raises(
        DataError,
        match=r"tool\.deb: incomplete or damaged package \(.*\); delete it and fetch the corpus again$",
    ):
        list(package_files(deb))


@pytest.mark.slow  # it asks a mirror of Debian
def test_the_real_archive_has_what_the_readers_expect(tmp_path: Path) -> None:
    context = fetch_context(tmp_path / "downloads")[0]
    try:
        indexes = [one.path for one in DebianIndexes(languages=["en", "de"]).obtain(context)]
    except NmtkitError as fault:
        pytest.skip(f"no mirror of Debian can be reached: {fault}")
    summaries = list(DebianSummaries().pairs(indexes, Counter()))
    assert len(summaries) > 20_000
    assert len({pair.group for pair in summaries}) > 15_000
    dropped: Counter[str] = Counter()
    descriptions = list(DebianDescriptions(src="en", tgt="de").pairs(indexes, dropped))
    assert len(descriptions) > 10_000
    assert dropped["description with more paragraphs in one language"] < len(descriptions) / 100
    assert dropped["paragraph with more list items in one language"] < len(descriptions) / 50

    packages = [
        DebianPackage(package=f"libreoffice-help-{language}") for language in ("en-us", "de")
    ]
    dropped.clear()
    pages = list(
        LibreOfficeHelp().pairs([package.obtain(context)[0].path for package in packages], dropped)
    )
    assert sum(dropped.values()) < len(pages) / 20
    assert sum(pair.src == pair.tgt for pair in pages) < len(pages) / 5  # names of functions
    # Sentences that have stood in these pages for many versions, and are translated.
    translations = {pair.src: pair.tgt for pair in pages}
    assert translations["Click OK."] in ("Klicken Sie auf OK.", "Klicken Sie auf „OK“.")
    assert "Fuß" in translations["Inserting and Editing Footnotes or Endnotes"]
