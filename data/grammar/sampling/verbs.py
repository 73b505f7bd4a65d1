"""Random predicates, tenses, negations and relative clauses."""

from dataclasses import replace

from grammar import clauses, lexicon
from grammar.clauses import Predicate, Tense
from grammar.lexicon import Noun, Verb
from grammar.nominals import Nominal, noun_phrase, plain, pronoun
from grammar.sampling.fitting import (
    HUMAN,
    common_form,
    fitting,
    kin,
    nouns,
    rare_form,
    same_in_past,
    taking,
    verbs_of,
)
from grammar.sampling.nouns import SPELLED, NounSampler
from grammar.text import EMPTY, Pair, phrase

_FREQUENCY = [
    ("often", "souvent"),
    ("always", "toujours"),
    ("sometimes", "parfois"),
    ("rarely", "rarement"),
]
_DEGREES = [("very", "très"), ("too", "trop"), ("quite", "assez"), ("really", "vraiment")]
_LANGUAGES = [
    ("French", "français"),
    ("English", "anglais"),
    ("German", "allemand"),
    ("Italian", "italien"),
    ("Spanish", "espagnol"),
    ("Russian", "russe"),
    ("Japanese", "japonais"),
]


class VerbSampler(NounSampler):
    """Random predicates and clauses."""

    def tense(self, verb: Verb, when: str, subject: Nominal) -> Tense:
        """A tense for a verb, in the present, past or future, that the English form shows: "they read" is past."""
        modal, lasting = "modal" in verb.flags, "lasting" in verb.flags
        if "would" in verb.flags:
            return Tense.WOULD
        if modal:
            return Tense.PAST if when == "past" and verb.en == "can" else Tense.PRESENT
        if when == "past":
            if verb.frame == "price" and same_in_past(verb, subject):
                return Tense.USED_TO
            if verb.state:
                return Tense.PAST
            lasting = lasting and not rare_form(verb, subject)
            name = self.weighted(
                PAST=8, PERFECT=1.2, WAS_DOING=1.2 * lasting, USED_TO=0.6 * lasting
            )
        elif when == "future":
            name = "FUTURE" if verb.state else self.weighted(FUTURE=7, GOING_TO=3)
            name = "GOING_TO" if rare_form(verb, subject) else name
        else:
            name = (
                "PRESENT"
                if verb.state
                else self.weighted(PRESENT=6, PROGRESSIVE=4 * lasting, JUST=0.5)
            )
            if name == "PRESENT" and same_in_past(verb, subject) and verb.frame != "price":
                name = "PROGRESSIVE"
        return Tense[name]

    def verb(self, frame: str, subject: Nominal, kind: str = "person") -> Verb:
        """A verb of a frame for a subject of a kind."""
        return self.common([verb for verb in verbs_of(frame, kind) if common_form(verb, subject)])

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
        return clauses.predicate(self.verb("none", subject, kind))

    def _direct(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        verb = self.verb("direct", subject, kind)
        if kind == "animal" and verb.en == "drink":
            return clauses.transitive(verb, noun_phrase(lexicon.noun("water"), "s", "bare"))
        return clauses.transitive(verb, self.thing(verb, subject, room - 1, negated))

    def _dative(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        verb = self.verb("à", subject)
        human = tuple(k for k in verb.objects if k in HUMAN)
        if self.chance(0.85):
            return clauses.oblique(verb, self.somebody(verb, subject, room - 2))
        other = tuple(k for k in verb.objects if k not in human) or human
        return clauses.oblique(
            verb, self.one_thing(self.common(nouns(other)), verb, subject, room - 2, definite=True)
        )

    def _genitive(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        verb = self.verb("de", subject)
        definite = negated or verb.en in ("remember", "take", "laugh")
        noun = self.common(nouns(verb.objects))
        if noun.kind == "person" and self.chance(0.5):
            return clauses.oblique(verb, self.name())
        return clauses.oblique(
            verb, self.one_thing(noun, verb, subject, room - 2, definite=definite)
        )

    def _give(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        frame = self.weighted(give=6, tell=1, ask=1)
        verb = self.verb(frame, subject)
        receiver = self.somebody(verb, subject, 2)
        noun = self.common(nouns(verb.objects))
        return clauses.ditransitive(
            verb, self.one_thing(noun, verb, subject, min(room - 4, 3), negated), receiver
        )

    def _motion(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        frame = self.weighted(to=6, origin=3, into=1.5)
        if frame == "to":
            return clauses.located(self.pick(verbs_of("to")), self.goal())
        if frame == "origin":
            return clauses.located(self.pick(verbs_of("from")), self.origin())
        inside = self.described(self.common(nouns(("room", "building"))), "s", "the", room - 3)
        return clauses.located(
            self.pick(verbs_of("into")), self.preposition("into", "dans", inside)
        )

    def _live(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        verb = self.pick(verbs_of("place"))
        return clauses.located(verb, self.home() if verb.en == "live" else self.place())

    def _where(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        if kind == "building":
            place = self.country_or_city()
            return clauses.being(place)
        small = kind in ("thing", "clothes", "text")
        return clauses.being(self.spot() if small and self.chance(0.7) else self.place())

    def _adjective(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        verb = (
            self.verb("adjective", subject, "")
            if kind == "person"
            else lexicon.verb("be", "adjective")
        )
        example = {
            "person": "man" if subject.gender == "m" else "woman",
            "animal": "dog",
            "building": "house",
        }.get(kind) or nouns((kind,))[0].en
        before, after = fitting(lexicon.noun(example))
        before = [
            entry
            for entry in before
            if kind not in ("person", "animal") or entry.en not in ("good", "bad", "new")
        ]
        after = [entry for entry in after if entry.en != "hungry"]  # is hungry -> a faim
        adjective = self.common(after if self.chance(0.7) or not before else before)
        degree = EMPTY
        if adjective.group not in ("nation", "colour") and room >= 3 and self.chance(0.35):
            degree = self.expression(_DEGREES)
        return clauses.adjectival(verb, adjective, subject, degree)

    def _compare(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        adjective = self.common([entry for entry in lexicon.ADJECTIVES if entry.group == "person"])
        return clauses.compared(adjective, subject, self.degree(), self.other(subject))

    def degree(self) -> str:
        """A degree of comparison."""
        return self.weighted(more=6, less=1.5, **{"as": 2.5})

    def other(self, subject: Nominal) -> Nominal:
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
        years = 3 + int(self._random() * self._random() * 80)
        return clauses.age(years, digits=years > 20 and years % 10 > 0 and years not in SPELLED)

    def _language(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        speak = replace(
            lexicon.verb("talk", "à", "to"),
            en="speak",
            past="spoke",
            en_participle="spoken",
            en_tail="",
        )
        return clauses.predicate(speak).with_complement(phrase(*self.common(_LANGUAGES)))

    def _price(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        return clauses.price(5 * (1 + self.below(19)))

    def _passive(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        noun = self._head
        verbs = [
            verb for verb in (taking("direct", noun) if noun else []) if "passive" in verb.flags
        ]
        if not verbs:
            return self._adjective(subject, kind, room, negated)
        agent = (
            None
            if self.chance(0.3)
            else self.name()
            if self.chance(0.5)
            else self.human(room - 3, plain_only=True)
        )
        return clauses.passive(self.common(verbs), subject, agent)

    def _belong(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        verb = lexicon.verb("belong", "à", "to")
        if kind not in verb.subjects:
            return self._adjective(subject, kind, room, negated)
        return clauses.oblique(verb, self.name() if self.chance(0.5) else self.human(2))

    def _control(self, subject: Nominal, kind: str, room: int, negated: bool) -> Predicate:
        frame = self.weighted(inf=5, a=1.5, de=2.5)
        verb = self.verb({"inf": "inf", "a": "à-inf", "de": "de-inf"}[frame], subject)
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

    def action(
        self, subject: Nominal, room: int, definite: bool = False, pronouns: bool = True
    ) -> Predicate:
        """Something that one can want, try or refuse to do."""
        how = self.weighted(
            none=3,
            direct=7 if room >= 2 else 0,
            dative=1 if room >= 2 and pronouns else 0,
            motion=1,
        )
        if how == "motion" and room >= 3:
            return clauses.located(self.pick(verbs_of("to")), self.goal())
        if how == "dative":
            verb = self.common(
                [verb for verb in verbs_of("à", "person") if "full" not in verb.flags]
            )
            return clauses.oblique(verb, self.name())
        if how == "none" or how == "motion":
            verbs = [
                verb
                for verb in verbs_of("none", "person")
                if "lasting" in verb.flags and verb.en not in ("cry", "lie")
            ]
            verbs += [
                lexicon.verb("leave", "none"),
                lexicon.verb("go", "none", "out"),
                lexicon.verb("rest", "none"),
            ]
            return clauses.predicate(self.common(verbs))
        verbs = [
            verb
            for verb in verbs_of("direct", "person")
            if not verb.state and verb.en not in ("lose", "forget", "receive")
        ]
        verb = self.common(verbs)
        if not pronouns:
            things = tuple(kind for kind in verb.objects if kind not in HUMAN)
            if not things:
                return clauses.transitive(verb, self.name())
            return clauses.transitive(
                verb, self.one_thing(self.common(nouns(things)), verb, subject, room - 1)
            )
        return clauses.transitive(verb, self.thing(verb, subject, room - 1, definite=definite))

    def definite_action(self, subject: Nominal, room: int) -> Predicate:
        """Something done to a definite thing: reading the book."""
        verbs = [verb for verb in verbs_of("direct", "person") if not verb.state]
        verb = self.common(verbs)
        return clauses.transitive(
            verb,
            self.one_thing(
                self.common(nouns(verb.objects)), verb, subject, room - 2, definite=True
            ),
        )

    def negation(self, verb: Verb, tense: Tense, often: float = 0.17) -> str:
        """A negation that goes with the tense, or none."""
        if verb.frame in ("age", "price"):
            return "not" if self.chance(often) else ""
        if not self.chance(often) or tense in (Tense.JUST, Tense.USED_TO, Tense.WAS_DOING):
            return ""
        if tense in (Tense.PAST, Tense.PERFECT) and not verb.state:
            return self.weighted(**{"not": 8, "never": 1.5})
        if tense in (Tense.PRESENT, Tense.FUTURE) or (verb.state and tense is Tense.PAST):
            return self.weighted(**{"not": 7, "never": 2, "no longer": 1.5})
        return "not"

    def finish(self, subject: Nominal, pred: Predicate, when: str, negatable: bool = False) -> Pair:
        """A clause in a tense that goes with the verb."""
        return self.in_tense(subject, pred, self.tense(pred.verb, when, subject), negatable)

    def in_tense(self, subject: Nominal, pred: Predicate, tense: Tense, negatable: bool) -> Pair:
        """A clause in a given tense, perhaps with a negation and an adverb in the middle."""
        negation = self.negation(pred.verb, tense, 1.0 if negatable else 0.0)
        adverb = EMPTY
        if tense in (Tense.PRESENT, Tense.PAST) and not negation and self.chance(0.1):
            adverb = self.expression(_FREQUENCY)
        elif tense is Tense.PERFECT and not negation and self.chance(0.3):
            adverb = phrase("already", "déjà")
        elif tense is Tense.PROGRESSIVE and not negation and self.chance(0.15):
            adverb = phrase("still", "encore")
        if pred.verb.frame in ("passive", "place") or (pred.verb.state and not pred.verb.fr_tail):
            adverb = EMPTY  # not "often knows his mother", but "is often hungry"
        return clauses.clause(subject, replace(pred, adverb=adverb), tense, negation).statement

    def relative(self, noun: Noun, number: str, room: int, described: bool) -> Pair:
        """A relative clause that fits a noun."""
        head = plain(EMPTY, noun.gender, number)
        human = noun.kind in HUMAN
        objects = taking("direct", noun)
        genitives = taking("de", noun)
        datives = taking("à", noun) if human else []
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
            adjective = self.common(
                [*fitting(noun)[1], *fitting(noun)[0]] or fitting(lexicon.noun("book"))[1]
            )
            be = lexicon.verb("be", "adjective")
            return clauses.clause(
                subject, clauses.adjectival(be, adjective, subject), Tense.PRESENT
            ).statement
        if kind == "whose":
            if self.chance(0.5):
                owned = self.common(kin(noun.gender == "m", plural=False))
                subject = clauses.whose(owned, "s")
                return self.finish(subject, self.predicate(subject, "person", min(room, 5)), when)
            owned = self.common(nouns(("vehicle", "clothes")))
            subject = clauses.whose(owned, self.number(0.2))
            be = lexicon.verb("be", "adjective")
            adjective = self.common(fitting(owned)[1])
            return clauses.clause(
                subject, clauses.adjectival(be, adjective, subject), Tense.PRESENT
            ).statement
        who = (
            self.name()
            if self.chance(0.4)
            else self.any_pronoun()
            if self.chance(0.6)
            else self.human(2)
        )
        if who.slot == 6 and who.pronoun:
            who = pronoun("they-m") if self._plural_gender == "m" else pronoun("we")
        if kind == "place":
            verb = self.pick([lexicon.verb(en, "none") for en in ("work", "sleep", "play")])
            pred = clauses.predicate(lexicon.verb("live", "place") if self.chance(0.4) else verb)
            return clauses.place_relative(self.finish(who, pred, when))
        verbs = {"object": objects, "genitive": genitives, "dative": datives}[kind]
        verb = self.common(verbs)
        who = who if common_form(verb, who) else self.name()
        tense = self.tense(verb, when, who)
        negation = "not" if self.chance(0.1) and tense in (Tense.PRESENT, Tense.PAST) else ""
        if kind == "object":
            return clauses.object_relative(verb, head, who, tense, negation)
        return clauses.oblique_relative(verb, who, tense, negation)

    def who_does(self, head: Nominal, room: int) -> Pair:
        """A relative clause about a person: who sleeps."""
        subject = clauses.relative_subject(head, human=True)
        return self.finish(subject, self.predicate(subject, "person", room), "present")
