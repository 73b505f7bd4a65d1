"""Whether a text is written without spaces between words is decided by its script, not by the length of its lines."""

import re
import unicodedata

import pytest

from nmtkit.data.text.scripts import (
    SCRIPTS,
    UNSPACED,
    count_characters,
    count_words,
    script_name,
    script_of,
    unspaced_class,
    unspaced_runs,
    unspaced_script,
    unspaced_script_of_lines,
)

TEXTS = {
    "我读书。": "Han",
    "あなたは本を読む。": "Hiragana",
    "コーヒー": "Katakana",
    "ฉันอ่านหนังสือ": "Thai",
    "ຂ້ອຍອ່ານ": "Lao",
    "ខ្ញុំអាន": "Khmer",
    "ကျွန်တော်": "Myanmar",
    "ང་དེབ་ཀློག": "Tibetan",
    "ꦲꦏ꧀ꦱꦫ": "Javanese",
    "ᬅᬓ᭄ᬱᬭ": "Balinese",
    "ᦅᦱᧄ": "Tai",
    "나는 책을 읽는다": "",
    "Я читаю книгу": "",
    "हम किताब पढ़ते हैं": "",
    "Donaudampfschifffahrtsgesellschaft": "",
    "aku maca buku": "",
    "12 - 34!": "",
    "": "",
    "我们用 GPT 写诗和书": "Han",
    "The word 书 means book in Chinese": "",
}


@pytest.mark.parametrize(("text", "script"), TEXTS.items())
def test_the_script_decides_whether_a_text_has_spaces(text: str, script: str) -> None:
    assert unspaced_script(count_characters([text])) == script


def test_every_script_without_spaces_has_a_number() -> None:
    assert set(UNSPACED) <= set(SCRIPTS)
    assert SCRIPTS[script_of("ｱ")] == "Katakana"
    assert SCRIPTS[script_of("Ａ")] == SCRIPTS[script_of("é")] == "Latin"
    assert script_name("1") == script_name("\n") == ""


def test_the_class_of_characters_has_letters_and_marks_but_no_punctuation() -> None:
    inside = re.compile(f"[{unspaced_class()}]")
    assert all(inside.match(letter) for letter in "我ぁーヶกั์៛໐\U00020000々"[:5] + "\U00020000々")
    assert not any(inside.match(letter) for letter in "aé한。　、 Я")
    assert unspaced_runs("GPT を使う。 时々") == ["を使う", "时々"]


def test_the_class_of_characters_agrees_with_the_names_of_all_characters() -> None:
    inside = re.compile(f"[{unspaced_class()}]")
    for code in range(0x20000):
        character = chr(code)
        expected = (
            script_name(character) in UNSPACED and unicodedata.category(character)[0] in "LMN"
        )
        assert bool(inside.match(character)) == expected, hex(code)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the cat sat .", 4),
        ("我读书。", 2),
        ("我们用 GPT 写诗。", 4),
        ("나는 책을 읽는다", 3),
        ("", 0),
    ],
)
def test_words_are_counted_without_spaces_too(text: str, words: int) -> None:
    assert count_words(text) == words


def test_lines_that_are_cut_into_words_have_spaces() -> None:
    assert unspaced_script_of_lines(["我们今天读书。"]) == "Han"
    assert unspaced_script_of_lines(["我们 今天 读 书 。"]) == ""
    assert unspaced_script_of_lines(["ฉันอ่านหนังสือวันนี้"]) == "Thai"
    assert unspaced_script_of_lines(["ฉัน อ่าน หนังสือ วันนี้"]) == ""
    assert unspaced_script_of_lines(["the cat"]) == ""
