"""Implementation of the commands for corpora."""
