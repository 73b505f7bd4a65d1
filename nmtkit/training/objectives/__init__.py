"""What a training minimises: one file an objective; importing this package registers all of them.

Their order is that in which the log tells of them.
"""

from nmtkit.training.objectives import likelihood as likelihood  # isort: split

from nmtkit.training.objectives import guided_alignment as guided_alignment  # isort: split

from nmtkit.training.objectives import coverage as coverage  # isort: split

from nmtkit.training.objectives import reinforcement as reinforcement
