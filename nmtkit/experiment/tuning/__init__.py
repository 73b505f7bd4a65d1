"""What this machine does quickest, found by measuring it: settings that a recipe leaves open (`auto`).

`turns.py` measures ways side by side, `training.py` knows the ways to train and `searching.py` those to search,
`found.py` keeps what was found.
"""

from nmtkit.experiment.tuning.found import Found, look_up
from nmtkit.experiment.tuning.training import (
    OPEN_KEYS,
    TrainingWay,
    Trial,
    quickest_training,
    tokens_a_minute,
    training_work,
)

__all__ = [
    "OPEN_KEYS",
    "Found",
    "TrainingWay",
    "Trial",
    "look_up",
    "quickest_training",
    "tokens_a_minute",
    "training_work",
]
