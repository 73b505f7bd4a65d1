"""Which words go together: adjectives with nouns, verbs with nouns, verbs with subjects."""

from functools import cache

from grammar import lexicon
from grammar.lexicon import Adjective, Noun, Verb
from grammar.nominals import Nominal

THINGS = ("thing", "clothes", "vehicle", "furniture", "part", "secret")
_PLACES = ("building", "room", "outdoors", "sight")
HUMAN = ("person", "kin", "baby")

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
    "baby": (
        "new",
        "bad",
        "good",
        "rich",
        "poor",
        "honest",
        "polite",
        "proud",
        "serious",
        "hard-working",
    ),
    "grocery": ("new", "old"),
    "dish": ("ripe", "sweet", "new", "old"),
    "drink": ("ripe", "sweet", "new", "old"),
    "food": ("new", "old"),
    "event": ("clear", "useful"),
    "animal": ("bad", "new"),
    "text": ("useful",),
}


@cache
def fitting(noun: Noun) -> tuple[list[Adjective], list[Adjective]]:
    """Adjectives for a noun: those before the French noun and those after it."""
    if noun.kind in _PLACES:
        first, second = "any", "place"
    else:
        first, second = _FITTING.get(noun.kind, ("any", "colour thing"))
    unfit = _UNFIT.get("thing" if noun.kind in THINGS else noun.kind, ())
    good = ("good", "bad", "new", "old")

    def fits(entry: Adjective, groups: str) -> bool:
        if entry.en == "pretty" and noun.gender == "m" and noun.kind in HUMAN:
            return False
        if entry.en == "small" and noun.en == "friend":  # un petit ami is a boyfriend
            return False
        named = "good" in groups.split() and entry.en in good
        return (entry.group in groups.split() or named) and entry.en not in unfit

    before = [entry for entry in lexicon.ADJECTIVES if entry.before and fits(entry, first)]
    after = [entry for entry in lexicon.ADJECTIVES if not entry.before and fits(entry, second)]
    return before, after


@cache
def nouns(kinds: tuple[str, ...]) -> list[Noun]:
    """Nouns of the kinds, or with these English names."""
    return lexicon.nouns_of(kinds)


@cache
def verbs_of(frame: str, subject: str = "") -> list[Verb]:
    """Verbs of a frame, for subjects of a kind if it is given."""
    return [
        verb
        for verb in lexicon.VERBS
        if verb.frame == frame and (not subject or subject in verb.subjects)
    ]


@cache
def taking(frame: str, noun: Noun) -> list[Verb]:
    """Verbs of a frame that a person can do to a thing."""
    return [verb for verb in verbs_of(frame, "person") if verb.takes(noun)]


@cache
def kin(male_owner: bool, plural: bool) -> list[Noun]:
    """Relatives that somebody may have."""
    several = ("brother", "sister", "son", "daughter", "uncle", "aunt", "cousin", "nephew", "niece")
    unfit = "husband" if male_owner else "wife"
    return [
        noun for noun in nouns(("kin",)) if noun.en != unfit and (not plural or noun.en in several)
    ]


@cache
def _core(frame: str) -> frozenset[Verb]:
    """The most common verbs of a frame: the only ones after je, nous and vous, so that no form is too rare to learn."""
    verbs = verbs_of(frame)
    return frozenset(verbs[: max(2, len(verbs) // 3)])


def rare_form(verb: Verb, subject: Nominal) -> bool:
    """Whether futur and imparfait of an action are avoided with this subject, for the same reason."""
    return subject.slot in (1, 4, 5) and verb not in verbs_of(verb.frame)[:6]


def common_form(verb: Verb, subject: Nominal) -> bool:
    """Whether the verb is used with this subject."""
    return subject.slot in (3, 6) or verb in _core(verb.frame)


def same_in_past(verb: Verb, subject: Nominal) -> bool:
    """Whether the English form does not show the tense: they read, they cut."""
    return verb.past == verb.en and subject.en_slot != 3
