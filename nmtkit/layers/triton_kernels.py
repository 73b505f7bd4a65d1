"""Triton programs that implement the functions of `kernels.py`.

This module is imported only when it is first needed, because Triton takes a long time to load.

For given shapes, a launch always has the same grid, and reads no result back to the CPU. It can therefore be captured
in a CUDA graph, after one launch outside the graph, which compiles the program. All sums are computed in float32,
whatever the type of the inputs is.

A tile is the part of a tensor that a program computes at once. Its sizes are powers of two, as Triton requires.
Elements of a tile that are outside the tensor are loaded as values that do not change the result.

If `TRITON_INTERPRET=1` is set before this module is imported, the same programs run in NumPy on a CPU. NumPy represents
bfloat16 as raw bits, so every tile is first converted to float32.

Arguments of the programs: a tensor is passed as a pointer to its first element, and `keys_row` is the distance in
memory between two rows of keys (the stride). Arguments in capitals are constants; Triton compiles a separate program
for each combination of their values.

Notation: B sentences, Q queries per sentence, S source length, A attention size, N hypotheses, V vocabulary size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096
"""Number of elements in a tile of keys, which stays in registers while all queries of the sentence use it."""
LONGEST = {"launch_energies": TILE, "launch_softmax": 1 << 15, "launch_maxima": TILE}
"""Maximum length of a row or block that each program can process; a longer one would not fit into the registers."""
BLOCKS = 128
"""Number of column blocks whose maxima a program computes at a time."""

FUSED = True
"""Whether a multiplication and an addition are fused into one operation, which rounds only once. Always passed
explicitly, since the default depends on the version of Triton."""


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
    queries_sentence,
    queries_row,
    keys_sentence,
    keys_row,
    coverage_sentence,
    coverage_row,
    COVERED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    # A program computes the energies of ROWS source positions of a sentence for all queries of the sentence.
    sentence = tl.program_id(0).to(tl.int64)  # int64: an offset may exceed 2^31
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # (ROWS,)
    columns = tl.arange(0, COLUMNS)  # (COLUMNS,)
    is_row = rows < length
    is_column = columns < size
    key_places = keys + sentence * keys_sentence + rows[:, None] * keys_row + columns[None, :]
    doubled_keys = tl.load(key_places, mask=is_row[:, None] & is_column[None, :], other=0.0).to(
        tl.float32
    )  # (ROWS, COLUMNS)
    v = tl.load(energy + columns, mask=is_column, other=0.0).to(tl.float32)  # (COLUMNS,)
    if COVERED:
        doubled_weight = 2.0 * tl.load(coverage_weight + columns, mask=is_column, other=0.0).to(
            tl.float32
        )  # (COLUMNS,)
    for number in range(n_queries):
        query_places = queries + sentence * queries_sentence + number * queries_row + columns
        doubled = (
            doubled_keys
            + 2.0 * tl.load(query_places, mask=is_column, other=0.0).to(tl.float32)[None, :]
        )  # (ROWS, COLUMNS)
        if COVERED:
            coverage_places = coverage + sentence * coverage_sentence + number * coverage_row + rows
            covered = tl.load(coverage_places, mask=is_row, other=0.0).to(tl.float32)  # (ROWS,)
            doubled += covered[:, None] * doubled_weight[None, :]
        tanh = 2.0 / (1.0 + tl.exp(-doubled)) - 1.0  # (ROWS, COLUMNS), tanh of half of `doubled`
        result_places = result + (sentence * n_queries + number) * length + rows
        tl.store(result_places, tl.sum(v[None, :] * tanh, axis=1), mask=is_row)


def launch_energies(
    queries: Tensor,
    keys: Tensor,
    energy: Tensor,
    coverage: Tensor | None,
    coverage_weight: Tensor | None,
) -> Tensor:
    """Returns energies `(B, Q, S)`; see `kernels.additive_energies`.

    Doubled keys are read from memory only once, for all queries of the sentence.
    """
    queries = _dense_rows(queries)  # (B, Q, A)
    keys = _dense_rows(keys)  # (B, S, A)
    sentences, n_queries, size = queries.shape
    length = keys.shape[1]
    columns = triton.next_power_of_2(size)
    rows = min(32, max(1, TILE // columns), triton.next_power_of_2(length))
    result = torch.empty(sentences, n_queries, length, device=keys.device)  # (B, Q, S)
    is_covered = coverage is not None
    if coverage is None:
        coverage = result  # placeholder; never read
        coverage_strides: tuple[int, ...] = (0, 0)
    else:
        coverage = _dense_rows(coverage)  # (B, Q, S)
        coverage_strides = coverage.stride()[:2]
    if coverage_weight is None:
        coverage_weight = energy  # placeholder; never read
    with torch.cuda.device(keys.get_device()):
        _energies[(sentences, triton.cdiv(length, rows))](
            queries,
            keys,
            energy.contiguous(),
            coverage,
            coverage_weight.contiguous(),
            result,
            n_queries,
            length,
            size,
            *queries.stride()[:2],
            *keys.stride()[:2],
            *coverage_strides,
            COVERED=is_covered,
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
    energies_sentence,
    energies_row,
    mask_sentence,
    mask_row,
    mask_column,
    LOWEST: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    # A program computes one row, which contains the weights of one query.
    sentence = tl.program_id(0).to(tl.int64)  # int64: an offset may exceed 2^31
    row = tl.program_id(1)
    columns = tl.arange(0, COLUMNS)  # (COLUMNS,)
    is_column = columns < length
    mask_places = mask + sentence * mask_sentence + row * mask_row + columns * mask_column
    is_real = tl.load(mask_places, mask=is_column, other=0) != 0  # (COLUMNS,)
    energy_places = energies + sentence * energies_sentence + row * energies_row + columns
    energy = tl.load(energy_places, mask=is_real, other=LOWEST).to(tl.float32)  # (COLUMNS,)
    powers = tl.where(is_real, tl.exp(energy - tl.max(energy, axis=0)), 0.0)  # (COLUMNS,)
    total = tl.sum(powers, axis=0)
    divisor = tl.where(total == 0.0, 1.0, total)  # a row without a real position gets zeros
    weights = tl.where(is_real, powers / divisor, 0.0)  # (COLUMNS,)
    tl.store(result + (sentence * n_rows + row) * length + columns, weights, mask=is_column)


def launch_softmax(energies: Tensor, mask: Tensor) -> Tensor:
    """Returns weights `(B, Q, S)` in float32; see `kernels.masked_softmax`."""
    energies = _dense_rows(energies)  # (B, Q, S)
    byte_mask = mask.view(torch.uint8).expand_as(
        energies
    )  # (B, Q, S), a view: its strides may be zero
    sentences, n_rows, length = energies.shape
    columns = triton.next_power_of_2(length)
    result = torch.empty(energies.shape, device=energies.device)  # (B, Q, S)
    with torch.cuda.device(energies.get_device()):
        _softmax[(sentences, n_rows)](
            energies,
            byte_mask,
            result,
            n_rows,
            length,
            *energies.stride()[:2],
            *byte_mask.stride(),
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
    # A program reads one row, in steps of BLOCKS blocks of columns. In each step, each of the BLOCKS lanes reads one
    # block.
    row = tl.program_id(0).to(tl.int64)  # int64: an offset may exceed 2^31
    lanes = tl.arange(0, BLOCKS)  # (BLOCKS,)
    within = tl.arange(0, BLOCK)  # (BLOCK,)
    # Each lane has its own running sum of exp(logit - highest), so that the lanes are combined only once, after the
    # last column. `highest` is kept finite, because the difference of two infinities would be NaN.
    highest = tl.full((BLOCKS,), -LARGEST, tl.float32)  # (BLOCKS,)
    total = tl.zeros((BLOCKS,), tl.float32)  # (BLOCKS,)
    for first in range(0, n_blocks, BLOCKS):
        blocks = first + lanes  # (BLOCKS,)
        columns = blocks[:, None] * BLOCK + within[None, :]  # (BLOCKS, BLOCK)
        places = logits + row * logits_row + columns
        tile = tl.load(places, mask=columns < n_columns, other=float("-inf")).to(
            tl.float32
        )  # (BLOCKS, BLOCK)
        top = tl.max(tile, axis=1)  # (BLOCKS,)
        tl.store(tops + row * n_blocks + blocks, top, mask=blocks < n_blocks)
        higher = tl.minimum(tl.maximum(highest, top), LARGEST)  # (BLOCKS,)
        # Rescale the sum so far to the lane's new highest logit.
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(tile - higher[:, None]), axis=1)
        highest = higher
    peak = tl.max(highest, axis=0)
    tl.store(log_sum_exp + row, peak + tl.log(tl.sum(total * tl.exp(highest - peak), axis=0)))


def launch_maxima(logits: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Returns log-sum-exps `(N,)` and maxima `(N, blocks)`; see `kernels.block_maxima`."""
    logits = _dense_rows(logits)  # (N, V)
    n_rows, n_columns = logits.shape
    n_blocks = triton.cdiv(n_columns, block)
    log_sum_exp = torch.empty(n_rows, device=logits.device)  # (N,)
    tops = torch.empty(n_rows, n_blocks, dtype=logits.dtype, device=logits.device)  # (N, blocks)
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
    """Returns the tensor, or a copy if the elements of a row are not adjacent in memory."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
