"""The generator of the demonstration corpus: its grammar by hand-checked sentences, and the files it makes."""

import gzip
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import generate
import pytest
from grammar import clauses as c
from grammar import english, french, lexicon, text
from grammar import nominals as n

pytestmark = pytest.mark.slow  # tests/data/text/test_embedded.py asks daily of the files themselves
DATA = Path(generate.__file__).parent
Tense = c.Tense
words: Callable[[str], list[str]] = generate.words


@cache
def lines(name: str) -> list[str]:
    return gzip.open(DATA / "demo-en-fr" / f"{name}.gz", "rt", encoding="utf-8").read().splitlines()


# The language by hand: a sentence for each kind of rule. The regeneration of the files below covers all of them.


def np(noun: str, number: str = "s", det: str = "the", **options: Any) -> Any:
    return n.noun_phrase(lexicon.noun(noun), number, det, **options)


def name(text: str) -> Any:
    return n.person(next(entry for entry in [*lexicon.MEN, *lexicon.WOMEN] if entry.text == text))


def direct(verb: str, thing: Any, tail: str = "") -> Any:
    return c.transitive(lexicon.verb(verb, "direct", tail), thing)


def alone(verb: str, tail: str = "") -> Any:
    return c.predicate(lexicon.verb(verb, "none", tail))


def said(subject: Any, pred: Any, tense: Any, negation: str = "") -> Any:
    return c.clause(subject, pred, tense, negation).statement


def adjectives() -> Any:
    small, red = lexicon.adjective("small"), lexicon.adjective("red")
    car = np("car", det="a", before=small, after=(red,))
    return said(n.pronoun("he"), direct("buy", car), Tense.PAST)


def partitive() -> Any:
    return said(n.pronoun("I"), direct("eat", np("meat", det="some")), Tense.PRESENT, "never")


def participle() -> Any:
    return said(n.pronoun("I"), direct("see", n.pronoun("she")), Tense.PAST, "not")


def two_pronouns() -> Any:
    given = c.ditransitive(lexicon.verb("sell", "give"), n.pronoun("it-m"), n.pronoun("she"))
    return said(n.pronoun("he"), given, Tense.PRESENT)


def comparison() -> Any:
    taller = c.compared(lexicon.adjective("tall"), name("Marie"), "more", n.pronoun("he"))
    return said(name("Marie"), taller, Tense.PRESENT)


def infinitive() -> Any:
    tries = c.control(lexicon.verb("try", "de-inf"), direct("open", n.pronoun("it-m")), 3)
    return said(n.pronoun("he"), tries, Tense.PRESENT)


def subjunctive() -> Any:
    return said(
        name("Laura"),
        c.wanted(said(np("boy", "p"), alone("come", "back"), Tense.TO_SUBJUNCTIVE)),
        Tense.PRESENT,
    )


def relative() -> Any:
    bought = c.object_relative(
        lexicon.verb("buy", "direct"), np("flower", "p"), name("Paul"), Tense.PAST
    )
    return np("flower", "p", modifier=bought)


def order() -> Any:
    return c.imperative(direct("wait", n.pronoun("he"), "for"), negated=True)


def whose_sister() -> Any:
    return np("sister", det="owner", owner=np("teacher"))


@pytest.mark.parametrize(
    ("build", "en", "fr"),
    [
        (adjectives, "He bought a small red car", "Il a acheté une petite voiture rouge"),
        (partitive, "I never eat any meat", "Je ne mange jamais de viande"),
        (participle, "I did not see her", "Je ne l'ai pas vue"),
        (two_pronouns, "He sells it to her", "Il le lui vend"),
        (comparison, "Marie is taller than him", "Marie est plus grande que lui"),
        (infinitive, "He tries to open it", "Il essaie de l'ouvrir"),
        (subjunctive, "Laura wants the boys to come back", "Laura veut que les garçons reviennent"),
        (relative, "The flowers that Paul bought", "Les fleurs que Paul a achetées"),
        (order, "Do not wait for him.", "Ne l'attendez pas."),
        (whose_sister, "The teacher's sister", "La sœur du professeur"),
    ],
)
def test_hand_checked_sentence(build: Callable[[], Any], en: str, fr: str) -> None:
    made = build()
    assert generate.render(text.Pair(made.en, made.fr))[:2] == (en, fr)


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("manger", "mange mange mangeons mangez mangent mangeait mangions mangera mange mangé"),
        (
            "préférer",
            "préfère préfère préférons préférez préfèrent préférait préférions préférera préfère préféré",
        ),
        (
            "appeler",
            "appelle appelle appelons appelez appellent appelait appelions appellera appelle appelé",
        ),
        (
            "envoyer",
            "envoie envoie envoyons envoyez envoient envoyait envoyions enverra envoie envoyé",
        ),
        (
            "finir",
            "finis finit finissons finissez finissent finissait finissions finira finisse fini",
        ),
        ("perdre", "perds perd perdons perdez perdent perdait perdions perdra perde perdu"),
        ("être", "suis est sommes êtes sont était étions sera soit été"),
        ("vouloir", "veux veut voulons voulez veulent voulait voulions voudra veuille voulu"),
    ],
)
def test_conjugation(verb: str, forms: str) -> None:
    slots = [("présent", slot) for slot in (1, 3, 4, 5, 6)]
    slots += [("imparfait", 3), ("imparfait", 4), ("futur", 3), ("subjonctif", 3)]
    made = [french.conjugate(verb, tense, slot) for tense, slot in slots]
    assert [*made, french.participle(verb)] == forms.split()


