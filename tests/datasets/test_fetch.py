"""Fetching whole corpora from a server of our own: what lies in the folder, and what a failure leaves behind."""

import hashlib
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nmtkit import config
from nmtkit.core.errors import NmtkitError
from nmtkit.data.text.reading import read_pairs
from nmtkit.datasets import fetching as module
from nmtkit.datasets.catalogue import Catalogue, Corpus
from nmtkit.datasets.download import FetchContext
from nmtkit.datasets.fetching import cache_folder, fetch, find_fetched
from tests.datasets.corpus_files import refused, zipped
from tests.datasets.web_server import Site

LINES = (
    "".join(f"This is sentence {n}.\tDas ist Satz {n}.\n" for n in range(300)) + "Same.\tSame.\n"
)


@dataclass
class Desk:
    """A corpus on the server, where it is fetched to, and what was told."""

    site: object
    folder: Path
    said: list[str] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)

    def corpus(self, lines: str = LINES, vouch: bool = True, **changes: object) -> Corpus:
        content = zipped({"pairs.txt": lines})
        source = {"kind": "url", "url": self.site.put("pairs.zip", content)}
        source |= (
            {"sha256": hashlib.sha256(content).hexdigest()}
            if vouch
            else {"no_checksum": "it changes"}
        )
        entry = {
            "title": "Pairs of a test",
            "src": "en",
            "tgt": "de",
            "size": "301 pairs",
            "licence": "none",
            "sources": [source],
            "read": {"kind": "tab_separated", "text": "pairs.zip:pairs.txt"},
            "filter": {"keep_identical": False},
            "split": {"valid": 0.1, "test": 0.1},
            **changes,
        }
        catalogue = self.folder.parent / "catalogue.yaml"
        catalogue.write_text(json.dumps({"pairs": entry}))
        return Catalogue(catalogue).get("pairs")

    def fetch(self, corpus: Corpus) -> dict[str, Any]:
        work = FetchContext(
            cache_folder(), self.said.append, lambda there, total: None, self.counted.append
        )
        return fetch(corpus, self.folder, work, "nmtkit fetch pairs")

    def left(self) -> set[str]:
        """The names beside the corpus's folder, hidden ones as well."""
        return (
            {path.name for path in self.folder.parent.iterdir()}
            if self.folder.parent.exists()
            else set()
        )


@pytest.fixture
def desk(site: Site, tmp_path: Path) -> Desk:
    (tmp_path / "corpora").mkdir()
    return Desk(site, tmp_path / "corpora" / "pairs")


