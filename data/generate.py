"""Make the corpora that come with nmtkit: English-French pairs, news with summaries, trees, pictures with captions.

    python data/generate.py                      # write all folders data/demo-* anew, byte for byte
    python data/generate.py --corpus en-fr --out DIR --seed 7 --train 5000

The pairs come from the grammar in `data/grammar`, with gold word alignments; the articles from the templates in
`data/news`; the pictures from the shapes in `data/scenes`. Every line is drawn from a random generator of its own,
seeded with the corpus seed, the part and the line number, so the first lines of `train` are the same however many
lines are asked for. The test set is made first, then the validation set, then the training set, and nothing is used
twice. `data/README.md` says what the files hold.
"""

import argparse
import gzip
import json
import random
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from grammar.sampling.heldout import Sampler
from grammar.text import (
    Pair,
    alignment,
    bracket,
    linear_tree,
    melt_english,
    melt_french,
    words,
    write,
)
from news import corpus as news
from numpy.typing import NDArray
from scenes import corpus as scenes

__all__ = ["HELD_OUT", "PARTS", "Line", "generate", "main", "render", "words"]

DATA = Path(__file__).parent
FOLDERS = {
    "en-fr": DATA / "demo-en-fr",
    "news": DATA / "demo-news",
    "trees": DATA / "demo-trees",
    "scenes": DATA / "demo-scenes",
}
SEED = 1
PARTS = {"train": 20000, "valid": 1000, "test": 1000}
TREE_PARTS = {"train": 7000, "valid": 300, "test": 300}
TREE_WORDS = 20  # the longest sentence of the trees
MARKED_SHARE = 0.3  # of the test set
SHORTEST, LONGEST = 3, 50  # words on either side

# Constructions with these words occur in the marked part of the test set only. Both the words and the constructions are
# frequent in the training set, but never together.
HELD_OUT = tuple(
    f"{family}/{lemma}"
    for family, lemmas in {
        # the verb in the passé composé with ne ... pas
        "negated-past": "manger vendre ouvrir trouver travailler arriver chercher visiter",
        # the verb with a direct object pronoun
        "object-pronoun": "voir aider regarder inviter suivre connaître",
        # the verb in a relative clause with que
        "object-relative": "acheter lire porter écrire préparer nettoyer",
        # the verb in a yes-no question
        "question": "dormir prendre boire attendre chanter fermer",
        # the adjective in a comparison
        "comparison": "famous tired intelligent serious",
        # the adjective with the noun
        "adjective-noun": "red+car new+teacher old+book small+house beautiful+flower happy+woman green+bag "
        "young+doctor",
    }.items()
    for lemma in lemmas.split()
)


@dataclass(frozen=True)
class Line:
    """One line of the corpus: both texts, the alignment (English, French positions) and the held-out label or `-`.

    `tree` is the constituency tree of the English text in linear form.
    """

    en: str
    fr: str
    alignment: tuple[tuple[int, int], ...]
    label: str
    tree: str = ""


def render(pair: Pair) -> tuple[str, str, tuple[tuple[int, int], ...], frozenset[str]]:
    """Written texts of a sentence, its alignment, and the held-out constructions that occur in it."""
    en, fr = melt_english(pair.en), melt_french(pair.fr)
    en_text, fr_text = (
        write((word.text for word in en), "en"),
        write((word.text for word in fr), "fr"),
    )
    for text, tokens in ((en_text, en), (fr_text, fr)):
        if len(words(text)) != len(tokens):
            raise ValueError(f"the words of this text are not those of the grammar: {text}")
    facts = frozenset(fact for word in fr for fact in word.facts)
    return en_text, fr_text, tuple(alignment(en, fr)), facts & frozenset(HELD_OUT)


def wanted_length(rng: random.Random) -> int:
    """English words of the next sentence: mostly 5 to 20, one in eleven over 30."""
    x, y = rng.random(), rng.random()
    if x < 0.03:
        return 3 + int(2 * y)
    if x < 0.78:
        return 5 + int(8 * y * (1 + rng.random()))
    if x < 0.905:
        return 21 + int(10 * y)
    return 31 + int(20 * y)


