"""The Triton programs in all forms in which they are launched, compiled for GPUs that are not there.

The compiler takes less than the interpreter does, and another GPU has another assembler. What is compiled is what
`triton_kernels.py` launches for tensors of given shapes: types, sizes of tiles, warps, and which numbers are multiples
of 16 or 1, as Triton would specialise them. None may be too long for the registers.
"""

import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip(
    "triton", "3.3", reason="Triton is not installed: `make test-all` brings it on Linux, x86-64"
)

TARGETS = [80, 90, 100]
"""Compute capabilities times ten: A100, H100 and H200, B200."""
TYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.uint8: "u8"}

Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A program, its arguments and its settings."""


class Recorder:
    """Stands for a program, and notes its launches."""

    def __init__(self, program: Any, launches: list[Launch]) -> None:
        self._program, self._launches = program, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self

    def __call__(self, *arguments: Any, **settings: Any) -> None:
        self._launches.append((self._program, arguments, settings))


def attend(
    programs: ModuleType, dtype: torch.dtype, covered: bool, shape: tuple[int, int, int]
) -> None:
    queries, length, size = shape
    of_rows, of_keys, v = (
        torch.ones(2, queries, size),
        torch.ones(2, length, size),
        torch.ones(size),
    )
    history = (torch.ones(2, queries, length), v.to(dtype)) if covered else (None, None)
    programs.launch_energies(of_rows.to(dtype), of_keys.to(dtype), v.to(dtype), *history)


def weigh(programs: ModuleType, dtype: torch.dtype, length: int) -> None:
    programs.launch_softmax(
        torch.ones(2, 5, length, dtype=dtype), torch.ones(2, 1, length, dtype=torch.bool)
    )


def choose(programs: ModuleType, dtype: torch.dtype, columns: int) -> None:
    programs.launch_maxima(torch.ones(3, columns, dtype=dtype), 64)


FORMS: dict[str, list[Callable[[ModuleType, torch.dtype], None]]] = {
    "_energies": [
        partial(attend, covered=covered, shape=shape)
        for covered in (False, True)
        for shape in ((5, 30, 512), (1, 400, 1000), (4, 1, 4096), (3, 7, 6))
    ],
    "_softmax": [partial(weigh, length=length) for length in (1, 48, 1000, 4096, 1 << 15)],
    "_maxima": [partial(choose, columns=columns) for columns in (3, 640, 50_004)],
}


def compiled(launch: Launch, capability: int) -> Any:
    """What Triton makes of a launch on a GPU of this capability."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    program, arguments, settings = launch
    names: list[str] = program.arg_names
    constants = {name: value for name, value in settings.items() if name in names}
    constants |= {
        name: 1
        for name, value in zip(names, arguments, strict=False)
        if type(value) is int and value == 1
    }
    signature, attributes = {}, {}
    for place, name in enumerate(names):
        value = arguments[place] if place < len(arguments) else None
        if name in constants:
            signature[name] = "constexpr"
        elif isinstance(value, Tensor):
            signature[name] = "*" + NAMES[value.dtype]
        else:
            signature[name] = "i32"
        if signature[name] != "constexpr" and (isinstance(value, Tensor) or value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    options = {name: value for name, value in settings.items() if name not in names}
    source = ASTSource(program, signature, constants, attributes)
    return compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def stack_of(cubin: bytes, folder: Path) -> int:
    """Bytes of each thread's numbers that have no place in its registers, and go to memory and back."""
    folder.joinpath("cubin").write_bytes(cubin)
    dump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    words = [str(dump), "-res-usage", str(folder / "cubin")]
    found = re.search(
        r"STACK:(\d+)", subprocess.run(words, capture_output=True, text=True, check=True).stdout
    )
    assert found is not None
    return int(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("program", FORMS)
@pytest.mark.parametrize("dtype", TYPES, ids=NAMES.get)
@pytest.mark.parametrize("capability", TARGETS)
def test_what_is_launched_compiles(
    capability: int,
    dtype: torch.dtype,
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nmtkit.layers import triton_kernels as programs

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launches: list[Launch] = []
    monkeypatch.setattr(programs, program, Recorder(getattr(programs, program), launches))
    for form in FORMS[program]:
        form(programs, dtype)
    assert len(launches) == len(FORMS[program])
    for launch in launches:
        made = compiled(launch, capability)
        assert f".target sm_{capability}" in made.asm["ptx"]
        assert stack_of(made.asm["cubin"], tmp_path) == 0, launch[2]
