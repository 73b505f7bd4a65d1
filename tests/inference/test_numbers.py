"""Which numbers, URLs and addresses of a source its translation lacks."""

import pytest

from nmtkit.inference.numbers import missing_numbers


@pytest.mark.parametrize(
    ("source", "translation"),
    [
        ("It cost 1,000 euros.", "Es kostete 1.000 Euro."),
        ("It cost 1,000 euros.", "Cela a coûté 1 000 euros."),
        ("It cost 1,000 euros.", "Cela a coûté 1\u202f000 euros."),
        ("It cost 1,234,567.50 euros.", "Es kostete 1.234.567,5 Euro."),
        ("It cost 1,00,000 rupees.", "Es kostete 100000 Rupien."),
        ("They have 120 tents.", "لديهم ١٢٠ خيمة"),
        ("They have 1,200 tents.", "１，２００張のテントがある。"),
        ("They have 20,000 tents.", "2万張のテントがある。"),
        ("約150万人がいる。", "There are about 1.5 million people."),
        ("It is 3.14 metres long.", "Elle fait 3,14 mètres."),
        ("It is 0.125 long.", "٠٫١٢٥"),
        ("The 21st day of 2026", "Le 21e jour de 2026"),
        ("in the 20th century", "au XXe siècle"),
        ("on 2026-11-28", "le 28 novembre 2026"),
        ("on 28.11.2026", "on November 28, 2026"),
        ("on 11/28/2026", "am 28.11.2026"),
        ("at 15:30", "at 3:30 pm"),
        ("at 3:30 pm", "à 15 h 30"),
        ("at 3 pm", "à 15 heures"),
        ("à 15 heures", "at 3 p.m."),
        ("in the 1990s", "dans les années 90"),
        ("dans les années 50", "in the 1950s"),
        ("20,000 yen and 1,000 yen", "２ 万 円 と １、０００ 円"),
        ("&#91; about &#93; it", "à ce sujet"),
        ("See http://example.org/a`", "Voir https://example.org/a"),
        ("um 14.30 Uhr", "at 14:30"),
        ("five tents and 3 dogs", "cinq tentes et trois chiens"),
        ("12 tents of 200", "douze tentes sur 200"),
        ("rooms 12 300 and 400", "300, 12 et 400"),
        ("the address 192.168.0.77", "l'adresse 192.168.0.77"),
        ("See https://example.org/a?b=17.", "Voir https://example.org/a?b=17"),
        ("Write to Help@example.org!", "Écrivez à help@example.org."),
        ("<2fr> no number", "aucun nombre"),
        ("no number", "200"),
        ("", ""),
    ],
)
def test_equal_values_are_found(source: str, translation: str) -> None:
    assert missing_numbers(source, translation) == ()


@pytest.mark.parametrize(
    ("source", "translation", "missing"),
    [
        ("They distributed 200 blankets.", "Ils ont distribué 8982 couvertures.", ("200",)),
        ("The nurse checked 120 tents", "1200 tentes", ("120",)),
        ("200 tents and 40 dogs", "des tentes et 40 chiens", ("200",)),
        ("5 tents", "50 tentes", ("5",)),
        ("12.5 %", "12 %", ("12.5",)),
        ("3.5 km", "35 km", ("3.5",)),
        ("1,500 euros", "1,5 euros", ("1,500",)),
        ("１２０張のテント", "32 tents", ("１２０",)),
        ("on 2026-11-28", "le 18 novembre 2026", ("28",)),
        ("at 15:45", "à 15 h", ("15:45",)),
        ("See https://example.org/a.", "Voir http : / / exemple", ("https://example.org/a",)),
        ("Write to help@example.org!", "Écrivez !", ("help@example.org",)),
        ("17 and 17", "rien", ("17",)),
        ("20 tents", "120 tentes", ("20",)),
        ("15 tents", "3 tentes", ("15",)),
        ("in 1990", "in 1980", ("1990",)),
    ],
)
def test_lost_or_changed_values_are_named(
    source: str, translation: str, missing: tuple[str, ...]
) -> None:
    assert missing_numbers(source, translation) == missing


def test_odd_lines_take_no_long_time() -> None:
    for line in (
        "1" * 50_000,
        "1," * 50_000,
        "1 000 " * 20_000,
        "XI" * 50_000,
        "a@" * 50_000,
        "1:" * 50_000,
    ):
        missing_numbers(line, line)
