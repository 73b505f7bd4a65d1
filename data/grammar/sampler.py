"""Random sentences: which words and which constructions, never how they are inflected or aligned.

A `Sampler` makes sentences of about a wanted length by adding phrases until the length is reached. Common words come
first in the lexicon and are drawn more often, none less than half as often as the average.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from grammar import clauses, english, french, lexicon
from grammar.clauses import Predicate, Tense
from grammar.lexicon import Adjective, Noun, Verb
from grammar.nominals import EMPTY, PRONOUNS, Nominal, country, enumeration, noun_phrase, person, plain, pronoun
from grammar.nominals import superlative as superlative_phrase
from grammar.text import Pair, join, mark, new_link, phrase, spell

T = TypeVar("T")

_MONTHS = [
    ("January", "janvier"),
    ("February", "février"),
    ("March", "mars"),
    ("April", "avril"),
    ("May", "mai"),
    ("June", "juin"),
    ("July", "juillet"),
    ("August", "août"),
    ("September", "septembre"),
    ("October", "octobre"),
    ("November", "novembre"),
    ("December", "décembre"),
]
_DAYS = [
    ("Monday", "lundi"),
    ("Tuesday", "mardi"),
    ("Wednesday", "mercredi"),
    ("Thursday", "jeudi"),
    ("Friday", "vendredi"),
    ("Saturday", "samedi"),
    ("Sunday", "dimanche"),
]
_SEASONS = [
    ("summer", "en", "été"),
    ("winter", "en", "hiver"),
    ("spring", "au", "printemps"),
    ("autumn", "en", "automne"),
]
_MANNER = [
    ("slowly", "lentement"),
    ("quickly", "rapidement"),
    ("quietly", "tranquillement"),
    ("carefully", "prudemment"),
    ("patiently", "patiemment"),
    ("nervously", "nerveusement"),
    ("discreetly", "discrètement"),
    ("calmly", "calmement"),
]
_WITH_PURPOSE = {("come", "back"), ("leave", ""), ("go", "out"), ("get", "up"), ("stay", ""), ("hurry", "")}
_IN_COMPANY = {"eat", "drink", "visit", "prepare", "build", "study", "clean", "repair"}
_FREQUENCY = [("often", "souvent"), ("always", "toujours"), ("sometimes", "parfois"), ("rarely", "rarement")]
_DEGREES = [("very", "très"), ("too", "trop"), ("quite", "assez"), ("really", "vraiment")]
_OPENERS = [
    ("fortunately", "heureusement"),
    ("unfortunately", "malheureusement"),
    ("however", "cependant"),
    ("of course", "bien sûr"),
    ("in general", "en général"),
]
_LANGUAGES = [
    ("French", "français"),
    ("English", "anglais"),
    ("German", "allemand"),
    ("Italian", "italien"),
    ("Spanish", "espagnol"),
    ("Russian", "russe"),
    ("Japanese", "japonais"),
]
_THINGS = ("thing", "clothes", "vehicle", "furniture", "part", "secret")
_PLACES = ("building", "room", "outdoors", "sight")
_HUMAN = ("person", "kin", "baby")

# Group of adjectives (before the French noun; after it) that fit a kind of noun.
_FITTING = {
    "person": ("any person", "person nation"),
    "kin": ("person", "person"),
    "baby": ("any", "person"),
    "grocery": ("good", ""),
    "animal": ("any animal", "animal"),
    "food": ("good", "food"),
    "dish": ("good", "food"),
    "drink": ("good", "food"),
    "text": ("any book", "thought"),
    "thought": ("good", "thought"),
    "event": ("good", "thought"),
    "secret": ("good", ""),
    "time": ("", ""),
}
_UNFIT = {
    "kin": ("tall", "shy", "hard-working"),
    "baby": ("new", "bad", "good", "rich", "poor", "honest", "polite", "proud", "serious", "hard-working"),
    "grocery": ("new", "old"),
    "dish": ("ripe", "sweet", "new", "old"),
    "drink": ("ripe", "sweet", "new", "old"),
    "food": ("new", "old"),
    "event": ("clear", "useful"),
    "animal": ("bad", "new"),
    "text": ("useful",),
}


@cache
def _fitting(noun: Noun) -> tuple[list[Adjective], list[Adjective]]:
    """Adjectives for a noun: those before the French noun and those after it."""
    if noun.kind in _PLACES:
        first, second = "any", "place"
    else:
        first, second = _FITTING.get(noun.kind, ("any", "colour thing"))
    unfit = _UNFIT.get("thing" if noun.kind in _THINGS else noun.kind, ())
    good = ("good", "bad", "new", "old")

    def fits(entry: Adjective, groups: str) -> bool:
        named = "good" in groups.split() and entry.en in good
        return (entry.group in groups.split() or named) and entry.en not in unfit

    before = [entry for entry in lexicon.ADJECTIVES if entry.before and fits(entry, first)]
    after = [entry for entry in lexicon.ADJECTIVES if not entry.before and fits(entry, second)]
    return before, after


@cache
def _nouns(kinds: tuple[str, ...]) -> list[Noun]:
    return lexicon.nouns_of(kinds)


@cache
def _verbs(frame: str, subject: str = "") -> list[Verb]:
    """Verbs of a frame, for subjects of a kind if it is given."""
    return [verb for verb in lexicon.VERBS if verb.frame == frame and (not subject or subject in verb.subjects)]


@cache
def _taking(frame: str, noun: Noun) -> list[Verb]:
    """Verbs of a frame that a person can do to a thing."""
    return [verb for verb in _verbs(frame, "person") if verb.takes(noun)]


@cache
def _kin(male_owner: bool, plural: bool) -> list[Noun]:
    """Relatives that somebody may have."""
    several = ("brother", "sister", "son", "daughter", "uncle", "aunt", "cousin", "nephew", "niece")
    unfit = "husband" if male_owner else "wife"
    return [noun for noun in _nouns(("kin",)) if noun.en != unfit and (not plural or noun.en in several)]


def _same_in_past(verb: Verb, subject: Nominal) -> bool:
    """Whether the English form does not show the tense: they read, they cut."""
    return verb.past == verb.en and subject.en_slot != 3


class Sampler:
    """A source of random sentence pairs.

    Args:
        rng: where all randomness comes from; only its method `random` is used, which gives the same numbers in every
            version of Python.
    """

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random
        self._plural_gender = "m"  # of the last plural subject: what "they" means
        self._head: Noun | None = None  # the noun of the last subject that is a thing, for the passive

    # Choosing.

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return int(self._random() * n)

    def pick(self, items: Sequence[T]) -> T:
        """One of the items, all equally likely."""
        return items[self.below(len(items))]

    def common(self, items: Sequence[T]) -> T:
        """One of the items, the first ones more often."""
        x = self._random()
        return items[int(x * x * len(items))]

    def weighted(self, **weights: float) -> str:
        """One of the names, as often as its weight says."""
        x = self._random() * sum(weights.values())
        for name, weight in weights.items():
            x -= weight
            if x < 0:
                return name
        return next(iter(weights))

    # Noun phrases.

    def any_pronoun(self) -> Nominal:
        """A personal pronoun as a subject."""
        key = self.weighted(he=6, she=6, I=4, we=3, you=3, they=5)
        return pronoun(f"they-{self._plural_gender}" if key == "they" else key)

    def name(self) -> Nominal:
        """A person by name."""
        return person(self.common(lexicon.MEN if self.chance(0.5) else lexicon.WOMEN))

    def named(self, room: int) -> Nominal:
        """A person by name, if there is room with a relative clause between commas: Paul, who is tired, ..."""
        name = self.name()
        if room < 6 or not self.chance(0.2):
            return name
        subject = clauses.relative_subject(name, human=True)
        clause = self.finish(subject, self.predicate(subject, "person", room - 4), "present")
        pair = join(Pair(name.en, name.fr), mark(","), clause, mark(","))
        return plain(pair, name.gender, "s", name.link)

    def own(self, subject: Nominal | None) -> Nominal:
        """Whose: mostly the subject's own, else somebody else's."""
        if subject is not None and self.chance(0.75):
            if subject.pronoun:
                return pronoun({"it": "he"}.get(subject.pronoun.subject, self._key(subject)))
            return pronoun(self._key(subject))
        if self.chance(0.6):
            return self.name()
        noun = self.common([noun for noun in _nouns(("person",)) if noun.en != "child"])
        return noun_phrase(noun, "p" if self.chance(0.15) else "s", "the")

    def relation(self, room: int, subject: Nominal | None, plural: float = 0.15) -> Nominal:
        """A relative: his brother, Paul's mother."""
        owner = self.own(subject)
        number = self.number(plural)
        noun = self.common(_kin(owner.gender == "m", number == "p"))
        return self.described(noun, number, "owner", room, owner=owner)

    def _key(self, subject: Nominal) -> str:
        by_slot = {1: "I", 4: "we", 5: "you", 6: f"they-{subject.gender}"}
        return by_slot.get(subject.slot, "he" if subject.gender == "m" else "she")

    def human(self, room: int, subject: Nominal | None = None, plain_only: bool = False) -> Nominal:
        """A person as a noun phrase of up to about `room` English words."""
        if self.chance(0.2):
            return self.relation(room - 1, subject)
        noun = self.common(_nouns(("person",)))
        number = self.number(0.3)
        if number == "s":
            det = self.weighted(the=7, a=2, this=1, every=0.4)
        else:
            det = self.weighted(the=7, this=1, number=1, several=0.5, many=0.5)
        return self.described(noun, number, det, room - 1, plain_only=plain_only)

    def number(self, plural: float) -> str:
        """`p` with this probability, else `s`."""
        return "p" if self.chance(plural) else "s"

    def described(
        self,
        noun: Noun,
        number: str,
        determiner: str,
        room: int,
        owner: Nominal | None = None,
        plain_only: bool = False,
    ) -> Nominal:
        """A noun phrase with adjectives or a relative clause as far as there is room."""
        before: Adjective | None = None
        after: tuple[Adjective, ...] = ()
        modifier = EMPTY
        firsts, seconds = _fitting(noun)
        if room >= 2 and firsts and self.chance(0.25):
            before = self.common(firsts)
        if room >= 2 and seconds and self.chance(0.25 if before is None else 0.1):
            after = (self.common(seconds),)
            if room >= 5 and before is None and self.chance(0.2):
                other = self.common(seconds)
                after = after if other.en == after[0].en else (*after, other)
        if room >= 5 and not plain_only and noun.kind != "kin" and self.chance(min(0.7, (room - 3) / 12)):
            modifier = self.relative(noun, number, room - 2, described=before is not None or bool(after))
        count = self.count() if determiner == "number" else 0
        digits = count > 20 and noun.kind not in _HUMAN and self.chance(0.5)
        return noun_phrase(noun, number, determiner, before, after, owner, count, digits, modifier)

    def count(self) -> int:
        """How many: mostly a few."""
        if self.chance(0.85):
            return 2 + int(self._random() * self._random() * 11)
        return 2 + int(self._random() * self._random() * 99)

    def subject(self, kind: str = "person", room: int = 2) -> Nominal:
        """The subject of a clause."""
        if kind == "animal":
            noun = self.common(_nouns(("animal",)))
            number = self.number(0.3)
            result = self.described(noun, number, self.weighted(the=6, this=1, owner=1), room, owner=self.own(None))
        elif kind != "person":
            noun = self._head = self.common(_nouns((kind,)))
            number = self.number(0.25) if noun.en_plural else "s"
            det = self.weighted(the=6, this=2, owner=2)
            result = self.described(noun, number, det, room, owner=self.own(None))
        else:
            how = self.weighted(pronoun=7, name=5, noun=7, two=1 if room >= 3 else 0)
            if how == "pronoun":
                return self.any_pronoun()
            if how == "name":
                return self.named(room)
            if how == "noun":
                result = self.human(room)
            else:
                result = self.several_people(2)
        if result.slot == 6:
            self._plural_gender = result.gender
        return result

    def several_people(self, n: int) -> Nominal:
        """Paul, Marie and the doctor."""
        parts = [self.name()]
        while len(parts) < n:
            other = self.name() if self.chance(0.7) else noun_phrase(self.common(_nouns(("person",))), "s", "the")
            if all(other.en[-1].text != part.en[-1].text for part in parts):
                parts.append(other)
        return enumeration(tuple(parts))

    def thing(self, verb: Verb, subject: Nominal, room: int, negated: bool = False, definite: bool = False) -> Nominal:
        """An object that fits a verb."""
        if "person" in verb.objects and self.chance(0.4):
            return self.somebody(verb, subject, room, negated)
        kinds = tuple(kind for kind in verb.objects if kind != "person") or verb.objects
        if verb.frame == "direct" and "state" not in verb.flags and not negated and room >= 8 and self.chance(0.3):
            return self.things(verb, kinds, subject, room)
        return self.one_thing(self.common(_nouns(kinds)), verb, subject, room, negated, definite)

    def one_thing(
        self, noun: Noun, verb: Verb, subject: Nominal, room: int, negated: bool = False, definite: bool = False
    ) -> Nominal:
        """A noun as an object."""
        mass = not noun.en_plural
        number = "s" if mass else self.number(0.3)
        owner = self.own(subject)
        if noun.kind == "kin":
            return self.relation(room, subject)
        if definite:
            det = self.weighted(the=6, this=2, owner=2)
        elif "generic" in verb.flags:
            number = "s" if mass else "p"
            det = self.weighted(generic=7, this=1, the=1, owner=1)
        elif mass:
            if noun.kind == "drink" and self.chance(0.3):
                return self.measure(noun)
            det = self.weighted(the=4, some=4, bare=2, owner=1)
        elif number == "s":
            det = self.weighted(the=5, a=3, owner=2, this=1.5)
        else:
            few = 0 if negated else 1
            det = self.weighted(
                the=4, some=1.5, bare=1, number=2, owner=1.5, this=1, several=few, a_few=0.7 * few, many=1
            )
        # No relative clause on "not ... a": it would need the subjunctive.
        alone = det == "generic" or (negated and det in ("a", "some", "bare"))
        return self.described(noun, number, det.replace("_", " "), room, owner=owner, plain_only=alone)

    def measure(self, drink: Noun) -> Nominal:
        """A glass of water, two cups of tea."""
        vessel = {"coffee": "cup", "tea": "cup", "wine": "bottle", "beer": "bottle"}.get(drink.en, "glass")
        link, of = new_link(), new_link()
        content = Pair(spell("of", of) + spell(drink.en, link), spell("de", of) + spell(drink.fr, link))
        number = self.number(0.4)
        det = "a" if number == "s" else "number"
        count = self.count() if number == "p" else 0
        return noun_phrase(lexicon.noun(vessel), number, det, count=count, modifier=content)

    def things(self, verb: Verb, kinds: tuple[str, ...], subject: Nominal, room: int) -> Nominal:
        """A list of objects of one kind."""
        noun = self.common(_nouns(kinds))
        parts: list[Nominal] = []
        seen: set[str] = set()
        n = 2 + self.below(min(5, room // 4) + 1)
        for _ in range(3 * n):
            noun = self.common(_nouns((noun.kind,)))
            if noun.en not in seen and len(parts) < n:
                seen.add(noun.en)
                parts.append(self.one_thing(noun, verb, subject, 2))
        return enumeration(tuple(parts)) if len(parts) > 1 else parts[0]

    def somebody(self, verb: Verb, subject: Nominal, room: int, negated: bool = False) -> Nominal:
        """A person as an object: a pronoun other than the subject's, a name or a noun."""
        how = self.weighted(pronoun=4, name=3, noun=4)
        if "generic" in verb.flags and how == "noun":
            return noun_phrase(self.common(_nouns(("person",))), "p", "generic")
        if how == "pronoun":
            keys = ["he", "she", "they-m"]
            keys += [key for key in ("I", "you", "we") if not self._same_person(subject.slot, PRONOUNS[key].slot)]
            return pronoun(self.pick(keys))
        if how == "name":
            return self.name()
        return self.human(room, subject, plain_only=negated)

    @staticmethod
    def _same_person(slot: int, other: int) -> bool:
        return slot == other or (slot in (1, 4) and other in (1, 4))

    def relative(self, noun: Noun, number: str, room: int, described: bool) -> Pair:
        """A relative clause that fits a noun."""
        head = plain(EMPTY, noun.gender, number)
        human = noun.kind in _HUMAN
        objects = _taking("direct", noun)
        genitives = _taking("de", noun)
        datives = _taking("à", noun) if human else []
        living = noun.kind in ("building", "outdoors")
        kind = self.weighted(
            subject=4 if human else 0,
            object=4 if objects else 0,
            genitive=1.2 if genitives else 0,
            dative=1 if datives else 0,
            whose=1.2 if human else 0,
            place=3 if living else 0,
            state=1 if not human and not described else 0.001,
        )
        when = self.weighted(present=5, past=4, future=1)
        if kind == "subject":
            subject = clauses.relative_subject(head, human)
            pred = self.predicate(subject, "person", room)
            return self.finish(subject, pred, when)
        if kind == "state":
            subject = clauses.relative_subject(head, human=False)
            adjective = self.common([*_fitting(noun)[1], *_fitting(noun)[0]] or _fitting(lexicon.noun("book"))[1])
            be = lexicon.verb("be", "adjective")
            return clauses.clause(subject, clauses.adjectival(be, adjective, subject), Tense.PRESENT).statement
        if kind == "whose":
            if self.chance(0.5):
                owned = self.common(_kin(noun.gender == "m", plural=False))
                subject = clauses.whose(owned, "s")
                return self.finish(subject, self.predicate(subject, "person", min(room, 5)), when)
            owned = self.common(_nouns(("vehicle", "clothes")))
            subject = clauses.whose(owned, self.number(0.2))
            be = lexicon.verb("be", "adjective")
            adjective = self.common(_fitting(owned)[1])
            return clauses.clause(subject, clauses.adjectival(be, adjective, subject), Tense.PRESENT).statement
        who = self.name() if self.chance(0.4) else self.any_pronoun() if self.chance(0.6) else self.human(2)
        if who.slot == 6 and who.pronoun:
            who = pronoun("they-m") if self._plural_gender == "m" else pronoun("we")
        if kind == "place":
            verb = self.pick([lexicon.verb(en, "none") for en in ("work", "sleep", "play")])
            pred = clauses.predicate(lexicon.verb("live", "place") if self.chance(0.4) else verb)
            return clauses.place_relative(self.finish(who, pred, when))
        verbs = {"object": objects, "genitive": genitives, "dative": datives}[kind]
        verb = self.common(verbs)
        tense = self.tense(verb, when, who)
        negation = "not" if self.chance(0.1) and tense in (Tense.PRESENT, Tense.PAST) else ""
        if kind == "object":
            return clauses.object_relative(verb, head, who, tense, negation)
        return clauses.oblique_relative(verb, who, tense, negation)

    # Places and times.

    def place(self) -> Pair:
        """Where something happens: in the garden, near the school, in Paris, at home."""
        how = self.weighted(room=3, outdoors=3, building=3, city=2, country=1.2, home=1)
        if how == "home":
            return phrase("at:1 home:2", "à:1 la:2 maison:2")
        if how in ("city", "country"):
            return self.country_or_city()
        noun = self.common(_nouns((how,)))
        place = self.described(noun, "s", self.weighted(the=8, this=1, owner=0.7, a=1), 2, owner=self.own(None))
        if how == "building":
            en, fr = self.pick([("in", "dans"), ("near", "près de"), ("behind", "derrière"), ("in front of", "devant")])
            return self._preposition(en, fr, place)
        return self._preposition("in", "dans", place)

    def country_or_city(self) -> Pair:
        """In Paris, in France."""
        if self.chance(0.4):
            return self._country("in")
        return self._preposition("in", "à", country(self.common(lexicon.CITIES)))

    def spot(self) -> Pair:
        """Where a thing lies: on the table, under the bed, in the box."""
        noun = self.common(_nouns(("furniture",)))
        place = self.described(noun, "s", self.weighted(the=8, this=1, owner=1), 2, owner=self.own(None))
        en, fr = self.pick(
            [("on", "sur"), ("under", "sous"), ("behind", "derrière"), ("next to", "à côté de"), ("near", "près de")]
        )
        if noun.en == "carpet":
            en, fr = "on", "sur"
        if noun.en in ("sofa", "armchair", "shelf", "cupboard") and en == "on":
            en, fr = "behind", "derrière"
        return self._preposition(en, fr, place)

    def goal(self) -> Pair:
        """Where somebody goes: to the market, to Paris, to France."""
        how = self.weighted(building=5, city=3, country=2, market=1)
        if how == "city":
            return self._preposition("to", "à", country(self.common(lexicon.CITIES)))
        if how == "country":
            return self._country("to")
        noun = (
            self.common(_nouns(("building",))) if how == "building" else self.pick(_nouns(("market", "beach", "park")))
        )
        det = self.weighted(the=9, owner=1 if how == "building" else 0)
        return self._preposition("to", "à", self.described(noun, "s", det, 0, owner=self.own(None)))

    def origin(self) -> Pair:
        """Where somebody comes from."""
        if self.chance(0.3):
            return self._country("from")
        if self.chance(0.3):
            return self._preposition("from", "de", country(self.common(lexicon.CITIES)))
        return self._preposition("from", "de", noun_phrase(self.common(_nouns(("building",))), "s", "the"))

    def _country(self, en: str) -> Pair:
        """in/to France -> en France, in Japan -> au Japon; from France -> de France, from Japan -> du Japon."""
        place = country(self.common(lexicon.COUNTRIES))
        if place.gender == "f":
            link = new_link()
            fr = "de" if en == "from" else "en"
            return Pair(spell(en, link) + place.en, spell(fr, link) + place.fr[1:])
        return self._preposition(en, "de" if en == "from" else "à", place)

    def _preposition(self, en: str, fr: str, place: Nominal) -> Pair:
        link = new_link()
        *start, last = fr.split()
        if last in ("à", "de"):
            return Pair(spell(en, link) + place.en_object, spell(" ".join(start), link) + place.fr_after(last, link))
        return Pair(spell(en, link) + place.en_object, spell(fr, link) + place.fr)

    def time(self, tense: Tense, state: bool = False) -> Pair:
        """When: an expression that goes with the tense, or nothing where none does."""
        name = tense.value[0]
        if name == "present":
            return self._habit() if tense is Tense.PRESENT else EMPTY
        if name == "used to":
            return self._habit()
        if name == "progressive":
            return self._fixed(
                [("now", "maintenant"), ("at the moment", "en ce moment"), ("this:1 morning:2", "ce:1 matin:2")]
            )
        if name in ("past", "past progressive"):
            return self._past(name == "past") if not state else self._long_ago()
        if name in ("future", "going to"):
            return self._future()
        return EMPTY

    def _fixed(self, choices: Sequence[tuple[str, str]]) -> Pair:
        return phrase(*self.pick(choices))

    def _habit(self) -> Pair:
        how = self.weighted(fixed=4, day=2, season=2, clock=3, month=1)
        if how == "day":
            en, fr = self.pick(_DAYS)
            return phrase(f"on:1 {en}s:2", f"le:1 {fr}:2")
        if how == "season":
            en, preposition, fr = self.pick(_SEASONS)
            return phrase(f"in:1 {en}:2", f"{preposition}:1 {fr}:2")
        if how == "clock":
            return self._clock()
        if how == "month":
            return self._month()
        return self._fixed(
            [
                ("every:1 day:2", "tous:1 les:1 jours:2"),
                ("every:1 morning:2", "chaque:1 matin:2"),
                ("every:1 evening:2", "chaque:1 soir:2"),
                ("every:1 week:2", "chaque:1 semaine:2"),
                ("in:1 the:1 morning:2", "le:1 matin:2"),
                ("in:1 the:1 evening:2", "le:1 soir:2"),
                ("in:1 the:1 afternoon:2", "l':1 après-midi:2"),
            ]
        )

    def _month(self) -> Pair:
        en, fr = self.pick(_MONTHS)
        return phrase(f"in:1 {en}:2", f"en:1 {fr}:2")

    def _clock(self) -> Pair:
        hour = 1 + self.below(12)
        if hour == 12:
            return phrase("at:1 noon:2", "à:1 midi:2")
        en, fr = english.number(hour), french.number(hour, "f")
        hours = "heure" if hour == 1 else "heures"
        half = self.weighted(no=4, half=1, quarter=1)
        if half == "half":
            return phrase(f"at:1 half:4 past:4 {en}:2", f"à:1 {fr}:2 {hours}:2 et:4 demie:4")
        if half == "quarter":
            return phrase(f"at:1 a:4 quarter:4 past:5 {en}:2", f"à:1 {fr}:2 {hours}:2 et:5 quart:4")
        return phrase(f"at:1 {en}:2 o'clock:3", f"à:1 {fr}:2 {hours}:3")

    def _date(self, year: int | None) -> Pair:
        """On July 14, 1998 -> le 14 juillet 1998; the first of a month is le 1er."""
        (en, fr), day = self.pick(_MONTHS), 1 + self.below(28)
        link, month, own = new_link(), new_link(), new_link()
        pair = Pair(
            spell("on", link) + spell(en, month) + spell(str(day), own),
            spell("le", link) + spell("1er" if day == 1 else str(day), own) + spell(fr, month),
        )
        if year is None:
            return pair
        last = new_link()
        return Pair(pair.en + spell(",", last) + spell(str(year), last), pair.fr + spell(str(year), last))

    def _span(self) -> tuple[str, str, str, str]:
        """A number and a unit of time in both languages: two, days, deux, jours."""
        noun = self.common(_nouns(("day", "week", "month", "year", "hour", "minute")))
        n = 2 + self.below(9)
        return english.number(n), noun.en_plural, french.number(n, noun.gender), noun.fr_plural

    def _past(self, dated: bool) -> Pair:
        how = self.weighted(fixed=5, day=2, ago=2.5 if dated else 0, date=1.5, year=1.5 if dated else 0)
        if how == "day":
            en, fr = self.pick(_DAYS)
            return phrase(f"last:1 {en}:2", f"{fr}:2 dernier:1")
        if how == "ago":
            n, unit, fr_n, fr_unit = self._span()
            return phrase(f"{n}:1 {unit}:2 ago:3", f"il:3 y:3 a:3 {fr_n}:1 {fr_unit}:2")
        if how == "date":
            return self._date(1980 + self.below(40) if self.chance(0.5) else None)
        if how == "year":
            return self._year()
        return self._fixed(
            [
                ("yesterday", "hier"),
                ("yesterday", "hier"),
                ("last:1 week:2", "la:1 semaine:2 dernière:1"),
                ("last:1 month:2", "le:1 mois:2 dernier:1"),
                ("last:1 year:2", "l':1 année:2 dernière:1"),
                ("last:1 night:2", "la:1 nuit:2 dernière:1"),
                ("yesterday:1 evening:2", "hier:1 soir:2"),
                ("this:1 morning:2", "ce:1 matin:2"),
            ]
        )

    def _long_ago(self) -> Pair:
        """When a state was true."""
        if self.chance(0.3):
            return self._year()
        return self._fixed(
            [("last:1 year:2", "l':1 année:2 dernière:1"), ("at:1 that:2 time:3", "à:1 cette:2 époque:3")]
        )

    def _year(self) -> Pair:
        link, own = new_link(), new_link()
        year = str(1980 + self.below(40))
        return Pair(spell("in", link) + spell(year, own), spell("en", link) + spell(year, own))

    def _future(self) -> Pair:
        how = self.weighted(fixed=5, day=2, span=2, date=1, clock=1)
        if how == "day":
            en, fr = self.pick(_DAYS)
            return phrase(f"next:1 {en}:2", f"{fr}:2 prochain:1")
        if how == "span":
            n, unit, fr_n, fr_unit = self._span()
            return phrase(f"in:3 {n}:1 {unit}:2", f"dans:3 {fr_n}:1 {fr_unit}:2")
        if how == "date":
            return self._date(None)
        if how == "clock":
            return self._clock()
        return self._fixed(
            [
                ("tomorrow", "demain"),
                ("tomorrow", "demain"),
                ("next:1 week:2", "la:1 semaine:2 prochaine:1"),
                ("next:1 month:2", "le:1 mois:2 prochain:1"),
                ("next:1 year:2", "l':1 année:2 prochaine:1"),
                ("tonight", "ce soir"),
                ("tomorrow:1 morning:2", "demain:1 matin:2"),
            ]
        )

    # Predicates and tenses.

    def tense(self, verb: Verb, when: str, subject: Nominal) -> Tense:
        """A tense for a verb, in the present, past or future, that the English form shows: "they read" is past."""
        modal, lasting = "modal" in verb.flags, "lasting" in verb.flags
        if "would" in verb.flags:
            return Tense.WOULD
        if modal:
            return Tense.PAST if when == "past" and verb.en == "can" else Tense.PRESENT
        if when == "past":
            if verb.frame == "price":
                return Tense.PRESENT
            if verb.state:
                return Tense.PAST
            name = self.weighted(PAST=8, PERFECT=1.2, WAS_DOING=1.2 * lasting, USED_TO=0.6 * lasting)
        elif when == "future":
            name = "FUTURE" if verb.state else self.weighted(FUTURE=7, GOING_TO=3)
        else:
            name = "PRESENT" if verb.state else self.weighted(PRESENT=6, PROGRESSIVE=4 * lasting, JUST=0.5)
            if name == "PRESENT" and _same_in_past(verb, subject):
                name = "PRESENT" if verb.frame == "price" else "PROGRESSIVE"
        return Tense[name]

    def predicate(self, subject: Nominal, kind: str, room: int, negated: bool = False) -> Predicate:
        """A verb with its complements for a subject of a kind."""
        if kind == "animal":
            how = self.weighted(none=4, direct=4 if room >= 2 else 0, adjective=2)
        elif kind == "person":
            how = self.weighted(
                none=5 if room < 5 else 2.5,
                direct=16 if room >= 2 else 0,
                dative=2.2 if room >= 2 else 0,
                genitive=1.8 if room >= 3 else 0,
                give=2.6 if room >= 5 else 0,
                motion=3.5 if room >= 3 else 0,
                live=1.6 if room >= 3 else 0,
                adjective=4,
                compare=1.6 if room >= 4 else 0,
                profession=0.8 if room >= 3 else 0,
                age=0.8 if room >= 4 else 0,
                where=0.8 if room >= 3 else 0,
                language=0.5 if room >= 2 else 0,
                control=3 if room >= 4 else 0,
                ask=1 if room >= 6 else 0,
            )
        else:
            how = self.weighted(adjective=5, where=2, price=1.5, passive=3, belong=1)
        build = getattr(self, f"_{how}")
        result: Predicate = build(subject, kind, room, negated)
        return result

    def _none(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        return clauses.predicate(self.common(_verbs("none", kind)))

    def _direct(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        verb = self.common(_verbs("direct", kind))
        if kind == "animal" and verb.en == "drink":
            return clauses.transitive(verb, noun_phrase(lexicon.noun("water"), "s", "bare"))
        return clauses.transitive(verb, self.thing(verb, subject, room - 1, negated))

    def _dative(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        verb = self.common(_verbs("à", "person"))
        human = tuple(k for k in verb.objects if k in _HUMAN)
        if self.chance(0.85):
            return clauses.oblique(verb, self.somebody(verb, subject, room - 2))
        other = tuple(k for k in verb.objects if k not in human) or human
        return clauses.oblique(verb, self.one_thing(self.common(_nouns(other)), verb, subject, room - 2, definite=True))

    def _genitive(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        verb = self.common(_verbs("de", "person"))
        definite = negated or verb.en in ("remember", "take", "laugh")
        noun = self.common(_nouns(verb.objects))
        if noun.kind == "person" and self.chance(0.5):
            return clauses.oblique(verb, self.name())
        return clauses.oblique(verb, self.one_thing(noun, verb, subject, room - 2, definite=definite))

    def _give(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        frame = self.weighted(give=6, tell=1, ask=1)
        verb = self.common(_verbs(frame))
        receiver = self.somebody(verb, subject, 2)
        noun = self.common(_nouns(verb.objects))
        return clauses.ditransitive(verb, self.one_thing(noun, verb, subject, min(room - 4, 3), negated), receiver)

    def _motion(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        frame = self.weighted(to=6, origin=3, into=1.5)
        if frame == "to":
            return clauses.located(self.pick(_verbs("to")), self.goal())
        if frame == "origin":
            return clauses.located(self.pick(_verbs("from")), self.origin())
        inside = self.described(self.common(_nouns(("room", "building"))), "s", "the", room - 3)
        return clauses.located(self.pick(_verbs("into")), self._preposition("into", "dans", inside))

    def _live(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        return clauses.located(self.pick(_verbs("place")), self.place())

    def _where(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        if kind == "building":
            place = self.country_or_city()
            return clauses.being(place)
        small = kind in ("thing", "clothes", "text")
        return clauses.being(self.spot() if small and self.chance(0.7) else self.place())

    def _adjective(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        verb = self.common(_verbs("adjective")) if kind == "person" else lexicon.verb("be", "adjective")
        example = {"person": "man", "animal": "dog", "building": "house"}.get(kind) or _nouns((kind,))[0].en
        before, after = _fitting(lexicon.noun(example))
        before = [
            entry for entry in before if kind not in ("person", "animal") or entry.en not in ("good", "bad", "new")
        ]
        after = [entry for entry in after if entry.en != "hungry"]  # is hungry -> a faim
        adjective = self.common(after if self.chance(0.7) or not before else before)
        degree = EMPTY
        if adjective.group not in ("nation", "colour") and room >= 3 and self.chance(0.35):
            degree = self._fixed(_DEGREES)
        return clauses.adjectival(verb, adjective, subject, degree)

    def _compare(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        adjective = self.common([entry for entry in lexicon.ADJECTIVES if entry.group == "person"])
        return clauses.compared(adjective, subject, self._degree(), self._other(subject))

    def _degree(self) -> str:
        return self.weighted(more=6, less=1.5, **{"as": 2.5})

    def _other(self, subject: Nominal) -> Nominal:
        """Somebody to compare with."""
        return self.name() if self.chance(0.5) else self.relation(0, subject, plural=0)

    def _profession(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        jobs = {
            "m": (
                "teacher",
                "student",
                "doctor",
                "lawyer",
                "engineer",
                "actor",
                "writer",
                "painter",
                "journalist",
                "judge",
            ),
            "f": ("nurse", "actress", "waitress", "secretary", "dancer"),
        }
        return clauses.profession(lexicon.noun(self.pick(jobs[subject.gender])), subject)

    def _age(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        return clauses.age(3 + int(self._random() * self._random() * 80))

    def _language(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        speak = replace(lexicon.verb("talk", "à", "to"), en="speak", past="spoke", en_participle="spoken", en_tail="")
        return clauses.predicate(speak).with_complement(phrase(*self.common(_LANGUAGES)))

    def _price(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        return clauses.price(5 * (1 + self.below(19)))

    def _passive(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        noun = self._head
        verbs = [verb for verb in (_taking("direct", noun) if noun else []) if "passive" in verb.flags]
        if not verbs:
            return self._adjective(subject, kind, room, negated)
        agent = None if self.chance(0.3) else self.name() if self.chance(0.5) else self.human(room - 3, plain_only=True)
        return clauses.passive(self.common(verbs), subject, agent)

    def _belong(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        verb = lexicon.verb("belong", "à", "to")
        if kind not in verb.subjects:
            return self._adjective(subject, kind, room, negated)
        return clauses.oblique(verb, self.name() if self.chance(0.5) else self.human(2))

    def _control(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        frame = self.weighted(inf=5, a=1.5, de=2.5)
        verb = self.common(_verbs({"inf": "inf", "a": "à-inf", "de": "de-inf"}[frame]))
        if verb.en in ("learn", "know") and self.chance(0.8):
            skills = [lexicon.verb(en, "none") for en in ("swim", "sing", "dance", "walk")]
            inner = clauses.predicate(self.pick(skills))
        else:
            inner = self.action(subject, room - 2)
        negatable = verb.en in ("decide", "promise", "prefer", "try") and not negated
        return clauses.control(verb, inner, subject.slot, negatable and self.chance(0.25))

    def _ask(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        verb = self.weighted(ask=2, tell=2, help=1.5, invite=1)
        receiver = self.somebody(lexicon.verb("help", "direct"), subject, 2)
        return clauses.asked_to(verb, receiver, self.action(receiver, room - 4, pronouns=False))

    def action(self, subject: Nominal, room: int, definite: bool = False, pronouns: bool = True) -> Predicate:
        """Something that one can want, try or refuse to do."""
        how = self.weighted(none=3, direct=7 if room >= 2 else 0, dative=1 if room >= 2 and pronouns else 0, motion=1)
        if how == "motion" and room >= 3:
            return clauses.located(self.pick(_verbs("to")), self.goal())
        if how == "dative":
            verb = self.common([verb for verb in _verbs("à", "person") if "full" not in verb.flags])
            return clauses.oblique(verb, self.name())
        if how == "none" or how == "motion":
            verbs = [
                verb for verb in _verbs("none", "person") if "lasting" in verb.flags and verb.en not in ("cry", "lie")
            ]
            verbs += [lexicon.verb("leave", "none"), lexicon.verb("go", "none", "out"), lexicon.verb("rest", "none")]
            return clauses.predicate(self.common(verbs))
        verbs = [
            verb
            for verb in _verbs("direct", "person")
            if not verb.state and verb.en not in ("lose", "forget", "receive")
        ]
        verb = self.common(verbs)
        if not pronouns:
            things = tuple(kind for kind in verb.objects if kind not in _HUMAN)
            if not things:
                return clauses.transitive(verb, self.name())
            return clauses.transitive(verb, self.one_thing(self.common(_nouns(things)), verb, subject, room - 1))
        return clauses.transitive(verb, self.thing(verb, subject, room - 1, definite=definite))

    # Clauses.

    def negation(self, verb: Verb, tense: Tense, often: float = 0.17) -> str:
        """A negation that goes with the tense, or none."""
        if not self.chance(often) or tense in (Tense.JUST, Tense.USED_TO, Tense.WAS_DOING):
            return ""
        if tense in (Tense.PAST, Tense.PERFECT) and not verb.state:
            return self.weighted(**{"not": 8, "never": 1.5})
        if tense in (Tense.PRESENT, Tense.FUTURE) or (verb.state and tense is Tense.PAST):
            return self.weighted(**{"not": 7, "never": 2, "no longer": 1.5})
        return "not"

    def finish(self, subject: Nominal, pred: Predicate, when: str, negatable: bool = False) -> Pair:
        """A clause with a tense, and perhaps a negation and an adverb in the middle."""
        return self._finish(subject, pred, self.tense(pred.verb, when, subject), negatable)

    def _finish(self, subject: Nominal, pred: Predicate, tense: Tense, negatable: bool) -> Pair:
        negation = self.negation(pred.verb, tense, 1.0 if negatable else 0.0)
        adverb = EMPTY
        if tense in (Tense.PRESENT, Tense.PAST) and not negation and self.chance(0.1):
            adverb = self._fixed(_FREQUENCY)
        elif tense is Tense.PERFECT and not negation and self.chance(0.3):
            adverb = phrase("already", "déjà")
        elif tense is Tense.PROGRESSIVE and not negation and self.chance(0.15):
            adverb = phrase("still", "encore")
        if pred.verb.frame in ("adjective", "price", "passive") or pred.verb.en == "be" or "modal" in pred.verb.flags:
            adverb = EMPTY
        return clauses.clause(subject, replace(pred, adverb=adverb), tense, negation).statement

    def _kind(self, room: int) -> str:
        """What kind of subject a clause has."""
        thing = 1.0 if room >= 4 else 0.0
        kind = self.weighted(person=17, animal=1.6, thing=2 * thing, text=0.7 * thing, building=0.8 * thing)
        return self.weighted(thing=3, vehicle=3, clothes=2, furniture=2) if kind == "thing" else kind

    def simple(self, size: int, when: str = "", linked: bool = False) -> Pair:
        """A clause of about `size` words, without final mark; `linked` to another clause: about a person."""
        when = when or self.weighted(present=5, past=5, future=2.2)
        kind = "person" if linked else self._kind(size)
        if not linked and size >= 3 and self.chance(0.06):
            return self._impersonal(size, when)
        negated = self.chance(0.19)
        subject = self.subject(kind, max(1, min(size // 2, size - 3)))
        room = max(1, size - len(subject.en))
        if kind == "person" and when == "past" and room >= 3 and self.chance(0.02):
            pred = clauses.predicate(lexicon.verb("be", "born", "born")).with_complement(self._birth(room))
            return clauses.clause(subject, pred, Tense.PAST).statement
        if kind == "person" and when == "present" and room >= 5 and self.chance(0.04):
            return self._since(subject)
        pred = self.predicate(subject, kind, self.below(room) + 1 if self.chance(0.3) else room, negated)
        tense = self.tense(pred.verb, when, subject)
        if linked:
            plainer = {Tense.PERFECT: Tense.PAST, Tense.USED_TO: Tense.PAST, Tense.JUST: Tense.PRESENT}
            tense = plainer.get(tense, tense)
        pair = self._finish(subject, pred, tense, negated)
        return self.fill(pair, size, pred.verb, tense, subject, kind)

    def _birth(self, room: int) -> Pair:
        where = self._preposition("in", "à", country(self.common(lexicon.CITIES)))
        return join(where, self._past_date()) if room >= 5 else where

    def _past_date(self) -> Pair:
        return self._year() if self.chance(0.5) else self._date(1980 + self.below(40))

    def _since(self, subject: Nominal) -> Pair:
        """Has been working in Paris for two years -> travaille à Paris depuis deux ans."""
        en_n, en_unit, fr_n, fr_unit = self._span()
        since = phrase(f"for:1 {en_n}:2 {en_unit}:3", f"depuis:1 {fr_n}:2 {fr_unit}:3")
        if self.chance(0.4):
            since = join(phrase("since", "depuis"), Pair(*(side[1:] for side in self._year())))
        if self.chance(0.5):
            live = clauses.located(lexicon.verb("live", "place"), self.place())
            return join(clauses.clause(subject, live, Tense.HAS_BEEN).statement, since)
        verbs = [verb for verb in _verbs("none", "person") if "lasting" in verb.flags]
        pred = clauses.predicate(self.common(verbs))
        return join(clauses.clause(subject, pred, Tense.SINCE).statement, since)

    def _impersonal(self, size: int, when: str) -> Pair:
        """Weather, or what there is somewhere."""
        if size >= 5 and self.chance(0.6):
            noun = self.common(_nouns(("thing", "food", "animal", "person", "clothes", "dish", "drink")))
            mass = not noun.en_plural
            number = "s" if mass else self.number(0.55)
            det = "some" if mass else "a" if number == "s" else self.weighted(number=3, some=2, many=1, several=1)
            thing = self.described(noun, number, det, min(size - 4, 4), plain_only=True)
            there, pred = clauses.existential(thing)
            tense = {"present": Tense.PRESENT, "past": Tense.PAST, "future": Tense.FUTURE}[when]
            negation = "not" if self.chance(0.2) and det in ("a", "some") else ""
            small = noun.kind in ("thing", "food", "clothes", "dish", "drink")
            spot = self.spot() if small and self.chance(0.6) else self.place()
            return join(clauses.clause(there, pred, tense, negation).statement, spot)
        it, pred = clauses.weather(self.pick([*_verbs("weather"), *_verbs("sky")]))
        tense = self.tense(pred.verb, when, it)
        pair = clauses.clause(it, pred, tense, self.negation(pred.verb, tense)).statement
        return join(pair, self.time(tense) if size >= 5 else EMPTY)

    def fill(self, pair: Pair, size: int, verb: Verb, tense: Tense, subject: Nominal, kind: str) -> Pair:
        """Add manner, place, company, purpose and time until the length is about right."""
        active = not verb.state and kind == "person" and verb.frame != "adjective"
        moving = verb.frame == "to" or (verb.en, verb.en_tail) in _WITH_PURPOSE
        lasting = "lasting" in verb.flags
        options = {
            "manner": active and lasting,
            "company": active and (moving or (lasting and (verb.frame == "none" or verb.en in _IN_COMPANY))),
            "place": (active or (kind == "animal" and lasting)) and verb.frame in ("none", "direct"),
            "time": verb.frame not in ("adjective", "price", "inf") and not verb.fr_tail,
            "purpose": active and moving,
        }
        if verb.frame == "direct" and verb.state:
            options["place"] = False
        order = ["manner", "company", "place", "time", "purpose"]
        chosen: dict[str, Pair] = {}
        total = len(pair.en)
        wanted = size - self.below(2)
        for _ in range(8):
            left = wanted - total
            if left <= 0:
                break
            name = self.pick([name for name in order if options.get(name)] or [""])
            if not name or (left < 3 and name in ("place", "company", "purpose")):
                continue
            options[name] = False
            chosen[name] = self._adjunct(name, left, tense, subject, verb.state)
            total += len(chosen[name].en)
        return join(pair, *(chosen[name] for name in order if name in chosen))

    def _adjunct(self, name: str, room: int, tense: Tense, subject: Nominal, state: bool) -> Pair:
        if name == "manner":
            return self._fixed(_MANNER)
        if name == "place":
            return self.place()
        if name == "company":
            noun = self.human(room - 1, subject) if self.chance(0.6) else self.name()
            return self._preposition("with", "avec", noun)
        if name == "purpose":
            return self.purpose(subject, room)
        return self.time(tense, state)

    def purpose(self, subject: Nominal, room: int) -> Pair:
        """To buy some bread -> pour acheter du pain."""
        link = new_link()
        verbs = [lexicon.verb(en, "direct") for en in ("buy", "see", "eat", "find", "prepare", "visit", "sell", "help")]
        verb = self.pick([*verbs, lexicon.verb("look", "direct", "for")])
        action = clauses.transitive(verb, self.thing(verb, subject, room - 2))
        if self.chance(0.3):
            action = clauses.predicate(
                lexicon.verb(self.pick(["work", "play", "dance", "sing", "rest", "sleep"]), "none")
            )
        inner = clauses.infinitive(action, subject.slot)
        return Pair(spell("to", link) + inner.en, spell("pour", link) + inner.fr)

    # Units: a clause, perhaps with another that depends on it.

    def unit(self, size: int, when: str = "") -> Pair:
        """A simple or complex clause of about `size` words."""
        if size < 8:
            return self.simple(size, when)
        how = self.weighted(
            simple=7 if size < 16 else 3,
            subordinate=4,
            nonfinite=1.2,
            then=1.3,
            reported=1.6,
            wanted=0.6,
            superlative=0.4,
        )
        if how == "simple":
            opener = EMPTY
            if self.chance(0.12):
                opener = join(self._fixed(_OPENERS), mark(","))
            elif self.chance(0.12):
                when = when or self.weighted(past=2, future=1)
                opener = self._opening_time(when)
            return join(opener, self.simple(size - len(opener.en), when))
        if how == "subordinate":
            return self.subordinate(size)
        if how == "nonfinite":
            return self.nonfinite(size)
        if how == "then":
            return self.then(size)
        if how == "wanted":
            return self.wanted(size)
        if how == "superlative":
            return self.superlative(size)
        return self.reported(size)

    def _opening_time(self, when: str) -> Pair:
        if when == "past":
            time = self._past(dated=True)
        elif when == "future":
            time = self._future()
        else:
            return EMPTY
        return join(time, mark(","))

    def subordinate(self, size: int) -> Pair:
        """Two clauses joined by because, when, if, although or while."""
        how = self.weighted(
            because=4, when_past=2.5, when_future=1.5, whenever=1, condition=3, although=1.5, meanwhile=1.2
        )
        first = max(3, size * (3 + self.below(4)) // 9)
        second = max(3, size - first - 2)
        if how == "because":
            when = self.weighted(present=5, past=5, future=1)
            main = self.simple(first, when, linked=True)
            reason = self.simple(second, "present" if when == "future" else when, linked=True)
            return join(main, phrase("because", "parce que"), reason)
        if how == "although":
            word = phrase("although", "bien que")
            if self.chance(0.6):
                one = self._in_tense(first, Tense.SUBJUNCTIVE)
                return join(word, one, mark(","), self.simple(second, "present", linked=True))
            one = self._in_tense(first, Tense.PAST_SUBJUNCTIVE)
            return join(word, one, mark(","), self.simple(second, "past", linked=True))
        if how == "condition":
            one = self._in_tense(first, Tense.PRESENT)
            return join(phrase("if", "si"), one, mark(","), self.simple(second, "future", linked=True))
        if how == "when_future":
            word = phrase("when", "quand") if self.chance(0.7) else phrase("as soon as", "dès que")
            return join(
                word, self._in_tense(first, Tense.WHEN_FUTURE), mark(","), self.simple(second, "future", linked=True)
            )
        if how == "whenever":
            one = self._in_tense(first, Tense.PRESENT)
            return join(phrase("when", "quand"), one, mark(","), self.simple(second, "present", linked=True))
        if how == "meanwhile":
            past = self.chance(0.5)
            one = self._in_tense(first, Tense.WAS_DOING if past else Tense.PROGRESSIVE)
            return join(
                phrase("while", "pendant que"),
                one,
                mark(","),
                self.simple(second, "past" if past else "present", linked=True),
            )
        one = self._in_tense(first, Tense.PAST)
        return join(phrase("when", "quand"), one, mark(","), self.simple(second, "past", linked=True))

    def _in_tense(self, size: int, tense: Tense, subject: Nominal | None = None) -> Pair:
        """A clause in a given tense, with a verb that can bear it."""
        subject = subject or self.subject("person", max(1, size // 2))
        room = max(1, size - len(subject.en))

        def timeless(pred: Predicate) -> bool:
            return pred.verb.en == "be" and pred.verb.frame != "place" and tense is not Tense.SUBJUNCTIVE

        for _ in range(50):
            pred = self.predicate(subject, "person", room)
            verb = pred.verb
            lasting = "lasting" in verb.flags or tense not in (Tense.WAS_DOING, Tense.PROGRESSIVE)
            action = not verb.state or tense not in (Tense.PAST, Tense.PAST_SUBJUNCTIVE)
            shown = not _same_in_past(verb, subject)
            if lasting and action and shown and not verb.flags & {"modal", "would"} and not timeless(pred):
                break
        else:
            pred = clauses.predicate(lexicon.verb("work", "none"))
        return clauses.clause(subject, pred, tense).statement

    def nonfinite(self, size: int) -> Pair:
        """Before eating, ...; after eating, ...; ... without eating."""
        how = self.weighted(before=1, after=1.2, without=0.8)
        first = max(2, size // 3)
        subject = self.subject("person", 3)
        link = new_link()
        if how == "without":
            pred = self._definite_action(subject, first)
            inner = clauses.infinitive(pred, subject.slot)
            main = self._in_tense(size - first - 1, Tense.PAST, subject)
            return join(main, Pair(spell("without", link) + clauses.gerund(pred), spell("sans", link) + inner.fr))
        pred = self.action(subject, first, definite=True, pronouns=False)
        if how == "before":
            inner = clauses.infinitive(pred, subject.slot)
            start = Pair(spell("before", link) + clauses.gerund(pred), spell("avant de", link) + inner.fr)
        else:
            fr = clauses.past_infinitive(pred, subject)
            start = Pair(spell("after", link) + clauses.gerund(pred), spell("après", link) + fr)
        return join(start, mark(","), self._in_tense(size - len(start.en) - 1, Tense.PAST, subject))

    def _definite_action(self, subject: Nominal, room: int) -> Predicate:
        verbs = [verb for verb in _verbs("direct", "person") if not verb.state]
        verb = self.common(verbs)
        return clauses.transitive(
            verb, self.one_thing(self.common(_nouns(verb.objects)), verb, subject, room - 2, definite=True)
        )

    def then(self, size: int) -> Pair:
        """Buys an apple and eats it -> achète une pomme et la mange."""
        subject = self.subject("person", 3)
        when = self.weighted(present=3, past=4, future=1.5)
        tense = {"present": Tense.PRESENT, "past": Tense.PAST, "future": Tense.FUTURE}[when]
        getting = [lexicon.verb(en, "direct") for en in ("buy", "find", "take", "bring", "choose", "receive")]
        first = self.pick(getting)
        kinds = ("thing", "food", "dish", "drink", "clothes", "vehicle", "text")
        noun = self.common([noun for noun in _nouns(kinds) if first.takes(noun)])
        verbs = [v for v in _taking("direct", noun) if not v.state and v.en not in ("look", "wait", "hear")]
        second = self.common([verb for verb in verbs if verb not in getting])
        thing = self.one_thing(noun, first, subject, size - 6)
        key = f"they-{thing.gender}" if thing.number == "p" else f"it-{thing.gender}"
        it = pronoun(key)
        one = clauses.clause(subject, clauses.transitive(first, thing), tense).statement
        two = clauses.clause(subject.silent(), clauses.transitive(second, it), tense).statement
        pair = join(one, phrase("and", "et"), two)
        return self.fill(pair, size, second, tense, subject, "person")

    def reported(self, size: int) -> Pair:
        """Thinks that ... -> pense que ..."""
        verb = self.common(_verbs("that"))
        subject = self.subject("person", 2)
        when = self.weighted(present=3, past=2, future=3) if verb.en != "hope" else "future"
        content = self.simple(max(3, size - len(subject.en) - 2), when)
        return clauses.clause(subject, clauses.reported(verb, content), Tense.PRESENT).statement

    def wanted(self, size: int) -> Pair:
        """Wants the boys to eat -> veut que les garçons mangent."""
        subject = self.subject("person", 2)
        other = self.human(2, plain_only=True) if self.chance(0.6) else self.name()
        pred = self.action(other, size - 5)
        content = clauses.clause(other, pred, Tense.TO_SUBJUNCTIVE).statement
        tense = Tense.PRESENT if self.chance(0.7) else Tense.PAST
        return clauses.clause(
            subject, clauses.wanted(content), tense, self.negation(pred.verb, Tense.PRESENT, 0.0)
        ).statement

    def superlative(self, size: int) -> Pair:
        """Paul is the tallest boy in the school -> Paul est le plus grand garçon de l'école."""
        place = noun_phrase(self.common(_nouns(("school", "village", "city", "hotel", "university"))), "s", "the")
        link = new_link()
        modifier = Pair(spell("in", link) + place.en, place.fr_after("de", link))
        subject = self.name()
        nouns = [n for n in _nouns(("person",)) if n.gender == subject.gender and n.en not in ("king", "queen", "baby")]
        noun = self.common(nouns)
        before, after = _fitting(noun)
        adjectives = [a for a in (*before, *after) if a.group in ("any", "person") and a.en not in ("bad", "new")]
        best = superlative_phrase(self.common(adjectives), noun, "s", modifier)
        be = clauses.located(lexicon.verb("be", "adjective"), Pair(best.en, best.fr))
        return clauses.clause(subject, be, Tense.PRESENT if self.chance(0.6) else Tense.PAST).statement

    # Sentences.

    def sentence(self, size: int) -> Pair:
        """A sentence of about `size` English words with its final mark."""
        self._plural_gender = "m"
        how = self.weighted(statement=8, question=1.5 if size <= 24 else 0.3, order=0.5 if size <= 20 else 0)
        if how == "question" and size >= 4:
            return self.question(size)
        if how == "order" and size >= 4:
            return self.order(size)
        return join(self.statement(size - 1), phrase(".", "."))

    def statement(self, size: int) -> Pair:
        """Units joined by and, but, so or a semicolon."""
        longest = 9 + self.below(12)
        if size <= longest:
            return self.unit(size)
        n = 2 + (size - longest) // 16
        pieces: list[Pair] = []
        left = size
        for i in range(n):
            share = left if i == n - 1 else left * (3 + self.below(3)) // (4 * (n - i))
            if pieces:
                pieces.append(self._connective())
            pieces.append(self.unit(max(3, share - 2 if i < n - 1 else share - 1)))
            left = size - sum(len(piece.en) for piece in pieces)
        return join(*pieces)

    def _connective(self) -> Pair:
        how = self.weighted(and_=5, but=4, so=1.5, semicolon=1)
        if how == "semicolon":
            return mark(";")
        return join(mark(","), phrase(*{"and_": ("and", "et"), "but": ("but", "mais"), "so": ("so", "donc")}[how]))

    def question(self, size: int) -> Pair:
        """A yes-no question or one with a question word."""
        how = self.weighted(yes=4, where=1, when=0.6, why=1, what=1.2, which=1, many=0.8, who=1.2, old=0.4, much=0.4)
        if how == "old":
            return clauses.how_old(self.name() if self.chance(0.5) else self.human(size - 4))
        if how == "much":
            kind = self.weighted(clothes=1, vehicle=1, thing=1)
            return clauses.how_much(self.described(self.common(_nouns((kind,))), self.number(0.3), "the", size - 5))
        when = self.weighted(present=5, past=4, future=2)
        if how == "who":
            subject = clauses.who()
            pred = self.predicate(subject, "person", size - 2)
            tense = self.tense(pred.verb, when, subject)
            pair = clauses.clause(subject, pred, tense).statement
            return join(self.fill(pair, size - 1, pred.verb, tense, subject, "person"), phrase("?", "?"))
        subject = self.subject("person", 2 if size < 10 else size // 2)
        room = size - len(subject.en) - 2
        if how in ("what", "which", "many"):
            return self._object_question(how, subject, when, room)
        pred = self.predicate(subject, "person", max(1, room))
        if how == "where":
            verbs = [verb for verb in _verbs("none", "person") if "lasting" in verb.flags] + _verbs("place")
            pred = clauses.predicate(self.common(verbs))
        tense = self.tense(pred.verb, when, subject)
        if tense is Tense.USED_TO:
            tense = Tense.PAST
        if how != "yes":
            return clauses.wh_adverb(how, subject, pred, tense)
        negation = "not" if self.chance(0.05) and tense is Tense.PRESENT and pred.verb.en != "be" else ""
        adjunct = self.fill(EMPTY, max(0, room - len(pred.en_after) - 1), pred.verb, tense, subject, "person")
        return clauses.yes_no(subject, pred, tense, negation, adjunct)

    def _object_question(self, how: str, subject: Nominal, when: str, room: int) -> Pair:
        people = {"person", "kin", "animal"}
        things = [v for v in _verbs("direct", "person") if not people & set(v.objects) and not v.state]
        verb = self.common(things)
        kinds = tuple(kind for kind in verb.objects if kind not in ("dish", "drink"))
        if how == "what" or not kinds:
            link = new_link()
            asked, head = Pair(spell("what", link), spell("que", link)), plain(EMPTY, "m", "s")
        else:
            noun = self.common([noun for noun in _nouns(kinds) if noun.en_plural])
            number = "p" if how == "many" else self.number(0.4)
            asked = clauses.how_many(noun) if how == "many" else clauses.which(noun, number)
            head = plain(EMPTY, noun.gender, number)
        tense = self.tense(verb, when, subject)
        if tense is Tense.USED_TO:
            tense = Tense.PAST
        adjunct = self.time(tense) if room >= 6 else EMPTY
        return clauses.wh_object(verb, asked, head, subject, tense, adjunct)

    def order(self, size: int) -> Pair:
        """An imperative to "you"."""
        you = pronoun("you")
        negated = self.chance(0.3)
        verbs = [verb for verb in _verbs("direct", "person") if not verb.state and verb.en not in ("lose", "find")]
        verb = self.common(verbs)
        kinds = tuple(kind for kind in verb.objects if kind != "person") or ("kin",)
        thing = self.one_thing(self.common(_nouns(kinds)), verb, you, 3, negated)
        pred = clauses.transitive(verb, thing)
        adjunct = self.place() if size - len(pred.en_after) >= 7 else EMPTY
        return clauses.imperative(pred, negated, adjunct, please=self.chance(0.3))
