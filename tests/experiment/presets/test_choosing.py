"""Settings for those who bring only text: by the size of the corpus, valid for every text, and with their reasons."""

import math
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nmtkit.config import Recipe
from nmtkit.config import load as load_recipe
from nmtkit.core.errors import DataError, RecipeError
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.statistics import CorpusCounter, CorpusStatistics, SideStatistics
from nmtkit.experiment.presets.fitting import FittedPreset, choose_preset
from nmtkit.experiment.presets.proposal import format_minutes
from nmtkit.experiment.presets.sizes import PRESETS
from tests.support.cases import daily
from tests.support.learned_tokenizers import learn_tokenizers
from tests.support.unspaced_pairs import unspaced_pairs

PAIRED = ("translation", "summarization")
DATA = {"train": {"src": "a.en", "tgt": "a.de"}, "valid": {"src": "b.en", "tgt": "b.de"}}


def side(words: int, length: int = 20, characters: int = 90, spaced: bool = True) -> SideStatistics:
    """A side of ordinary text: a word in twenty is a new one."""
    return SideStatistics(
        words, min(200_000, words // 20 + 1), characters, min(characters, 80), spaced, length
    )


def corpus(
    pairs: int, words_a_line: int = 13, tgt: SideStatistics | None = None, one_script: bool = True
) -> CorpusStatistics:
    text = side(pairs * words_a_line)
    return CorpusStatistics(pairs, text, tgt or text, side(2 * pairs * words_a_line), one_script)


def load(text: str, folder: Path) -> Recipe:
    path = folder / "chosen.yaml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path)


Made = Callable[[FittedPreset], Recipe]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """The recipe that a fitted preset is written as."""
    return lambda preset: load(preset.text("mine", DATA), tmp_path)


def speeds(**by_preset: float) -> Callable[[FittedPreset], float | None]:
    """A machine that trains on so many padded tokens a minute."""
    return lambda preset: by_preset.get(preset.name)


MULTI30K = CorpusStatistics(29_000, side(345_020), side(322_383), side(667_403), one_script=True)
WMT14 = corpus(4_500_000, 25)
SIZES = {"50 pairs": corpus(50), "multi30k": MULTI30K, "wmt14": WMT14}


def counted(pairs: list[tuple[str, str]]) -> CorpusStatistics:
    counts = CorpusCounter()
    for src, tgt in pairs:
        counts.add(src, tgt)
    return counts.statistics()


def test_what_is_counted() -> None:
    size = counted(
        [("the cat sat", "die Katze"), ("the ﬁg", "Hai"), ("", "leer"), (" ", ""), ("leer", "")]
    )
    assert size.pairs == 2
    assert (size.src.words, size.src.distinct_words, size.src.length) == (5, 4, 3)
    # the ligature is two letters, as for the tokenizer
    assert size.src.characters == len(set("thecatsatfig"))
    assert (size.tgt.words, size.tgt.distinct_words) == (3, 3)
    assert (size.joint.words, size.joint.distinct_words) == (8, 7)
    with pytest.raises(DataError, match="no pair has text on both sides"):
        counted([("a", ""), ("", "b")])


def test_lengths_and_characters_are_those_of_nearly_all_text() -> None:
    lines = [" ".join(["a"] * words) for words in [5] * 95 + [50] * 5]
    assert counted([(line, "b") for line in lines]).src.length == 5
    size = counted([("a" * 9_000 + "b" * 998 + "cd", "x")])
    assert (size.src.characters, size.src.frequent_characters) == (4, 2)


def test_text_without_spaces_is_counted_by_characters() -> None:
    size = counted(
        [("the cat sat on the mat today", "猫今天坐在垫子上不想起来因为外面太冷了所以")] * 10
    )
    assert (size.src.spaced, size.tgt.spaced, size.one_script) == (True, False, False)
    assert size.tgt.words == round(10 * 21 / 1.7)


@pytest.mark.parametrize("language", ["zh", "ja", "th"])
def test_short_lines_without_spaces_are_validated_by_characters_with_a_vocabulary_they_fill(
    language: str, made: Made
) -> None:
    pairs = unspaced_pairs(language)
    size = counted(pairs)
    assert (size.src.spaced, size.tgt.spaced) == (True, False)
    chosen = made(choose_preset("translation", size))
    assert chosen.evaluation.tokenize == "char"
    examples = [Example(src, tgt, line) for line, (src, tgt) in enumerate(pairs, start=1)]
    learned = learn_tokenizers(chosen.tokenizer, examples)
    assert len(learned.src.vocabulary) == chosen.tokenizer.vocab_size
    assert len(learned.tgt.vocabulary) == chosen.tokenizer.tgt_vocab_size


def test_long_words_are_no_text_without_spaces() -> None:
    size = counted(
        [("the steamship company", "Donaudampfschifffahrtsgesellschaft"), ("a", "나는 책을")] * 5
    )
    assert (size.src.spaced, size.tgt.spaced) == (True, True)


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


def test_large_corpora_are_looked_at_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs and words are counted; the kinds of words stay few enough for any memory."""
    monkeypatch.setattr(CorpusCounter, "_all_up_to", 100)
    size = counted([(f"w{number} x", "y") for number in range(2_000)])
    assert (size.pairs, size.src.words) == (2_000, 4_000)
    assert 200 < size.src.distinct_words < 600


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
def test_the_preset_follows_corpus_and_device(size: CorpusStatistics, gpu: bool, name: str) -> None:
    for task in PAIRED:
        preset = choose_preset(task, size, gpu=gpu)
        assert preset.name == name
        assert f"{size.pairs:,} pairs" in preset.reasons[0].because


def test_at_the_size_of_multi30k_it_is_the_measured_recipe(made: Made) -> None:
    measured = load_recipe("multi30k-en-de-transformer")
    preset = choose_preset("translation", MULTI30K)
    found = made(preset)
    for part in ("tokenizer", "model", "batch", "search"):
        assert getattr(found, part) == getattr(measured, part)
    for key in ("lr", "betas", "label_smoothing", "clip_norm"):
        assert getattr(found.training, key) == getattr(measured.training, key)
    assert found.training.max_updates == pytest.approx(measured.training.max_updates, rel=0.1)
    assert preset.minutes is None  # nobody has measured this machine


def test_what_the_preset_has_is_not_said_again() -> None:
    """The smallest recipe: only what the corpus decides differs."""
    preset = choose_preset("translation", MULTI30K)
    assert {group: set(keys) for group, keys in preset.changes.items()} == {
        "tokenizer": {"vocab_size"},
        "model": {"dropout"},
        "training": {"max_updates", "validate_every"},
    }
    text = preset.text("mine", DATA)
    assert text.count("\n") < 40
    assert "extends: preset-small\n" in text


def test_at_the_size_of_wmt14_base_trains_as_long_as_the_paper(made: Made) -> None:
    found = made(choose_preset("translation", WMT14, gpu=True))
    model = found.model.model_dump()
    assert (model["hidden_size"], model["encoder_layers"], model["dropout"]) == (512, 6, 0.1)
    assert found.training.max_updates == pytest.approx(100_000, rel=0.15)
    assert (found.training.schedule.kind, found.training.schedule.model_dump()["warmup"]) == (
        "inverse_sqrt",
        4000,
    )
    assert found.tokenizer.vocab_size == 32_000


def test_more_text_means_a_larger_vocabulary_and_fewer_passes(made: Made) -> None:
    corpora = (6_000, 20_000, 60_000, 600_000)
    found = [made(choose_preset("translation", corpus(pairs), "small")) for pairs in corpora]
    assert [one.tokenizer.vocab_size for one in found] == [2_000, 4_000, 8_000, 16_000]
    # the first corpus has smaller batches
    updates = [one.training.max_updates or 0 for one in found][1:]
    passes = [count / pairs for count, pairs in zip(updates, corpora[1:], strict=True)]
    dropout = [one.model.model_dump()["dropout"] for one in found]
    assert updates == sorted(updates)
    assert passes == sorted(passes, reverse=True)
    assert dropout == sorted(dropout, reverse=True)
    assert dropout[0] > dropout[-1]


def test_minutes_are_planned_by_the_measured_speed(made: Made) -> None:
    """The schedule runs over the budget; dropout and validations go by the updates that the time allows."""
    presets = [choose_preset("translation", MULTI30K, minutes=minutes) for minutes in (None, 10)]
    whole, cut = map(made, presets)
    assert whole.training.max_minutes is None
    assert whole.training.max_updates is not None
    assert cut.training.max_minutes == 10.0
    expected = {"kind": "cosine", "over": "budget", "warmup_share": 0.1}
    assert cut.training.schedule.model_dump().items() >= expected.items()
    assert cut.batch.batch_tokens == whole.batch.batch_tokens // 2
    assert cut.training.max_updates is None
    few = made(choose_preset("summarization", corpus(3_000, 200, side(90_000, 30)), minutes=1))
    assert (whole.evaluation.max_sentences, cut.evaluation.max_sentences) == (500, 400)
    assert few.evaluation.max_sentences == 40
    assert presets[1].minutes is presets[1].passes is None
    assert presets[1].is_useful

    preset = choose_preset("translation", MULTI30K, minutes=10, measure=speeds(small=80.0 * 2048))
    measured = made(preset)
    assert preset.minutes == pytest.approx(10)
    assert preset.passes is not None
    padded = measured.batch.batch_tokens * 800 / preset.passes
    assert padded == pytest.approx(1.1 * (29_000 + 1.3 * 345_020), rel=0.01)
    assert measured.training.validate_every == 800 // 5
    assert measured.model.model_dump()["dropout"] < whole.model.model_dump()["dropout"]
    assert any("In 10 minutes this machine can make" in reason.because for reason in preset.reasons)

    preset = choose_preset(
        "translation", MULTI30K, minutes=10, measure=speeds(small=80_000.0 * 4096)
    )
    assert preset.minutes == pytest.approx(10)
    assert made(preset).training.validate_every == 80_000 * 10 // 5
    assert made(preset).model.model_dump()["dropout"] > measured.model.model_dump()["dropout"]


def test_a_slow_machine_gets_a_smaller_preset_for_the_minutes() -> None:
    """`small` would read the text less than once in the time; what nobody has measured is not chosen instead."""
    slow = speeds(small=10.0 * 2048, tiny=100.0 * 1500)
    chosen = choose_preset("translation", MULTI30K, minutes=10, measure=slow)
    assert chosen.name == "tiny"
    assert "in 10 min, preset small would make only 0." in chosen.reasons[0].because
    alone = choose_preset("translation", MULTI30K, minutes=10, measure=speeds(small=10.0 * 2048))
    assert (alone.name, alone.is_useful) == ("small", False)
    assert choose_preset("translation", MULTI30K, "small", minutes=10, measure=slow).name == "small"
    assert choose_preset("translation", MULTI30K, measure=slow).name == "small"


def test_minutes_of_a_summarizer_are_shared_by_its_stages(made: Made) -> None:
    loaded = made(
        choose_preset("summarization", corpus(3_000, 200, side(90_000, 30)), "small", minutes=20)
    )
    stages = list(loaded.by_stage().values())
    assert [one.training.max_minutes for one in stages] == pytest.approx([16, 4])
    assert loaded.training.max_minutes == 20
    assert stages[0].training.max_updates is stages[1].training.max_updates is None


@pytest.mark.parametrize("task", PAIRED)
def test_other_letters_get_vocabularies_of_their_own(task: str, made: Made) -> None:
    """For summaries this is another kind of tokenizer than the preset's: nothing of that is left."""
    tgt, joint = (side(words, characters=3_500, spaced=False) for words in (500_000, 900_000))
    found = made(
        choose_preset(task, replace(corpus(29_000, tgt=tgt, one_script=False), joint=joint))
    )
    tokenizer = found.tokenizer
    assert (tokenizer.kind, tokenizer.joint) == ("bpe", False)
    assert found.model.model_dump()["tie"] == "decoder"
    if task == "translation":
        assert (tokenizer.vocab_size, tokenizer.tgt_vocab_size) == (8_000, 8_000)
        assert found.evaluation.tokenize == "char"


def test_rare_characters_leave_room_for_words(made: Made) -> None:
    many = SideStatistics(500_000, 25_000, 6_000, 2_500, False, 20)
    tokenizer = made(
        choose_preset("translation", corpus(29_000, tgt=many, one_script=False))
    ).tokenizer
    assert (tokenizer.character_coverage, tokenizer.tgt_vocab_size) == (0.9995, 8_000)


def test_limits_of_a_summarizer_follow_the_lengths(made: Made) -> None:
    def limited(length: int) -> Recipe:
        size = CorpusStatistics(9_000, side(900_000, length), side(90_000, 12), side(990_000), True)
        return made(choose_preset("summarization", size))

    short = limited(100)
    assert short.data.limits == (120, 14)
    assert short.data.over_long == "truncate"
    assert limited(3_000).data.max_length == 400


def test_warnings() -> None:
    (few,) = choose_preset("translation", corpus(50)).warnings
    assert few.startswith(
        "there are few pairs (50), so expect good results only for text very similar to yours. "
        "Fine-tuning a public model"
    )
    (held_out,) = choose_preset("translation", replace(corpus(4_858), held_out=542)).warnings
    assert "few pairs (4,858: 5,400 minus 542 held out for validation and test)" in held_out
    assert choose_preset("translation", MULTI30K).warnings == []
    (slow,) = choose_preset("translation", MULTI30K, "base").warnings
    assert "days on a CPU" in slow
    assert choose_preset("translation", MULTI30K, "base", gpu=True).warnings == []


def test_a_public_model_is_advised_for_little_text() -> None:
    for task, models in (("translation", "OPUS-MT or NLLB"), ("summarization", "BART or Pegasus")):
        (advice,) = choose_preset(task, corpus(49_999)).advice
        assert models in advice
        assert "guide public-models" in advice
        assert choose_preset(task, corpus(50_000)).advice == []
        assert choose_preset(task, corpus(50)).advice == [], "the warning says it"
    classifier = choose_preset("classification", replace(corpus(10_000), one_text=True))
    assert classifier.advice == []


def test_the_minutes_are_compared_with_the_usual_number_of_passes() -> None:
    def said(minutes: float, speed: float) -> str:
        preset = choose_preset(
            "translation", MULTI30K, "small", minutes=minutes, measure=lambda _: speed
        )
        return next(
            reason.because for reason in preset.reasons if reason.setting == "training.max_minutes"
        )

    padded = 520_000  # 22 passes are usual for so much text
    few = said(4, padded)
    assert re.fullmatch(
        r"you set it\. In 4 minutes this machine can make about [\d.]+ passes over your text; 2\d would be usual, "
        r"so allow 2\d minutes if you can",
        few,
    )
    assert said(1, 100 * padded).endswith("would be usual")


def test_unknown_names_get_advice() -> None:
    with pytest.raises(RecipeError, match="no preset 'smal': did you mean 'small'"):
        choose_preset("translation", MULTI30K, "smal")
    with pytest.raises(
        RecipeError, match="no presets for task 'translate': did you mean 'translation'"
    ):
        choose_preset("translate", MULTI30K)


ALPHABETS = {
    "latin": "abcdefghijklmnopqrstuvwxyzäöüß",
    "one letter": "a",
    "chinese": "".join(map(chr, range(0x4E00, 0x4E00 + 900))),
    "decomposed": "aeiou\u0301\u0308n",
    "fractions": "½¾㎏㌀ﬁ1/2",
    "figures": "0123456789.,",
}


@pytest.mark.parametrize("pairs", daily([7, 2, 50]))
@pytest.mark.parametrize("spaces", [True, False], ids=["words", "no-spaces"])
@pytest.mark.parametrize("name", ALPHABETS)
def test_sentencepiece_takes_the_vocabulary(
    name: str, spaces: bool, pairs: int, made: Made
) -> None:
    """However little text there is: the size that was chosen is one that can be learned."""
    draw = random.Random(f"{name} {pairs}")

    def line() -> str:
        words = [
            "".join(draw.choices(ALPHABETS[name], k=draw.randrange(1, 6)))
            for _ in range(draw.randrange(1, 8))
        ]
        return (" " if spaces else "").join(words)

    text = [(line(), line()) for _ in range(pairs)]
    config = made(choose_preset("translation", counted(text))).tokenizer
    pair = learn_tokenizers(
        config, [Example(src, tgt, number) for number, (src, tgt) in enumerate(text, start=1)]
    )
    assert len(pair.src.vocabulary) == config.vocab_size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [None, *PRESETS])
