"""The catalogue: names with placeholders, advice on typing errors, faults with their line, and nmtkit's own entries."""

from pathlib import Path

import pytest

from nmtkit import config
from nmtkit.core.errors import RecipeError
from nmtkit.datasets.catalogue import Catalogue, FilterConfig

PLAIN = """\
ours:
  title: Our own
  src: en
  tgt: de
  size: two pairs
  licence: none
  sources:
    - {kind: url, url: "https://example.org/a%20b.zip", no_checksum: it is only an example}
  read: {kind: tab_separated, text: "a b.zip:a.txt"}
"""
FAMILY = """\
ours-{corpus}-{src}-{tgt}:
  title: "{corpus} from {src} to {tgt}"
  src: "{src}"
  tgt: "{tgt}"
  parameters:
    corpus: {example: Books}
    src: [en, de, fr]
    tgt: {values: {en: eng, de: deu, fr: fra}}
  size: unknown
  licence: see {corpus}
  sources:
    - {kind: url, url: "https://example.org/{corpus}/{first}-{second}/{their_tgt}.zip",
       no_checksum: any file of that form}
  read: {kind: tab_separated, text: "{their_tgt}.zip:{src}.txt"}
"""


def load(folder: Path, text: str) -> Catalogue:
    path = folder / "catalogue.yaml"
    path.write_text(text, encoding="utf-8")
    return Catalogue(path)


def fault_of(folder: Path, text: str, name: str) -> str:
    with pytest.raises(RecipeError) as fault:
        load(folder, text).get(name)
    return str(fault.value)


def test_an_entry_is_read_with_its_defaults(tmp_path: Path) -> None:
    corpus = load(tmp_path, PLAIN).get("ours")
    assert (corpus.name, corpus.entry.task, corpus.entry.filter) == (
        "ours",
        "translation",
        FilterConfig(),
    )
    (source,) = corpus.entry.sources
    assert source.file_name == "a b.zip"
    assert source.label() == "https://example.org/a%20b.zip"


def test_values_stand_for_placeholders_everywhere(tmp_path: Path) -> None:
    corpus = load(tmp_path, FAMILY).get("ours-Tatoeba.2-fr-de")
    assert corpus.entry.title == "Tatoeba.2 from fr to de"
    assert corpus.entry.sources[0].label() == "https://example.org/Tatoeba.2/de-fr/deu.zip"
    assert corpus.entry.read.model_dump()["text"] == "deu.zip:fr.txt"


def test_examples_are_names_that_can_be_fetched(tmp_path: Path) -> None:
    known = load(tmp_path, FAMILY)
    examples = known.examples("ours-{corpus}-{src}-{tgt}")
    assert examples == [
        f"ours-Books-{pair}" for pair in ("en-de", "en-fr", "de-en", "de-fr", "fr-en", "fr-de")
    ]
    assert {known.get(name).name for name in examples} == set(examples)


def test_names_that_are_not_there(tmp_path: Path) -> None:
    assert "did you mean 'ours'?" in fault_of(tmp_path, PLAIN, "our")
    assert "did you mean 'ours-Books-en-de'?" in fault_of(tmp_path, FAMILY, "ours-Books-en_de")
    assert "did you mean 'ours-Books-en-fr'?" in fault_of(tmp_path, FAMILY, "ours-Books-en-fx")
    assert "source and target are the same language" in fault_of(tmp_path, FAMILY, "ours-a-en-en")
    assert "`nmtkit fetch --list`" in fault_of(tmp_path, PLAIN, "nothing like it")


def test_an_entry_of_the_user_takes_the_place_of_ours(tmp_path: Path) -> None:
    for name in ("tatoeba-en-de", "tatoeba-en-fr"):  # an entry of its own, and one of a family
        assert load(tmp_path, PLAIN.replace("ours:", f"{name}:")).get(name).entry.title == "Our own"
    assert load(tmp_path, PLAIN).names() == sorted([*Catalogue().names(), "ours"])


