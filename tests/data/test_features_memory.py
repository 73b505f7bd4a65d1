"""Features are never in memory all at once: neither while they are stored nor while a model reads them."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nmtkit.core.columns import Column
from nmtkit.data.batches.batch_stream import BatchConfig, BatchStream
from nmtkit.data.batches.encoding import encode_split
from nmtkit.data.batches.pair_encoder import PairEncoder
from nmtkit.data.batches.store import Store
from nmtkit.data.text.checking import DataReport, PairChecker
from nmtkit.data.text.config import DataConfig, SplitFiles
from nmtkit.data.text.reading import read_blocks
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.data.tokenizers.tokenizer_training import TokenizerSample, learn_from_samples
from tests.support.commands import environment

EXAMPLES, ROWS, WIDTH = 6000, 16, 1024  # 188 MiB in float16
MARGIN = 48 << 20


def _limit_memory() -> None:
    """Lets this process have so many bytes more of its own memory; pages of mapped files do not count."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    used = 1024 * int(status.split("VmData:")[1].split()[0])
    resource.setrlimit(resource.RLIMIT_DATA, (used + MARGIN, used + MARGIN))


def store_and_read(folder: str, features: list[str], tgt: list[str]) -> None:
    files = SplitFiles(features=features, tgt=tgt)
    data = DataConfig(train=files)
    sample = TokenizerSample(1000, columns=(Column("features", "features"), Column("tgt")))
    _limit_memory()
    for block in read_blocks("train", files):
        sample.add_block(block)
    tokenizers = learn_from_samples(TokenizerConfig(kind="word"), [sample])
    encoder = PairEncoder("train", tokenizers, data)
    assert (
        encode_split(
            Path(folder), read_blocks("train", files), encoder, PairChecker(data, DataReport())
        )
        == EXAMPLES
    )
    store = Store.open(Path(folder), "train")
    stream = BatchStream(store, BatchConfig(batch_size=16), seed=1)
    while stream.epoch == 0:
        next(stream)
    store.check()
    try:
        np.ones(2 * MARGIN, dtype=np.uint8)
    except MemoryError:
        return
    raise AssertionError("the limit does not hold")


@pytest.mark.slow
def test_a_file_that_is_larger_than_memory(tmp_path: Path) -> None:
    shape = (EXAMPLES, ROWS, WIDTH)
    # the rest is a hole
    np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float16, shape)[::500] = 1
    (tmp_path / "a").write_text("a cat\n" * EXAMPLES, encoding="utf-8")
    files = SplitFiles(features=[str(tmp_path / "a.npy")], tgt=[str(tmp_path / "a")])
    # A process of its own: one that was copied has memory to spare that no limit counts.
    arguments = (str(tmp_path / "data"), files.features, files.tgt)
    program = f"import {__name__} as test; test.store_and_read(*{arguments!r})"
    paths = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", program], env=environment(PYTHONPATH=paths), check=True)
    stored = sum(path.stat().st_size for path in (tmp_path / "data").glob("train*.features"))
    assert stored == EXAMPLES * ROWS * WIDTH * 2
