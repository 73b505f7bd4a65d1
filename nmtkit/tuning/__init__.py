"""What this machine does quickest, found by measuring it: settings that a recipe leaves open (`auto`).

`turns.py` measures ways side by side, `training.py` knows the ways to train, `found.py` keeps what was found.
"""

from nmtkit.tuning.found import Found
from nmtkit.tuning.training import KEYS, Way, find, updates_a_minute, work

__all__ = ["KEYS", "Found", "Way", "find", "updates_a_minute", "work"]
