"""Verbs with their complements (predicates) and the clauses and sentences made of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from grammar import english, french, lexicon
from grammar.lexicon import Adjective, Noun, Verb
from grammar.nominals import Nominal, comparison, definite, plain, pronoun
from grammar.text import (
    EMPTY,
    Pair,
    Words,
    adjunct,
    bracket,
    constituent,
    join,
    new_link,
    phrase,
    spell,
)


class Tense(Enum):
    """An English verb form with the French one that translates it."""

    PRESENT = ("present", "présent")
    PROGRESSIVE = ("progressive", "présent")
    PAST = ("past", "passé composé")  # of a state: imparfait
    PERFECT = ("perfect", "passé composé")
    WAS_DOING = ("past progressive", "imparfait")
    USED_TO = ("used to", "imparfait")
    FUTURE = ("future", "futur")
    GOING_TO = ("going to", "futur proche")
    JUST = ("just", "passé récent")
    # he has been working here for two years -> il travaille ici depuis ...
    SINCE = ("perfect progressive", "présent")
    HAS_BEEN = ("perfect", "présent")  # the same for a state: he has lived here since 1998
    WHEN_FUTURE = ("present", "futur")  # when he arrives -> quand il arrivera
    SUBJUNCTIVE = ("present", "subjonctif")  # although he sleeps -> bien qu'il dorme
    PAST_SUBJUNCTIVE = ("past", "subjonctif passé")
    TO_SUBJUNCTIVE = ("infinitive", "subjonctif")  # wants him to sleep -> veut qu'il dorme
    WOULD = ("would", "conditionnel")


_COMPOUND = {"passé composé": "présent", "subjonctif passé": "subjonctif"}
# Second part of the French negation. "not" needs do-support in English, "never" and "no longer" are adverbs.
_NEGATIONS = {"not": "pas", "never": "jamais", "no longer": "plus", "nothing": "rien"}


@dataclass(frozen=True)
class Predicate:
    """A verb with its complements, before it has a subject, a tense and a negation.

    Attributes:
        verb: the verb.
        link: link of the verb's main word.
        clitics: French object pronouns, in their order before the verb.
        en_after: English words after the verb.
        fr_after: French words after the verb.
        en_negated: the English words after the verb when it is negated.
        fr_negated: the same in French.
        agreement: gender and number of a direct object before the verb, with which a participle with avoir agrees.
        adverb: an adverb in the middle: often eats -> mange souvent, has often eaten -> a souvent mangé.
    """

    verb: Verb
    link: int
    clitics: Words = ()
    en_after: Words = ()
    fr_after: Words = ()
    en_negated: Words = ()
    fr_negated: Words = ()
    agreement: tuple[str, str] | None = None
    adverb: Pair = EMPTY

    def with_complement(self, positive: Pair, negated: Pair | None = None) -> "Predicate":
        """Add words after the verb, in another form under negation if given."""
        negated = negated or positive
        return replace(
            self,
            en_after=self.en_after + positive.en,
            fr_after=self.fr_after + positive.fr,
            en_negated=self.en_negated + negated.en,
            fr_negated=self.fr_negated + negated.fr,
        )


def predicate(verb: Verb) -> Predicate:
    """A verb alone, with the particle or noun that belongs to it (get up; be hungry -> avoir faim)."""
    link = new_link()
    tail = Pair(spell(verb.en_tail, link), spell(verb.fr_tail, link))
    return Predicate(verb, link).with_complement(tail)


def transitive(verb: Verb, thing: Nominal) -> Predicate:
    """A verb with a direct object in French: reads the book, looks at the book, sees him -> le voit."""
    base = predicate(verb)
    if thing.pronoun:
        clitic = spell(thing.pronoun.fr_direct, thing.link, facts=(f"object-pronoun/{verb.fr}",))
        agreement = (thing.gender, thing.number)
        return replace(
            base.with_complement(Pair(thing.en_object, ())),
            clitics=base.clitics + clitic,
            agreement=agreement,
        )
    return base.with_complement(Pair(thing.en, thing.fr), Pair(thing.en_negated, thing.fr_negated))


def oblique(verb: Verb, thing: Nominal) -> Predicate:
    """A verb whose French object follows à or de: talks to Paul -> parle à Paul, phones him -> lui téléphone."""
    base = predicate(verb)
    link = base.link
    if thing.pronoun and verb.frame == "à" and "full" not in verb.flags:
        clitic = spell(thing.pronoun.fr_indirect, thing.link)
        return replace(base.with_complement(Pair(thing.en_object, ())), clitics=clitic)
    return base.with_complement(Pair(thing.en_object, thing.fr_after(verb.frame, link)))


def ditransitive(verb: Verb, thing: Nominal, receiver: Nominal) -> Predicate:
    """Gives the book to Paul -> donne le livre à Paul; gives him the book; gives it to him -> le lui donne."""
    base = predicate(verb)
    to = new_link()
    positive, negated = Pair(thing.en, thing.fr), Pair(thing.en_negated, thing.fr_negated)
    clitics: Words = ()
    agreement = None
    if thing.pronoun:
        assert verb.frame == "give"
        clitics = spell(thing.pronoun.fr_direct, thing.link, facts=(f"object-pronoun/{verb.fr}",))
        positive = negated = Pair(thing.en_object, ())
        agreement = (thing.gender, thing.number)
    if receiver.pronoun:
        links = (receiver.link, to) if thing.pronoun else (receiver.link,)
        indirect = spell(receiver.pronoun.fr_indirect, *links)
        first = receiver.pronoun.fr_indirect not in ("lui", "leur")
        clitics = indirect + clitics if first else clitics + indirect
        someone = Pair(receiver.en_object, ())
    else:
        someone = Pair(receiver.en, receiver.fr_after("à", to))
    to_someone = Pair(bracket("PP", spell("to", to) + someone.en), someone.fr)
    for_thing = spell("for", thing.link)

    def order(which: Pair) -> Pair:
        if verb.frame == "ask":
            return Pair(someone.en + for_thing + which.en, which.fr + someone.fr)
        if verb.frame == "tell" or (receiver.pronoun and not thing.pronoun):
            return Pair(someone.en + which.en, which.fr + someone.fr)
        return join(which, to_someone)

    # without "to" in English, à belongs to the verb
    if verb.frame != "give" and not receiver.pronoun:
        someone = Pair(receiver.en, receiver.fr_after("à", base.link))
    return replace(
        base.with_complement(order(positive), order(negated)), clitics=clitics, agreement=agreement
    )


def adjectival(
    verb: Verb, adjective: Adjective, subject: Nominal, degree: Pair = EMPTY
) -> Predicate:
    """Is very tall -> est très grande, in agreement with the subject."""
    link = new_link()
    form = adjective.form(subject.gender, subject.number)
    pair = constituent("ADJP", degree, Pair(spell(adjective.en, link), spell(form, link)))
    return predicate(verb).with_complement(pair)


def compared(adjective: Adjective, subject: Nominal, degree: str, than: Nominal) -> Predicate:
    """Is taller than Paul."""
    be = predicate(lexicon.verb("be", "adjective"))
    return be.with_complement(comparison(adjective, subject.gender, subject.number, degree, than))


def profession(noun: Noun, subject: Nominal) -> Predicate:
    """Is a doctor -> est médecin: French has no article here."""
    link = new_link()
    be = predicate(lexicon.verb("be", "adjective"))
    if subject.number == "p":
        return be.with_complement(
            constituent("NP", Pair(spell(noun.en_plural, link), spell(noun.fr_plural, link)))
        )
    pair = Pair(spell("a", link) + spell(noun.en, link), spell(noun.fr, link))
    return be.with_complement(constituent("NP", pair))


def age(years: int, digits: bool = False) -> Predicate:
    """Is five years old -> a cinq ans."""
    verb = replace(lexicon.verb("be", "adjective"), frame="age", fr="avoir")
    link, unit = new_link(), new_link()
    en, fr = (str(years), str(years)) if digits else (english.number(years), french.number(years))
    complement = Pair(
        spell(en, link) + spell("years old", unit), spell(fr, link) + spell("ans", unit)
    )
    return predicate(verb).with_complement(constituent("ADJP", complement))


def price(amount: int) -> Predicate:
    """Costs 30 euros -> coûte 30 euros."""
    link, unit = new_link(), new_link()
    complement = Pair(
        spell(str(amount), link) + spell("euros", unit),
        spell(str(amount), link) + spell("euros", unit),
    )
    return predicate(lexicon.verb("cost", "price")).with_complement(constituent("NP", complement))


def located(verb: Verb, place: Pair) -> Predicate:
    """A verb with a place: lives in Paris, is under the table, goes to the market."""
    return predicate(verb).with_complement(adjunct(place))


def existential(thing: Nominal) -> tuple[Nominal, Predicate]:
    """There is a cat -> il y a un chat: the subject and the predicate."""
    link = new_link()
    there = Pair(spell("there", link), spell("il", link))
    subject = Nominal(*there, *there, there.fr, "m", "s", 3, thing.en_slot, link)
    base = predicate(replace(lexicon.verb("be", "adjective"), fr="avoir"))
    positive, negated = Pair(thing.en, thing.fr), Pair(thing.en_negated, thing.fr_negated)
    return subject, replace(base.with_complement(positive, negated), clitics=spell("y", link))


def weather(verb: Verb) -> tuple[Nominal, Predicate]:
    """It is raining -> il pleut; it is windy -> il y a du vent: the subject and the predicate."""
    subject = pronoun("it-m")
    base = predicate(verb)
    if verb.frame == "sky":
        none = spell("de vent", base.link)
        base = replace(base, clitics=spell("y", base.link), fr_negated=none)
    return subject, base


def passive(verb: Verb, subject: Nominal, agent: Nominal | None) -> Predicate:
    """Was written by Paul -> a été écrite par Paul."""
    link, by = new_link(), new_link()
    be = replace(lexicon.verb("be", "adjective"), frame="passive", flags=frozenset())
    form = french.participle(verb.fr, subject.gender, subject.number)
    result = predicate(be).with_complement(
        Pair(spell(verb.en_participle, link) + spell(verb.en_tail, link), spell(form, link))
    )
    if agent:
        fr = agent.fr
        en = bracket("PP", spell("by", by) + agent.en_object)
        result = result.with_complement(Pair(en, spell("par", by) + fr))
    return result


def control(verb: Verb, inner: Predicate, slot: int, negated: bool = False) -> Predicate:
    """Wants to read the book -> veut lire le livre; `slot` is the subject, for a reflexive inner verb."""
    link = new_link()
    return predicate(verb).with_complement(infinitive_phrase(verb, inner, slot, link, negated))


def infinitive_phrase(
    verb: Verb, inner: Predicate, slot: int, link: int, negated: bool = False
) -> Pair:
    """To read the book -> (à, de) lire le livre, as the verb before it wants."""
    en, fr = infinitive(inner, slot, negated)
    en_to = (
        () if "modal" in verb.flags else spell("to", inner.link if verb.frame == "inf" else link)
    )
    fr_to = {"à-inf": spell("à", link), "de-inf": spell("de", link)}.get(verb.frame, ())
    split = 1 if negated else 0  # not to read
    return Pair(bracket("VP", en[:split] + en_to + en[split:]), fr_to + fr)


def asked_to(verb_en: str, receiver: Nominal, inner: Predicate) -> Predicate:
    """Asks Paul to come -> demande à Paul de venir; helps him to work -> l'aide à travailler."""
    direct = verb_en in ("help", "invite")
    verb = lexicon.verb(verb_en, "direct" if direct else "ask" if verb_en == "ask" else "tell")
    if verb_en == "tell":
        verb = replace(verb, fr="dire")
    base = predicate(verb)
    link = new_link()
    connector = "à" if direct else "de"
    if receiver.pronoun:
        forms = receiver.pronoun
        facts = (f"object-pronoun/{verb.fr}",) if direct else ()
        clitic = spell(forms.fr_direct if direct else forms.fr_indirect, receiver.link, facts=facts)
        agreement = (receiver.gender, receiver.number) if direct else None
        base = replace(base, clitics=clitic, agreement=agreement)
        person = Pair(receiver.en_object, ())
    else:
        person = Pair(receiver.en, receiver.fr if direct else receiver.fr_after("à", base.link))
    inner_pair = infinitive(inner, receiver.slot)
    to = Pair(
        bracket("VP", spell("to", link) + inner_pair.en), spell(connector, link) + inner_pair.fr
    )
    return base.with_complement(join(person, to))


