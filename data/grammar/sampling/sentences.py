"""Random sentences of a wanted length.

Common words come first in the lexicon and are drawn more often, none less than half as often as the average.
"""

from grammar import clauses, lexicon
from grammar.clauses import Predicate, Tense
from grammar.lexicon import Verb
from grammar.nominals import Nominal, country, noun_phrase, plain, pronoun
from grammar.nominals import superlative as superlative_phrase
from grammar.sampling.fitting import (
    common_form,
    fitting,
    nouns,
    rare_form,
    same_in_past,
    taking,
    verbs_of,
)
from grammar.sampling.verbs import VerbSampler
from grammar.text import (
    EMPTY,
    Pair,
    adjunct,
    bracket,
    constituent,
    join,
    mark,
    new_link,
    phrase,
    spell,
)

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
_OPENERS = [
    ("fortunately", "heureusement"),
    ("unfortunately", "malheureusement"),
    ("however", "cependant"),
    ("of course", "bien sûr"),
    ("in general", "en général"),
]
_WITH_PURPOSE = {
    ("come", "back"),
    ("leave", ""),
    ("go", "out"),
    ("get", "up"),
    ("stay", ""),
    ("hurry", ""),
}
_IN_COMPANY = {"eat", "drink", "visit", "prepare", "build", "study", "clean", "repair"}
_TIMELESS = {"adjective", "price", "age", "inf"}  # frames that stand without an expression of time
_NOT_AFTER_GETTING = {"look", "wait", "hear", "see", "write", "build", "rent", "steal"}
_NEVER_ORDERED = {"lose", "find", "see", "hear", "understand", "receive", "meet"}


