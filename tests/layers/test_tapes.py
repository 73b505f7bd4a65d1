"""A tape computes what its function computes, to the last bit, from whatever stands in the tensors it was given."""

import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import Tensor

from nmtkit.layers import tapes


def small_operations(numbers: Tensor, whole: Tensor, shown: Tensor) -> list[Tensor]:
    """From floats `(1,6)`, whole numbers below 6 `(1,6)` and booleans `(1,6)`."""
    table = numbers.view(6, 1) * 3.7
    changed = numbers.clone()
    changed[0, 2:4].fill_(-torch.inf)
    changed.masked_fill_(shown, 2.5).add_(1.0)
    changed.index_copy_(0, whole[0, :1] * 0, numbers / 3.0)
    return [
        *(numbers + changed, numbers - 1, 2 - whole, numbers * numbers, numbers / whole, whole / 4, whole // 4),
        *(numbers // 0.3, torch.sub(whole, whole, alpha=5), torch.add(numbers, changed, alpha=0.3)),
        *(whole == 3, whole > 2.5, numbers <= 0.1, ~shown, shown & (whole != 2), shown | shown, numbers >= changed),
        *(
            whole.clamp(max=3),
            numbers.clamp(max=0.5),
            torch.where(shown, numbers, changed),
            numbers.masked_fill(shown, 9),
        ),
        *(numbers.gather(1, whole), table.index_select(0, whole[0]), torch.embedding(table, whole), changed),
        *(whole % 4, numbers % 0.3, shown.sum([1]), numbers.sum([1]), shown.all(1), numbers.amax([1]), whole.amax([0])),
        *(shown.sum([0], keepdim=True), numbers.clamp(0.0, 0.5), shown.all(), numbers.sum(1, dtype=torch.float64)),
        *(torch.arange(3) + whole[:, :3], torch.zeros(2).add_(numbers[0, :2]), table.gather(0, whole.view(6, 1))),
        *(numbers.sort(descending=True, stable=True)[1], numbers.softmax(1), torch.cat([numbers, changed])),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.filterwarnings("error")
def test_a_tape_computes_what_its_function_does(dtype: torch.dtype) -> None:
    torch.manual_seed(0)

    def drawn() -> list[Tensor]:
        return [torch.randn(1, 6).to(dtype), torch.randint(0, 6, (1, 6)), torch.rand(1, 6) < 0.5]

    places = drawn()
    results, tape = tapes.record(partial(small_operations, *places), list)
    assert tape is not None
    for number in range(4):
        for place, new in zip(places, drawn(), strict=True):
            place.copy_(new)
        if number == 3:
            places[0][0, :3] = torch.tensor([torch.inf, -torch.inf, 0.0])
        tapes.play(tape)
        for result, expected in zip(results, small_operations(*places), strict=True):
            torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_rows_of_overlapping_windows_are_taken_without_a_copy_of_all_windows() -> None:
    """NumPy copies what is not contiguous before it takes from it; its memory is traced, torch's is not."""
    numbers, at = torch.randn(20_000), torch.tensor([3, 19_000])
    windows = numbers.as_strided((19_937, 64), (1, 1))
    (result,), tape = tapes.record(lambda: [windows.index_select(0, at)], list)
    assert tape is not None
    at.copy_(torch.tensor([7, 12_345]))
    tracemalloc.start()
    tapes.play(tape)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert torch.equal(result, torch.stack([numbers[7 : 7 + 64], numbers[12_345 : 12_345 + 64]]))
    assert most < 100_000  # of 5 million


def test_sizes_that_depend_on_numbers_are_not_taped() -> None:
    assert tapes.record(lambda: [torch.eye(2).nonzero()], list)[1] is None


def test_warnings_of_other_threads_stay_warnings() -> None:
    """What is done with warnings holds for all threads."""
    one, raised = torch.ones(2), []
    call = tapes._Call(torch.ops.aten.sin.default, (one,), {}, torch.sin(one))

    def warning_elsewhere(given: Tensor, out: Tensor | None = None) -> Tensor:
        with ThreadPoolExecutor(1) as another:
            raised.append(another.submit(warnings.warn, "of another thread").exception())
        return torch.sin(given, out=out)

    call.function = warning_elsewhere
    with warnings.catch_warnings(action="ignore"):
        tapes._again(call, {id(call.made[0])}, ())
    assert raised == [None]
