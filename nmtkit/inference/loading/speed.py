"""How decoding uses the machine: precision, batch size, processes and threads, chosen by fixed rules.

    CPU   fp32, batches of 4,096 padded source tokens
          256 lines or more available at once: a process for each core, which decodes with one thread
          16 lines or more: a thread for each core; each thread runs its own search
          fewer lines: one search with one thread
    CUDA  fp16, or bf16 if the model's values overflow fp16; batches of 16,384 padded source tokens

A search computes many small matrix products. Threads that share a product mostly wait for each other, so on a CPU
every search has one thread, unless the user asks for more threads and there are too few lines for several searches.
`Translator.search` and `nmtkit.core.device.threads_for` implement the rules; the options --precision, --batch-tokens,
--workers and --threads override them.
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
"""Number of padded source tokens in a batch. Large batches spread the overhead of a step over many sentences, but
batches that are too large overflow the CPU's caches."""
MIN_LINES_FOR_WORKERS = 256
"""Minimum number of lines available at once for worker processes to pay off."""
FP16_PROBE_TOKENS = 64
"""Number of tokens in the text with which `fits_fp16` tests a model."""


@dataclass(frozen=True)
class SearchSpeedConfig:
    """Speed settings of a search."""

    precision: str
    """Precision of matrix products; an external engine may have its own names for precisions."""
    batch_tokens: int
    """Number of padded source tokens in a batch."""
    engine: str = ""
    """Name of the external engine that decodes; empty if nmtkit decodes."""

    def __str__(self) -> str:
        precision = f"{self.engine} {self.precision}" if self.engine else self.precision
        return f"{precision}, batches of {self.batch_tokens}"


def default_speed_config(device: torch.device, precision: Precision = "fp32") -> SearchSpeedConfig:
    """Returns the default speed settings for a device."""
    return SearchSpeedConfig(precision, BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"]))


def default_precision(model: Model) -> Precision:
    """Returns the default search precision for a model on its current device."""
    device = next(model.parameters()).device
    if device.type != "cuda":
        return "fp32"
    return "fp16" if fits_fp16(model) else "bf16"


@torch.no_grad()
def fits_fp16(model: Model, tokens: int = FP16_PROBE_TOKENS) -> bool:
    """Returns whether all outputs that the model computes in fp16 for a test text are finite.

    The text has `tokens` tokens, spread evenly over the vocabulary; their number is halved until the model
    accepts the length. Returns False for a model whose input is not text, which cannot be tested in this way.
    """
    if as_seq2seq(model) is not None and "src" not in model.sizes:
        return False
    half = deepcopy(model)
    cast_to_16_bits(half, torch.float16)
    last_id = min(model.sizes.values()) - 1
    ids = torch.linspace(UNK, last_id, tokens).long().tolist()
    is_finite: list[bool] = []

    def check(tensor: torch.Tensor) -> torch.Tensor:
        is_finite.append(bool(tensor.isfinite().all()))
        return tensor

    batch = collate([ids], [ids]).to(next(model.parameters()).device)
    try:
        output, memory = half.read(batch)
    except DataError:  # the text is too long for the model
        return not tokens or fits_fp16(model, tokens // 2)
    output.mapped(check)
    if memory is not None:
        memory.mapped(check)
    return all(is_finite)
