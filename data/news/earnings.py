"""What companies earn: profit and revenue, how they changed, what the company decided, and its shares."""

from .draw import Draw, Name, decimal
from .writing import DAYS, MONTHS, Report

# What a company is: how it is called, the second words of its name, and its parts.
SECTORS = (
    (
        "food maker",
        ("Foods", "Kitchens", "Mills"),
        ("frozen meals", "bread and cakes", "soft drinks", "cheese"),
    ),
    (
        "power company",
        ("Energy", "Power", "Grid"),
        ("wind farms", "gas", "solar power", "electricity networks"),
    ),
    (
        "drug maker",
        ("Pharma", "Health", "Therapeutics"),
        ("vaccines", "heart drugs", "eye drops", "cancer drugs"),
    ),
    (
        "software company",
        ("Software", "Data", "Networks"),
        ("cloud services", "games", "payment systems", "licences"),
    ),
    (
        "airline",
        ("Airways", "Air", "Airlines"),
        ("short flights", "long flights", "air freight", "package holidays"),
    ),
    (
        "retailer",
        ("Stores", "Retail", "Markets"),
        ("clothing", "furniture", "garden tools", "online orders"),
    ),
    ("steel maker", ("Steel", "Metals", "Industries"), ("car parts", "pipes", "rails", "wire")),
    (
        "car maker",
        ("Motors", "Automotive", "Mobility"),
        ("electric cars", "vans", "small cars", "spare parts"),
    ),
    (
        "bank",
        ("Bank", "Capital", "Financial"),
        ("home loans", "business loans", "credit cards", "savings accounts"),
    ),
)

