"""The kernels of `kernels.py` as Triton programs. Imported on first use only: Triton takes long to load.

Every launch is a fixed grid for fixed shapes and reads nothing back, so it can be captured in a CUDA graph once the
same launch was made outside of it: the first one compiles. All sums are in float32, whatever the type of the inputs.

Tiles are `(rows, columns)` with sizes that are powers of two, as Triton wants them. Places outside a tensor are loaded
as numbers that change nothing.

Where `TRITON_INTERPRET=1` is set before this module is imported, numpy computes the same programs on a CPU. It keeps
bfloat16 as bits, so that each tile is turned into float32 before anything else is done with it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096
"""Numbers of a tile of keys, which stay in registers while all queries of the sentence pass."""
LONGEST = {"launch_energies": TILE, "launch_softmax": 1 << 15, "launch_maxima": TILE}
"""Numbers of the longest row, or block, that a program holds at once; longer ones would not fit into registers."""
BLOCKS = 128
"""Blocks of columns of which a program seeks the maxima at a time."""

FUSED = True
"""Whether a product and a sum are rounded once, as one; said, since the default differs between versions."""


@triton.jit
def _energies(
    queries,
    keys,
    energy,
    coverage,
    coverage_weight,
    result,
    n_queries,
    length,
    size,
    query_sentence,
    query_row,
    key_sentence,
    key_row,
    coverage_sentence,
    coverage_row,
    COVERED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    sentence = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    real, inside = rows < length, columns < size
    places = keys + sentence * key_sentence + rows[:, None] * key_row + columns[None, :]
    tile = tl.load(places, mask=real[:, None] & inside[None, :], other=0.0).to(tl.float32)
    v = tl.load(energy + columns, mask=inside, other=0.0).to(tl.float32)
    if COVERED:
        w = 2.0 * tl.load(coverage_weight + columns, mask=inside, other=0.0).to(tl.float32)
    for number in range(n_queries):
        start = queries + sentence * query_sentence + number * query_row
        doubled = tile + 2.0 * tl.load(start + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
        if COVERED:
            history = coverage + sentence * coverage_sentence + number * coverage_row + rows
            doubled += tl.load(history, mask=real, other=0.0).to(tl.float32)[:, None] * w[None, :]
        tanh = 2.0 / (1.0 + tl.exp(-doubled)) - 1.0
        place = result + (sentence * n_queries + number) * length + rows
        tl.store(place, tl.sum(v[None, :] * tanh, axis=1), mask=real)


def launch_energies(
    queries: Tensor, keys: Tensor, energy: Tensor, coverage: Tensor | None, coverage_weight: Tensor | None
) -> Tensor:
    """Energies `(B,Q,S)`; see `kernels.additive_energies`. Keys are read once for all queries of a sentence."""
    queries, keys = _dense_rows(queries), _dense_rows(keys)
    coverage = None if coverage is None else _dense_rows(coverage)
    (sentences, n_queries, size), length = queries.shape, keys.shape[1]
    columns = triton.next_power_of_2(size)
    rows = min(32, max(1, TILE // columns), triton.next_power_of_2(length))
    result = torch.empty(sentences, n_queries, length, device=keys.device)
    with torch.cuda.device(keys.get_device()):
        _energies[(sentences, triton.cdiv(length, rows))](
            queries,
            keys,
            energy.contiguous(),
            result if coverage is None else coverage,  # is not read
            energy if coverage_weight is None else coverage_weight.contiguous(),
            result,
            n_queries,
            length,
            size,
            *queries.stride()[:2],
            *keys.stride()[:2],
            *(0, 0) if coverage is None else coverage.stride()[:2],
            COVERED=coverage is not None,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=8 if columns == TILE else 4,
            enable_fp_fusion=FUSED,
        )
    return result


@triton.jit
def _softmax(
    energies,
    mask,
    result,
    n_rows,
    length,
    energy_sentence,
    energy_row,
    mask_sentence,
    mask_row,
    mask_column,
    LOWEST: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    sentence, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, COLUMNS)
    inside = columns < length
    places = mask + sentence * mask_sentence + row * mask_row + columns * mask_column
    real = tl.load(places, mask=inside, other=0) != 0
    energy = tl.load(energies + sentence * energy_sentence + row * energy_row + columns, mask=real, other=LOWEST)
    energy = energy.to(tl.float32)
    powers = tl.where(real, tl.exp(energy - tl.max(energy, axis=0)), 0.0)
    total = tl.sum(powers, axis=0)
    weights = tl.where(real, powers / tl.where(total == 0.0, 1.0, total), 0.0)
    tl.store(result + (sentence * n_rows + row) * length + columns, weights, mask=inside)


def launch_softmax(energies: Tensor, mask: Tensor) -> Tensor:
    """Weights `(B,Q,S)` in float32; see `kernels.masked_softmax`."""
    energies = _dense_rows(energies)
    bytes_of_mask = mask.view(torch.uint8).expand_as(energies)
    sentences, n_rows, length = energies.shape
    columns = triton.next_power_of_2(length)
    result = torch.empty(energies.shape, device=energies.device)
    with torch.cuda.device(energies.get_device()):
        _softmax[(sentences, n_rows)](
            energies,
            bytes_of_mask,
            result,
            n_rows,
            length,
            *energies.stride()[:2],
            *bytes_of_mask.stride(),
            LOWEST=torch.finfo(energies.dtype).min,
            COLUMNS=columns,
            num_warps=min(16, max(4, columns // 256)),
            enable_fp_fusion=FUSED,
        )
    return result


@triton.jit
def _maxima(
    logits,
    log_sum_exp,
    tops,
    n_columns,
    n_blocks,
    logits_row,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCKS)
    within = tl.arange(0, BLOCK)
    # Each lane keeps a sum of its own, so that lanes meet only once, after the last column. What a lane's sum is
    # relative to is finite: a difference of infinities is not a number.
    highest = tl.full((BLOCKS,), -LARGEST, tl.float32)
    total = tl.zeros((BLOCKS,), tl.float32)
    for first in range(0, n_blocks, BLOCKS):
        blocks = first + lanes
        columns = blocks[:, None] * BLOCK + within[None, :]
        places = logits + row * logits_row + columns
        tile = tl.load(places, mask=columns < n_columns, other=float("-inf")).to(tl.float32)
        top = tl.max(tile, axis=1)
        tl.store(tops + row * n_blocks + blocks, top, mask=blocks < n_blocks)
        higher = tl.minimum(tl.maximum(highest, top), LARGEST)
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(tile - higher[:, None]), axis=1)
        highest = higher
    peak = tl.max(highest, axis=0)
    tl.store(log_sum_exp + row, peak + tl.log(tl.sum(total * tl.exp(highest - peak), axis=0)))


def launch_maxima(logits: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Log-sum-exp `(N,)` and maxima; see `kernels.block_maxima`. Logits are read once."""
    logits = _dense_rows(logits)
    n_rows, n_columns = logits.shape
    n_blocks = triton.cdiv(n_columns, block)
    log_sum_exp = torch.empty(n_rows, device=logits.device)
    tops = torch.empty(n_rows, n_blocks, dtype=logits.dtype, device=logits.device)
    with torch.cuda.device(logits.get_device()):
        _maxima[(n_rows,)](
            logits,
            log_sum_exp,
            tops,
            n_columns,
            n_blocks,
            logits.stride(0),
            LARGEST=torch.finfo(torch.float32).max,
            BLOCK=block,
            BLOCKS=min(BLOCKS, triton.next_power_of_2(n_blocks)),
            num_warps=8,
            enable_fp_fusion=FUSED,
        )
    return log_sum_exp, tops


def _dense_rows(tensor: Tensor) -> Tensor:
    """The tensor, copied if the numbers of a row do not stand side by side."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
