"""Settings for those who bring only text: by the size of the corpus, valid for every text, and with their reasons."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from nmtkit import recipe
from nmtkit.data.reading import Example
from nmtkit.data.tokenizer import TokenizerConfig, learn
from nmtkit.errors import DataError, RecipeError
from nmtkit.experiment import presets
from nmtkit.experiment.presets import CorpusSize, Counts, Text
from nmtkit.experiment.presets.writing import in_words
from nmtkit.settings import parse

DATA = {"train": {"src": "a.en", "tgt": "a.de"}, "valid": {"src": "b.en", "tgt": "b.de"}}


def side(words: int, length: int = 20, characters: int = 90, spaced: bool = True) -> Text:
    """A side of ordinary text: a word in twenty is a new one."""
    return Text(words, min(200_000, words // 20 + 1), characters, min(characters, 80), spaced, length)


def corpus(pairs: int, words_a_line: int = 13, tgt: Text | None = None, one_script: bool = True) -> CorpusSize:
    text = side(pairs * words_a_line)
    return CorpusSize(pairs, text, tgt or text, side(2 * pairs * words_a_line), one_script)


MULTI30K = CorpusSize(29_000, side(345_020), side(322_383), side(667_403), one_script=True)
WMT14 = corpus(4_500_000, 25)
SIZES = {"50 pairs": corpus(50), "multi30k": MULTI30K, "wmt14": WMT14}


def counted(pairs: list[tuple[str, str]]) -> CorpusSize:
    counts = Counts()
    for src, tgt in pairs:
        counts.add(src, tgt)
    return counts.size()


def test_what_is_counted() -> None:
    size = counted([("the cat sat", "die Katze"), ("the ﬁg", "Hai"), ("", "leer"), (" ", ""), ("leer", "")])
    assert size.pairs == 2
    assert (size.src.words, size.src.distinct_words, size.src.length) == (5, 4, 3)
    assert size.src.characters == len(set("thecatsatfig"))  # the ligature is two letters, as for the tokenizer
    assert (size.tgt.words, size.tgt.distinct_words) == (3, 3)
    assert size.both.words == 8
    assert size.both.distinct_words == 7
    assert size.src.spaced


def test_the_length_is_that_of_nearly_all_lines() -> None:
    lines = [" ".join(["a"] * words) for words in [5] * 95 + [50] * 5]
    assert counted([(line, "b") for line in lines]).src.length == 5


def test_frequent_characters_make_up_nearly_all_text() -> None:
    text = "a" * 9_000 + "b" * 998 + "cd"
    size = counted([(text, "x")])
    assert (size.src.characters, size.src.frequent_characters) == (4, 2)


def test_text_without_spaces_is_counted_by_characters() -> None:
    size = counted([("the cat sat on the mat today", "猫今天坐在垫子上不想起来因为外面太冷了所以")] * 10)
    assert size.src.spaced
    assert not size.tgt.spaced
    assert size.tgt.words == round(10 * 21 / 1.7)
    assert not size.one_script


@pytest.mark.parametrize(
    ("src", "tgt", "same"),
    [
        ("the old woman reads a book", "die alte Frau liest ein Buch", True),
        ("the old woman reads a book", "старая женщина читает книгу", False),
        ("the old woman reads a book", "η γριά διαβάζει ένα βιβλίο by Woolf", False),
        ("1 2 3", "4 5 6", True),
    ],
    ids=["german", "russian", "greek", "figures"],
)
def test_scripts(src: str, tgt: str, same: bool) -> None:
    assert counted([(src, tgt)]).one_script == same


def test_nothing_to_learn_from() -> None:
    with pytest.raises(DataError, match="no pair with text on both sides"):
        counted([("a", ""), ("", "b")])


def test_large_corpora_are_looked_at_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs and words are counted; the kinds of words stay few enough for any memory."""
    monkeypatch.setattr(Counts, "_all_up_to", 100)
    size = counted([(f"w{number} x", "y") for number in range(2_000)])
    assert size.pairs == 2_000
    assert size.src.words == 4_000
    assert 200 < size.src.distinct_words < 600


