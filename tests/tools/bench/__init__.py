"""How fast nmtkit is, beside bare torch and beside Hugging Face, on the same work in the same run: `make bench`."""
