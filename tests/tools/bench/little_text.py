"""What text of one language is worth to a model with few pairs: `python -m tests.tools.bench.little_text --help`.

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
from matplotlib.figure import Figure

PAIRS = 10_000
"""Those that may be trained on as pairs."""
LM_WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)
"""Tried on the validation set."""
WAYS = ("nothing", "spans", "masked", "back", "both")
"""How a model is trained: on its pairs alone; after span corruption of all text; with an encoder that has learned
masked words; also on back-translations; after span corruption and on back-translations."""
LABELS = {
    "nothing": "pairs alone",
    "spans": "span corruption first",
    "masked": "masked words first (encoder)",
    "back": "back-translation",
    "both": "span corruption and back-translation",
}
MODEL = {
    "kind": "transformer",
    "hidden_size": 128,
    "feed_forward_size": 256,
    "heads": 4,
    "layers": 2,
    "dropout": 0.2,
    "norm": "post",
    "activation": "gelu",
    "positions": "learned",
    "max_positions": 256,
    "embedding_norm": True,
    "scale_embeddings": False,
    "tie": "all",
}
ENCODER = {
    key: MODEL[key]
    for key in ("hidden_size", "feed_forward_size", "heads", "layers", "max_positions")
}
UPDATES = {1000: 450, 3000: 750, 10000: 1200}
"""Of a training, by its pairs; with back-translations always the most."""
PRETRAINING = 3000


def lines_of(path: Path) -> list[str]:
    """The lines of a file, plain or .gz."""
    content = path.read_bytes()
    return (
        (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8").splitlines()
    )


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
        for split, names in (
            ("train", ["train"]),
            ("valid", ["valid", "val"]),
            ("test", ["test", "test_2016_flickr"]),
        ):
            for side, language in (("src", src), ("tgt", tgt)):
                files = [
                    corpus / f"{name}.{language}{end}" for name in names for end in ("", ".gz")
                ]
                lines = lines_of(next(file for file in files if file.exists()))
                if split != "train":
                    write(self.folder / f"{split}.{side}", lines)
                    continue
                for count in UPDATES:
                    write(self.folder / f"pairs-{count}.{side}", lines[:count])
                rest = lines[PAIRS:]
                write(
                    self.folder / f"mono.{side}",
                    rest[: len(rest) // 2] if side == "src" else rest[len(rest) // 2 :],
                )

    def nmtkit(self, *words: object) -> str:
        """Runs a command on one thread; returns what it prints. Its messages go into log.txt."""
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        with open(self.folder / "log.txt", "ab") as log:
            command = [sys.executable, "-m", "nmtkit", *map(str, words)]
            done = subprocess.run(
                command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=log, check=True
            )
        return done.stdout.decode("utf-8")

    def bleu(self, split: str, command: str, *words: object) -> float:
        """Of what a command makes of a split's sources."""
        made = self.folder / f"{'-'.join(map(str, words))}.{command}.{split}".replace("/", "-")
        self.nmtkit(command, *words, f"{split}.src", "-o", made, "-q", "--device", "cpu")
        score = self.nmtkit("score", made, "--ref", f"{split}.tgt", "--metrics", "bleu", "--json")
        return float(json.loads(score)["systems"][0]["scores"][0]["value"])

    def train(self, name: str, updates: int, settings: dict[str, object]) -> Path:
        """Trains a run by a recipe, unless that was done; returns the run's folder."""
        run = self.folder / "runs" / name
        if not (run / "result.json").exists():
            updates = max(2, round(updates * self.scale))
            schedule = {"kind": "linear", "over": "budget", "warmup_share": 0.1}
            common = {
                "lr": 0.001,
                "schedule": schedule,
                "max_updates": updates,
                "validate_every": max(1, updates // 5),
            }
            training = {**common, "threads": 1, "precision": "fp32", **settings.pop("training", {})}  # type: ignore[dict-item]  # values of any type
            data = {"name": name.replace("/", "-"), **settings, "training": training}
            recipe = self.folder / f"{name.replace('/', '-')}.yaml"
            recipe.write_text(yaml.safe_dump(data), encoding="utf-8")
            self.nmtkit("train", recipe.name, "--run", run, "--overwrite", "--device", "cpu")
        return run

    def pretrain(self, objective: str) -> Path:
        """The run of `spans` or of `masked`, which all seeds share; the first has the tokenizer of all."""
        loss = {"best_metric": "loss"}
        both = [f"pairs-{PAIRS}.src", f"pairs-{PAIRS}.tgt", "mono.src", "mono.tgt"]
        common: dict[str, object] = {
            "task": "language-modelling",
            "seed": 1,
            "batch": {"batch_tokens": 4096},
        }
        tokenizer = {
            "kind": "bpe",
            "vocab_size": 2000,
            "sentinels": 100,
            "specials": ["<mask>", "<BT>"],
        }
        if objective == "spans":
            texts: dict[str, object] = {
                "train": {"tgt": both},
                "valid": {"tgt": ["valid.src", "valid.tgt"]},
            }
            training = {**loss, "objectives": {"span_corruption": {"rate": 0.5}}}
            settings: dict[str, object] = {
                "data": texts,
                "tokenizer": tokenizer,
                "model": MODEL,
                "training": training,
            }
        else:
            texts = {"train": {"tgt": both[::2]}, "valid": {"tgt": "valid.src"}}
            begin, model = {"tokenizer": str(self.pretrain("spans"))}, {"kind": "bert", **ENCODER}
            settings = {
                "data": texts,
                "init_from": begin,
                "model": model,
                "training": {**loss, "objectives": {"masked_words": {}}},
            }
        return self.train(objective, PRETRAINING, common | settings)

    def translate(self, way: str, count: int, seed: int) -> float:
        """Trains a model; returns its BLEU on the test set."""
        run = self.one_way(f"{way}-{count}-{seed}", way, count, seed, ("src", "tgt"))
        scores = json.loads((run / "test.json").read_text(encoding="utf-8"))["scores"]
        return float(next(score["value"] for score in scores if score["name"] == "BLEU"))

    def back_translate(self, way: str, count: int) -> Path:
        """The text of the target language with its translations by a reverse model, which all seeds share."""
        before, back = (
            {"back": "nothing", "both": "spans"}[way],
            self.folder / f"back-{way}-{count}",
        )
        reverse = self.one_way(f"reverse-{way}-{count}", before, count, 1, ("tgt", "src"))
        if not (back / "done").exists():
            self.nmtkit(
                "backtranslate", "-m", reverse, "mono.tgt", "-o", back, "-q", "--device", "cpu"
            )
            (back / "done").touch()
        return back

    def one_way(self, name: str, way: str, count: int, seed: int, sides: Sequence[str]) -> Path:
        """A model that translates from the first to the second side."""
        src, tgt = sides

        def pair(stem: str) -> dict[str, object]:
            return {"src": f"{stem}.{src}", "tgt": f"{stem}.{tgt}"}

        spans = str(self.pretrain("spans"))
        begin = {"nothing": {"tokenizer": spans}, "back": {"tokenizer": spans}}
        if way == "masked":
            begin["masked"] = {"encoder": str(self.pretrain("masked"))}
        train: object = pair(f"pairs-{count}")
        if way in ("back", "both"):
            back = self.back_translate(way, count)
            train = [
                {**pair(f"pairs-{count}"), "weight": max(1.0, PAIRS / count / 2)},
                {"src": str(back / "src.txt"), "tgt": str(back / "tgt.txt"), "tag": "<BT>"},
            ]
        updates = UPDATES[count] if way not in ("back", "both") else UPDATES[PAIRS]
        settings: dict[str, object] = {
            "init_from": begin.get(way, spans),
            "model": MODEL,
            "task": "translation",
            "seed": seed,
        }
        data = {"train": train, "valid": pair("valid"), "test": pair("test")}
        settings |= {"evaluation": {"max_sentences": 200}}
        return self.train(
            name, updates, {**settings, "batch": {"batch_tokens": 1024}, "data": data}
        )

    def language_model(self) -> Path:
        """Of all text of the target language that is there, with the vocabulary of all models."""
        texts: dict[str, object] = {
            "train": {"tgt": [f"pairs-{PAIRS}.tgt", "mono.tgt"]},
            "valid": {"tgt": "valid.tgt"},
        }
        settings: dict[str, object] = {
            "task": "language-modelling",
            "init_from": {"tokenizer": str(self.pretrain("spans"))},
            "data": texts,
            "model": {
                "kind": "transformer_lm",
                "hidden_size": 128,
                "heads": 4,
                "layers": 2,
                "dropout": 0.2,
            },
            "batch": {"batch_tokens": 2048},
            "training": {"best_metric": "perplexity"},
        }
        return self.train("lm", UPDATES[PAIRS], settings)

    def beside(self, count: int, seed: int) -> list[float]:
        """BLEU of a model trained on its pairs, with shallow fusion, and chosen by a noisy channel."""
        there = self.folder / f"beside-{count}-{seed}.json"
        if not there.exists():
            there.write_text(json.dumps(self._beside(count, seed)), encoding="utf-8")
        return [float(score) for score in json.loads(there.read_text(encoding="utf-8"))["bleu"]]

    def _beside(self, count: int, seed: int) -> dict[str, object]:
        run, lm = self.folder / "runs" / f"nothing-{count}-{seed}", self.language_model()
        weights = {
            weight: self.bleu("valid", "translate", "-m", run, *self.fused(lm, weight))
            for weight in LM_WEIGHTS
        }
        best = max(weights, key=lambda weight: weights[weight])
        channel = (
            "-m",
            run,
            "--channel",
            self.folder / "runs" / f"reverse-back-{count}",
            "--lm",
            lm,
        )
        tuned = self.folder / f"weights-{count}-{seed}.yaml"
        self.nmtkit(
            "rerank", *channel, "valid.src", "--tune", "valid.tgt", "-o", tuned, "--device", "cpu"
        )
        bleu = [
            self.bleu("test", "translate", "-m", run),
            self.bleu("test", "translate", "-m", run, *self.fused(lm, best)),
            self.bleu("test", "rerank", *channel, "--weights", tuned),
        ]
        return {"bleu": bleu, "lm_weight": best, "channel": tuned.read_text(encoding="utf-8")}

    def fused(self, lm: Path, weight: float) -> tuple[object, ...]:
        """Options of `translate`."""
        return ("--lm", lm, "--search", f"lm_weight={weight}") if weight else ()


@click.command(help=__doc__)
@click.argument("corpus", type=click.Path(path_type=Path, exists=True))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--languages", default="en-de", show_default=True)
@click.option("--pairs", default="1000,3000,10000", show_default=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--ways", default=",".join(WAYS), show_default=True)
@click.option("--jobs", default=2, show_default=True, help="Trainings at a time, one thread each.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draws the first table.")
@click.option("--scale", default=1.0, show_default=True, help="Makes trainings shorter.")
def main(
    corpus: Path,
    folder: Path,
    languages: str,
    pairs: str,
    seeds: int,
    ways: str,
    jobs: int,
    plot: Path | None,
    scale: float,
) -> None:
    experiment = Experiment(folder.resolve(), scale)
    experiment.prepare(corpus, *languages.split("-"))
    counts, chosen = [int(count) for count in pairs.split(",")], ways.split(",")
    with ThreadPoolExecutor(jobs) as pool:
        experiment.pretrain("spans")
        before = [pool.submit(experiment.pretrain, "masked")] if "masked" in chosen else []
        backwards = [(way, count) for count in counts for way in ("back", "both") if way in chosen]
        before += [pool.submit(experiment.back_translate, *which) for which in backwards]
        [one.result() for one in before]
        work = {
            (way, count, seed): pool.submit(experiment.translate, way, count, seed)
            for seed in range(1, seeds + 1)
            for count in counts
            for way in chosen
        }
        found = {key: one.result() for key, one in work.items()}
        show(chosen, found)
        if plot is not None:
            draw(found, plot)
        if {"nothing", "back"} <= {*chosen}:
            experiment.language_model()
            jobs_of = {
                key[1:]: pool.submit(experiment.beside, *key[1:])
                for key in work
                if key[0] == "nothing"
            }
            ways_of = ("alone", "shallow fusion", "noisy channel")
            show(
                ways_of,
                {
                    (way, *key): one.result()[n]
                    for key, one in jobs_of.items()
                    for n, way in enumerate(ways_of)
                },
            )


def show(ways: Sequence[str], found: dict[tuple[str, int, int], float]) -> None:
    """A table of BLEU, by way, number of pairs and seed: mean and standard deviation over seeds."""
    click.echo("| pairs | " + " | ".join(ways) + " |\n|" + "---:|" * (len(ways) + 1))
    for count in dict.fromkeys(count for _, count, _ in found):
        scores = [
            [value for key, value in found.items() if key[:2] == (way, count)] for way in ways
        ]
        cells = [
            f"{mean(several):.1f} ± {stdev(several) if several[1:] else 0.0:.1f}"
            for several in scores
        ]
        click.echo(f"| {count:,} | " + " | ".join(cells) + " |")


def draw(found: dict[tuple[str, int, int], float], path: Path) -> None:
    """BLEU by number of pairs, a curve for each way; bars reach one standard deviation to either side."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    counts = [*dict.fromkeys(count for _, count, _ in found)]
    for number, way in enumerate(dict.fromkeys(way for way, _, _ in found)):
        scores = [
            [value for key, value in found.items() if key[:2] == (way, count)] for count in counts
        ]
        # side by side, so that bars can be told apart
        places = [count * 1.02 ** (number - 2) for count in counts]
        spread = [stdev(several) if several[1:] else 0.0 for several in scores]
        axes.errorbar(
            places, [*map(mean, scores)], spread, marker="o", capsize=3, label=LABELS[way]
        )
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{count:,}" for count in counts], minor=False)
    axes.set_xticks([], minor=True)
    axes.set(xlabel="pairs to train on", ylabel="BLEU on the test set", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
