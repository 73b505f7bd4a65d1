"""The parts of a slot are run from the checkout's root; so are they imported, however pytest was started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
