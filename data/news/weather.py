"""The weather: a storm, a record or a flood in one town, its damage, and the forecast."""

from . import names
from .draw import Draw, Name
from .writing import DAYS, NUMBERS, Report

# What happened: in the words of the summary, then in those of the article.
EVENTS = {
    "Storm {storm} reached {town} on {day} with gusts of up to {gust} kilometres an hour.": (
        "Storm {storm} [reached|arrived in|hit] {town} on {day}, with gusts of up to {gust} kilometres an hour.",
        "{town} had gusts of up to {gust} kilometres an hour on {day}, when Storm {storm} [arrived|reached the"
        " town|passed over the town].",
        "[It was on {day} that|On {day}] Storm {storm} [reached|came to] {town}[.| and stayed for several hours.]"
        " [Gusts of up to {gust} kilometres an hour were measured|The wind reached {gust} kilometres an hour in the"
        " gusts].",
        "After crossing [the sea|the mountains|the coast], Storm {storm} arrived in {town} on {day}. Its gusts [were"
        " as fast as|reached] {gust} kilometres an hour.",
    ),
    "{town} recorded {heat} degrees on {day}, the highest temperature there since {since}.": (
        "{town} [recorded|measured] {heat} degrees on {day}, the highest temperature there since {since}.",
        "It has not been so hot in {town} since {since}: [the thermometer reached|it was] {heat} degrees [there|] on"
        " {day}.",
        "On {day} the temperature in {town} [rose to|reached] {heat} degrees, [|which was] the highest"
        " [value|temperature] since {since}.",
    ),
    "{town} recorded minus {frost} degrees on {day}, the lowest temperature there since {since}.": (
        "{town} [recorded|measured] minus {frost} degrees on {day}, the lowest temperature there since {since}.",
        "It has not been so cold in {town} since {since}: [the thermometer showed|it was] minus {frost} degrees on"
        " {day}.",
        "On {day} the temperature in {town} [fell|dropped|sank] to minus {frost} degrees, the lowest"
        " [value|temperature] since {since}.",
    ),
    "In {town} {rain} millimetres of rain fell on {day}, and the River {river} rose to {level} metres.": (
        "[After|Because of] {rain} millimetres of rain in {town} on {day}, the River {river} [rose|has risen] to"
        " {level} metres.",
        "The River {river} [stood at|rose to|reached] {level} metres after {rain} millimetres of rain [fell|had"
        " fallen] in {town} on {day}.",
        "On {day} {rain} millimetres of rain [fell|came down] in {town}[. The|, and the] River {river} rose to"
        " {level} metres[|, {more} metres higher than the day before].",
    ),
    "In {town} {snow} centimetres of snow fell on {day}, and {flights} flights were cancelled.": (
        "[Heavy snow|Snow] [closed|shut] the airport of {town} on {day}: {snow} centimetres fell, and {flights}"
        " flights were cancelled.",
        "{flights} flights were cancelled on {day} after {snow} centimetres of snow [fell|had fallen] in {town}.",
        "In {town} {snow} centimetres of snow [lay on the ground|had fallen by noon] on {day}; {flights} flights were"
        " cancelled.",
    ),
}
STORM, HEAT, FROST, RAIN, SNOW = EVENTS
# The damage in two other towns: in the words of the summary, then both halves in those of the article.
POWER = (
    "In {place} {homes} homes lost power, and in {second} {people} people had to leave their houses.",
    (
        "In {place} {homes} homes [lost power|were without power|had no electricity][| for several hours| in the"
        " night].",
        "[A power cut|A fallen tree] left {homes} homes in {place} [without power|in the dark][| until the morning].",
        "{place} was [hit hard|badly affected]: [the power failed in {homes} homes|{homes} homes lost power].",
    ),
    (
        "In {second} {people} people had to leave their [houses|homes][| and were taken to a school].",
        "{people} people in {second} [were told to|had to] [leave|move out of] their [houses|homes].",
        "The fire service [brought|took] {people} people in {second} to safety[|, away from their houses].",
    ),
)
DAMAGE = {
    STORM: POWER,
    RAIN: POWER,
    SNOW: POWER,
    HEAT: (
        "In {place} {people} people were taken to hospital, and in {second} {homes} homes had no water.",
        (
            "In {place} {people} people were taken to hospital[| because of the heat| with sunstroke].",
            "[Hospitals|The hospitals] in {place} [treated|took in] {people} people[| with sunstroke].",
        ),
        (
            "In {second} {homes} homes had no water[| on {day}| for two days].",
            "[A burst pipe|The drought] left {homes} homes in {second} without water.",
        ),
    ),
    FROST: (
        "In {place} {homes} homes had no heating, and in {second} {people} people spent the night in shelters.",
        (
            "In {place} {homes} homes had no heating[| when the gas failed| after a power cut].",
            "[A burst pipe|A power cut] left {homes} homes in {place} without heating.",
        ),
        (
            "In {second} {people} people [spent the night|slept] in [shelters|schools and churches].",
            "[Shelters|Churches and schools] in {second} took in {people} people for the night.",
        ),
    ),
}
FORECAST = "On {next_day} it will be warmest in {warm} with {high} degrees and coldest in {cold} with {low} degrees."
FORECASTS = (
    "On {next_day} it will be warmest in {warm}, with {high} degrees, and coldest in {cold}, with {low} degrees.",
    "The highest temperature on {next_day} is expected in {warm}, [at|with] {high} degrees, and the lowest in {cold},"
    " [at|with] {low}.",
    "{cold} will be the coldest place on {next_day}, with {low} degrees, and {warm}, with {high} degrees, the warmest.",
    "On {next_day} the thermometer will show {low} degrees in {cold}, the [coldest place|lowest value of the day],"
    " and {high} degrees in {warm}, the [warmest|highest].",
)
# Of each row at most one is told.
OTHERS = (
    (
        "{other} [had|recorded] {other_degrees} degrees on {before_day}[|, and {third} {third_degrees}].",
        "[It was|The temperature was] {other_degrees} degrees in {other}[| and {third_degrees} in {third}] on"
        " {before_day}.",
    ),
    (
        "The highest value ever in the region, {record} degrees, was [measured|recorded] in {fourth} in {old_year}.",
        "In {old_year} {fourth} [had|recorded] {record_rain} millimetres of rain in a single day[|, which is still"
        " the record].",
    ),
    (
        '"[We have not seen this for a long time|People should stay at home|Nobody should go out unless they must|It'
        ' will get better soon]," said {expert} of the weather service.',
        "{expert} of the weather service said that the worst [was over|would be over by {next_day}].",
        "{mayor}, the mayor of {town}, [thanked the fire service|asked people to [stay indoors|help their"
        " neighbours]].",
    ),
    (
        "[Trains|Buses|Ferries] between {other} and {third} were [cancelled|stopped for {hours} hours|up to {hours}"
        " hours late].",
        "The road from {other} to {third} [is closed after {accidents} accidents|will be closed until {next_day}].",
        "[Schools in {other} sent everybody home|[Schools|Shops] in {other} [stayed closed|closed at noon]].",
    ),
    (
        "The damage [is put|was estimated] at ${cost} million[|, according to {insurer}, an insurance company].",
        "Last year {old_event} [cost|caused damage of] ${cost} million [in the region|in {fourth}].",
    ),
    (
        "Last month {third} had {third_rain} millimetres of rain, {third_share} percent of the usual amount.",
        "[The wind reached|Gusts reached|There were gusts of] {other_gust} kilometres an hour [in|at] {third}.",
    ),
)


