"""Implementation of the commands that score texts and runs."""