FAULTS = {
    "unknown-key": (PLAIN.replace("title:", "titel:"), "line 2: unknown key `ours.titel`; did you mean 'title'?"),
    "missing": (PLAIN.replace("  licence: none\n", ""), "line 1: `ours.licence` is missing"),
    "kind-of-source": (PLAIN.replace("kind: url", "kind: ftp"), "line 8: `ours.sources.0.kind`: unknown name 'ftp'"),
    "kind-of-reader": (PLAIN.replace("tab_sep", "tap_sep"), "line 9: `ours.read.kind`: unknown name 'tap_separated'"),
    "setting-of-reader": (PLAIN.replace("text:", "txt:"), "line 9: unknown key `ours.read.txt`"),
    "no-sum": (PLAIN.replace(", no_checksum: it is only an example", ""), "state in `no_checksum` why there is none"),
    "bad-sum": (PLAIN.replace("no_checksum: it is only an example", "sha256: 12ab"), "[0-9a-f]{64}"),
    "no-address": (PLAIN.replace("https://example.org/", "/etc/"), "String should match pattern '^https?://"),
    "same-language": (PLAIN.replace("tgt: de", "tgt: en"), "source and target are the same language"),
    "shares": (PLAIN + "  split: {valid: 0.5, test: 0.5}\n", "leave nothing for train"),
    "placeholder": (FAMILY.replace("see {corpus}", "see {corpse}"), "line 1: unknown placeholder {corpse} in"),
    "parameter": (FAMILY.replace("    corpus: {example: Books}\n", ""), "must define exactly the placeholders"),
    "no-values": (FAMILY.replace("{example: Books}", "{pattern: x}"), "give an `example`"),
    "name": (PLAIN.replace("ours:", "../ours:"), "line 1: '../ours' is not a valid corpus name"),
    "nothing": ("ours: 3\n", "line 1: expected the settings of a corpus"),
    "null-as-name": (PLAIN.replace("ours:", "null:"), "None is not a valid corpus name"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_faults_are_told_with_their_place(tmp_path: Path, case: str) -> None:
    text, wanted = FAULTS[case]
    said = fault_of(tmp_path, text, "ours-Books-en-de" if "{corpus}" in text else "ours")
    assert wanted in said
    assert "catalogue.yaml" in said


def test_no_name_leads_out_of_its_folder(tmp_path: Path) -> None:
    family = FAMILY.replace("corpus: {example: Books}", 'corpus: {example: Books, pattern: ".*"}')
    assert load(tmp_path, family).get("ours-Books-de-en").name == "ours-Books-de-en"
    assert "is not a valid corpus name" in fault_of(tmp_path, family, "ours-/../../x-de-en")
    for name in ("..", "../ours", "/ours", ".ours", "-ours", "x" * 300):
        assert "line 1: " in fault_of(tmp_path, PLAIN.replace("ours:", f'"{name}":', 1), "any")
    for place in ("file: ..", "file: ../x", 'file: "a/b"'):
        text = PLAIN.replace("no_checksum:", f"{place}, no_checksum:")
        assert "not a valid name" in fault_of(tmp_path, text, "ours")
    text = PLAIN.replace("a%20b.zip", "%2e%2e")
    (source,) = load(tmp_path, text).get("ours").entry.sources
    assert source.file_name == "download"


@pytest.mark.parametrize("pattern", ["(", "[a", "(?P<src>x)"])
def test_a_pattern_that_is_none(tmp_path: Path, pattern: str) -> None:
    text = FAMILY.replace(
        "corpus: {example: Books}", f'corpus: {{example: Books, pattern: "{pattern}"}}'
    )
    assert "pattern" in fault_of(tmp_path, text, "ours-Books-de-en")


OURS = Catalogue()


@pytest.mark.parametrize("name", OURS.names())
def test_every_entry_of_ours_is_valid_and_complete(name: str) -> None:
    """All families with their first and last value; each has what the user is shown before a download."""
    examples = OURS.examples(name)
    assert examples
    for whole in {examples[0], examples[-1]}:
        entry = OURS.get(whole).entry
        assert entry.homepage.startswith("http")
        assert entry.licence
        assert entry.size
        assert entry.sources
        if entry.recipe and not entry.parameters:
            assert entry.recipe in config.bundled()


def test_names_do_not_belong_to_two_families() -> None:
    whole = [example for name in OURS.names() if "{" in name for example in OURS.examples(name)]
    assert len(whole) == len(set(whole))


def test_the_recipes_that_name_a_corpus_find_it() -> None:
    """`nmtkit fetch NAME` and `nmtkit train RECIPE` are all there is to do: the recipe looks where fetch puts NAME."""
    found = 0
    for name in config.bundled():
        folder = Path(config.load(name).data.folder)
        if folder.parent.name == "corpora":
            found += 1
            assert OURS.get(folder.name).entry.recipe == name
    assert found >= 3
