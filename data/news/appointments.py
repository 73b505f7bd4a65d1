"""Who gets which office: the new one, the one who leaves and why, and from when."""

from . import names
from .draw import Draw, Name
from .earnings import SECTORS
from .writing import MONTHS, NUMBERS, Report

# The organisation and its offices; the first is the one that is filled.
OFFICES = {
    "company": (
        ("chief executive", "finance director"),
        ("head of sales", "head of research", "legal adviser"),
    ),
    "university": (
        ("president", "vice-president"),
        ("dean of medicine", "dean of law", "head of admissions"),
    ),
    "museum": (
        ("director", "chief curator"),
        ("head of exhibitions", "head of conservation", "deputy director"),
    ),
    "orchestra": (
        ("chief conductor", "general manager"),
        ("principal violinist", "guest conductor", "choir director"),
    ),
    "hospital": (
        ("medical director", "chief surgeon"),
        ("head of nursing", "chief physician", "head of radiology"),
    ),
    "newspaper": (("editor", "publisher"), ("political editor", "sports editor", "foreign editor")),
    "theatre": (
        ("artistic director", "general manager"),
        ("stage director", "head of drama", "chief designer"),
    ),
}

NAMED = (
    "{org} has [named|appointed|chosen] {new} as its [new|next] {role}[|, it said on {announced}].",
    "{new} [will be|is to become|has been named|has been chosen as] the [new|next] {role} of {org}.",
    "The [next|new] {role} of {org} will be {new}[|, the board announced on {announced}].",
    "[After a search of {search} months,|After long talks,|] {org} [announced|said] on {announced} that {new} would"
    " be its [new|next] {role}.",
    "[The board of {org} has|{org} has] [agreed|settled] on {new} as [its|the] [new|next] {role}.",
)
# Why the office is free: in the words of the summary, then in those of the article.
REASONS = {
    "who is retiring": (
        "{new} [replaces|succeeds|follows] {old}, who is retiring [at the age of {old_age}|after {years} years in the"
        " post].",
        "{old}, {old_age}, the {role} of {org} [for the past {years} years|since {since}], is retiring.",
        "{old} [is retiring|will retire] [this year|this summer|next month] after {years} years as {role} of {org}.",
    ),
    "who resigned in {left}": (
        "{new} [replaces|succeeds|takes over from] {old}, who resigned in {left}[| for reasons of health| after a"
        " dispute about money].",
        "{old}, {old_age}, the {role} of {org} since {since}, resigned in {left}[| for reasons of health].",
        "{org} has had no {role} since {old} resigned in {left}[| for reasons of health].",
    ),
    "who was dismissed in {left}": (
        "{new} [replaces|succeeds|takes over from] {old}, who was dismissed in {left}[| after a dispute with the"
        " board].",
        "In {left} {org} dismissed {old}, {old_age}, who had been {role} since {since}.",
        "{org} has had no {role} since {left}, when {old} was dismissed[| after {years} years].",
    ),
    "who is moving to {elsewhere.full}": (
        "{new} [replaces|succeeds|takes over from] {old}, who is moving to {elsewhere}.",
        "{old}, {old_age}, the {role} of {org} since {since}, is [moving|going] to {elsewhere}.",
        "After {years} years as {role} of {org}, {old} is [leaving for|moving to] {elsewhere}.",
    ),
}
# Where the new one comes from.
SOURCES = {
    "joins from {source.full}": (
        "{new}, {age}, [joins|comes] from {source}[|, where {new.he} has been {source_role}[| since {joined}]].",
        "At present {new}, {age}, [is {source_role} at|works for] {source}.",
        "{new}, who is {age}, has [worked|been] at {source} [for {spent} years|since {joined}].",
        "{source} is losing {new}, {age}, [who has been its {source_role}|its {source_role}] [for {spent} years|since"
        " {joined}].",
    ),
    "is now its {own_role}": (
        "{new}, {age}, is now {own_role} at {org}.",
        "{new}, who is {age}, [has worked for {org} since {joined} and|joined {org} in {joined} and] is now its"
        " {own_role}.",
        "At present {new}, {age}, is {own_role} at {org}[|, which {new.he} joined in {joined}].",
    ),
}
STARTS = (
    "{new} [will start|starts|will begin|takes office] on {start}.",
    "The [change|appointment] takes effect on {start}.",
    "{new}'s first day [in the new post|at the new desk] will be {start}.",
)
INTERIM = (
    "Until then {interim}[, {spare_role} at {org},|] [will be|remains] in charge.",
    "{interim} will [run things|be in charge] until then.",
)
BACKGROUND = (
    "{org} [employs {employees} people|has a staff of {employees}][| and was founded in {founded}].",
    "{org}, founded in {founded}, [lost ${money} million last year|needs ${money} million for repairs|had a budget of"
    " ${money} million last year].",
    "[Critics|Some of the staff] had [complained about {old}|accused {old} of [spending too much|working alone|moving"
    " too slowly]].",
    "[Under {old}|In {old.short}'s time] [income|the number of staff] [rose|fell] by {change} percent.",
)
# Of each row at most one is told.
OTHERS = (
    (
        "{rival}, {rival_age}, {spare_role} at {other}, had also been [considered|a candidate|on the list].",
        "The board [preferred {new} to|had to choose between {new} and] {rival}, {rival_age}, {spare_role} at {other}.",
        "{new} was [chosen|elected] by {votes} votes to {fewer}[| against {rival}].",
    ),
    (
        '"[We have found the right person|This is a good day for all of us|We looked for a long time, and it was'
        ' worth it|Everybody here looks forward to this]," said {chair}, [who chairs|the head of] the board.',
        "{chair}, [who chairs|the head of] the board, thanked {old} for [many good years|{old.his} work|everything"
        " {old.he} had done].",
    ),
    (
        "[Last week|In {month}] {other} named {other_new}, {other_age}, as its {role}.",
        "{other} is [also|still] looking for [a|a new] {role}[| after {other_old} left in {month}].",
    ),
    (
        "{new} [was born in {town}|grew up in {town}] and studied [law|history|economics|music|medicine] there[|, and"
        " has written two books].",
        "In the new post {new} will earn ${pay} a year[|, as {old} did].",
        "{new} has {children} children and [plays the cello|runs marathons|collects clocks|keeps bees].",
    ),
)


