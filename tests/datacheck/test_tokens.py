"""What only a tokenizer can tell; the numbers are those of preprocessing."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from nmtkit.config import load
from nmtkit.data.text.checking import DataReport
from nmtkit.data.text.config import DataConfig, SplitFiles
from nmtkit.data.text.faults import UNSEEN
from nmtkit.data.text.reading import read_blocks, read_pairs
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.datacheck import tokens
from nmtkit.datacheck.findings import Diagnosis, SplitDiagnosis
from nmtkit.datacheck.tokens import TokenReport
from nmtkit.experiment.preprocessing import preprocess
from nmtkit.runs.run import Run
from tests.datacheck.real_looking import write_pairs
from tests.support.learned_tokenizers import learn_tokenizers

TRAIN = [
    ("the cat sleeps", "die Katze schläft"),
    ("the dog sleeps", "der Hund schläft"),
    ("a cat and a dog", "eine Katze und ein Hund"),
    ("the cat sleeps", "die Katze schläft"),
    ("", "leer"),
    (
        "one two three four five six seven eight nine ten",
        "eins zwei drei vier fünf sechs sieben acht neun zehn",
    ),
    ("yes", "ja ja ja ja ja ja ja"),
    ("the house of Anna", "das Haus von Anna"),
    ("the house of Berta", "das Haus von Berta"),
]
VALID = [
    ("the dog of Xerxes", "der Hund von Xerxes"),
    ("the cat sleeps", "die Katze schläft"),
    ("the dog sleeps", "der Hund schlummert"),
    ("one two three four five six seven eight nine ten", "viele Zahlen"),
]
WORDS = TokenizerConfig(kind="word", vocab_size=40, joint=False)


def look(
    config: DataConfig, settings: TokenizerConfig
) -> tuple[TokenReport, Diagnosis, Tokenizers]:
    tokenizers = learn_tokenizers(settings, read_pairs(config.train))
    diagnosis = Diagnosis({name: SplitDiagnosis(name) for name in config.splits()})
    return tokens.count_tokens(config, tokenizers, diagnosis, "Learned."), diagnosis, tokenizers


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    return DataConfig(
        train=write_pairs(tmp_path, "train", TRAIN),
        valid=write_pairs(tmp_path, "valid", VALID),
        max_length=8,
        max_ratio=3.0,
    )


@pytest.mark.parametrize("kind", ["word", "bpe"])
@pytest.mark.parametrize("over_long", ["drop", "truncate"])
def test_the_numbers_are_those_of_preprocessing(kind: str, over_long: str, tmp_path: Path) -> None:
    train, valid = write_pairs(tmp_path, "train", TRAIN * 5), write_pairs(tmp_path, "valid", VALID)
    data = {"folder": "", "train": train.model_dump(), "valid": valid.model_dump(), "test": None}
    changes = [
        f"data={json.dumps(data)}",
        f"data.over_long={over_long}",
        "data.max_length=8",
        "data.max_ratio=2.0",
    ]
    changes += ["data.drop_duplicates=true", f"tokenizer.kind={kind}", "tokenizer.vocab_size=100"]
    loaded = load("demo", changes)
    run = Run.create(loaded, str(tmp_path / "run"))
    assert [type(event) for event in preprocess(run)] == [Diagnosis, DataReport]
    tokenizers = run.load_tokenizers()
    diagnosis = Diagnosis({name: SplitDiagnosis(name) for name in ("train", "valid")})
    counts = tokens.count_tokens(loaded.storage_config, tokenizers, diagnosis, "The run's.")
    written = json.loads(run.folder.report.read_text(encoding="utf-8"))["splits"]
    assert asdict(counts.data)["splits"] == written
    assert {"empty side", "duplicate", "over-long", "length ratio"} <= set(
        written["train"]["findings"]
    )
    assert diagnosis.splits["valid"].tgt.unknown == written["valid"]["tgt_unknown"]


def test_unknown_words_and_those_that_can_be_copied(config: DataConfig) -> None:
    _, diagnosis, tokenizers = look(config, WORDS)
    valid = diagnosis.splits["valid"]
    unknown = {
        word
        for src, _ in VALID
        for word in src.split()
        if f"▁{word}" not in tokenizers.src.vocabulary
    }
    assert unknown == {"Xerxes"}
    assert valid.src.unknown == 1
    assert valid.tgt.unknown == 4  # Xerxes, schlummert, viele, Zahlen
    assert valid.tgt.copyable == 1  # Xerxes
    # of the pairs without an empty side
    assert diagnosis.splits["train"].src.tokens == {3: 3, 5: 1, 10: 1, 1: 1, 4: 2}
    assert valid.tgt.tokens == {4: 1, 3: 2, 2: 1}


def test_what_of_the_vocabulary_occurs(config: DataConfig) -> None:
    """Words of pairs that are left out are in the vocabulary, but never trained."""
    report, _, tokenizers = look(config, WORDS)
    missing = {
        "leer",
        *["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "ja"],
    }
    assert report.unused_entries["tgt"] == {
        "unused": len(missing),
        "of": len(tokenizers.tgt.vocabulary) - 4,
    }


def test_what_is_left_out_is_found_at_its_line(config: DataConfig, tmp_path: Path) -> None:
    valid = write_pairs(tmp_path, "valid", VALID + VALID[3:])
    report, diagnosis, _ = look(config.model_copy(update={"valid": valid}), WORDS)
    train = diagnosis.splits["train"].findings
    assert {name: (finding.count, finding.places[0].line) for name, finding in train.items()} == {
        "over-long": (1, 6),
        "token-ratio": (1, 7),
    }
    assert "10 and 10 tokens, dropped" in train["over-long"].places[0].text
    assert diagnosis.splits["valid"].findings["over-long"].count == 2
    sheet = report.tables(diagnosis)[0]
    assert ("train", "over-long", "1", "11.1%", "dropped") in sheet.rows
    assert ("train", "kept", "6", "66.7%", "") in sheet.rows


def test_characters_that_train_never_shows(config: DataConfig) -> None:
    _, diagnosis, _ = look(config, WORDS)
    finding = diagnosis.splits["valid"].findings["unseen-character"]
    assert (Path(finding.places[0].file).name, finding.places[0].line) == ("valid.en", 1)
    # the first pair once, though both sides have an X
    assert [place.line for place in finding.places] == [1, 3, 4]
    assert finding.count == 3


def test_a_character_counts_in_the_form_that_the_tokenizer_makes_of_it(tmp_path: Path) -> None:
    train = write_pairs(tmp_path, "train", [("find it", "find es"), ("a b", "a b")])
    valid = write_pairs(tmp_path, "valid", [("ﬁnd it", "ＡＢ")])  # a ligature, full-width letters
    for lowercase, unseen in ((False, ["Ａ Ｂ in: ＡＢ"]), (True, [])):
        settings = WORDS.model_copy(update={"lowercase": lowercase})
        _, diagnosis, _ = look(DataConfig(train=train, valid=valid), settings)
        findings = diagnosis.splits["valid"].findings.values()
        assert [
            place.text for one in findings if one.kind is UNSEEN for place in one.places
        ] == unseen


def test_places_count_in_each_file(tmp_path: Path) -> None:
    one, two = write_pairs(tmp_path, "one", TRAIN[:5]), write_pairs(tmp_path, "two", TRAIN[5:])
    both = SplitFiles(src=one.src + two.src, tgt=one.tgt + two.tgt)
    _, diagnosis, _ = look(DataConfig(train=both, max_length=8, max_ratio=3.0), WORDS)
    place = diagnosis.splits["train"].findings["token-ratio"].places[0]
    assert (Path(place.file).name, place.line) == ("two.en", 2)


def test_a_source_without_targets_is_counted(tmp_path: Path, config: DataConfig) -> None:
    test = SplitFiles(src=write_pairs(tmp_path, "test", [("the cat", "")]).src)
    report, diagnosis, _ = look(config.model_copy(update={"test": test}), WORDS)
    assert diagnosis.splits["test"].src.tokens == {2: 1}
    assert report.data.splits["test"].kept == 1


def test_a_quick_tokenizer_is_as_the_settings_say(config: DataConfig) -> None:
    settings = TokenizerConfig(kind="bpe", vocab_size=60)
    sample = tokens.quick_sample(settings)
    for block in read_blocks("train", config.train):
        sample.add_block(block)
    learned = tokens.train_on_sample(settings, sample, config.train)
    assert len(learned.src.vocabulary) == 60
