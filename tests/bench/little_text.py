"""What text of one language is worth to a model with few pairs: `python -m tests.bench.little_text --help`.

All is done by the commands of nmtkit that a user would give. The pairs of a corpus are divided: the first 10,000 are
there to train on. Of the others one half gives text of the source language, the other half text of the target
language, so that no text has its translation. Every model has the same architecture and tokenizer. What has been
measured stays in the folder, and a stopped experiment goes on.
"""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev

import click
import yaml

PAIRS = 10_000
"""Those that may be trained on as pairs."""
WAYS = ("nothing", "spans", "masked", "back", "both")
"""How a model is trained: on its pairs alone; after span corruption of all text; with an encoder that has learned
masked words; also on back-translations; after span corruption and on back-translations."""
MODEL = {
    "kind": "transformer",
    "hidden_size": 128,
    "feed_forward_size": 512,
    "heads": 4,
    "layers": 3,
    "dropout": 0.2,
    "norm": "post",
    "activation": "gelu",
    "positions": "learned",
    "max_positions": 256,
    "embedding_norm": True,
    "scale_embeddings": False,
    "tie": "all",
}
ENCODER = {key: MODEL[key] for key in ("hidden_size", "feed_forward_size", "heads", "layers", "max_positions")}
UPDATES = {1000: 800, 3000: 1500, 10000: 2500}
PRETRAINING = 4000


def lines_of(path: Path) -> list[str]:
    """The lines of a file, plain or .gz."""
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8").splitlines()


