"""Lines in a third language; and what is none: names, short lines, similar and unknown languages."""

from pathlib import Path

import numpy as np
import pytest

from nmtkit.datacheck.characters import TextArrays
from nmtkit.datacheck.examine import examine
from nmtkit.datacheck.language import Languages
from tests.datacheck import real_looking
from tests.datacheck.real_looking import lines_by_kind

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
    "Vietnamese": ["Tôi không biết tại sao cửa hàng đóng cửa chiều hôm qua."],
    "Turkish": ["Dün öğleden sonra dükkanın neden kapalı olduğunu bilmiyorum."],
}
ALL = [line for lines in LINES.values() for line in lines]
SRC, TGT = real_looking.pairs(1000)


def foreign(languages: Languages, lines: list[str]) -> list[bool]:
    """Whether each line, as a source, is in another language than the sources."""
    doubts = languages.doubts({"src": TextArrays.of(lines)}, len(lines))
    return doubts.third["src"].tolist()


@pytest.fixture(scope="module")
def english() -> Languages:
    return Languages({"src": TextArrays.of(SRC)})


def test_lines_of_other_languages_are_found(english: Languages) -> None:
    french = Languages({"src": TextArrays.of(TGT)})
    for languages in (english, french):
        assert all(foreign(languages, ALL))
        assert all(foreign(languages, [line.upper() for line in ALL]))


def test_a_line_is_found_wherever_it_stands(english: Languages) -> None:
    text = ["", SRC[0], ALL[0], "", "12 + 3", "...", *SRC[1:5], ALL[5], "日本語 ", ""]
    assert np.flatnonzero(foreign(english, text)).tolist() == [2, 10]
    assert foreign(english, [""]) == [False]


def test_names_signs_and_short_lines_are_no_language(english: Languages) -> None:
    lines = [
        "Rio de Janeiro, New York, Kuala Lumpur, Porto Alegre",
        "Bach, Johann Sebastian (1685-1750)",
        "He was born in 1980 in Grieskirchen, Oberösterreich (Austria).",
        "The Mona Lisa as an art excerpt à la manière of a computer picture.",
        "x y z w v u t s r q",
        "no, no, no, no!",
        "Tom hat es",
        "Ja, sicher",
        "http://www.example.com/index.php?id=12&lang=de",
        "1,234.50 km/h; 3:45; 12/12/2012; (a) (b) (c)",
    ]
    assert not any(foreign(english, lines))


def test_the_beginning_of_a_long_line_is_enough(english: Languages) -> None:
    article = " ".join(SRC[:200])
    quotation = f"{SRC[0]} {SRC[1]} {SRC[2]} {LINES['German'][0]}"
    assert foreign(english, [" ".join(ALL * 20), article, quotation]) == [True, False, False]


CROATIAN = [
    "Svatko ima pravo na život, slobodu i osobnu sigurnost.",
    "Svatko ima pravo da se svagdje pred zakonom priznaje kao osoba.",
    "Nitko ne smije biti podvrgnut samovoljnom uhićenju, zatvoru ili izgonu.",
    "Svatko ima pravo na slobodu kretanja i stanovanja unutar granica svake države.",
    "Svatko ima pravo tražiti i uživati u drugim zemljama utočište pred progonima.",
    "Obitelj je prirodna i osnovna društvena jedinica i ima pravo na zaštitu društva i države.",
    "Nitko ne smije samovoljno biti lišen svoje imovine.",
    "Svatko ima pravo na slobodu mirnog okupljanja i udruživanja.",
]
SERBIAN = [
    "Svako ima pravo na život, slobodu i bezbednost ličnosti.",
    "Svako ima pravo da svuda bude priznat kao pravni subjekt.",
    "Niko ne sme biti proizvoljno uhapšen, pritvoren, niti proteran.",
    "Svako ima pravo na slobodu kretanja i izbora stanovanja u granicama pojedine države.",
    "Svako ima pravo da traži i uživa u drugim zemljama utočište od proganjanja.",
    "Porodica je prirodna i osnovna ćelija društva i ima pravo na zaštitu društva i države.",
]
NORWEGIAN = [
    "Enhver har rett til liv, frihet og personlig sikkerhet.",
    "Ethvert menneske har krav på overalt å bli anerkjent som rettssubjekt.",
    "Ingen må utsettes for vilkårlig arrest, fengsling eller landsforvisning.",
    "Enhver har rett til i andre land å søke og ta imot asyl mot forfølgelse.",
    "Ekteskap må bare inngås etter fritt og fullt samtykke av de vordende ektefeller.",
    "Enhver har rett til å eie eiendom alene eller sammen med andre.",
]
DANISH = [
    "Enhver har ret til liv, frihed og personlig sikkerhed.",
    "Ethvert menneske har overalt i verden ret til at blive anerkendt som retssubjekt.",
    "Ingen må underkastes vilkårlig anholdelse, tilbageholdelse eller landsforvisning.",
    "Ægteskab skal kun kunne indgås med begge parters frie og fulde samtykke.",
]


