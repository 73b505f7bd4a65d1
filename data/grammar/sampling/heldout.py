"""Sentences with a construction that is held out of the training set, for the marked part of the test set."""

from grammar import clauses, lexicon
from grammar.clauses import Predicate, Tense
from grammar.lexicon import Adjective, Noun, Verb
from grammar.nominals import Nominal, noun_phrase, plain, pronoun
from grammar.sampling.fitting import common_form, nouns, taking
from grammar.sampling.sentences import SentenceSampler
from grammar.text import EMPTY, Pair, join, phrase


class Sampler(SentenceSampler):
    """Random sentences, of any kind or with a held-out construction."""

    def sentence_with(self, fact: str, size: int) -> Pair:
        """A sentence of about `size` words with a held-out construction, named as `family/lemma`."""
        self._plural_gender = "m"
        family, _, lemma = fact.partition("/")
        if family == "question":
            verb = self._verb_of(lemma)
            subject = self._subject_of(verb, max(2, size // 4))
            pred = self._with_object(verb, subject, size - len(subject.en) - 2)
            tense = self.asked(
                self.tense(verb, self.weighted(present=5, past=4, future=2), subject)
            )
            adjunct = self.fill(
                EMPTY,
                size - len(subject.en) - len(pred.en_after) - 3,
                verb,
                tense,
                subject,
                "person",
            )
            return clauses.yes_no(subject, pred, tense, adjunct=adjunct)
        first = size - 1 if size < 14 else max(6, size * (3 + self.below(3)) // 8)
        core = self._wanted(family, lemma, first)
        left = size - 1 - len(core.en)
        if left >= 4:
            rest = self.statement(left - 2)
            core = (
                join(core, self.connective(), rest)
                if self.chance(0.5)
                else join(rest, self.connective(), core)
            )
        return join(core, phrase(".", "."))

    def _wanted(self, family: str, lemma: str, size: int) -> Pair:
        """A clause with the held-out construction."""
        if family == "adjective-noun":
            adjective, _, about = lemma.partition("+")
            return self._clause_about(lexicon.noun(about), size, lexicon.adjective(adjective))
        if family == "comparison":
            subject = self.subject("person", max(2, size // 3))
            pred = clauses.compared(
                lexicon.adjective(lemma), subject, self.degree(), self.other(subject)
            )
            when = self.weighted(present=3, past=2)
            return self.in_tense(
                subject, pred, self.tense(pred.verb, when, subject), self.chance(0.15)
            )
        verb = self._verb_of(lemma)
        if family == "object-relative":
            possible = [
                noun
                for noun in nouns(verb.objects)
                if noun.kind != "kin" and self._doing(noun, verb)
            ]
            noun = self.common(possible)
            return self._clause_about(noun, size, verb=verb)
        subject = self._subject_of(verb, max(2, size // 3))
        if family == "negated-past":
            tense = Tense.PAST if self.chance(0.8) else Tense.PERFECT
            pred = self._with_object(verb, subject, size - len(subject.en) - 1, negated=True)
            pair = clauses.clause(subject, pred, tense, "not").statement
        elif family == "object-pronoun":
            pred = clauses.transitive(verb, pronoun(self.pick(["he", "she", "they-m"])))
            tense = self.tense(verb, self.weighted(present=5, past=5, future=2), subject)
            pair = self.in_tense(subject, pred, tense, self.chance(0.15))
        else:
            raise ValueError(f"no such family of constructions: {family}")
        return self.fill(pair, size, verb, tense, subject, "person")

    def _clause_about(
        self, noun: Noun, size: int, adjective: Adjective | None = None, verb: Verb | None = None
    ) -> Pair:
        """A clause with a noun that has the adjective, or the object relative clause of the verb."""
        number = self.number(0.35) if noun.en_plural else "s"
        before = adjective if adjective and adjective.before else None
        after = (adjective,) if adjective and not adjective.before else ()
        modifier = EMPTY
        if verb:
            head = plain(EMPTY, noun.gender, number)
            who = self.name() if self.chance(0.5) else self.human(2, plain_only=True)
            tense = self.tense(verb, self.weighted(present=4, past=5, future=2), who)
            modifier = clauses.object_relative(verb, head, who, tense)
        det = "the" if number == "p" or self.chance(0.7) else "a"
        thing = noun_phrase(noun, number, det, before, after, modifier=modifier)
        main = self.common(self._doing(noun, verb))
        subject = self._subject_of(main, max(2, size - len(thing.en) - 2))
        tense = self.tense(main, self.weighted(present=5, past=5, future=2), subject)
        pair = self.in_tense(subject, clauses.transitive(main, thing), tense, negatable=False)
        return self.fill(pair, size, main, tense, subject, "person")

    @staticmethod
    def _doing(noun: Noun, other: Verb | None) -> list[Verb]:
        """Verbs that take the noun, other than the one of the relative clause."""
        return [
            verb for verb in taking("direct", noun) if verb != other and "generic" not in verb.flags
        ]

    def _subject_of(self, verb: Verb, room: int) -> Nominal:
        """A subject that the verb is used with."""
        subject = self.subject("person", room)
        return subject if common_form(verb, subject) else self.name()

    @staticmethod
    def _verb_of(fr: str) -> Verb:
        """The verb with this French infinitive (the first in the lexicon)."""
        return next(verb for verb in lexicon.VERBS if verb.fr == fr)

    def _with_object(
        self, verb: Verb, subject: Nominal, room: int, negated: bool = False
    ) -> Predicate:
        """The verb with an object if it takes one."""
        if verb.frame == "direct":
            return clauses.transitive(verb, self.thing(verb, subject, room, negated))
        return clauses.predicate(verb)