PROFIT = (
    "{company}'s {quarter}-quarter [profit|net profit] {p_moved} {p_percent} percent to ${profit} million,"
    " [after|from] ${p_before} million a year [earlier|before].",
    "The {sector} {company} [reported|announced] on {day} a profit of ${profit} million for the {quarter} quarter,"
    " {p_percent} percent {p_more} than [a year earlier|in the same months of last year].",
    "[Net profit|Profit] in the {quarter} quarter {p_moved} by {p_percent} percent, {company} said on {day}: the"
    " {sector} [earned|made] ${profit} million, [against|compared with] ${p_before} million a year ago.",
    "{company} [earned|made a profit of] ${profit} million in the {quarter} quarter, which was {p_percent} percent"
    " {p_more} than [the ${p_before} million of|in the same quarter] last year.",
)
LOSS = (
    "{company} [made|reported|announced] a loss of ${profit} million [in|for] the {quarter} quarter, after [a profit"
    " of|earning] ${p_before} million a year [earlier|before].",
    "The {sector} {company} lost ${profit} million in the {quarter} quarter; a year [earlier|before] it had"
    " [earned|made a profit of] ${p_before} million.",
    "[A year ago|In the same months of last year] {company} earned ${p_before} million. In this year's {quarter}"
    " quarter the {sector} [made a loss of|lost] ${profit} million.",
)
REVENUE = (
    "[Revenue|Sales revenue] at {company} {r_moved} {r_percent} percent to ${revenue} billion, [after|from]"
    " ${r_before} billion a year [earlier|before].",
    "{company}'s revenue [came to|was] ${revenue} billion, {r_percent} percent {r_more} than in the same"
    " [quarter|months] of last year.",
    "{company} [took in|had revenue of] ${revenue} billion, which was {r_percent} percent {r_more} than the"
    " ${r_before} billion of a year ago.",
)
SHARES = (
    "{company} shares closed {s_percent} percent {s_more} at ${price}.",
    "Shares in {company} {s_moved} {s_percent} percent to ${price}.",
    "[Shareholders|Investors] were {s_mood}: shares in {company} {s_moved} {s_percent} percent[| and closed at"
    " ${price}].",
)
# What the company decided: in the words of the summary, then in those of the article.
DECISIONS = {
    "will cut {jobs} jobs": (
        "{company} will [cut|shed] {jobs} jobs[| by the end of next year| at its works in {town}|, most of them in"
        " {town}].",
        "{boss}, the chief executive of {company}, [announced|confirmed] that {jobs} jobs [would go|would be cut][|"
        " in {town}].",
    ),
    "will hire {jobs} people": (
        "{company} [plans to|wants to|is going to] hire {jobs} people, [most|many] of them in {town}.",
        "{boss}, the chief executive of {company}, [announced|said] that {jobs} people would be hired[| in {town}].",
    ),
    "will pay a dividend of {cents} cents a share": (
        "{company}'s shareholders will [get|receive] a dividend of {cents} cents a share, {cents_more} than the"
        " {old_cents} cents of last year.",
        "The board of {company} [proposed|announced] a dividend of {cents} cents a share; last year it was"
        " {old_cents} cents.",
    ),
    "raised its forecast for the year to ${forecast} billion": (
        "{company} [raised|increased] its forecast for revenue this year to ${forecast} billion from ${low_forecast}"
        " billion.",
        "For the whole year {company} now expects revenue of ${forecast} billion, [up from|more than] the"
        " ${low_forecast} billion it had forecast in {month}.",
    ),
    "lowered its forecast for the year to ${forecast} billion": (
        "{company} [lowered|cut] its forecast for revenue this year to ${forecast} billion from ${high_forecast}"
        " billion.",
        "For the whole year {company} now expects revenue of only ${forecast} billion, [down from|less than] the"
        " ${high_forecast} billion it had forecast in {month}.",
    ),
    "will buy {target.full} for ${bid} million": (
        "{company} [has agreed to buy|is to buy|is to take over] {target}, [a smaller rival|a competitor] with"
        " {staff} [employees|workers], for ${bid} million.",
        "{boss}, the chief executive of {company}, announced that it would [take over|buy] {target} [for|at a price"
        " of] ${bid} million.",
    ),
}
# Of each row at most one is told.
OTHERS = (
    (
        "Analysts had[| on average] expected {company} to [make|report] a {result} of ${expected} million.",
    ),
    (
        "{rival}, [a competitor|the largest competitor] of {company}, [reported|announced] a profit of"
        " ${rival_profit} million [last week|on {other_day}][|, {rival_percent} percent {rival_more} than a year"
        " before].",
        "[Last week|On {other_day}] the {sector} {rival} [said|reported] that its revenue had {rival_done}"
        " {rival_percent} percent to ${rival_revenue} billion.",
        "Shares in {rival}, a competitor of {company}, {rival_moved} {rival_percent} percent[| to ${rival_price}].",
    ),
    (
        "The largest part of {company}'s revenue, ${part_revenue} billion, came from {part}; {other_part} brought in"
        " ${other_revenue} billion.",
        "{company}'s revenue from {part} rose to ${part_revenue} billion, while {other_part} brought in [only|no more"
        " than] ${other_revenue} billion.",
    ),
    (
        '"[This was a difficult quarter|We have done what we promised|Nobody here is satisfied yet|The market has'
        ' changed]," said {chair}, who chairs the board of {company}.',
        '{boss}, who has led {company} since {year}, said: "[We know what we have to do|Our customers are careful'
        ' with their money|The coming months will not be easy]."',
        "{treasurer}, the finance director of {company}, [pointed to|spoke of] [the price of energy|higher wages|the"
        " weak currency|the cold spring].",
    ),
    (
        "{company}, [founded|which was founded] in {founded}, employs {employees} people.",
        "{company} [employs {employees} people|has {employees} employees] in [{town}|{countries} countries].",
    ),
)


def amounts(
    draw: Draw, low: int, high: int, percent: str, rises: bool, digits: int
) -> tuple[str, str]:
    """An amount and that of a year before, from which it has risen or fallen by just so many percent.

    Limits are in the smallest unit; `digits` of the number stand behind the point.
    """
    tenths = int(percent.replace(".", ""))
    wants = draw.want(), draw.want()
    while True:
        now = draw.between(low, high)
        before = 1000 * now // (1000 + tenths if rises else 1000 - tenths) + draw.below(2)
        rounded = (2000 * abs(now - before) + before) // (2 * before)
        if rounded == tenths and (now > before) == rises and before < 10000:
            texts = decimal(now, digits), decimal(before, digits)
            if all(draw.accept(text, want) for text, want in zip(texts, wants, strict=True)):
                return texts


