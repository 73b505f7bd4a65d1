"""What this machine does quickest, found by measuring it: settings that a recipe leaves open (`auto`).

`turns.py` measures ways side by side, `training.py` knows the ways to train and `searching.py` those to search,
`found.py` keeps what was found.
"""

from nmtkit.experiment.tuning.found import Found, look_up
from nmtkit.experiment.tuning.training import KEYS, Way, find, tokens_a_minute, work

__all__ = ["KEYS", "Found", "Way", "find", "look_up", "tokens_a_minute", "work"]
