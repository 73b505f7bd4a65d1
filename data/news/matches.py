"""Match reports: football with its goals in order, basketball and rugby with their points.

Side `one` won (or played at home, if the match was drawn), side `two` lost.
"""

from . import goals
from .draw import Draw, Name
from .writing import DAYS, MONTHS, NUMBERS, ORDINALS, Report, ordinal

FOOTBALL_TEAMS = (
    "Albion",
    "Athletic",
    "City",
    "County",
    "Rangers",
    "Rovers",
    "Town",
    "United",
    "Wanderers",
)
OTHER_TEAMS = (
    "Bears",
    "Bulls",
    "Eagles",
    "Falcons",
    "Giants",
    "Hawks",
    "Knights",
    "Lions",
    "Sharks",
    "Tigers",
)
SCORES = ((1, 0), (2, 0), (2, 1), (2, 1), (3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (1, 1), (2, 2))

HOME_WIN = (
    "{one} [beat|defeated|overcame|saw off] {two} {score} [at home|in front of their own supporters|at {ground},"
    " their own ground,] on {day}.",
    "{two} [lost {score}|went down {score}|were beaten {score}] [at|away to] {one} on {day}.",
    "{two}'s [trip|journey|visit] to {one} on {day} [ended in|brought them] a {score} defeat.",
    "On {day} {one} [won {score} at home against|took the points at home with a {score} win over] {two}.",
    "There was nothing for {two} at {ground} on {day}: {one}, the home side, won {score}.",
)
AWAY_WIN = (
    "{one} [beat|defeated|overcame|saw off] {two} {score} away from home on {day}.",
    "{two} [lost {score} at home to|lost {score} at home against|went down {score} at home to|were beaten {score} at"
    " home by] {one} on {day}.",
    "{one}'s [trip|journey|visit] to {two} on {day} [ended in|brought them] a {score} victory.",
    "On {day} {one} [won {score} on the ground of|came away with a {score} win from] {two}.",
    "{two}'s supporters [went home unhappy|left in silence] on {day} after a {score} defeat [to|by] {one}.",
)
COMEBACK = (
    "{one} came from behind to [beat|defeat|overcome] {two} {score} on {day}.",
    "{two} [threw away their lead|let a lead slip|took the lead but could not keep it] and lost {score} to {one} on"
    " {day}.",
    "On {day} {one} fell behind to {two} but [fought back to win|turned the match round and won] {score}.",
)
DRAWN = (
    "{home} and {away} [drew|finished level at] {score} on {day}.",
    "{away} [held {home} to a {score} draw|earned a {score} draw at {home}|came away from {home} with a {score} draw]"
    " on {day}.",
    "{home} [had to settle for|could manage no more than] a {score} draw at home [to|against] {away} on {day}.",
    "[The points were shared|Neither side could win] on {day} when {home} met {away}: it ended {score}.",
)
CROWD = (
    "[A crowd of {crowd}|{crowd} spectators|Some {crowd} people] [came to|gathered at|braved the rain at] {ground}.",
    "The [attendance|crowd] at {ground} was {crowd}[|, the [largest|smallest] of the season|, well below the record"
    " of {record}].",
    "It was [cold|warm|wet|windy] at {ground}, where {crowd} spectators had [turned out|come to watch].",
    "{ground}, which [holds|has room for] {record}, was not [full|sold out]: {crowd} [people|spectators]"
    " [came|watched the {match}].",
)
EARLIER = (
    "{one} had [lost {earlier} to|beaten] {third} [a week before|in their last match].",
    "{two} had [beaten {third} {earlier}|lost {earlier} to {third}|gone down {earlier} at {third}] [a week"
    " earlier|seven days before|in the last round].",
    "{two} [arrived|came into the {match}] [in good spirits|full of hope] after [winning {earlier} at|a {earlier} win"
    " over] {third}.",
    "When the two sides last met, in {month}, {two} [won|were the winners,] {earlier}.",
    "{one} [were without|had to do without] {absent}, who [hurt {absent.his} knee|broke a finger|was injured] in the"
    " {earlier} defeat by {third}.",
)
# Of each row at most one is told.
VOICES = (
    (
        '"[We deserved it|The players gave everything|That was hard work|I could not ask for more]," said {coach},'
        " the {one} coach.",
        '{one} coach {coach} [praised|was full of praise for] {coach.his} side. "[They never gave up|They listened,'
        ' and they ran|This is what we have trained for]," {coach.he} said.',
        "{coach}, [who took over as {one} coach in {month}|the {one} coach], called it the best [result|performance]"
        " of the season.",
    ),
    (
        '"[We were not good enough|It was a bad day|We gave it away|We have to look forward]," [said|admitted] {two}'
        " coach {other_coach}.",
        "{other_coach}, who has coached {two} since {year}, [blamed the [referee|pitch|long journey]|complained about"
        " the [referee|pitch]].",
    ),
)
VOICES_OF_DRAW = (
    (
        '"[A point is a point|We should have won|That was a fair result|I have seen worse]," said {coach}, the {home}'
        " coach.",
        "{coach}, who took over as {home} coach in {month}, was [content|not content|happy|not happy] with the point.",
    ),
    (
        '"[It was there to be won|We will take the point|Both sides gave everything]," said {away} coach'
        " {other_coach}.",
        "{other_coach}, who has coached {away} since {year}, complained about the [referee|pitch].",
    ),
)
MORE = (
    (
        "{one} are [now {place}|in {place} place] in the table, while {two} are {other_place}.",
        "{two} have [now won|won only] {wins} of their [last|past] {played} matches.",
    ),
    ("[In the other {match} of the day|Elsewhere], {third} [beat|defeated] {fourth} {elsewhere}.",),
    (
        "{hero} has [now scored|scored] {season} {units} this season[|, more than anyone else at the club].",
        "{hero}, {age}, [joined|came] from {fourth} [last summer|in {month}|for a fee of ${fee} million].",
    ),
    (
        "{two} [travel to|play at|are at home to] {fourth} [next|on {next_day}|in their next match].",
    ),
)
NEXT = (
    "{one} [next play|next face|play their next match against|are at home next to] {opponent}[| on {next_day}].",
    "For {one}, the next opponents are {opponent}[|, who won {elsewhere} [last week|on {other_day}]].",
    "[Next week|On {next_day}] {one} [meet|play|travel to] {opponent}[|, the [leaders|champions]].",
)
BEST = (
    "{hero} [led {one} with {best} points|[finished with|scored|contributed] {best} points[| for {one}]], [and|while]"
    " {rival} [had|scored|managed] {second} for {two}.",
    "{rival}'s {second} points were not enough for {two}, because {hero} [had|scored] {best} for {one}.",
    "[The best player of the day was|Nobody played better than] {hero}, who [scored|ended with] {best} points for"
    " {one}; {rival} [had|got] {second} for the losers.",
)
HALF_TIME = "{ahead} [led|were ahead|were in front] {half} at half-time[| after a [lively|nervous|fast] start]."
RED_CARD = (
    "{two} [played on|finished] with ten {men} after {culprit} was [sent off|shown a red card] in the {red_minute}"
    " minute.",
    "In the {red_minute} minute {culprit} was sent off [for a [late tackle|foul]|after a second yellow card], which"
    " left {two} with ten {men}.",
)


def report(draw: Draw) -> Report:
    """One match."""
    return football(draw) if draw.chance(0.65) else points(draw)


def football(draw: Draw) -> Report:
    """A football match; the summary names the two teams, the result, the best player and the crowd."""
    more, fewer = draw.pick(SCORES)
    drawn = more == fewer
    women = draw.chance(0.4)
    facts = _frame(draw, FOOTBALL_TEAMS, women, at_home=drawn or draw.chance(0.6))
    facts.update(
        match="match",
        score=f"{more}-{fewer}",
        earlier=draw.pick(("1-0", "2-0", "2-1", "3-1", "3-2", "4-1", "5-0")),
        elsewhere=draw.pick(("1-0", "2-0", "2-1", "3-0", "3-2", "4-2", "5-1")),
        units="goals",
        season=str(draw.between(5, 29)),
        men="players" if women else "men",
        culprit=draw.person(women),
        red_minute=ordinal(draw.between(46, 85)),
    )
    while True:
        played = goals.play(draw, more, fewer, women)
        found = goals.hero(played, drawn)
        if found:
            break
    facts["hero"], deed = found
    story = goals.tell(draw, played, facts)
    if drawn:
        return _report(
            draw, facts, DRAWN, story, "{home.full} and {away.full} drew {score} on {day}.", deed
        )
    reduced = ""
    if draw.chance(0.25):
        story = f"{story} {draw.pick(RED_CARD)}"
        reduced = "ten-player " if women else "ten-man "
    if any(goal.side == "two" and goal.does.startswith("lead") for goal in played):
        first = "{one.full} came from behind to beat " + reduced + "{two.full} {score} on {day}."
        return _report(draw, facts, COMEBACK, story, first, deed)
    return _won(draw, facts, story, deed, reduced)


def points(draw: Draw) -> Report:
    """A basketball or rugby match."""
    women = draw.chance(0.4)
    facts = _frame(draw, OTHER_TEAMS, women, at_home=draw.chance(0.6))
    rugby = draw.chance(0.5)
    low, high = (10, 34) if rugby else (68, 99)
    less = draw.between(low, high)
    more = less + draw.between(1, 22)
    half_one = draw.between(more * 2 // 5, more * 3 // 5)
    half_two = draw.between(less * 2 // 5, less * 3 // 5)
    best = draw.between(8, min(19, more - 3)) if rugby else draw.between(21, 39)
    facts.update(
        match="match" if rugby else "game",
        score=f"{more}-{less}",
        earlier=f"{high + draw.between(1, 9)}-{draw.between(low, high)}",
        elsewhere=f"{high + draw.between(1, 9)}-{draw.between(low, high)}",
        hero=draw.person(women),
        rival=draw.person(women),
        best=str(best),
        second=str(draw.between(min(best, less) // 2, min(best, less) - 1)),
        units="points",
        season=str(draw.between(41, 398)),
        ahead=facts["one"] if half_one > half_two else facts["two"],
        half=f"{max(half_one, half_two)}-{min(half_one, half_two)}",
    )
    play = draw.pick(BEST) if half_one == half_two else f"{HALF_TIME} {draw.pick(BEST)}"
    return _won(draw, facts, play, "scored {best} points", "")


def _frame(
    draw: Draw, nicknames: tuple[str, ...], women: bool, at_home: bool
) -> dict[str, str | Name]:
    """What every match has: teams, crowd, coaches, the matches before and after; `at_home`: side one's ground."""
    one, two = draw.team(nicknames), draw.team(nicknames)
    played = draw.between(5, 12)
    days = draw.several(DAYS, 3)
    return {
        "one": one,
        "two": two,
        "home": one if at_home else two,
        "away": two if at_home else one,
        "third": draw.team(nicknames),
        "fourth": draw.team(nicknames),
        "opponent": draw.team(nicknames),
        "day": days[0],
        "next_day": days[1],
        "other_day": days[2],
        "month": draw.pick(MONTHS),
        "year": str(draw.between(2009, 2022)),
        "crowd": draw.count(2100, 58000),
        "record": draw.count(58100, 79000),
        "ground": f"{draw.surname()} {draw.pick(('Park', 'Road', 'Lane', 'Arena', 'Stadium'))}",
        "coach": draw.person(),
        "other_coach": draw.person(),
        "absent": draw.person(women),
        "age": str(draw.between(18, 34)),
        "fee": draw.decimal(11, 399),
        "place": draw.pick(ORDINALS[:9]),
        "other_place": draw.pick(ORDINALS[9:]),
        "wins": NUMBERS[draw.between(2, played // 2)],
        "played": NUMBERS[played],
    }


def _won(draw: Draw, facts: dict[str, str | Name], story: str, deed: str, reduced: str) -> Report:
    """A match that one side won and in which it was never behind, as far as the summary knows."""
    if facts["one"] == facts["home"]:
        first = "{one.full} beat " + reduced + "{two.full} {score} at home on {day}."
        return _report(draw, facts, HOME_WIN, story, first, deed)
    first = "{one.full} won {score} away to " + reduced + "{two.full} on {day}."
    return _report(draw, facts, AWAY_WIN, story, first, deed)


def _report(
    draw: Draw,
    facts: dict[str, str | Name],
    results: tuple[str, ...],
    story: str,
    first: str,
    deed: str,
) -> Report:
    """Puts the passages in order: the result may come first, after what went before, or after the goals."""
    crowd, result = draw.pick(CROWD), draw.pick(results)
    before = [draw.pick(EARLIER)] if draw.chance(0.7) else []
    voices = VOICES_OF_DRAW if results == DRAWN else VOICES
    after = [draw.pick(row) for row in draw.several(voices + MORE, draw.between(2, 4))]
    second = "{hero.full} " + deed + " in front of {crowd} spectators"
    if draw.chance(0.6):
        after.append(draw.pick(NEXT))
        second += ", and {one.short} next face {opponent.full}"
    (before if draw.chance(0.5) else after).append(crowd)
    before, after = draw.several(before, len(before)), draw.several(after, len(after))
    start = draw.weighted(result=0.4, before=0.4, goals=0.2)
    if start == "result":
        passages = [result, *before, story, *after]
    elif start == "before":
        passages = [*before, result, story, *after]
    else:
        passages = [*before, story, result, *after]
    return Report(facts, tuple(passages), f"{first} {second}.")
