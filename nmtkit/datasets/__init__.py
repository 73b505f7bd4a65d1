"""Public corpora by name: the catalogue, and code to fetch, unpack, read, filter, split and write them."""
