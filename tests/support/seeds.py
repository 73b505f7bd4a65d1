"""The seeds of tests that train, moved together from outside: a margin is shown over many of them.

`NMTKIT_TEST_SEED=7 pytest ...` draws other weights and other data; without it a seed is what its test says.
"""

import os

_STEP = 1000
"""So far apart that no moved seed is one that another test uses."""
_MOVED_BY = _STEP * int(os.environ.get("NMTKIT_TEST_SEED", "0"))


def moved(seed: int) -> int:
    """The seed of a test that trains."""
    return seed + _MOVED_BY
