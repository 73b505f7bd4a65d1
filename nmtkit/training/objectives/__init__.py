"""What a training minimises; importing this package registers all of it, in the order in which the log tells of it."""

from nmtkit.training.objectives import likelihood as likelihood  # isort: split

from nmtkit.training.objectives import attention as attention  # isort: split

from nmtkit.training.objectives import reinforcement as reinforcement