def being(place: Pair) -> Predicate:
    """Is in the kitchen -> est dans la cuisine."""
    return predicate(replace(lexicon.verb("be", "adjective"), frame="place")).with_complement(
        adjunct(place)
    )


def reported(verb: Verb, content: Pair) -> Predicate:
    """Thinks that ... -> pense que ..."""
    return predicate(verb).with_complement(constituent("SBAR", phrase("that", "que"), content))


def wanted(content: Pair) -> Predicate:
    """Wants the boys to eat -> veut que les garçons mangent; the content is a clause in TO_SUBJUNCTIVE."""
    base = predicate(lexicon.verb("want", "inf"))
    return base.with_complement(Pair(content.en, spell("que", base.link) + content.fr))


def infinitive(pred: Predicate, slot: int, negated: bool = False) -> Pair:
    """The infinitive without its preposition: (not) read it -> (ne pas) le lire."""
    link = new_link()
    reflexive = spell(_reflexive(slot), pred.link) if pred.verb.reflexive else ()
    en_after, fr_after = (
        (pred.en_negated, pred.fr_negated) if negated else (pred.en_after, pred.fr_after)
    )
    en = (spell("not", link) if negated else ()) + spell(pred.verb.en, pred.link) + en_after
    fr = (
        (spell("ne pas", link) if negated else ())
        + reflexive
        + pred.clitics
        + spell(pred.verb.fr, pred.link)
    )
    return Pair(en, fr + fr_after)


