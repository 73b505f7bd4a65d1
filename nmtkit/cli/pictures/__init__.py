"""Implementation of the commands that draw figures."""