def write(path: Path, lines: Iterable[str]) -> None:
    """Writes a text."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


class Experiment:
    """All trainings in one folder; `scale` makes them shorter, to try the program."""

    def __init__(self, folder: Path, scale: float) -> None:
        self.folder, self.scale = folder, scale

    def prepare(self, corpus: Path, src: str, tgt: str) -> None:
        """Divides a corpus: train, val and test_2016_flickr, or valid and test, as SPLIT.LANGUAGE or .gz."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for split, names in (("train", ["train"]), ("valid", ["valid", "val"]), ("test", ["test", "test_2016_flickr"])):
            for side, language in (("src", src), ("tgt", tgt)):
                files = [corpus / f"{name}.{language}{end}" for name in names for end in ("", ".gz")]
                lines = lines_of(next(file for file in files if file.exists()))
                if split != "train":
                    write(self.folder / f"{split}.{side}", lines)
                    continue
                for count in UPDATES:
                    write(self.folder / f"pairs-{count}.{side}", lines[:count])
                rest = lines[PAIRS:]
                write(self.folder / f"mono.{side}", rest[: len(rest) // 2] if side == "src" else rest[len(rest) // 2 :])

    def nmtkit(self, *words: object) -> None:
        """Runs a command on one thread; what it says goes into log.txt."""
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        with open(self.folder / "log.txt", "ab") as log:
            command = [sys.executable, "-m", "nmtkit", *map(str, words)]
            subprocess.run(command, cwd=self.folder, env=env, stdout=log, stderr=log, check=True)

    def train(self, name: str, updates: int, settings: dict[str, object]) -> Path:
        """Trains a run by a recipe, unless that was done; returns the run's folder."""
        run = self.folder / "runs" / name
        if not (run / "result.json").exists():
            updates = max(2, round(updates * self.scale))
            schedule = {"kind": "linear", "over": "budget", "warmup_share": 0.1}
            common = {"lr": 0.001, "schedule": schedule, "max_updates": updates, "validate_every": max(1, updates // 5)}
            training = {**common, "threads": 1, **settings.pop("training", {})}  # type: ignore[dict-item]
            data = {"name": name.replace("/", "-"), **settings, "training": training}
            recipe = self.folder / f"{name.replace('/', '-')}.yaml"
            recipe.write_text(yaml.safe_dump(data), encoding="utf-8")
            self.nmtkit("train", recipe.name, "--run", run, "--overwrite", "--device", "cpu")
        return run

    def pretrained(self, seed: int) -> tuple[Path, Path]:
        """Runs of span corruption and of masked words; the first has the tokenizer of all."""
        loss = {"best_metric": "loss", "higher_is_better": False}
        both = [f"pairs-{PAIRS}.src", f"pairs-{PAIRS}.tgt", "mono.src", "mono.tgt"]
        common = {"task": "language-modelling", "seed": seed, "batch": {"batch_tokens": 4096}}
        tokenizer = {"kind": "bpe", "vocab_size": 4000, "sentinels": 100, "specials": ["<mask>", "<BT>"]}
        spans = self.train(
            f"spans-{seed}",
            PRETRAINING,
            common
            | {"data": {"train": {"tgt": both}, "valid": {"tgt": ["valid.src", "valid.tgt"]}}}
            | {"tokenizer": tokenizer, "model": MODEL, "training": {**loss, "span_corruption": {}}},
        )
        masked = self.train(
            f"masked-{seed}",
            PRETRAINING,
            common
            | {"data": {"train": {"tgt": both[::2]}, "valid": {"tgt": "valid.src"}}}
            | {
                "init_from": {"tokenizer": str(spans)},
                "model": {"kind": "bert", **ENCODER},
                "training": {**loss, "masked_words": {}},
            },
        )
        return spans, masked

    def translate(self, way: str, count: int, seed: int) -> float:
        """Trains one model, and its reverse model if need be; returns BLEU on the test set."""
        spans, masked = self.pretrained(seed)
        run = self.one_way(f"{way}-{count}-{seed}", way, count, seed, spans, masked, ("src", "tgt"))
        scores = json.loads((run / "test.json").read_text(encoding="utf-8"))["scores"]
        return float(next(score["value"] for score in scores if score["name"] == "BLEU"))

    def one_way(
        self, name: str, way: str, count: int, seed: int, spans: Path, masked: Path, sides: Sequence[str]
    ) -> Path:
        """A model that translates from the first to the second side."""
        src, tgt = sides

        def pair(stem: str) -> dict[str, object]:
            return {"src": f"{stem}.{src}", "tgt": f"{stem}.{tgt}"}

        begin = {
            "nothing": {"tokenizer": str(spans)},
            "back": {"tokenizer": str(spans)},
            "masked": {"encoder": str(masked)},
        }
        train: object = pair(f"pairs-{count}")
        if way in ("back", "both"):
            before = {"back": "nothing", "both": "spans"}[way]
            reverse = self.one_way(f"reverse-{way}-{count}-{seed}", before, count, seed, spans, masked, ("tgt", "src"))
            back = self.folder / f"back-{way}-{count}-{seed}"
            if not (back / "done").exists():
                self.nmtkit("backtranslate", "-m", reverse, "mono.tgt", "-o", back, "-q", "--device", "cpu")
                (back / "done").touch()
            train = [
                {**pair(f"pairs-{count}"), "weight": max(1.0, PAIRS / count / 2)},
                {"src": str(back / "src.txt"), "tgt": str(back / "tgt.txt"), "tag": "<BT>"},
            ]
        updates = UPDATES[count] if way not in ("back", "both") else UPDATES[PAIRS]
        settings = {"init_from": begin.get(way, str(spans)), "model": MODEL, "task": "translation", "seed": seed}
        data = {"train": train, "valid": pair("valid"), "test": pair("test")}
        settings |= {"evaluation": {"max_sentences": 200}}
        return self.train(name, updates, {**settings, "batch": {"batch_tokens": 2048}, "data": data})


@click.command(help=__doc__)
@click.argument("corpus", type=click.Path(path_type=Path, exists=True))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--languages", default="en-de", show_default=True)
@click.option("--pairs", default="1000,3000,10000", show_default=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--ways", default=",".join(WAYS), show_default=True)
@click.option("--jobs", default=2, show_default=True, help="Trainings at a time, one thread each.")
@click.option("--scale", default=1.0, show_default=True, help="Makes trainings shorter.")
def main(
    corpus: Path, folder: Path, languages: str, pairs: str, seeds: int, ways: str, jobs: int, scale: float
) -> None:
    experiment = Experiment(folder.resolve(), scale)
    experiment.prepare(corpus, *languages.split("-"))
    counts, chosen = [int(count) for count in pairs.split(",")], ways.split(",")
    with ThreadPoolExecutor(jobs) as pool:
        [*pool.map(experiment.pretrained, range(1, seeds + 1))]
        work = {
            (way, count, seed): pool.submit(experiment.translate, way, count, seed)
            for count in counts
            for seed in range(1, seeds + 1)
            for way in chosen
        }
        found = {key: one.result() for key, one in work.items()}
    click.echo("| pairs | " + " | ".join(chosen) + " |\n|" + "---:|" * (len(chosen) + 1))
    for count in counts:
        cells = []
        for way in chosen:
            scores = [found[way, count, seed] for seed in range(1, seeds + 1)]
            cells.append(f"{mean(scores):.1f} ± {stdev(scores) if seeds > 1 else 0.0:.1f}")
        click.echo(f"| {count:,} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
