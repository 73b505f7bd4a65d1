"""A training that is killed and goes on with other numbers of processes, by the commands themselves."""

from pathlib import Path

import pytest

from .elastic import compare


@pytest.mark.slow
def test_losses_by_1_2_4_and_1_processes_are_those_of_one(tmp_path: Path) -> None:
    said, rows = compare(tmp_path)
    assert len(rows) == 40
    assert max(abs(one - other) for _, one, other in rows) < 1e-4
    assert (
        "the run was started with 1 process and resumes with 4; an update still has 4 batches, 1 per process"
        in said
    )
