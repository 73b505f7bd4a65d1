"""`nmtkit fetch`: what is asked, what is said, and the exit code."""

import json
from pathlib import Path

import pytest

from tests.support.commands import Command, Finished, refused, succeeded
from tests.tools.house import traced

TEXT = "".join(f"Sentence {n}.\tSatz {n}.\n" for n in range(200))


@pytest.fixture
def nmtkit(console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`nmtkit` in a folder with a catalogue; its corpus lies in the cache already, so that nothing is downloaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = "http://no-such-host.invalid/pairs.txt"
    entry = {
        "title": "Pairs of a test",
        "src": "en",
        "tgt": "de",
        "size": "200 pairs",
        "licence": "CC0; asks for nothing",
        "sources": [{"kind": "url", "url": url, "no_checksum": "it is a test"}],
        "read": {"kind": "tab_separated", "text": "pairs.txt"},
        "split": {"valid": 0.1, "test": 0.1},
    }
    (tmp_path / "mine.yaml").write_text(json.dumps({"pairs": entry}))

    def fetch(*arguments: str, stdin: str = "") -> Finished:
        return console("fetch", "--catalogue", "mine.yaml", *arguments, stdin=stdin)

    return fetch


@pytest.fixture
def downloaded(nmtkit: Command, tmp_path: Path) -> Command:
    """The same, with the file in the cache."""
    done = refused(nmtkit("pairs", "--yes"))
    place = done.err.split("save it as ")[1].strip()
    assert place.startswith(str(tmp_path / "cache"))
    with open(place, "w", encoding="utf-8") as file:
        file.write(TEXT)
    return nmtkit


def test_without_a_terminal_nothing_is_downloaded_unless_yes_is_given(
    nmtkit: Command, tmp_path: Path
) -> None:
    refused(
        nmtkit("pairs", stdin="y\n"),
        "CC0; asks for nothing",
        "200 pairs",
        "http://no-such-host.invalid/pairs.txt",
        "to answer yes, use --yes",
    )
    assert not (tmp_path / "corpora").exists()
    assert not (tmp_path / "cache").exists()


def test_a_missing_network_is_one_message(nmtkit: Command) -> None:
    done = refused(nmtkit("pairs", "--yes"))
    last = done.err.splitlines()[-1]
    assert last.startswith("nmtkit: error:")
    assert "cannot reach no-such-host.invalid" in last


def test_a_fetched_corpus_is_described_with_the_next_commands(
    downloaded: Command, tmp_path: Path
) -> None:
    done = succeeded(downloaded("pairs", "--yes"))
    assert "nmtkit check corpora/pairs/pairs.yaml" in done.out
    assert "nmtkit train corpora/pairs/pairs.yaml" in done.out
    assert "pairs.txt is not verified: it is a test" in done.err
    card = json.loads((tmp_path / "corpora/pairs/card.json").read_text())
    assert card["command"] == "nmtkit fetch --catalogue mine.yaml pairs --yes"
    assert f"{card['counts']['train']['pairs']}" in done.out
    again = succeeded(downloaded("pairs"))  # nothing is asked where nothing is done
    assert "already exists" in again.err
    assert again.out == done.out
    before = (tmp_path / "corpora/pairs/train.en").stat().st_ino
    succeeded(downloaded("pairs", "--overwrite", "--yes"))
    assert (tmp_path / "corpora/pairs/train.en").stat().st_ino != before
    done = succeeded(downloaded("pairs", "--yes", "--to", "my data/pairs"))
    assert "nmtkit train 'my data/pairs/pairs.yaml'" in done.out
    assert (tmp_path / "my data/pairs/train.en").is_file()


def test_corpora_are_listed_and_shown(nmtkit: Command) -> None:
    done = succeeded(nmtkit("--list"))
    rows = [line.split()[0] for line in done.out.splitlines() if line.strip()]
    for name in (
        "pairs",
        "libreoffice-help-{src}-{tgt}",
        "debian-descriptions-summary",
        "tatoeba-en-de",
        "xsum",
    ):
        assert name in rows
    assert "asks for nothing" not in done.out  # the list has only the licence's name
    assert "CC0" in done.out
    done = succeeded(nmtkit("libreoffice-help-en-de", "--show"))
    assert "Debian package libreoffice-help-de" in done.out
    assert "values of {tgt}: " in done.out


def test_fetching_needs_no_torch() -> None:
    assert (
        not {"torch", "matplotlib", "sacrebleu", "sentencepiece"}
        & traced("fetch", "--list").imported
    )
