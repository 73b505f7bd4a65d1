"""Lines in a language of neither side: found by function words, where nothing else tells them."""

from pathlib import Path

import numpy as np
import real_looking
from real_looking import lines_by_kind

from nmtkit.data.text.encodings import FUNCTION_WORDS
from nmtkit.datacheck.characters import TextArrays
from nmtkit.datacheck.examine import examine
from nmtkit.datacheck.language import MIN_LINES, KnownWords

LINES = {
    "German": [
        "Als wir am Bahnhof ankamen, war der Zug schon weg.",
        "Meine Schwester möchte noch vor dem Winter ein neues Auto kaufen.",
        "Die Kinder spielen im Garten, und die Großmutter kocht das Essen.",
        "Ich weiß nicht, warum das Geschäft gestern geschlossen war.",
    ],
    "Italian": [
        "Quando siamo arrivati alla stazione il treno era già partito.",
        "Mia sorella vuole comprare una macchina nuova prima della fine dell'anno.",
        "Non so perché il negozio fosse chiuso ieri pomeriggio.",
        "Questo libro parla della storia di una piccola città sul mare.",
    ],
    "Spanish": [
        "No sé por qué la tienda estaba cerrada ayer por la tarde.",
        "Mi hermana quiere comprar un coche nuevo antes de que acabe el año.",
        "Los niños juegan en el jardín mientras la abuela prepara la cena.",
        "El médico me dijo que bebiera mucha agua y que descansara.",
    ],
    "Dutch": [
        "Toen we op het station aankwamen was de trein al vertrokken.",
        "Ik weet niet waarom de winkel gistermiddag gesloten was.",
        "De kinderen spelen in de tuin terwijl oma het eten klaarmaakt.",
        "Dit boek gaat over de geschiedenis van een kleine stad aan zee.",
    ],
}
ALL = [line for lines in LINES.values() for line in lines]
SRC, TGT = real_looking.pairs(3000)


def learned(lines: list[str]) -> KnownWords:
    own = KnownWords.learn([TextArrays.of(lines)])
    assert own is not None
    return own


def test_lines_of_other_languages_are_told_from_ones_own() -> None:
    for side, split in zip((SRC, TGT), real_looking.pairs(1000, "test"), strict=True):
        own = learned(side)
        assert not own.foreign(TextArrays.of(split)).any()
        assert own.foreign(TextArrays.of(ALL)).mean() > 0.8
        loud = own.foreign(TextArrays.of([line.upper() for line in ALL if "ß" not in line]))
        assert np.array_equal(loud, own.foreign(TextArrays.of([line for line in ALL if "ß" not in line])))
    assert learned(SRC).foreign(TextArrays.of(ALL)).all()  # English shares less with them than French does


def test_a_line_is_told_wherever_it_stands_and_whatever_stands_beside_it() -> None:
    own = learned(SRC)
    text = ["", SRC[0], ALL[0], "", "12 + 3", "...", *SRC[1:5], ALL[5], "日本語 ", ""]
    assert np.flatnonzero(own.foreign(TextArrays.of(text))).tolist() == [2, 10]
    assert own.foreign(TextArrays.of([""])).tolist() == [False]


def test_names_and_signs_are_no_language() -> None:
    names = ["Rio de Janeiro, New York, Kuala Lumpur, Porto Alegre", "Bach, Johann Sebastian (1685-1750)"]
    lines = [*names, "x y z w v u t s r q", "no, no, no, no!", "Tom hat es"]
    assert not learned(SRC).foreign(TextArrays.of(lines)).any()


def test_one_line_of_a_word_over_and_over_does_not_teach_it() -> None:
    own = learned([*SRC, "word " * 100_000])
    assert not own.foreign(TextArrays.of(SRC)).any()


def test_nothing_is_learned_from_few_lines() -> None:
    assert KnownWords.learn([]) is None
    assert KnownWords.learn([TextArrays.of(SRC[: MIN_LINES - 1])]) is None
    assert KnownWords.learn([TextArrays.of(["1 2 3"] * MIN_LINES)]) is not None


def test_lists_hold_words_once_and_in_small_letters() -> None:
    assert len(FUNCTION_WORDS) <= 32  # each has a bit
    for language, words in FUNCTION_WORDS.items():
        assert words == [word.lower() for word in words], language
        assert len(set(words)) == len(words) >= 20, language


def test_two_among_four_hundred(tmp_path: Path) -> None:
    """A German and an Italian line on the French side; where a side is in the other's language, that alone is told."""
    src, tgt = SRC[:400], TGT[:400]
    tgt[99], tgt[299] = LINES["German"][0], LINES["Italian"][1]
    tgt[199] = next(line for line in SRC[400:] if len(line) > 60)
    split = examine({"train": real_looking.write(tmp_path, "train", src, tgt)}).splits["train"]
    assert lines_by_kind(split) == {"language": [200], "foreign": [100, 300]}


def test_text_of_one_side_alone(tmp_path: Path) -> None:
    files = real_looking.write(tmp_path, "data", [*SRC[:500], LINES["Spanish"][1]], TGT[:501])
    split = examine({"data": files.model_copy(update={"tgt": []})}).splits["data"]
    assert lines_by_kind(split) == {"foreign": [501]}