def test_the_folder_has_text_a_recipe_that_finds_it_and_a_card_of_what_was_left_out(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card = desk.fetch(desk.corpus())
    names = {f"{split}.{side}" for split in ("train", "valid", "test") for side in ("en", "de")}
    assert {path.name for path in desk.folder.iterdir()} == names | {
        "card.json",
        "CARD.md",
        "pairs.yaml",
    }
    monkeypatch.chdir(tmp_path)  # the recipe works from anywhere
    loaded = config.load(desk.folder / "pairs.yaml")
    counts = {
        split: sum(1 for _ in read_pairs(files)) for split, files in loaded.data.splits().items()
    }
    assert counts == {name: count["pairs"] for name, count in card["counts"].items()}
    assert sum(counts.values()) == 300
    assert loaded.name == "pairs"
    assert desk.counted[-1] == counts["train"]

    content = zipped({"pairs.txt": LINES})
    assert card == json.loads((desk.folder / "card.json").read_text(encoding="utf-8"))
    assert card["dropped"] == {"both sides identical": 1}
    file = {
        "origin": desk.site.url("pairs.zip"),
        "file": "pairs.zip",
        "version": "",
        "bytes": len(content),
    }
    assert card["sources"] == [
        {**file, "sha256": hashlib.sha256(content).hexdigest(), "verified": True}
    ]
    for name, digest in card["files"].items():
        assert hashlib.sha256((desk.folder / name).read_bytes()).hexdigest() == digest
    assert len(card["files"]) == 6
    text = (desk.folder / "CARD.md").read_text(encoding="utf-8")
    shown = (
        "# pairs: Pairs of a test",
        "licence: none",
        "command: nmtkit fetch pairs",
        "both sides identical: 1",
    )
    assert all(line in text for line in shown)


@pytest.mark.parametrize("name", ["cnndm-pointer-generator", "no-such-recipe"])
def test_a_recipe_of_ours_is_extended_and_one_that_does_not_exist_is_made_by_size(
    desk: Desk, name: str
) -> None:
    """That of CNN/DailyMail names folders of stories; the fetched corpus is JSON lines, without a test set here."""
    changes = {"task": "summarization", "tgt": "en", "recipe": name, "split": {"valid": 0.1}}
    desk.fetch(desk.corpus(**changes))
    loaded = config.load(desk.folder / "pairs.yaml")
    extended = name == "cnndm-pointer-generator"
    assert loaded.name == (name if extended else "pairs")  # one training has one name, and one run
    assert ("preset" in (desk.folder / "pairs.yaml").read_text(encoding="utf-8").lower()) == (
        not extended
    )
    assert {name: files.jsonl for name, files in loaded.data.splits().items()} == {
        name: [str(desk.folder / f"{name}.jsonl")] for name in ("train", "valid")
    }


def test_a_second_fetch_downloads_only_what_was_damaged_in_the_cache(desk: Desk) -> None:
    corpus = desk.corpus()
    desk.fetch(corpus)
    first = (desk.folder / "train.en").read_bytes()
    assert find_fetched(corpus, desk.folder) is not None
    desk.fetch(corpus)
    assert len(desk.site.asked) == 1
    assert (desk.folder / "train.en").read_bytes() == first
    assert desk.left() == {"pairs", "catalogue.yaml"}
    (download,) = cache_folder().rglob("pairs.zip")
    download.write_bytes(b"x" + download.read_bytes()[1:])
    desk.fetch(corpus)
    assert len(desk.site.asked) == 2


def test_a_file_put_into_the_cache_by_hand_is_taken(desk: Desk) -> None:
    """For machines without a network: the message about it says where the file belongs."""
    corpus = desk.corpus()
    desk.site.failures = [(404, {})]
    refused(desk.fetch, corpus)
    (place,) = cache_folder().iterdir()
    (place / "pairs.zip").write_bytes(zipped({"pairs.txt": LINES}))
    desk.fetch(corpus)
    assert len(desk.site.asked) == 1


def test_without_a_sum_it_is_said(desk: Desk) -> None:
    desk.fetch(desk.corpus(vouch=False))
    assert any("pairs.zip is not verified: it changes" in text for text in desk.said)
    assert "verified: false" in (desk.folder / "CARD.md").read_text(encoding="utf-8")


def test_a_failure_leaves_what_was_there_and_nothing_half(desk: Desk) -> None:
    desk.fetch(desk.corpus())
    before = {path.name: path.read_bytes() for path in desk.folder.iterdir()}
    assert "line 302" in refused(desk.fetch, desk.corpus(LINES + "a line without a tab\n"))
    assert {path.name: path.read_bytes() for path in desk.folder.iterdir()} == before
    assert desk.left() == {"pairs", "catalogue.yaml"}


@pytest.mark.parametrize(
    "fault",
    [KeyboardInterrupt, OSError(28, "No space left on device")],
    ids=["ctrl-c", "full-disk"],
)
def test_stopped_in_the_middle_nothing_is_left(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, fault: BaseException | type[BaseException]
) -> None:
    def stop(*given: object) -> None:
        raise fault

    monkeypatch.setattr(module, "write_card", stop)
    with pytest.raises((KeyboardInterrupt, NmtkitError)) as raised:
        desk.fetch(desk.corpus())
    assert desk.left() == {"catalogue.yaml"}
    if isinstance(fault, OSError):
        assert "No space left on device" in str(raised.value)


def test_what_else_lies_there_is_not_touched(desk: Desk) -> None:
    corpus = desk.corpus()
    desk.folder.mkdir()
    assert find_fetched(corpus, desk.folder) is None  # an empty folder is no obstacle
    (desk.folder / "thesis.txt").write_text("years of work")
    assert "is not a fetched corpus" in refused(find_fetched, corpus, desk.folder)
    assert "is not a fetched corpus" in refused(desk.fetch, corpus)
    assert (desk.folder / "thesis.txt").read_text() == "years of work"


def test_files_of_the_user_beside_the_corpus_stay(desk: Desk) -> None:
    desk.fetch(desk.corpus())
    (desk.folder / "mine.yaml").write_text("extends: pairs.yaml")
    (desk.folder / "notes").mkdir()
    desk.fetch(desk.corpus(split={"valid": 0.1}))
    assert (desk.folder / "mine.yaml").read_text() == "extends: pairs.yaml"
    assert (desk.folder / "notes").is_dir()
    assert not (desk.folder / "test.en").exists()  # of the corpus as it was
    assert desk.left() == {"pairs", "catalogue.yaml"}


def test_a_folder_that_has_another_corpus_or_a_part_of_one(desk: Desk) -> None:
    corpus = desk.corpus()
    desk.fetch(corpus)
    (desk.folder / "valid.de").unlink()
    assert "valid.de" in refused(find_fetched, corpus, desk.folder)
    other = Corpus("other", corpus.entry)
    assert "already contains the corpus pairs" in refused(find_fetched, other, desk.folder)
    for text in ("{", "[" * 3000):
        (desk.folder / "card.json").write_text(text)
        assert "card.json: cannot read the file" in refused(find_fetched, corpus, desk.folder)


@pytest.mark.parametrize("cache", ["", "relative"])
def test_downloads_are_kept_where_caches_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert cache_folder() == tmp_path / ".cache/nmtkit/downloads"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere/nmtkit/downloads"


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as a number."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a KeyError for every number
    assert cache_folder().is_relative_to(tempfile.gettempdir())