def make_line(seed: int, part: str, number: int, label: str, used: set[tuple[str, str]]) -> Line:
    """The line of a part with this number: of about the wanted length, not yet used, with just the wanted label."""
    rng = random.Random(f"{seed}/{part}/{number}")
    sampler = Sampler(rng)
    wanted = frozenset() if label == "-" else frozenset([label])
    length = wanted_length(rng) if label == "-" else 6 + int(20 * rng.random())
    for attempt in range(10000):
        pair = sampler.sentence(length) if label == "-" else sampler.sentence_with(label, length)
        if (
            abs(len(pair.en) - length) > 1 + attempt // 20
            or not SHORTEST <= len(pair.fr) <= LONGEST + 10
        ):
            continue
        en, fr, links, facts = render(pair)
        sizes = (len(words(en)), len(words(fr)))
        if (
            facts == wanted
            and (en, fr) not in used
            and min(sizes) >= SHORTEST
            and max(sizes) <= LONGEST
        ):
            used.add((en, fr))
            return Line(
                en, fr, links, label, linear_tree(bracket("S", tuple(melt_english(pair.en))))
            )
    raise RuntimeError(f"no sentence found for line {number} of {part}")


def generate(seed: int = SEED, sizes: dict[str, int] | None = None) -> dict[str, list[Line]]:
    """All parts of the corpus.

    Args:
        seed: another seed makes another corpus.
        sizes: lines of `train`, `valid` and `test`; `PARTS` if not given.
    """
    sizes = sizes or PARTS
    used: set[tuple[str, str]] = set()
    parts = {}
    for part in ("test", "valid", "train"):
        labels = _labels(sizes[part]) if part == "test" else ["-"] * sizes[part]
        parts[part] = [
            make_line(seed, part, number, label, used) for number, label in enumerate(labels)
        ]
    return parts


def generate_trees(seed: int = SEED, sizes: dict[str, int] | None = None) -> dict[str, list[Line]]:
    """The parts of the trees: the first short sentences of the same parts of the pairs."""
    sizes = sizes or TREE_PARTS
    parts = generate(
        seed,
        {
            part: max(PARTS[part], 2 * sizes[part]) if part != "train" else 2 * sizes[part]
            for part in PARTS
        },
    )
    short = {
        part: [line for line in lines if len(words(line.en)) <= TREE_WORDS]
        for part, lines in parts.items()
    }
    return {part: short[part][: sizes[part]] for part in PARTS}


def _labels(size: int) -> list[str]:
    """Labels of the test lines: three lines in ten have one of the held-out constructions, each in its turn."""
    labels = []
    for number in range(size):
        turn, rest = divmod(number, 10)
        place = turn * int(10 * MARKED_SHARE) + rest
        labels.append(HELD_OUT[place % len(HELD_OUT)] if rest < 10 * MARKED_SHARE else "-")
    return labels


def pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """An alignment as `0-0 1-2 ...`: English position, French position."""
    return " ".join(f"{i}-{j}" for i, j in links)


def files(
    parts: dict[str, list[Line]], spaced: Collection[str] = ("test",)
) -> Iterator[tuple[str, str]]:
    """Name and text of every file of the corpus; parts named in `spaced` also as the words that alignments count."""
    for part, lines in parts.items():
        yield f"{part}.en", "".join(line.en + "\n" for line in lines)
        yield f"{part}.fr", "".join(line.fr + "\n" for line in lines)
        yield f"{part}.align", "".join(pharaoh(line.alignment) + "\n" for line in lines)
        if part in spaced:
            yield f"{part}.words.en", "".join(" ".join(words(line.en)) + "\n" for line in lines)
            yield f"{part}.words.fr", "".join(" ".join(words(line.fr)) + "\n" for line in lines)
    yield "test.heldout", "".join(line.label + "\n" for line in parts["test"])


def tree_files(parts: dict[str, list[Line]]) -> Iterator[tuple[str, str]]:
    """Name and text of every file of the trees: the words of each English sentence, and its tree in linear form."""
    for part, lines in parts.items():
        yield f"{part}.words", "".join(" ".join(words(line.en)) + "\n" for line in lines)
        yield f"{part}.trees", "".join(line.tree + "\n" for line in lines)