def gerund(pred: Predicate) -> Words:
    """The English -ing form with its complements: eating the apple."""
    return bracket("VP", spell(english.add_ing(pred.verb.en), pred.link) + pred.en_after)


def past_infinitive(pred: Predicate, subject: Nominal) -> Words:
    """Avoir mangé la pomme, être arrivée, s'être levés: what follows après."""
    verb = pred.verb
    with_etre = verb.reflexive or french.takes_etre(verb.fr)
    reflexive = spell(_reflexive(subject.slot), pred.link) if verb.reflexive else ()
    gender, number = (subject.gender, subject.number) if with_etre else pred.agreement or ("m", "s")
    form = french.participle(verb.fr, gender, number)
    auxiliary = spell("être" if with_etre else "avoir", pred.link)
    return reflexive + pred.clitics + auxiliary + spell(form, pred.link) + pred.fr_after


def _reflexive(slot: int) -> str:
    return {1: "me", 3: "se", 4: "nous", 5: "vous", 6: "se"}[slot]


@dataclass(frozen=True)
class Clause:
    """A finite clause with the English subject and auxiliary apart, so that a question can turn them round."""

    subject: Words
    first: Words
    rest: Words
    fr: Words
    auxiliary: int

    @property
    def statement(self) -> Pair:
        """The clause in plain order."""
        return Pair(bracket("S", self.subject + bracket("VP", self.first + self.rest)), self.fr)