@pytest.mark.parametrize(
    ("lines", "similar"), [(CROATIAN, SERBIAN), (NORWEGIAN, DANISH)], ids=["Croatian", "Norwegian"]
)
def test_similar_languages_are_not_told_apart_where_that_is_unsure(
    lines: list[str], similar: list[str]
) -> None:
    languages = Languages({"src": TextArrays.of(lines * 10)})
    assert not any(foreign(languages, lines))
    assert not any(foreign(languages, similar))
    assert all(foreign(languages, ALL))


# Upper Sorbian, which is not recognized: it looks like Polish here and like Czech, Slovene or Croatian there.
SORBIAN = [
    "Kóždy ma prawo na žiwjenje, swobodu a wěstotu wosohy.",
    "Kóždy ma prawo, wšudźe jako prawakmany připóznaty być.",
    "Nichtó njesmě so swojowólnje zajeć, w jatbje dźeržeć abo z kraja wupokazać.",
    "Kóždy ma prawo, w druhich krajach před přesćěhanjom azyl pytać a wužiwać.",
    "Woni maja jenake prawa při zmandźelenju, w mandźelstwje a při rozwjazanju mandźelstwa.",
    "Kóždy ma prawo, sam abo zhromadnje z druhimi wobsydstwo měć.",
    "%(count)s nowych naprašowanjow je so wuspěšnje změniło.",
    "Tute hesło je přewšědne a přewjele podobne datam wužiwarja.",
    "Přizjewjenje njeje so poradźiło, prošu spytajće hišće raz.",
    "Zapodajće płaćiwu mejlowu adresu, zo byšće hesło wróćo stajił.",
    "Njejsće woprawnjeny, tutu stronu wobdźěłać abo zhašeć.",
    "Wubjerće dataju, kotruž chceće nahrać, a klikńće na Dale.",
]


def test_a_side_in_a_language_that_is_not_recognized_has_one_note(tmp_path: Path) -> None:
    src = [f"{line} {number}" for number in range(50) for line in SORBIAN]
    files = real_looking.write(tmp_path, "train", src, real_looking.pairs(600)[0])
    split = examine({"train": files}).splits["train"]
    assert (split.src.language, split.tgt.language) == ("", "en")
    doubts = {
        kind: finding for kind, finding in split.findings.items() if kind not in ("shift", "ratio")
    }
    assert list(doubts) == ["unclear-language"]
    (place,) = doubts["unclear-language"].places
    assert place.file == files.src[0]
    assert "% of a sample of 600 lines do not seem to be in the most common language" in place.text


def test_a_mixed_side_has_one_note(tmp_path: Path) -> None:
    src, tgt = real_looking.pairs(600)
    tgt[::10] = [LINES["German"][row % 4] for row in range(60)]
    split = examine({"train": real_looking.write(tmp_path, "train", src, tgt)}).splits["train"]
    (place,) = split.findings["unclear-language"].places
    assert place.text == (
        "10% of a sample of 598 lines do not seem to be in the most common language, fr, but in de"
    )
    assert not split.findings.keys() & {"language", "foreign"}


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
