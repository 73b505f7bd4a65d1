"""Runs the experiment that a recipe describes, from the text to the scores, in one folder."""
