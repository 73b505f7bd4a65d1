"""The device of a training, and what its recipe leaves open (`auto`), as this machine does it quickest."""

from itertools import islice

import numpy as np
import torch

from nmtkit import device as devices
from nmtkit.data.batch import Batch, BatchStream
from nmtkit.data.store import Store
from nmtkit.experiment.saved import SavedRun, build_model, sizes_of
from nmtkit.experiment.tuning.found import Found
from nmtkit.experiment.tuning.training import TrainingWay, Trial, quickest_training, training_work
from nmtkit.recipe import Recipe
from nmtkit.training import distributed, randomness


def choose_device(name: str, recipe: Recipe) -> torch.device:
    """The device of that name, made ready for the recipe; joins the other processes under torchrun."""
    device = devices.choose(name)
    if device.type == "cuda" and any(one.training.deterministic for one in recipe.by_stage().values()):
        randomness.fix_workspace()
    device = distributed.join(device)
    prepare_device(device, recipe)
    return device


def prepare_device(device: torch.device, recipe: Recipe) -> None:
    """Sets the process up as the recipe says."""
    config = recipe.training
    threads = devices.cpu_threads() if config.threads == "auto" else config.threads
    devices.prepare(device, config.matmul_precision, threads)


def find_training_way(run: SavedRun, device: torch.device, again: bool = False) -> Found[TrainingWay]:
    """How this machine trains the model of a run quickest, as it was found once, else by measuring it now.

    The run is preprocessed; where its recipe has stages, the first one decides for all. The process is left set up for
    one of the ways. With `again` it is measured even if something was found before.

    Raises:
        NmtkitError: the preprocessed data are missing or damaged.
    """
    first = next(iter(run.recipe.by_stage().values()))
    tokenizers = run.load_tokenizers()
    store = Store.open(run.folder.data, "train")

    def first_batches(count: int) -> list[Batch]:
        stream = BatchStream(
            store,
            first.batch,
            first.seed,
            tokenizers=tokenizers,
            rank=distributed.rank(),
            world=distributed.size(),
            limits=first.data.cuts,
        )
        return list(islice(stream, count))

    tokens = int(np.maximum(store.lengths("src"), store.lengths("tgt")).sum()) + len(store)
    a_pass = tokens / first.batch.batch_tokens / first.training.accumulate / distributed.size()
    trial = Trial(
        build=lambda: build_model(first, tokenizers),
        first_batches=first_batches,
        config=first.training,
        device=device,
        work=training_work(first, sizes_of(tokenizers), device),
        updates_an_epoch=a_pass,
    )
    return quickest_training(trial, again)