# ------------------------------------------------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    ("size", "gpu", "name"),
    [
        (corpus(50), False, "tiny"),
        (corpus(4_999), True, "tiny"),
        (MULTI30K, False, "small"),
        (MULTI30K, True, "small"),
        (WMT14, False, "small"),
        (WMT14, True, "base"),
    ],
    ids=["50", "4999-gpu", "29k", "29k-gpu", "4.5m", "4.5m-gpu"],
)
def test_the_preset_follows_corpus_and_device(size: CorpusSize, gpu: bool, name: str) -> None:
    for task in presets.TASKS:
        preset = presets.choose(task, size, gpu=gpu)
        assert preset.name == name
        assert f"{size.pairs:,} pairs" in preset.reasons[0].because


def test_at_the_size_of_multi30k_it_is_the_measured_recipe() -> None:
    measured = recipe.load("multi30k-en-de-transformer")
    preset = presets.choose("translation", MULTI30K)
    groups = preset.groups
    assert groups["tokenizer"]["vocab_size"] == measured.tokenizer.vocab_size
    model = measured.model.model_dump()
    assert all(model[key] == value for key, value in groups["model"].items())
    assert groups["batch"] == {"batch_tokens": measured.batch.batch_tokens}
    training = groups["training"]
    assert training["max_updates"] == pytest.approx(measured.training.max_updates, rel=0.1)
    for key in ("lr", "betas", "label_smoothing", "clip_norm"):
        assert training[key] == getattr(measured.training, key)
    assert preset.minutes is None  # nobody has measured this machine


def test_at_the_size_of_wmt14_base_trains_as_long_as_the_paper() -> None:
    preset = presets.choose("translation", WMT14, gpu=True)
    assert (preset.groups["model"]["hidden_size"], preset.groups["model"]["encoder_layers"]) == (512, 6)
    assert preset.groups["training"]["max_updates"] == pytest.approx(100_000, rel=0.15)
    assert preset.groups["training"]["schedule"] == {"kind": "inverse_sqrt", "warmup": 4000}
    assert preset.groups["model"]["dropout"] == 0.1
    assert preset.groups["tokenizer"]["vocab_size"] == 32_000
    assert preset.minutes is None


def test_more_text_means_a_larger_vocabulary_and_fewer_passes() -> None:
    found = [presets.choose("translation", corpus(pairs), "small") for pairs in (6_000, 20_000, 60_000, 600_000)]
    sizes = [preset.groups["tokenizer"]["vocab_size"] for preset in found]
    updates = [preset.groups["training"]["max_updates"] for preset in found]
    dropout = [preset.groups["model"]["dropout"] for preset in found]
    assert sizes == [2_000, 4_000, 8_000, 16_000]
    passes = [count / pairs for count, pairs in zip(updates[1:], (20_000, 60_000, 600_000), strict=True)]
    assert updates[1:] == sorted(updates[1:])  # the first corpus has smaller batches
    assert passes == sorted(passes, reverse=True)
    assert dropout == sorted(dropout, reverse=True)
    assert dropout[0] > dropout[-1]


def test_minutes_are_planned_by_the_measured_speed() -> None:
    """The schedule runs over the budget; dropout and validations go by the updates that the time allows."""
    whole, cut = (presets.choose("translation", MULTI30K, minutes=minutes) for minutes in (None, 10))
    assert "max_minutes" not in whole.groups["training"]
    training = cut.groups["training"]
    assert training["max_minutes"] == 10.0
    assert training["schedule"] == {"kind": "cosine", "over": "budget", "warmup_share": 0.1}
    assert cut.groups["batch"]["batch_tokens"] == whole.groups["batch"]["batch_tokens"] // 2
    assert training["max_updates"] == pytest.approx(2 * whole.groups["training"]["max_updates"], rel=0.01)
    assert cut.minutes is cut.passes is None
    assert cut.is_useful

    measured = presets.choose("translation", MULTI30K, minutes=10, tokens_a_minute={"small": 80.0 * 2048})
    assert measured.minutes == pytest.approx(10)
    padded = measured.groups["batch"]["batch_tokens"] * 800 / measured.passes
    assert padded == pytest.approx(1.1 * (29_000 + 1.3 * 345_020), rel=0.01)
    assert measured.groups["training"]["validate_every"] == 800 // 5
    assert measured.groups["model"]["dropout"] < whole.groups["model"]["dropout"]
    assert any("about 800 updates" in reason.because for reason in measured.reasons)

    fast = presets.choose("translation", MULTI30K, minutes=10, tokens_a_minute={"small": 80_000.0 * 4096})
    assert fast.minutes == pytest.approx(whole.groups["training"]["max_updates"] / 80_000)
    assert fast.groups["training"]["validate_every"] == 2 * whole.groups["training"]["validate_every"]