def test_numbers() -> None:
    numbers = {
        21: ("twenty-one", "vingt et un"),
        71: ("seventy-one", "soixante et onze"),
        100: ("one hundred", "cent"),
    }
    assert {k: (english.number(k), french.number(k)) for k in numbers} == numbers


def test_words_splits_elision_possessive_and_punctuation() -> None:
    assert words("L'homme n'a pas vu qu'il s'habille aujourd'hui, à 8:30 ?") == [
        *(
            "L'",
            "homme",
            "n'",
            "a",
            "pas",
            "vu",
            "qu'",
            "il",
            "s'",
            "habille",
            "aujourd'hui",
            ",",
            "à",
            "8:30",
            "?",
        )
    ]
    assert words("Charles's aunt, the girls' dog; eight o'clock.") == [
        *("Charles", "'s", "aunt", ",", "the", "girls", "'", "dog", ";", "eight", "o'clock", ".")
    ]


def test_alignment_of_a_negated_question_by_hand() -> None:
    pair = c.yes_no(n.pronoun("he"), direct("eat", np("bread", det="some")), Tense.PAST, "not")
    en, fr, links, _ = generate.render(pair)
    assert (en, fr) == ("Did he not eat any bread?", "Est-ce qu'il n'a pas mangé de pain ?")
    linked = "Did-Est-ce Did-qu' Did-a he-il not-n' not-pas eat-mangé any-de bread-pain ?-?"
    assert " ".join(f"{words(en)[i]}-{words(fr)[j]}" for i, j in links) == linked


def test_contraction_keeps_both_links() -> None:
    en, fr, links, _ = generate.render(whose_sister())
    assert words(fr) == ["La", "sœur", "du", "professeur"]
    assert [words(en)[i] for i, j in links if j == 2] == ["The", "'s"]


# The files.


def test_committed_files_equal_a_regeneration() -> None:
    first = 600
    parts = generate.generate(sizes={**generate.PARTS, "train": first})
    for file, content in generate.files(parts):
        committed = lines(file)
        assert content.splitlines() == (
            committed[:first] if file.startswith("train") else committed
        ), file


def test_files_of_words_are_the_text_with_more_white_space(tmp_path: Path) -> None:
    for side in ("en", "fr"):
        for line, spaced in zip(lines(f"test.{side}"), lines(f"test.words.{side}"), strict=True):
            assert spaced.split() == words(line)
    sizes = ["--train", "4", "--valid", "3", "--test", "10"]
    generate.main(["--corpus", "en-fr", "--out", str(tmp_path), "--words", *sizes])
    for part in generate.PARTS:
        assert (tmp_path / f"{part}.words.en.gz").is_file()


def test_no_pair_occurs_twice_across_parts() -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for part in generate.PARTS:
        seen.update(zip(lines(f"{part}.en"), lines(f"{part}.fr"), strict=True))
    assert max(seen.values()) == 1


@pytest.mark.parametrize("language", ["en", "fr"])
def test_lengths_are_spread_from_3_to_50_words(language: str) -> None:
    lengths = Counter(len(words(line)) for line in lines(f"train.{language}"))
    assert set(lengths) == set(range(3, 51))
    total = sum(lengths.values())
    assert sum(lengths[k] for k in range(5, 21)) / total > 0.65
    assert 0.08 < sum(lengths[k] for k in range(31, 51)) / total < 0.13


def test_one_source_has_one_translation() -> None:
    translations: dict[str, set[str]] = {}
    for part in generate.PARTS:
        for en, fr in zip(lines(f"{part}.en"), lines(f"{part}.fr"), strict=True):
            translations.setdefault(en, set()).add(fr)
    assert {en: fr for en, fr in translations.items() if len(fr) > 1} == {}


@pytest.mark.parametrize("part", list(generate.PARTS))
def test_every_word_is_aligned(part: str) -> None:
    for en, fr, links in zip(
        lines(f"{part}.en"), lines(f"{part}.fr"), lines(f"{part}.align"), strict=True
    ):
        pairs = [tuple(map(int, link.split("-"))) for link in links.split()]
        assert pairs == sorted(set(pairs)), en
        assert {i for i, _ in pairs} == set(range(len(words(en)))), (en, fr, links)
        assert {j for _, j in pairs} == set(range(len(words(fr)))), (en, fr, links)


