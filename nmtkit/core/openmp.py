"""Sets how OpenMP threads wait for each other, which must happen before torch is loaded."""

import os

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000"}
"""Environment variables that make waiting threads spin for about a tenth of a millisecond and then sleep.

By default, they spin for much longer. When another program competes for the cores, a spinning thread takes the core
from the very thread that it waits for. Without any spinning, the small matrix products of training would have to wait
for threads to wake up.
"""


def limit_spinning() -> None:
    """Sets `WAITING` for this process and its children, unless the user has set the policy."""
    if not WAITING.keys() & os.environ.keys():
        os.environ.update(WAITING)
