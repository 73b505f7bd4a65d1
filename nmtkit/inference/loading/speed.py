"""How a search uses this machine: precision, batches, processes and threads, by a rule. Nothing is measured.

    CPU   fp32, batches of 4,096 padded source tokens
          from 256 lines on that are there at once: a process for each core, which searches by one thread
          else, from 16 lines on: a thread for each core, which searches by itself
          fewer lines: one search by one thread
    CUDA  fp16, or bf16 where a number of the model is too large for fp16; batches of 16,384 padded source tokens

A search makes many small products. Threads that share one of them mostly wait for each other, so on a CPU every search
has one thread, unless the user asks for more threads and there are too few lines for several searches.
`Translator.search` and `nmtkit.core.device.threads_for` carry the rule out; a user changes it by --precision,
--batch-tokens, --workers and --threads.
"""

from copy import deepcopy
from dataclasses import dataclass

import torch

from nmtkit.core.errors import DataError
from nmtkit.data.batches.batch import collate
from nmtkit.data.tokenizers.vocabulary import UNK
from nmtkit.layers.linear import Precision, cast_to_16_bits
from nmtkit.models.base import Model, as_seq2seq

BATCH_TOKENS = {"cpu": 4096, "cuda": 16384}
"""Padded source tokens in a batch. Every step of a search has its costs, which many sentences share; the caches of a
CPU overflow with too many."""
MIN_LINES_FOR_WORKERS = 256
"""Lines that must be there at once for processes to be worth their start."""
FP16_PROBE_TOKENS = 64
"""Words of the source that shows whether a model's numbers fit into fp16."""


@dataclass(frozen=True)
class SearchSpeedConfig:
    """Speed settings of a search."""

    precision: str
    """Precision of matrix products; the name of a type of another library where that searches."""
    batch_tokens: int
    """Padded source tokens in a batch."""
    engine: str = ""
    """The other library that searches, if one does."""

    def __str__(self) -> str:
        return f"{self.engine} {self.precision}".lstrip() + f", batches of {self.batch_tokens}"


def default_speed_config(device: torch.device, precision: Precision = "fp32") -> SearchSpeedConfig:
    """Returns the speed settings of a device."""
    return SearchSpeedConfig(precision, BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"]))


def default_precision(model: Model) -> Precision:
    """Returns the precision for a model on its device."""
    device = next(model.parameters()).device
    if device.type != "cuda":
        return "fp32"
    return "fp16" if fits_fp16(model) else "bf16"


@torch.no_grad()
def fits_fp16(model: Model, tokens: int = FP16_PROBE_TOKENS) -> bool:
    """Returns whether all numbers that the model computes from a text in fp16 are finite.

    The text has tokens from all over the vocabulary: `tokens` of them, or half as many, and so on, if the model knows
    fewer positions. False for a model that reads other inputs than text, for which this cannot be tried.
    """
    if as_seq2seq(model) is not None and "src" not in model.sizes:
        return False
    half = deepcopy(model)
    cast_to_16_bits(half, torch.float16)
    ids = torch.linspace(UNK, min(model.sizes.values()) - 1, tokens).long().tolist()
    finite: list[bool] = []

    def look(part: torch.Tensor) -> torch.Tensor:
        finite.append(bool(part.isfinite().all()))
        return part

    batch = collate([ids], [ids]).to(next(model.parameters()).device)
    try:
        parts = half.read(batch)
    except DataError:  # the text is too long for the model
        return not tokens or fits_fp16(model, tokens // 2)
    for part in parts:
        if part is not None:
            part.mapped(look)
    return all(finite)