def clause(
    subject: Nominal,
    pred: Predicate,
    tense: Tense,
    negation: str = "",
    question: bool = False,
    fact: str = "",
) -> Clause:
    """Give a predicate its subject, tense and negation.

    Args:
        subject: the subject.
        pred: the predicate.
        tense: the tense.
        negation: empty, `not`, `never`, `no longer` or `nothing`.
        question: use the English auxiliary that a question needs (do).
        fact: a held-out construction to note, as `family/lemma`.
    """
    auxiliary, neg = new_link(), new_link()
    facts = (fact,) if fact else ()
    first, main = _english_verb(
        pred,
        tense,
        subject.en_slot,
        negation == "not" or negation == "nothing",
        question,
        auxiliary,
    )
    adverb = pred.adverb.en
    negative = spell("not", neg) if negation in ("not", "nothing") else spell(negation, neg)
    after = pred.en_negated if negation else pred.en_after
    anything = spell("anything", other := new_link()) if negation == "nothing" else ()
    second = (
        spell(_NEGATIONS[negation], other if negation == "nothing" else neg) if negation else ()
    )
    fr_neg = (spell("ne", neg), second) if negation else ((), ())
    subject_fr = subject.fr_subject
    fr = subject_fr + _french_verb(subject, pred, tense, fr_neg, auxiliary, facts)
    fr += pred.fr_negated if negation else pred.fr_after
    rest = negative + adverb + main + after + anything
    return Clause(subject.en, first, rest, fr, auxiliary)


