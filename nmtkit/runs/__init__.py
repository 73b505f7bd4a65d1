"""A run on disk: its folder, lock, recipe, weights, log, and the list of runs."""
