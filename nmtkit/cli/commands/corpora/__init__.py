"""Commands for corpora."""
