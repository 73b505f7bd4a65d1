"""Whole examples: an article, its summary, and which words of the summary no training text has."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from . import appointments, earnings, matches, weather
from .draw import Draw, reserved
from .writing import Report, Story, is_number, words

KINDS: dict[str, Callable[[Draw], Report]] = {
    "match": matches.report,
    "earnings": earnings.report,
    "weather": weather.report,
    "appointment": appointments.report,
}
PARTS = {"train": 10000, "valid": 500, "test": 500}
SHORTEST, LONGEST = 80, 200  # words of an article, punctuation included
RESERVED = 2 / 3  # of the names and numbers drawn for valid and test: kept out of train


@dataclass(frozen=True)
class Example:
    """One line of the corpus.

    Attributes:
        kind: one of `KINDS`.
        article: the sentences, separated by one space.
        summary: two sentences.
        facts: the words of the summary that are part of a name, and its numbers, in their order, each once.
    """

    kind: str
    article: str
    summary: str
    facts: tuple[str, ...]


def example(kind: str, rng: random.Random, training: bool) -> Example:
    """An article of this kind with its summary."""
    while True:
        draw = Draw(rng, 0 if training else RESERVED)
        report = KINDS[kind](draw)
        story = Story(report.facts, draw)
        article = " ".join(story.tell(passage) for passage in report.passages)
        summary = story.tell(report.summary)
        facts = dict.fromkeys(
            word for word in words(summary) if word in draw.drawn or is_number(word)
        )
        # Numbers that follow from others, such as last year's profit, may be reserved ones: then all is drawn anew.
        fit = not (
            training
            and any(
                reserved(word) for word in words(article) if word in draw.drawn or is_number(word)
            )
        )
        if (
            fit
            and facts.keys() <= set(words(article))
            and SHORTEST <= len(words(article)) <= LONGEST
        ):
            return Example(kind, article, summary, tuple(facts))


def generate(seed: int, sizes: dict[str, int] | None = None) -> dict[str, list[Example]]:
    """All parts of the corpus, the four kinds in turn; no article and no summary occurs twice.

    Args:
        seed: another seed makes another corpus.
        sizes: examples of `train`, `valid` and `test`; `PARTS` if not given.
    """
    sizes = sizes or PARTS
    used: set[str] = set()
    parts: dict[str, list[Example]] = {}
    for part in ("test", "valid", "train"):
        parts[part] = []
        for number in range(sizes[part]):
            rng = random.Random(f"news/{seed}/{part}/{number}")
            kind = tuple(KINDS)[number % len(KINDS)]
            made = example(kind, rng, part == "train")
            while made.article in used or made.summary in used:
                made = example(kind, rng, part == "train")
            used |= {made.article, made.summary}
            parts[part].append(made)
    return parts


def unseen(examples: Iterable[Example], train: Iterable[Example]) -> list[list[str]]:
    """The facts of each example that occur in no article and no summary of the training set."""
    seen = {
        word
        for example in train
        for text in (example.article, example.summary)
        for word in words(text)
    }
    return [[fact for fact in example.facts if fact not in seen] for example in examples]


def statistics(parts: dict[str, list[Example]]) -> list[str]:
    """What the corpus holds, in lines for a reader: lengths in words and marks, and what the training set has not."""
    lines = []
    for name in ("article", "summary"):
        lengths = sorted(
            len(words(getattr(example, name))) for part in parts.values() for example in part
        )
        lines.append(
            f"{name}: {lengths[0]} to {lengths[-1]} words, {sum(lengths) / len(lengths):.1f} on average"
        )
    for part in ("valid", "test"):
        rare = sum(map(len, unseen(parts[part], parts["train"])))
        facts = sum(len(example.facts) for example in parts[part])
        lines.append(
            f"{part}: {rare} of {facts} names and numbers in the summaries are not in train"
        )
    return lines