def _english_verb(
    pred: Predicate, tense: Tense, slot: int, with_not: bool, question: bool, auxiliary: int
) -> tuple[Words, Words]:
    """The auxiliary (or the verb be) that a question puts first, and the rest of the verb."""
    verb, link = pred.verb, pred.link
    be = verb.en == "be"
    base = spell(verb.en, link)
    ing = spell(english.add_ing(verb.en), link)
    done = spell("been" if be else verb.en_participle, link)
    third = slot == 3
    present_be = {1: "am", 3: "is"}.get(slot, "are")
    past_be = "was" if slot in (1, 3) else "were"
    name = tense.value[0]
    if name == "infinitive":
        return (), spell("to", auxiliary) + base
    if name in ("present", "past"):
        past = name == "past"
        if be:
            return spell(past_be if past else present_be, auxiliary, link), ()
        if "modal" in verb.flags:
            return spell(verb.past if past else verb.en, auxiliary, link), ()
        if with_not or question:
            return spell("did" if past else "does" if third else "do", auxiliary), base
        finite = (
            verb.past
            if past
            else ("has" if verb.en == "have" else english.add_s(verb.en))
            if third
            else verb.en
        )
        return (), spell(finite, auxiliary, link)
    has = spell("has" if third else "have", auxiliary)
    forms: dict[str, Callable[[], tuple[Words, Words]]] = {
        "progressive": lambda: (spell(present_be, auxiliary), ing),
        "past progressive": lambda: (spell(past_be, auxiliary), ing),
        "used to": lambda: ((), spell("used to", auxiliary) + base),
        "future": lambda: (spell("will", auxiliary), base),
        "would": lambda: (spell("would", auxiliary), base),
        "going to": lambda: (spell(present_be, auxiliary), spell("going to", auxiliary) + base),
        "perfect": lambda: (has, done),
        "just": lambda: (has, spell("just", auxiliary) + done),
        "perfect progressive": lambda: (has, spell("been", auxiliary) + ing),
    }
    return forms[name]()


def french_tense(verb: Verb, tense: Tense) -> str:
    """The French tense: the English simple past of a state is an imparfait."""
    return "imparfait" if tense is Tense.PAST and verb.state else tense.value[1]


def _french_verb(
    subject: Nominal,
    pred: Predicate,
    tense: Tense,
    negation: tuple[Words, Words],
    auxiliary: int,
    facts: tuple[str, ...],
) -> Words:
    """Clitics, finite verb, negation, adverb and participle or infinitive."""
    verb, link, slot = pred.verb, pred.link, subject.slot
    name = french_tense(verb, tense)
    ne, second = negation
    clitics = (spell(_reflexive(slot), link) if verb.reflexive else ()) + pred.clitics
    middle = second + pred.adverb.fr
    if name in _COMPOUND:
        with_etre = verb.reflexive or french.takes_etre(verb.fr)
        helper = "être" if with_etre else "avoir"
        gender, number = (
            (subject.gender, subject.number) if with_etre else pred.agreement or ("m", "s")
        )
        form = french.participle(verb.fr, gender, number)
        if second and second[0].text == "pas" and name == "passé composé":
            facts += (f"negated-past/{verb.fr}",)
        finite = spell(french.conjugate(helper, _COMPOUND[name], slot), auxiliary, facts=facts)
        return ne + clitics + finite + middle + spell(form, link)
    infinitive_part = clitics + spell(verb.fr, link)
    if name == "futur proche":
        going = spell(french.conjugate("aller", "présent", slot), auxiliary, facts=facts)
        return ne + going + middle + infinitive_part
    if name == "passé récent":
        just = spell(french.conjugate("venir", "présent", slot), auxiliary, facts=facts) + spell(
            "de", auxiliary
        )
        return ne + just + middle + infinitive_part
    finite = spell(french.conjugate(verb.fr, name, slot), auxiliary, link, facts=facts)
    return ne + clitics + finite + middle


