"""The work of the commands for corpora."""
