"""How OpenMP's threads wait for each other; this must be set before torch is loaded."""

import os

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000"}
"""Threads spin for about a tenth of a millisecond and then sleep.

By default they spin for much longer, and a thread that spins takes the core from the very thread that it waits for as
soon as another program wants that core too. Without any spinning, small products of a training would wait for threads
to wake up.
"""


def limit_spinning() -> None:
    """Sets `WAITING` for this process and its children, unless the user has chosen a way of waiting."""
    if not WAITING.keys() & os.environ.keys():
        os.environ.update(WAITING)
