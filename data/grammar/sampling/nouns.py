"""Random noun phrases and places."""

import random
from abc import ABC, abstractmethod

from grammar import lexicon
from grammar.lexicon import Adjective, Noun, Verb
from grammar.nominals import (
    PRONOUNS,
    Nominal,
    country,
    enumeration,
    noun_phrase,
    person,
    plain,
    pronoun,
)
from grammar.sampling.fitting import HUMAN, fitting, kin, nouns
from grammar.sampling.times import Times
from grammar.text import EMPTY, Pair, bracket, join, mark, new_link, phrase, spell

SPELLED = {21, 25, 71, 75, 81, 95}  # numbers over 20 that are written in words, besides the tens


class NounSampler(Times, ABC):
    """Random noun phrases and places; relative clauses come from the class that knows verbs."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._plural_gender = "m"  # of the last plural subject: what "they" means
        # the noun of the last subject that is a thing, for the passive
        self._head: Noun | None = None

    @abstractmethod
    def relative(self, noun: Noun, number: str, room: int, described: bool) -> Pair:
        """A relative clause that fits a noun, which has adjectives or not."""

    @abstractmethod
    def who_does(self, head: Nominal, room: int) -> Pair:
        """A relative clause about a person: who sleeps."""

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
        pair = join(Pair(name.en, name.fr), mark(","), self.who_does(name, room - 4), mark(","))
        return plain(pair, name.gender, "s", name.link)

    def own(self, subject: Nominal | None) -> Nominal:
        """Whose: mostly the subject's own, else somebody else's."""
        if subject is not None and self.chance(0.75):
            if subject.pronoun:
                return pronoun({"it": "he"}.get(subject.pronoun.subject, self._key(subject)))
            return pronoun(self._key(subject))
        if self.chance(0.6):
            return self.name()
        noun = self.common(
            [noun for noun in nouns(("person",)) if noun.en not in ("child", "boy", "girl")]
        )
        return noun_phrase(noun, "p" if self.chance(0.15) else "s", "the")

    def relation(self, room: int, subject: Nominal | None, plural: float = 0.15) -> Nominal:
        """A relative: his brother, Paul's mother."""
        owner = self.own(subject)
        number = self.number(plural)
        noun = self.common(kin(owner.gender == "m", number == "p"))
        return self.described(noun, number, "owner", room, owner=owner)

    def _key(self, subject: Nominal) -> str:
        by_slot = {1: "I", 4: "we", 5: "you", 6: f"they-{subject.gender}"}
        return by_slot.get(subject.slot, "he" if subject.gender == "m" else "she")

    def human(self, room: int, subject: Nominal | None = None, plain_only: bool = False) -> Nominal:
        """A person as a noun phrase of up to about `room` English words."""
        if self.chance(0.2):
            return self.relation(room - 1, subject)
        noun = self.common(nouns(("person",)))
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
        firsts, seconds = fitting(noun)
        if room >= 2 and firsts and self.chance(0.25):
            before = self.common(firsts)
        if room >= 2 and seconds and self.chance(0.25 if before is None else 0.1):
            after = (self.common(seconds),)
            if room >= 5 and before is None and self.chance(0.2):
                other = self.common(seconds)
                after = after if other.en == after[0].en else (*after, other)
        if (
            room >= 5
            and not plain_only
            and noun.kind != "kin"
            and self.chance(min(0.7, (room - 3) / 12))
        ):
            modifier = self.relative(
                noun, number, room - 2, described=before is not None or bool(after)
            )
        count = self.count() if determiner == "number" else 0
        digits = count > 20 and count % 10 > 0 and count not in SPELLED
        if digits and noun.kind in HUMAN:
            count, digits = count % 10 + 2, False
        return noun_phrase(noun, number, determiner, before, after, owner, count, digits, modifier)

    def count(self) -> int:
        """How many: mostly a few."""
        if self.chance(0.85):
            return 2 + int(self._random() * self._random() * 11)
        return 2 + int(self._random() * self._random() * 99)

    def subject(self, kind: str = "person", room: int = 2) -> Nominal:
        """The subject of a clause."""
        if kind == "animal":
            noun = self.common(nouns(("animal",)))
            number = self.number(0.3)
            result = self.described(
                noun, number, self.weighted(the=6, this=1, owner=1), room, owner=self.own(None)
            )
        elif kind != "person":
            noun = self._head = self.common(nouns((kind,)))
            number = self.number(0.25) if noun.en_plural else "s"
            det = self.weighted(the=6, this=2, owner=2)
            result = self.described(noun, number, det, room, owner=self.own(None))
        else:
            how = self.weighted(pronoun=7, name=5, noun=7, two=1 if room >= 3 else 0)
            if how == "pronoun":
                return self.any_pronoun()
            if how == "name":
                return self.named(room)
            result = self.human(room) if how == "noun" else self.several_people(2)
        if result.slot == 6:
            self._plural_gender = result.gender
        return result

    def several_people(self, n: int) -> Nominal:
        """Paul, Marie and the doctor."""
        parts = [self.name()]
        while len(parts) < n:
            other = (
                self.name()
                if self.chance(0.7)
                else noun_phrase(self.common(nouns(("person",))), "s", "the")
            )
            if all(other.en[-1].text != part.en[-1].text for part in parts):
                parts.append(other)
        return enumeration(tuple(parts))

    def thing(
        self, verb: Verb, subject: Nominal, room: int, negated: bool = False, definite: bool = False
    ) -> Nominal:
        """An object that fits a verb."""
        if "person" in verb.objects and self.chance(0.4):
            return self.somebody(verb, subject, room, negated)
        kinds = tuple(kind for kind in verb.objects if kind != "person") or verb.objects
        if (
            verb.frame == "direct"
            and "state" not in verb.flags
            and not negated
            and room >= 8
            and self.chance(0.3)
        ):
            return self.things(verb, kinds, subject, room)
        return self.one_thing(self.common(nouns(kinds)), verb, subject, room, negated, definite)

    def one_thing(
        self,
        noun: Noun,
        verb: Verb,
        subject: Nominal,
        room: int,
        negated: bool = False,
        definite: bool = False,
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
                the=4,
                some=1.5,
                bare=1,
                number=2,
                owner=1.5,
                this=1,
                several=few,
                a_few=0.7 * few,
                many=1,
            )
        # No relative clause on "not ... a": it would need the subjunctive.
        alone = det in ("generic", "owner") or (negated and det in ("a", "some", "bare"))
        return self.described(
            noun, number, det.replace("_", " "), room, owner=owner, plain_only=alone
        )

    def measure(self, drink: Noun) -> Nominal:
        """A glass of water, two cups of tea."""
        vessel = {"coffee": "cup", "tea": "cup", "wine": "bottle", "beer": "bottle"}.get(
            drink.en, "glass"
        )
        link, of = new_link(), new_link()
        content = Pair(
            spell("of", of) + spell(drink.en, link), spell("de", of) + spell(drink.fr, link)
        )
        number = self.number(0.4)
        det = "a" if number == "s" else "number"
        count = 2 + self.below(4) if number == "p" else 0
        return noun_phrase(lexicon.noun(vessel), number, det, count=count, modifier=content)

    def things(self, verb: Verb, kinds: tuple[str, ...], subject: Nominal, room: int) -> Nominal:
        """A list of objects of one kind."""
        noun = self.common(nouns(kinds))
        parts: list[Nominal] = []
        seen: set[str] = set()
        n = 2 + self.below(min(5, room // 4) + 1)
        alike = [other for other in nouns(kinds) if other.kind == noun.kind]
        for _ in range(3 * n):
            noun = self.common(alike)
            if noun.en not in seen and len(parts) < n:
                seen.add(noun.en)
                parts.append(self.one_thing(noun, verb, subject, 2))
        return enumeration(tuple(parts)) if len(parts) > 1 else parts[0]

    def somebody(self, verb: Verb, subject: Nominal, room: int, negated: bool = False) -> Nominal:
        """A person as an object: a pronoun other than the subject's, a name or a noun."""
        how = self.weighted(pronoun=4, name=3, noun=4)
        if "generic" in verb.flags and how == "noun":
            return noun_phrase(self.common(nouns(("person",))), "p", "generic")
        if how == "pronoun":
            keys = ["he", "she", "they-m"]
            keys += [
                key
                for key in ("I", "you", "we")
                if not self._same_person(subject.slot, PRONOUNS[key].slot)
            ]
            return pronoun(self.pick(keys))
        if how == "name":
            return self.name()
        return self.human(room, subject, plain_only=negated)

    @staticmethod
    def _same_person(slot: int, other: int) -> bool:
        return slot == other or (slot in (1, 4) and other in (1, 4))

    def place(self) -> Pair:
        """Where something happens: in the garden, near the school, in Paris, at home."""
        how = self.weighted(room=3, outdoors=3, building=3, city=2, country=1.2, home=1)
        if how == "home":
            return phrase("at:1 home:2", "à:1 la:2 maison:2")
        if how in ("city", "country"):
            return self.country_or_city()
        noun = self.common(nouns((how,)))
        place = self.described(
            noun, "s", self.weighted(the=8, this=1, owner=0.7, a=1), 2, owner=self.own(None)
        )
        if how == "building":
            en, fr = self.pick(
                [
                    ("in", "dans"),
                    ("near", "près de"),
                    ("behind", "derrière"),
                    ("in front of", "devant"),
                ]
            )
            return self.preposition(en, fr, place)
        return self.preposition("in", "dans", place)

    def country_or_city(self) -> Pair:
        """In Paris, in France."""
        if self.chance(0.4):
            return self.country_place("in")
        return self.preposition("in", "à", country(self.common(lexicon.CITIES)))

    def home(self) -> Pair:
        """Where somebody lives."""
        if self.chance(0.6):
            return self.country_or_city()
        noun = self.common(
            nouns(("village", "city", "house", "castle", "farm", "forest", "hotel", "street"))
        )
        return self.preposition(
            "in", "dans", self.described(noun, "s", self.weighted(the=7, a=2, this=1), 2)
        )

    def spot(self) -> Pair:
        """Where a thing lies: on the table, under the bed, in the box."""
        noun = self.common(nouns(("furniture",)))
        place = self.described(
            noun, "s", self.weighted(the=8, this=1, owner=1), 2, owner=self.own(None)
        )
        en, fr = self.pick(
            [
                ("on", "sur"),
                ("under", "sous"),
                ("behind", "derrière"),
                ("next to", "à côté de"),
                ("near", "près de"),
            ]
        )
        if noun.en == "carpet":
            en, fr = "on", "sur"
        if noun.en in ("sofa", "armchair", "shelf", "cupboard") and en == "on":
            en, fr = "behind", "derrière"
        return self.preposition(en, fr, place)

    def goal(self) -> Pair:
        """Where somebody goes: to the market, to Paris, to France."""
        how = self.weighted(building=5, city=3, country=2, market=1)
        if how == "city":
            return self.preposition("to", "à", country(self.common(lexicon.CITIES)))
        if how == "country":
            return self.country_place("to")
        noun = (
            self.common(nouns(("building",)))
            if how == "building"
            else self.pick(nouns(("market", "beach", "park")))
        )
        return self.preposition("to", "à", noun_phrase(noun, "s", "the"))

    def origin(self) -> Pair:
        """Where somebody comes from."""
        if self.chance(0.3):
            return self.country_place("from")
        if self.chance(0.3):
            return self.preposition("from", "de", country(self.common(lexicon.CITIES)))
        return self.preposition(
            "from", "de", noun_phrase(self.common(nouns(("building",))), "s", "the")
        )

    def country_place(self, en: str) -> Pair:
        """in/to France -> en France, in Japan -> au Japon; from France -> de France, from Japan -> du Japon."""
        place = country(self.common(lexicon.COUNTRIES))
        if place.gender == "f":
            link = new_link()
            fr = "de" if en == "from" else "en"
            return Pair(spell(en, link) + place.en, spell(fr, link) + place.fr[1:])
        return self.preposition(en, "de" if en == "from" else "à", place)

    def preposition(self, en: str, fr: str, place: Nominal) -> Pair:
        """A noun phrase after a preposition; à and de (also in "près de") may contract with its article."""
        link = new_link()
        *start, last = fr.split()
        if last in ("à", "de"):
            words = spell(" ".join(start), link) + place.fr_after(last, link)
        else:
            words = spell(fr, link) + place.fr
        return Pair(bracket("PP", spell(en, link) + place.en_object), words)