def report(draw: Draw) -> Report:
    """One company's quarter; the summary tells profit and revenue, then the decision and the shares."""
    facts, loss = _facts(draw)
    decision = draw.pick(tuple(DECISIONS))
    core = [draw.pick(LOSS if loss else PROFIT), draw.pick(REVENUE)]
    rest = [draw.pick(DECISIONS[decision]), draw.pick(SHARES)]
    rest += [draw.pick(row) for row in draw.several(OTHERS, draw.between(2, 4))]
    rest = draw.several(rest, len(rest))
    if draw.chance(0.25):
        core.reverse()
    if draw.chance(0.25):  # the revenue comes later
        rest.insert(draw.below(len(rest)), core.pop())
    lead = 0 if draw.chance(0.4) else draw.between(1, 3)
    passages = [*rest[:lead], *core, *rest[lead:]]
    first = "{company.full}'s {quarter}-quarter profit {p_moved} {p_percent} percent to ${profit} million"
    if loss:
        first = "{company.full} made a loss of ${profit} million in the {quarter} quarter"
    second = f"It {decision}, and its shares {{s_moved}} {{s_percent}} percent."
    summary = (
        first + " while revenue {r_moved} {r_percent} percent to ${revenue} billion. " + second
    )
    return Report(facts, tuple(passages), summary)


def _facts(draw: Draw) -> tuple[dict[str, str | Name], bool]:
    """The facts, and whether the company made a loss."""
    sector, second_words, parts = draw.pick(SECTORS)
    loss = draw.chance(0.2)
    p_rises, r_rises, s_rises, rival_rises = (draw.chance(0.5) for _ in range(4))
    p_percent, r_percent = draw.decimal(11, 399), draw.decimal(11, 299)
    profit, p_before = amounts(draw, 1010, 9890, p_percent, p_rises, 1)
    revenue, r_before = amounts(draw, 405, 4980, r_percent, r_rises, 2)
    in_all = int(revenue.replace(".", ""))
    tenths = int(profit.replace(".", ""))
    old_cents = draw.between(21, 80)
    cents = old_cents + draw.between(1, 15) * (1 if draw.chance(0.7) else -1)
    day, other_day = draw.several(DAYS[:5], 2)
    part, other_part = draw.several(parts, 2)
    facts: dict[str, str | Name] = {
        "company": draw.company(second_words),
        "rival": draw.company(second_words),
        "target": draw.company(second_words),
        "sector": sector,
        "quarter": draw.pick(("first", "second", "third", "fourth")),
        "day": day,
        "other_day": other_day,
        "month": draw.pick(MONTHS),
        "result": "loss" if loss else "profit",
        "p_percent": p_percent,
        "profit": profit,
        "p_before": p_before,
        "r_percent": r_percent,
        "revenue": revenue,
        "r_before": r_before,
        "s_percent": draw.decimal(5, 129),
        "price": draw.decimal(405, 39900, 2),
        "s_mood": draw.pick(
            ("pleased", "delighted") if s_rises else ("disappointed", "not convinced")
        ),
        "rival_percent": draw.decimal(5, 299),
        "rival_profit": draw.decimal(1010, 9890),
        "rival_revenue": draw.decimal(105, 4980, 2),
        "rival_price": draw.decimal(405, 39900, 2),
        "rival_done": "risen" if rival_rises else "fallen",
        "expected": draw.decimal(tenths * 80 // 100, tenths * 120 // 100),
        "part": part,
        "other_part": other_part,
        "part_revenue": draw.decimal(in_all * 40 // 100, in_all * 55 // 100, 2),
        "other_revenue": draw.decimal(in_all * 10 // 100, in_all * 30 // 100, 2),
        "boss": draw.person(),
        "treasurer": draw.person(),
        "chair": draw.person(),
        "town": draw.town(),
        "jobs": draw.count(110, 7900),
        "staff": draw.count(110, 3900),
        "employees": draw.count(8100, 89000),
        "cents": str(cents),
        "old_cents": str(old_cents),
        "cents_more": "more" if cents > old_cents else "less",
        "low_forecast": draw.decimal(in_all * 360 // 100, in_all * 384 // 100, 2),
        "forecast": draw.decimal(in_all * 388 // 100, in_all * 412 // 100, 2),
        "high_forecast": draw.decimal(in_all * 416 // 100, in_all * 440 // 100, 2),
        "bid": draw.decimal(210, 9890),
        "year": str(draw.between(2009, 2022)),
        "founded": str(draw.between(1871, 1998)),
        "countries": str(draw.between(13, 60)),
    }
    for key, rises in {"p": p_rises, "r": r_rises, "s": s_rises, "rival": rival_rises}.items():
        facts[f"{key}_moved"] = "rose" if rises else "fell"
        facts[f"{key}_more"] = "more" if rises else "less"
    facts["s_more"] = "higher" if s_rises else "lower"
    return facts, loss