class SentenceSampler(VerbSampler):
    """Random sentences: phrases are added until the wanted length is reached."""

    def sentence(self, size: int) -> Pair:
        """A sentence of about `size` English words with its final mark."""
        self._plural_gender = "m"
        how = self.weighted(
            statement=8, question=1.5 if size <= 24 else 0.3, order=0.5 if size <= 20 else 0
        )
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
                pieces.append(self.connective())
            pieces.append(self.unit(max(3, share - 2 if i < n - 1 else share - 1)))
            left = size - sum(len(piece.en) for piece in pieces)
        return join(*pieces)

    def connective(self) -> Pair:
        """What joins two units."""
        how = self.weighted(and_=5, but=4, so=1.5, semicolon=1)
        if how == "semicolon":
            return mark(";")
        return join(
            mark(","),
            phrase(*{"and_": ("and", "et"), "but": ("but", "mais"), "so": ("so", "donc")}[how]),
        )

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
            if self.chance(0.12):
                opener = join(adjunct(self.expression(_OPENERS)), mark(","))
                return join(opener, self.simple(size - len(opener.en), when))
            if self.chance(0.12):
                when = self.weighted(past=2, future=1)
                opener = join(
                    adjunct(self.past(dated=True) if when == "past" else self.future()), mark(",")
                )
                return join(opener, self.simple(size - len(opener.en), when, timed=True))
            return self.simple(size, when)
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

    def subordinate(self, size: int) -> Pair:
        """Two clauses joined by because, when, if, although or while."""
        how = self.weighted(
            because=4,
            when_past=2.5,
            when_future=1.5,
            whenever=1,
            condition=3,
            although=1.5,
            meanwhile=1.2,
        )
        first = max(3, size * (3 + self.below(4)) // 9)
        second = max(3, size - first - 2)
        if how == "because":
            when = self.weighted(present=5, past=5, future=1)
            main = self.simple(first, when, linked=True)
            reason = self.simple(second, "present" if when == "future" else when, linked=True)
            return join(main, constituent("SBAR", phrase("because", "parce que"), reason))
        if how == "although":
            word = phrase("although", "bien que")
            if self.chance(0.6):
                one = self.dependent(first, Tense.SUBJUNCTIVE)
                return join(
                    constituent("SBAR", word, one),
                    mark(","),
                    self.simple(second, "present", linked=True),
                )
            one = self.dependent(first, Tense.PAST_SUBJUNCTIVE)
            return join(
                constituent("SBAR", word, one), mark(","), self.simple(second, "past", linked=True)
            )
        if how == "condition":
            one = self.dependent(first, Tense.PRESENT)
            start = constituent("SBAR", phrase("if", "si"), one)
            return join(start, mark(","), self.simple(second, "future", linked=True))
        if how == "when_future":
            word = phrase("when", "quand") if self.chance(0.7) else phrase("as soon as", "dès que")
            start = constituent("SBAR", word, self.dependent(first, Tense.WHEN_FUTURE))
            return join(start, mark(","), self.simple(second, "future", linked=True))
        if how == "whenever":
            one = self.dependent(first, Tense.PRESENT)
            start = constituent("SBAR", phrase("when", "quand"), one)
            return join(start, mark(","), self.simple(second, "present", linked=True))
        if how == "meanwhile":
            past = self.chance(0.5)
            one = self.dependent(first, Tense.WAS_DOING if past else Tense.PROGRESSIVE)
            return join(
                constituent("SBAR", phrase("while", "pendant que"), one),
                mark(","),
                self.simple(second, "past" if past else "present", linked=True),
            )
        one = self.dependent(first, Tense.PAST)
        start = constituent("SBAR", phrase("when", "quand"), one)
        return join(start, mark(","), self.simple(second, "past", linked=True))

    def dependent(self, size: int, tense: Tense, subject: Nominal | None = None) -> Pair:
        """A clause in a given tense, with a verb that can bear it."""
        subject = subject or self.subject("person", max(1, size // 2))
        room = max(1, size - len(subject.en))

        def timeless(pred: Predicate) -> bool:
            return (
                pred.verb.en == "be"
                and pred.verb.frame != "place"
                and tense is not Tense.SUBJUNCTIVE
            )

        for _ in range(50):
            pred = self.predicate(subject, "person", room)
            verb = pred.verb
            lasting = "lasting" in verb.flags or tense not in (Tense.WAS_DOING, Tense.PROGRESSIVE)
            action = not verb.state or tense not in (Tense.PAST, Tense.PAST_SUBJUNCTIVE)
            past_or_future = tense in (Tense.WAS_DOING, Tense.WHEN_FUTURE)
            shown = not same_in_past(verb, subject) and not (
                past_or_future and rare_form(verb, subject)
            )
            if (
                lasting
                and action
                and shown
                and not verb.flags & {"modal", "would"}
                and not timeless(pred)
            ):
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
            pred = self.definite_action(subject, first)
            inner = clauses.infinitive(pred, subject.slot)
            main = self.dependent(size - first - 1, Tense.PAST, subject)
            en = bracket("PP", spell("without", link) + clauses.gerund(pred))
            return join(main, Pair(en, spell("sans", link) + inner.fr))
        pred = self.action(subject, first, definite=True, pronouns=False)
        if how == "before":
            inner = clauses.infinitive(pred, subject.slot)
            start = Pair(
                spell("before", link) + clauses.gerund(pred), spell("avant de", link) + inner.fr
            )
        else:
            fr = clauses.past_infinitive(pred, subject)
            start = Pair(spell("after", link) + clauses.gerund(pred), spell("après", link) + fr)
        rest = self.dependent(size - len(start.en) - 1, Tense.PAST, subject)
        return join(constituent("PP", start), mark(","), rest)

    def then(self, size: int) -> Pair:
        """Buys an apple and eats it -> achète une pomme et la mange."""
        subject = self.subject("person", 3)
        when = self.weighted(present=3, past=4, future=1.5)
        tense = {"present": Tense.PRESENT, "past": Tense.PAST, "future": Tense.FUTURE}[when]
        getting = [
            lexicon.verb(en, "direct")
            for en in ("buy", "find", "take", "bring", "choose", "receive")
        ]
        first = self.pick(getting)
        kinds = ("thing", "food", "dish", "drink", "clothes", "vehicle", "text")
        noun = self.common([noun for noun in nouns(kinds) if first.takes(noun)])
        verbs = [
            v for v in taking("direct", noun) if not v.state and v.en not in _NOT_AFTER_GETTING
        ]
        second = self.common([verb for verb in verbs if verb not in getting])
        if not (common_form(first, subject) and common_form(second, subject)):
            subject = self.name()
        thing = self.one_thing(noun, first, subject, size - 6)
        key = f"they-{thing.gender}" if thing.number == "p" else f"it-{thing.gender}"
        it = pronoun(key)
        one = clauses.clause(subject, clauses.transitive(first, thing), tense).statement
        two = clauses.clause(subject.silent(), clauses.transitive(second, it), tense).statement
        pair = join(one, phrase("and", "et"), two)
        return self.fill(pair, size, second, tense, subject, "person")

    def reported(self, size: int) -> Pair:
        """Thinks that ... -> pense que ..."""
        subject = self.subject("person", 2)
        verb = self.verb("that", subject)
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
        return clauses.clause(subject, clauses.wanted(content), tense).statement

    def superlative(self, size: int) -> Pair:
        """Paul is the tallest boy in the school -> Paul est le plus grand garçon de l'école."""
        place = noun_phrase(
            self.common(nouns(("school", "village", "city", "hotel", "university"))), "s", "the"
        )
        link = new_link()
        modifier = Pair(bracket("PP", spell("in", link) + place.en), place.fr_after("de", link))
        subject = self.name()
        people = [
            n
            for n in nouns(("person",))
            if n.gender == subject.gender and n.en not in ("king", "queen")
        ]
        noun = self.common(people)
        before, after = fitting(noun)
        adjectives = [
            a
            for a in (*before, *after)
            if a.group in ("any", "person") and a.en not in ("bad", "new")
        ]
        best = superlative_phrase(self.common(adjectives), noun, "s", modifier)
        be = clauses.located(lexicon.verb("be", "adjective"), Pair(best.en, best.fr))
        return clauses.clause(
            subject, be, Tense.PRESENT if self.chance(0.6) else Tense.PAST
        ).statement

    def _kind(self, room: int) -> str:
        """What kind of subject a clause has."""
        thing = 1.0 if room >= 4 else 0.0
        kind = self.weighted(
            person=17, animal=1.6, thing=2 * thing, text=0.7 * thing, building=0.8 * thing
        )
        return (
            self.weighted(thing=3, vehicle=3, clothes=2, furniture=2) if kind == "thing" else kind
        )

    def simple(self, size: int, when: str = "", linked: bool = False, timed: bool = False) -> Pair:
        """A clause of about `size` words, without final mark.

        Args:
            size: English words wanted.
            when: `present`, `past` or `future`; empty for any.
            linked: it depends on another clause: about a person, in a plain tense.
            timed: the time has been said already.
        """
        when = when or self.weighted(present=5, past=5, future=2.2)
        kind = "person" if linked else self._kind(size)
        if not linked and not timed and size >= 3 and self.chance(0.06):
            return self._impersonal(size, when)
        negated = self.chance(0.19)
        subject = self.subject(kind, max(1, min(size // 2, size - 3)))
        room = max(1, size - len(subject.en))
        if kind == "person" and when == "past" and room >= 3 and self.chance(0.02):
            pred = clauses.predicate(lexicon.verb("be", "born", "born")).with_complement(
                self._birth(room)
            )
            return clauses.clause(subject, pred, Tense.PAST).statement
        if kind == "person" and when == "present" and room >= 5 and self.chance(0.04):
            return self._since(subject)
        if kind == "person" and negated and self.chance(0.06):
            return self._nothing(subject, when)
        pred = self.predicate(
            subject, kind, self.below(room) + 1 if self.chance(0.3) else room, negated
        )
        if timed and pred.verb.flags & {"modal", "would"}:
            pred = self.action(subject, room)
        tense = self.tense(pred.verb, when, subject)
        if (linked or timed) and pred.verb.frame != "price":
            plainer = {
                Tense.PERFECT: Tense.PAST,
                Tense.USED_TO: Tense.PAST,
                Tense.JUST: Tense.PRESENT,
            }
            tense = plainer.get(tense, tense)
        pair = self.in_tense(subject, pred, tense, negated)
        return self.fill(pair, size, pred.verb, tense, subject, kind, timed)

    def _nothing(self, subject: Nominal, when: str) -> Pair:
        """Does not eat anything -> ne mange rien."""
        verbs = [
            lexicon.verb(en, "direct")
            for en in ("see", "eat", "buy", "find", "drink", "hear", "understand", "read")
        ]
        verb = self.pick([verb for verb in verbs if common_form(verb, subject)])
        tense = {"present": Tense.PRESENT, "past": Tense.PAST, "future": Tense.FUTURE}[when]
        return clauses.clause(subject, clauses.predicate(verb), tense, "nothing").statement

    def _birth(self, room: int) -> Pair:
        where = self.preposition("in", "à", country(self.common(lexicon.CITIES)))
        return join(where, self.past_date()) if room >= 5 else where

    def _since(self, subject: Nominal) -> Pair:
        """Has been working in Paris for two years -> travaille à Paris depuis deux ans."""
        en_n, en_unit, fr_n, fr_unit = self.span()
        since = phrase(f"for:1 {en_n}:2 {en_unit}:3", f"depuis:1 {fr_n}:2 {fr_unit}:3")
        if self.chance(0.4):
            since = join(phrase("since", "depuis"), Pair(*(side[1:] for side in self.year())))
        if self.chance(0.5):
            live = clauses.located(lexicon.verb("live", "place"), self.home())
            return join(clauses.clause(subject, live, Tense.HAS_BEEN).statement, adjunct(since))
        lasting = [verb for verb in verbs_of("none", "person") if "lasting" in verb.flags]
        pred = clauses.predicate(
            self.common([verb for verb in lasting if common_form(verb, subject)])
        )
        return join(clauses.clause(subject, pred, Tense.SINCE).statement, adjunct(since))

    def _impersonal(self, size: int, when: str) -> Pair:
        """Weather, or what there is somewhere."""
        if size >= 5 and self.chance(0.6):
            noun = self.common(
                nouns(("thing", "food", "animal", "person", "clothes", "dish", "drink"))
            )
            mass = not noun.en_plural
            number = "s" if mass else self.number(0.55)
            det = (
                "some"
                if mass
                else "a"
                if number == "s"
                else self.weighted(number=3, some=2, many=1, several=1)
            )
            thing = self.described(noun, number, det, min(size - 4, 4), plain_only=True)
            there, pred = clauses.existential(thing)
            tense = {"present": Tense.PRESENT, "past": Tense.PAST, "future": Tense.FUTURE}[when]
            negation = "not" if self.chance(0.2) and det in ("a", "some") else ""
            small = noun.kind in ("thing", "food", "clothes", "dish", "drink")
            spot = self.spot() if small and self.chance(0.6) else self.place()
            return join(clauses.clause(there, pred, tense, negation).statement, adjunct(spot))
        it, pred = clauses.weather(self.pick([*verbs_of("weather"), *verbs_of("sky")]))
        tense = self.tense(pred.verb, when, it)
        pair = clauses.clause(it, pred, tense, self.negation(pred.verb, tense)).statement
        return join(pair, adjunct(self.time(tense)) if size >= 5 else EMPTY)

    def fill(
        self,
        pair: Pair,
        size: int,
        verb: Verb,
        tense: Tense,
        subject: Nominal,
        kind: str,
        timed: bool = False,
    ) -> Pair:
        """Add manner, place, company, purpose and time until the length is about right."""
        active = not verb.state and kind == "person" and verb.frame != "adjective"
        moving = verb.frame == "to" or (verb.en, verb.en_tail) in _WITH_PURPOSE
        lasting = "lasting" in verb.flags
        options = {
            "manner": active and lasting and verb.en != "sleep",
            "company": active
            and (moving or (lasting and (verb.frame == "none" or verb.en in _IN_COMPANY))),
            "place": (active or (kind == "animal" and lasting))
            and verb.frame in ("none", "direct"),
            "time": not timed
            and verb.frame not in _TIMELESS
            and not verb.fr_tail
            and "generic" not in verb.flags,
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
        return join(pair, *(adjunct(chosen[name]) for name in order if name in chosen))

    def _adjunct(self, name: str, room: int, tense: Tense, subject: Nominal, state: bool) -> Pair:
        if name == "manner":
            return self.expression(_MANNER)
        if name == "place":
            return self.place()
        if name == "company":
            noun = self.human(room - 1, subject) if self.chance(0.6) else self.name()
            return self.preposition("with", "avec", noun)
        if name == "purpose":
            return self.purpose(subject, room)
        return self.time(tense, state)

    def purpose(self, subject: Nominal, room: int) -> Pair:
        """To buy some bread -> pour acheter du pain."""
        link = new_link()
        verbs = [
            lexicon.verb(en, "direct")
            for en in ("buy", "see", "eat", "find", "prepare", "visit", "sell", "help")
        ]
        verb = self.pick([*verbs, lexicon.verb("look", "direct", "for")])
        action = clauses.transitive(verb, self.thing(verb, subject, room - 2))
        if self.chance(0.3):
            action = clauses.predicate(
                lexicon.verb(self.pick(["work", "play", "dance", "sing", "rest", "sleep"]), "none")
            )
        inner = clauses.infinitive(action, subject.slot)
        return Pair(bracket("VP", spell("to", link) + inner.en), spell("pour", link) + inner.fr)

    # Units: a clause, perhaps with another that depends on it.

    def question(self, size: int) -> Pair:
        """A yes-no question or one with a question word."""
        how = self.weighted(
            yes=4, where=1, when=0.6, why=1, what=1.2, which=1, many=0.8, who=1.2, old=0.4, much=0.4
        )
        if how == "old":
            return clauses.how_old(self.name() if self.chance(0.5) else self.human(size - 4))
        if how == "much":
            kind = self.weighted(clothes=1, vehicle=1, thing=1)
            return clauses.how_much(
                self.described(self.common(nouns((kind,))), self.number(0.3), "the", size - 5)
            )
        when = self.weighted(present=5, past=4, future=2)
        if how == "who":
            subject = clauses.who()
            pred = self.predicate(subject, "person", size - 2)
            tense = self.tense(pred.verb, when, subject)
            pair = clauses.clause(subject, pred, tense).statement
            return join(
                self.fill(pair, size - 1, pred.verb, tense, subject, "person"), phrase("?", "?")
            )
        subject = self.subject("person", 2 if size < 10 else size // 2)
        room = size - len(subject.en) - 2
        if how in ("what", "which", "many"):
            return self._object_question(how, subject, when, room)
        pred = self.predicate(subject, "person", max(1, room))
        if how == "where" or (how == "when" and pred.verb.state):
            verbs = [
                verb for verb in verbs_of("none", "person") if "lasting" in verb.flags
            ] + verbs_of("place")
            verbs = [verb for verb in verbs if common_form(verb, subject)]
            pred = clauses.predicate(self.common(verbs))
        tense = self.asked(self.tense(pred.verb, when, subject))
        if how != "yes":
            return clauses.wh_adverb(how, subject, pred, tense)
        negation = (
            "not" if self.chance(0.05) and tense is Tense.PRESENT and pred.verb.en != "be" else ""
        )
        more = self.fill(
            EMPTY, max(0, room - len(pred.en_after) - 1), pred.verb, tense, subject, "person"
        )
        return clauses.yes_no(subject, pred, tense, negation, more)

    @staticmethod
    def asked(tense: Tense) -> Tense:
        """The tense that a question uses: not "used to", which has no auxiliary."""
        return Tense.PAST if tense is Tense.USED_TO else tense

    def _object_question(self, how: str, subject: Nominal, when: str, room: int) -> Pair:
        people = {"person", "kin", "animal"}
        things = [
            v for v in verbs_of("direct", "person") if not people & set(v.objects) and not v.state
        ]
        verb = self.common([verb for verb in things if common_form(verb, subject)])
        kinds = tuple(kind for kind in verb.objects if kind not in ("dish", "drink"))
        if how == "what" or not kinds:
            link = new_link()
            asked, head = Pair(spell("what", link), spell("que", link)), plain(EMPTY, "m", "s")
        else:
            noun = self.common([noun for noun in nouns(kinds) if noun.en_plural])
            number = "p" if how == "many" else self.number(0.4)
            asked = clauses.how_many(noun) if how == "many" else clauses.which(noun, number)
            head = plain(EMPTY, noun.gender, number)
        tense = self.asked(self.tense(verb, when, subject))
        when_asked = adjunct(self.time(tense)) if room >= 6 else EMPTY
        return clauses.wh_object(verb, asked, head, subject, tense, when_asked)

    def order(self, size: int) -> Pair:
        """An imperative to "you"."""
        you = pronoun("you")
        negated = self.chance(0.3)
        verbs = [
            verb
            for verb in verbs_of("direct", "person")
            if not verb.state and verb.en not in _NEVER_ORDERED
        ]
        verbs = [verb for verb in verbs if common_form(verb, you)]
        verb = self.common(verbs)
        kinds = tuple(kind for kind in verb.objects if kind != "person") or ("kin",)
        thing = self.one_thing(self.common(nouns(kinds)), verb, you, 3, negated)
        pred = clauses.transitive(verb, thing)
        where = adjunct(self.place()) if size - len(pred.en_after) >= 7 else EMPTY
        return clauses.imperative(pred, negated, where, please=self.chance(0.3))
