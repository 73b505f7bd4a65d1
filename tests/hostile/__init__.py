"""Hostile input and violent ends: drawn cases under one oracle, processes that are killed, memory over much input."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all tests share: `python -m tests.hostile...` begins above it
