"""Losses, registered in the order in which the log reports them."""

from nmtkit.training.objectives import likelihood as likelihood  # isort: split

from nmtkit.training.objectives import masked_words as masked_words  # isort: split

from nmtkit.training.objectives import corruption as corruption  # isort: split

from nmtkit.training.objectives import attention as attention  # isort: split

from nmtkit.training.objectives import reinforcement as reinforcement
