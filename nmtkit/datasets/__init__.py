"""The catalogue of public corpora, and code to fetch, unpack, read, filter, split and write them."""
