"""The work of the commands that draw pictures."""
