"""Noun phrases: pronouns, names, nouns with determiner, adjectives, owner and relative clause, and lists of them."""

from dataclasses import dataclass, replace

from grammar import english, french
from grammar.lexicon import Adjective, Name, Noun, Place
from grammar.text import (
    EMPTY,
    Pair,
    Words,
    article,
    bracket,
    join,
    new_link,
    phrase,
    spell,
    starts_with_vowel,
)


@dataclass(frozen=True)
class PronounForms:
    """The forms of one personal pronoun: English subject, object, possessive; French subject, clitics and stressed."""

    slot: int
    subject: str
    object: str
    possessive: str
    fr_subject: str
    fr_direct: str
    fr_indirect: str
    fr_stressed: str
    fr_reflexive: str
    gender: str
    number: str


# "you" is the polite vous to one man, and the speaker is a man: the source must determine the target.
_PRONOUN_TABLE = """
I    I me my           je me me moi me            m s 1
you  you you your      vous vous vous vous vous   m s 5
he   he him his        il le lui lui se           m s 3
she  she her her       elle la lui elle se        f s 3
it-m it it its         il le lui lui se           m s 3
it-f it it its         elle la lui elle se        f s 3
we   we us our         nous nous nous nous nous   m p 4
they-m they them their ils les leur eux se        m p 6
they-f they them their elles les leur elles se    f p 6
"""
PRONOUNS = {
    key: PronounForms(int(slot), *forms)
    for key, *forms, slot in (line.split() for line in _PRONOUN_TABLE.strip().splitlines())
}
_OWN = {  # slot of the owner -> forms before masculine singular, feminine singular, plural
    1: ("mon", "ma", "mes"),
    3: ("son", "sa", "ses"),
    4: ("notre", "notre", "nos"),
    5: ("votre", "votre", "vos"),
    6: ("leur", "leur", "leurs"),
}


@dataclass(frozen=True)
class Nominal:
    """A noun phrase in both languages.

    Attributes:
        en: the English words; of a pronoun, its subject form.
        fr: the French words; of a pronoun, its stressed form, as after a preposition.
        en_negated: as the direct object of a negated verb (some -> any).
        fr_negated: the same in French (un, du, des -> de).
        fr_after_de: after the preposition de (du, des are dropped: besoin de pain).
        gender: `m` or `f`.
        number: `s` or `p`.
        slot: French person, 1 je ... 6 ils.
        en_slot: the same for the English verb, where it differs (there is / there are).
        pronoun: the forms, if it is a pronoun.
        parts: the members of a list, before which French repeats à and de.
        separators: the link of the comma or "and" before each member of a list.
        link: link of the pronoun or of the head noun.
        dropped: link of the determiner that is dropped after de.
    """

    en: Words
    fr: Words
    en_negated: Words
    fr_negated: Words
    fr_after_de: Words
    gender: str
    number: str
    slot: int
    en_slot: int
    link: int
    pronoun: PronounForms | None = None
    parts: tuple["Nominal", ...] = ()
    separators: tuple[int, ...] = ()
    dropped: int | None = None

    @property
    def en_object(self) -> Words:
        """The English words as an object (me, him)."""
        return bracket("NP", spell(self.pronoun.object, self.link)) if self.pronoun else self.en

    @property
    def fr_subject(self) -> Words:
        """The French words as a subject (je, il)."""
        return spell(self.pronoun.fr_subject, self.link) if self.pronoun else self.fr

    def fr_after(self, preposition: str, link: int) -> Words:
        """The French words after the preposition à or de, which is repeated before each member of a list."""
        if self.parts:
            out: Words = ()
            for i, part in enumerate(self.parts):
                if i:
                    out += _separator(i, len(self.parts), self.separators[i]).fr
                out += part.fr_after(preposition, link)
            return out
        if preposition != "de":
            return spell(preposition, link) + self.fr
        links = (link,) if self.dropped is None else (link, self.dropped)
        return spell(preposition, *links) + self.fr_after_de

    def silent(self) -> "Nominal":
        """The same person, gender and number without words: the subject of "and sells it" in "he buys ... and ..."."""
        return replace(self, en=(), fr=(), pronoun=None, parts=(), separators=())


def plain(
    pair: Pair, gender: str, number: str, link: int | None = None, slot: int = 0, en_slot: int = 0
) -> Nominal:
    """A noun phrase that is the same in all positions."""
    slot = slot or (3 if number == "s" else 6)
    en, fr = bracket("NP", pair.en), pair.fr
    return Nominal(
        en,
        fr,
        en,
        fr,
        fr,
        gender,
        number,
        slot,
        en_slot or slot,
        new_link() if link is None else link,
    )


def pronoun(key: str) -> Nominal:
    """A personal pronoun: `I`, `you`, `he`, `she`, `it-m`, `it-f`, `we`, `they-m`, `they-f`."""
    forms = PRONOUNS[key]
    link = new_link()
    pair = Pair(spell(forms.subject, link), spell(forms.fr_stressed, link))
    return replace(plain(pair, forms.gender, forms.number, link, slot=forms.slot), pronoun=forms)