# Relative clauses: the words after a noun. "head" has the gender and number of that noun.


def relative_subject(head: Nominal, human: bool) -> Nominal:
    """The subject of "who sleeps -> qui dort"; the verb agrees with the noun before."""
    link = new_link()
    pair = Pair(spell("who" if human else "that", link), spell("qui", link))
    return replace(head, en=pair.en, fr=pair.fr, pronoun=None, parts=(), separators=())


def whose(noun: Noun, number: str) -> Nominal:
    """The subject of "whose car is red -> dont la voiture est rouge"."""
    link, own = new_link(), new_link()
    en, fr = (noun.en, noun.fr) if number == "s" else (noun.en_plural, noun.fr_plural)
    fr_words = spell("dont", link) + definite(noun.gender, number, link) + spell(fr, own)
    return plain(Pair(spell("whose", link) + spell(en, own), fr_words), noun.gender, number, own)


def object_relative(
    verb: Verb, head: Nominal, subject: Nominal, tense: Tense, negation: str = ""
) -> Pair:
    """That Paul bought -> que Paul a achetée: the participle agrees with the noun before it."""
    link = new_link()
    gap = replace(predicate(verb), agreement=(head.gender, head.number))
    body = clause(subject, gap, tense, negation).statement
    que = spell("que", link, facts=(f"object-relative/{verb.fr}",))
    return Pair(bracket("SBAR", spell("that", link) + body.en), que + body.fr)


def oblique_relative(verb: Verb, subject: Nominal, tense: Tense, negation: str = "") -> Pair:
    """That Paul needs -> dont Paul a besoin; that Paul talks to -> à qui Paul parle (persons only)."""
    link = new_link()
    body = clause(subject, predicate(verb), tense, negation).statement
    fr = spell("dont", link) if verb.frame == "de" else spell("à qui", link)
    return Pair(bracket("SBAR", spell("that", link) + body.en), fr + body.fr)


def place_relative(body: Pair) -> Pair:
    """Where Paul works -> où Paul travaille."""
    return constituent("SBAR", phrase("where", "où"), body)


# Whole sentences: the words before the final mark, and the mark itself.


def _ask(body: Clause, before: Pair, more: Pair, facts: tuple[str, ...] = ()) -> Pair:
    question = spell("est-ce que", body.auxiliary, facts=facts)
    inner = bracket("SQ", body.first + body.subject + bracket("VP", body.rest) + more.en)
    en = before.en + inner + spell("?", end := new_link())
    return Pair(en, before.fr + question + body.fr + more.fr + spell("?", end))


def yes_no(
    subject: Nominal, pred: Predicate, tense: Tense, negation: str = "", adjunct: Pair = EMPTY
) -> Pair:
    """Does Paul sleep? -> Est-ce que Paul dort ?"""
    body = clause(subject, pred, tense, negation, question=True)
    return _ask(body, EMPTY, adjunct, (f"question/{pred.verb.fr}",))


def wh_adverb(
    word: str, subject: Nominal, pred: Predicate, tense: Tense, adjunct: Pair = EMPTY
) -> Pair:
    """Where does Paul work? -> Où est-ce que Paul travaille ?; `word` is where, when, why or how."""
    fr = {"where": "où", "when": "quand", "why": "pourquoi", "how": "comment"}[word]
    return _ask(
        clause(subject, pred, tense, question=True),
        constituent("WHADVP", phrase(word, fr)),
        adjunct,
    )


