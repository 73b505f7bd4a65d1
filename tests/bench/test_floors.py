"""The floors and the Hugging Face model must do our models' work, or the bench compares nothing."""

from pathlib import Path

import pytest
import torch

from nmtkit.data.batch import collate
from nmtkit.data.store import StoreWriter  # noqa: F401