def report(draw: Draw) -> Report:
    """One piece of weather; the summary tells what happened, then the damage or, if there was none, the forecast."""
    event = draw.pick(tuple(EVENTS))
    facts = _facts(draw, event)
    rest = [draw.pick(row) for row in draw.several(OTHERS, draw.between(4, 6))]
    second = FORECAST
    if draw.chance(0.5):
        second, one, other = DAMAGE[event]
        rest += [draw.pick(one), draw.pick(other)]
    if second == FORECAST or draw.chance(0.4):
        rest.append(draw.pick(FORECASTS))
    rest = draw.several(rest, len(rest))
    rest.insert(0 if draw.chance(0.4) else draw.between(1, 3), draw.pick(EVENTS[event]))
    return Report(facts, tuple(rest), f"{event} {second}")


def _facts(draw: Draw, event: str) -> dict[str, str | Name]:
    cold = event in (FROST, SNOW)
    low, high = {HEAT: (181, 352), FROST: (12, 79), SNOW: (12, 79)}.get(event, (61, 189))
    minus = "minus " if cold else ""
    today = draw.below(7)
    before_day, day, next_day = (DAYS * 2)[today : today + 3]
    facts: dict[str, str | Name] = {
        key: draw.town()
        for key in ("town", "place", "second", "warm", "cold", "other", "third", "fourth")
    }
    return facts | {
        "storm": draw.word(*names.STORMS),
        "river": draw.word(*names.RIVERS),
        "day": day,
        "before_day": before_day,
        "next_day": next_day,
        "since": str(draw.between(1947, 2012)),
        "old_year": str(draw.between(1902, 1946)),
        "gust": str(draw.between(91, 168)),
        "other_gust": str(draw.between(61, 89)),
        "heat": draw.decimal(354, 429),
        "frost": draw.decimal(121, 289),
        "rain": draw.decimal(411, 1489),
        "third_rain": draw.decimal(111, 399),
        "record_rain": draw.decimal(1501, 2399),
        "third_share": str(draw.between(11, 240)),
        "level": draw.decimal(381, 989, 2),
        "more": draw.decimal(51, 289, 2),
        "snow": str(draw.between(12, 86)),
        "flights": draw.count(112, 990),
        "homes": draw.count(1100, 39000),
        "people": draw.count(1100, 9900),
        "high": draw.decimal((low + high) // 2 + 1, high),
        "low": minus + draw.decimal(low, (low + high) // 2),
        "other_degrees": minus + draw.decimal(low, high),
        "third_degrees": minus + draw.decimal(low, high),
        "record": draw.decimal(431, 469),
        "cost": draw.decimal(21, 899),
        "old_event": draw.pick(("a storm", "a flood", "a dry summer", "hail")),
        "insurer": draw.company(("Insurance", "Assurance", "Mutual")),
        "expert": draw.person(),
        "mayor": draw.person(),
        "hours": NUMBERS[draw.between(3, 12)],
        "accidents": NUMBERS[draw.between(3, 12)],
    }
