"""The command: `make bench`, or `python -m tests.bench --help`; `decode` and `train` are commands of `peers`."""

import argparse
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from nmtkit import console
from nmtkit.core import device
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import write_json
from nmtkit.data.store import Store
from nmtkit.experiment.run import Run
from nmtkit.runs.folder import RunFolder
from tests.bench import machine

from . import captions, peers, preprocessing, summarization, training

PARTS = ["transformer", "rnnsearch", "summarization"]
ON_REQUEST = ["preprocess"]
"""Parts that are not among those of a run without --only: they need minutes, gigabytes, or both."""

TOY_PAIRS = {"train": 100, "valid": 10, "test": 10}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="How fast nmtkit trains beside networks in bare torch, and trains and decodes the "
        "pointer-generator. Every engine gets the same work in the same process, in turns. Wants a quiet machine. "
        "`python -m tests.bench decode` measures decoding beside other engines, `train` the training of any recipe.",
    )
    parser.add_argument(
        "--device", default="cpu", metavar="NAME", help="cpu, cuda, cuda:1, ... or auto (default: %(default)s)"
    )
    parser.add_argument("--run", type=Path, help="a run's folder: its data, and its weights if it has been trained")
    parser.add_argument("--data", type=Path, help="the data/ folder of a preprocessed run to train on")
    parser.add_argument(
        "--only",
        choices=[*PARTS, *ON_REQUEST],
        help="one part instead of the first three; the others run by --only alone",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="of torch, for every engine, and workers of preprocess (default: %(default)s)",
    )
    parser.add_argument(
        "--shape",
        choices=training.SHAPES,
        default="small",
        help="of the Transformer: nmtkit's default, or the paper's base; `toy` makes networks and text so small that "
        "the figures come in seconds and mean nothing (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-tokens",
        type=int,
        default=training.BATCH_TOKENS,
        help="padded tokens a side of a batch in training on captions; a GPU wants 25000 (default: %(default)s)",
    )
    parser.add_argument(
        "--arithmetic",
        choices=training.ARITHMETICS,
        nargs="+",
        default=list(training.ARITHMETICS),
        help="of the Transformer; a processor without bfloat16 takes very long for bf16 (default: all)",
    )
    parser.add_argument("--blocks", type=int, default=5, help="measured blocks of training (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=6, help="updates in a block (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often the pointer-generator decodes (default: %(default)s)"
    )
    parser.add_argument("--articles", type=int, default=128, help="to summarize in batches (default: %(default)s)")
    parser.add_argument("--alone", type=int, default=32, help="of them also one at a time (default: %(default)s)")
    parser.add_argument("--together", type=int, default=32, help="articles in a batch (default: %(default)s)")
    parser.add_argument(
        "--lines",
        type=lambda text: [int(number) for number in text.split(",")],
        default=[10_000, 1_000_000],
        metavar="N,N,...",
        help="pairs of each corpus that is checked and preprocessed, 0.7 KB of disk for each (default: 10000,1000000)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")
    given = parser.parse_args()
    for name in (
        "threads",
        "blocks",
        "updates",
        "rounds",
        "articles",
        "alone",
        "together",
        "batch_tokens",
    ):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if given.alone > given.articles:
        parser.error("--alone cannot be more than --articles")
    return given


def bench(given: argparse.Namespace, scratch: Path) -> dict[str, object]:
    place = device.choose(given.device)
    device.prepare(place, threads=given.threads)
    parts = [given.only] if given.only else PARTS
    facts = machine.facts(given.threads, place)
    console.table("machine", ["what", "value"], list(facts.items()))
    watch = machine.Watch(partial(console.say, stderr=True))
    watch.look("before")
    result: dict[str, object] = {"machine": facts, "settings": {key: str(value) for key, value in vars(given).items()}}
    if "preprocess" in parts:
        sizes = [preprocessing.measure(lines, scratch / str(lines), given.threads) for lines in given.lines]
        watch.look("after preprocessing")
        preprocessing.show(sizes, given.threads)
        result["preprocess"] = [asdict(row) for row in sizes]
    if set(parts) & {"transformer", "rnnsearch"}:
        result |= on_captions(given, scratch, parts, watch, place)
    if "summarization" in parts:
        config = summarization.TOY if given.shape == "toy" else summarization.PAPER
        rows = summarization.training(given.updates, given.rounds, given.threads, place, config)
        watch.look("after training the pointer-generator")
        sizes = (given.articles, given.alone, given.together, given.rounds, given.threads)
        rows += summarization.decoding(*sizes, place, config=config)
        watch.look("after decoding with it")
        summarization.show(rows)
        result["summarization"] = summarization.as_dicts(rows)
    result["cpu pressure"] = watch.seen
    return result


def on_captions(
    given: argparse.Namespace, scratch: Path, parts: list[str], watch: machine.Watch, place: torch.device
) -> dict[str, object]:
    """The parts that work on a run's data, or on made-up captions."""
    if given.run is not None:
        run = Run.open(str(given.run)).folder
    else:
        toy = given.shape == "toy"
        run = RunFolder(captions.make(scratch, 100, TOY_PAIRS) if toy else captions.make(scratch))
        console.say("text: made up, with the lengths of image captions (see tests/bench/captions.py)")
    result: dict[str, object] = {}
    speeds: list[training.Speed] = []
    if "transformer" in parts or "rnnsearch" in parts:
        store = Store.open(given.data or run.data, "train")
        training.check_store(store)
        console.say(f"training on {len(store):,} pairs of {store.folder}, vocabulary {store.tgt_size:,}")
        how = training.Work(store, scratch, place, given.threads, given.blocks, given.updates, given.batch_tokens)
        if "transformer" in parts:
            arithmetics = [training.ARITHMETICS[name] for name in given.arithmetic]
            speeds += training.transformer(how, training.SHAPES[given.shape], arithmetics)
            watch.look("after the transformer")
        if "rnnsearch" in parts:
            speeds += training.rnnsearch(how, training.TOY_RNNSEARCH if given.shape == "toy" else training.RNNSEARCH)
            watch.look("after rnnsearch")
        training.show(speeds, how)
        result["training"] = training.as_dicts(speeds)
    return result


def main() -> int:
    if sys.argv[1:2] in (["decode"], ["train"]):
        try:
            peers.command(prog_name="python -m tests.bench")
        except NmtkitError as fault:
            console.say(f"error: {fault}", stderr=True)
            return 2
    given = options()
    begun = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="nmtkit-bench-") as scratch:
            result = bench(given, Path(scratch))
        if given.json is not None:
            write_json(given.json, result)
            console.say(f"wrote {given.json}")
    except NmtkitError as fault:
        console.say(f"error: {fault}", stderr=True)
        return 2
    console.say(f"{time.monotonic() - begun:.0f} seconds in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