def news_files(parts: dict[str, list[news.Example]]) -> Iterator[tuple[str, str]]:
    """Name and text of every file of the news corpus: one JSON object a line; `unseen` in valid and test only."""
    for part, examples in parts.items():
        objects: list[dict[str, object]] = [
            {"kind": one.kind, "article": one.article, "summary": one.summary} for one in examples
        ]
        if part != "train":
            for fields, rare in zip(objects, news.unseen(examples, parts["train"]), strict=True):
                fields["unseen"] = rare
        yield f"{part}.jsonl", "".join(json.dumps(one) + "\n" for one in objects)


def scene_files(
    parts: dict[str, list[scenes.Scene]],
) -> Iterator[tuple[str, str | NDArray[np.uint8]]]:
    """Name and content of every file of the scenes: the pictures, a caption for each, and the regions of its words."""
    for part, made in parts.items():
        yield f"{part}.images", scenes.pictures(made)
        yield f"{part}.captions", "".join(one.caption() + "\n" for one in made)
        yield f"{part}.regions", "".join(one.regions() + "\n" for one in made)


def save(named: Iterable[tuple[str, str | NDArray[np.uint8]]], folder: Path) -> int:
    """Write texts (.gz) and images (.npz) with their names to a folder, compressed; returns their size in bytes.

    There is no time stamp in them: numpy gives all members of an .npz the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for name, one in named:
        path = folder / f"{name}.{'gz' if isinstance(one, str) else 'npz'}"
        if isinstance(one, str):
            with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
                packed.write(one.encode("utf-8"))
        else:
            np.savez_compressed(path, images=one)
        total += path.stat().st_size
    return total


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make the corpora that come with nmtkit.")
    parser.add_argument("--corpus", choices=FOLDERS, help="only this one (default: all)")
    parser.add_argument(
        "--out", type=Path, help="folder to write this one to (default data/demo-CORPUS)"
    )
    parser.add_argument("--seed", type=int, default=SEED)
    for part in PARTS:
        sizes = f"{PARTS[part]} of en-fr, {news.PARTS[part]} of news, {TREE_PARTS[part]} of trees"
        sizes += f", {scenes.PARTS[part]} of scenes"
        parser.add_argument(f"--{part}", type=int, help=f"lines of {part} (default {sizes})")
    parser.add_argument(
        "--words",
        action="store_true",
        help="en-fr: write PART.words.* for every part, not only test",
    )
    options = parser.parse_args(arguments)
    if options.out and not options.corpus:
        parser.error("--out is for one corpus: say which with --corpus")
    if options.words and options.corpus != "en-fr":
        parser.error("--words is for --corpus en-fr")
    given = {part: getattr(options, part) for part in PARTS if getattr(options, part) is not None}
    for corpus in [options.corpus] if options.corpus else FOLDERS:
        folder = options.out or FOLDERS[corpus]
        if corpus == "en-fr":
            pairs = generate(options.seed, {**PARTS, **given})
            counts = {part: len(pairs[part]) for part in PARTS}
            size = save(files(pairs, PARTS if options.words else ("test",)), folder)
        elif corpus == "trees":
            pairs = generate_trees(options.seed, {**TREE_PARTS, **given})
            counts = {part: len(pairs[part]) for part in PARTS}
            size = save(tree_files(pairs), folder)
        elif corpus == "scenes":
            made = scenes.generate(options.seed, {**scenes.PARTS, **given})
            counts = {part: len(made[part]) for part in PARTS}
            size = save(scene_files(made), folder)
        else:
            examples = news.generate(options.seed, {**news.PARTS, **given})
            counts = {part: len(examples[part]) for part in PARTS}
            size = save(news_files(examples), folder)
            sys.stdout.write("".join(f"{line}\n" for line in news.statistics(examples)))
        lines = ", ".join(f"{count} {part}" for part, count in counts.items())
        sys.stdout.write(f"{folder}: {lines} lines, {size / 1e6:.2f} MB\n")


if __name__ == "__main__":
    main()
