"""Every corpus of the catalogue that has an address, fetched whole from a web server of our own with its layout."""

import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from nmtkit.core.formats import load_yaml
from nmtkit.datasets.catalogue import Catalogue, Corpus
from nmtkit.datasets.fetching import fetch
from nmtkit.datasets.sources import UrlSource
from tests.datasets.corpus_files import published
from tests.datasets.debian_archive import fetch_context
from tests.datasets.layouts import LAYOUTS, Layout
from tests.datasets.web_server import Site
from tests.support.commands import json_lines, lines_in

CATALOGUE = Catalogue()
DATA = Path(os.environ.get("NMTKIT_DATA", Path(__file__).parents[3] / "shared" / "data"))
MULTI30K = DATA / "multi30k" / "raw"


def of_the_web() -> list[str]:
    """The entries whose files are had by address."""
    names = []
    for name in CATALOGUE.names():
        sources = CATALOGUE.get(CATALOGUE.examples(name)[0]).entry.sources
        if all(isinstance(source, UrlSource) for source in sources):
            names.append(name)
    return names


def fetched_to(folder: Path, corpus: Corpus) -> tuple[dict[str, int], list[str]]:
    """Fetches a corpus to a folder; the pairs of each split, and what was told."""
    context, said = fetch_context(folder.with_name("downloads"))
    card = fetch(corpus, folder, context, f"nmtkit fetch {corpus.name}")
    return {split: count["pairs"] for split, count in card["counts"].items()}, said


def served(corpus: Corpus, layout: Layout, site: Site, keep_sums: bool = False) -> Corpus:
    """The corpus as the catalogue has it, but that its addresses lead to `site` and its sums are of the small files."""
    sources = []
    for source in corpus.entry.sources:
        parts = urlsplit(source.url)
        file = site.folder / f"{parts.hostname}{parts.path}"
        file.parent.mkdir(parents=True, exist_ok=True)
        content = published(file, layout.files[file.name]).read_bytes()
        changed = {"url": source.url.replace(f"{parts.scheme}:/", site.base)}
        if not keep_sums:
            changed |= (
                {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                if source.sha256
                else {"size": None}
            )
        sources.append(source.changed(changed))
    return replace(corpus, entry=corpus.entry.model_copy(update={"sources": sources}))


def last_number(text: str) -> str:
    return re.findall(r"\d+", text)[-1]


def pairs_in(folder: Path, split: str, corpus: Corpus) -> list[tuple[str, str]]:
    """The pairs of a split as they were written."""
    if corpus.entry.task == "summarization":
        rows = json_lines((folder / f"{split}.jsonl").read_text(encoding="utf-8"))
        return [(row["article"], row["summary"]) for row in rows]
    sides = [
        lines_in(folder / f"{split}.{language}")
        for language in (corpus.entry.src, corpus.entry.tgt)
    ]
    return list(zip(*sides, strict=True))


def test_every_entry_with_addresses_has_a_layout_here() -> None:
    for entry in of_the_web():
        start = entry.partition("{")[0]
        names = (
            CATALOGUE.examples(entry)
            if start != "opus-"
            else [name for name in LAYOUTS if name.startswith(start)]
        )
        assert set(names) & LAYOUTS.keys(), entry
    assert len(of_the_web()) == 27


@pytest.mark.parametrize("name", LAYOUTS)
def test_fetched_from_a_server_with_its_layout(name: str, tmp_path: Path, site: Site) -> None:
    layout = LAYOUTS[name]
    corpus = served(CATALOGUE.get(name), layout, site)
    folder = tmp_path / "there"
    counts, said = fetched_to(folder, corpus)

    assert not [one for one in site.asked if one.status != 200]
    assert len(site.asked) == len(layout.files) == len(corpus.entry.sources)
    if unsplit := layout.read.get("", 0):
        assert sum(counts.values()) == sum(layout.read.values())
        assert counts["valid"] > 0
        assert 0.9 * unsplit < counts["train"] < unsplit
    else:
        assert counts == layout.read
    for split, count in counts.items():
        pairs = pairs_in(folder, split, corpus)
        assert len(pairs) == count
        for src, tgt in pairs:
            assert last_number(src) == last_number(tgt)
            if corpus.entry.task == "translation":
                assert f"In {corpus.entry.src} " in src
                assert f"In {corpus.entry.tgt} " in tgt
    for split, count in corpus.entry.expected.items():
        assert (
            f"the published {split} split has {layout.read[split]:,} pairs, but {count:,} were expected"
            in said
        )
    for source in corpus.entry.sources:
        told = f"{source.file_name} is not verified: {source.no_checksum}"
        assert any(line.startswith(told) for line in said) == (not source.sha256)
    recipe, _ = load_yaml(folder / f"{name}.yaml")
    assert counts.keys() <= recipe["data"].keys()


@pytest.mark.skipif(
    not MULTI30K.is_dir(), reason=f"{MULTI30K} is not on this machine; set NMTKIT_DATA"
)
def test_the_real_files_of_multi30k_have_the_sums_and_the_counts_of_the_catalogue(
    tmp_path: Path, site: Site
) -> None:
    files = {path.name: path.read_bytes() for path in MULTI30K.glob("*.gz")}
    corpus = served(CATALOGUE.get("multi30k-en-de"), Layout(files, {}), site, keep_sums=True)
    counts, said = fetched_to(tmp_path / "there", corpus)
    assert counts == corpus.entry.expected
    assert not [line for line in said if "expected" in line or "is not verified" in line]
    assert pairs_in(tmp_path / "there", "train", corpus)[0] == (
        "Two young, White males are outside near many bushes.",
        "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
    )
