"""Each planted fault still has its place in the package, and tests that could find it."""

import pytest

from tests.support.commands import ROOT
from tests.tools.planted_faults import FAULTS, Fault, place_of


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_has_its_place_and_its_tests(fault: Fault) -> None:
    assert place_of(fault, ROOT / "nmtkit").is_file()
    assert all((ROOT / "tests" / path).exists() for path in fault.tests)