@pytest.mark.parametrize("task", PAIRED)
def test_the_text_is_a_recipe(task: str, name: str | None, size: str, tmp_path: Path) -> None:
    preset = choose_preset(task, SIZES[size], name, minutes=30)
    text = preset.text("mine", DATA, "what it is: a test")
    loaded = load(text, tmp_path)
    assert (loaded.name, loaded.task, loaded.description) == ("mine", task, "what it is: a test")
    assert loaded.data.train.src == [str(tmp_path / "a.en")]
    shown = f"{loaded.tokenizer.vocab_size:,}"
    assert shown in next(reason.value for reason in preset.reasons if reason.setting == "tokenizer")
    assert (
        loaded.model.kind
        == {"translation": "transformer", "summarization": "pointer_generator"}[task]
    )
    assert [stage.name for stage in loaded.stages] == (
        ["pointer", "coverage"] if task == "summarization" else []
    )
    last = list(loaded.by_stage().values())[-1]
    assert last.training.objectives == ({"coverage_weight": 1.0} if task == "summarization" else {})
    assert max(map(len, text.splitlines())) <= 120
    comments = " ".join(
        line.removeprefix("# ") for line in text.splitlines() if line.startswith("#")
    )
    assert (
        f"preset {preset.name} ({PRESETS[preset.name]}), because {preset.reasons[0].because}."
        in comments
    )
    for reason in preset.reasons[1:]:
        assert f"{reason.setting}: {reason.value}, because {reason.because}." in comments
    for warning in preset.warnings:
        assert warning in comments