def person(name: Name) -> Nominal:
    """A person by name."""
    link = new_link()
    return plain(Pair(spell(name.text, link), spell(name.text, link)), name.gender, "s", link)


def country(place: Place) -> Nominal:
    """A country or a city as a subject or object: la France, les États-Unis, Paris."""
    link = new_link()
    fr = spell(place.fr, link)
    if place.gender:
        fr = article({"m": "le", "f": "la", "p": "les"}[place.gender], link) + fr
    number = "p" if place.gender == "p" else "s"
    return plain(
        Pair(spell(place.en, link), fr),
        place.gender if place.gender == "f" else "m",
        number,
        link,
        en_slot=3,
    )


def definite(gender: str, number: str, link: int) -> Words:
    """The French definite article."""
    return article("les" if number == "p" else {"m": "le", "f": "la"}[gender], link)


def noun_phrase(
    noun: Noun,
    number: str,
    determiner: str,
    before: Adjective | None = None,
    after: tuple[Adjective, ...] = (),
    owner: Nominal | None = None,
    count: int = 0,
    digits: bool = False,
    modifier: Pair = EMPTY,
) -> Nominal:
    """A noun with its determiner and what depends on it.

    Args:
        noun: the noun.
        number: `s` or `p`.
        determiner: `the`, `a`, `some` (any when negated), `bare` (no English article, French du/des), `generic` (no
            English article, French le/les), `this`, `every`, `several`, `a few`, `many`, `number`, `owner`.
        before: an adjective that stands before the French noun.
        after: adjectives that stand after the French noun, joined by "and" when there are two.
        owner: whose it is, with determiner `owner`: a pronoun (my), or any other noun phrase (Paul's).
        count: with determiner `number`, how many (2 to 100).
        digits: write the number in digits.
        modifier: words after the noun: a relative clause or a place.
    """
    link = new_link()
    gender = noun.gender
    head = noun.fr if number == "s" else noun.fr_plural
    en: Words = ()
    fr: Words = ()
    if before:
        own = new_link()
        form = before.form_before(gender, number, starts_with_vowel(head))
        en += spell(before.en, own)
        fr += spell(form, own, facts=(_fact(before, noun),))
    fr += spell(head, link)
    for i, adjective in enumerate(after):
        if i:
            both = phrase("and", "et")
            en, fr = en + both.en, fr + both.fr
        own = new_link()
        en += spell(adjective.en, own)
        fr += spell(adjective.form(gender, number), own, facts=(_fact(adjective, noun),))
    en += spell(noun.en if number == "s" else noun.en_plural, link)
    if determiner == "owner":
        assert owner is not None
        return _owned(Pair(en, fr), modifier, owner, gender, number, link)
    core = Pair(en + modifier.en, fr + modifier.fr)
    return _determine(core, determiner, gender, number, link, count, digits, bool(before))


def _fact(adjective: Adjective, noun: Noun) -> str:
    return f"adjective-noun/{adjective.en}+{noun.en}"


def _determine(
    core: Pair,
    determiner: str,
    gender: str,
    number: str,
    noun_link: int,
    count: int,
    digits: bool,
    adjective_first: bool,
) -> Nominal:
    """Put the determiner before a noun phrase, with its forms under negation and after de."""
    link = new_link()
    one = "un" if gender == "m" else "une"
    a_none = spell("de", link)
    if determiner in ("the", "generic"):
        en = spell("the", link) if determiner == "the" else ()
        fr = definite(gender, number, link if determiner == "the" else noun_link)
        return plain(Pair(en + core.en, fr + core.fr), gender, number, noun_link)
    if determiner == "a":
        en = spell("a", link) + core.en
        fr = spell(one, link) + core.fr
        return replace(plain(Pair(en, fr), gender, number, noun_link), fr_negated=a_none + core.fr)
    if determiner in ("some", "bare"):
        own = link if determiner == "some" else noun_link
        if number == "p":
            fr_det = spell("de" if adjective_first else "des", own)
        else:
            fr_det = spell("de", own) + definite(gender, number, own)
        nominal = plain(Pair(core.en, fr_det + core.fr), gender, number, noun_link)
        if determiner == "some":
            some, none = spell("some", own) + core.en, spell("any", own) + core.en
            nominal = replace(nominal, en=bracket("NP", some), en_negated=bracket("NP", none))
        return replace(
            nominal, fr_negated=spell("de", own) + core.fr, fr_after_de=core.fr, dropped=own
        )
    if determiner == "number":
        words = Pair(spell(str(count), link), spell(str(count), link))
        if not digits:
            words = Pair(
                spell(english.number(count), link), spell(french.number(count, gender), link)
            )
        return plain(join(words, core), gender, number, noun_link)
    demonstrative = "ces" if number == "p" else "ce" if gender == "m" else "cette"
    words = {
        "this": Pair(spell("this" if number == "s" else "these", link), spell(demonstrative, link)),
        "every": Pair(spell("every", link), spell("chaque", link)),
        "several": Pair(spell("several", link), spell("plusieurs", link)),
        "a few": Pair(spell("a few", link), spell("quelques", link)),
        "many": Pair(spell("many", link), spell("beaucoup de", link)),
    }[determiner]
    return plain(join(words, core), gender, number, noun_link)


