"""Commands that score texts and runs."""
