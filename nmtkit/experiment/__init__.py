"""One experiment in one folder: what a recipe is turned into, from its text to its scores."""