def wh_object(
    verb: Verb, asked: Pair, head: Nominal, subject: Nominal, tense: Tense, adjunct: Pair = EMPTY
) -> Pair:
    """What does Paul read? Which books has Paul read? -> Quels livres est-ce que Paul a lus ?

    `asked` is the question word or phrase, `head` what it stands for, with which the participle agrees.
    """
    pred = replace(predicate(verb), agreement=(head.gender, head.number))
    return _ask(clause(subject, pred, tense, question=True), constituent("WHNP", asked), adjunct)


def which(noun: Noun, number: str) -> Pair:
    """Which books -> quels livres."""
    link, own = new_link(), new_link()
    form = "quel" + ("le" if noun.gender == "f" else "") + ("s" if number == "p" else "")
    en, fr = (noun.en, noun.fr) if number == "s" else (noun.en_plural, noun.fr_plural)
    return Pair(spell("which", link) + spell(en, own), spell(form, link) + spell(fr, own))


def how_many(noun: Noun) -> Pair:
    """How many books -> combien de livres."""
    link, own = new_link(), new_link()
    en = spell("how many", link) + spell(noun.en_plural, own)
    return Pair(en, spell("combien de", link) + spell(noun.fr_plural, own))


def who() -> Nominal:
    """The subject of "Who sleeps? -> Qui dort ?"."""
    link = new_link()
    return plain(Pair(spell("who", link), spell("qui", link)), "m", "s", link)


def how_old(subject: Nominal) -> Pair:
    """How old is Paul? -> Quel âge a Paul ? (no pronouns)."""
    link, verb, end = new_link(), new_link(), new_link()
    be = "are" if subject.en_slot == 6 else "is"
    has = french.conjugate("avoir", "présent", subject.slot)
    inner = bracket("SQ", spell(be, verb) + subject.en)
    en = bracket("WHADJP", spell("how old", link)) + inner + spell("?", end)
    return Pair(en, spell("quel âge", link) + spell(has, verb) + subject.fr + spell("?", end))


def how_much(subject: Nominal) -> Pair:
    """How much does the hat cost? -> Combien coûte le chapeau ? (no pronouns)."""
    link, verb, end = new_link(), new_link(), new_link()
    do = "does" if subject.en_slot == 3 else "do"
    costs = french.conjugate("coûter", "présent", subject.slot)
    inner = bracket("SQ", spell(do, verb) + subject.en + bracket("VP", spell("cost", verb)))
    en = bracket("WHNP", spell("how much", link)) + inner + spell("?", end)
    return Pair(en, spell("combien", link) + spell(costs, verb) + subject.fr + spell("?", end))


def imperative(
    pred: Predicate, negated: bool = False, adjunct: Pair = EMPTY, please: bool = False
) -> Pair:
    """Close the door, please. -> Fermez la porte, s'il vous plaît. (no object pronouns unless negated)."""
    if (pred.clitics or pred.verb.reflexive) and not negated:
        raise ValueError("a positive imperative takes no pronoun here")
    neg, do = new_link(), new_link()
    form = spell(french.conjugate(pred.verb.fr, "impératif", 5), pred.link, do)
    base = spell(pred.verb.en, pred.link)
    reflexive = spell("vous", pred.link) if pred.verb.reflexive else ()
    if negated:
        en = spell("do", do) + spell("not", neg) + base + pred.en_negated
        fr = (
            spell("ne", neg) + reflexive + pred.clitics + form + spell("pas", neg) + pred.fr_negated
        )
    else:
        en, fr = base + pred.en_after, form + pred.fr_after
    ending = (
        join(phrase(",:1 please:2", ",:1 s':2 il:2 vous:2 plaît:2"), EMPTY) if please else EMPTY
    )
    return join(constituent("VP", Pair(en, fr), adjunct), ending, phrase(".", "."))
