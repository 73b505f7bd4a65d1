"""What attention is worth where real texts are classified: `python -m tests.tools.bench.classes --help`.

Two corpora: the articles of BBC News, of which the topic is asked, and descriptions of Debian's packages, of which the
section is asked. Three models of one tokenizer: the mean of the word vectors, one attention over all words, and
hierarchical attention. All is done by the commands of nmtkit that a user would give; what has been measured stays in
the folder, and a stopped experiment goes on.
"""

import gzip
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev

import click

from nmtkit.datasets.debian import DebianIndexes, stanzas
from nmtkit.datasets.debian_readers import descriptions
from nmtkit.datasets.download import FetchContext
from tests.tools.bench.little_text import Experiment, write

SECTIONS = 10
"""The sections with the most packages are asked."""
PER_SECTION = 600
SIZES = {"embedding_size": 100, "hidden_size": 50, "attention_size": 100}
MODELS: dict[str, dict[str, object]] = {
    "word_mean": {"hidden_size": 100},
    "attention_classifier": SIZES,
    "hierarchical_attention": SIZES,
}
LONGER = {"word_mean": 8}
"""A bag of words needs more updates, each of which costs little."""
WORDS = {"bbc": 300, "debian": 150}
"""The first ones of a text are read."""
Text = tuple[str, str, str]
"""Its part, the text on one line, and its label."""


def bbc(folder: Path) -> Iterable[Text]:
    """The articles of a folder with train.jsonl.gz and test.jsonl.gz, whose `id` begins with the topic."""
    for split in ("train", "test"):
        with gzip.open(folder / f"{split}.jsonl.gz", "rt", encoding="utf-8") as file:
            for number, row in enumerate(map(json.loads, file)):
                text = " ".join((row["title"] + ". " + " ".join(row["paragraphs"])).split())
                yield (
                    "valid" if split == "train" and number % 10 == 0 else split,
                    text,
                    row["id"].split("/")[0],
                )


def debian(cache: Path) -> Iterable[Text]:
    """English descriptions of packages; those of one source package are in the same part. Two indexes are fetched."""
    context = FetchContext(cache, lambda text: None, lambda done, size: None)
    index, english = DebianIndexes(languages=["en"]).obtain(context)
    facts = {one["Package"]: one for one in stanzas(index.path, ("Package", "Source", "Section"))}
    kinds = Counter(one["Section"] for one in facts.values())
    asked = [section for section, _ in kinds.most_common(SECTIONS)]
    taken, seen = Counter[str](), set[str]()
    items = [*descriptions([english.path], "en")]
    random.Random(1).shuffle(items)
    for item in items:
        section = facts.get(item.package, {}).get("Section", "")
        words = " ".join(
            word for lines in item.paragraphs for line in lines for word in line.split()
        )
        beginning = words[:60]
        if (
            section not in asked
            or taken[section] >= PER_SECTION
            or len(words.split()) < 20
            or beginning in seen
        ):
            continue
        taken[section] += 1
        seen.add(beginning)
        source = facts[item.package].get("Source", item.package).split()[0]
        part = hashlib.sha1(source.encode(), usedforsecurity=False).digest()[0] % 10
        yield {0: "valid", 1: "test"}.get(part, "train"), f"{item.summary}. {words}", section


class Classes(Experiment):
    """All trainings on one corpus; `scale` makes them shorter, to try the program."""

    def prepare_texts(self, texts: Iterable[Text]) -> None:
        """Writes PART.txt and PART.label, each part in the order of the texts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        parts: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
        for part, text, label in texts:
            parts[part].append((text, label))
        for part, rows in parts.items():
            write(self.folder / f"{part}.txt", [text for text, _ in rows])
            write(self.folder / f"{part}.label", [label for _, label in rows])

    def classify(self, kind: str, seed: int, updates: int, words: int) -> tuple[float, float]:
        """Trains a model; returns its accuracy and macro F1 on the test set."""
        data = {
            part: {"src": f"{part}.txt", "labels": f"{part}.label"}
            for part in ("train", "valid", "test")
        }
        settings: dict[str, object] = {
            "task": "classification",
            "seed": seed,
            "data": {**data, "max_length": words, "over_long": "truncate"},
            "tokenizer": {"kind": "word", "vocab_size": 16000, "sentences": True},
            "model": {"kind": kind, **MODELS[kind], "dropout": 0.3},
            "batch": {"batch_tokens": 4096},
            "training": {"lr": 0.003, "clip_norm": 1.0, "best_metric": "accuracy"},
        }
        run = self.train(f"{kind}-{seed}", updates * LONGER.get(kind, 1), settings)
        scores = json.loads((run / "test.json").read_text(encoding="utf-8"))["scores"]
        found = {score["name"]: float(score["value"]) for score in scores}
        return found["Accuracy"], found["F1"]


@click.command(help=__doc__)
@click.argument("bbc_folder", type=click.Path(path_type=Path, exists=True))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--updates", default=400, show_default=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--jobs", default=2, show_default=True, help="Trainings at a time, one thread each.")
@click.option("--scale", default=1.0, show_default=True, help="Makes trainings shorter.")
def main(bbc_folder: Path, folder: Path, updates: int, seeds: int, jobs: int, scale: float) -> None:
    folder = folder.resolve()
    click.echo("| corpus | model | accuracy | macro F1 |\n|---|---|---:|---:|")
    with ThreadPoolExecutor(jobs) as pool:
        work = {}
        for name, texts in (("bbc", bbc(bbc_folder)), ("debian", debian(folder / "cache"))):
            experiment = Classes(folder / name, scale)
            if not (folder / name / "test.label").exists():
                experiment.prepare_texts(texts)
            for kind in MODELS:
                work[name, kind] = [
                    pool.submit(experiment.classify, kind, seed, updates, WORDS[name])
                    for seed in range(1, seeds + 1)
                ]
        for (name, kind), runs in work.items():
            found = [run.result() for run in runs]
            cells = [
                f"{mean(column):.1f} ± {stdev(column) if column[1:] else 0.0:.1f}"
                for column in zip(*found, strict=True)
            ]
            click.echo(f"| {name} | {kind} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