def test_vocabulary_is_modest() -> None:
    for language, most in (("en", 1700), ("fr", 2800)):
        forms = {word.lower() for line in lines(f"train.{language}") for word in words(line)}
        assert len(forms) < most
        unknown = [
            w for line in lines(f"test.{language}") for w in words(line) if w.lower() not in forms
        ]
        assert len(unknown) <= 12


# Held-out constructions, looked for in the text itself, without the generator.

AVOIR = {
    french.conjugate("avoir", tense, slot)
    for tense in ("présent", "subjonctif")
    for slot in (1, 3, 4, 5, 6)
}
ETRE = {
    french.conjugate("être", tense, slot)
    for tense in ("présent", "subjonctif")
    for slot in (1, 3, 4, 5, 6)
}
CLITICS = {"le", "la", "l'", "les"}
PEOPLE = {entry.text for entry in [*lexicon.MEN, *lexicon.WOMEN]} | {
    "he",
    "she",
    "they",
    "I",
    "we",
    "you",
}
NOUNS = {form.split("_")[-1] for entry in lexicon.NOUNS for form in (entry.en, entry.en_plural)}
HELPERS = (
    "((will|is|are|am|was|were|has|have|did|does|do|used to) )?(not )?"
    "((never|often|always|sometimes|rarely|already|still|just) )?(going to )?"
)


@cache
def participles(verb: str) -> set[str]:
    return {french.participle(verb, gender, number) for gender in "mf" for number in "sp"}


@cache
def finite(verb: str) -> set[str]:
    tenses = ("présent", "imparfait", "futur", "subjonctif")
    return {french.conjugate(verb, tense, slot) for tense in tenses for slot in (1, 3, 4, 5, 6)}


@cache
def english_forms(fr: str) -> set[str]:
    verb = next(entry for entry in lexicon.VERBS if entry.fr == fr)
    return {
        verb.en,
        english.add_s(verb.en),
        english.add_ing(verb.en),
        verb.past,
        verb.en_participle,
    }


def negated_past(lemma: str, en: list[str], fr: list[str]) -> bool:
    if "pas" not in fr:
        return False
    helpers = ETRE if french.takes_etre(lemma) else AVOIR
    adverbs = {"souvent", "toujours", "parfois", "rarement"}
    return any(
        fr[i] in helpers
        and fr[i + 1] == "pas"
        and next(w for w in fr[i + 2 :] if w not in adverbs) in participles(lemma)
        for i in range(len(fr) - 2)
    )


def object_pronoun(lemma: str, en: list[str], fr: list[str]) -> bool:
    for i, word in enumerate(fr[:-2]):
        if word in CLITICS:
            if fr[i + 1] in finite(lemma) | {lemma}:
                return True
            if fr[i + 1] in AVOIR and any(w in participles(lemma) for w in fr[i + 2 : i + 4]):
                return True
    return False


@cache
def pattern_of_relative(lemma: str) -> re.Pattern[str]:
    return re.compile(
        rf"(\w+) that ({'|'.join(PEOPLE)}) {HELPERS}({'|'.join(english_forms(lemma))})\b"
    )


def object_relative(lemma: str, en: list[str], fr: list[str]) -> bool:
    if "that" not in en:
        return False
    return any(match[1] in NOUNS for match in pattern_of_relative(lemma).finditer(" ".join(en)))


@cache
def pattern_of_question(lemma: str) -> re.Pattern[str]:
    helped = (
        rf"({'|'.join(AVOIR)}) ({'|'.join(participles(lemma))})|(vais|va|allons|allez|vont) {lemma}"
    )
    return re.compile(
        rf"(que|qu') (il|elle|ils|elles|je|j'|nous|vous) ({'|'.join(finite(lemma))}|{helped})\b"
    )


def question(lemma: str, en: list[str], fr: list[str]) -> bool:
    return fr[0] == "est-ce" and bool(pattern_of_question(lemma).match(" ".join(fr[1:])))


@cache
def pattern_of_comparison(lemma: str) -> re.Pattern[str]:
    adjective = lexicon.adjective(lemma)
    return re.compile(
        rf"\b((more|less|as) {adjective.en} (than|as)|{adjective.comparative or '-'} than)\b"
    )


def compared(lemma: str, en: list[str], fr: list[str]) -> bool:
    return ("than" in en or "as" in en) and bool(pattern_of_comparison(lemma).search(" ".join(en)))


