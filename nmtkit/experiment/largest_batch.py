"""Finds by trial the largest batch whose update fits into memory."""

import math
import resource
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from nmtkit.core import device as devices
from nmtkit.core.errors import TrainingError
from nmtkit.core.processes import free_memory
from nmtkit.data.batches.batch_stream import widths
from nmtkit.data.batches.store import Store
from nmtkit.experiment.batches import longest_examples
from nmtkit.experiment.workloads import CyclingStream
from nmtkit.runs.run import Run, build_model
from nmtkit.training import randomness
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.parallel import processes
from nmtkit.training.trainer import Trainer

SHARE = {"cuda": 0.85, "cpu": 0.5}
"""Fraction of free memory that an update may use; lower on CPUs because of memory fragmentation."""
LEAST_TOKENS = 512
"""Number of padded tokens in the smallest trial batch."""
_MOST_TOKENS = 1 << 16
UPDATES_AN_EPOCH = 32
"""Minimum number of updates per epoch."""


def largest_batch(needed: Callable[[int], float], limit: float, least: int, most: int) -> int:
    """Returns how many padded tokens fit into `limit` bytes; 0 if `least` tokens do not fit.

    Any other result is at least `least`, and larger than `most` only if `least` is. `needed` tries a number
    of tokens and returns the bytes used by the process, or infinity if they do not fit. The number is
    doubled as long as an extrapolation from the last two trials fits; finally, one and a half times
    the largest number that fits is tried.
    """
    found, used, as_many_more, tokens = 0, 0.0, 0.0, least
    while (
        tokens <= max(least, most)
        and used + as_many_more <= limit
        and (now := needed(tokens)) <= limit
    ):
        as_many_more = (2 if found else 1) * (now - used)
        found, used, tokens = tokens, now, 2 * tokens
    middle = found * 3 // 2
    fits = found and middle <= most and used + as_many_more / 2 <= limit and needed(middle) <= limit
    return middle if fits else found


def find_batch_tokens(run: Run, device: torch.device) -> tuple[int, str]:
    """Returns the value of `batch.batch_tokens: auto` for a preprocessed run, and a note about it.

    A trial is a forward and backward pass of a new model on the longest examples. The process with
    the least memory decides.
    """
    stage, tokenizers, on_cuda = run.stages()[0], run.load_tokenizers(), device.type == "cuda"
    recipe, (store, text) = (
        stage.recipe,
        [Store.open(place, "train") for place in (stage.data, run.folder.data)],
    )
    with randomness.fork_rng(device):
        model = build_model(recipe, tokenizers)
        config = recipe.training.changed({"compile": False, "shard": False})
        of_update = Trainer(
            model, CyclingStream(()), config, CheckpointManager(Path()), device
        ).gradients
        states = (3 if config.ema_decay else 2) * sum(one.nbytes for one in of_update.parameters)

        def needed(tokens: int) -> float:
            batch = longest_examples(recipe, store, tokenizers, tokens)
            try:
                of_update.backward(of_update.accumulator(defaultdict(lambda: 1)), batch)
            except torch.OutOfMemoryError:
                return math.inf
            finally:
                of_update.clear()
            return states + (torch.cuda.max_memory_reserved(device) if on_cuda else _peak_rss())

        if on_cuda:
            torch.cuda.reset_peak_memory_stats(device)
            limit = SHARE["cuda"] * (
                torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
            )
        else:
            limit = _peak_rss() + SHARE["cpu"] * free_memory() / processes.size()
        epoch = int(np.maximum(*widths(text, recipe.data.truncation, np.arange(len(text)))).sum())
        found = largest_batch(
            needed, limit, LEAST_TOKENS, min(_MOST_TOKENS, epoch // UPDATES_AN_EPOCH)
        )
    devices.trim_malloc()
    found = -int(processes.max_over_ranks([-found])[0])
    if not found:
        raise TrainingError(
            f"`batch.batch_tokens: auto` fails, because even {LEAST_TOKENS} padded tokens do not "
            f"fit into {limit / 2**30:.1f} GiB; train a smaller model, or set a lower value"
        )
    return found, f"batch.batch_tokens: {found:,} padded tokens fit into {limit / 2**30:.1f} GiB"


def _peak_rss() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