def test_a_slow_machine_gets_a_smaller_preset_for_the_minutes() -> None:
    """`small` would read the text less than once in the time; what nobody has measured is not chosen instead."""
    slow = {"small": 10.0 * 2048, "tiny": 100.0 * 1500}
    assert not presets.choose("translation", MULTI30K, minutes=10, tokens_a_minute={"small": 10.0 * 2048}).is_useful
    chosen = presets.choose("translation", MULTI30K, minutes=10, tokens_a_minute=slow)
    assert chosen.name == "tiny"
    assert "in 10 min the preset small would read the text only 0." in chosen.reasons[0].because
    assert presets.choose("translation", MULTI30K, minutes=10, tokens_a_minute={"small": 10.0 * 2048}).name == "small"
    assert presets.choose("translation", MULTI30K, "small", minutes=10, tokens_a_minute=slow).name == "small"
    assert presets.choose("translation", MULTI30K, tokens_a_minute=slow).name == "small"


def test_minutes_of_a_summarizer_are_shared_by_its_stages(tmp_path: Path) -> None:
    preset = presets.choose("summarization", corpus(3_000, 200, side(90_000, 30)), "small", minutes=20)
    loaded = load(presets.recipe_text(preset, "x", DATA), tmp_path)
    stages = list(loaded.by_stage().values())
    assert [one.training.max_minutes for one in stages] == pytest.approx([16, 4])
    assert loaded.training.max_minutes == 20
    assert stages[0].training.max_updates != stages[1].training.max_updates


def test_other_letters_get_vocabularies_of_their_own() -> None:
    words = side(500_000, characters=3_500, spaced=False)
    preset = presets.choose("translation", corpus(29_000, tgt=words, one_script=False))
    tokenizer = preset.groups["tokenizer"]
    assert (tokenizer["joint"], tokenizer["vocab_size"], tokenizer["tgt_vocab_size"]) == (False, 8_000, 8_000)
    assert preset.groups["model"]["tie"] == "decoder"
    assert preset.groups["evaluation"]["tokenize"] == "char"


def test_rare_characters_leave_room_for_words() -> None:
    many = Text(500_000, 25_000, 6_000, 2_500, False, 20)
    tokenizer = presets.choose("translation", corpus(29_000, tgt=many, one_script=False)).groups["tokenizer"]
    assert tokenizer["character_coverage"] == 0.9995
    assert tokenizer["tgt_vocab_size"] == 8_000


def test_limits_of_a_summarizer_follow_the_lengths() -> None:
    short, long = (
        presets.choose("summarization", CorpusSize(9_000, side(900_000, length), side(90_000, 12), side(990_000), True))
        for length in (100, 3_000)
    )
    assert (short.data["max_length"], short.data["max_tgt_length"]) == (120, 14)
    assert long.data["max_length"] == 400
    assert short.data["over_long"] == "truncate"


def test_warnings() -> None:
    (few,) = presets.choose("translation", corpus(50)).warnings
    assert "50 pairs are few" in few
    assert presets.choose("translation", MULTI30K).warnings == []
    (slow,) = presets.choose("translation", MULTI30K, "base").warnings
    assert "days on a CPU" in slow
    assert presets.choose("translation", MULTI30K, "base", gpu=True).warnings == []