def report(draw: Draw) -> Report:
    """One appointment; the summary tells who follows whom, then where the new one comes from and from when."""
    facts = _facts(draw)
    reason, source = draw.pick(tuple(REASONS)), draw.pick(("joins from {source.full}", *SOURCES))
    why, whence, start = draw.pick(REASONS[reason]), draw.pick(SOURCES[source]), draw.pick(STARTS)
    last = "takes office on {start}."
    if draw.chance(0.35):
        start = f"{start} {draw.pick(INTERIM)}"
        last = "takes office on {start}, with {interim.full} in charge until then."
    before = [why, draw.pick(BACKGROUND)][: draw.between(0, 2)]
    others = [draw.pick(row) for row in draw.several(OTHERS, draw.between(2, 4))]
    after = [whence, start, *others] if before else [why, whence, start, *others]
    passages = [
        *draw.several(before, len(before)),
        draw.pick(NAMED),
        *draw.several(after, len(after)),
    ]
    first = f"{{org.full}} has named {{new.full}} as its new {{role}} to replace {{old.full}}, {reason}."
    return Report(facts, tuple(passages), f"{first} {{new.short}}, {{age}}, {source} and {last}")


def organisation(draw: Draw, kind: str, second_words: tuple[str, ...]) -> Name:
    """An organisation of this kind."""
    if kind == "company":
        return draw.company(second_words)
    place = draw.word(*names.TOWNS)
    if kind == "university":
        return Name(f"the University of {place}", f"{place} University")
    full = {
        "museum": f"the {place} Museum",
        "orchestra": f"the {place} {draw.pick(('Philharmonic', 'Symphony Orchestra'))}",
        "hospital": f"{place} Hospital",
        "newspaper": f"the {place} {draw.pick(('Herald', 'Gazette', 'Courier', 'Mercury'))}",
        "theatre": f"the {draw.surname()} Theatre",
    }[kind]
    return Name(full, full)


def _facts(draw: Draw) -> dict[str, str | Name]:
    kind = draw.pick(("company", *OFFICES))
    _, second_words, _ = draw.pick(SECTORS)
    offices, lower = OFFICES[kind]
    own_role, source_role, spare_role = draw.several(lower, 3)
    today = draw.below(12)
    votes = draw.between(5, 12)
    facts: dict[str, str | Name] = {
        key: organisation(draw, kind, second_words)
        for key in ("org", "source", "elsewhere", "other")
    }
    facts |= {
        key: draw.person()
        for key in ("new", "old", "interim", "rival", "chair", "other_new", "other_old")
    }
    facts |= {
        "role": draw.pick(offices),
        "own_role": own_role,
        "source_role": source_role,
        "spare_role": spare_role,
        "announced": f"{draw.between(1, 28)} {MONTHS[today]}",
        "month": MONTHS[(today + 11) % 12],
        "left": MONTHS[(today + 9 + draw.below(3)) % 12],
        "start": f"{draw.between(1, 28)} {MONTHS[(today + draw.between(1, 3)) % 12]}",
        "age": str(draw.between(36, 61)),
        "old_age": str(draw.between(55, 68)),
        "rival_age": str(draw.between(36, 61)),
        "other_age": str(draw.between(36, 61)),
        "years": NUMBERS[draw.between(3, 12)],
        "since": str(draw.between(2008, 2021)),
        "joined": str(draw.between(2008, 2022)),
        "spent": NUMBERS[draw.between(3, 12)],
        "search": NUMBERS[draw.between(3, 9)],
        "votes": NUMBERS[votes],
        "fewer": NUMBERS[draw.between(2, votes - 1)],
        "employees": draw.count(110, 9900),
        "founded": str(draw.between(1784, 1998)),
        "money": draw.decimal(11, 899),
        "pay": draw.count(150000, 990000),
        "children": NUMBERS[draw.between(2, 4)],
        "town": draw.town(),
        "change": draw.decimal(21, 399),
    }
    return facts