def _owned(
    core: Pair, modifier: Pair, owner: Nominal, gender: str, number: str, noun_link: int
) -> Nominal:
    """My book -> mon livre; Paul's book -> le livre de Paul."""
    link = new_link()
    if owner.pronoun:
        forms = _OWN[owner.slot]
        fr = spell(forms[2] if number == "p" else forms[0 if gender == "m" else 1], link) + core.fr
        en = spell(owner.pronoun.possessive, link) + core.en
    else:
        apostrophe = "'" if owner.number == "p" and owner.en[-1].text.endswith("s") else "'s"
        en = owner.en + spell(apostrophe, link) + core.en
        fr = definite(gender, number, link) + core.fr + owner.fr_after("de", link)
    return plain(join(Pair(en, fr), modifier), gender, number, noun_link)


def superlative(adjective: Adjective, noun: Noun, number: str, modifier: Pair = EMPTY) -> Nominal:
    """The tallest boy -> le plus grand garçon; the most interesting book -> le livre le plus intéressant."""
    link, own, the = new_link(), new_link(), new_link()
    head = spell(noun.fr if number == "s" else noun.fr_plural, link)
    le = definite(noun.gender, number, the)
    if adjective.comparative:
        stem = adjective.comparative[:-1]
        en = spell("best" if adjective.en == "good" else stem + "st", own)
    else:
        en = spell("most", degree := new_link()) + spell(adjective.en, own)
    plus = spell("plus", own if adjective.comparative else degree)
    form = spell(adjective.form(noun.gender, number), own, facts=(_fact(adjective, noun),))
    if adjective.en == "good":
        plus, form = (), spell(_better(noun.gender, number), own)
    fr = le + plus + form + head if adjective.before else le + head + le + plus + form
    en_head = spell(noun.en if number == "s" else noun.en_plural, link)
    pair = Pair(spell("the", the) + en + en_head + modifier.en, fr + modifier.fr)
    return plain(pair, noun.gender, number, link)


def _better(gender: str, number: str) -> str:
    return "meilleur" + ("e" if gender == "f" else "") + ("s" if number == "p" else "")


def comparison(adjective: Adjective, gender: str, number: str, degree: str, than: Nominal) -> Pair:
    """Taller than Paul -> plus grand que Paul; degree is `more`, `less` or `as`."""
    own, degree_link, than_link = new_link(), new_link(), new_link()
    fact = (f"comparison/{adjective.en}",)
    form = spell(adjective.form(gender, number), own, facts=fact)
    if degree == "more" and adjective.en == "good":
        en, fr = spell("better", own), spell(_better(gender, number), own)
    elif degree == "more" and adjective.comparative:
        en, fr = spell(adjective.comparative, own), spell("plus", own) + form
    else:
        fr_degree = {"more": "plus", "less": "moins", "as": "aussi"}[degree]
        en = spell(degree, degree_link) + spell(adjective.en, own)
        fr = spell(fr_degree, degree_link) + form
    second = "as" if degree == "as" else "than"
    words = bracket("PP", spell(second, than_link) + than.en_object)
    return Pair(bracket("ADJP", en + words), fr + spell("que", than_link) + than.fr)


def _separator(i: int, total: int, link: int) -> Pair:
    """What stands before member i of a list: a comma, or "and" before the last one."""
    if i < total - 1:
        return Pair(spell(",", link), spell(",", link))
    return Pair(spell("and", link), spell("et", link))


def enumeration(parts: tuple[Nominal, ...]) -> Nominal:
    """A list of noun phrases (no pronouns): Paul, Marie and the child."""
    separators = [new_link() for _ in parts]

    def side(chosen: list[Words], language: int) -> Words:
        out: Words = ()
        for i, piece in enumerate(chosen):
            out += (_separator(i, len(parts), separators[i])[language] if i else ()) + piece
        return out

    gender = "f" if all(part.gender == "f" for part in parts) else "m"
    pair = Pair(side([p.en for p in parts], 0), side([p.fr for p in parts], 1))
    nominal = plain(pair, gender, "p", separators[-1])
    return replace(
        nominal,
        en_negated=bracket("NP", side([p.en_negated for p in parts], 0)),
        fr_negated=side([p.fr_negated for p in parts], 1),
        parts=parts,
        separators=tuple(separators),
    )
