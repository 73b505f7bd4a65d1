"""Runs the experiment that a recipe describes, from its text to its scores, in one folder."""
