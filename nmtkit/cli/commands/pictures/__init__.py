"""Commands that draw pictures."""