@cache
def pattern_of_pair(lemma: str) -> re.Pattern[str]:
    adjective, _, noun = lemma.partition("+")
    entry = lexicon.noun(noun)
    return re.compile(rf"\b{adjective} ({entry.en}|{entry.en_plural})\b")


def adjective_noun(lemma: str, en: list[str], fr: list[str]) -> bool:
    return lemma.partition("+")[0] in en and bool(pattern_of_pair(lemma).search(" ".join(en)))


FINDERS: dict[str, Callable[[str, list[str], list[str]], bool]] = {
    "negated-past": negated_past,
    "object-pronoun": object_pronoun,
    "object-relative": object_relative,
    "question": question,
    "comparison": compared,
    "adjective-noun": adjective_noun,
}


@cache
def tokens(part: str) -> list[tuple[list[str], list[str]]]:
    sides = [
        [words(line[0].lower() + line[1:]) for line in lines(f"{part}.{language}")]
        for language in ("en", "fr")
    ]
    return list(zip(*sides, strict=True))


@pytest.mark.parametrize("family", list(FINDERS))
def test_held_out_constructions_occur_in_the_marked_part_only(family: str) -> None:
    labels = lines("test.heldout")
    held = [label for label in generate.HELD_OUT if label.startswith(family + "/")]
    assert len(held) >= 4
    others = (
        tokens("train")
        + tokens("valid")
        + [pair for pair, label in zip(tokens("test"), labels, strict=True) if label == "-"]
    )
    in_marked = []
    for label in held:
        lemma = label.partition("/")[2]
        marked = [pair for pair, mine in zip(tokens("test"), labels, strict=True) if mine == label]
        assert len(marked) >= 6
        in_marked.append(sum(FINDERS[family](lemma, *pair) for pair in marked) / len(marked))
        assert not [pair for pair in others if FINDERS[family](lemma, *pair)], label
    # The finders of questions and relative clauses see those with a pronoun or a name as the subject only.
    assert (
        sum(in_marked) > 1 if family in ("question", "object-relative") else set(in_marked) == {1.0}
    )


def test_held_out_words_and_constructions_are_both_frequent_in_train() -> None:
    train = tokens("train")
    for label in generate.HELD_OUT:
        family, _, lemma = label.partition("/")
        if family == "adjective-noun":
            adjective, _, noun = lemma.partition("+")
            forms = [{adjective}, {lexicon.noun(noun).en, lexicon.noun(noun).en_plural}]
        else:
            forms = [{lemma} if family == "comparison" else english_forms(lemma)]
        for group in forms:
            assert sum(not group.isdisjoint(en) for en, _ in train) >= 50, label
    for family, other in {
        "negated-past": "voir",
        "object-pronoun": "attendre",
        "object-relative": "trouver",
        "question": "manger",
        "comparison": "strong",
        "adjective-noun": "blue+car",
    }.items():
        assert sum(FINDERS[family](other, *pair) for pair in train) >= 5, family


def test_marked_part_is_three_lines_in_ten() -> None:
    labels = Counter(lines("test.heldout"))
    assert labels.pop("-") == 700
    assert set(labels) == set(generate.HELD_OUT)


# What no French teacher would let pass, looked for in all the text.


@cache
def french_text() -> list[list[str]]:
    return [fr for part in generate.PARTS for _, fr in tokens(part)]


def found(pattern: str) -> list[str]:
    return [line for line in (" ".join(fr) for fr in french_text()) if re.search(pattern, line)]


VOWEL = "(?!haricot|huit|haut|onze)[aàâeéèêiîoôuûœh]"


def test_elision_is_never_missing_nor_wrong() -> None:
    assert found(rf"\b(le|la|de|ne|je|me|se|que|ce) {VOWEL}") == []
    assert found(r"\b(l|d|n|j|m|s|qu)' (?![aàâeéèêiîoôuûœhAÀEÉÈIOUy])") == []
    assert found(r"\bsi ils?\b") == []
    assert found(rf"\b(ma|sa) {VOWEL}") == []
    assert found(rf"\b(le|ce|un|au|du|son|mon|notre|votre|leur) (beau|nouveau|vieux) {VOWEL}") == []
    assert len(found(r"\bl' ")) > 1000


def test_articles_contract() -> None:
    infinitive = r"(?!\w*(?:er|ir|re)\b)"
    assert found(rf"\b(de|à) les? {infinitive}") == []
    assert found(r"\bpas une? ") == []
    assert len(found(r"\b(du|des|au|aux) ")) > 3000


def test_negation_has_two_parts() -> None:
    for fr in french_text():
        for i, word in enumerate(fr):
            if word in ("ne", "n'"):
                assert {"pas", "jamais", "plus", "rien"} & set(fr[i + 1 : i + 6]), " ".join(fr)
            if word in ("pas", "jamais", "rien"):
                assert {"ne", "n'"} & set(fr[max(0, i - 6) : i]), " ".join(fr)
