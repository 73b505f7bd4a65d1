"""Expressions of time that go with a tense: yesterday, on Mondays, at half past two, two years ago."""

from grammar import english, french
from grammar.clauses import Tense
from grammar.sampling.chance import Chance
from grammar.sampling.fitting import nouns
from grammar.text import EMPTY, Pair, new_link, phrase, spell

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


class Times(Chance):
    """Random expressions of time."""

    def time(self, tense: Tense, state: bool = False) -> Pair:
        """When: an expression that goes with the tense, or nothing where none does."""
        name = tense.value[0]
        if name == "present":
            return self._habit() if tense is Tense.PRESENT else EMPTY
        if name == "used to":
            return self._habit()
        if name == "progressive":
            return self.expression(
                [
                    ("now", "maintenant"),
                    ("at the moment", "en ce moment"),
                    ("this:1 morning:2", "ce:1 matin:2"),
                ]
            )
        if name in ("past", "past progressive"):
            return self.past(name == "past") if not state else self._long_ago()
        if name in ("future", "going to"):
            return self.future()
        return EMPTY

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
            return self.month()
        return self.expression(
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

    def month(self) -> Pair:
        """In June."""
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
        return Pair(
            pair.en + spell(",", last) + spell(str(year), last), pair.fr + spell(str(year), last)
        )

    def span(self) -> tuple[str, str, str, str]:
        """A number and a unit of time in both languages: two, days, deux, jours."""
        noun = self.common(nouns(("day", "week", "month", "year", "hour", "minute")))
        n = 2 + self.below(9)
        return english.number(n), noun.en_plural, french.number(n, noun.gender), noun.fr_plural

    def past(self, dated: bool) -> Pair:
        """When something happened; `dated` also allows "two days ago" and years."""
        how = self.weighted(
            fixed=5, day=2, ago=2.5 if dated else 0, date=1.5, year=1.5 if dated else 0
        )
        if how == "day":
            en, fr = self.pick(_DAYS)
            return phrase(f"last:1 {en}:2", f"{fr}:2 dernier:1")
        if how == "ago":
            n, unit, fr_n, fr_unit = self.span()
            return phrase(f"{n}:1 {unit}:2 ago:3", f"il:3 y:3 a:3 {fr_n}:1 {fr_unit}:2")
        if how == "date":
            return self._date(1980 + self.below(40) if self.chance(0.5) else None)
        if how == "year":
            return self.year()
        return self.expression(
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
            return self.year()
        return self.expression(
            [
                ("last:1 year:2", "l':1 année:2 dernière:1"),
                ("at:1 that:2 time:3", "à:1 cette:2 époque:3"),
            ]
        )

    def year(self) -> Pair:
        """In 1998."""
        link, own = new_link(), new_link()
        year = str(1980 + self.below(40))
        return Pair(spell("in", link) + spell(year, own), spell("en", link) + spell(year, own))

    def past_date(self) -> Pair:
        """A year or a full date."""
        return self.year() if self.chance(0.5) else self._date(1980 + self.below(40))

    def future(self) -> Pair:
        """When something will happen."""
        how = self.weighted(fixed=5, day=2, span=2, date=1, clock=1)
        if how == "day":
            en, fr = self.pick(_DAYS)
            return phrase(f"next:1 {en}:2", f"{fr}:2 prochain:1")
        if how == "span":
            n, unit, fr_n, fr_unit = self.span()
            return phrase(f"in:3 {n}:1 {unit}:2", f"dans:3 {fr_n}:1 {fr_unit}:2")
        if how == "date":
            return self._date(None)
        if how == "clock":
            return self._clock()
        return self.expression(
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