def test_a_language_model_is_chosen_by_its_words(tmp_path: Path) -> None:
    """Lines are documents of any length, so that their number says nothing; nothing is said of pairs or sides."""
    for words, gpu, name in (
        (90_000, True, "tiny"),
        (200_000, False, "small"),
        (60_000_000, True, "base"),
    ):
        text = side(words)
        size = CorpusStatistics(300, text, text, text, one_script=True, one_text=True)
        preset = choose_preset("language-modelling", size, gpu=gpu, minutes=30)
        assert (preset.name, preset.warnings) == (name, [])
        assert f"{words:,} words" in preset.reasons[0].because
        written = preset.text(
            "mine", {split: {"tgt": f"{split}.txt"} for split in ("train", "valid")}
        )
        loaded = load(written, tmp_path)
        assert (loaded.model.kind, loaded.model.model_dump()["tie"]) == (
            "transformer_lm",
            "decoder",
        )
        assert loaded.training.best_metric == "perplexity"
        assert loaded.batch.block_tokens is not None
        assert f"For 300 texts with {words:,} words in total: preset {name}" in written
        assert not [word for word in ("pairs", "side", "joint") if word in written]


def test_times_in_words() -> None:
    words = {
        0.2: "less than a minute",
        0.9: "about a minute",
        22.4: "about 22 minutes",
        100: "about 100 minutes",
    }
    words |= {180: "about 3 hours", 6_000: "about 4 days"}
    assert {minutes: format_minutes(minutes) for minutes in words} == words


def test_no_torch_is_needed() -> None:
    program = "import sys, nmtkit.experiment.presets.fitting; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_too_few_minutes_for_one_pass_are_told_before() -> None:
    """With what a pass takes at the measured speed, and the minutes of all passes that the preset makes."""
    text, machine = corpus(20_000), speeds(tiny=2_000.0)  # a pass has 393,800 padded tokens
    whole = choose_preset("translation", text, "tiny", measure=machine)
    short = choose_preset("translation", text, "tiny", minutes=2, measure=machine)
    assert whole.minutes is not None
    assert short.warnings[0].startswith("in 2 min there is time for only ")
    assert f"(--minutes {math.ceil(whole.minutes)})" in short.warnings[0]
    assert (
        "produce a usable model; one pass takes about 3 hours on this machine" in short.warnings[0]
    )
    assert not whole.warnings
    some = choose_preset("translation", text, "tiny", minutes=0.4 * whole.minutes, measure=machine)
    assert "passes over the text; one pass takes about 3 hours on this machine" in some.warnings[0]
    assert not choose_preset(
        "translation", text, "tiny", minutes=0.6 * whole.minutes, measure=machine
    ).warnings
