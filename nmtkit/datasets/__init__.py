"""Public corpora by name: what is to be had and from where, fetched, unpacked, read, filtered, split and written."""