def test_unknown_names_get_advice() -> None:
    with pytest.raises(RecipeError, match="no preset 'smal': did you mean 'small'"):
        presets.choose("translation", MULTI30K, "smal")
    with pytest.raises(RecipeError, match="no task 'translate': did you mean 'translation'"):
        presets.choose("translate", MULTI30K)


# ------------------------------------------------------------------------------------------------- any text, at all


ALPHABETS = {
    "latin": "abcdefghijklmnopqrstuvwxyzäöüß",
    "one letter": "a",
    "chinese": "".join(map(chr, range(0x4E00, 0x4E00 + 900))),
    "decomposed": "aeiou\u0301\u0308n",
    "fractions": "½¾㎏㌀ﬁ1/2",
    "figures": "0123456789.,",
}


@pytest.mark.parametrize("pairs", [2, 7, 50])
@pytest.mark.parametrize("spaces", [True, False], ids=["words", "no-spaces"])
@pytest.mark.parametrize("name", ALPHABETS)
def test_sentencepiece_takes_the_vocabulary(name: str, spaces: bool, pairs: int) -> None:
    """However little text there is: the size that was chosen is one that can be learned."""
    draw = random.Random(f"{name} {pairs}")

    def line() -> str:
        words = ["".join(draw.choices(ALPHABETS[name], k=draw.randrange(1, 6))) for _ in range(draw.randrange(1, 8))]
        return (" " if spaces else "").join(words)

    text = [(line(), line()) for _ in range(pairs)]
    chosen = presets.choose("translation", counted(text)).groups["tokenizer"]
    config = parse(TokenizerConfig, chosen, "preset")
    pair = learn(config, [Example(src, tgt, number) for number, (src, tgt) in enumerate(text, start=1)])
    assert len(pair.src.vocabulary) == chosen["vocab_size"]


# ------------------------------------------------------------------------------------------------------- the recipe


def load(text: str, folder: Path) -> recipe.Recipe:
    path = folder / "chosen.yaml"
    path.write_text(text, encoding="utf-8")
    return recipe.load(path)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [None, *presets.NAMES])
@pytest.mark.parametrize("task", presets.TASKS)
def test_recipe_text_is_a_recipe(task: str, name: str | None, size: str, tmp_path: Path) -> None:
    preset = presets.choose(task, SIZES[size], name, minutes=30)
    text = presets.recipe_text(preset, "mine", DATA, "what it is: a test")
    loaded = load(text, tmp_path)
    assert (loaded.name, loaded.task, loaded.description) == ("mine", task, "what it is: a test")
    assert loaded.data.train.src == [str(tmp_path / "a.en")]
    assert loaded.tokenizer.vocab_size == preset.groups["tokenizer"]["vocab_size"]
    assert loaded.model.kind == {"translation": "transformer", "summarization": "pointer_generator"}[task]
    assert [stage.name for stage in loaded.stages] == (["pointer", "coverage"] if task == "summarization" else [])
    last = list(loaded.by_stage().values())[-1]
    assert last.training.coverage_weight == (1.0 if task == "summarization" else 0.0)
    assert max(map(len, text.splitlines())) <= 120
    comments = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
    assert f"preset {preset.name} ({presets.MEANING[preset.name]}), because {preset.reasons[0].because}." in comments
    for reason in preset.reasons[1:]:
        assert f"{reason.setting}: {reason.value}, because {reason.because}." in comments
    for warning in preset.warnings:
        assert warning in comments


@pytest.mark.parametrize(
    ("minutes", "said"),
    [(0.2, "a minute"), (22.4, "22 minutes"), (100, "100 minutes"), (180, "3 hours"), (6_000, "4 days")],
    ids=lambda value: str(value),
)
def test_times_in_words(minutes: float, said: str) -> None:
    assert in_words(minutes) == f"about {said}"


def test_no_torch_is_needed() -> None:
    program = "import sys, nmtkit.experiment.presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
