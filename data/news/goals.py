"""The goals of a football match: who scores when, and how that is told."""

from dataclasses import dataclass

from .draw import Draw, Name
from .writing import Facts, ordinal

# By what a goal does. `side` is the one that scores; the score is told with the leading side first.
WORDS = {
    "lead": (
        "{scorer} [put {side} ahead|gave {side} the lead|scored first for {side}] WHEN.",
        "{side} [took the lead|went ahead|went in front] WHEN [through|with a goal by] {scorer}.",
    ),
    "lead again": (
        "{scorer} [put {side} ahead again|made it {state} to {side}] WHEN.",
        "WHEN {side} [went in front once more|took the lead again], through {scorer}.",
    ),
    "extend": (
        "{scorer} made it {state} [to {side}|for {side}|] WHEN.",
        "WHEN {scorer} [increased the lead of {side}|added another for {side}|scored the next goal for {side}][|:"
        " {state}].",
    ),
    "level": (
        "{scorer} [levelled|equalised] for {side} WHEN.",
        "WHEN {scorer} [drew {side} level|scored the equaliser for {side}][| at {state}].",
    ),
    "reduce": (
        "{scorer} pulled [one|a goal] back for {side} WHEN.",
        "WHEN {scorer} [reduced the lead to {state}|gave {side} some hope at {state}].",
    ),
}
WHEN = "[in the {minute} minute|after {minutes} minutes]"
HOW = (
    "with a header",
    "from close range",
    "from the penalty spot",
    "from a corner",
    "from long range",
)

DEEDS = {2: "scored twice", 3: "scored three goals", 4: "scored four goals"}


@dataclass(frozen=True)
class Goal:
    """One goal.

    Attributes:
        side: `one` or `two`.
        does: what it changes, a key of `WORDS`.
        scorer: who scores it.
        state: the score after it, the higher number first.
    """

    side: str
    does: str
    scorer: Name
    state: str


def play(draw: Draw, more: int, fewer: int, women: bool) -> list[Goal]:
    """Goals in order: `more` by side one, `fewer` by side two; who is behind in a drawn match scores last."""
    squads = {side: [draw.person(women) for _ in range(3)] for side in ("one", "two")}
    goals: list[Goal] = []
    score = {"one": 0, "two": 0}
    for side in draw.several(["one"] * more + ["two"] * fewer, more + fewer):
        mine, theirs = score[side], sum(score.values()) - score[side]
        does = "extend" if mine > theirs else "level" if mine + 1 == theirs else "reduce"
        if mine == theirs:
            does = "lead again" if mine else "lead"
        own = [goal.scorer for goal in goals if goal.side == side]
        scorer = own[-1] if own and draw.chance(0.45) else squads[side][len(set(own)) % 3]
        goals.append(Goal(side, does, scorer, f"{max(mine + 1, theirs)}-{min(mine + 1, theirs)}"))
        score[side] += 1
    return goals


def hero(goals: list[Goal], drawn: bool) -> tuple[Name, str] | None:
    """The player for the summary and what he or she did, if one player stands out."""
    if drawn:
        return goals[-1].scorer, "scored the equaliser"
    own = [goal for goal in goals if goal.side == "one"]
    tally = {goal.scorer: sum(goal.scorer == other.scorer for other in own) for goal in own}
    most = max(tally.values())
    best = [name for name, number in tally.items() if number == most]
    if most > 1:
        return (best[0], DEEDS[most]) if len(best) == 1 else None
    if own[-1].does == "lead again" or len(goals) == 1:
        return own[-1].scorer, "scored the winning goal"
    return (own[0].scorer, "opened the scoring") if goals[0].side == "one" else None


def tell(draw: Draw, goals: list[Goal], facts: dict[str, str | Name]) -> str:
    """The goals as a template; adds its facts."""
    minutes = sorted(draw.several(range(3, 91), len(goals)))
    told = []
    for number, (goal, minute) in enumerate(zip(goals, minutes, strict=True), start=1):
        template = draw.pick(WORDS[goal.does]).replace("WHEN", WHEN)
        if template.startswith("{scorer}") and draw.chance(0.4):
            template = template[:-1] + f" {draw.pick(HOW)}."
        own: Facts = {
            "scorer": goal.scorer,
            "state": goal.state,
            "minute": ordinal(minute),
            "minutes": str(minute),
        }
        for key, fact in own.items():
            facts[f"{key}{number}"] = fact
            template = template.replace(f"{{{key}}}", f"{{{key}{number}}}")
        told.append(template.replace("{side}", f"{{{goal.side}}}"))
    return " ".join(told)
